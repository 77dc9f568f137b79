"""Which record of the checkpoint topic counts, and how the next one is written.

The rule: the newest valid record of the pipeline counts. Records that do not count are reported, and do not raise
an error as long as there is a record that counts. Other programs may write to the topic too, so each record must
pass these tests:

- Its key is the pipeline's name. A record with another key belongs to another pipeline.
- Its value has a known format, within the limits (`Checkpoint.decode`).
- If the pipeline has a key for its checkpoint (`topics.checkpoint_key`), the record has a tag that was made with
  this key. A record without such a tag counts only if there is no record with one, as before the setting was
  introduced, or after the topic was lost. A tombstone that follows the last record removes it, as `cdcd reset`
  does, whoever has written the tombstone.
- Its serial is not below the serial of an earlier record. Serials rise from record to record, also after a reset,
  because a serial is at least the wall clock in milliseconds. So a copy of an earlier record does not count,
  although its tag is valid.
- Its epoch is not below the epoch of an earlier record: a writer that was frozen may send a record late, where
  Kafka does not fence writers. A record with a lower epoch is normal, so it is not reported.

A record with a newer format is refused and not skipped, because a newer version of cdcd has delivered more than any
record of this version says. If the pipeline has a key for its checkpoint, such a record must have a tag too,
because every format has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint, NewerFormatError
from cdcd.core.errors import PositionError, SinkError

SERIAL_MAX: Final = 1 << 50
"""Highest serial that is allowed, which the wall clock in milliseconds never reaches. A record without a tag may
have this serial, and then the order in the topic decides which record is newer."""

FOREIGN_MAX: Final = 16
"""Number of keys of other pipelines that are remembered. They are only shown in an error."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Records of the checkpoint topic that do not count as checkpoints.

    Attributes:
        count: the number of them.
        first, last: the lowest and the highest offset of them.
        why: the reason why the last one does not count.
    """

    count: int
    first: int
    last: int
    why: str


class CheckpointRecords:
    """Writes and reads the checkpoint records of one pipeline.

    The same object must read the records and write the next one, because the serial of the next one follows from
    those that were read.

    Args:
        pipeline: the pipeline's name, which is the key of its records.
        keys: values of `topics.checkpoint_key`. Tags are made with the first one, and a tag counts if it was made
            with any of them.
        process_key: a random secret of this process, which is used if `keys` is empty. By it, the process
            recognizes the records that it has written itself.
    """

    def __init__(self, pipeline: str, keys: Sequence[bytes] = (), process_key: bytes = b"") -> None:
        self.pipeline = pipeline
        self.key = pipeline.encode()
        self.has_key = bool(keys)
        self.keys = tuple(keys) if keys else (process_key,)
        self.serial = 0
        """The highest serial that was read or written."""
        self.transactional_id = ""
        """Transactional id by which the newest record that counts was written, as its header says; "": unknown."""

    def encode(self, checkpoint: Checkpoint, unix_ms: int) -> bytes:
        """Return the value of the next record, which has the next serial."""
        self.serial = min(max(self.serial + 1, unix_ms), SERIAL_MAX)
        return replace(checkpoint, serial=self.serial).encode(self.keys[0], self.pipeline)

    def judging(self, topic: str) -> "Judging":
        """Return an object that is given the records of the topic, all of them or the last ones."""
        return Judging(self, topic)


TOO_LARGE: Final = "it is too large when it is decompressed"
"""Reason to pass over a record that librdkafka does not decompress."""


class Judging:
    """Finds the record that counts: pass every record to `take`, in the order of offsets.

    `result` then returns the checkpoint that counts.
    """

    def __init__(self, records: CheckpointRecords, topic: str) -> None:
        self._records = records
        self._topic = topic
        self._latest: Checkpoint | None = None
        self._damage: PositionError | None = None
        """Error of the last record of the pipeline that cannot be read; set only while there is no valid record."""
        self._newer: PositionError | None = None
        self._proven = 0
        """The highest serial of an authentic record so far."""
        self._emptied = False
        """True if a tombstone of the pipeline follows all its records."""
        self._foreign: dict[bytes, int] = {}
        self._count = 0
        self._first = self._last = -1
        self._why = ""

    def take(self, offset: int, key: bytes | None, value: bytes | None, transactional_id: str = "") -> None:
        """Take the next record.

        Args:
            value: None for a tombstone.
            transactional_id: the id that the record's header names; "": none.
        """
        if key != self._records.key:
            self._take_foreign(offset, key, value)
            return
        if value is None:
            self._latest = self._damage = self._newer = None
            self._records.transactional_id = ""
            self._emptied = True
            return
        try:
            found = self._decoded(value, offset)
        except NewerFormatError as newer:
            # One variable per clause, because mypyc gives a variable the type of its first clause.
            self._newer = newer
            return
        except PositionError as damage:
            self._damage = damage
            self._ignore(offset, damage.message)
            return
        why = self._why_not(found)
        if why:
            self._ignore(offset, why)
        elif self._latest is None or not self._is_late(found, self._latest):
            self._latest, self._newer = found, None
            self._records.transactional_id = transactional_id
            if self._is_proven(found):
                self._proven = found.serial
            self._records.serial = max(self._records.serial, found.serial)

    def _decoded(self, value: bytes, offset: int) -> Checkpoint:
        records = self._records
        where = f"{self._topic}[0]@{offset}"
        try:
            return Checkpoint.decode(value, where, records.keys, records.pipeline)
        except NewerFormatError as error:
            if records.has_key and not error.authentic:
                raise PositionError(f"The checkpoint in {where} has another format, and no tag.") from None
            raise

    def _why_not(self, found: Checkpoint) -> str:
        """Return why this readable record of the pipeline does not count; "" if it may count."""
        latest = self._latest
        if found.serial > SERIAL_MAX:
            return "its serial is beyond every clock"
        if self._is_proven(found):
            return "it is a copy of a former record" if found.serial < self._proven else ""
        if latest is None or latest.downgraded:
            return ""
        if self._is_proven(latest):
            return "it has no tag of the pipeline's key"
        return "it is a copy of a former record" if found.serial < latest.serial else ""

    def _is_late(self, found: Checkpoint, latest: Checkpoint) -> bool:
        """Return whether the record was sent late, by a writer that was already shut out."""
        return found.epoch < latest.epoch and self._is_proven(found) == self._is_proven(latest)

    def _is_proven(self, found: Checkpoint) -> bool:
        """Return whether the record was certainly written by this pipeline, in this process or an earlier one."""
        return self._records.has_key and found.authentic

    def _take_foreign(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        name = b"" if key is None else key[:200]
        if value is None:
            self._foreign.pop(name, None)
            return
        try:
            Checkpoint.decode(value, "")
        except PositionError:
            pass
        else:
            if len(self._foreign) < FOREIGN_MAX:
                self._foreign[name] = offset
        self._ignore(offset, f"its key is {key!r:.60}, and not the pipeline's name")

    def unread(self, first: int, last: int) -> None:
        """Take records from the first to the last offset that cannot be decompressed."""
        self._ignore(first, TOO_LARGE)
        if last > first:
            self._count += last - first - 1
            self._ignore(last, TOO_LARGE)

    def _ignore(self, offset: int, why: str) -> None:
        self._count += 1
        self._first = offset if self._first < 0 else self._first
        self._last, self._why = offset, why

    @property
    def ignored(self) -> Ignored | None:
        """Return the records that do not count; None if there are none."""
        return Ignored(self._count, self._first, self._last, self._why) if self._count else None

    def is_settled(self, told: int) -> bool:
        """Return whether records before those that were taken cannot change the result.

        Args:
            told: a position that PostgreSQL was told because of a checkpoint in this topic. A checkpoint with a
                lower position may be a copy of an earlier record.
        """
        latest = self._latest
        if latest is None or self._newer is not None:
            return self._emptied or self._newer is not None
        if self._records.has_key and not latest.authentic and not self._emptied:
            return False
        return latest.position.end_lsn >= told

    def result(self) -> Checkpoint | None:
        """Return the checkpoint that counts; None if there is none.

        Raises:
            PositionError: there is a record with a newer format, or all records of the pipeline are unreadable.
            SinkError: there is no record of this pipeline, but there is one of another pipeline.
        """
        if self._newer is not None:
            raise self._newer
        if self._latest is None and self._damage is not None:
            raise self._damage
        if self._latest is None and self._foreign and not self._emptied:
            key, offset = next(iter(self._foreign.items()))
            raise SinkError(
                f"The checkpoint topic {self._topic} holds a record of another pipeline "
                f"(key {key!r}, offset {offset}).",
                hint="Give each pipeline a topics.prefix of its own. A separate topics.checkpoint is not enough, "
                "because two pipelines with the same prefix write to the same topics.",
            )
        return self._latest
