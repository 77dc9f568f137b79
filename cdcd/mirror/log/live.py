"""The log of a mirror that folds tables.

The query of the mirror appends in a thread of its own while tables are folded (`LiveLog`). A second process folds what
the mirror has appended (`FollowedLog`, `cdcd mirror fold`).
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from pyspark.sql import SparkSession

from cdcd.core.errors import SinkUnavailableError
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import lineage, positions
from cdcd.mirror.log.job import Appended, LogJob, stopped_error
from cdcd.mirror.log.positions import Ends
from cdcd.mirror.log.table import LogPlace

_POLL_S: Final = 1.0


class LiveLog:
    """Runs the query of a log beside its user. The end of the context ends the query."""

    def __init__(self, job: LogJob) -> None:
        self._job = job
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._query: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._pool.shutdown()
        if error is None:
            self.runs()

    def runs(self) -> bool:
        """True if the query was started. Raises the error that ended the query."""
        if self._query is None:
            return False
        if self._query.done():
            self._query.result()
        return True

    def append(self, wanted: Ends, stop: threading.Event, *, once: bool) -> Appended | None:
        """Return what the log has as soon as it has all records before these offsets. None: `stop` was set before.

        The first call appends all records that the topics have now. Without `once`, the query runs on from then.

        Raises:
            TransientError: Kafka or the catalogue did not answer the first call.
            FatalError: a person must act.
        """
        since = time.monotonic()
        if not self.runs():
            self._job.run(once=True, stop=stop)
            if not once:
                self._query = self._pool.submit(self._job.run, once=False, stop=self._end)
            return None if stop.is_set() else self._job.appended
        while not stop.is_set():
            found = self._job.wait(wanted, since, _POLL_S)
            if found is not None:
                return found
            self.runs()
        return None


class FollowedLog:
    """A log to which the mirror in another process appends. It takes the place of a `LiveLog`.

    Args:
        wait_s: for so many seconds, the mirror may append what the log lacks.
    """

    def __init__(self, spark: SparkSession, place: LogPlace, source: KafkaSource, wait_s: float) -> None:
        self._spark = spark
        self._place = place
        self._source = source
        self._wait_s = wait_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs that would have to end."""

    def runs(self) -> bool:
        """True: the log has been begun by the mirror."""
        return True

    def append(self, wanted: Ends, stop: threading.Event, *, once: bool) -> Appended | None:
        """Return what the log has as soon as it has all records before these offsets. None: `stop` was set before.

        Args:
            once: nothing depends on it.

        Raises:
            SinkUnavailableError: the log still lacks records after `wait_s` seconds.
        """
        del once
        deadline = time.monotonic() + self._wait_s
        while not stop.is_set():
            found = self._appended()
            lacking = self._lacking(found, wanted)
            if lacking is None:
                return found
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"The log {self._place.name} lacks records of {lacking} that Kafka has.",
                    hint="Start the mirror, which appends them, and see its log for the reason if it runs. Without a "
                    "mirror that runs, cdcd mirror --once appends and folds.",
                )
            stop.wait(_POLL_S)
        return None

    def _appended(self) -> Appended:
        place = self._place
        version = lineage.read(self._spark, place.name, place.table_format, "").current
        has = positions.read(self._spark, place.name, version)
        stopped = {topic: stopped_error(place.name, topic, reason) for topic, reason in has.stopped.items()}
        now = time.monotonic()
        return Appended(version, has.ends, stopped, has.gaps, has.began, has.deleted, now)

    def _lacking(self, found: Appended, wanted: Ends) -> str | None:
        """Return a topic of which the log lacks a record before `wanted`. None: there is no such topic.

        Offsets after the last record may be markers of transactions, which are no records.
        """
        for topic, parts in wanted.items():
            if topic in found.stopped:
                continue
            has = found.ends.get(topic, {})
            later = {part: end for part, end in parts.items() if end > has.get(part, 0)}
            if not later:
                continue
            if topic not in found.ends:
                return topic
            begins = {part: has.get(part, 0) for part in later}
            if not self._source.read(self._spark, topic, begins, later).isEmpty():
                return topic
        return None
