"""The log of a mirror that folds tables: the query appends in a thread of its own while tables are folded."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from cdcd.mirror.log.job import Appended, LogJob
from cdcd.mirror.log.positions import Ends

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
