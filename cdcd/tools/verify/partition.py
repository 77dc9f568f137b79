"""One partition of a table's topic: checks the order of its records, and applies each to the rows.

`folding.py` has the rules.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcd.core.records.encoder import is_watermark
from cdcd.tools.verify.record_parsing import NULL as JSON_NULL
from cdcd.tools.verify.record_parsing import SCHEMA, Cut, Headers, NotARecordError, Row, cut, pairs, payload
from cdcd.tools.verify.row_store import ELSEWHERE, FOREIGN, MOVED, PARTIAL, WHOLE, Loose, Stored
from cdcd.tools.verify.snapshot_visibility import Sight
from cdcd.tools.verify.values import BEFORE as BEFORE_VALUE
from cdcd.tools.verify.values import MOVED as MOVED_VALUE
from cdcd.tools.verify.values import UNSENT as UNSENT_VALUE
from cdcd.tools.verify.values import join, key_hash, pack, pack_row

if TYPE_CHECKING:
    from cdcd.tools.verify.folding import TableFold

CLAIM_CHECK: Final = "cdcd.claim_check"


class TopicRecord(NamedTuple):
    """A record with its offset in its partition."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


UNSEEN_MAX: Final = 100_000
"""Maximum number of a partition's keys that are remembered because the snapshot does not see a change of them."""


@dataclass(slots=True)
class Partition:
    """One partition of a table's topic. `take` gets its records in their order.

    Attributes:
        is_cut: True if its first records are missing.
        again_from: offset of the first record that was skipped since `look`; None: none was skipped.
        unsure: True if rows that were read were skipped because the snapshot does not see a change before them.
            These rows may have had values that no other record has.
        ends_behind: True if the newest record is a repetition, and records that followed it are not repeated.
    """

    table: "TableFold"
    number: int
    last: tuple[int, int, int] = (0, 0, 0)
    first_lsn: int = 0
    is_cut: bool = False
    again_from: int | None = None
    unsure: bool = False
    ends_behind: bool = False
    _sight: Sight | None = None
    _unseen: set[bytes | None] = field(default_factory=set)
    _judged: int = -1
    _deleted: bytes | None = None
    _tombstones: bool = False
    _has_place: bool = False

    def look(self, sight: Sight) -> None:
        """Fold the records that this snapshot sees, beginning with the first skipped record."""
        self._sight = sight
        self.again_from = None
        self.unsure = False
        self._unseen.clear()

    def take(self, record: TopicRecord) -> None:
        """Fold a record, if the snapshot sees it. Watermarks do not change rows."""
        offset, key, value, headers = record
        if value is None and is_watermark(None, headers):
            return
        if key is not None and key.startswith(SCHEMA):
            key = payload(key)
            record = record._replace(key=key)
        table = self.table
        is_first, is_new = self._judged < 0, offset > self._judged
        if is_new:
            self._judged = offset
            table.records += 1
        if value is None:
            if is_new:
                table.records -= 1
                self._tombstone(record, is_first=is_first)
            return
        if is_new and self._deleted is not None:
            self._end_delete(record)
        if headers and any(name == CLAIM_CHECK for name, _ in headers):
            self._elsewhere(record, is_new)
            return
        try:
            found = cut(value, headers, table.form)
            if key is not None:
                _check_key(key, found)
        except NotARecordError as error:
            if is_new:
                table.fault(f"not a record: {error}", self._where(record), key)
            return
        if is_new:
            self._judge(record, found)
            if found.op == "d":
                self._deleted = key
        if self._is_seen(record, found):
            self._apply(record, found)
        elif self.again_from is None:
            self.again_from = record.offset

    def _is_seen(self, record: TopicRecord, found: Cut) -> bool:
        """Return True if the snapshot sees the record. A row that was read contains all changes before it."""
        assert self._sight is not None, "`look` comes first"
        if not found.commit_lsn:
            return True
        if found.xid is None:
            seen = len(self._unseen) <= UNSEEN_MAX and record.key not in self._unseen
            seen = seen and (record.key is not None or not self._unseen)
            self.unsure = self.unsure or not seen
            return seen
        if self._sight.sees(found.commit_lsn, found.xid):
            return True
        if len(self._unseen) <= UNSEEN_MAX:
            self._unseen.add(record.key)
        return False

    def _judge(self, record: TopicRecord, found: Cut) -> None:
        """Check that the record is in its order."""
        table = self.table
        place = (found.commit_lsn, found.serial, found.half)
        if not found.commit_lsn:
            if self._has_place:
                table.fault("a record without a place behind cdcd's", self._where(record), record.key)
            table.foreign += 1
            return
        self._has_place = True
        self.ends_behind = place < self.last
        self.first_lsn = self.first_lsn or found.commit_lsn
        if place > self.last:
            self.last = place
        elif not table.settings.exactly_once:
            table.again += 1
        else:
            kind = "a record twice" if place == self.last else "a record out of order, or again"
            table.fault(kind, self._where(record), record.key)

    def _apply(self, record: TopicRecord, found: Cut) -> None:
        table = self.table
        if found.op == "m":
            return
        if found.op == "t":
            table.truncated = max(table.truncated, (found.commit_lsn, found.serial))
        elif record.key is None:
            table.without_key += 1
            self._apply_loose(found)
        else:
            table.with_key += 1
            self._apply_keyed(record.key, found)

    def _apply_keyed(self, name: bytes, found: Cut) -> None:
        table, store = self.table, self.table.store
        key = key_hash(name)
        place = (found.commit_lsn, found.serial)
        if found.after is None:
            if found.new_key is None:
                store.delete(table.number, key)
            else:
                store.leave(table.number, key, place)
            return
        shape = table.shape(found.after, found.schema_id)
        state = WHOLE if found.commit_lsn else FOREIGN
        if not found.unchanged:
            packed = pack_row(found.after.values)
        elif found.old_key is not None:
            packed, state = _packed(found.after, found.unchanged, MOVED_VALUE), MOVED
            store.moves.add(table.number, key, place, key_hash(found.old_key))
        else:
            packed, state = _packed(found.after, found.unchanged, BEFORE_VALUE), PARTIAL
        store.put(
            table.number, key, Stored(*place, state, shape, packed, name[: table.settings.key_bytes_max])
        )

    def _apply_loose(self, found: Cut) -> None:
        table = self.table
        for half, sign, row in ((0, -1, found.before), (1, 1, found.after)):
            if row is None:
                continue
            packed = _packed(row, found.unchanged if sign > 0 else (), UNSENT_VALUE)
            shape = table.shape(row, found.schema_id)
            loose = Loose(found.commit_lsn, found.serial, half, sign, shape, packed)
            table.store.add_loose(table.number, key_hash(packed), loose)

    def _elsewhere(self, record: TopicRecord, is_new: bool) -> None:
        """Fold a record whose row is in a file."""
        table = self.table
        table.elsewhere += is_new
        if record.key is not None:
            table.with_key += 1
            shape = table.shape(Row((), ()), "")
            row = Stored(*self.last[:2], ELSEWHERE, shape, b"", record.key[: table.settings.key_bytes_max])
            table.store.put(table.number, key_hash(record.key), row)

    def _tombstone(self, record: TopicRecord, *, is_first: bool) -> None:
        if self.table.settings.compacted or (is_first and self.is_cut):
            return
        if self._deleted is None or self._deleted != record.key:
            self.table.fault("a tombstone without its delete", self._where(record), record.key)
        self._deleted = None
        self._tombstones = True

    def _end_delete(self, record: TopicRecord) -> None:
        """Handle a record with a value after a delete, whose tombstone is missing then."""
        settings = self.table.settings
        # Before the first tombstone, tombstones may have been switched off.
        if self._deleted is not None and settings.tombstones and self._tombstones and not settings.compacted:
            self.table.fault("a delete without its tombstone, before", self._where(record), self._deleted)
        self._deleted = None

    def _where(self, record: TopicRecord) -> str:
        return f"{self.table.topic}/{self.number}@{record.offset}"


def _packed(row: Row, unchanged: Collection[bytes], instead: bytes) -> bytes:
    """Pack a row's values, with `instead` in place of values that its record leaves out."""
    return join([instead if name in unchanged else pack(value) for name, value in zip(*row, strict=True)])


def _check_key(key: bytes, found: Cut) -> None:
    """Check that the record's key has the values of its row. NotARecordError: the values differ."""
    rows = found.after or found.before
    if rows is None:
        return
    if rows.names and key == b"{%b:%b}" % (rows.names[0], rows.values[0]):
        return  # Nearly all keys: that of one column, which is the first one.
    values = dict(zip(*rows, strict=True))
    unchanged = set(found.unchanged)
    for name, value in pairs(key, "the key"):
        if values.get(name) != value and name not in unchanged:
            said = values.get(name, JSON_NULL)[:80].decode(errors="replace")
            raise NotARecordError(
                f"the key has {name.decode(errors='replace')} {value[:80].decode(errors='replace')}, its row {said}"
            )
