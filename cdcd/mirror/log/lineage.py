"""Whether an owner rolled the log back. Rows that were appended are then missing, and Spark's checkpoint skips them.

The log is only appended to, and maintained by commits that keep its rows. So each version has all rows of the versions
before it, as long as the owner chooses no older version (`rollback_to_snapshot`, `set_current_snapshot`, RESTORE). The
rule: Spark's checkpoint is trusted only if no such choice was made since a version that was current when the checkpoint
was right. Otherwise a query without a checkpoint reads on from the offsets of the version that the owner chose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA

NO_VERSION: Final = ""
"""Stands for the version of a log without a commit, and for the time before the first version."""

_NEWEST: Final = 50
"""Number of versions of a Delta table that are read first."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A version that became the current one.

    Attributes:
        at: when, if a version can become current several times. "": it cannot.
        stays: the current version has its rows.
        chosen: an owner chose this version, instead of a later one. Only known in Delta.
    """

    version: str
    at: str = ""
    stays: bool = True
    chosen: bool = False

    @property
    def mark(self) -> str:
        """Identity of the entry, as text."""
        return f"{self.version}@{self.at}" if self.at else self.version


@dataclass(frozen=True, slots=True)
class Lineage:
    """How the current version came about, as far as the table remembers. The last entry is the current version."""

    entries: Sequence[Entry] = ()

    @property
    def current(self) -> str:
        """The current version."""
        return self.entries[-1].version if self.entries else NO_VERSION

    @property
    def mark(self) -> str:
        """The mark of the current version."""
        return self.entries[-1].mark if self.entries else NO_VERSION

    def remembers(self, mark: str) -> bool:
        """True if the table knows what came after the entry with this mark. Before NO_VERSION, there was nothing."""
        return mark == NO_VERSION or mark in [entry.mark for entry in self.entries]

    def fork(self, since: str) -> str | None:
        """Return the version that an owner chose after the entry with the mark `since`. None: the owner chose none.

        The current version has all rows of the version that is returned. If the table does not remember `since`, this
        is the current version, because nothing is known of what was before.
        """
        if not self.entries:
            return None
        if not self.remembers(since):
            return self.current
        first = [entry.mark for entry in self.entries].index(since) if since else 0
        found = None
        for number in range(first, len(self.entries)):
            if not self.entries[number].stays:
                found = self.entries[min(number + 1, len(self.entries) - 1)].version
            elif self.entries[number].chosen and number > first:
                found = self.entries[number].version
        return found


def read(spark: SparkSession, name: str, table_format: str, since: str) -> Lineage:
    """Read the versions of the log from the mark `since` on, or all that it remembers if `since` is not among them."""
    if table_format != DELTA:
        history = spark.table(f"{name}.history").select(
            "snapshot_id", sf.unix_micros("made_current_at"), "is_current_ancestor"
        )
        return Lineage([Entry(str(version), str(at), stays) for version, at, stays in history.collect()])
    for most in (f" LIMIT {_NEWEST}", ""):
        history = spark.sql(f"DESCRIBE HISTORY {name}{most}").select("version", "operation")
        rows = history.orderBy(sf.col("version")).collect()
        entries = [Entry(str(version), chosen=operation == "RESTORE") for version, operation in rows]
        found = Lineage(entries)
        if len(rows) < _NEWEST or found.remembers(since):
            break
    return found
