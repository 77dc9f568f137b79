"""Where the reading of tables stands in a running pipeline: the progress, and everybody who hears of it.

The rule: progress changes only together with what it counts. Who appends rows to the batches sets the progress that is
true with them in the same step, so that both leave in one Kafka transaction.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

from cdcd.facts import (
    Observer,
    SnapshotFinished,
    SnapshotProgressed,
    SnapshotTableFailed,
    SnapshotTableFinished,
)
from cdcd.records.envelope import Record
from cdcd.snapshots.progress import Progress, TableTask
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.batches import Batches

REPORT_S: Final = 10.0
"""How often the log tells of each table that is being read."""


@dataclass(slots=True)
class _Pace:
    """What of a table was read in this life: since when, and from where."""

    began: float
    pages: int
    rows: int


class SnapshotState:
    """The progress of a life. `changed` is set whenever there may be something else to do."""

    def __init__(self, progress: Progress, batches: Batches, telemetry: Telemetry, observe: Observer) -> None:
        self.progress = progress
        self.changed = asyncio.Event()
        self.filled = asyncio.Event()
        """Set when there may be something to send."""
        self.emptied = asyncio.Event()
        """Set when the broker has taken something."""
        self._batches = batches
        self._telemetry = telemetry
        self._observe = observe
        self._paces: dict[str, _Pace] = {}
        self._busy = not progress.is_done
        self._tell()

    @property
    def tail(self) -> list[Record]:
        """Where records of rows go, before `put`; between two transactions it is empty."""
        return self._batches.tail

    @property
    def place(self) -> int | None:
        """The end of the last transaction in the batches; None while one is open."""
        return self._batches.position.end_lsn if self._batches.between else None

    async def wait_for_room(self) -> None:
        """Until the batches take more."""
        while not self._batches.room:
            self.emptied.clear()
            await self.emptied.wait()

    def put(self, progress: Progress, size: int) -> None:
        """Rows were appended to `tail`, and this is the progress with them."""
        self.progress = self._batches.snapshot = progress
        self._batches.insert(size)
        self.filled.set()
        self._tell()

    def set(self, progress: Progress) -> None:
        """The progress changed without rows."""
        if progress is self.progress:
            return
        self.progress = self._batches.snapshot = progress
        self._batches.touch()
        self.filled.set()
        self._tell()
        self.changed.set()

    def end(self, task: TableTask, error: str = "") -> None:
        """The table is complete, or can not be read."""
        current = self.progress.find(task)
        if current is None:
            return
        self.set(self.progress.end(task, error))
        if error:
            self._observe(SnapshotTableFailed(table=task.name, error=error))
        else:
            pace = self._paces.pop(task.name, None)
            seconds = 0.0 if pace is None else time.monotonic() - pace.began
            self._observe(
                SnapshotTableFinished(table=task.name, rows=current.rows, seconds=round(seconds, 3))
            )
        if self.progress.is_done and self._busy:
            self._busy = False
            self._observe(SnapshotFinished(rows=self.progress.serial))

    def begin(self, task: TableTask) -> None:
        """The table is being read from now on, in this life."""
        self._busy = True
        self._paces.setdefault(task.name, _Pace(time.monotonic(), task.pages_done, task.rows))

    async def report(self) -> None:
        """Tell the log of each table that is being read, again and again."""
        while True:
            await asyncio.sleep(REPORT_S)
            for task in self.progress.tasks:
                pace = self._paces.get(task.name)
                if pace is None:
                    continue
                seconds = max(time.monotonic() - pace.began, 1e-3)
                rate = (task.pages_done - pace.pages) / seconds
                self._observe(
                    SnapshotProgressed(
                        table=task.name,
                        rows=task.rows,
                        share=round(task.share, 4),
                        bytes=int(task.size * task.share),
                        rows_per_s=round((task.rows - pace.rows) / seconds),
                        left_s=round((task.pages - task.pages_done) / rate) if rate > 0 else None,
                    )
                )

    def interrupted(self) -> None:
        """What the slot's snapshot did not give is read incrementally."""
        self.set(replace(self.progress, method="incremental"))

    def _tell(self) -> None:
        self._telemetry.snapshot = self.progress
