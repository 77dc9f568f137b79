"""An encoder in front of a format's encoder: it makes the records of published events, and passes everything else on.

As `in_front.py` requires, each event of a transaction is counted once, whatever is made of it.

An event that cannot be published is never lost silently, and never ends the daemon: a logical message goes to the
topic of logical messages, a row goes to its table's own topic, and the observer is told why. At most one such
report is made per `REPORT_S`, because anybody may send many such events. A message that is too large for the topic
of logical messages gets no record.
"""

from collections.abc import Mapping
from typing import Final

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.facts import EventRefused, Observer, cut_short
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Insert, LogicalMessage, Relation
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record, record_bytes
from cdcd.core.records.shaping.in_front import EncoderInFront, of_row
from cdcd.core.records.shaping.outbox_rows import OutboxRows
from cdcd.core.records.shaping.publishing import PREFIX, read_event
from cdcd.core.records.shaping.settings import Outbox
from cdcd.core.transactions.drafts import SpoolItem

REPORT_S: Final = 10
"""Minimum of seconds between reports of refused events."""

REASON_MAX: Final = 400
"""Maximum number of characters of the reason in a report."""

PUBLISHED: Final = "published"
REFUSED: Final = "refused"
IGNORED: Final = "ignored"
"""Ops of `counts`: published events; events that could not be published, whatever record they have instead; updates
and deletes in outbox tables, which have no record."""


def shaped(inner: Encoder, outbox: Outbox, settings: EncoderSettings, observe: Observer) -> Encoder:
    """Return the encoder of a pipeline, which is the format's own if nothing is published."""
    return OutboxEncoder(inner, outbox, settings, observe) if outbox.is_on else inner


class OutboxEncoder(EncoderInFront):
    """Publishes events, and passes everything else to `inner`. See `Encoder` for the methods."""

    def __init__(self, inner: Encoder, outbox: Outbox, settings: EncoderSettings, observe: Observer) -> None:
        EncoderInFront.__init__(self, inner)
        self._outbox = outbox
        self._topics = frozenset(outbox.topics)
        self._protections = settings.protections
        self._observe = observe
        self._rows: dict[int, OutboxRows] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._instead: dict[tuple[str, str], int] = {}
        """Number of records that `inner.counts` has because of refused events."""
        self._quiet_until_us = 0
        self._left_out = 0

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        found = {**self._inner.counts, **self._counts}
        for each, count in self._instead.items():
            found[each] -= count
        return {each: count for each, count in found.items() if count}

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        outbox = self._outbox.tables.get((relation.schema, relation.name))
        rows = None
        if outbox is not None:
            rules = self._protections.in_force(relation, table)
            rows = OutboxRows(relation, outbox, self._topics, rules)
        self._inner.define(relation, table, types)
        if rows is None:
            self._rows.pop(relation.oid, None)
        else:
            self._rows[relation.oid] = rows

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        if not self._rows:
            return self._inner.encode_all(kept, in_stream, now_us, out)
        return EncoderInFront.encode_all(self, kept, in_stream, now_us, out)

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        if self._is_published(frame, in_stream):
            size = self._publish(frame, in_stream, now_us, out)
            if size is None:
                return self._inner.encode(frame, in_stream, now_us, out)
            self._inner.skip(1)
            return size
        return EncoderInFront.encode(self, frame, in_stream, now_us, out)

    def encode_message(
        self, frame: bytes, in_stream: bool, last_commit_lsn: int | None, now_us: int, out: list[Record]
    ) -> int:
        if self._is_published(frame, in_stream):
            size = self._publish(frame, in_stream, now_us, out)
            if size is not None:
                return size
        return self._inner.encode_message(frame, in_stream, last_commit_lsn, now_us, out)

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """Draft rows with the format's encoder, but keep rows of outbox tables as frames, because that encoder does not
        encode them.
        """
        if not self._rows:
            return self._inner.draft_all(frames, relations)
        return EncoderInFront.draft_all(self, frames, relations)

    def _shapes(self, item: SpoolItem, in_stream: bool) -> bool:
        return of_row(item, in_stream, self._rows) is not None

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        rows = of_row(frame, in_stream, self._rows)
        assert rows is not None, "only rows of outbox tables are shaped"
        return self._row(frame, rows, in_stream, now_us, out)

    def _row(self, frame: bytes, rows: OutboxRows, in_stream: bool, now_us: int, out: list[Record]) -> int:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        oid = peek.relation_of_row(frame, in_stream)
        relation = self._inner.tables.relation(oid)
        name = f"{relation.schema}.{relation.name}"
        if not isinstance(message, Insert):
            self._inner.skip(1)
            _count(name, IGNORED, self._counts)
            return 0
        try:
            record = rows.event(message.new)
        except ValueError as error:
            self._refuse(name, str(error), frame, now_us)
            _count(name, "c", self._instead)
            return self._inner.encode(frame, in_stream, now_us, out)
        self._inner.skip(1)
        _count(name, PUBLISHED, self._counts)
        return _append(record, out)

    def _is_published(self, frame: bytes, in_stream: bool) -> bool:
        return (
            self._outbox.messages
            and peek.tag_of(frame) == peek.MESSAGE
            and peek.message_prefix(frame, in_stream) == PREFIX
        )

    def _publish(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int | None:
        """Append the record of the event and return its size; None if the event is refused and is encoded like any
        other message.
        """
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, LogicalMessage)
        left_out = peek.shortened_bytes(frame)
        size, most = max(len(message.content), left_out), self._outbox.message_bytes_max
        if size > most or left_out >= 0:
            self._refuse("", f"it has {size} bytes, and {most} are allowed", frame, now_us)
            return 0
        try:
            record = read_event(message.content, self._topics)
        except ValueError as error:
            self._refuse("", str(error), frame, now_us)
            _count("", "m", self._instead)
            return None
        _count("", PUBLISHED, self._counts)
        return _append(record, out)

    def _refuse(self, table: str, reason: str, frame: bytes, now_us: int) -> None:
        _count(table, REFUSED, self._counts)
        if now_us < self._quiet_until_us:
            self._left_out += 1
            return
        self._quiet_until_us = now_us + REPORT_S * 1_000_000
        left_out, self._left_out = self._left_out, 0
        self._observe(
            EventRefused(
                table=table,
                reason=cut_short(reason, REASON_MAX),
                lsn=str(Lsn(peek.lsn_of(frame))),
                left_out=left_out,
            )
        )


def _count(table: str, op: str, counts: dict[tuple[str, str], int]) -> None:
    counts[table, op] = counts.get((table, op), 0) + 1


def _append(record: Record, out: list[Record]) -> int:
    """Append the record and return its size in bytes."""
    _, key, value, headers = record
    out.append(record)
    return record_bytes(key, value, headers)
