"""Rows of the log in memory, which the folds of one round share.

Each batch of the log makes files with rows of all topics. So each fold would read all files that came since the last
round, and the folds of 200 tables would read them 200 times.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.platform.tables import having

MOST: Final = 50_000
"""Number of changes up to which the rows are kept in memory. A row takes a few kB, as the log has its record twice."""

_IN_MEMORY: Final = {
    # Spark skips a piece whose topics are others. Each fold reads the rows of one topic.
    "spark.sql.inMemoryColumnarStorage.batchSize": "500",
}


@dataclass(frozen=True, slots=True)
class SharedRows:
    """A view with all changes and truncates of some topics whose LSN is above `since`, and at most `until`.

    Attributes:
        name: of the view in SQL, in every session.
    """

    name: str
    since: int
    until: int

    def has(self, lower: int, bound: int) -> bool:
        """True if the view has all rows of its topics with an LSN above `lower`, and at most `bound`."""
        return self.since <= lower and bound <= self.until


@contextmanager
def shared(
    log: DataFrame, topics: Collection[str], since: int, until: int, count: int
) -> Iterator[SharedRows | None]:
    """Keep the rows of these topics in memory meanwhile. None: one fold reads them, or they are too many.

    Args:
        log: the log at one version.
        count: number of the rows.
    """
    if len(topics) < 2 or not 0 < count <= MOST:
        yield None
        return
    name = f"cdcd_log_{uuid4().hex}"
    rows = log.filter(
        sf.col("kind").isin("change", "truncate")
        & (sf.col("lsn") > since)
        & (sf.col("lsn") <= until)
        & sf.col("topic").isin(*topics)
    ).sortWithinPartitions("topic")
    with having(log.sparkSession, _IN_MEMORY):
        rows = rows.persist()
    rows.createGlobalTempView(name)
    try:
        yield SharedRows(f"global_temp.{name}", since, until)
    finally:
        log.sparkSession.catalog.dropGlobalTempView(name)
        rows.unpersist()
