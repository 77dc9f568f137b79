"""What happens rarely and matters to an operator, as values: who reports does not know who listens.

A fact is reported where it happens, by calling the `Observer` that was handed in. `cdcd.telemetry.logs` writes
facts to the log; tests collect them in a list. What happens often (rows, batches, positions) is not a fact
but a number in `cdcd.telemetry.state.Telemetry`.

An event's name is constant and its details are fields, so that a search for the name finds every occurrence.
Fields hold values (an `Lsn`, seconds, bytes), never sentences made of them. docs/events.md is made from this
module.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from cdcd import __version__
from cdcd.build import is_compiled

Level = Literal["info", "warning", "error", "critical"]
Side = Literal["postgres", "kafka"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened."""

    event: ClassVar[str]
    level: ClassVar[Level] = "info"


Observer = Callable[[Fact], None]


@dataclass(frozen=True, slots=True)
class Started(Fact):
    """The process has read its configuration and begins to connect; `http` is where it serves, if it does."""

    event: ClassVar[str] = "daemon.started"
    name: str
    http: str
    version: str = __version__
    compiled: bool = field(default_factory=is_compiled)


@dataclass(frozen=True, slots=True)
class StandbyWaiting(Fact):
    """Another instance holds the advisory lock; this one takes over when it lets go."""

    event: ClassVar[str] = "standby.waiting"
    slot: str
    holder_pid: int | None
    holder: str


@dataclass(frozen=True, slots=True)
class LockAcquired(Fact):
    """This instance holds the advisory lock of the slot and is the one that may write."""

    event: ClassVar[str] = "lock.acquired"
    slot: str


@dataclass(frozen=True, slots=True)
class LockLost(Fact):
    """The connection that held the advisory lock ended; sqlstate is empty when it went silently."""

    event: ClassVar[str] = "lock.lost"
    level: ClassVar[Level] = "warning"
    sqlstate: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionEnded(Fact):
    """A session that a former active instance had left was ended: its lock, when it had been silent for the lease, or
    its stream.
    """

    event: ClassVar[str] = "session.ended"
    level: ClassVar[Level] = "warning"
    held: Literal["lock", "stream"]
    pid: int | None
    silent_s: float


@dataclass(frozen=True, slots=True)
class SlotCreated(Fact):
    """A replication slot was created: what commits from here on is delivered."""

    event: ClassVar[str] = "slot.created"
    slot: str
    position: str


@dataclass(frozen=True, slots=True)
class TwoPhaseEnded(Fact):
    """postgres.two_phase is false, so the slot was altered: prepared transactions are sent at COMMIT PREPARED again."""

    event: ClassVar[str] = "twophase.ended"
    slot: str


@dataclass(frozen=True, slots=True)
class TwoPhaseKept(Fact):
    """postgres.two_phase is false, but the slot sends prepared transactions at PREPARE, and no PostgreSQL before 18 can
    change that. Nothing is lost or delivered earlier by it.
    """

    event: ClassVar[str] = "twophase.kept"
    level: ClassVar[Level] = "warning"
    slot: str


@dataclass(frozen=True, slots=True)
class SlotWaiting(Fact):
    """The slot cannot be used yet: it is held by a walsender, or its creation waits for open transactions."""

    event: ClassVar[str] = "slot.waiting"
    level: ClassVar[Level] = "warning"
    slot: str
    message: str


@dataclass(frozen=True, slots=True)
class PublicationCreated(Fact):
    """A publication was created."""

    event: ClassVar[str] = "publication.created"
    publication: str


@dataclass(frozen=True, slots=True)
class TopicCreated(Fact):
    """A topic was created."""

    event: ClassVar[str] = "topic.created"
    topic: str


@dataclass(frozen=True, slots=True)
class CheckpointRead(Fact):
    """Where this life resumes; without a checkpoint found, from the slot's own position."""

    event: ClassVar[str] = "checkpoint.read"
    topic: str
    found: bool
    position: str


@dataclass(frozen=True, slots=True)
class GapAccepted(Fact):
    """Slot and checkpoint do not meet, and --accept-gap says to go on: changes between them are not
    delivered.
    """

    event: ClassVar[str] = "gap.accepted"
    level: ClassVar[Level] = "warning"
    message: str
    position: str


@dataclass(frozen=True, slots=True)
class StreamStarted(Fact):
    """PostgreSQL sends changes; those before this position are with the broker already and are skipped."""

    event: ClassVar[str] = "stream.started"
    slot: str
    server_version: int
    protocol: int
    streaming: str
    position: str


@dataclass(frozen=True, slots=True)
class StreamingPaused(Fact):
    """A transaction is received again after its commit: streamed, it does not say what was rolled back, or is a key."""

    event: ClassVar[str] = "streaming.paused"
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class BinaryPaused(Fact):
    """A column's type can be read in text form only: this process asks for all values as text from here on."""

    event: ClassVar[str] = "binary.paused"
    level: ClassVar[Level] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class StreamingResumed(Fact):
    """The transaction that needed it is delivered; large transactions are streamed again."""

    event: ClassVar[str] = "streaming.resumed"
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class SnapshotStarted(Fact):
    """Tables are read from here on: at the slot's snapshot before streaming (exported), or beside it (incremental)."""

    event: ClassVar[str] = "snapshot.started"
    tables: int
    bytes: int
    method: str


@dataclass(frozen=True, slots=True)
class SnapshotNeeded(Fact):
    """Slot and checkpoint do not meet, and snapshot.mode: when_needed says to read the tables again."""

    event: ClassVar[str] = "snapshot.needed"
    level: ClassVar[Level] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class SnapshotResumed(Fact):
    """A snapshot goes on with the tables and pages that an earlier life had not delivered."""

    event: ClassVar[str] = "snapshot.resumed"
    tables: int
    rows: int
    was: str


@dataclass(frozen=True, slots=True)
class SnapshotProgressed(Fact):
    """How far the reading of a table has got; `left_s` is by the pace so far."""

    event: ClassVar[str] = "snapshot.progress"
    table: str
    rows: int
    bytes: int
    share: float
    rows_per_s: int
    left_s: int | None


@dataclass(frozen=True, slots=True)
class SnapshotWaiting(Fact):
    """A table waits to be read: for transactions that write to it (`<virtual transaction> <pid>`), or for a lock."""

    event: ClassVar[str] = "snapshot.waiting"
    level: ClassVar[Level] = "warning"
    table: str
    writers: list[str]


@dataclass(frozen=True, slots=True)
class SnapshotRestarted(Fact):
    """A table is read from its beginning again; rows that were delivered come once more, with op r."""

    event: ClassVar[str] = "snapshot.restarted"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class TableReplaced(Fact):
    """Another table has the name of a published one: its changes go to the same topic.

    `truncated`: a truncate record ended the rows of the former table. `read`: the new table's rows are read.
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
    """A table was added to the publication, or got another name. Only its changes are delivered unless `read`.

    `rows` is the planner's estimate of the rows that it has already; `command` reads them.
    """

    event: ClassVar[str] = "table.added"
    table: str
    rows: int
    read: bool
    command: str


@dataclass(frozen=True, slots=True)
class SnapshotTableFinished(Fact):
    """Every row of a table is on its way to Kafka."""

    event: ClassVar[str] = "table.read"
    table: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SnapshotTableFailed(Fact):
    """A table that was asked for is not read, or not to its end; its changes are streamed as before."""

    event: ClassVar[str] = "table.failed"
    level: ClassVar[Level] = "error"
    table: str
    error: str


@dataclass(frozen=True, slots=True)
class SnapshotFinished(Fact):
    """Nothing is left to be read; `rows` were delivered since the pipeline began."""

    event: ClassVar[str] = "snapshot.finished"
    rows: int


@dataclass(frozen=True, slots=True)
class SnapshotSignalled(Fact):
    """Somebody asked for a snapshot, or for a halt of those that run, by a logical message."""

    event: ClassVar[str] = "snapshot.signalled"
    action: str
    tables: list[str]


@dataclass(frozen=True, slots=True)
class SnapshotSignalRefused(Fact):
    """A logical message with the prefix cdcd.snapshot says nothing that can be done."""

    event: ClassVar[str] = "snapshot.refused"
    level: ClassVar[Level] = "warning"
    reason: str


@dataclass(frozen=True, slots=True)
class ReconnectScheduled(Fact):
    """Something failed in a way that is likely to pass; the next attempt is made after `wait_s`."""

    event: ClassVar[str] = "reconnect.scheduled"
    level: ClassVar[Level] = "warning"
    side: Side
    message: str
    hint: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class PostgresStopping(Fact):
    """PostgreSQL shuts down and waits for what it sent to be confirmed; after the grace it is let go."""

    event: ClassVar[str] = "postgres.stopping"
    level: ClassVar[Level] = "warning"
    sqlstate: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class RelationChanged(Fact):
    """A table's columns or replica identity changed; its records follow from here on."""

    event: ClassVar[str] = "relation.changed"
    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class TransactionLarge(Fact):
    """A source transaction is larger than a Kafka transaction may be and spans several."""

    event: ClassVar[str] = "transaction.large"
    xid: int
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class SpoolSpilled(Fact):
    """Changes of undecided transactions went to disk for the first time since memory sufficed."""

    event: ClassVar[str] = "spool.spilled"
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class PreparedOld(Fact):
    """A prepared transaction waits for its COMMIT PREPARED or ROLLBACK PREPARED, and the WAL with it."""

    event: ClassVar[str] = "prepared.old"
    level: ClassVar[Level] = "warning"
    gid: str
    age_s: float
    held_at: str


@dataclass(frozen=True, slots=True)
class PrepareMissing(Fact):
    """A COMMIT PREPARED came without PREPARE: it only locked rows (PostgreSQL 15 to 17), or its changes are missing."""

    event: ClassVar[str] = "prepare.missing"
    level: ClassVar[Level] = "warning"
    gid: str
    xid: int
    commit_lsn: str


@dataclass(frozen=True, slots=True)
class RecordOversized(Fact):
    """A record is larger than the broker takes and went where kafka.oversized says."""

    event: ClassVar[str] = "record.oversized"
    level: ClassVar[Level] = "warning"
    topic: str
    record_bytes: int
    oversized: str
    went_to: str


@dataclass(frozen=True, slots=True)
class TransactionTimeoutUnknown(Fact):
    """The brokers do not tell transaction.max.timeout.ms to this principal; Kafka transactions have this timeout."""

    event: ClassVar[str] = "timeout.unknown"
    level: ClassVar[Level] = "warning"
    message: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class KafkaRetry(Fact):
    """Kafka did not take something; it is tried again after `wait_s`."""

    event: ClassVar[str] = "kafka.retry"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class ShutdownRequested(Fact):
    """A signal asks the process to finish what is in flight and end; a second one ends it at once."""

    event: ClassVar[str] = "shutdown.requested"
    signal: str


@dataclass(frozen=True, slots=True)
class ShutdownFinished(Fact):
    """The process ends as asked; everything before this position is with the broker."""

    event: ClassVar[str] = "shutdown.finished"
    flushed_lsn: int


@dataclass(frozen=True, slots=True)
class ShutdownForced(Fact):
    """The time for ending in good order is over: the process ends, and what is not with the broker comes again."""

    event: ClassVar[str] = "shutdown.forced"
    level: ClassVar[Level] = "warning"
    timeout_s: float
    flushed_lsn: int


@dataclass(frozen=True, slots=True)
class Failed(Fact):
    """The process ends because a person must act; nothing is confirmed past what is with the broker."""

    event: ClassVar[str] = "fatal"
    level: ClassVar[Level] = "critical"
    error: str
    message: str
    hint: str
    exit_code: int


def all_facts() -> list[type[Fact]]:
    """Every kind of fact, in the order of this module."""
    # Not Fact.__subclasses__(): with slots, @dataclass makes a second class of each.
    kinds = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Fact)]
    return [kind for kind in kinds if kind is not Fact]


_HEAD: Final = """\
# Log events

Made from `cdcd/facts.py`; a test keeps it so. Every line of the log has `timestamp`, `level` and `event`, which
is one of these names, and the fields. What libraries log has the event `dependency.log` with the fields `logger` and
`message`.

| event | level | meaning | fields |
|---|---|---|---|"""


def markdown() -> str:
    """docs/events.md: every event with its level, meaning and fields."""
    lines = [_HEAD]
    for fact in all_facts():
        meaning = " ".join((fact.__doc__ or "").split())
        fields = ", ".join(
            f"`{name}`" for name in fact.__dataclass_fields__ if name not in {"event", "level"}
        )
        lines.append(f"| `{fact.event}` | {fact.level} | {meaning} | {fields} |")
    return "\n".join(lines) + "\n"
