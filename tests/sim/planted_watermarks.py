"""Bugs of watermarks."""

from cdcd.core.engine.timed_records import Watermarks
from tests.sim.sink import Sink


class NamesItsBatch(Watermarks):
    """Watermarks name the position of their own batch."""

    def _lsn(self) -> int:
        return self._queue.position.end_lsn


class MarksFirst(Sink):
    """Watermarks stand before the records of their batch."""

    marks_first = True
