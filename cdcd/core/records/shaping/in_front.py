"""An encoder in front of another one: it passes everything on, and subclasses change some of the events.

The rule: each event of a transaction counts once, whatever is made of it. Either the inner encoder encodes it, or
the inner encoder's `skip` is called. So `events_done` in a checkpoint and `event_serial_no` in records have the
same meaning as without this encoder.

A subclass decides which events it changes (`_shapes`), and what each becomes (`_shape`). Runs of other events are
passed to the inner encoder unchanged. Changed events are not drafted: they are kept as frames until their commit.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import FatalError
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.encoder import Encoded, Encoder, Record, SnapshotPosition, TransactionRecords
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.transactions.drafts import Draft, SpoolItem

FILTERED: Final = "filtered"
FILTER_FAILED: Final = "filter_failed"
ROUTE_FAILED: Final = "route_failed"
"""Ops of `counts`: events and rows without a record, because their row does not match a filter; events and rows for
which a filter or a rule of a route had no answer. The latter also count under the op of the record that they got."""

NO_RECORD: Final = frozenset({FILTERED, FILTER_FAILED, ROUTE_FAILED})
"""Ops of `counts` that do not stand for records."""


T = TypeVar("T")


def of_row(item: SpoolItem, in_stream: bool, tables: dict[int, T]) -> T | None:
    """Return the entry in `tables` for the table whose row the event has; None if there is no entry, or if it is not an
    event of a row.
    """
    if not isinstance(item, bytes) or peek.tag_of(item) not in peek.ROWS:
        return None
    return tables.get(peek.relation_of_row(item, in_stream))


class EncoderInFront:
    """Passes everything on to `inner`. See `Encoder` for the methods."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner

    def _shapes(self, item: SpoolItem, in_stream: bool) -> bool:
        """Return whether the event is one for `_shape`; drafts are not."""
        return False

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Encode an event that `_shapes` has chosen, like `encode`."""
        raise NotImplementedError

    @property
    def tables(self) -> KnownTables:
        return self._inner.tables

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        return self._inner.counts

    @property
    def unwritable(self) -> dict[tuple[str, str], int]:
        return self._inner.unwritable

    @property
    def metadata(self) -> TransactionRecords | None:
        return self._inner.metadata

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        self._inner.define(relation, table, types)

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        return self._inner.unregistered(relation_oid)

    def begin(self, xid: int, commit_lsn: int, commit_time: int, last_commit_lsn: int | None) -> None:
        self._inner.begin(xid, commit_lsn, commit_time, last_commit_lsn)

    def set_origin(self, name: str, lsn: int | None) -> None:
        self._inner.set_origin(name, lsn)

    def skip(self, events: int) -> None:
        self._inner.skip(events)

    @property
    def serial(self) -> int:
        return self._inner.serial

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        size = 0
        run: list[SpoolItem] = []
        for item in kept:
            if not self._shapes(item, in_stream):
                run.append(item)
                continue
            assert isinstance(item, bytes)
            if run:
                size += self._inner.encode_all(run, in_stream, now_us, out)
                run = []
            size += self._shape_whole(item, in_stream, now_us, out)
        if run:
            size += self._inner.encode_all(run, in_stream, now_us, out)
        return size

    def _shape_whole(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        """Encode an event like `_shape`; a faulty event counts once and leaves no record."""
        known, serial = len(out), self._inner.serial
        try:
            return self._shape(frame, in_stream, now_us, out)
        except FatalError:
            del out[known:]
            self._inner.skip(serial + 1 - self._inner.serial)
            raise

    def late_records(self, draft: Draft, now_us: int, out: list[Record]) -> LateRecords | None:
        return self._inner.late_records(draft, now_us, out)

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        if self._shapes(frame, in_stream):
            return self._shape(frame, in_stream, now_us, out)
        return self._inner.encode(frame, in_stream, now_us, out)

    def encode_moved(
        self, frame: bytes, in_stream: bool, now_us: int, out: list[Record], came: list[Record]
    ) -> int:
        return self._inner.encode_moved(frame, in_stream, now_us, out, came)

    def encode_message(
        self, frame: bytes, in_stream: bool, last_commit_lsn: int | None, now_us: int, out: list[Record]
    ) -> int:
        return self._inner.encode_message(frame, in_stream, last_commit_lsn, now_us, out)

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        return self._inner.encode_end_of_rows(oid, between, now_us, out)

    def encode_heartbeat(self, lsn: int, now_us: int, out: list[Record]) -> int:
        return self._inner.encode_heartbeat(lsn, now_us, out)

    def encode_rows(  # noqa: PLR0917  as in `Encoder`
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        return self._inner.encode_rows(oid, lines, position, now_us, out, dropped)

    def encode_deletes(
        self,
        oid: int,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
    ) -> Encoded:
        return self._inner.encode_deletes(oid, keys, position, now_us, out)

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        kept: list[SpoolItem] = []
        run: list[SpoolItem] = []
        for frame in frames:
            if not self._shapes(frame, True):
                run.append(frame)
                continue
            if run:
                kept += self._inner.draft_all(run, relations)
                run = []
            kept.append(frame)
        if run:
            kept += self._inner.draft_all(run, relations)
        return kept

    def forget(self, relation_oid: int) -> None:
        self._inner.forget(relation_oid)

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        return self._inner.to_topic(relation_oid, record, topic)
