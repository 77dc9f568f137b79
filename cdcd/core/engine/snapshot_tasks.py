"""Which tables are to be read, how far the reading of each is, and what is logged about it.

The rule: within a session, only `SnapshotTasks` changes the `Progress` (`snapshot/progress.py`). Rows are counted
at the moment when they enter the queue, so that rows and progress are delivered in one Kafka transaction. Every
other change calls `changed`, so that the progress is delivered soon, if necessary without rows.

The log reports that a table is read as soon as Kafka holds its last rows. `Progress` counts the tables that have
ended, so the count in a delivered checkpoint shows for which tables this is true.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from cdcd.core.errors import SourceError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.snapshot import (
    SnapshotFinished,
    SnapshotPostponed,
    SnapshotProgressed,
    SnapshotStarted,
    SnapshotTableFailed,
    SnapshotTableFinished,
    SnapshotTableGone,
    SnapshotWaiting,
)
from cdcd.core.snapshot.chunks import Chunk
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import OWN_REQUESTS
from cdcd.core.snapshot.table_task import TableTask

REPORT_S: Final = 10.0
"""Interval at which the log reports each table that is being read."""

ERROR_MAX: Final = 500
"""Maximum number of characters of a reported error, because PostgreSQL repeats what the sender of a condition wrote or
raises."""


PENDING_BYTES_MAX: Final = 16_384
"""Maximum of bytes in the checkpoint record for all unfinished requests together, because anybody who can write to the
signal table or topic can send any number of them."""

POSTPONED_HINT: Final = (
    "End the transaction that holds the lock. SELECT pid, query FROM pg_stat_activity JOIN pg_locks USING (pid) "
    "WHERE mode = 'AccessExclusiveLock' shows it, pg_terminate_backend(pid) ends it. cdcd then reads the table."
)


@dataclass(slots=True)
class _Pace:
    """Pages and rows that were read of a table when this session began with it, and the time of that (monotonic
    seconds).
    """

    began: float
    pages: int
    rows: int


@dataclass(slots=True)
class _Ended:
    """A table whose reading has ended, but Kafka does not hold that yet.

    Attributes:
        number: value of `Progress.ended` after this table ended.
        oid: of the table; 0 if it was never found.
        table, rows: its name and number of rows; "" if the table failed or is gone, which was reported at once.
        began: when its reading began, in monotonic seconds.
        finished: number of rows of all snapshots if this was the last table; None if other tables were left.
    """

    number: int
    oid: int
    table: str = ""
    rows: int = 0
    began: float = 0.0
    finished: int | None = None


class SnapshotTasks:
    """Owns the progress of a session, and reports it to the observer.

    Args:
        names: the published tables as `schema.table`, by oid. Tables that are added later are taken into a copy.
        changed: is called whenever the progress has changed without rows.

    Attributes:
        unix_s: the wall clock, in seconds since 1970. The engine updates it.
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
        self.names = dict(names)
        self.unix_s = 0
        self._observe = observe
        self._changed = changed
        self._announced = False
        self._busy = not progress.is_done
        self._paces: dict[int, _Pace] = {}
        self._report_at = 0.0
        self._untold: deque[_Ended] = deque()
        """Ended tables that are not reported yet, because Kafka does not hold their ends; at most one per table."""

    def find(self, number: int) -> TableTask | None:
        """Return the task with this number; None if it has ended."""
        return next((task for task in self.progress.tasks if task.number == number), None)

    def replace(self, progress: Progress) -> None:
        """Set the progress, and call `changed` if it is a different one."""
        if progress is not self.progress:
            self.progress = progress
            self._changed()

    def add(self, tasks: Iterable[TableTask]) -> None:
        """Read these tables too (`Progress.add`)."""
        self.replace(self.progress.add(tasks))

    def await_added(self, added: Mapping[int, str]) -> None:
        """Read these tables too (`Progress.await_added`); names by oid."""
        self.names.update(added)
        self.replace(self.progress.await_added(added))

    def count(self, task: TableTask, chunk: Chunk | None, rows: int) -> None:
        """Count rows that enter the queue now, and the pages of `chunk`; None if the rows were read by their keys."""
        if chunk is None:
            self.progress = self.progress.count(task, rows)
        else:
            self.progress = self.progress.deliver(task, chunk.part, chunk.begin, chunk.end, rows)

    def take_number(self) -> int:
        """Return a number for an event that is no row of a table but stands among such rows."""
        return self.take_numbers(1)

    def take_numbers(self, count: int) -> int:
        """Reserve `count` consecutive numbers for such events, and return the first one."""
        self.replace(replace(self.progress, event_no=self.progress.event_no + count))
        return self.progress.event_no - count + 1

    def touch(self) -> None:
        """Have the checkpoint written soon, although the progress may be unchanged."""
        self._changed()

    # Reports to the log.

    def announce(self, size: int) -> None:
        """Report that tables are read from now on, once per session; `size` is their total in bytes as far as it is
        known.
        """
        if not self._announced:
            self._announced = True
            self._observe(
                SnapshotStarted(tables=self.progress.tables_left, bytes=size, method=self.progress.method)
            )

    def tell_waiting(self, table: str, why: str) -> None:
        """Report that the table cannot be read now."""
        self._observe(SnapshotWaiting(table=table, writers=[why]))

    def tell_postponed(self, table: str, reason: str) -> None:
        """Report that the table is not read at the slot's snapshot, because another session has locked it."""
        self._observe(SnapshotPostponed(table=table, reason=reason, hint=POSTPONED_HINT))

    def start_pace(self, task: TableTask, now: float) -> None:
        """Note that the table is read from now on, and measure its speed."""
        self._busy = True
        self.replace(self.progress.begin(task, self.unix_s))
        self._paces.setdefault(task.number, _Pace(now, task.pages_done, task.rows))

    def report(self, now: float) -> None:
        """Report each table that has been read for at least `REPORT_S`.

        The caller may call it at any time; it reports only once per `REPORT_S`.
        """
        if now < self._report_at:
            return
        self._report_at = now + REPORT_S
        for task in self.progress.tasks:
            pace = self._paces.get(task.number)
            if pace is not None and now - pace.began >= REPORT_S:
                self._observe(_progressed(task, pace, now))

    def end(
        self,
        task: TableTask,
        error: str = "",
        *,
        code: int = SourceError.exit_code,
        hint: str = "",
        now: float = 0.0,
    ) -> bool:
        """End the task, because the table is complete or because of `error`.

        Returns False if the task had ended before.

        Args:
            code: the exit code that `error` stands for.
        """
        current = self.progress.find(task)
        if current is None:
            return False
        self.replace(self.progress.end(task, error, code=code, unix_s=self.unix_s))
        pace = self._paces.pop(task.number, None)
        ended = _Ended(self.progress.ended, current.oid)
        if error:
            self._observe(
                SnapshotTableFailed(table=current.name, error=cut_short(error, ERROR_MAX), hint=hint)
            )
        else:
            ended.table, ended.rows = current.name, current.rows
            ended.began = now if pace is None else pace.began
        self._note_end(ended)
        return True

    def end_gone(self, task: TableTask) -> None:
        """End the task, because its table was dropped or is not published any more."""
        if self.progress.find(task) is not None:
            self.replace(self.progress.end_gone(task))
            self._paces.pop(task.number, None)
            self._observe(SnapshotTableGone(table=task.name, oid=task.oid))
            self._note_end(_Ended(self.progress.ended, task.oid))

    def _note_end(self, ended: _Ended) -> None:
        if self.progress.is_done and self._busy:
            self._busy = False
            ended.finished = self.progress.event_no
        self._untold.append(ended)

    def report_delivered(self, progress: Progress | None, now: float) -> set[int]:
        """Kafka holds a checkpoint with this progress: report the tables whose last rows are delivered with it.

        Returns:
            The oids of these tables, without tables that are read once more or have further rows that wait for Kafka.
        """
        read: set[int] = set()
        while self._untold and progress is not None and self._untold[0].number <= progress.ended:
            ended = self._untold.popleft()
            read.add(ended.oid)
            if ended.table:
                seconds = round(now - ended.began, 3)
                self._observe(SnapshotTableFinished(table=ended.table, rows=ended.rows, seconds=seconds))
            if ended.finished is not None:
                self._observe(SnapshotFinished(rows=ended.finished))
        if read:
            read.difference_update([task.oid for task in self.progress.tasks])
            read.difference_update([ended.oid for ended in self._untold])
        return read


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


def excess(progress: Progress, tasks: Iterable[TableTask]) -> str:
    """Return why these tables cannot be added to those that requests already wait for; "" if they can."""
    pending = [task for task in progress.tasks if task.request not in OWN_REQUESTS]
    size = sum(_size(task.name, task.request, task.where) for task in (*pending, *tasks))
    size += sum(_size(each.id) for each in progress.requests if not each.has_ended)
    size += sum(_size(asker) for task in progress.tasks for asker in task.askers if asker != task.request)
    if size <= PENDING_BYTES_MAX:
        return ""
    return f"the requests that wait would take {size} bytes of the checkpoint, and {PENDING_BYTES_MAX} are allowed"


@lru_cache(maxsize=1024)
def _size(name: str, request: str = "", where: str = "") -> int:
    """Return the size in bytes of such an entry in the checkpoint record; cached, because each further request counts
    the waiting ones again.
    """
    return len(json.dumps([name, request, where], ensure_ascii=False).encode()) + 30
