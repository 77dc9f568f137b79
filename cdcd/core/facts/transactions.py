"""Facts about transactions and messages that are large, old or kept."""

from typing import ClassVar

from cdcd.core.facts import Fact, Level, fact


@fact
class TransactionLarge(Fact):
    """A source transaction is too large for one Kafka transaction (kafka.transaction.whole_bytes_max): it spans
    several.
    """

    event: ClassVar[str] = "transaction.large"
    xid: int
    commit_lsn: int


@fact
class SpoolSpilled(Fact):
    """The changes of open and prepared transactions no longer fit into memory, so cdcd writes them to disk."""

    event: ClassVar[str] = "spool.spilled"
    memory_bytes: int
    disk_bytes: int


@fact
class PreparedOld(Fact):
    """A prepared transaction has been waiting for COMMIT PREPARED or ROLLBACK PREPARED. The server keeps the WAL since
    then.
    """

    event: ClassVar[str] = "prepared.old"
    level: ClassVar[Level] = "warning"
    gid: str
    age_s: float
    held_at: str


@fact
class PrepareMissing(Fact):
    """A COMMIT PREPARED came without its PREPARE. Either the transaction only locked rows (PostgreSQL 15 to 17), or its
    changes are missing.
    """

    event: ClassVar[str] = "prepare.missing"
    level: ClassVar[Level] = "warning"
    gid: str
    xid: int
    commit_lsn: str


@fact
class ContextRefused(Fact):
    """cdcd rejected the context of a transaction (logical message `cdcd.context`), because it is malformed or too
    large, or has no token that the pipeline knows. The transaction's records are delivered without its headers. If
    there are many, there is one event a second, and `left_out` says how many were rejected without an event before it.
    """

    event: ClassVar[str] = "context.refused"
    level: ClassVar[Level] = "warning"
    reason: str
    left_out: int = 0


@fact
class RecordOversized(Fact):
    """A record is larger than the broker accepts. cdcd sent it where kafka.oversized says."""

    event: ClassVar[str] = "record.oversized"
    level: ClassVar[Level] = "warning"
    topic: str
    record_bytes: int
    oversized: str
    went_to: str


@fact
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


@fact
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


@fact
class LargeMessageComing(Fact):
    """PostgreSQL is sending a message of at least `bytes` bytes, more than 16 MiB, behind `lsn`. libpq gives it to cdcd
    when all of it is there.
    """

    event: ClassVar[str] = "message.coming"
    level: ClassVar[Level] = "info"
    lsn: str
    bytes: int
    memory_limit: int | None


@fact
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


@fact
class StreamRenewed(Fact):
    """A message of more than 16 MiB is delivered and confirmed. cdcd connects again, because libpq keeps a buffer of
    that size as long as the connection is open.
    """

    event: ClassVar[str] = "stream.renewed"
    level: ClassVar[Level] = "info"
    reason: str


@fact
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
