"""Which tables a round of folds looks at: those that may lack something that the log has."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.settings import MirrorSettings

LOOK_S: Final = 300.0
"""Seconds after which a table is looked at although the log has nothing new of it. A look costs some 0.15 s of CPU."""


LEAD_S: Final = 2.0
"""Seconds before a batch of the log at which a round begins. In this time, the round asks Kafka where topics end."""


@dataclass(frozen=True, slots=True)
class Known:
    """What this process knows of the table of a topic.

    Attributes:
        lsn: the table lacks nothing that the log has up to this LSN, unless its owner has rolled it back.
        at: when the table was looked at, in seconds of a clock that only rises.
        is_empty: the log has no change of the topic, so there may be no table.
        ends: by partition, an offset below which the table lacks nothing either.
        form: id of the newest description of the table at that time; "": the table was not folded.
    """

    lsn: int
    at: float
    is_empty: bool = False
    ends: Mapping[int, int] = field(default_factory=dict, compare=False)
    form: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What the log has of a partition, or of a topic, after some LSN.

    Attributes:
        count: number of changes up to the bound.
        last: LSN of the last one of them; 0: there is none.
        later: offset of the first change after the bound. None: there is none.
    """

    count: int = 0
    last: int = 0
    later: int | None = None


class Lags:
    """For how long tables may have lacked changes that the log has. Other threads may ask.

    Times are seconds of a clock that only rises.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}
        self._now = 0.0

    def begin(self, tables: Mapping[str, str], now: float) -> None:
        """Begin a round. `tables`: the names of the tables by topic. A new one lacks nothing until now."""
        self._now = now
        self._since = {topic: self._since.get(topic, (table, now)) for topic, table in tables.items()}

    def has(self, topic: str) -> bool:
        """True if the topic is that of a table."""
        return topic in self._since

    def whole(self, topic: str, at: float | None = None) -> None:
        """Note that the table of the topic lacked nothing at this time. None: when the round began."""
        if topic in self._since:
            table, since = self._since[topic]
            self._since[topic] = table, max(since, self._now if at is None else at)

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds since each table was last known to lack nothing, by its name."""
        return {table: max(0.0, now - since) for table, since in [*self._since.values()]}


def is_due(
    known: Known | None, new: LogChanges, now: float, settings: MirrorSettings, *, lacks: bool
) -> bool:
    """True if a table is folded in this round.

    Args:
        known: None: this process has not looked at the table.
        new: the changes of the topic that the log has. Some of them may be folded already.
        now: seconds of a clock that only rises.
        lacks: the topic lost records, which the table may lack.
    """
    if known is None:
        return new.last > 0 or lacks
    waited = now - known.at
    # A consistent point names the version of every table.
    always = settings.consistent
    if new.last > known.lsn:
        is_much = known.is_empty or new.count >= settings.fold_changes
        return always or is_much or waited >= settings.fold_interval_s
    return not known.is_empty and (always or waited >= LOOK_S)


def first_waiting(
    due: Collection[str],
    known: Mapping[str, Known],
    new: Mapping[str, LogChanges],
    settings: MirrorSettings,
) -> list[str]:
    """The topics that are folded besides those that are due, so that a round folds `settings.fold_tables_min` tables.

    Each of them has changes, which are not due yet. Those whose table was looked at first come first, so each table has
    its turn.

    Args:
        due: topics that are due. Those without new changes do not count, because a table without changes needs no fold.
    """

    def waits(topic: str) -> bool:
        return topic in known and new[topic].last > known[topic].lsn

    free = settings.fold_tables_min - len([topic for topic in due if waits(topic) or topic not in known])
    waiting = sorted({topic for topic in new if waits(topic)} - {*due}, key=lambda topic: known[topic].at)
    return waiting[: max(0, free)]


def at_most(had: Mapping[int, int], has: Mapping[int, int]) -> LogChanges:
    """Return the most that the log can have of a topic beyond the offsets `had`, without a look at the log.

    Args:
        has: by partition, the offset after the last record of the log. It is lower than `had` if the topic was made
            again.
    """
    count = sum([abs(end - had.get(part, 0)) for part, end in has.items()])
    return LogChanges(count, sys.maxsize if count else 0)


def pause_s(now: float, interval_s: float) -> float:
    """Return the seconds until a round begins, so that the log's next batch has what the round finds in Kafka.

    Spark begins a batch when the time is a multiple of the interval.

    Args:
        now: seconds since 1970.
    """
    lead = min(LEAD_S, interval_s / 2)
    return interval_s - (now + lead) % interval_s


def look_after(log: DataFrame, since: int, bound: int) -> dict[str, dict[int, LogChanges]]:
    """What the log has with `lsn > since`, by topic and partition."""
    is_in = sf.col("lsn") <= bound
    rows = (
        log.filter(sf.col("kind").isin("change", "truncate") & (sf.col("lsn") > since))
        .groupBy("topic", "part")
        .agg(
            sf.count_if(is_in).alias("count"),
            sf.max(sf.when(is_in, sf.col("lsn"))).alias("last"),
            sf.min(sf.when(~is_in, sf.col("off"))).alias("later"),
        )
        .collect()
    )
    found: dict[str, dict[int, LogChanges]] = {}
    for row in rows:
        each = LogChanges(row["count"], row["last"] or 0, row["later"])
        found.setdefault(row["topic"], {})[row["part"]] = each
    return found
