"""Sessions of Spark that the tables of a mirror take turns with.

The rule: a session is in one hand at a time, because a target keeps the position of a commit in the session's settings.
Making a session, and a catalog in it, costs as much as a small batch. So there are as many sessions as tables that are
worked on at once, and not as many as tables.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


class Sessions:
    """Sessions beside the one that is given. Any thread may ask."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._free: list[SparkSession] = []

    @contextmanager
    def one(self) -> Iterator[SparkSession]:
        """A session that nobody else has meanwhile."""
        try:
            session = self._free.pop()
        except IndexError:
            session = self._spark.newSession()
        try:
            yield session
        finally:
            self._free.append(session)
