"""Warns of prepared transactions that are neither committed nor rolled back: each one holds the WAL back since its
PREPARE.
"""

from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import PreparedOld
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US


class PreparedAge:
    """Warns once per prepared transaction that is older than `warning_age_s`."""

    def __init__(self, warning_age_s: float, observe: Observer) -> None:
        self.warning_age_s = warning_age_s
        self._observe = observe
        self._warned: set[str] = set()

    def check(self, oldest: tuple[str, int] | None, flushed: int, unix_us: int) -> None:
        """Warn of the oldest prepared transaction if it is too old; `Assembler.oldest_prepared` returns it.

        Args:
            flushed: the flushed position, beyond which PostgreSQL keeps the WAL because of this transaction.
            unix_us: the wall clock, in microseconds since 1970.
        """
        if oldest is None or oldest[0] in self._warned:
            return
        age_s = (unix_us - oldest[1] - POSTGRES_EPOCH_US) / 1e6
        if age_s >= self.warning_age_s:
            self._warned.add(oldest[0])
            self._observe(PreparedOld(gid=oldest[0], age_s=round(age_s), held_at=str(Lsn(flushed))))
