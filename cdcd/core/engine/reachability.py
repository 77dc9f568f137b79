"""Which of Kafka, PostgreSQL and the schema registry answer: when an outage begins, what waits at that time, and how
long the outage lasted.

The rule: an outage begins when one attempt to get an answer has failed, and ends with the first answer. Nothing
else begins or ends an outage. A slow delivery is none, because a busy broker is slow too; and an idle daemon
delivers nothing, so deliveries would not show an outage. `daemon/kafka_watch.py` asks Kafka once a second.
PostgreSQL needs no extra question: the round trips of the advisory lock (`postgres/lock.py`) and each attempt to
connect show whether PostgreSQL answers. A schema registry is asked only when a new schema needs it, so an outage of
it is reported only while something waits for it.

If an attempt took much longer than its timeout, this process itself stood still. Such an attempt is ignored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer, Side
from cdcd.core.facts.operation import (
    KafkaReachable,
    KafkaUnreachable,
    PostgresReachable,
    PostgresUnreachable,
    RegistryReachable,
    RegistryUnreachable,
)

STOOD_STILL_S: Final = 10.0
"""Seconds by which a failed attempt may exceed its timeout; beyond that, this process or its machine stood still."""


_REACHABLE: Final[Mapping[Side, type[KafkaReachable | PostgresReachable | RegistryReachable]]] = {
    "kafka": KafkaReachable,
    "postgres": PostgresReachable,
    "registry": RegistryReachable,
}
_UNREACHABLE: Final[Mapping[Side, type[KafkaUnreachable | PostgresUnreachable | RegistryUnreachable]]] = {
    "kafka": KafkaUnreachable,
    "postgres": PostgresUnreachable,
    "registry": RegistryUnreachable,
}


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What is not delivered to Kafka yet.

    Attributes:
        records, size: encoded records that wait in memory, and their bytes.
        flushed_lsn: the position from which on PostgreSQL keeps the WAL.
        wal_bytes: WAL that the slot held at the last look at it; None if not known.
    """

    records: int
    size: int
    flushed_lsn: int
    wal_bytes: int | None


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of one side: when it began (monotonic seconds), the error of the latest failed
    attempt, and what to do.
    """

    since: float
    message: str
    hint: str = ""


class Reachability:
    """Keeps the outages: the caller reports each attempt by `answered` or `failed`.

    `outages` has the present outages by side.

    Args:
        waiting: returns what waits at this moment.
    """

    def __init__(self, waiting: Callable[[], Undelivered], observe: Observer = lambda _: None) -> None:
        self._observe = observe
        self._waiting = waiting
        self.up: dict[Side, bool] = {}
        """True if the last attempt got an answer, by side. A side that was not asked yet has no entry."""
        self.outages: dict[Side, Outage] = {}

    def observe(self, observe: Observer) -> None:
        """Report outages to this observer from now on."""
        self._observe = observe

    def answered(self, side: Side, now: float) -> None:
        """Note that an attempt got an answer at `now` (monotonic seconds)."""
        outage = self.outages.pop(side, None)
        self.up[side] = True
        if outage is None:
            return
        waiting = self._waiting()
        self._observe(
            _REACHABLE[side](
                seconds=round(now - outage.since, 1),
                records=waiting.records,
                bytes=waiting.size,
                flushed_lsn=waiting.flushed_lsn,
                wal_bytes=waiting.wal_bytes,
            )
        )

    def failed(
        self, side: Side, failure: CdcdError, *, asked_at: float, patience_s: float, now: float
    ) -> None:
        """Note that an attempt got no answer by `now`; it began at `asked_at` and may take `patience_s` seconds."""
        if now - asked_at > patience_s + STOOD_STILL_S:
            return
        known = self.outages.get(side)
        self.outages[side] = Outage(asked_at if known is None else known.since, failure.message, failure.hint)
        self.up[side] = False
        if known is not None:
            return
        waiting = self._waiting()
        self._observe(
            _UNREACHABLE[side](
                message=failure.message,
                hint=failure.hint,
                records=waiting.records,
                bytes=waiting.size,
                flushed_lsn=waiting.flushed_lsn,
                wal_bytes=waiting.wal_bytes,
            )
        )
