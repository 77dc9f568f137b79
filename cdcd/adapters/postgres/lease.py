"""The maximum silence of the advisory lock's holder, which each side measures with its own monotonic clock.

The lock belongs to a session, and PostgreSQL keeps the session of a frozen or disconnected client as long as TCP
does: a minute or more. So the holder makes a round trip on that session every `lease_s / BEATS`, and a standby
watches the session's last activity (pg_stat_activity.state_change) change. After `lease_s` without a change, the
standby ends the session, which releases the lock, so PostgreSQL alone decides who holds the lock.

The holder counts from the moment at which it *sent* the last heartbeat that was answered, the standby from the
later moment at which it *saw* a heartbeat. So a holder that is disconnected but running has stopped by its own
clock before another instance takes over. A holder that was frozen verifies its lock before it writes again
(`AdvisoryLock.lapsed`).
"""

from typing import Final

BEATS: Final = 6
"""Number of heartbeats in a lease, so that a short delay of the event loop or the server does not count as silence."""

POLL_S: Final = 0.3
"""Interval in seconds at which a standby tries to acquire the lock. A blocking pg_advisory_lock would be quicker,
but its snapshot is as old as the wait and would hold back vacuum in the whole database."""

LOOK_S_MIN: Final = 0.02
"""Minimum of seconds between two checks, even if less is left of the lease."""

STEP_S_MAX: Final = 2 * POLL_S
"""Maximum of seconds that one check adds to the silence, because a standby or server that stood still itself has
seen nothing meanwhile."""

Sign = tuple[int, str]
"""(process id of the holder on the server, time of its session's last activity as the server prints it)."""


class Silence:
    """A standby's measure of the holder's silence; call `observe` at each check."""

    def __init__(self) -> None:
        self._sign: Sign | None = None
        self._seen_at = 0.0
        self._silent_s = 0.0

    def observe(self, sign: Sign | None, now: float) -> float:
        """Return the seconds of silence so far; 0 after new activity, or if `sign` is None (the session is hidden)."""
        if sign is None or sign != self._sign:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now - self._seen_at, STEP_S_MAX)
        self._sign, self._seen_at = sign, now
        return self._silent_s


def took_over(holder_pid: int | None, lapsed: frozenset[int]) -> bool:
    """Return True if another instance acquired the lock after this instance's lease ran out.

    Args:
        lapsed: the server processes that held the lock for this instance when the lease ran out; empty if it never
            ran out.
    """
    return bool(lapsed) and holder_pid not in lapsed


def next_look_s(silent_s: float, lease_s: float) -> float:
    """Return the seconds until the next check, fewer than `POLL_S` if the lease ends before."""
    left_s = lease_s - silent_s
    return min(POLL_S, max(left_s, LOOK_S_MIN)) if left_s > 0 else POLL_S
