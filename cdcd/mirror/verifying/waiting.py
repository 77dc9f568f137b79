"""The version of a mirror's table that has everything that a snapshot of the source sees.

The rule: everything that committed before the snapshot's LSN lies before where the topic ends when the daemon's
checkpoint has passed the LSN. A version counts if none of the records up to there that are from before the LSN is new
to the version. `batches.py` and `folds.py` decide this, each for one kind of mirror.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pyspark.sql import DataFrame

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.kafka import Offsets
from cdcd.mirror.records.descriptions import Descriptions, Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.watching.stops import Stop
from cdcd.tools.verify.delivery import NotDeliveredError

LOOK_S: Final = 1.0

_LOOKS_FOR_STOPS: Final = 10
"""Number of attempts after which the wait asks again whether the table is stopped."""


class StoppedTableError(Exception):
    """The mirror has stopped the table, and says why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A version of a mirror's table.

    Attributes:
        schema: the form of its rows.
        rows: of the version, however often they are read.
        truncated: LSN of the last truncate that the table's commits name; 0: they name none.
    """

    schema: TableSchema
    rows: DataFrame
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """The newest version of a table.

    Attributes:
        lacks: the version lacks a change from before the LSN, or its position is not known.
        seen: the version. None: there is no table, or the version lacks changes.
    """

    lacks: bool
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Until:
    """What a version must have: the changes of a topic before the offsets `ends` that committed before `lsn`.

    Attributes:
        begins: by partition, the first offset that is still there.
    """

    topic: str
    begins: Offsets
    ends: Offsets
    lsn: int


@dataclass(frozen=True, slots=True)
class Deletes:
    """Deletes and truncates of a topic.

    Attributes:
        records: as Spark's Kafka source gives them, with `form`, the id of their form.
        forms: by id, the forms that are described.
    """

    records: DataFrame
    forms: Mapping[str, Form]

    @classmethod
    def of(cls, records: DataFrame, topic: str, forms: Descriptions) -> "Deletes | None":
        """Find the forms of these records, of a topic. None: there are no records."""
        ids = {row["form"] for row in records.select("form").distinct().collect()}
        return cls(records, forms.find(topic, ids - {None})) if ids else None


class Mirrored(Protocol):
    """The tables of a mirror, as its commits show them."""

    def name_of(self, schema: TableSchema) -> str:
        """The name of the table in SQL."""

    def stop(self, topic: str) -> Stop | None:
        """Return why the mirror has stopped the table of a topic. None: the table is not stopped."""

    def newest(self, name: str, until: Until) -> Reached:
        """Return the newest version of the table, and whether the version lacks something."""

    def deletes(self, topic: str, lsn: int) -> Deletes | None:
        """Return the deletes and truncates of a topic that committed at `lsn` or later. None: there are none."""

    def quarantined(self, topic: str) -> int:
        """Return the number of records of a topic in quarantine."""


class Waiting:
    """Waits for tables of a mirror at one snapshot.

    Args:
        timeout_s: how long the mirror may take to bring all tables up to the snapshot. After that, each table is still
            asked for once.
    """

    def __init__(self, tables: Mirrored, starts: TopicStarts, timeout_s: float) -> None:
        self._tables = tables
        self._starts = starts
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def reached(self, name: str, table: str, topic: str, lsn: int) -> Seen | None:
        """The version; None: there is no such table, and no record for it.

        Args:
            name: of the mirror's table in SQL.
            lsn: of the snapshot. The daemon has delivered everything before it.

        Raises:
            StoppedTableError: the mirror has stopped the table.
            NotDeliveredError: it does not get there in time.
        """
        ends: Offsets | None = None
        looks = 0
        while True:
            late = time.monotonic() > self._deadline
            if late or looks % _LOOKS_FOR_STOPS == 0:
                # Before all else: a table that the daemon has set aside has everything that its topic has.
                stop = self._tables.stop(topic)
                if stop is not None and not stop.waits:
                    raise StoppedTableError(stop.message)
            written, committed = self._starts.both_ends([topic])
            # A Kafka transaction is acknowledged before each partition shows it to its readers.
            ends = written.get(topic, {}) if ends is None else ends
            seen = committed.get(topic, {})
            if all(seen.get(partition, 0) >= end for partition, end in ends.items()):
                begins = self._starts.beginnings([topic]).get(topic, {})
                found = self._tables.newest(name, Until(topic, begins, ends, lsn))
                if not found.lacks:
                    return found.seen
            if late:
                raise NotDeliveredError(
                    f"The mirror has not brought {table} up to {Lsn(lsn)} within {self._timeout_s:g} s."
                    + ("" if stop is None else f" It waits: {stop.message}"),
                    hint="Check with `cdcd mirror status` that the mirror runs, or allow more time (--timeout).",
                )
            looks += 1
            time.sleep(LOOK_S)


def unread_from(has: Mapping[int, int], until: Until) -> dict[int, int]:
    """By partition, the first offset that a version may lack. A partition of which it has everything is left out.

    Args:
        has: by partition, the offset before which the version has all records.
    """
    found = {}
    for partition, end in until.ends.items():
        begin = max(until.begins.get(partition, 0), has.get(partition, 0))
        if begin < end:
            found[partition] = begin
    return found
