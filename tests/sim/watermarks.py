"""Watermarks in the topics of tables as a consumer sees them: what one names stands before it."""

from bisect import bisect_left
from collections.abc import Sequence

from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import HEADER_WATERMARK, is_watermark
from tests.sim.expected import PromiseBrokenError, Record


def is_one(record: Record) -> bool:
    _, _, value, headers = record
    return is_watermark(value, headers or ())


class WatermarksSeen:
    """The watermarks of the log, in its order. The log stands for one partition of each topic.

    Args:
        rises: the log has no repetitions.
    """

    def __init__(self, *, rises: bool) -> None:
        self.count = 0
        self._rises = rises
        self._last: dict[str, int] = {}

    def watermark(
        self, record: Record, starts: Sequence[int], lengths: Sequence[int], delivered: int
    ) -> None:
        """A watermark became visible, behind the first `delivered` records.

        Args:
            starts, lengths: where commits begin, and how many records there are up to each of them.
        """
        topic, key, _, headers = record
        assert headers is not None
        ((name, text),) = headers
        if key is not None or name != HEADER_WATERMARK:
            raise PromiseBrokenError(f"watermark: {record}")
        lsn = int(text)
        self.count += 1
        at = bisect_left(starts, lsn)
        if at and lengths[at - 1] > delivered:
            raise PromiseBrokenError(
                f"G1: a watermark of {topic} names {Lsn(lsn)}, and a commit before that is later"
            )
        last = self._last.get(topic, 0)
        if self._rises and lsn < last:
            raise PromiseBrokenError(
                f"a watermark of {topic} names {Lsn(lsn)} after one that named {Lsn(last)}"
            )
        self._last[topic] = lsn
