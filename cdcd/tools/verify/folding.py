"""Records folded into rows, as a consumer would have them that applies one after the other.

The rule: within a partition the records of a key are in the order of its changes, so the last one is the row. Between
partitions there is no order, and what crosses them is told by places, `(commit_lsn, event_serial_no)`: a TRUNCATE ends
all rows that are from before its place, and a row with a changed key takes values that were not sent from the row that
had the former key at that place. Both are settled when everything was read.

Only what a snapshot of the source sees is folded (`snapshot_visibility.py`). Of the changes of one key, those that it
sees come first, because a transaction that changes a row waits until the one before it is visible. So what is left
out can be read again later, with all that follows it in the partition: taking a record again changes nothing.

What is wrong with the records themselves, whatever rows they make, is a `Fault`: a record that comes twice or out of
order, one that is no record, a key that is not the row's, a delete without its tombstone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from cdcd.core.records.schemas import TableForm
from cdcd.tools.verify.columns import Shape, place_in
from cdcd.tools.verify.partition import Partition
from cdcd.tools.verify.record_parsing import Row, RowForm
from cdcd.tools.verify.row_store import ELSEWHERE, KEY_MAX, MOVED, UNSENT, WHOLE, Place, RowStore, Stored
from cdcd.tools.verify.snapshot_visibility import Sight
from cdcd.tools.verify.values import BEFORE as BEFORE_VALUE
from cdcd.tools.verify.values import MOVED as MOVED_VALUE
from cdcd.tools.verify.values import UNSENT as UNSENT_VALUE
from cdcd.tools.verify.values import join, split

FAULTS_SHOWN: Final = 20

LSN_MAX: Final = 1 << 64


class Fault(NamedTuple):
    """A flaw of a record."""

    kind: str
    where: str
    key: str


@dataclass(frozen=True, slots=True)
class FoldSettings:
    """Rules for the records of a topic.

    Attributes:
        exactly_once: True if a repeated record is a fault.
        tombstones: True if a tombstone follows each delete.
        compacted: True if the topic is compacted, so that older records of a key may be missing.
        key_bytes_max: maximum bytes of a key that are kept.
    """

    exactly_once: bool = True
    tombstones: bool = True
    compacted: bool = False
    key_bytes_max: int = KEY_MAX


class TableFold:
    """A table's rows, as the records of its topic produce them.

    Args:
        number: number of the table in the store.
        former: descriptions of the table by their fingerprints, as far as they are known.
        describe: called when a record names a description that `former` lacks, to add the present descriptions. It
            is called once for each shape of the rows.
    """

    def __init__(
        self,
        number: int,
        store: RowStore,
        topic: str,
        settings: FoldSettings,
        former: Mapping[str, TableForm] | None = None,
        *,
        describe: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.topic = topic
        self.settings = settings
        self.store = store
        self.former = {} if former is None else former
        self._describe = describe
        self.form = RowForm()
        self.shapes: list[Shape] = []
        self.truncated: Place = (-1, -1)
        """Position of the last TRUNCATE."""
        self.records = 0
        self.without_key = 0
        self.with_key = 0
        self.again = 0
        """Number of repeated records, where repetition is allowed."""
        self.elsewhere = 0
        self.foreign = 0
        self.faults: list[Fault] = []
        self.faults_in_all = 0
        self._shape_numbers: dict[Shape, int] = {}
        self._partitions: dict[int, Partition] = {}
        self._sight: Sight | None = None

    def partition(self, number: int) -> Partition:
        """Return the fold of one of the topic's partitions."""
        if number not in self._partitions:
            made = self._partitions[number] = Partition(self, number)
            if self._sight is not None:
                made.look(self._sight)
        return self._partitions[number]

    def look(self, sight: Sight) -> None:
        """From now on, fold the records that this snapshot sees, in all partitions."""
        self._sight = sight
        for each in self._partitions.values():
            each.look(sight)

    def cut(self, partition: int) -> None:
        """Register that the first records of this partition are missing or not read."""
        self.partition(partition).is_cut = True

    @property
    def whole_from(self) -> int:
        """Commit LSN from which on no partition lacks a record."""
        return max(
            (each.first_lsn or LSN_MAX for each in self._partitions.values() if each.is_cut), default=0
        )

    def again_from(self) -> dict[int, int]:
        """First offset to read again, by partition; partitions without skipped records are left out."""
        return {
            number: each.again_from
            for number, each in self._partitions.items()
            if each.again_from is not None
        }

    @property
    def is_unsure(self) -> bool:
        """True if rows that were read may have been left out."""
        return any(each.unsure for each in self._partitions.values())

    @property
    def restores_rows(self) -> bool:
        """True if rows may be repeated behind the TRUNCATE that ended them, because a repetition was interrupted.

        `rows` leaves such rows out by their places. A consumer that applies a partition's records in their order has
        them.
        """
        return self.truncated > (-1, -1) and any(each.ends_behind for each in self._partitions.values())

    def shape(self, row: Row, schema_id: str) -> int:
        """Return the number of a shape."""
        shape = (row.names, schema_id)
        number = self._shape_numbers.get(shape)
        if number is None:
            if schema_id and schema_id not in self.former:
                self._describe()
            number = self._shape_numbers[shape] = len(self.shapes)
            self.shapes.append(shape)
        return number

    def fault(self, kind: str, where: str, key: bytes | None) -> None:
        self.faults_in_all += 1
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(Fault(kind, where, shown_key(key)))

    def place_in(self, name: bytes, shape: int, former: int) -> int | None:
        """Return the index of a shape's column in a row of a former shape; None if the row lacks it."""
        return place_in(self.former, name, self.shapes[shape], self.shapes[former])

    def rows(self) -> Iterator[tuple[bytes, Stored]]:
        """Yield the rows that no TRUNCATE has ended, with the hash of the key, in no order."""
        return self.store.rows(self.number, self.filled, self.truncated)

    def settle(self) -> None:
        """Settle the rows after all records were folded; call this before `resolve`."""
        self.store.settle(self.number, self.filled)

    def filled(self, old: Stored | None, row: Stored) -> Stored:
        """Return the row with values of the row before it, where its record leaves them out."""
        before = [] if old is None else split(old.packed)
        state = ELSEWHERE if old is not None and old.state == ELSEWHERE else WHOLE
        names = self.shapes[row.shape][0]
        values = split(row.packed)
        for at, value in enumerate(values):
            if value != BEFORE_VALUE:
                continue
            place = None if old is None else self.place_in(names[at], row.shape, old.shape)
            values[at] = UNSENT_VALUE if place is None else before[place]
            if values[at] == MOVED_VALUE:
                state = max(state, MOVED)
            elif values[at] == UNSENT_VALUE:
                state = max(state, UNSENT)
        return row._replace(state=state, packed=join(values))

    def resolve(self, key: bytes, row: Stored) -> Stored:
        """Return the row with its missing values from the row that had its former key.

        A value that cannot be found becomes `UNSENT`.
        """
        return self._resolve(key, row, 0)

    def _resolve(self, key: bytes, row: Stored, depth: int) -> Stored:
        values = split(row.packed)
        for place in self.store.moves.of(self.number, key):
            if place > (row.lsn, row.serial) or depth > _MOVES_MAX:
                continue
            found = self.store.moves.former(self.number, key, place)
            if found is None:
                break
            former_key, former = found
            if former.state == MOVED:
                former = self._resolve(former_key, former, depth + 1)
            before = split(former.packed)
            for at, value in enumerate(values):
                if value == MOVED_VALUE:
                    there = self.place_in(self.shapes[row.shape][0][at], row.shape, former.shape)
                    values[at] = UNSENT_VALUE if there is None else before[there]
            break
        values = [UNSENT_VALUE if value == MOVED_VALUE else value for value in values]
        return row._replace(state=UNSENT if UNSENT_VALUE in values else WHOLE, packed=join(values))


_MOVES_MAX: Final = 100
"""Maximum number of key changes of a row that are followed for a value."""


def shown_key(key: bytes | None) -> str:
    """Return a record's key as text for the operator."""
    return "no key" if key is None else key[:KEY_MAX].decode(errors="replace")
