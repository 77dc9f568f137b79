"""Bugs between a row's event and the partition that its records go to."""

from cdcd.core.records.encoder import Encoded, Encoder, EncoderSettings, Record
from cdcd.core.records.shaping.partitioning import PartitionShape, Texts, partition_header
from cdcd.core.records.shaping.row_values import insert_of, old_and_new
from cdcd.core.records.shaping.shape import Lines, ShapedPart


def _taken(records: list[Record], row: Texts) -> list[Record]:
    """The records in the partition of another row."""
    return [
        (topic, key, value, [*(headers or ())[:-1], partition_header(row)])
        for topic, key, value, headers in records
    ]


class LeavesMovedRows(PartitionShape):
    """An update that moves a row sends no delete to its former partition."""

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        parts = super().parts(frame, in_stream, now_us)
        if parts is None:
            return None
        (found,) = parts
        if found.moves:
            parted = self._parted[found.oid]
            *_, whole = old_and_new(parted, frame, in_stream)
            found.frame = insert_of(parted, frame, in_stream, whole=whole)
            found.moves, found.left = False, found.came
        return [found]


class DeletesInTheNewPartition(PartitionShape):
    """The delete of a row that moves goes where the row is now."""

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        parts = super().parts(frame, in_stream, now_us)
        if parts is None:
            return None
        (found,) = parts
        found.left = found.came
        return [found]


class CountsBothHalves(PartitionShape):
    """A delete and an insert have two numbers where there is one event."""

    stream: Encoder

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        parts = super().parts(frame, in_stream, now_us)
        if parts is None:
            return None
        (found,) = parts
        if found.moves:
            self.stream.skip(1)
        return [found]


class IgnoresWhatIsLeftOut(PartitionShape):
    """A row behind one that is left out goes where that one belongs. Rows are counted, not told by their keys."""

    def encoded(self, oid: int, given: Lines, encoded: Encoded, topic: str, records: list[Record]) -> None:
        super().encoded(oid, given, encoded, topic, records)
        parted = self._parted.get(oid)
        if parted is not None:
            texts = [parted.of_line(line) for line in given.lines]
            records[:] = [_taken([each], row or ())[0] for each, row in zip(records, texts, strict=False)]


def reads_by_key(inner: Encoder, _settings: EncoderSettings) -> Encoder:
    """Rows of snapshots go where their key leads."""
    return inner
