"""Bugs between a row's event and the topics of its table's routes."""

from collections.abc import Sequence

from cdcd.core.engine.watched import WatchedTables
from cdcd.core.protocol.peek import TRUNCATE, tag_of
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.routed import RouteShape
from cdcd.core.records.shaping.shape import ShapedPart


class LeavesWhatMoves(RouteShape):
    """A row that goes to another topic stays in its former one."""

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        found = super().parts(frame, in_stream, now_us)
        return found if found is None or tag_of(frame) == TRUNCATE else found[-1:]


class TruncatesItsOwnTopic(RouteShape):
    """TRUNCATE has a record in the table's own topic only."""

    def _truncates(self, frame: bytes, in_stream: bool) -> list[ShapedPart]:
        return [ShapedPart(frame)]


class EndsRowsInItsOwnTopic(RouteShape):
    """The rows of a table that had the name before end in the table's own topic only."""

    def topics(self, oid: int) -> tuple[str, ...]:
        return ()


class CountsParts(RouteShape):
    """Each part of an event counts as an event."""

    stream: Encoder

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        found = super().parts(frame, in_stream, now_us)
        if found is not None:
            self.stream.skip(len({each.topic for each in found}) - 1)
        return found


def reads_into_its_own_topic(
    inner: Encoder, _routes: object, _settings: EncoderSettings, _observe: object
) -> Encoder:
    """Rows of snapshots all go to the table's own topic."""
    return inner


class WatchesTheOwnTopic(WatchedTables):
    """Only changes in the table's own topic matter to rows that are read beside the stream."""

    def defined(self, oid: int, topics: Sequence[str]) -> None:
        super().defined(oid, topics[:1])
