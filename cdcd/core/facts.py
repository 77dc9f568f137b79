"""Facts: events that happen rarely and matter to an operator. Whoever reports a fact does not know who listens.

A fact is reported where it happens, by calling the `Observer` that was handed in. `cdcd.telemetry.logs` writes
facts to the log; tests collect them in a list. What happens often (rows, batches, positions) is counted in
`cdcd.telemetry.state.Telemetry` instead.

The name of an event is constant, and its details are fields, so that a search for the name finds every occurrence.
Fields hold values (an `Lsn`, seconds, bytes), never sentences made of them. docs/events.md is generated from this
module.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final, Literal

from cdcd import __version__
from cdcd.build import is_compiled, note

Level = Literal["info", "warning", "error", "critical"]
Side = Literal["postgres", "kafka", "registry"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened."""

    event: ClassVar[str]
    level: ClassVar[Level] = "info"

    @classmethod
    def fields_logged(cls) -> tuple[str, ...]:
        """The names of what `logged` gives."""
        return tuple([each.name for each in fields(cls)])

    def logged(self) -> dict[str, object]:
        """The fields of the event's line in the log. A kind of fact that has more than a line should show says less."""
        return {name: getattr(self, name) for name in self.fields_logged()}


Observer = Callable[[Fact], None]


def unheard(_fact: Fact) -> None:
    """An observer that passes over everything."""


def cut_short(text: str, most: int) -> str:
    """The text, or its first `most` characters and an ellipsis: facts and errors repeat what strangers wrote."""
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(frozen=True, slots=True)
class Started(Fact):
    """The process has read its configuration and begins to connect. `http` is the address that it serves, or empty.

    `note` says what it costs if the code is not compiled.
    """

    event: ClassVar[str] = "daemon.started"
    name: str
    http: str
    version: str = __version__
    compiled: bool = field(default_factory=is_compiled)
    note: str = field(default_factory=note)


@dataclass(frozen=True, slots=True)
class StandbyWaiting(Fact):
    """Another instance holds the advisory lock. This instance takes over when the other one releases the lock."""

    event: ClassVar[str] = "standby.waiting"
    slot: str
    holder_pid: int | None
    holder: str
    client: str = ""
    """The address of the other instance, as PostgreSQL sees it."""


@dataclass(frozen=True, slots=True)
class LockForeign(Fact):
    """A session of a role without REPLICATION holds the pipeline's advisory lock. cdcd goes on without this lock, and
    other instances of this version respect it all the same. Instances of earlier versions wait for the session to end.
    Find out why `role` does this. `holder` is the name that the session gives itself.
    """

    event: ClassVar[str] = "lock.foreign"
    level: ClassVar[Level] = "warning"
    slot: str
    pid: int | None
    role: str
    holder: str
    client: str
    hint: str


@dataclass(frozen=True, slots=True)
class LockAcquired(Fact):
    """This instance now holds the advisory lock of the slot: it is the active one, and only it may write."""

    event: ClassVar[str] = "lock.acquired"
    slot: str


@dataclass(frozen=True, slots=True)
class LockLost(Fact):
    """The connection that held the advisory lock ended. `sqlstate` is empty if the server gave no reason."""

    event: ClassVar[str] = "lock.lost"
    level: ClassVar[Level] = "warning"
    sqlstate: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionEnded(Fact):
    """cdcd ended a session that a former active instance had left behind. `held` says what the session held: the
    advisory lock (it was silent for longer than the lease), or the replication stream.
    """

    event: ClassVar[str] = "session.ended"
    level: ClassVar[Level] = "warning"
    held: Literal["lock", "stream"]
    pid: int | None
    silent_s: float


@dataclass(frozen=True, slots=True)
class SlotCreated(Fact):
    """cdcd created the replication slot. Transactions that commit after `position` are delivered."""

    event: ClassVar[str] = "slot.created"
    slot: str
    position: str


@dataclass(frozen=True, slots=True)
class SlotDropped(Fact):
    """cdcd dropped the slot that this start had made, because the start failed before anything was delivered. The slot
    holds no WAL any more, and the next start makes a new one.
    """

    event: ClassVar[str] = "slot.dropped"
    slot: str


@dataclass(frozen=True, slots=True)
class SlotKept(Fact):
    """The process ends after its first start, and the slot that it made stays. PostgreSQL keeps WAL for the slot.
    `reason` says why the slot stays.
    """

    event: ClassVar[str] = "slot.kept"
    level: ClassVar[Level] = "warning"
    slot: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class TwoPhaseEnded(Fact):
    """cdcd took two_phase from the slot, because postgres.two_phase is false. Prepared transactions are sent at their
    COMMIT PREPARED from now on.
    """

    event: ClassVar[str] = "twophase.ended"
    slot: str


@dataclass(frozen=True, slots=True)
class TwoPhaseKept(Fact):
    """postgres.two_phase is false, but the slot has two_phase, and PostgreSQL before 18 cannot take it away. The server
    sends prepared transactions at PREPARE. cdcd still delivers them at COMMIT PREPARED, and nothing is lost.
    """

    event: ClassVar[str] = "twophase.kept"
    level: ClassVar[Level] = "warning"
    slot: str


@dataclass(frozen=True, slots=True)
class RecordSettingChanged(Fact):
    """Somebody has changed a `setting` that decides how rows become records, since the pipeline ran last. The records
    that are in the topics stay as they are. `effect` says what that means for readers.
    """

    event: ClassVar[str] = "settings.changed"
    level: ClassVar[Level] = "warning"
    setting: str
    effect: str
    hint: str


@dataclass(frozen=True, slots=True)
class SlotWaiting(Fact):
    """The slot cannot be used yet, because a walsender holds it, or because its creation waits for open
    transactions.
    """

    event: ClassVar[str] = "slot.waiting"
    level: ClassVar[Level] = "warning"
    slot: str
    message: str


@dataclass(frozen=True, slots=True)
class PublicationCreated(Fact):
    """cdcd created the publication."""

    event: ClassVar[str] = "publication.created"
    publication: str


@dataclass(frozen=True, slots=True)
class TopicCreated(Fact):
    """cdcd created a topic."""

    event: ClassVar[str] = "topic.created"
    topic: str


@dataclass(frozen=True, slots=True)
class TopicLost(Fact):
    """The topic of a table had records and was deleted, so cdcd created it again. It has only the changes from now on.

    `command` reads the table's rows into it.
    """

    event: ClassVar[str] = "topic.lost"
    level: ClassVar[Level] = "warning"
    topic: str
    table: str
    command: str


@dataclass(frozen=True, slots=True)
class PartitionsAdded(Fact):
    """Somebody added partitions to a topic. Within minutes, producers send most keys to other partitions than before.
    So the records of one row lie in two partitions, between which there is no order. cdcd looks every 30 seconds while
    it runs (topics.on_added_partitions).
    """

    event: ClassVar[str] = "topic.partitions"
    level: ClassVar[Level] = "warning"
    topic: str
    before: int
    partitions: int
    hint: str


@dataclass(frozen=True, slots=True)
class CheckpointRead(Fact):
    """The position from which this session resumes. `found` is false if there is no checkpoint: then it
    is the slot's.
    """

    event: ClassVar[str] = "checkpoint.read"
    topic: str
    found: bool
    position: str


@dataclass(frozen=True, slots=True)
class GapAccepted(Fact):
    """The slot does not continue where the checkpoint ends, and --accept-gap or snapshot.mode: when_needed accepts
    that. The changes between `begins` and `ends` are not delivered. With when_needed, the topics of
    `ended` tables are healed, or truncate records end their former rows and they are read again; `tables` names the
    first ones.
    """

    event: ClassVar[str] = "gap.accepted"
    level: ClassVar[Level] = "warning"
    message: str
    position: str
    begins: str = ""
    ends: str = ""
    tables: list[str] = field(default_factory=list)
    ended: int = 0


@dataclass(frozen=True, slots=True)
class TableHealed(Fact):
    """After a gap, the table's topic was compared with the table, and got these numbers of records, so that it equals
    the table at the new slot's first position.
    """

    event: ClassVar[str] = "table.healed"
    table: str
    deletes: int
    updates: int
    inserts: int


@dataclass(frozen=True, slots=True)
class TableNotHealed(Fact):
    """After a gap, the table's topic cannot be compared with the table for certain. A truncate record ends the former
    rows instead, and the table is read again, unless the reason says that it is not read.
    """

    event: ClassVar[str] = "table.unhealed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class GapHealed(Fact):
    """The topics of `tables` tables were compared with the tables after a gap, and got these numbers of records. The
    stream begins when the other tables are read.
    """

    event: ClassVar[str] = "gap.healed"
    tables: int
    deletes: int
    updates: int
    inserts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StreamStarted(Fact):
    """PostgreSQL sends changes. cdcd skips those before `position`, because the broker has them already."""

    event: ClassVar[str] = "stream.started"
    slot: str
    server_version: int
    protocol: int
    streaming: str
    position: str


@dataclass(frozen=True, slots=True)
class StreamingPaused(Fact):
    """Streaming is off until this transaction is delivered, because its streamed form does not tell which messages were
    rolled back, or which columns are the key.
    """

    event: ClassVar[str] = "streaming.paused"
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class BinaryPaused(Fact):
    """A column has a type that cdcd can read in text form only. This process receives all values as text
    from now on.
    """

    event: ClassVar[str] = "binary.paused"
    level: ClassVar[Level] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class ConversionPaused(Fact):
    """PostgreSQL cannot convert a text to UTF-8, because its bytes have no character there. This process receives texts
    in the server's encoding from now on, and decodes them itself. The events `value.unwritable` name the columns.
    """

    event: ClassVar[str] = "conversion.paused"
    level: ClassVar[Level] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class StreamingResumed(Fact):
    """The transaction that could not be streamed is delivered. Large transactions are streamed again."""

    event: ClassVar[str] = "streaming.resumed"
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class SnapshotStarted(Fact):
    """cdcd begins to read tables: at the slot's snapshot before streaming (`exported`), or beside it
    (`incremental`).
    """

    event: ClassVar[str] = "snapshot.started"
    tables: int
    bytes: int
    method: str


@dataclass(frozen=True, slots=True)
class SnapshotNeeded(Fact):
    """cdcd heals the topics or reads the tables again (snapshot.mode: when_needed), because the slot
    is unusable or does not continue where the checkpoint ends. Where a table is read again, a truncate record ends the
    former rows in its topic. Without truncate records (topics.truncate), rows of such a topic that were deleted in the
    meantime stay, and `hint` says how to find them.
    """

    event: ClassVar[str] = "snapshot.needed"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotResumed(Fact):
    """A snapshot continues with the tables and pages that an earlier session did not deliver. `was` is its former
    method.
    """

    event: ClassVar[str] = "snapshot.resumed"
    tables: int
    rows: int
    was: str


@dataclass(frozen=True, slots=True)
class SnapshotProgressed(Fact):
    """Progress of reading a table. `left_s` is estimated from the pace so far."""

    event: ClassVar[str] = "snapshot.progress"
    table: str
    rows: int
    bytes: int
    share: float
    rows_per_s: int
    left_s: int | None


@dataclass(frozen=True, slots=True)
class SnapshotWaiting(Fact):
    """Before cdcd reads a table, it waits until the transactions that write to it have ended, or until a lock is free.

    `writers` names the transactions as `<virtual transaction> <pid>` with role and application, or says which lock.
    """

    event: ClassVar[str] = "snapshot.waiting"
    level: ClassVar[Level] = "warning"
    table: str
    writers: list[str]


@dataclass(frozen=True, slots=True)
class SnapshotPostponed(Fact):
    """Somebody has locked a table, so cdcd does not read the rest of it at the slot's snapshot. The other tables are
    read. cdcd reads this table beside the stream as soon as the lock is free.

    `reason` says who has locked the table.
    """

    event: ClassVar[str] = "snapshot.postponed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class SnapshotRestarted(Fact):
    """cdcd reads a table from its beginning again. Rows that were delivered already come once more, with op r."""

    event: ClassVar[str] = "snapshot.restarted"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class TableReplaced(Fact):
    """Another table has taken the name of a published one. Its changes go to the same topic.

    Or a table was renamed, and `former_oid` is its own oid. The records of its former name are in another topic, or in
    none (`tables.exclude`).

    `truncated`: a truncate record ended the rows that the topic had. `read`: the table's rows are read.
    """

    event: ClassVar[str] = "table.replaced"
    level: ClassVar[Level] = "warning"
    table: str
    former_oid: int
    oid: int
    truncated: bool
    read: bool


@dataclass(frozen=True, slots=True)
class TableAdded(Fact):
    """A table was added to the publication, maybe again, or was renamed and is not read by itself
    (`snapshot.mode: never`, `snapshot.exclude`). Its existing rows are delivered only if `read` is true.

    `rows` is an estimate of the existing rows by the server's statistics. `command` is the command that reads them.
    """

    event: ClassVar[str] = "table.added"
    table: str
    rows: int
    read: bool
    command: str


@dataclass(frozen=True, slots=True)
class PublicationChanged(Fact):
    """cdcd added tables to the publication or dropped tables from it (postgres.publication_changes).

    `added` and `dropped` name the first 10 tables; the counts are of all.
    """

    event: ClassVar[str] = "publication.changed"
    publication: str
    added: list[str]
    added_count: int
    dropped: list[str]
    dropped_count: int


@dataclass(frozen=True, slots=True)
class PublicationDiffers(Fact):
    """The publication lacks tables that the configuration names, or has tables that it does not name, and cdcd does not
    change that. PostgreSQL sends no changes of a table that the publication lacks.

    `lacking` and `extra` name the first 10 tables; the counts are of all. `reason` says why cdcd does not change the
    publication. `command` is for psql.
    """

    event: ClassVar[str] = "publication.differs"
    level: ClassVar[Level] = "warning"
    publication: str
    lacking: list[str]
    lacking_count: int
    extra: list[str]
    extra_count: int
    reason: str
    command: str


@dataclass(frozen=True, slots=True)
class PartitionAttached(Fact):
    """A partitioned table that is published as a whole got a partition. PostgreSQL sends nothing of the rows that the
    partition had before.

    `rows` is an estimate of its rows by the server's statistics; 1 if it has rows that the statistics have not counted,
    or if its size is not known because another session has locked it; 0 if it has none, or was created as a partition.
    `command` reads the table again; it is empty if `rows` is 0.
    """

    event: ClassVar[str] = "table.attached"
    table: str
    partition: str
    rows: int
    command: str


@dataclass(frozen=True, slots=True)
class PartitionDetached(Fact):
    """A partition of a table that is published as a whole was detached or dropped. PostgreSQL sends nothing of that, so
    readers of the topic still have its rows.
    """

    event: ClassVar[str] = "table.detached"
    level: ClassVar[Level] = "warning"
    table: str
    partition: str


@dataclass(frozen=True, slots=True)
class PartitionTruncated(Fact):
    """A partition of a table that is published as a whole was truncated by its own name. PostgreSQL sends nothing of
    that, so readers of the topic still have its rows. TRUNCATE of the partitioned table is sent.
    """

    event: ClassVar[str] = "table.truncated"
    level: ClassVar[Level] = "warning"
    table: str
    partition: str


@dataclass(frozen=True, slots=True)
class TypeDropped(Fact):
    """A column has a type that PostgreSQL's catalog does not know any more, because the type was dropped after the
    change was written. cdcd writes the column's values as text, arrays of it included.
    """

    event: ClassVar[str] = "type.dropped"
    level: ClassVar[Level] = "warning"
    table: str
    column: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class SnapshotTableFinished(Fact):
    """cdcd has read every row of a table, and Kafka holds them.

    `seconds` is the time from the beginning of the reading. A session that ends right after the delivery may not report
    it; `cdcd snapshot status` shows it all the same.
    """

    event: ClassVar[str] = "table.read"
    table: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SnapshotTableFailed(Fact):
    """The snapshot of a table failed, at its start or later. The changes of the table are streamed as before."""

    event: ClassVar[str] = "table.failed"
    level: ClassVar[Level] = "error"
    table: str
    error: str


@dataclass(frozen=True, slots=True)
class TableSetAside(Fact):
    """A table is set aside because of a fault that belongs to it alone: from `lsn` on, its changes have no records. All
    other tables go on. Consumers of its topic must not take what they have for the table's present rows.

    `fault` is the kind of the fault, `reason` what happened, and `hint` what to do about it. `command` then lets the
    table come back: its former rows end, and it is read again. `by_itself`: cdcd also tries that by itself, after a
    while that is longer each time.
    """

    event: ClassVar[str] = "table.aside"
    level: ClassVar[Level] = "error"
    table: str
    oid: int
    topic: str
    fault: str
    lsn: str
    reason: str
    hint: str
    command: str
    by_itself: bool


@dataclass(frozen=True, slots=True)
class TableResumed(Fact):
    """A table that was set aside because of `fault` comes back: its former rows end, its rows are read again (`read`),
    and its changes of transactions that commit from `lsn` on have records. `attempt` counts how often it has come back.
    If the fault is still there, the table is set aside again.
    """

    event: ClassVar[str] = "table.returned"
    table: str
    oid: int
    fault: str
    lsn: str
    attempt: int
    read: bool


@dataclass(frozen=True, slots=True)
class TableLeft(Fact):
    """A table that was set aside because of `fault` was dropped, or is not published any more. So it is not set aside
    any more. Its topic keeps what it has. If the table is published again, its former rows end, and it is read.
    """

    event: ClassVar[str] = "table.left"
    table: str
    oid: int
    fault: str
    lsn: str


@dataclass(frozen=True, slots=True)
class SnapshotFinished(Fact):
    """All snapshots are finished, and Kafka holds their rows. `rows` is the number of rows delivered by snapshots
    since the pipeline was created.
    """

    event: ClassVar[str] = "snapshot.finished"
    rows: int


@dataclass(frozen=True, slots=True)
class SnapshotConditionDropped(Fact):
    """The checkpoint has a snapshot request with a condition (`--where`), and nothing proves that this pipeline wrote
    it. cdcd runs nothing as SQL that a topic says, so it does not read the table. To ask again, run `command` with the
    condition. With `topics.checkpoint_key`, such requests survive a restart.
    """

    event: ClassVar[str] = "condition.dropped"
    level: ClassVar[Level] = "warning"
    table: str
    request: str
    command: str


@dataclass(frozen=True, slots=True)
class SnapshotSignalled(Fact):
    """cdcd accepted a snapshot request (logical message `cdcd.snapshot`): to start, pause, resume or cancel."""

    event: ClassVar[str] = "snapshot.signalled"
    action: str
    tables: list[str]


@dataclass(frozen=True, slots=True)
class SnapshotPartitions(Fact):
    """A snapshot request names a partitioned table that is published through its partitions, so cdcd reads them.

    `partitions` has the first ten of `count` names.
    """

    event: ClassVar[str] = "snapshot.partitions"
    table: str
    partitions: list[str]
    count: int


@dataclass(frozen=True, slots=True)
class SnapshotSignalRefused(Fact):
    """cdcd rejected a snapshot request (logical message `cdcd.snapshot`), because it is invalid, has no token that the
    daemon knows, or is not allowed. If there are many, there is one event a second, and `left_out` says how many
    requests were rejected without an event before it.
    """

    event: ClassVar[str] = "snapshot.refused"
    level: ClassVar[Level] = "warning"
    reason: str
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ValueUnwritable(Fact):
    """A row has a legal value for which format and modes have no form. Null stands for the value in the record (in a
    column of the key, what docs/records.md says), and the record's header `cdcd.unwritable` names the column. The event
    comes once a minute for a column. `left_out` is how many more values there were since the last such event.
    """

    event: ClassVar[str] = "value.unwritable"
    level: ClassVar[Level] = "warning"
    table: str
    column: str
    lsn: str
    reason: str
    left_out: int
    hint: str


@dataclass(frozen=True, slots=True)
class EventRefused(Fact):
    """An event of the outbox could not be published. A logical message (no `table`) is in topics.message, unless it is
    larger than outbox.message_bytes_max; a row is in the topic of its table. Correct what `reason` names, and send the
    event again. `left_out` is how many more were refused since the last such report.
    """

    event: ClassVar[str] = "outbox.refused"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@dataclass(frozen=True, slots=True)
class FilterFailed(Fact):
    """A filter (filters.tables) has no answer for a row, or for any row of the table, as `reason` says. What becomes of
    such rows, the filter's on_error says; a row that is updated or deleted is taken for one that the topic has. Correct
    the filter's expression: `row.x != null && row.x > 5` where a column can be NULL. `left_out` is how many more rows
    were without an answer since the last such report.
    """

    event: ClassVar[str] = "filter.failed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@dataclass(frozen=True, slots=True)
class RouteFailed(Fact):
    """A rule of routes.tables has no answer for a row, or for any row of the table, as `reason` says. Where such rows
    go, the on_error of the table's routes says. Correct the rule's expression: `row.x != null && row.x > 5` where a
    column can be NULL. `left_out` is how many more rows were without an answer since the last such report.
    """

    event: ClassVar[str] = "route.failed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@dataclass(frozen=True, slots=True)
class FlatteningCollision(Fact):
    """A table has a column with the name of a field that event_flattening adds. Its flattened records have the column
    and leave the added field out. Choose another name: `event_flattening.add_fields_prefix`, or `<field>:<name>`.
    """

    event: ClassVar[str] = "flattening.collision"
    level: ClassVar[Level] = "warning"
    table: str
    fields: str
    topic: str


@dataclass(frozen=True, slots=True)
class ReconnectScheduled(Fact):
    """A session failed for a reason that is likely to pass. The next session begins after `wait_s`."""

    event: ClassVar[str] = "reconnect.scheduled"
    level: ClassVar[Level] = "warning"
    side: Side
    message: str
    hint: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class PostgresStopping(Fact):
    """PostgreSQL shuts down, and waits until cdcd confirms what it received. After `grace_s`, cdcd
    closes the stream.
    """

    event: ClassVar[str] = "postgres.stopping"
    level: ClassVar[Level] = "warning"
    sqlstate: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class RelationChanged(Fact):
    """A table changed: columns were `added` or `dropped` (each with its type), `renamed` (the new name by the former
    one) or `retyped` (`<former type> -> <new type>` by name). Or it has another `key`, name (`former_name`) or
    `replica_identity`. Its records have the new form from now on.
    """

    event: ClassVar[str] = "relation.changed"
    schema: str
    table: str
    added: list[str]
    dropped: list[str]
    renamed: dict[str, str]
    retyped: dict[str, str]
    key: list[str] | None
    former_name: str
    replica_identity: str

    def logged(self) -> dict[str, object]:
        """Only what changed."""
        found = {name: getattr(self, name) for name in self.fields_logged()}
        return {
            name: value for name, value in found.items() if value or (name == "key" and value is not None)
        }


@dataclass(frozen=True, slots=True)
class ColumnRuleUnmatched(Fact):
    """A rule of `columns` matches no column of a published table, so it protects nothing. Compare the pattern with the
    names in PostgreSQL: a name that is spelled wrong leaves the values in clear.
    """

    event: ClassVar[str] = "columns.unmatched"
    level: ClassVar[Level] = "warning"
    rule: str


@dataclass(frozen=True, slots=True)
class FilterUnmatched(Fact):
    """A filter of `filters.tables` matches no published table, so it filters nothing. Compare the pattern with the
    names in PostgreSQL: if a name is spelled wrong, the topic of the table has all of its rows.
    """

    event: ClassVar[str] = "filters.unmatched"
    level: ClassVar[Level] = "warning"
    table: str


@dataclass(frozen=True, slots=True)
class RoutesUnmatched(Fact):
    """A pattern of `routes.tables` matches no published table, so its rules route nothing. Compare the pattern with the
    names in PostgreSQL: if a name is spelled wrong, all rows of the table go to its own topic.
    """

    event: ClassVar[str] = "routes.unmatched"
    level: ClassVar[Level] = "warning"
    table: str


@dataclass(frozen=True, slots=True)
class KeyRuleUnmatched(Fact):
    """A pattern of key.columns matches no published table. Compare it with the names in PostgreSQL."""

    event: ClassVar[str] = "key.unmatched"
    level: ClassVar[Level] = "warning"
    rule: str


@dataclass(frozen=True, slots=True)
class KeyRepeats(Fact):
    """Several rows of a table may have the same key, as key.columns chooses it. No snapshot beside the stream reads the
    table, and `cdcd mirror` and `cdcd verify` leave it out.
    """

    event: ClassVar[str] = "key.repeats"
    level: ClassVar[Level] = "warning"
    table: str


@dataclass(frozen=True, slots=True)
class PartitionRuleUnmatched(Fact):
    """A pattern of partitioner.columns matches no published table. Compare it with the names in PostgreSQL."""

    event: ClassVar[str] = "partitioner.unmatched"
    level: ClassVar[Level] = "warning"
    rule: str


@dataclass(frozen=True, slots=True)
class RowsMove(Fact):
    """Columns that are not of the key choose the partitions of a table (partitioner.columns). Records of one key may
    lie in several partitions, and `cdcd mirror` and `cdcd verify` leave the table out. docs/partitions.md says what
    consumers have to do.
    """

    event: ClassVar[str] = "partitioner.moves"
    level: ClassVar[Level] = "warning"
    table: str


@dataclass(frozen=True, slots=True)
class FieldRuleUnmatched(Fact):
    """A pattern of fields.tables matches no published table, or no table that it matches has a column that it renames.
    Compare the names with those in PostgreSQL. Columns that are not there are not renamed.
    """

    event: ClassVar[str] = "fields.unmatched"
    level: ClassVar[Level] = "warning"
    reason: str


@dataclass(frozen=True, slots=True)
class OutboxUnpublished(Fact):
    """The publication does not have a table of outbox.tables, so that no row of it is an event. Add the table to the
    publication, or compare the name with the one in PostgreSQL.
    """

    event: ClassVar[str] = "outbox.unpublished"
    level: ClassVar[Level] = "warning"
    table: str


@dataclass(frozen=True, slots=True)
class TablesLeftOut(Fact):
    """tables.include and tables.exclude leave out `count` of the published tables. `tables` has the first ten names.
    PostgreSQL sends their changes all the same.
    """

    event: ClassVar[str] = "tables.excluded"
    tables: list[str]
    count: int


@dataclass(frozen=True, slots=True)
class TablePatternUnmatched(Fact):
    """A pattern of tables.include or tables.exclude matches no published table, so it takes in or leaves out nothing.
    Compare it with the names in PostgreSQL: if a name is spelled wrong, the table's changes are in Kafka after all.
    """

    event: ClassVar[str] = "tables.unmatched"
    level: ClassVar[Level] = "warning"
    pattern: str


@dataclass(frozen=True, slots=True)
class TransactionLarge(Fact):
    """A source transaction is too large for one Kafka transaction (kafka.transaction.whole_bytes_max): it spans
    several.
    """

    event: ClassVar[str] = "transaction.large"
    xid: int
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class SpoolSpilled(Fact):
    """The changes of open and prepared transactions no longer fit into memory, so cdcd writes them to disk."""

    event: ClassVar[str] = "spool.spilled"
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class PreparedOld(Fact):
    """A prepared transaction has been waiting for COMMIT PREPARED or ROLLBACK PREPARED. The server keeps the WAL since
    then.
    """

    event: ClassVar[str] = "prepared.old"
    level: ClassVar[Level] = "warning"
    gid: str
    age_s: float
    held_at: str


@dataclass(frozen=True, slots=True)
class PrepareMissing(Fact):
    """A COMMIT PREPARED came without its PREPARE. Either the transaction only locked rows (PostgreSQL 15 to 17), or its
    changes are missing.
    """

    event: ClassVar[str] = "prepare.missing"
    level: ClassVar[Level] = "warning"
    gid: str
    xid: int
    commit_lsn: str


@dataclass(frozen=True, slots=True)
class RecordOversized(Fact):
    """A record is larger than the broker accepts. cdcd sent it where kafka.oversized says."""

    event: ClassVar[str] = "record.oversized"
    level: ClassVar[Level] = "warning"
    topic: str
    record_bytes: int
    oversized: str
    went_to: str


@dataclass(frozen=True, slots=True)
class MessagesKept(Fact):
    """`postgres.messages` is not given, and a former version of cdcd delivered all logical messages by default. So this
    pipeline goes on delivering them to `topic`, although any role that may connect can send them.
    """

    event: ClassVar[str] = "messages.kept"
    level: ClassVar[Level] = "warning"
    topic: str
    hint: str = (
        "Set postgres.messages: true if readers need these messages, or postgres.messages: asked to drop the messages "
        "that "
        "nobody asks for."
    )


@dataclass(frozen=True, slots=True)
class LargeMessageReceived(Fact):
    """PostgreSQL has sent a message of more than 16 MiB: a row of `table`, or a logical message. cdcd says so before it
    handles the message, because the message needs memory: three times its size, and twice its record where that is
    delivered.
    """

    event: ClassVar[str] = "message.large"
    level: ClassVar[Level] = "info"
    table: str
    lsn: str
    bytes: int
    memory_limit: int | None


@dataclass(frozen=True, slots=True)
class LargeMessageComing(Fact):
    """PostgreSQL is sending a message of at least `bytes` bytes, more than 16 MiB, behind `lsn`. libpq gives it to cdcd
    when all of it is there.
    """

    event: ClassVar[str] = "message.coming"
    level: ClassVar[Level] = "info"
    lsn: str
    bytes: int
    memory_limit: int | None


@dataclass(frozen=True, slots=True)
class LargeMessageEndedRun(Fact):
    """The last run of this pipeline was killed while it received or handled a message of at least this size: a row of
    `table`, or a logical message. Without a table, `lsn` is where the message before it was.
    """

    event: ClassVar[str] = "message.fatal"
    level: ClassVar[Level] = "error"
    table: str
    lsn: str
    bytes: int
    memory_limit: int | None
    hint: str


@dataclass(frozen=True, slots=True)
class StreamRenewed(Fact):
    """A message of more than 16 MiB is delivered and confirmed. cdcd connects again, because libpq keeps a buffer of
    that size as long as the connection is open.
    """

    event: ClassVar[str] = "stream.renewed"
    level: ClassVar[Level] = "info"
    reason: str


@dataclass(frozen=True, slots=True)
class MessageOversized(Fact):
    """A logical message is larger than the broker accepts. Its record has no value; the headers `cdcd.size` and
    `cdcd.sha256` say which value it had.
    """

    event: ClassVar[str] = "message.oversized"
    level: ClassVar[Level] = "error"
    topic: str
    record_bytes: int
    hint: str = (
        "Raise max.message.bytes of the topic (message.max.bytes of the broker) and message.max.bytes in "
        "kafka.properties, or set kafka.oversized to claim_check, so that the next message of that size keeps its "
        "value."
    )


@dataclass(frozen=True, slots=True)
class TransactionTimeoutUnknown(Fact):
    """This principal may not read the brokers' transaction.max.timeout.ms. Kafka transactions get this
    timeout instead.
    """

    event: ClassVar[str] = "timeout.unknown"
    level: ClassVar[Level] = "warning"
    message: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class KafkaRetry(Fact):
    """A request to Kafka failed for a reason that is likely to pass. cdcd repeats it after `wait_s`."""

    event: ClassVar[str] = "kafka.retry"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class ShutdownRequested(Fact):
    """A signal asked the process to end. What is in flight is finished first. A second signal ends it at once."""

    event: ClassVar[str] = "shutdown.requested"
    signal: str


@dataclass(frozen=True, slots=True)
class ShutdownFinished(Fact):
    """The process ends as asked. The broker has everything before `flushed_lsn`."""

    event: ClassVar[str] = "shutdown.finished"
    flushed_lsn: int


@dataclass(frozen=True, slots=True)
class ShutdownForced(Fact):
    """shutdown_timeout_s is over, so the process ends at once. What the broker does not have yet is sent at the next
    start.
    """

    event: ClassVar[str] = "shutdown.forced"
    level: ClassVar[Level] = "warning"
    timeout_s: float
    flushed_lsn: int


@dataclass(frozen=True, slots=True)
class Failed(Fact):
    """The process ends, because a person must act; `hint` says how. PostgreSQL was told no position beyond what the
    broker, or the durable log, has.
    """

    event: ClassVar[str] = "fatal"
    level: ClassVar[Level] = "critical"
    error: str
    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class ConfigReloaded(Fact):
    """SIGHUP had the configuration read again. The keys in `at_once` count from now on, and those in `next_session`
    when cdcd connects next. Those in `needs_restart` differ too, and count after a restart only.
    """

    event: ClassVar[str] = "config.reloaded"
    at_once: list[str]
    next_session: list[str]
    needs_restart: list[str]


@dataclass(frozen=True, slots=True)
class ConfigRefused(Fact):
    """SIGHUP had the configuration read again, and it is wrong. The configuration in effect stays."""

    event: ClassVar[str] = "config.refused"
    level: ClassVar[Level] = "error"
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Crashed(Fact):
    """The process ends because of a bug in cdcd. PostgreSQL was told no position beyond what the broker has. Keep the
    log, and report the bug.
    """

    event: ClassVar[str] = "crash"
    level: ClassVar[Level] = "critical"
    error: str
    message: str
    traceback: str


def facts_of(names: Mapping[str, object]) -> list[type[Fact]]:
    """Every kind of fact among the names of a module, in their order."""
    # Not Fact.__subclasses__(): with slots, @dataclass makes a second class of each.
    kinds = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, Fact)]
    return [kind for kind in kinds if kind is not Fact]


def all_facts() -> list[type[Fact]]:
    """Every kind of fact of the daemon, in the order of this module."""
    return facts_of(globals())


_HEAD: Final = """\
# Log events

Made from `cdcd/core/facts.py` and `cdcd/core/facts_operation.py`; a test keeps it so. Every line of the log has
`timestamp`, `level` and `event`, which is one of these names, and the fields. What libraries log has the event
`dependency.log` with
the fields `logger` and `message`. A message that a library repeats is logged once a minute. The next line with it says
how often it was `repeated` in between (numbers in it do not count).

| event | level | meaning | fields |
|---|---|---|---|
"""


def rows(kinds: Iterable[type[Fact]]) -> str:
    """The rows of a table of events: event, level, meaning and fields."""
    lines = []
    for fact in kinds:
        meaning = " ".join((fact.__doc__ or "").split())
        names = ", ".join(f"`{name}`" for name in fact.fields_logged())
        lines.append(f"| `{fact.event}` | {fact.level} | {meaning} | {names} |\n")
    return "".join(lines)


def markdown() -> str:
    """The daemon's part of docs/events.md."""
    return _HEAD + rows(all_facts())
