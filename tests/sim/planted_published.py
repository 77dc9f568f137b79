"""Bugs between a logical message and the event that it publishes."""

from cdcd.core.engine.queue import BatchQueue
from cdcd.core.records.encoder import Encoder, Record
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.shaping.outbox import OutboxShape
from cdcd.core.records.shaping.shape import ShapedPart
from tests.sim.published import TOPIC


class DoesNotCountPublished(OutboxShape):
    """What follows an event in its transaction has the event's number."""

    stream: Encoder

    def _publish(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        found = super()._publish(frame, in_stream, now_us)
        if found is not None:
            self.stream.skip(-1)
        return found


class CountsPublishedTwice(OutboxShape):
    """An event takes two numbers."""

    stream: Encoder

    def _publish(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        self.stream.skip(1)
        return super()._publish(frame, in_stream, now_us)


class LosesWhatIsRefused(OutboxShape):
    """What cannot be published has no record."""

    def _publish(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        return super()._publish(frame, in_stream, now_us) or []


class PublishesTwice(OutboxShape):
    """An event is a message as well."""

    def _publish(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        found = super()._publish(frame, in_stream, now_us)
        return [*found, ShapedPart(frame)] if found else found


class LeavesPublishedOut(BatchQueue):
    """The position inside a transaction does not count what was published."""

    def enqueue(self, records: list[Record], size: int, events: int, late: LateRecords | None = None) -> bool:
        published = sum(record[0] == TOPIC for record in records)
        return super().enqueue(records, size, max(0, events - published), late)
