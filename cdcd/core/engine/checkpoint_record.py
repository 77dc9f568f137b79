"""Which record of the checkpoint topic counts, and how the next one is written.

The rule: the newest valid record of the pipeline counts. All others are counted and reported, and none of them raises
an error while a valid record is there. Others may write to the topic, so a record is judged by what it is:

- Its key is the pipeline's name. A record of another key is somebody else's.
- It is of a known form, within limits (`Checkpoint.decode`).
- With a key of the pipeline (`topics.checkpoint_key`), its tag was made with that key. A record without such a tag
  counts only if there is no record with one: before the key was introduced, or after the topic was lost. Whoever writes
  a tombstone in the place of the last record takes it away, as `cdcd reset` does.
- Its serial is not below that of a record before it. Serials rise from record to record, also across resets, because
  none is below the clock. So a copy of a former record, which has a valid tag, does not count.
- Its epoch is not below that of a record before it: a writer that was frozen may send one late, where Kafka does not
  fence writers. A record of a lower epoch is a part of the daily life of the topic, so it is not reported.

A record of a newer format is refused, and not passed over: a newer cdcd has delivered more than any record of ours
says. With a key of the pipeline, it must have a tag as all formats have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint, NewerFormatError
from cdcd.core.errors import PositionError, SinkError

SERIAL_MAX: Final = 1 << 50
"""A serial that no clock reaches. A record without a tag may have it; then the order in the topic decides."""

FOREIGN_MAX: Final = 16
"""Keys of other pipelines that are remembered. Their names are for an error only."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Records of the checkpoint topic that do not count.

    Attributes:
        count: how many.
        first, last: offsets.
        why: the reason of the last one.
    """

    count: int
    first: int
    last: int
    why: str


class CheckpointRecords:
    """The records of one pipeline. One object writes what follows upon what it has read.

    Args:
        pipeline: the pipeline's name, which is the key of its records.
        keys: secrets. The first one signs, and each of them verifies.
        process_key: where there are no keys, a secret of this process. It proves to the process what it wrote itself.
    """

    def __init__(self, pipeline: str, keys: Sequence[bytes] = (), process_key: bytes = b"") -> None:
        self.pipeline = pipeline
        self.key = pipeline.encode()
        self.has_key = bool(keys)
        self.keys = tuple(keys) if keys else (process_key,)
        self.serial = 0
        """The highest serial that was read or written."""

    def encode(self, checkpoint: Checkpoint, unix_ms: int) -> bytes:
        """The value of the next record."""
        self.serial = min(max(self.serial + 1, unix_ms), SERIAL_MAX)
        return replace(checkpoint, serial=self.serial).encode(self.keys[0], self.pipeline)

    def judging(self, topic: str) -> "Judging":
        """Read the topic, or its end."""
        return Judging(self, topic)


class Judging:
    """Give every record to `take`, in the order of their offsets. `result` is then the checkpoint that counts."""

    def __init__(self, records: CheckpointRecords, topic: str) -> None:
        self._records = records
        self._topic = topic
        self._latest: Checkpoint | None = None
        self._damage: PositionError | None = None
        """The last record of the pipeline that cannot be read, with no valid one at all."""
        self._newer: PositionError | None = None
        self._proven = 0
        """The highest serial of an authentic record."""
        self._emptied = False
        """A tombstone stands behind all records before it."""
        self._foreign: dict[bytes, int] = {}
        self._count = 0
        self._first = self._last = -1
        self._why = ""

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """The next record; `value` is None for a tombstone."""
        if key != self._records.key:
            self._take_foreign(offset, key, value)
            return
        if value is None:
            self._latest = self._damage = self._newer = None
            self._emptied = True
            return
        try:
            found = self._decoded(value, offset)
        except NewerFormatError as newer:
            # Names of their own: mypyc gives a name the type of its first clause.
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
        """Why the record does not count, although it is one of the pipeline's form; "": it may count."""
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
        """A writer that was shut out sent the record late."""
        return found.epoch < latest.epoch and self._is_proven(found) == self._is_proven(latest)

    def _is_proven(self, found: Checkpoint) -> bool:
        """Whether nobody but this pipeline can have written the record, also in another process."""
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

    def _ignore(self, offset: int, why: str) -> None:
        self._count += 1
        self._first = offset if self._first < 0 else self._first
        self._last, self._why = offset, why

    @property
    def ignored(self) -> Ignored | None:
        """What does not count; None: nothing."""
        return Ignored(self._count, self._first, self._last, self._why) if self._count else None

    def is_settled(self, told: int) -> bool:
        """Whether records before those that were taken cannot change the result.

        Args:
            told: a position that PostgreSQL was told because of a checkpoint in this topic. One that does not reach it
                may be a copy of a former record.
        """
        latest = self._latest
        if latest is None or self._newer is not None:
            return self._emptied or self._newer is not None
        if self._records.has_key and not latest.authentic and not self._emptied:
            return False
        return latest.position.end_lsn >= told

    def result(self) -> Checkpoint | None:
        """The checkpoint that counts; None: there is none.

        Raises:
            PositionError: there is one of a newer format, or there are only such that cannot be read.
            SinkError: there is none of this pipeline, and one of another.
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
                hint="Give each pipeline a topics.prefix of its own. A topics.checkpoint of its own is not enough, "
                "because two pipelines with one prefix write to the same topics.",
            )
        return self._latest
