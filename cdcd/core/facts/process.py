"""Facts about a running daemon: connections, pauses, reloads of the configuration, shutdown, failures."""

from typing import ClassVar

from cdcd.core.facts import Fact, Level, Side, fact


@fact
class StreamingPaused(Fact):
    """Streaming is off until this transaction is delivered, because its streamed form does not tell which messages were
    rolled back, or which columns are the key.
    """

    event: ClassVar[str] = "streaming.paused"
    commit_lsn: int


@fact
class BinaryPaused(Fact):
    """A column has a type that cdcd can read in text form only. This process receives all values as text
    from now on.
    """

    event: ClassVar[str] = "binary.paused"
    level: ClassVar[Level] = "warning"
    message: str


@fact
class ConversionPaused(Fact):
    """PostgreSQL cannot convert a text to UTF-8, because its bytes have no character there. This process receives texts
    in the server's encoding from now on, and decodes them itself. The events `value.unwritable` name the columns.
    """

    event: ClassVar[str] = "conversion.paused"
    level: ClassVar[Level] = "warning"
    message: str


@fact
class StreamingResumed(Fact):
    """The transaction that could not be streamed is delivered. Large transactions are streamed again."""

    event: ClassVar[str] = "streaming.resumed"
    commit_lsn: int


@fact
class ReconnectScheduled(Fact):
    """A session failed for a reason that is likely to pass. The next session begins after `wait_s`."""

    event: ClassVar[str] = "reconnect.scheduled"
    level: ClassVar[Level] = "warning"
    side: Side
    message: str
    hint: str
    wait_s: float


@fact
class PostgresStopping(Fact):
    """PostgreSQL shuts down, and waits until cdcd confirms the received WAL. After `grace_s` seconds,
    cdcd closes the stream.
    """

    event: ClassVar[str] = "postgres.stopping"
    level: ClassVar[Level] = "warning"
    sqlstate: str
    grace_s: float


@fact
class TransactionTimeoutUnknown(Fact):
    """This principal may not read the brokers' transaction.max.timeout.ms. Kafka transactions get a
    timeout of `timeout_s` seconds instead.
    """

    event: ClassVar[str] = "timeout.unknown"
    level: ClassVar[Level] = "warning"
    message: str
    timeout_s: float


@fact
class KafkaRetry(Fact):
    """A request to Kafka failed for a reason that is likely to pass. cdcd repeats it after `wait_s`."""

    event: ClassVar[str] = "kafka.retry"
    level: ClassVar[Level] = "warning"
    message: str
    hint: str
    wait_s: float


@fact
class ShutdownRequested(Fact):
    """A signal asked the process to end. The process first finishes the open batch. A second signal ends the
    process at once.
    """

    event: ClassVar[str] = "shutdown.requested"
    signal: str


@fact
class ShutdownFinished(Fact):
    """The process ends as asked. The broker has everything before `flushed_lsn`."""

    event: ClassVar[str] = "shutdown.finished"
    flushed_lsn: int


@fact
class ShutdownForced(Fact):
    """shutdown_timeout_s is over, so the process ends at once. What the broker does not have yet is sent at the next
    start.
    """

    event: ClassVar[str] = "shutdown.forced"
    level: ClassVar[Level] = "warning"
    timeout_s: float
    flushed_lsn: int


@fact
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


@fact
class ConfigReloaded(Fact):
    """SIGHUP had the configuration read again. The keys in `at_once` count from now on, and those in `next_session`
    when cdcd connects next. Those in `needs_restart` differ too, and count after a restart only.
    """

    event: ClassVar[str] = "config.reloaded"
    at_once: list[str]
    next_session: list[str]
    needs_restart: list[str]


@fact
class ConfigRefused(Fact):
    """SIGHUP had the configuration read again, and it is wrong. The configuration in effect stays."""

    event: ClassVar[str] = "config.refused"
    level: ClassVar[Level] = "error"
    message: str
    hint: str


@fact
class Crashed(Fact):
    """The process ends because of a bug in cdcd. PostgreSQL was told no position beyond what the broker has. Keep the
    log, and report the bug.
    """

    event: ClassVar[str] = "crash"
    level: ClassVar[Level] = "critical"
    error: str
    message: str
    traceback: str
