"""Bugs between a row's event and the partition that its records go to."""

from cdcd.core.protocol.peek import relation_oids
from cdcd.core.records.encoder import Encoded, Encoder, EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.shaping.partitioning import (
    PartitionEncoder,
    Texts,
    partition_header,
)


def _taken(records: list[Record], row: Texts) -> list[Record]:
    """The records in the partition of another row."""
    return [
        (topic, key, value, [*(headers or ())[:-1], partition_header(row)])
        for topic, key, value, headers in records
    ]


class LeavesMovedRows(PartitionEncoder):
    """An update that moves a row sends no delete to its former partition."""

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        known = len(out)
        size = super()._shape(frame, in_stream, now_us, out)
        if len(out) - known == 3:
            del out[known : known + 2]
        return size


class DeletesInTheNewPartition(PartitionEncoder):
    """The delete of a row that moves goes where the row is now."""

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        known = len(out)
        size = super()._shape(frame, in_stream, now_us, out)
        _, new = self._parted[relation_oids(frame, in_stream)[0]].of_frame(frame, in_stream)
        out[known:] = _taken(out[known:], new)
        return size


class CountsBothHalves(PartitionEncoder):
    """A delete and an insert have two numbers where there is one event."""

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        known = len(out)
        size = super()._shape(frame, in_stream, now_us, out)
        if len(out) - known == 3:
            self._inner.skip(1)
        return size


class IgnoresWhatIsLeftOut(PartitionEncoder):
    """A row behind one that is left out goes where that one belongs."""

    def encode_rows(  # noqa: PLR0917 - as its base has it
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        known = len(out)
        encoded = super().encode_rows(oid, lines, position, now_us, out, dropped)
        parted = self._parted.get(oid)
        if parted is not None:
            texts = [parted.of_line(line) for line in lines]
            out[known:] = [
                _taken([each], row or ())[0] for each, row in zip(out[known:], texts, strict=False)
            ]
        return encoded


def ignores_what_is_left_out(inner: Encoder, settings: EncoderSettings) -> Encoder:
    """Rows are counted, not told by their keys."""
    return IgnoresWhatIsLeftOut(inner, settings) if settings.partition_rules else inner


def reads_by_key(inner: Encoder, _settings: EncoderSettings) -> Encoder:
    """Rows of snapshots go where their key leads."""
    return inner
