"""A spooling session: PostgreSQL -> durable log -> status updates, while Kafka is away (`transactions/logged.py`).

The rule: PostgreSQL is told only what `synced` has reported, which is on disk. Nothing here waits, reads a clock or
does I/O: the daemon and the simulator receive, write and sync, and report it here.
"""

from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.feedback import Feedback, reply_requested
from cdcd.core.protocol.frames import write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US

SPOOLING_S_MIN: Final = 5.0
"""Seconds that a session lasts at least, so that a Kafka that answers but does not take records does not make sessions
follow each other without a pause."""


class Spooling:
    """The positions of one spooling session, and when PostgreSQL is told of them.

    Args:
        begin: the slot's position.
        status_interval_s: a status update is sent at least so often.
        now: monotonic seconds, as for every verb.

    Attributes:
        flushed: the position that PostgreSQL may be told.
    """

    def __init__(self, begin: int, status_interval_s: float, now: float) -> None:
        self.flushed = begin
        self._feedback = Feedback(status_interval_s, now)

    def received(self, frames: list[bytes]) -> None:
        """Frames came. They are to be appended to the log, and the log to be synced."""
        if reply_requested(frames):
            self._feedback.ask()

    def synced(self, end: int) -> None:
        """The log is on disk, and holds everything that commits up to `end`."""
        if end > self.flushed:
            self.flushed = end

    def status(self, now: float, unix_us: int) -> bytes | None:
        """The status update to send now; None: none is due before `next_at`."""
        update = self._feedback.due(self.flushed, self.flushed, now, unix_us - POSTGRES_EPOCH_US)
        return None if update is None else write_frame(update)

    def next_at(self) -> float:
        """When the next status update is due, if nothing else happens."""
        return self._feedback.next_at(self.flushed)


def spools_at(away_since: float, after_s: float, *, log_goes_on: bool) -> float:
    """When the stream goes to the durable log, if Kafka stays away; monotonic seconds.

    Args:
        away_since: when this process first saw that Kafka is away.
        after_s: `spool.durable_after_s`, so that a short outage begins no log.
        log_goes_on: a former process has begun the log, and Kafka has not answered since. The outage is as long as the
            log is, and while this process waited, PostgreSQL would keep the WAL.
    """
    return away_since if log_goes_on else away_since + after_s


def may_begin(checkpoint: Checkpoint, *, all_is_read: bool) -> bool:
    """Whether a log may begin behind this checkpoint: not while the tables of a snapshot are being read."""
    snapshot = checkpoint.snapshot
    return all_is_read and (snapshot is None or snapshot.is_done)
