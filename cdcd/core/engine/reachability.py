"""Which of the sides answers: when an outage begins, what waits then, and how long the outage was.

The rule: an outage begins when one attempt to get an answer has failed, and ends with the first answer. Nothing else
counts. A slow delivery is no outage, because a busy broker is slow too; and an idle daemon delivers nothing, so that a
delivery would tell nothing. The shell asks Kafka once a second (`daemon/kafka_watch.py`). It need not ask PostgreSQL:
the round trips of the advisory lock (`postgres/lock.py`) and each attempt to connect tell whether PostgreSQL answers.
A schema registry is asked only when a new schema needs it, so that it is away only while something waits for it.

An attempt that took far longer than it may was made by a process that stood still itself. It says nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer, Side
from cdcd.core.facts_operation import (
    KafkaReachable,
    KafkaUnreachable,
    PostgresReachable,
    PostgresUnreachable,
    RegistryReachable,
    RegistryUnreachable,
)

STOOD_STILL_S: Final = 10.0
"""An attempt that is this many seconds late was not judged in time: this process, or its machine, stood still."""


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
class Waiting:
    """What has not reached Kafka.

    Attributes:
        records: encoded records that wait in memory, and their size in `size` bytes.
        flushed_lsn: PostgreSQL keeps the WAL from here on.
        wal_bytes: WAL that the slot held when it was last looked at; None: not known.
    """

    records: int
    size: int
    flushed_lsn: int
    wal_bytes: int | None


@dataclass(frozen=True, slots=True)
class Outage:
    """A side does not answer: since when (monotonic seconds), what was said instead of an answer, and what to do."""

    since: float
    message: str
    hint: str = ""


class Reachability:
    """Report each attempt by `answered` or `failed`. The outages of now are in `outages`, by side.

    Args:
        waiting: gives what waits at this moment.
    """

    def __init__(self, waiting: Callable[[], Waiting], observe: Observer = lambda _: None) -> None:
        self._observe = observe
        self._waiting = waiting
        self.up: dict[Side, bool] = {}
        """By side, whether the last attempt got an answer. A side that was not asked yet is missing."""
        self.outages: dict[Side, Outage] = {}

    def observe(self, observe: Observer) -> None:
        """Report outages to this observer from now on."""
        self._observe = observe

    def answered(self, side: Side, now: float) -> None:
        """An attempt got an answer at `now` (monotonic seconds)."""
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
        """An attempt that began at `asked_at` and may take `patience_s` got no answer by `now`."""
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
