"""Labels of enums: a table whose enum's labels changed is described again, though nothing in the stream says so.

The rule: a description in the schemas topic has the labels that its columns' enums have, at the latest a list of the
publication and a look at the tables after they changed (`questions.PUBLISHED_S`), and whether or not the table has
another change. PostgreSQL sends no message for ALTER TYPE ... RENAME VALUE or ADD VALUE, so the catalog is asked: a
checksum of all labels comes with each list, and the checkpoint has the last one whose tables are all described.

A description may be ahead of the stream or behind it, for labels are told by their oids: readers know from it which
label an older word has by now.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import replace

from cdcd.core.engine.snapshot_tasks import SnapshotTasks


class Labels:
    """Which tables are to be described. Ask `wants_tables`, then `next_table` for each; they come out of `take`."""

    def __init__(self, tasks: SnapshotTasks) -> None:
        self._tasks = tasks
        self._sum: int | None = None
        """Of the labels whose tables are being described; None: no labels changed."""
        self._asks = False
        self._left: deque[int] = deque()
        self._out = 0
        self._ready: list[int] = []

    def listed(self, labels: int) -> None:
        """The checksum of all labels, as of now."""
        if labels == self._tasks.progress.labels or self._sum is not None:
            return
        self._sum = labels
        self._asks = True

    def wants_tables(self) -> bool:
        """Whether the tables that have columns of enums are to be looked for now; true once."""
        asks, self._asks = self._asks, False
        if asks:
            self._out += 1
        return asks

    def found(self, oids: Collection[int]) -> None:
        """These tables have columns of enums."""
        self._out -= 1
        self._left.extend(oids)

    def next_table(self) -> int:
        """The next table that is to be looked at, one at a time; 0: none."""
        if not self._left or self._out:
            return 0
        self._out += 1
        return self._left.popleft()

    def described(self, oid: int) -> None:
        """The table is described as it is now."""
        self._out -= 1
        self._ready.append(oid)

    def gone(self) -> None:
        """The table that was looked at is published no more."""
        self._out -= 1

    def failed(self) -> None:
        """A question was not answered: all is asked again after the next list."""
        self._out -= 1
        self._left.clear()
        self._sum = None

    def take(self) -> list[int]:
        """Tables whose descriptions are to be sent now, between two transactions."""
        if self._sum is None and not self._ready:
            return []
        ready, self._ready = self._ready, []
        if self._sum is not None and not (self._asks or self._left or self._out):
            # In the checkpoint of the Kafka transaction that has the last of them.
            self._tasks.replace(replace(self._tasks.progress, labels=self._sum))
            self._sum = None
        return ready
