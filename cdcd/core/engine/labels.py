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

from cdcd.core.engine.actions import Answer, Enums, FindEnums, Look, Looked, Question
from cdcd.core.engine.described import DescribedRelations
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.tables import PublishedTables


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
        """Note that the table with this oid was described again, with the present labels of its enums."""
        self._out -= 1
        self._ready.append(oid)

    def describes(self, oid: int) -> bool:
        """Return whether the new description of this table is still to be sent."""
        return oid in self._ready

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


class EnumQuestions:
    """Asks which tables have enums whose labels changed, and describes each of them again.

    Args:
        relations: the relations of the stream, whose later changes use the new labels.
    """

    def __init__(
        self,
        labels: Labels,
        incremental: Incremental,
        tables: PublishedTables,
        rendering: SnapshotRows,
        relations: DescribedRelations,
        fates: Fates,
    ) -> None:
        self.labels = labels
        self._incremental = incremental
        self._tables = tables
        self._rendering = rendering
        self._relations = relations
        self._fates = fates

    def next(self) -> tuple[object, Question] | None:
        """Return the next question and the oid of the table that it is about; None if there is nothing to ask now."""
        if self.labels.wants_tables():
            return None, FindEnums()
        oid = self.labels.next_table()
        return (oid, Look(oid, "")) if oid else None

    def enums_answered(self, asked: object, answer: Answer, _now: float) -> None:
        """Take the answer to the question about a table, or about all tables."""
        if isinstance(answer, Enums):
            self.labels.found(answer.oids)
        elif asked is None or not isinstance(answer, Looked):
            self.labels.failed()
        elif self._describe(answer):
            assert isinstance(asked, int)
            self.labels.described(asked)
        else:
            self.labels.gone()

    def _describe(self, answer: Looked) -> bool:
        """Describe a table with enums whose labels may have changed, unless it is gone or set aside."""
        table = answer.table
        if table is None or self._tables.is_new(table.oid, table.name):
            # The stream has not reached this name of the table yet, so the table is described with its first event.
            return False
        if table.oid in self._fates.aside:
            return False
        if self._rendering.is_altered(table.relation):
            self._incremental.redefined(table.oid)
        if not self._rendering.is_defined(table.relation, answer, self._fates):
            return False
        self._relations.relabelled(table.oid, answer.description, answer.types)
        return True
