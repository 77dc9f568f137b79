"""Sends records between two transactions of the stream.

The rule: records that belong to no transaction stand only between two transactions. These records are heartbeats and
watermarks, rows of snapshots, descriptions of tables, and the truncate records that end the former rows of a topic.
Tables that are set aside come back only there.
"""

from collections.abc import Callable

from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.labels import Labels
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.timed_records import Timetable


class BetweenTransactions:
    """Sends what has its place between two transactions; call `reached` whenever that may have changed.

    Args:
        timed: heartbeats and watermarks, which a busy stream would leave no other place.
        come_back: lets tables come back that were set aside.
    """

    def __init__(
        self,
        queue: BatchQueue,
        rows: SnapshotRows,
        incremental: Incremental,
        tables: PublishedTables,
        labels: Labels,
        timed: Timetable,
        come_back: Callable[[float], None],
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._incremental = incremental
        self._tables = tables
        self._labels = labels
        self._timed = timed
        self._come_back = come_back

    @property
    def is_held(self) -> bool:
        """True if the stream waits here for the rows of a table without a key."""
        return self._queue.between and self._incremental.snapshots.holds

    def closed(self, now: float, unix_us: int) -> None:
        """Note that a transaction has ended, so that heartbeats and watermarks may follow, and do as `reached` does."""
        self._timed.put(now, unix_us)
        self.reached(now)

    def reached(self, now: float) -> None:
        """If no transaction is open, send snapshot rows and ends of former rows that have their place here."""
        if not self._queue.between:
            return
        self._come_back(now)
        position = self._queue.position.end_lsn
        for oid in self._tables.due(position, self._has_topic):
            self._end_former_rows(oid)
        for oid in self._labels.take():
            self._rows.describe(oid)
        self._incremental.snapshots.end_disturbed(now)
        self._incremental.snapshots.place(now)
        self._incremental.reads.send_due(position, now)

    def _has_topic(self, oid: int) -> bool:
        return self._rows.topic_is_ready(self._rows.topic_of(oid))

    def _end_former_rows(self, oid: int) -> None:
        """End the rows of the table that had this one's name before."""
        self._tables.replace(oid)
        if self._tables.ends_rows:
            self._rows.end_former_rows((oid,), self._incremental.tasks.take_number())
