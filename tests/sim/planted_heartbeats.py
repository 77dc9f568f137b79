"""Bugs of heartbeats."""

from cdcd.core.engine.timed_records import Heartbeat


class NamesItsBatch(Heartbeat):
    """A heartbeat names the position of its own batch, of which the broker may hold no other record yet."""

    def _lsn(self) -> int:
        return self._queue.position.end_lsn


class GoesOnWithoutTheLock(Heartbeat):
    """The query is run although another instance may be the active one."""

    def end(self) -> None:
        pass
