"""Facts about the operation: which side answers, how fast the work goes, how long PostgreSQL keeps the WAL."""

from typing import ClassVar

from cdcd.core.facts import Fact, Level, fact


@fact
class KafkaUnreachable(Fact):
    """Kafka does not answer. Nothing is lost: cdcd keeps `records` (`bytes`) in memory, and PostgreSQL keeps the WAL
    from `flushed_lsn` on. cdcd asks once a second, and goes on by itself.

    `wal_bytes` is the WAL that the slot held at the last look. It grows while Kafka is away.
    """

    event: ClassVar[str] = "kafka.unreachable"
    level: ClassVar[Level] = "error"
    message: str
    hint: str
    records: int
    bytes: int
    flushed_lsn: int
    wal_bytes: int | None


@fact
class KafkaReachable(Fact):
    """Kafka answers again, after `seconds`. cdcd now delivers the `records` (`bytes`) that wait, and then the rest."""

    event: ClassVar[str] = "kafka.reachable"
    seconds: float
    records: int
    bytes: int
    flushed_lsn: int
    wal_bytes: int | None


@fact
class OtlpFailed(Fact):
    """Spans, metrics or lines of the log (`signal`: traces, metrics or logs) could not be sent to `otlp.endpoint`, for
    the last time for this `reason`. `failures` counts the requests that have failed since the start. The event comes
    once a minute for a signal. What does not fit into the exporter's queue meanwhile is lost for the collector; the
    stream goes on.
    """

    event: ClassVar[str] = "otlp.failed"
    level: ClassVar[Level] = "warning"
    signal: str
    failures: int
    reason: str
    hint: str


@fact
class TransactionHanging(Fact):
    """Readers with `read_committed` stop at `offset` in a partition. Kafka has acknowledged the commit of the
    transaction that begins at this offset, and does not show its records (a hanging transaction). Nothing is lost: the
    next change in the partition ends the transaction, and readers then get the records of both. Kafka 4.3 leaves a
    transaction hanging if the partition has no leader while the transaction ends, for example because a frozen broker
    has just come back. cdcd waits three seconds after an outage before it ends a transaction, which makes this event
    rare.
    """

    event: ClassVar[str] = "transaction.hanging"
    level: ClassVar[Level] = "error"
    topic: str
    partition: int
    offset: int
    hint: str


@fact
class TransactionEnded(Fact):
    """A transaction hung in the checkpoint topic from `offset` on (`transaction.hanging`). Kafka had acknowledged its
    commit, so cdcd ended it by another commit, and goes on behind it. Nothing is lost, and nothing is to be done.
    """

    event: ClassVar[str] = "transaction.ended"
    level: ClassVar[Level] = "warning"
    topic: str
    partition: int
    offset: int


@fact
class TopicsUnclaimed(Fact):
    """cdcd could not claim `topics` topics of tables in the topic `topics.claims`, because Kafka refuses it.

    The pipeline goes on. Nothing keeps another pipeline from writing to the same topics until the right is granted and
    cdcd starts again (docs/topics.md).
    """

    event: ClassVar[str] = "topics.unclaimed"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str
    topics: int


@fact
class TopicsReleased(Fact):
    """cdcd released its claims on these topics, because none of the pipeline's published tables has them any more.
    Another pipeline may claim them now. The records in the topics stay there.
    """

    event: ClassVar[str] = "topics.released"
    topics: tuple[str, ...]
    claims: str


@fact
class ClaimRecordsIgnored(Fact):
    """The topic with the claims has `count` records that are no claims; `reason` is that of the last one. They change
    nothing. Find the program that writes there, and let only cdcd's principals write to the topic.
    """

    event: ClassVar[str] = "claims.ignored"
    level: ClassVar[Level] = "warning"
    topic: str
    count: int
    reason: str


@fact
class CheckpointRecordsIgnored(Fact):
    """The checkpoint topic has `count` records that do not count: of another key, of no known form, without the tag of
    the pipeline's key, or copies of former records. `first_offset` and `last_offset` say where, and `reason` is that of
    the last one. cdcd goes on with the newest valid record. Find the program that writes there, and let only the
    pipeline's principal write to the topic.
    """

    event: ClassVar[str] = "checkpoint.ignored"
    level: ClassVar[Level] = "warning"
    topic: str
    partition: int
    count: int
    first_offset: int
    last_offset: int
    reason: str


@fact
class TransactionalIdShared(Fact):
    """The newest record of another pipeline's checkpoint topic names the transactional id of this pipeline, which has
    not used the id before. `age_s` is the age of the record in seconds. The record is too old to refuse the start, or
    somebody else may have written it. If the other pipeline still exists, give one of the two another
    `kafka.transactional_id`, because two pipelines with one id end each other.
    """

    event: ClassVar[str] = "transaction.shared"
    level: ClassVar[Level] = "warning"
    transactional_id: str
    pipeline: str
    topic: str
    age_s: int


@fact
class CheckpointTopicsUnread(Fact):
    """`topics` topics named `*.checkpoint` of other pipelines were not read in time, so one of these pipelines may use
    the transactional id of this pipeline, which has not used the id before. `cdcd check` reads for longer.
    """

    event: ClassVar[str] = "transaction.unread"
    level: ClassVar[Level] = "warning"
    transactional_id: str
    topics: int


@fact
class CheckpointUnsigned(Fact):
    """The pipeline has a key for its checkpoints (`topics.checkpoint_key`, or a key of `columns`), and the newest
    checkpoint has no tag made with it. This is right once: at the first start with the key. Otherwise somebody else
    wrote the record, or the key was changed.
    """

    event: ClassVar[str] = "checkpoint.unsigned"
    level: ClassVar[Level] = "warning"
    topic: str
    position: str


@fact
class KafkaTokenFailed(Fact):
    """There is no new token for Kafka (`kafka.oauth`). cdcd goes on with the token that it has until that one expires,
    and asks again every ten seconds. The event comes once a minute at most.
    """

    event: ClassVar[str] = "kafka.token"
    level: ClassVar[Level] = "error"
    message: str
    hint: str


@fact
class RegistryUnreachable(Fact):
    """The schema registry (`registry.url`) does not answer, and a new form of a table waits for it, with everything
    behind it in the stream. Nothing is lost: the slot keeps the WAL from `flushed_lsn` on. cdcd asks again and again,
    and goes on by itself. Tables in known forms do not need the registry.
    """

    event: ClassVar[str] = "registry.unreachable"
    level: ClassVar[Level] = "error"
    message: str
    hint: str
    records: int
    bytes: int
    flushed_lsn: int
    wal_bytes: int | None


@fact
class RegistryReachable(Fact):
    """The schema registry answers again, after `seconds`. The stream goes on with the new form of the table."""

    event: ClassVar[str] = "registry.reachable"
    seconds: float
    records: int
    bytes: int
    flushed_lsn: int
    wal_bytes: int | None


@fact
class SchemaRegistered(Fact):
    """The schema registry has given `id` to a schema that records of this session use, under `subject`."""

    event: ClassVar[str] = "registry.registered"
    subject: str
    id: int | str


@fact
class SchemaIdsForgotten(Fact):
    """The schema registry (`registry`) does not have the schema with the `id` that the schemas topic names: the
    registry lost its schemas, or is another one under the same URL. cdcd registers its schemas again. Consumers cannot
    read records with the former `count` ids until somebody brings those back.
    """

    event: ClassVar[str] = "registry.forgotten"
    level: ClassVar[Level] = "warning"
    registry: str
    id: int | str
    count: int


@fact
class SubjectUnanswered(Fact):
    """The schema registry gives no answer for this subject, but answers other requests. The stream waits. After
    `patience_s` seconds without an answer, the subject's table is set aside, and the stream goes on.
    """

    event: ClassVar[str] = "registry.unanswered"
    level: ClassVar[Level] = "warning"
    subject: str
    message: str
    patience_s: float


@fact
class PostgresUnreachable(Fact):
    """PostgreSQL does not answer. Nothing is lost: the slot keeps the WAL from `flushed_lsn` on, and cdcd connects
    again by itself. `records` (`bytes`) were waiting for Kafka. Those that Kafka does not get now come again.
    """

    event: ClassVar[str] = "postgres.unreachable"
    level: ClassVar[Level] = "error"
    message: str
    hint: str
    records: int
    bytes: int
    flushed_lsn: int
    wal_bytes: int | None


@fact
class PostgresReachable(Fact):
    """PostgreSQL answers again, after `seconds`. cdcd resumes from the checkpoint."""

    event: ClassVar[str] = "postgres.reachable"
    seconds: float
    records: int
    bytes: int
    flushed_lsn: int
    wal_bytes: int | None


@fact
class PostgresWarned(Fact):
    """PostgreSQL warned on the connection of the stream, for example that it waits for a standby
    (`synchronized_standby_slots`): it sends no change until that standby is back. Nothing is lost. The same warning
    comes once a minute at most.
    """

    event: ClassVar[str] = "postgres.warning"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str


@fact
class HeartbeatQueryFailed(Fact):
    """PostgreSQL refused `heartbeat.action_query`, or did not answer. The stream and the heartbeats go on, and the
    query is run again at the next interval. `failures` counts those since the query last ran. The event comes once a
    minute at most.
    """

    event: ClassVar[str] = "heartbeat.failed"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str
    failures: int


@fact
class HeartbeatQueryRuns(Fact):
    """`heartbeat.action_query` runs again, after the number of failures in `failures`."""

    event: ClassVar[str] = "heartbeat.runs"
    failures: int


@fact
class StreamProgressed(Fact):
    """What Kafka acknowledged in the last `seconds`: transactions, rows (snapshots' too), and the bytes of their keys
    and values. The event comes once a minute, unless nothing was done and nothing is left.

    `lag_s` and `lag_bytes` are as in the metrics, and both 0 if all is delivered. `waiting_records` (`waiting_bytes`)
    wait for Kafka, and the slot holds `wal_bytes`.
    """

    event: ClassVar[str] = "stream.progress"
    seconds: float
    transactions: int
    rows: int
    bytes: int
    lag_s: float | None
    lag_bytes: int
    waiting_records: int
    waiting_bytes: int
    wal_bytes: int | None


@fact
class WalShort(Fact):
    """PostgreSQL may give up the slot in `seconds_left`, at the rate at which WAL was written in the last ten minutes.
    Changes would be lost then. The slot holds `retained_bytes` of WAL, and may hold `safe_bytes` more
    (max_slot_wal_keep_size). The event comes again each time that the rest has halved.
    """

    event: ClassVar[str] = "wal.short"
    level: ClassVar[Level] = "error"
    slot: str
    seconds_left: int
    safe_bytes: int
    retained_bytes: int
    bytes_per_s: int
    hint: str


@fact
class TableLocked(Fact):
    """Somebody has locked a table that cdcd must lock for `purpose`, such as the creation of the publication. cdcd
    tries again until the lock is free. `holder` names process, role and application.
    """

    event: ClassVar[str] = "table.locked"
    level: ClassVar[Level] = "warning"
    table: str
    holder: str
    purpose: str


@fact
class RecordingStarted(Fact):
    """The session is recorded into the folder, as `record.directory` asks. `cdcd replay` reads it."""

    event: ClassVar[str] = "recording.started"
    directory: str


@fact
class RecordingStopped(Fact):
    """Nothing is recorded any more, for this reason. The daemon goes on without. What was recorded until then can be
    replayed. The next session tries again.
    """

    event: ClassVar[str] = "recording.stopped"
    level: ClassVar[Level] = "error"
    directory: str
    reason: str
    hint: str


@fact
class DurableSpoolStarted(Fact):
    """Kafka is away, and `spool.durable` is on: the stream goes to the durable log from here on, and PostgreSQL is told
    that it may forget the WAL of what the log holds.
    """

    event: ClassVar[str] = "durable.started"
    level: ClassVar[Level] = "warning"
    directory: str
    position: str
    bytes: int


@fact
class DurableSpoolEnded(Fact):
    """The stream does not go to the durable log any more: Kafka is back, or the connection or the daemon ended. The log
    holds `bytes`, and everything up to `position`.
    """

    event: ClassVar[str] = "durable.ended"
    level: ClassVar[Level] = "info"
    directory: str
    position: str
    bytes: int
    seconds: float


@fact
class DurableSpoolStopped(Fact):
    """Kafka is away, and the stream cannot go to the durable log (any more), for this reason. Nothing more is
    confirmed, so that PostgreSQL keeps the WAL until Kafka is back. Nothing is lost.
    """

    event: ClassVar[str] = "durable.stopped"
    level: ClassVar[Level] = "error"
    directory: str
    reason: str
    hint: str


@fact
class DurableSpoolDelivering(Fact):
    """Kafka is back: a part of the durable log is delivered, from one position to another. The stream goes on
    afterwards.
    """

    event: ClassVar[str] = "durable.delivering"
    level: ClassVar[Level] = "info"
    directory: str
    position: str
    until: str
    bytes: int


@fact
class DurableSpoolDelivered(Fact):
    """Kafka has everything that the durable log held, and the log is empty."""

    event: ClassVar[str] = "durable.delivered"
    level: ClassVar[Level] = "info"
    directory: str


@fact
class HttpActionAsked(Fact):
    """Somebody with a token asked for an action by HTTP: `action` for `tables`, from the address `peer`. `name` is
    the name of the token in `http.tokens_file`, and empty for `http.token`. `status` is the HTTP status of the answer;
    202: the request is in the WAL.
    """

    event: ClassVar[str] = "http.action"
    level: ClassVar[Level] = "info"
    action: str
    peer: str
    tables: list[str]
    request: str
    status: int
    name: str = ""


@fact
class HttpActionRefused(Fact):
    """Somebody without the token, or a browser on the page of another site, asked for an action by HTTP. At most one
    such event in ten seconds; `refused` counts the requests since the last one.
    """

    event: ClassVar[str] = "http.refused"
    level: ClassVar[Level] = "warning"
    peer: str
    status: int
    refused: int
    hint: str
