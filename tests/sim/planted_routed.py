"""Bugs between a row's event and the topics of its table's routes."""

from collections.abc import Sequence

from cdcd.core.engine.watched import WatchedTables
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record
from cdcd.core.records.shaping.routed import RouteEncoder
from cdcd.core.records.shaping.row_routes import RowRoutes


class LeavesWhatMoves(RouteEncoder):
    """A row that goes to another topic stays in its former one."""

    def _parts(self, found: RowRoutes, frame: bytes, in_stream: bool, now_us: int) -> list[tuple[str, bytes]]:
        return super()._parts(found, frame, in_stream, now_us)[-1:]


class TruncatesItsOwnTopic(RouteEncoder):
    """TRUNCATE has a record in the table's own topic only."""

    def _truncate(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        return self._inner.encode(frame, in_stream, now_us, out)


class EndsRowsInItsOwnTopic(RouteEncoder):
    """The rows of a table that had the name before end in the table's own topic only."""

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        return self._inner.encode_end_of_rows(oid, between, now_us, out)


class CountsParts(RouteEncoder):
    """Each part of an event counts as an event."""

    def _shape(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        known = len(out)
        size = super()._shape(frame, in_stream, now_us, out)
        self._inner.skip(len({topic for topic, *_ in out[known:]}) - 1)
        return size


def reads_into_its_own_topic(
    inner: Encoder, _routes: object, _settings: EncoderSettings, _observe: object
) -> Encoder:
    """Rows of snapshots all go to the table's own topic."""
    return inner


class WatchesTheOwnTopic(WatchedTables):
    """Only changes in the table's own topic matter to rows that are read beside the stream."""

    def defined(self, oid: int, topics: Sequence[str]) -> None:
        super().defined(oid, topics[:1])
