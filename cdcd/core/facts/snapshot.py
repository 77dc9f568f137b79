"""Facts about snapshots."""

from typing import ClassVar

from cdcd.core.facts import Fact, Level, fact


@fact
class SnapshotStarted(Fact):
    """cdcd begins to read tables: at the slot's snapshot before streaming (`exported`), or beside it
    (`incremental`).
    """

    event: ClassVar[str] = "snapshot.started"
    tables: int
    bytes: int
    method: str


@fact
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


@fact
class SnapshotResumed(Fact):
    """A snapshot continues with the tables and pages that an earlier session did not deliver. `was` is its former
    method.
    """

    event: ClassVar[str] = "snapshot.resumed"
    tables: int
    rows: int
    was: str


@fact
class SnapshotProgressed(Fact):
    """Progress of reading a table. `left_s` is estimated from the pace so far."""

    event: ClassVar[str] = "snapshot.progress"
    table: str
    rows: int
    bytes: int
    share: float
    rows_per_s: int
    left_s: int | None


@fact
class SnapshotWaiting(Fact):
    """Before cdcd reads a table, it waits until the transactions that write to it have ended, or until a lock is free.

    `writers` names the transactions as `<virtual transaction> <pid>` with role and application, or says which lock.
    """

    event: ClassVar[str] = "snapshot.waiting"
    level: ClassVar[Level] = "warning"
    table: str
    writers: list[str]


@fact
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


@fact
class SnapshotRestarted(Fact):
    """cdcd reads a table from its beginning again. Rows that were delivered already come once more, with op r."""

    event: ClassVar[str] = "snapshot.restarted"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str


@fact
class SnapshotTableFinished(Fact):
    """cdcd has read every row of a table, and Kafka holds them.

    `seconds` is the time from the beginning of the reading. A session that ends right after the delivery may not report
    it; `cdcd snapshot status` shows it all the same.
    """

    event: ClassVar[str] = "table.read"
    table: str
    rows: int
    seconds: float


@fact
class SnapshotTableGone(Fact):
    """A table that cdcd had to read was dropped, or is not published any more. So nothing of it is left to read."""

    event: ClassVar[str] = "table.gone"
    table: str
    oid: int


@fact
class SnapshotTableFailed(Fact):
    """The snapshot of a table failed, at its start or later. The changes of the table are streamed as before. `hint`
    says what to do, if more than `error` is known.
    """

    event: ClassVar[str] = "table.failed"
    level: ClassVar[Level] = "error"
    table: str
    error: str
    hint: str = ""


@fact
class SnapshotFinished(Fact):
    """All snapshots are finished, and Kafka holds their rows. `rows` is the number of rows delivered by snapshots
    since the pipeline was created.
    """

    event: ClassVar[str] = "snapshot.finished"
    rows: int


@fact
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


@fact
class SnapshotSignalled(Fact):
    """cdcd accepted a snapshot request (logical message `cdcd.snapshot`): to start, pause, resume or cancel."""

    event: ClassVar[str] = "snapshot.signalled"
    action: str
    tables: list[str]


@fact
class SnapshotPartitions(Fact):
    """A snapshot request names a partitioned table that is published through its partitions, so cdcd reads them.

    `partitions` has the first ten of `count` names.
    """

    event: ClassVar[str] = "snapshot.partitions"
    table: str
    partitions: list[str]
    count: int


@fact
class SignalsRead(Fact):
    """From now on, cdcd carries out the requests that come into `snapshot.signal_topic`."""

    event: ClassVar[str] = "signals.read"
    topic: str


@fact
class SignalsUnread(Fact):
    """The requests in `snapshot.signal_topic` wait, because Kafka refuses the topic, or Kafka or PostgreSQL does not
    answer. cdcd tries again every 5 seconds, and the stream goes on. The event comes once a minute.
    """

    event: ClassVar[str] = "signals.unread"
    level: ClassVar[Level] = "warning"
    topic: str
    message: str
    hint: str


@fact
class SnapshotSignalRefused(Fact):
    """cdcd rejected a snapshot request (logical message `cdcd.snapshot`, or a signal in `snapshot.signal_topic`),
    because it is invalid, has no token that the daemon knows, or is not allowed. If there are many, there is one event
    a second, and `left_out` says how many requests were rejected without an event before it.
    """

    event: ClassVar[str] = "snapshot.refused"
    level: ClassVar[Level] = "warning"
    reason: str
    left_out: int = 0
