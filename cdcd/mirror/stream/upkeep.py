"""Maintenance beside the stream: small files are written together, and former versions let go.

The rule: a table gets changes or is maintained, never both at once. The lock `TableMirror.busy` says so. The stream's
thread and that of the maintenance take the lock before they touch the table's targets or its session. So no two commits
of this process to one table meet, and all other tables go on. `Target.maintain_own` keeps the same rule for the
mirror's own tables.

A round maintains one table after the other, so that never more than one of them waits. Its jobs are in a scheduler pool
of their own: with the scheduler mode FAIR (`session`), the stream's jobs get half of the cores. At the end of a run
nothing else works, and several tables are maintained at once.

Points of a consistent mirror are let go of first. The tables then keep what the points that are left need.

Maintenance may be interrupted anywhere. Each of its commits is whole, and files that no version has go later.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.core.errors import CdcdError, FencedError
from cdcd.mirror.stream.failures import unexpected
from cdcd.mirror.stream.points import Pins, look_up_pins
from cdcd.mirror.stream.sessions import Sessions
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.stream.table import TableMirror
from cdcd.mirror.targets.pinned import CONTROL
from cdcd.mirror.targets.state import RolledBackError
from cdcd.mirror.targets.target import Maintained, Target
from cdcd.mirror.watching.progress import (
    Observer,
    TableFailed,
    TableMaintained,
    TableRolledBack,
    first_lines,
)

POOL: Final = "maintenance"
"""The name of the scheduler pool, and the tag of all jobs in it."""

_PAUSE_S: Final = 1.0


class Upkeep:
    """The maintenance of one mirror's tables. Call `look` often, and `end` when the mirror ends.

    Args:
        observe: gets facts, from the threads of the maintenance.
        catch_up: gets the topic of a table that was rolled back, from the same threads. The table must be brought up
            to date though no record may follow.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        settings: MirrorSettings,
        observe: Observer,
        catch_up: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._target = target
        self._settings = settings
        self._observe = observe
        self._catch_up = catch_up
        self._session: SparkSession | None = None
        self._sessions = Sessions(spark)
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._ending = threading.Event()
        self._pruning = threading.Lock()
        self._pruned = False
        self._pins: Pins | None = None
        self._due_at = time.monotonic() + (settings.maintenance_interval_s or 0)

    def look(self, tables: Iterable[TableMirror]) -> None:
        """Begin a round if one is due and none is under way.

        Raises:
            FencedError: the last round found a commit of another process.
        """
        self._raise()
        if self._settings.maintenance_interval_s is None or self._is_under_way:
            return
        if time.monotonic() >= self._due_at:
            self._begin(tables, 1)

    def finish(self, tables: Iterable[TableMirror], stop: threading.Event) -> None:
        """Maintain all tables at the end of a run, `settings.threads` of them at once; until `stop` is set.

        Raises:
            FencedError: a table has a commit of another process.
        """
        self._wait(stop)
        if self._settings.maintenance_interval_s is not None and not stop.is_set():
            self._begin(tables, self._settings.threads)
            self._wait(stop)

    def end(self, limit_s: float) -> None:
        """Begin no other table, cancel Spark's jobs for those under way, and wait for them up to `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        self._ending.set()
        while self._is_under_way and time.monotonic() < deadline:
            # There may be a next job after one that was cancelled.
            with suppress(PySparkException, Py4JError):
                self._spark.sparkContext.cancelJobsWithTag(POOL)
            self._join()

    @property
    def _is_under_way(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_PAUSE_S)
                return

    def _wait(self, stop: threading.Event) -> None:
        while self._is_under_way and not stop.is_set():
            self._join()
        self._raise()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin(self, tables: Iterable[TableMirror], threads: int) -> None:
        self._pruned = False
        # None stands for the mirror's own tables.
        left: deque[TableMirror | None] = deque([*tables, None])
        # Daemons: the end of the program waits for none of them.
        self._threads = [
            threading.Thread(target=self._work, args=(left,), name=f"maintenance-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, left: deque[TableMirror | None]) -> None:
        try:
            context = self._spark.sparkContext
            context.setLocalProperty("spark.scheduler.pool", POOL)
            context.addJobTag(POOL)
            if not self._prune():
                left.clear()
            for table in _taken(left):
                if self._ending.is_set():
                    return
                self._maintain(table)
        except BaseException as error:  # noqa: BLE001 - `look` raises it in the mirror's thread
            self._failure = error
            left.clear()
        finally:
            self._due_at = time.monotonic() + (self._settings.maintenance_interval_s or 0)

    def _maintain(self, table: TableMirror | None) -> None:
        policy = self._settings.maintenance
        if table is None:
            assert self._session is not None, "the round began with the points"
            self._tidy("cdcd", self._target.maintain_own(self._session, policy))
            return
        with table.busy, self._sessions.one() as spark:
            if not self._ending.is_set():
                table.use(spark)
                try:
                    self._tidy(table.table, table.maintain(policy, self._pins))
                except RolledBackError as error:
                    table.forget()
                    self._observe(TableRolledBack(table.table, error.message, error.hint))
                    self._catch_up(table.topic)

    def _prune(self) -> bool:
        """Let go of old points, once in a round. False: that failed, and no table may be maintained."""
        with self._pruning:
            if not self._pruned:
                with self._reporting("cdcd"):
                    self._let_go()
                    self._pruned = True
            return self._pruned

    def _let_go(self) -> None:
        consistent, policy = self._settings.consistent, self._settings.maintenance
        spark = self._session = self._session or self._spark.newSession()
        # Points of a mirror that makes no more of them go by their age alone.
        kept = policy if consistent else replace(policy, keep_versions=0)
        self._target.prune(spark, self._target.own_name(CONTROL), "commit_lsn", kept)
        self._pins = look_up_pins(spark, self._target, consistent=consistent)

    def _tidy(self, table: str, work: Iterable[tuple[str, Maintained]]) -> None:
        with self._reporting(table):
            for name, done in work:
                if done.compacted_files or done.expired_versions:
                    self._observe(
                        TableMaintained(name, done.compacted_files, done.written_files, done.expired_versions)
                    )

    @contextmanager
    def _reporting(self, table: str) -> Iterator[None]:
        """A table that cannot be tidied up now is as good as before; the next round tries it again."""
        try:
            yield
        except (FencedError, RolledBackError):
            raise
        except CdcdError as error:
            self._failed(table, error.message, error.hint)
        except (PySparkException, Py4JError) as error:
            self._failed(table, first_lines(error), "")
        except Exception as error:  # noqa: BLE001 - whatever a table raises is that table's own
            failure = unexpected(error)
            self._failed(table, failure.message, failure.hint)

    def _failed(self, table: str, message: str, hint: str) -> None:
        # What was cancelled did not fail.
        if not self._ending.is_set():
            self._observe(TableFailed(table, f"maintenance: {message}", hint))


def _taken(left: deque[TableMirror | None]) -> Iterator[TableMirror | None]:
    """One after the other, by several threads."""
    with suppress(IndexError):
        while True:
            yield left.popleft()
