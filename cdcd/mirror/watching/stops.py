"""Which tables are stopped, since when and why: in a table of the lakehouse, to be read while no mirror runs.

The rule: the table STOPPED has a row for each table that is stopped, or that has waited for long, and no other row. It
is written in one commit after a batch in which this changed, and not otherwise. A table that is tried again at the next
start and stops again is stopped since it first was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from cdcd.mirror.targets.target import Target

STOPPED: Final = "stopped"
"""The table: topic, table, since, waits, message, hint."""

NOTED: Final = timedelta(seconds=60)
"""How long a table waits before it is recorded: most waits are over with the next batch."""

_GONE: Final = "gone"
_COLUMNS: Final = ", ".join(
    [
        "topic string",
        "`table` string",
        "since timestamp",
        "waits boolean",
        "message string",
        "hint string",
        f"{_GONE} boolean",
    ]
)


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
    """What STOPPED is to have, and what it has. Several threads may tell; one writes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: dict[str, Stop] = {}
        self._written: dict[str, Stop] = {}

    def found(self, written: Mapping[str, Stop]) -> None:
        """STOPPED has these rows, by topic, from a process before this one."""
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
        """STOPPED has these changes."""
        with self._lock:
            for topic, stop in changes.items():
                if stop is None:
                    self._written.pop(topic, None)
                else:
                    self._written[topic] = stop


def _differs(stop: Stop, had: Stop | None) -> bool:
    # The message of one that waits may have another number in it with each batch.
    return had is None or (stop != had and not (stop.waits and had.waits))


def read_stops(spark: SparkSession, target: Target) -> dict[str, Stop]:
    """The rows of STOPPED by topic; none where there is no such table yet."""
    name = target.own_name(STOPPED)
    if not target.has(spark, name):
        return {}
    return {
        row.topic: Stop(row.table, row.since.astimezone(UTC), row.waits, row.message, row.hint)
        for row in spark.table(name).collect()
    }


def write_stops(spark: SparkSession, target: Target, changes: Mapping[str, Stop | None]) -> None:
    """Bring changes into STOPPED, in one commit."""
    rows = [
        (topic, None, None, None, None, None, True)
        if stop is None
        else (topic, stop.table, stop.since, stop.waits, stop.message, stop.hint, False)
        for topic, stop in changes.items()
    ]
    frame: DataFrame = spark.createDataFrame(rows, _COLUMNS)
    target.put(target.own_name(STOPPED), frame, "topic", _GONE)
