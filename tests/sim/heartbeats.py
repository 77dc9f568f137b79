"""Heartbeats as a consumer sees them: what one names is in Kafka before it, and the names never fall."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import HEADER_WATERMARK
from tests.sim.expected import PromiseBrokenError, Record

TOPIC: Final = "__debezium-heartbeat.sim"


class HeartbeatsSeen:
    """The heartbeats of the log, in its order.

    Args:
        rises: the log has no repetitions.
    """

    def __init__(self, *, rises: bool) -> None:
        self.count = 0
        self.queries = 0
        """How often the query was run."""
        self._rises = rises
        self.last = 0
        """What the last one named."""

    def heartbeat(
        self, record: Record, starts: Sequence[int], lengths: Sequence[int], delivered: int
    ) -> None:
        """A heartbeat became visible, when Kafka held the first `delivered` records.

        Args:
            starts, lengths: where commits begin, and how many records there are up to each of them.
        """
        _, key, value, headers = record
        assert key is not None
        assert value is not None
        if json.loads(key) != {"serverName": "sim"} or list(json.loads(value)) != ["ts_ms"]:
            raise PromiseBrokenError(f"heartbeat: {record}")
        assert headers is not None
        ((name, text),) = headers
        lsn = int(text)
        if name != HEADER_WATERMARK:
            raise PromiseBrokenError(f"heartbeat: {record}")
        self.count += 1
        at = bisect_left(starts, lsn)
        if at and lengths[at - 1] > delivered:
            raise PromiseBrokenError(
                f"G1: a heartbeat names {Lsn(lsn)}, and Kafka lacks a commit before that"
            )
        if self._rises and lsn < self.last:
            raise PromiseBrokenError(f"a heartbeat names {Lsn(lsn)} after one that named {Lsn(self.last)}")
        self.last = lsn
