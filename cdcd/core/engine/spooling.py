"""A session that reads from PostgreSQL into the durable log while Kafka is away (`engine/logged.py`).

The rule: PostgreSQL is told only positions that `synced` has reported, which are on disk. Nothing here waits, reads
a clock or does I/O: the daemon and the simulator receive, write and sync, and report it here.
"""

from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.feedback import Feedback, reply_requested
from cdcd.core.protocol.frames import write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US

SPOOLING_S_MIN: Final = 5.0
"""Minimum duration of a session in seconds, so that sessions do not follow each other without a pause if Kafka
answers but takes no records."""


class Spooling:
    """Keeps the positions of one spooling session, and decides when PostgreSQL is told of them.

    Args:
        begin: the slot's position.
        status_interval_s: maximum of seconds between status updates.
        now: the time in monotonic seconds, as in every method.

    Attributes:
        flushed: the position that PostgreSQL may be told.
    """

    def __init__(self, begin: int, status_interval_s: float, now: float) -> None:
        self.flushed = begin
        self._feedback = Feedback(status_interval_s, now)

    def received(self, frames: list[bytes]) -> None:
        """Note that frames arrived. The caller must append them to the log and sync the log."""
        if reply_requested(frames):
            self._feedback.ask()

    def synced(self, end: int) -> None:
        """Note that the log is on disk, and has every transaction that commits up to `end`."""
        if end > self.flushed:
            self.flushed = end

    def status(self, now: float, unix_us: int) -> bytes | None:
        """Return the status update to send now; None if none is due before `next_at`."""
        update = self._feedback.due(self.flushed, self.flushed, now, unix_us - POSTGRES_EPOCH_US)
        return None if update is None else write_frame(update)

    def next_at(self) -> float:
        """Return when the next status update is due if nothing else happens."""
        return self._feedback.next_at(self.flushed)


def spools_at(away_since: float, after_s: float, *, log_goes_on: bool) -> float:
    """Return when a spooling session begins if Kafka stays away, in monotonic seconds.

    Args:
        away_since: when this process first saw that Kafka is away.
        after_s: `spool.durable_after_s`, so that no log is begun for a short outage.
        log_goes_on: whether an earlier process has begun a log, and Kafka has not answered since. Then nothing is
            waited for, because the outage has lasted as long as the log, and PostgreSQL would keep the WAL during
            the wait.
    """
    return away_since if log_goes_on else away_since + after_s


def may_begin(checkpoint: Checkpoint, *, all_is_read: bool) -> bool:
    """Return whether a log may begin after this checkpoint, which it may not while tables are being read."""
    snapshot = checkpoint.snapshot
    return all_is_read and (snapshot is None or snapshot.is_done)
