"""Makes a copy of a recording in which the values are replaced by others of the same types and lengths.

The rule: everything that comes from a row, from a message or from what a person wrote (a condition, a label, a
default) is replaced in the same way everywhere, so that keys still match and each query still finds its answer. So
the copy is pseudonymous: values that were equal are still equal. A mode of a column (`column_modes.py`) can
reveal more or less of it. Names of tables, columns, types and topics are kept, and so are LSNs, commit times,
transaction ids and sizes. The key for replacing values is random for each redaction, and is not kept.
"""

import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from cdcd.adapters.recording.column_modes import HASH, KEEP, REPLACE, ColumnModes
from cdcd.adapters.recording.column_modes import NULL as NULLED
from cdcd.adapters.recording.events import (
    Answered,
    CatalogAnswer,
    Event,
    Frames,
    LockLostCall,
    Next,
    SegmentBegan,
)
from cdcd.adapters.recording.recorded_names import RelationReader
from cdcd.adapters.recording.redacted_values import Permutation, RedactedValues
from cdcd.core.catalog.binary_compound import reader_for
from cdcd.core.catalog.copytext import NULL, escape, split_row, unescape
from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TypeDescription
from cdcd.core.catalog.wiretext import to_bytes
from cdcd.core.engine.actions import Busy, Lost, Question, Read
from cdcd.core.errors import TransientError
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import (
    UNCHANGED,
    BeginPrepare,
    Binary,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamPrepare,
    TupleData,
    Update,
    Value,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Changed, KeyQuery, Refused, Rows, SourceTable
from cdcd.core.snapshot.signals import PREFIX, RESERVED, Signal, token_digest
from cdcd.core.snapshot.table_task import Key

REDACTED: Final = "+redacted"
"""Suffix of a redacted recording's version, so that its replay is a free one, because record sizes differ."""

HASH_DIGITS: Final = 32

_TEXT: Final = 25
_WITH_VALUES: Final = frozenset(map(ord, "IUDM"))
_WITH_NAMES_OF_TRANSACTIONS: Final = frozenset(map(ord, "bPKrp"))
_PREPARED: Final = (BeginPrepare, Prepare, CommitPrepared, RollbackPrepared, StreamPrepare)


class Redaction:
    """Replacement of values. Pass all events of a recording to `event`, in their order.

    Args:
        key: a secret, of 16 to 64 bytes.
        modes: redaction modes of single columns.
    """

    def __init__(self, key: bytes, modes: ColumnModes | None = None) -> None:
        self._hash_key = key
        self._values = RedactedValues(Permutation(key))
        self._modes = ColumnModes() if modes is None else modes
        self._modes_of: dict[int, tuple[str, ...]] = {}
        """Column modes of the relations that the stream has described, by oid."""
        self._columns: dict[int, tuple[int, ...]] = {}
        """Column types of the relations that the stream has described, by oid."""
        self._frames = RelationReader()
        self._questions: dict[int, Question] = {}

    def event(self, event: Event) -> Event:
        """Return the event with replaced values."""
        if isinstance(event, Frames):
            return Frames(event.now, [self._frame(frame) for frame in event.frames])
        if isinstance(event, SegmentBegan):
            return self._began(event)
        if isinstance(event, Next):
            if event.question is None:
                return event
            self._questions[event.ticket] = event.question
            return replace(event, question=self._redacted(event.question))
        if isinstance(event, CatalogAnswer):
            self._values.types.update(event.types)
            self._learn(event.relation)
            return replace(
                event, description=self._redacted(event.description), types=self._redacted(event.types)
            )
        if isinstance(event, Answered):
            return self._answered(event)
        if isinstance(event, LockLostCall):
            return replace(event, message=self._values.words(event.message))
        return event

    def _began(self, event: SegmentBegan) -> SegmentBegan:
        known = (*event.relations, *event.previewed)
        for relation, _, types in known:
            self._values.types.update(types)
            self._learn(relation)
        if event.first:
            self._frames.in_stream = False
        start = event.start
        if start.exported is not None:
            self._values.types.update(start.exported.types)
        progress = start.checkpoint.snapshot
        start = replace(
            start,
            settings=replace(start.settings, request_tokens=self._digests(start.settings.request_tokens)),
            checkpoint=replace(
                start.checkpoint, snapshot=None if progress is None else self._progress(progress)
            ),
            exported=self._redacted(start.exported),
            # Their expressions contain values, and would compare them with replaced values.
            filters=(),
            routes=(),
            encoding=replace(start.encoding, routes=()),
            binary=False,
        )
        return replace(
            event,
            version=f"{event.version.removesuffix(REDACTED)}{REDACTED}",
            start=start,
            relations=self._redacted(event.relations),
            previewed=self._redacted(event.previewed),
        )

    def _progress(self, progress: Progress) -> Progress:
        words = self._values.words
        return replace(
            progress,
            # Rows that a table owes are identified by their keys. Without them, the table would be read again from
            # its beginning.
            tasks=tuple(
                replace(task, where=words(task.where), owed=(), unsettled=task.unsettled or bool(task.owed))
                for task in progress.tasks
            ),
            outcomes=tuple(replace(each, error=words(each.error)) for each in progress.outcomes),
            requests=tuple(replace(each, error=words(each.error)) for each in progress.requests),
        )

    def _learn(self, relation: Relation) -> None:
        self._columns[relation.oid] = tuple(column.type_oid for column in relation.columns)
        self._modes_of[relation.oid] = self._modes.of(relation, self._values.types)

    # Frames.

    def _frame(self, frame: bytes) -> bytes:
        if len(frame) <= XLOG_HEADER or frame[peek.FRAME_KIND_AT] != peek.XLOG_DATA:
            return frame
        relation = self._frames.read(frame)
        if relation is not None:
            self._learn(relation)
            return frame
        tag = peek.tag_of(frame)
        if tag in _WITH_VALUES:
            message: Any = self._message(read_message(frame, XLOG_HEADER, in_stream=self._frames.in_stream))
        elif tag in _WITH_NAMES_OF_TRANSACTIONS:
            message = read_message(frame, XLOG_HEADER)
            assert isinstance(message, _PREPARED)
            message = replace(message, gid=self._values.words(message.gid))
        else:
            return frame
        return frame[:XLOG_HEADER] + write_message(message)

    def _message(self, message: object) -> object:
        if isinstance(message, LogicalMessage):
            return replace(message, content=self._content(message))
        assert isinstance(message, Insert | Update | Delete)
        oid = message.relation_oid
        if isinstance(message, Insert):
            return replace(message, new=self._row(message.new, oid))
        if isinstance(message, Delete):
            return replace(message, old=self._row(message.old, oid))
        old = None if message.old is None else self._row(message.old, oid)
        return replace(message, old=old, new=self._row(message.new, oid))

    def _row(self, row: TupleData, relation: int) -> TupleData:
        types, modes = self._columns.get(relation, ()), self._modes_of.get(relation, ())
        return tuple(
            self._value(types[place], value, modes[place])
            if place < len(types)
            else self._value(_TEXT, value)
            for place, value in enumerate(row)
        )

    def _value(self, oid: int, value: Value, mode: str = REPLACE) -> Value:
        if value is None or value is UNCHANGED:
            return value
        if isinstance(value, Binary):
            return self._from_binary(oid, value.data, mode)
        assert isinstance(value, bytes)
        return self._by_mode(oid, value, mode)

    def _from_binary(self, oid: int, data: bytes, mode: str = REPLACE) -> bytes | None:
        """Return the redacted value as text, from which the same records are made."""
        read = reader_for(oid, self._values.types)
        if read is None:
            return b""
        return self._by_mode(oid, to_bytes(read(data)), mode)

    def _by_mode(self, oid: int, value: bytes, mode: str) -> bytes | None:
        """Return the redacted value in text form; None for NULL."""
        if mode == KEEP:
            return value
        if mode == NULLED:
            return None
        if mode == HASH:
            return hmac.digest(self._hash_key, value, "sha256").hex()[:HASH_DIGITS].encode()
        return self._values.value(oid, value)

    def _content(self, message: LogicalMessage) -> bytes:
        if message.prefix in RESERVED:
            return self._request(message.content) if message.prefix == PREFIX else message.content
        return self._values.value(_TEXT, message.content)

    def _request(self, content: bytes) -> bytes:
        """Return a request to the daemon with the same tables, a replaced condition and another token."""
        try:
            request = Signal.decode(content)
        except ValueError:
            return self._values.value(_TEXT, content)
        token = self._digest(token_digest(request.token)) if request.token else ""
        return replace(request, where=self._values.words(request.where), token=token).encode().encode()

    def _digest(self, digest: str) -> str:
        """Return the token of the copy for a token with this digest. The key of the copy is not kept."""
        return hmac.digest(self._hash_key, digest.encode(), "sha256").hex()

    def _digests(self, tokens: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if tokens is None else tuple(token_digest(self._digest(token)) for token in tokens)

    # Answers, and objects that contain an operator's text.

    def _answered(self, event: Answered) -> Answered:
        answer = event.answer
        question = self._questions.pop(event.ticket, None)
        if isinstance(answer, Rows) and isinstance(question, Read):
            lines = list(self._lines(answer.lines, question.query.table.relation))
            return replace(event, answer=replace(answer, lines=lines, size=sum(map(len, lines))))
        if isinstance(answer, Lost):
            return replace(event, answer=Lost(TransientError(self._values.words(answer.error.message))))
        types = getattr(answer, "types", None)
        if isinstance(types, dict):
            self._values.types.update(types)
        return replace(event, answer=self._redacted(answer))

    def _lines(self, lines: Iterable[bytes], relation: Relation) -> Iterator[bytes]:
        types = [column.type_oid for column in relation.columns]
        modes = self._modes.of(relation, self._values.types)
        for line in lines:
            found = [
                field if field == NULL else self._field(oid, field, mode)
                for oid, field, mode in zip(types, split_row(line), modes, strict=True)
            ]
            yield b"\t".join(found) + b"\n"

    def _field(self, oid: int, field: bytes, mode: str) -> bytes:
        value = self._by_mode(oid, unescape(field), mode)
        return NULL if value is None else escape(value)

    def _redacted(self, value: Any) -> Any:
        """Redact texts within dataclasses, tuples and mappings, if their class can contain an operator's text."""
        words = self._values.words
        if isinstance(value, KeyQuery):
            return self._key_query(value)
        if isinstance(value, TypeDescription):
            return replace(value, labels=_labels(value.labels, words))
        if isinstance(value, CatalogColumn):
            missing = None if value.missing is None else self._values.text(value.type_oid, value.missing)
            return replace(value, missing=missing)
        if isinstance(value, ColumnForm):
            return replace(
                value,
                missing=None if value.missing is None else self._values.text(value.type_oid, value.missing),
                default=None if value.default is None else self._values.text(_JSON, value.default),
                labels=_labels(value.labels, words),
            )
        if isinstance(value, Changed | Busy):
            return replace(value, reason=words(value.reason))
        if isinstance(value, Refused):
            return replace(value, reason=words(value.reason), hint="")
        if isinstance(value, dict):
            return {key: self._redacted(each) for key, each in value.items()}
        if isinstance(value, tuple):
            return tuple(self._redacted(each) for each in value)
        if not is_dataclass(value) or isinstance(value, type):
            return value
        changed = {field.name: self._redacted(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, SourceTable):
            changed["row_filter"] = words(value.row_filter)
        for name in ("conditions", "where", "problem"):
            if name in changed:
                given = changed[name]
                changed[name] = tuple(map(words, given)) if isinstance(given, tuple) else words(given)
        return replace(value, **changed)

    def _key_query(self, query: KeyQuery) -> KeyQuery:
        relation = query.table.relation
        modes = self._modes.of(relation, self._values.types)
        by_name = {
            column.name: (column.type_oid, mode) for column, mode in zip(relation.columns, modes, strict=True)
        }
        types = [by_name.get(name, (_TEXT, REPLACE)) for name in query.key_columns]
        return replace(
            query,
            table=self._redacted(query.table),
            keys=tuple(self._key(key, types) for key in query.keys),
            conditions=tuple(map(self._values.words, query.conditions)),
        )

    def _key(self, key: Key, types: Sequence[tuple[int, str]]) -> Key:
        found: list[tuple[bool, bytes]] = []
        for (oid, mode), (binary, data) in zip(types, key, strict=True):
            value = self._from_binary(oid, data, mode) if binary else self._by_mode(oid, data, mode)
            # A key column that REPLICA IDENTITY FULL hides may have the mode null. No row has such a key, also in the
            # copy.
            found.append((False, b"" if value is None else value))
        return tuple(found)


_JSON: Final = 114


def _labels(labels: tuple[tuple[int, str], ...], words: Any) -> tuple[tuple[int, str], ...]:
    return tuple((oid, words(label)) for oid, label in labels)
