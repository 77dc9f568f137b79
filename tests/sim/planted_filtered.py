"""Bugs between a row's event and what its table's filter makes of it."""

from collections.abc import Sequence

from cdcd.core.protocol.messages import Value
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.shaping.filtering import FilterShape, RowFilter


class DoesNotCountFiltered(FilterShape):
    """What follows an event without a record in its transaction has the event's number."""

    stream: Encoder

    def _left_out(self, found: RowFilter, events: int) -> None:
        super()._left_out(found, events)
        self.stream.skip(-events)


class LeavesWhatLeaves(FilterShape):
    """A row that matches no more has no record, and stays with consumers."""

    def _update(
        self,
        found: RowFilter,
        old: Sequence[Value],
        new: Sequence[Value],
        whole: bool,
        frame: bytes,
        in_stream: bool,
        now_us: int,
    ) -> bytes | None:
        return frame if self._keeps(found, new, frame, now_us) else None


class TakesUnknownForOutside(FilterShape):
    """A row whose old values are not known is taken for one that the topic does not have."""

    def _kept(self, found: RowFilter, old: Sequence[Value], whole: bool, frame: bytes, now_us: int) -> bool:
        return whole and super()._kept(found, old, whole, frame, now_us)


def reads_all(inner: Encoder, _filters: object, _settings: EncoderSettings, _observe: object) -> Encoder:
    """Rows of snapshots are not filtered."""
    return inner
