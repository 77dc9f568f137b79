"""How long the holder of the advisory lock may be silent, measured by each side with its own monotonic clock.

The lock belongs to a session, and PostgreSQL believes in a session whose client is frozen or cut off for as long
as TCP does: a minute or more. So the holder makes a round trip on that session every `lease_s / BEATS`, and a standby
watches the session's last activity (pg_stat_activity.state_change) change. After `lease_s` without a change it ends
the session, which is what gives the lock up: PostgreSQL remains the one judge of who has it.

The holder counts from the moment at which it *sent* the last heartbeat that was answered, the standby from the moment
at which it *saw* one, which is later: a holder that is cut off but awake has stopped by its own clock before anybody
takes over. One that was frozen asks before it writes on (`AdvisoryLock.lapsed`).
"""

from typing import Final

BEATS: Final = 6
"""Heartbeats in a lease: a lost moment of the event loop's or the server's is no silence."""

POLL_S: Final = 0.3
"""How often a standby asks for the lock. A blocking pg_advisory_lock would be quicker, but its snapshot, as old as the
wait, would hold back vacuum in the whole database."""

LOOK_S_MIN: Final = 0.02
"""However little of the lease is left."""

STEP_S_MAX: Final = 2 * POLL_S
"""What one look can add to the silence: a standby, or a server, that stood still itself has seen nothing meanwhile."""

Sign = tuple[int, str]
"""The holder's process id on the server, and when its session was last active, in the server's words."""


class Silence:
    """A standby's view of the holder: `observe` each look, and hear for how many seconds nothing has changed."""

    def __init__(self) -> None:
        self._sign: Sign | None = None
        self._seen_at = 0.0
        self._silent_s = 0.0

    def observe(self, sign: Sign | None, now: float) -> float:
        """Seconds of silence so far; 0 when there is news, or when `sign` is None: the session is hidden from us."""
        if sign is None or sign != self._sign:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now - self._seen_at, STEP_S_MAX)
        self._sign, self._seen_at = sign, now
        return self._silent_s


def took_over(holder_pid: int | None, lapsed: frozenset[int]) -> bool:
    """Whether another instance took the lock after our lease ran out.

    Args:
        lapsed: the server processes that held the lock for us when the lease ran out; empty if it never did.
    """
    return bool(lapsed) and holder_pid not in lapsed


def next_look_s(silent_s: float, lease_s: float) -> float:
    """Seconds until the next look: sooner than usual where the lease is over before that."""
    left_s = lease_s - silent_s
    return min(POLL_S, max(left_s, LOOK_S_MIN)) if left_s > 0 else POLL_S
