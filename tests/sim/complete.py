"""Which tables must be equal to their topics in the end, by what the daemon was asked and what it said (G9)."""

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.facts import Fact
from cdcd.core.facts.snapshot import SnapshotSignalled, SnapshotTableFailed, SnapshotTableFinished
from cdcd.core.snapshot.outcomes import OUTCOMES_MAX
from tests.sim.catalog import SCHEMA, Definition
from tests.sim.expected import PromiseBrokenError
from tests.sim.requests import PARTITIONED
from tests.sim.settings import Settings
from tests.sim.workload import Workload


class Completeness:
    """Collects what decides it, and compares in the end."""

    def __init__(self, settings: Settings, workload: Workload) -> None:
        self.settings = settings
        self.workload = workload
        self.initial: dict[int, str] = {}
        """The tables of which an initial snapshot was begun, and their names then."""
        self._finished: dict[str, int] = {}
        self._given_up: set[str] = set()
        """Tables of which the log said that they are not read: they had a name that is left out at that moment."""
        self._asked_for_all = False
        """A request named the partitioned table that every table is a partition of."""

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, SnapshotTableFailed):
            # Where a session ended before the last rows were delivered, a table is finished twice, or given up.
            self._finished.pop(fact.table.partition(".")[2], None)
            self._given_up.add(fact.table.partition(".")[2])
        if isinstance(fact, SnapshotSignalled) and f"{SCHEMA}.{PARTITIONED}" in fact.tables:
            self._asked_for_all = True
        if isinstance(fact, SnapshotTableFinished):
            table = self.workload.database.by_name(fact.table.partition(".")[2])
            if table is not None:
                self._finished[table.name] = table.oid

    def must_be_delivered(self, fact: Fact, checkpoint: bytes | None) -> None:
        """A table that is reported as read has ended in the checkpoint that the broker holds, with as many rows.

        The checkpoint keeps the last outcomes only, so a table may not be among them if it has that many.
        """
        if not isinstance(fact, SnapshotTableFinished):
            return
        read = None if checkpoint is None else Checkpoint.decode(checkpoint, "the checkpoint topic").snapshot
        outcomes = () if read is None else read.outcomes
        if len(outcomes) < OUTCOMES_MAX and not any(
            each.name == fact.table and each.rows == fact.rows and not each.error for each in outcomes
        ):
            raise PromiseBrokenError(f"{fact} was told, and the checkpoint says {outcomes}")

    def must_be_equal(self, table: Definition) -> bool:
        """Whether the daemon has promised that the table's topic has all of its rows."""
        settings, workload = self.settings, self.workload
        if settings.skipped or not table.published or table.oid in workload.removed:
            return False
        if table.name in settings.left_out or (settings.left_out and table.name in self._given_up):
            return False
        if table.oid in workload.removed_untold():
            # Rows that the stream had are gone, and the server did not send that. No snapshot can tell it either.
            return False
        database = workload.database
        alone = len(database.owners[table.name]) == 1 and table.name not in database.several
        if not settings.truncate_records and (table.oid in workload.emptied or not alone):
            return False
        if settings.snapshot_mode != "never":
            if table.oid in self.initial or settings.added_tables:
                # A table that is renamed is read into the topic of its new name.
                return True
            # A table that left the publication before it was read had no rows in the topic, whoever has its name now.
            unread = workload.removed - set(self._finished.values())
            if (database.owners[table.name] - {table.oid} - unread) & self.initial.keys():
                # It took the place of a table that was read.
                return True
        if self._asked_for_all:
            return True
        # By request, if it is certain that no condition left rows out.
        certain = not {"where", "hostile"} & set(settings.requests)
        return certain and alone and self._finished.get(table.name) == table.oid
