"""What was promised, checked at every step: a broken promise is a `PromiseBrokenError` that says which.

The oracle sees the truth on both sides: what PostgreSQL committed, in order, and what Kafka committed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from cdcd.core.protocol.lsn import Lsn
from tests.sim.aside import AsideSeen, is_tombstone_of
from tests.sim.descriptions import TOPIC as DESCRIPTIONS_TOPIC
from tests.sim.descriptions import DescriptionsSeen
from tests.sim.expected import TOMBSTONE, Expected, Part, PromiseBrokenError, Record, check, parts_of
from tests.sim.fold import Fold, decoded, is_of_snapshot
from tests.sim.healed import HealedSeen
from tests.sim.heartbeats import TOPIC as HEARTBEAT_TOPIC
from tests.sim.heartbeats import HeartbeatsSeen
from tests.sim.metadata import TOPIC as METADATA_TOPIC
from tests.sim.metadata import TransactionsSeen
from tests.sim.parted import PartitionsSeen, is_moved
from tests.sim.protected import ProtectedSeen
from tests.sim.shared import apart
from tests.sim.wal import Change
from tests.sim.watermarks import WatermarksSeen, is_one


class Prepared:
    """A prepared transaction that is sent at PREPARE: what may be confirmed depends on its fate."""

    __slots__ = ("commit_index", "decided", "lsn")

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn
        self.decided = False
        self.commit_index = 0


class Oracle:
    """The committed source in order, and how much of it Kafka holds.

    Args:
        exactly_once: whether Kafka's log must be the source's, or may repeat parts of it.
        truncates: whether TRUNCATE makes records.
        skipped: operations that make none.
        left_out: names of tables that make none.
        metadata: whether records say their place in their transaction.
        filters: whether tables have a filter.
        parted: whether columns choose the partitions of records.
        routes: whether rows of tables are routed.
        shared: whether all tables share one topic.
        message_bytes_max: of larger logical messages, size and digest are delivered; 0: all are delivered whole.
        whole_bytes: a transaction with fewer bytes must appear in Kafka as a whole.
        part_records, part_bytes: so must one that has fewer than both.
    """

    def __init__(
        self,
        *,
        exactly_once: bool,
        truncates: bool,
        whole_bytes: int,
        part_records: int,
        part_bytes: int,
        skipped: tuple[str, ...] = (),
        left_out: tuple[str, ...] = (),
        metadata: bool = False,
        filters: bool = False,
        parted: bool = False,
        routes: bool = False,
        shared: bool = False,
        message_bytes_max: int = 0,
    ) -> None:
        self.message_bytes_max = message_bytes_max
        self.exactly_once = exactly_once
        self.truncates = truncates
        self.skipped = skipped
        self.filters = filters
        self.partitions = PartitionsSeen() if parted else None
        self.routes = routes
        self.shared = shared
        self.left_out = left_out
        self.left_out_changes = 0
        """Changes that have no records, because the rows of a table without a key have them."""
        self.whole_bytes = whole_bytes
        self.part_records = part_records
        self.part_bytes = part_bytes
        self.transactions = TransactionsSeen() if metadata else None
        self.descriptions: DescriptionsSeen | None = None
        self.protected: ProtectedSeen | None = None
        self.heartbeats = HeartbeatsSeen(rises=exactly_once)
        self.watermarks = WatermarksSeen(rises=exactly_once)
        self.expected: list[Expected] = []
        self.delivered = 0
        self.told = 0
        self.durable = False
        """A durable log may have what Kafka lacks."""
        self.aside: AsideSeen | None = None
        """Tables that are set aside; None: no table is."""
        self.begun = False
        """Whether there is a slot: what is committed before belongs to a snapshot only."""
        self.fold: Fold | None = None
        self.healed: HealedSeen | None = None
        """Differences between topics and tables after a gap; None: gaps are not healed."""
        self.rows = 0
        """Records that Kafka holds, tombstones among them: no fewer than rows."""
        self.has_rows = False
        """Whether rows of a snapshot were delivered."""
        self._sizes: list[int] = []
        self._ends: dict[int, list[int]] = {}
        """Sizes of records before an expected one that end the rows of other tables, or are BEGIN: the daemon counts
        them too."""
        self._cut: set[int] = set()
        self._index: dict[tuple[int, int], int] = {}
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._prepared: dict[int, Prepared] = {}

    # PostgreSQL's side.

    def commit(self, start: int, xid: int, changes: Sequence[Change], origin: str) -> None:
        """At `start` the transaction committed; a message outside any has the xid 0."""
        if not self.begun:
            return
        for serial, change in enumerate(changes, 1 if xid else 0):
            commit_lsn = start if xid else change.lsn - 1
            self._index[commit_lsn, serial] = len(self.expected)
            for op, table, route in self._parts_of(change):
                self.expected.append(
                    Expected(
                        change,
                        op,
                        table,
                        xid=xid,
                        commit_lsn=commit_lsn,
                        serial=serial,
                        origin=origin,
                        route=route,
                        is_short=op == "m" and 0 < self.message_bytes_max < len(change.content),
                    )
                )
        self._starts.append(start)
        self._lengths.append(len(self.expected))
        prepared = self._prepared.get(xid)
        if prepared is not None:
            prepared.decided = True
            prepared.commit_index = len(self.expected)

    def slot_dropped(self) -> None:
        """A start took back the slot that it had made: what was committed since belongs to the next snapshot only."""
        if self.delivered or self.has_rows:
            raise PromiseBrokenError("G1: a slot was dropped of which something was delivered")
        self.begun = False
        if self.protected is not None:
            self.protected.slot_dropped()
        self.expected.clear()
        self._starts.clear()
        self._lengths.clear()
        self._index.clear()
        self._prepared.clear()

    def accept_gap(self, confirmed: int) -> None:
        """The stream continues at `confirmed`: expect no change that was committed before and is not delivered yet."""
        gone = bisect_left(self._starts, confirmed)
        behind = self._lengths[gone - 1] if gone else 0
        lost = max(behind - self.delivered, 0)
        del self.expected[self.delivered : self.delivered + lost]
        self._lengths = [
            min(length, self.delivered) if at < gone else length - lost
            for at, length in enumerate(self._lengths)
        ]
        self._index = {}
        for at, expected in reversed([*enumerate(self.expected)]):
            self._index[expected.commit_lsn, expected.serial] = at
        self._cut.clear()
        assert self.fold is not None
        self.fold.begin_gap()

    def has_records(self, changes: Sequence[Change]) -> bool:
        return any(map(self._parts_of, changes))

    def _parts_of(self, change: Change) -> list[Part]:
        return parts_of(
            change,
            truncates=self.truncates,
            skipped=self.skipped,
            left_out=self.left_out,
            filters=self.filters,
            moved=self.partitions is not None and is_moved(change),
            routes=self.routes,
        )

    def prepare(self, lsn: int, xid: int) -> None:
        """A transaction is sent at its PREPARE and not again."""
        self._prepared[xid] = Prepared(lsn)

    def roll_back_prepared(self, xid: int) -> None:
        self._prepared.pop(xid, None)

    # Kafka's side.

    def append(self, records: Sequence[Record]) -> None:
        """A Kafka transaction with these records became visible."""
        self.rows += len(records)
        at = -1
        first = before = self.delivered
        if self.shared:
            records = [*map(apart, records)]
        for record in records if self.protected is None else map(self.protected.revealed, records):
            if record[0] == HEARTBEAT_TOPIC:
                self.rows -= 1
                self.heartbeats.heartbeat(record, self._starts, self._lengths, before)
                continue
            if is_one(record):
                self.rows -= 1
                here = max(self.delivered, at)
                self.watermarks.watermark(record, self._starts, self._lengths, here)
                continue
            if self.descriptions is not None and record[0] == DESCRIPTIONS_TOPIC:
                self.descriptions.description(record)
                self._ends.setdefault(self.delivered if at < 0 else at, []).append(_size(record))
                continue
            if self.transactions is not None and record[0] == METADATA_TOPIC:
                if self.transactions.boundary(record):
                    self._ends.setdefault(self.delivered if at < 0 else at, []).append(_size(record))
                continue
            fields = decoded(record)
            if self.transactions is not None and fields:
                self.transactions.record(fields)
            if self.healed is not None and self.healed.has_taken(record, fields):
                self.has_rows = True
                continue
            if is_of_snapshot(fields) or self._ends_rows(record[0], fields, self.delivered if at < 0 else at):
                here = self.delivered if at < 0 else at
                if not is_of_snapshot(fields):
                    self._ends.setdefault(here, []).append(_size(record))
                self._snapshot(record, fields, here)
                continue
            if at < 0:
                at = first = self._first(fields)
            at = self._past(record, fields, at)
            self._take(record, fields, at)
            at += 1
        if at >= 0:
            self.delivered = max(self.delivered, at)
            if self.exactly_once:
                self._whole(first, at)

    def _ends_rows(self, topic: str, fields: dict[str, Any], at: int) -> bool:
        """Whether the record is no TRUNCATE, but the end of the rows of another table that had the name."""
        if not fields or fields["op"] != "t":
            return False
        assert self.fold is not None
        wanted = self.expected[at] if at < len(self.expected) else None
        name = fields["source"]["table"]
        table = None if wanted is None else wanted.table
        may_end = self.fold.is_shared(name) or self.fold.is_outdated(topic)
        if self.aside is not None:
            may_end = may_end or self.aside.may_end(topic)
            at = self._without_aside((topic, None, None, None), fields, at)
            wanted = self.expected[at] if at < len(self.expected) else None
            own = wanted is not None and wanted.table is not None and wanted.table.name == name
            if wanted is not None and own and _is_truncate(wanted, fields):
                return False
        if wanted is not None and table is not None and _is_truncate(wanted, fields):
            return table.name != name and may_end
        return may_end

    def _past_left_out(self, fields: dict[str, Any], at: int) -> int:
        """The place of the record behind changes that the rows of tables without a key have."""
        while at < len(self.expected):
            wanted = self.expected[at]
            is_here = bool(fields) and _is_at(wanted, fields)
            if is_here and wanted.op == "t" and wanted.table is not None:
                # A TRUNCATE of several tables has the same place in all of their topics.
                is_here = fields["source"]["table"] == wanted.table.name
            if is_here or not self._may_be_left_out(at):
                break
            if at == len(self._sizes):
                self._sizes.append(0)
            self.left_out_changes += 1
            at += 1
        return at

    def _past(self, record: Record | None, fields: dict[str, Any], at: int) -> int:
        """The place of the record behind changes that Kafka may lack for either reason, in any order."""
        while True:
            before = at
            at = self._past_left_out(fields, at)
            at = self._without_aside(record, fields, at)
            if at == before:
                return at

    def _may_be_left_out(self, at: int) -> bool:
        return self.fold is not None and self.fold.may_be_left_out(self.expected[at])

    def _is_boundary(self, at: int) -> bool:
        """Whether a transaction ends at this place, but for changes that may be left out."""
        last = self._lengths[bisect_left(self._lengths, at)]
        return all(self._may_be_left_out(each) or self._may_be_aside(each) for each in range(at, last))

    def _may_be_aside(self, at: int) -> bool:
        return self.aside is not None and self.aside.may_lack(self.expected[at])

    def _without_aside(self, record: Record | None, fields: dict[str, Any], at: int) -> int:
        """Pass over records that Kafka may lack, up to the one that came; None: none came."""
        if self.aside is None:
            return at
        while at < len(self.expected) and self.aside.may_lack(self.expected[at]):
            wanted = self.expected[at]
            other = fields and wanted.table is not None and fields["source"].get("table") != wanted.table.name
            if (
                record is not None
                and not other
                and (_is_at(wanted, fields) if fields else is_tombstone_of(wanted, record))
            ):
                break
            at += 1
        return at

    def _first(self, fields: dict[str, Any]) -> int:
        """Which record this is, with which a Kafka transaction begins."""
        if self.exactly_once or not fields:
            return self.delivered
        source = fields["source"]
        at = self._index.get((source["commit_lsn"], source["event_serial_no"]), -1)
        if not 0 <= at <= self._without_aside(None, {}, self.delivered):
            raise PromiseBrokenError(f"G1: Kafka has a gap between {self.delivered} and {at}")
        return at

    def _take(self, record: Record, fields: dict[str, Any], at: int) -> None:
        wanted = self.expected[at] if at < len(self.expected) else None
        if fields and (wanted is None or not _is_at(wanted, fields)):
            raise PromiseBrokenError(self._describe(at, fields))
        if wanted is None:
            raise PromiseBrokenError(f"G2: after the last record, {record} came")
        check(wanted, record)
        if self.aside is not None and self.aside.must_lack(wanted):
            raise PromiseBrokenError(f"G13: a record of a table that is set aside: {wanted}")
        while len(self._sizes) < at:
            self._sizes.append(0)
        if at == len(self._sizes):
            self._sizes.append(_size(record))
        assert self.fold is not None
        self.fold.change(wanted, record, fields)
        if self.partitions is not None:
            self.partitions.change(wanted, record)

    def _snapshot(self, record: Record, fields: dict[str, Any], at: int) -> None:
        self.has_rows = True
        assert self.fold is not None
        if (
            self.aside is not None
            and fields["op"] == "r"
            and self.aside.must_lack_row(self.fold.table_of(fields), fields["source"]["commit_lsn"])
        ):
            raise PromiseBrokenError(f"G13: a row of a table that is set aside: {record}")
        if (
            fields["op"] == "r"
            and self.exactly_once
            and at
            and not self._is_boundary(at)
            and self._lengths[bisect_left(self._lengths, at)] > self._without_aside(None, {}, at)
        ):
            raise PromiseBrokenError(f"G4: a row of a snapshot inside of a transaction: {record}")
        self.fold.snapshot(record, fields)

    def _describe(self, index: int, fields: dict[str, Any]) -> str:
        wanted = self.expected[index] if index < len(self.expected) else None
        source = fields["source"]
        known = self._index.get((source["commit_lsn"], source["event_serial_no"]))
        what = f"record {fields['op']} at {source['commit_lsn']}, {source['event_serial_no']}"
        if known is None:
            return f"G3: {what} was never committed; expected {wanted} at {index}"
        if known < index:
            return f"G2: {what} came again at {index}, it was {known}; expected {wanted}"
        return f"G1/G4: {what}, which is {known}, came at {index} instead of {wanted}"

    def _whole(self, start: int, end: int) -> None:
        """G10: only a transaction over the limits may be cut at either end of a Kafka transaction."""
        for cut in (start, end):
            at = bisect_left(self._lengths, cut)
            if at < len(self._lengths) and self._lengths[at] <= self._without_aside(None, {}, cut):
                # What is left of the transaction is of tables that are set aside.
                continue
            if at < len(self._lengths) and self._lengths[at] != cut:
                before = self._lengths[at - 1] if at else 0
                if before != cut and not self._is_boundary(cut):
                    self._cut.add(at)
        for at in list(self._cut):
            last = self._lengths[at]
            if last <= self.delivered:
                self._cut.discard(at)
                before = self._lengths[at - 1] if at else 0
                if any(self._may_be_aside(each) for each in range(before, last)):
                    # Records that the broker refused later belonged to the transaction when it was cut.
                    continue
                ends = [size for index in range(before, last) for size in self._ends.get(index, ())]
                records, size = last - before + len(ends), sum(self._sizes[before:last]) + sum(ends)
                small = records < self.part_records and size < self.part_bytes
                if small or size < self.whole_bytes:
                    raise PromiseBrokenError(
                        f"G10: a transaction of {records} records and {size} bytes is cut"
                    )

    # What PostgreSQL is told.

    def tell(self, flushed: int, confirmed: int, wal_end: int, two_phase_at: int) -> None:
        """A status update reached the server, whose slot was confirmed up to `confirmed`.

        What is prepared from `two_phase_at` on is sent at PREPARE, and then not again.
        """
        if not flushed:
            return
        if flushed < confirmed:
            raise PromiseBrokenError(f"flushed fell from {Lsn(confirmed)} to {Lsn(flushed)}")
        if flushed > wal_end:
            raise PromiseBrokenError(f"flushed {Lsn(flushed)} is past the end of the WAL, {Lsn(wal_end)}")
        self.told = max(self.told, flushed)
        # The server skips what commits before `flushed` (decode.c, DecodeTXNNeedSkip).
        at = bisect_left(self._starts, flushed)
        delivered = self.delivered
        while True:
            before = delivered
            while delivered < len(self.expected) and self._may_be_left_out(delivered):
                delivered += 1
            delivered = self._without_aside(None, {}, delivered)
            if delivered == before:
                break
        if not self.durable and at and self._lengths[at - 1] > delivered:
            lost = self._starts[bisect_right(self._lengths, delivered)]
            raise PromiseBrokenError(f"G1: told {Lsn(flushed)}, but Kafka lacks the commit at {Lsn(lost)}")
        for xid, prepared in self._prepared.items():
            if two_phase_at <= prepared.lsn < flushed and not (
                prepared.decided and prepared.commit_index <= delivered
            ):
                raise PromiseBrokenError(
                    f"G1: told {Lsn(flushed)}, past the PREPARE of {xid} at {Lsn(prepared.lsn)}"
                )

    def count(self, rows: int) -> None:
        """The daemon says that it delivered so many rows. It may know of fewer, if an answer of Kafka was lost."""
        if self.exactly_once and rows > self.rows:
            raise PromiseBrokenError(
                f"{rows} rows are said to be delivered, and Kafka holds {self.rows} records"
            )

    def finish(self) -> None:
        """Everything was decided, and quiet."""
        if self.transactions is not None:
            self.transactions.finish()
        self.delivered = self._past(None, {}, self.delivered)
        if self.delivered != len(self.expected):
            raise PromiseBrokenError(
                f"G1: {len(self.expected) - self.delivered} committed records never came"
            )


def _size(record: Record) -> int:
    return len(record[1] or b"") + len(record[2] or b"")


def _is_truncate(wanted: Expected, fields: dict[str, Any]) -> bool:
    """Whether the record is the TRUNCATE.

    If the TRUNCATE is the last event of a transaction, the end of former rows behind the transaction has the same
    place, with the LSN of the commit.
    """
    return wanted.op == "t" and _is_at(wanted, fields) and fields["source"]["lsn"] == wanted.change.lsn


def _is_at(wanted: Expected, fields: dict[str, Any]) -> bool:
    source = fields["source"]
    return (
        wanted.op != TOMBSTONE
        and source["commit_lsn"] == wanted.commit_lsn
        and source["event_serial_no"] == wanted.serial
    )
