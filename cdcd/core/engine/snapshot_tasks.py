"""Which tables are to be read, how far the reading of each has got, and what the log is told of it.

The rule: `Progress` (`snapshot/progress.py`) has one owner in a session, which is `SnapshotTasks`. Rows are counted
at the moment when the queue takes them, so that rows and progress go out in one Kafka transaction. Every other change
is reported by `changed`, so that the progress goes out soon, if need be without rows.

The log is told that a table is read when Kafka holds its last rows. `Progress` counts the tables that have ended, so
the count in a delivered checkpoint says of which ends that is true.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.errors import SourceError
from cdcd.core.facts import (
    Observer,
    SnapshotFinished,
    SnapshotPostponed,
    SnapshotProgressed,
    SnapshotStarted,
    SnapshotTableFailed,
    SnapshotTableFinished,
    SnapshotWaiting,
    cut_short,
)
from cdcd.core.snapshot.chunks import Chunk
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask

REPORT_S: Final = 10.0
"""Interval at which the log reports each table that is being read."""

ERROR_MAX: Final = 500
"""Maximum number of characters of a reported error, because PostgreSQL repeats what the sender of a condition wrote or
raises."""


POSTPONED_HINT: Final = (
    "End the transaction that holds the lock. SELECT pid, query FROM pg_stat_activity JOIN pg_locks USING (pid) "
    "WHERE mode = 'AccessExclusiveLock' shows it, pg_terminate_backend(pid) ends it. cdcd then reads the table."
)


@dataclass(slots=True)
class _Pace:
    """Where the reading of a table stood when this session began with it, and when that was (monotonic seconds)."""

    began: float
    pages: int
    rows: int


@dataclass(slots=True)
class _Ended:
    """The end of a table, until Kafka holds it.

    Attributes:
        number: how many tables had ended with it (`Progress.ended`).
        table, rows: "": it has failed, which was reported at once.
        began: when its reading began, in monotonic seconds.
        finished: if it was the last table, the rows of all snapshots; None: others were left.
    """

    number: int
    table: str = ""
    rows: int = 0
    began: float = 0.0
    finished: int | None = None


class SnapshotTasks:
    """The progress of a session, and its facts.

    Args:
        names: the published tables as `schema.table`, by oid.
        changed: called whenever the progress has changed without rows.

    Attributes:
        unix_s: the wall clock, in seconds since 1970. The engine sets it.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        names: Mapping[int, str],
        observe: Observer,
        changed: Callable[[], None],
    ) -> None:
        self.progress = progress
        self.names = names
        self.unix_s = 0
        self._observe = observe
        self._changed = changed
        self._announced = False
        self._busy = not progress.is_done
        self._paces: dict[int, _Pace] = {}
        self._report_at = 0.0
        self._untold: deque[_Ended] = deque()
        """Ends that Kafka does not hold yet: at most one for each table."""

    def find(self, number: int) -> TableTask | None:
        """The task with this number; None: it has ended."""
        return next((task for task in self.progress.tasks if task.number == number), None)

    def replace(self, progress: Progress) -> None:
        """Set the progress, and report it if it is another one."""
        if progress is not self.progress:
            self.progress = progress
            self._changed()

    def add(self, tasks: Iterable[TableTask]) -> None:
        """Read these tables too (`Progress.add`)."""
        self.replace(self.progress.add(tasks))

    def count(self, task: TableTask, chunk: Chunk | None, rows: int) -> None:
        """Count rows that the queue takes now, with the pages of `chunk`; None: the rows were read by their keys."""
        if chunk is None:
            self.progress = self.progress.count(task, rows)
        else:
            self.progress = self.progress.deliver(task, chunk.part, chunk.begin, chunk.end, rows)

    def take_number(self) -> int:
        """A number for an event that is no row of a table but stands among such rows."""
        return self.take_numbers(1)

    def take_numbers(self, count: int) -> int:
        """Take consecutive numbers for `count` such events, and return the first number."""
        self.replace(replace(self.progress, event_no=self.progress.event_no + count))
        return self.progress.event_no - count + 1

    def touch(self) -> None:
        """Write the checkpoint soon, although the progress may be what it was."""
        self._changed()

    # What the log is told.

    def announce(self, size: int) -> None:
        """Report, once in a session, that tables are read from now on: of `size` bytes, as far as that is known."""
        if not self._announced:
            self._announced = True
            self._observe(
                SnapshotStarted(tables=self.progress.tables_left, bytes=size, method=self.progress.method)
            )

    def tell_waiting(self, table: str, why: str) -> None:
        """Report that the table cannot be read now."""
        self._observe(SnapshotWaiting(table=table, writers=[why]))

    def tell_postponed(self, table: str, reason: str) -> None:
        """Report that the table is not read at the slot's snapshot, because somebody has locked it."""
        self._observe(SnapshotPostponed(table=table, reason=reason, hint=POSTPONED_HINT))

    def start_pace(self, task: TableTask, now: float) -> None:
        """The table is read from now on: measure how fast."""
        self._busy = True
        self.replace(self.progress.begin(task, self.unix_s))
        self._paces.setdefault(task.number, _Pace(now, task.pages_done, task.rows))

    def report(self, now: float) -> None:
        """Report each table that has been read for `REPORT_S`. Call it often; it reports at that interval."""
        if now < self._report_at:
            return
        self._report_at = now + REPORT_S
        for task in self.progress.tasks:
            pace = self._paces.get(task.number)
            if pace is not None and now - pace.began >= REPORT_S:
                self._observe(_progressed(task, pace, now))

    def end(
        self, task: TableTask, error: str = "", *, code: int = SourceError.exit_code, now: float = 0.0
    ) -> bool:
        """End the task: the table is complete, or `error` says why not. False: the task has ended before.

        Args:
            code: the exit code that `error` stands for.
        """
        current = self.progress.find(task)
        if current is None:
            return False
        self.replace(self.progress.end(task, error, code=code, unix_s=self.unix_s))
        pace = self._paces.pop(task.number, None)
        ended = _Ended(self.progress.ended)
        if error:
            self._observe(SnapshotTableFailed(table=current.name, error=cut_short(error, ERROR_MAX)))
        else:
            ended.table, ended.rows = current.name, current.rows
            ended.began = now if pace is None else pace.began
        if self.progress.is_done and self._busy:
            self._busy = False
            ended.finished = self.progress.event_no
        self._untold.append(ended)
        return True

    def delivered(self, progress: Progress | None, now: float) -> None:
        """Kafka holds a checkpoint with this progress: report the tables whose last rows are delivered with it."""
        while self._untold and progress is not None and self._untold[0].number <= progress.ended:
            ended = self._untold.popleft()
            if ended.table:
                seconds = round(now - ended.began, 3)
                self._observe(SnapshotTableFinished(table=ended.table, rows=ended.rows, seconds=seconds))
            if ended.finished is not None:
                self._observe(SnapshotFinished(rows=ended.finished))


def _progressed(task: TableTask, pace: _Pace, now: float) -> SnapshotProgressed:
    seconds = max(now - pace.began, 1e-3)
    rate = (task.pages_done - pace.pages) / seconds
    return SnapshotProgressed(
        table=task.name,
        rows=task.rows,
        share=round(task.share, 4),
        bytes=int(task.size * task.share),
        rows_per_s=round((task.rows - pace.rows) / seconds),
        left_s=round((task.pages - task.pages_done) / rate) if rate > 0 else None,
    )
