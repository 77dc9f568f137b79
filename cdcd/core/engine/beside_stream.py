"""The tables of a session, apart from their changes: which tables are published, and how their rows are read.

The rule: rows are read at the slot's snapshot before the stream begins (`exported.py`), or beside the stream between
two transactions (`incremental.py`). Both write their progress down in the same `SnapshotTasks` and make their records
with the same `SnapshotRows`.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from cdcd.core.catalog.patterns import matcher
from cdcd.core.engine.exported import Exported
from cdcd.core.engine.fates import BELONGS, Fates
from cdcd.core.engine.healing import Healing
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.labels import Labels
from cdcd.core.engine.questions import BeforeStream
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.refused_rows import RecordLimits
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.session_start import ExportedTables, SessionStart
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer
from cdcd.core.records.encoder import Encoder
from cdcd.core.snapshot.progress import Progress


class BesideStream:
    """What reads the tables of a session, and knows which tables are published.

    Args:
        rows: encodes rows of snapshots. It has descriptions of its own, because the stream may be behind.

    Attributes:
        limits: the limits for the size of a record.
        rendering: makes records of rows that are read.
        incremental: reads tables beside the stream.
        tables: the published tables as the stream has seen them.
        labels: which tables are described again, because labels of their enums changed.
    """

    def __init__(
        self,
        start: SessionStart,
        rows: Encoder,
        queue: BatchQueue,
        topics: Topics,
        fates: Fates,
        observe: Observer,
    ) -> None:
        settings = self._settings = start.settings
        self._fates = fates
        self._observe = observe
        self.limits = RecordLimits(settings.record_bytes_max, settings.fails_over_bytes)
        self.rendering = SnapshotRows(rows, queue, topics, start.encoding.chosen_keys, self.limits, start.gap)
        tasks = SnapshotTasks(
            start.checkpoint.snapshot or Progress(),
            names=start.published,
            observe=observe,
            changed=queue.touch,
        )
        self.incremental = Incremental(
            tasks,
            self.rendering,
            settings.snapshot,
            fates,
            observe=observe,
            owns=self._owns,
            ends_rows=settings.truncate,
        )
        self.tables = PublishedTables(
            self.incremental,
            start.published,
            reads=settings.snapshot.reads,
            reads_added=settings.snapshot.added_tables,
            ends_rows=settings.truncate,
            excluded=matcher(start.excluded, "snapshot.exclude"),
            observe=observe,
        )
        self.labels = Labels(tasks)

    def _owns(self, oid: int, name: str) -> bool:
        """Return whether the table has the name where the stream is."""
        return not self.tables.is_new(oid, name)

    def forget_read(self, oids: Collection[int]) -> None:
        """Forget the descriptions of tables whose rows Kafka holds, because thousands of them take tens of megabytes.

        A table that is read again is looked up again. A description stays if a record is still made by it.
        """
        done = {oid for oid in oids if not self.tables.owes_end(oid) and not self.labels.describes(oid)}
        if done:
            self.rendering.forget(done)

    def before_stream(
        self, found: ExportedTables, refuse: Callable[[int, str, CdcdError], None]
    ) -> BeforeStream:
        """Return what reads the initial snapshot, with the tables at the slot's snapshot defined.

        Args:
            refuse: takes the oid, name and error of each table of which no records can be made.
        """
        tasks = self.incremental.tasks
        for oid, table in found.tables.items():
            described = replace(found.descriptions[oid], numbers=table.numbers)
            try:
                self.rendering.define(table.relation, described, found.types)
            except BELONGS as error:
                refuse(oid, table.name, error)
        exported = Exported(
            tasks,
            self.rendering,
            found,
            self._settings.snapshot,
            self._fates,
            ends_rows=self._settings.truncate,
        )
        healing = Healing(
            tasks,
            self.rendering,
            found.tables,
            self._fates,
            chunk_bytes=self._settings.snapshot.chunk_bytes,
            observe=self._observe,
        )
        return BeforeStream(exported, healing, self.tables, tasks, self.rendering)
