"""The differences between a topic and its table: found by ranges of keys, then row by row, and kept on disk.

The rule: a row counts as equal only if every value of it is known from the topic and has the same bytes. Every other
row is a difference, and its present values are sent. Where it is unknown to which key a record belongs, or which
records the topic had, nothing is compared at all (`NotComparableError`).
"""

import struct
from collections import Counter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from cdcd.core.engine.actions import Compared, Differences
from cdcd.tools.verify.bucket_log import not_kept
from cdcd.tools.verify.columns import Columns, quoted
from cdcd.tools.verify.comparing import TableComparison
from cdcd.tools.verify.folding import TableFold
from cdcd.tools.verify.record_parsing import NotARecordError, pairs
from cdcd.tools.verify.row_store import ELSEWHERE, MOVED, Stored

KEY_BYTES_MAX: Final = 0xFFFF
"""Maximum bytes of a key, which a delete must repeat exactly."""

DELETE: Final = 0
UPDATE: Final = 1
INSERT: Final = 2
TOPIC: Final = 3
"""Kinds of entries in the file: the three differences, and the topic of the deletes that follow."""

_HEAD: Final = struct.Struct(">BI")
"""Head of a difference in the file: its kind, and the bytes that follow."""


class NotComparableError(Exception):
    """The topic and its table cannot be compared for certain; the text says why."""


class DifferenceLog:
    """The differences of one table, in a temporary file without a name. The caller owes `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The file has no name, so it disappears with the process, however the process ends.
        self._file: IO[bytes] = TemporaryFile(dir=folder)  # noqa: SIM115  `close` closes it
        self._counts: Counter[int] = Counter()
        self._topics: list[str] = []
        """The topics of deletes, in the order in which their differences begin."""
        self._topic = ""

    def close(self) -> None:
        """Remove the differences. Idempotent."""
        self._file.close()

    def begin(self, topic: str) -> None:
        """Take the following deletes for rows of this topic; "": the table's own topic."""
        self._topics.append(topic)
        self._write(TOPIC, str(len(self._topics) - 1).encode())

    def add(self, kind: int, data: bytes) -> None:
        """Add a difference: a line of COPY, or for `DELETE` the JSON of the key's values with zero bytes between."""
        self._counts[kind] += 1
        self._write(kind, data)

    def _write(self, kind: int, data: bytes) -> None:
        try:
            self._file.write(_HEAD.pack(kind, len(data)))
            self._file.write(data)
        except OSError as error:
            raise not_kept(self._folder, error.strerror) from None

    @property
    def has_rows(self) -> bool:
        """True if a difference has a row of the table."""
        return bool(self._counts[UPDATE] or self._counts[INSERT])

    def end(self) -> Compared:
        """Return the numbers of differences. `next` returns them from the first one on."""
        try:
            self._file.seek(0)
        except OSError as error:
            raise not_kept(self._folder, error.strerror) from None
        counts = self._counts
        return Compared(counts[DELETE], counts[UPDATE], counts[INSERT])

    def next(self, bytes_max: int) -> Differences:
        """Return the next differences, of about `bytes_max` bytes; without rows after the last one."""
        found: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        topic, size = self._topic, 0
        while size < bytes_max:
            head = self._file.read(_HEAD.size)
            if not head:
                break
            kind, length = _HEAD.unpack(head)
            data = self._file.read(length)
            if kind != TOPIC:
                found[kind].append(data)
                size += _HEAD.size + length
                continue
            self._topic = self._topics[int(data)]
            if size:
                # Deletes of one topic only are returned at a time.
                break
            topic = self._topic
        deletes = tuple([tuple(keys.split(b"\0")) for keys in found[DELETE]])
        return Differences(deletes, tuple(found[UPDATE]), tuple(found[INSERT]), topic)


class HealComparison(TableComparison):
    """Compares like `TableComparison`, and adds each difference to `log` instead of the outcome.

    The `sql` of a source row is its line of COPY, decoded as Latin-1.
    """

    def __init__(self, fold: TableFold, columns: Columns, log: DifferenceLog) -> None:
        TableComparison.__init__(self, fold, columns)
        self._log = log
        self._key_names = [quoted(name) for name in columns.key]

    def check_shapes(self) -> None:
        """Raise NotComparableError if a record does not tell which columns its values belong to."""
        for shape in self._fold.shapes:
            plan = self._columns.plan(shape)
            if plan.doubtful:
                raise NotComparableError("the columns of some records are uncertain")
            if any(place is None and at in plan.unlike for at, place in enumerate(plan.places)):
                raise NotComparableError(
                    "records lack columns, and no description says which values these had"
                )

    @property
    def has_present_columns(self) -> bool:
        """True if a record of the topic has the table's present columns, or if the topic has no rows at all."""
        plans = [self._columns.plan(shape) for shape in self._fold.shapes]
        return not plans or any(plan.same and not plan.unlike for plan in plans)

    def _compare(self, key: bytes, there: Stored | None, name: bytes, sql: str, packed: bytes) -> None:
        fold = self._fold
        if there is None:
            self._log.add(INSERT, sql.encode("latin-1"))
            return
        if there.state == MOVED:
            there = fold.resolve(key, there)
        if there.state != ELSEWHERE and self._columns.now(fold.shapes[there.shape], there.packed) == packed:
            return
        self._log.add(UPDATE, sql.encode("latin-1"))

    def _only_in_topics(self, key: bytes, row: Stored) -> None:
        if len(row.name) >= KEY_BYTES_MAX:
            raise NotComparableError("a key of the topic is too long")
        try:
            members = pairs(row.name, "the key")
        except NotARecordError as error:
            raise NotComparableError(str(error)) from None
        if [name for name, _ in members] != self._key_names:
            raise NotComparableError(
                "the columns of the key were changed, and the topic has rows with former keys"
            )
        self._log.add(DELETE, b"\0".join([value for _, value in members]))
