"""Which tables are stopped, since when and why. The log keeps this, to be read while no mirror runs.

The rule: the log names each table that is stopped, or that has waited for long, and no other table
(`positions.note_tables`). It is written in one commit after a round in which this changed, and not otherwise. A table
that is tried again by the next process and stops again is stopped since it first was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Final

from cdcd.core.errors import CdcdError, FatalError, SinkError, SinkUnavailableError, TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.gaps import Aside
from cdcd.mirror.watching.progress import first_lines

NOTED: Final = timedelta(seconds=60)
"""How long a table waits before it is recorded: most waits are over with the next batch."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a table does not go on.

    Attributes:
        table: `schema.table`.
        since: with a time zone.
        waits: it is tried again with each batch; else at the next start.
    """

    table: str
    since: datetime
    waits: bool
    message: str
    hint: str


class Stops:
    """The stops that the log is to have, and those that it has. Several threads may tell; one writes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: dict[str, Stop] = {}
        self._written: dict[str, Stop] = {}

    def found(self, written: Mapping[str, Stop]) -> None:
        """The log has these stops, by topic, from a process before this one."""
        with self._lock:
            self._written = dict(written)
            self._now = {**written, **self._now}

    def failed(self, topic: str, stop: Stop) -> None:
        """A table does not go on."""
        with self._lock:
            had = self._now.get(topic)
            since = stop.since if had is None else had.since
            self._now[topic] = Stop(stop.table, since, stop.waits, stop.message, stop.hint)

    def went_on(self, topic: str) -> bool:
        """A table went on. Whether it had stopped."""
        with self._lock:
            had = self._now.pop(topic, None)
        return had is not None and not had.waits

    @property
    def topics(self) -> list[str]:
        """The topics of the tables that do not go on."""
        with self._lock:
            return list(self._now)

    def changes(self, now: datetime) -> dict[str, Stop | None]:
        """What is to be written: rows by topic, None where a row is to go."""
        with self._lock:
            wanted = {
                topic: stop
                for topic, stop in self._now.items()
                if not stop.waits or now - stop.since >= NOTED
            }
            had = self._written
            changed: dict[str, Stop | None] = {
                topic: stop for topic, stop in wanted.items() if _differs(stop, had.get(topic))
            }
            return changed | dict.fromkeys(had.keys() - wanted.keys())

    def written(self, changes: Mapping[str, Stop | None]) -> None:
        """The log has these changes."""
        with self._lock:
            for topic, stop in changes.items():
                if stop is None:
                    self._written.pop(topic, None)
                else:
                    self._written[topic] = stop


def _differs(stop: Stop, had: Stop | None) -> bool:
    # The message of one that waits may have another number in it with each batch.
    return had is None or (stop != had and not (stop.waits and had.waits))


def set_aside_error(found: Aside) -> FatalError:
    """Return the error that stops a table which the daemon has set aside."""
    return FatalError(
        f"The daemon has set the table aside ({found.fault}), so that changes of it since {Lsn(found.since)} are in no"
        " topic.",
        hint="See `cdcd tables` for the reason, and for the command that lets the table come back. The mirror then"
        " goes on by itself, with all rows.",
    )


def round_error(failure: Exception) -> TransientError:
    """The failure of a round, which is tried again."""
    if isinstance(failure, TransientError):
        return failure
    # Catalogues, storages and Kafka raise classes of Java, and PySpark has classes of its own for some of them only.
    return SinkUnavailableError(
        f"A round of folds ended: {first_lines(failure)}",
        hint="The next round goes on where the tables are. If it ends again, correct the fault that the message names.",
    )


def table_error(table: str, failure: Exception) -> CdcdError:
    """The failure of a table, with a hint."""
    if isinstance(failure, CdcdError):
        return failure
    return SinkError(
        f"{table}: Spark ended with an error: {first_lines(failure)}",
        hint="Correct the fault that the message names. The next round tries again.",
    )
