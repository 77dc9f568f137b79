"""Sessions of Spark that the tables of a mirror take turns with.

The rule: a session is in one hand at a time, because a target keeps the position of a commit in the session's settings.
Making a session, and a catalog in it, costs as much as a small batch. So there are as many sessions as tables that are
worked on at once, and not as many as tables.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pyspark.sql import SparkSession

from cdcd.mirror.session import is_connect

Item = TypeVar("Item")
Result = TypeVar("Result")


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

    def each(
        self, threads: int, do: Callable[[SparkSession, Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Call `do` with a session for each item, in `threads` threads, and return the results in their order.

        Spark Connect has no second session, so one thread uses the session that was given.
        """
        if is_connect(self._spark):
            return [do(self._spark, item) for item in items]

        def call(item: Item) -> Result:
            with self.one() as spark:
                return do(spark, item)

        with ThreadPoolExecutor(threads, thread_name_prefix="table") as pool:
            return list(pool.map(call, items))
