"""Whether the broker may have ended our Kafka transaction by its timeout, which fences the producer (KIP-98).

Going on after that is safe: only the holder of the lock gets a new producer. If no transaction can have expired, a
fenced producer means another one with the same transactional id.
"""


class Expiry:
    """The transactions of one producer after the other.

    Args:
        timeout_s: `transaction.timeout.ms`, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._begun_at: float | None = None
        self._left_open = False
        """A former producer left a transaction open. The coordinator may end it while the present producer works."""

    def replaced(self) -> None:
        """A new producer is about to take the place of the present one.

        One that begins no transaction, because the broker is away, leaves none open either: what the one before it left
        is still there. The suspicion holds for one producer that begins a transaction, and not for the next one.
        """
        if self._begun_at is not None:
            self._left_open = not self._left_open
        self._begun_at = None

    def begun(self, now: float) -> None:
        """A transaction begins."""
        self._begun_at = now

    def committed(self) -> None:
        """The transaction is committed, so the coordinator has ended all earlier ones."""
        self._begun_at = None
        self._left_open = False

    def may_have_happened(self, now: float) -> bool:
        """Whether a producer that is fenced now can be fenced because of a timeout."""
        return self._left_open or (self._begun_at is not None and now - self._begun_at >= self._timeout_s)
