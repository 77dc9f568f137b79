"""What a mirror tells while it runs: frozen facts. `lines` has them for a person.

The facts have the same form as the daemon's (`cdcd.core.facts`), so that one mechanism logs both. docs/events.md lists
the facts. This module does not need PySpark.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from cdcd.core.facts import Fact, Level, Observer, fact, facts_of, rows
from cdcd.core.protocol.lsn import Lsn

__all__ = [
    "BatchDone",
    "ChangesMissing",
    "Fact",
    "LoadRestarted",
    "LoadWaiting",
    "LogAppended",
    "LogExpired",
    "LogShortened",
    "MirrorSecretWeak",
    "MirrorServing",
    "MirrorStarted",
    "Observer",
    "Progress",
    "Replayed",
    "Retrying",
    "SetChanged",
    "StatesMissing",
    "TableFailed",
    "TableLaidOut",
    "TableLoaded",
    "TableMaintained",
    "TableReloaded",
    "TableReloading",
    "TableResumed",
    "TableStopped",
    "TableTakenOver",
    "TopicUnfit",
    "first_lines",
    "markdown",
]

SHOWN_MAX: Final = 12
"""Tables of a batch that are shown by name, those with most changes first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of one table in one round.

    Attributes:
        changes: of the log that were folded.
        rows: number of keys that they have.
        commit_lsn: LSN up to which the table has all changes.
        seconds: that it took.
    """

    table: str
    changes: int = 0
    rows: int = 0
    commit_lsn: int = 0
    seconds: float = 0.0


@fact
class MirrorStarted(Fact):
    """The mirror begins, the number of its tables has changed, or the mirror goes on after an outage of Kafka or of the
    catalog. `once`: the mirror ends when it has mirrored the records that the topics have now.
    """

    event: ClassVar[str] = "mirror.started"
    name: str
    topics: int
    once: bool


@fact
class MirrorServing(Fact):
    """The HTTP server of the mirror answers at `address`."""

    event: ClassVar[str] = "mirror.serving"
    address: str


@fact
class MirrorSecretWeak(Fact):
    """The file of a secret is open to other users, or a token can be guessed. `fix` says what to do."""

    event: ClassVar[str] = "mirror.secret"
    level: ClassVar[Level] = "warning"
    key: str
    found: str
    fix: str


@fact
class LogAppended(Fact):
    """A batch of records is in the log. `unreadable`: number of records of the batch that went to quarantine. `lag_s`:
    age of the newest record, by Kafka's time; null: unknown.
    """

    event: ClassVar[str] = "log.batch"
    log: str
    batch_id: int
    records: int
    changes: int
    unreadable: int
    commit_lsn: int
    lag_s: float | None
    seconds: float


@fact
class BatchDone(Fact):
    """A round is done: each table that had changes, and is not stopped, has them. `tables` has the 12 tables with most
    changes, each with `table`, `changes`, `rows`, `commit_lsn` and `seconds`; `more_tables` counts the others.
    """

    # `cut`: with consistent batches, the common LSN.

    event: ClassVar[str] = "mirror.batch"
    batch_id: int
    tables: tuple[Progress, ...]
    seconds: float
    cut: int | None = None

    @property
    def changes(self) -> int:
        """Changes that were folded into the tables."""
        return sum(table.changes for table in self.tables)

    @property
    def commit_lsn(self) -> int:
        """The common LSN, or the greatest one that a table has; 0: there was none."""
        return max([table.commit_lsn for table in self.tables], default=0) if self.cut is None else self.cut

    @property
    def named(self) -> tuple[list[Progress], int]:
        """The tables that are shown by name, and the number of the others."""
        most = sorted(self.tables, key=lambda table: -table.changes)
        return most[:SHOWN_MAX], max(0, len(most) - SHOWN_MAX)

    @classmethod
    def fields_logged(cls) -> tuple[str, ...]:
        return ("batch_id", "seconds", "changes", "commit_lsn", "consistent_lsn", "tables", "more_tables")

    def logged(self) -> dict[str, object]:
        shown, others = self.named
        return {
            "batch_id": self.batch_id,
            "seconds": round(self.seconds, 3),
            "changes": self.changes,
            "commit_lsn": self.commit_lsn,
            "consistent_lsn": self.cut,
            "tables": [
                {
                    "table": table.table,
                    "changes": table.changes,
                    "rows": table.rows,
                    "commit_lsn": str(Lsn(table.commit_lsn)),
                    "seconds": round(table.seconds, 3),
                }
                for table in shown
            ],
            "more_tables": others,
        }


@fact
class TableFailed(Fact):
    """A table could not follow, or could not be tidied up. It is tried again."""

    event: ClassVar[str] = "table.retrying"
    level: ClassVar[Level] = "warning"
    stopped: ClassVar[bool] = False
    table: str
    message: str
    hint: str


@fact
class TableStopped(TableFailed):
    """A table could not follow, and is left as it is until the next start; the others go on. `hint` says what to do."""

    event: ClassVar[str] = "table.stopped"
    level: ClassVar[Level] = "error"
    stopped: ClassVar[bool] = True


@fact
class TableResumed(Fact):
    """A table that had stopped, in this process or in one before it, goes on."""

    event: ClassVar[str] = "table.resumed"
    table: str


@fact
class TableReloading(Fact):
    """A table that could not follow is read again from its database. `waiting`: for what, or empty."""

    event: ClassVar[str] = "table.reloading"
    level: ClassVar[Level] = "warning"
    table: str
    message: str
    waiting: str = ""


@fact
class TableReloaded(Fact):
    """The table was read again, and goes on from `commit_lsn`."""

    event: ClassVar[str] = "table.reloaded"
    table: str
    rows: int
    quarantined: int
    commit_lsn: int
    seconds: float


@fact
class TableLoaded(Fact):
    """`--snapshot` read the table whole, as of `commit_lsn`."""

    event: ClassVar[str] = "table.loaded"
    table: str
    rows: int
    quarantined: int
    commit_lsn: int
    seconds: float


@fact
class LoadWaiting(Fact):
    """A snapshot waits for open transactions at the source, or for the lock on a table: `waiting` names the holder."""

    event: ClassVar[str] = "load.waiting"
    level: ClassVar[Level] = "warning"
    waiting: str
    waited_s: float


@fact
class LoadRestarted(Fact):
    """A snapshot was lost while tables were read at it. Those that are left are read at a new one."""

    event: ClassVar[str] = "load.restarted"
    level: ClassVar[Level] = "warning"
    message: str


@fact
class Replayed(Fact):
    """Quarantine was replayed for a table: `replayed` records are in the table now, or lie before its last truncate or
    snapshot. `left` stay: they are no changes, or lack values of a row that was moved to another key. `gone` are in the
    topic no more, or the log lacks changes after them.
    """

    event: ClassVar[str] = "quarantine.replayed"
    table: str
    replayed: int
    left: int
    gone: int


@fact
class SetChanged(Fact):
    """With consistent batches: from the common LSN `consistent_lsn` on, the tables `without` are not part of the common
    points.
    """

    event: ClassVar[str] = "points.changed"
    level: ClassVar[Level] = "warning"
    consistent_lsn: int
    without: tuple[str, ...]


@fact
class TableRolledBack(Fact):
    """Somebody rolled a target table back or restored it. The mirror reads the later changes from the topic again, so
    the table will equal its source. `hint` says what to do.
    """

    event: ClassVar[str] = "table.rollback"
    level: ClassVar[Level] = "warning"
    table: str
    message: str
    hint: str


@fact
class StatesMissing(Fact):
    """A table of states (`tables.scd2`) lacks what its rows were between two LSNs, because the log lacks these changes
    or they cannot be brought to the columns of now. States of before end at the truncate record at `until_lsn`.
    """

    event: ClassVar[str] = "states.missing"
    level: ClassVar[Level] = "warning"
    table: str
    states: str
    after_lsn: int
    until_lsn: int
    hint: str = "Take the states of this time from a backup of the log, if they matter."


@fact
class ChangesMissing(Fact):
    """A changelog that is folded from the log lacks the changes between two LSNs, because the log lacks them. The
    changelog begins at `until_lsn`, or continues with the truncate record at `until_lsn`.
    """

    event: ClassVar[str] = "changes.missing"
    level: ClassVar[Level] = "warning"
    table: str
    changelog: str
    after_lsn: int
    until_lsn: int
    hint: str = "Take the changes of this time from a backup of the log, if they matter."


@fact
class TableTakenOver(Fact):
    """A table that a mirror without a log made is folded from the log from now on. No row was read again. `target`:
    name of the table or of its changelog in SQL. `lsn`: the fold begins after it.
    """

    event: ClassVar[str] = "table.takeover"
    table: str
    target: str
    lsn: int


@fact
class TableMaintained(Fact):
    """Small files were written together, former versions let go."""

    event: ClassVar[str] = "table.maintained"
    table: str
    compacted_files: int
    written_files: int
    expired_versions: int


@fact
class LogShortened(Fact):
    """Retention deleted `rows` records from the log, which were appended before the day `before`. `held` is the number
    of topics whose old records were kept, because a table has not folded them.
    """

    event: ClassVar[str] = "log.shortened"
    table: str
    before: str
    rows: int
    held: int


@fact
class LogExpired(Fact):
    """The log deleted changes that the table does not have, because they were older than `maintenance.log_held_days`.
    The table must be read again. `hint` has the command.
    """

    event: ClassVar[str] = "log.expired"
    level: ClassVar[Level] = "error"
    table: str
    message: str
    hint: str


@fact
class TableLaidOut(Fact):
    """A mirror was written again in another layout. If nothing differs before and after, it was left alone.

    `before` and `after` are numbers of buckets. `deletes_before` and `deletes_after` say how deleted rows are kept,
    `fields_before` and `fields_after` by which fields the mirror is partitioned.
    """

    event: ClassVar[str] = "table.relayout"
    table: str
    before: int
    after: int
    deletes_before: str
    deletes_after: str
    seconds: float
    fields_before: tuple[str, ...] = ()
    fields_after: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """It was written again."""
        before = (self.before, self.deletes_before, self.fields_before)
        return before != (self.after, self.deletes_after, self.fields_after)


@fact
class TopicUnfit(Fact):
    """A topic whose settings let records go that the mirror needs."""

    event: ClassVar[str] = "topic.unfit"
    level: ClassVar[Level] = "warning"
    topic: str
    message: str
    hint: str


@fact
class Retrying(Fact):
    """Something that all tables need is away. The stream starts again after `wait_s`."""

    event: ClassVar[str] = "mirror.retrying"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str
    wait_s: float


def first_lines(error: object) -> str:
    """The first words of an error of Spark or Java. A stack trace follows them."""
    return " ".join(str(error).split("\n\n")[0].split())[:600]


_HEAD: Final = """
## The mirror

Made from `cdcd/mirror/watching/progress.py`. `cdcd mirror` logs them with `log.format: json`, and `fatal` when an error
ends it.

| event | level | meaning | fields |
|---|---|---|---|
"""


def markdown() -> str:
    """The mirror's part of docs/events.md."""
    return _HEAD + rows(facts_of(globals()))
