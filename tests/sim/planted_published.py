"""Bugs between a logical message and the event that it publishes."""

from cdcd.core.engine.queue import BatchQueue
from cdcd.core.records.encoder import Record
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.shaping.encoder import OutboxEncoder
from tests.sim.published import TOPIC


class DoesNotCountPublished(OutboxEncoder):
    """What follows an event in its transaction has the event's number."""

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        if self._is_published(frame, in_stream):
            size = self._publish(frame, in_stream, now_us, out)
            if size is not None:
                return size
        return super().encode(frame, in_stream, now_us, out)


class CountsPublishedTwice(OutboxEncoder):
    """An event takes two numbers."""

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        if self._is_published(frame, in_stream):
            self.skip(1)
        return super().encode(frame, in_stream, now_us, out)


class LosesWhatIsRefused(OutboxEncoder):
    """What cannot be published has no record."""

    def _publish(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int | None:
        return super()._publish(frame, in_stream, now_us, out) or 0


class PublishesTwice(OutboxEncoder):
    """An event is a message as well."""

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        size = super().encode(frame, in_stream, now_us, out)
        if out and out[-1][0] == TOPIC:
            size += self._inner.encode(frame, in_stream, now_us, out)
        return size


class LeavesPublishedOut(BatchQueue):
    """The position inside a transaction does not count what was published."""

    def add(self, records: list[Record], size: int, events: int, late: LateRecords | None = None) -> bool:
        published = sum(record[0] == TOPIC for record in records)
        return super().add(records, size, max(0, events - published), late)
