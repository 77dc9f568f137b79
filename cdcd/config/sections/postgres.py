"""The keys of `postgres`: where the changes come from; and of `heartbeat`: what is written at an interval."""

from typing import Final, Literal, Self
from urllib.parse import quote

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK, masked_dsn
from cdcd.config.sections.process import RetryConfig
from cdcd.config.types import (
    CommandLine,
    Dsn,
    FilePath,
    PublicationName,
    Section,
    SlotName,
    Streaming,
    TablePatterns,
    Text,
)
from cdcd.core.engine.settings import PREPARED_WARNING_AGE_S, HeartbeatSettings
from cdcd.core.engine.startup_rules import ReplicationSettings


class ReaderConfig(Section):
    """A role that reads the rows of some tables."""

    tables: TablePatterns = Field(
        description="Tables whose rows this role reads, as patterns like those of postgres.tables: the names under "
        "which tables are published. A table belongs to the first reader whose patterns match its name."
    )
    user: Text | None = Field(
        None, description="The role, on the server and database of postgres.dsn. Give user or dsn."
    )
    dsn: Dsn | None = Field(
        None,
        description="A separate DSN instead of user, if the role needs other parameters of libpq than those of "
        "postgres.dsn. The DSN must lead to the database of postgres.dsn.",
    )
    password: SecretStr | None = Field(None, description="Password of the role.")
    password_file: FilePath | None = Field(
        None, description="File that holds the password, instead of password. Read at each connection."
    )
    password_command: CommandLine | None = Field(
        None,
        description="Program and arguments that print the password, as in postgres.password_command.",
    )

    @model_validator(mode="after")
    def _has_one_of_each(self) -> "ReaderConfig":
        if (self.user is None) == (self.dsn is None):
            raise ValueError("needs either user or dsn")
        given = [name for name in ("password", "password_file", "password_command") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; give one of them")
        return self

    @field_serializer("dsn")
    def _show_dsn(self, dsn: SecretStr | None) -> str | None:
        return None if dsn is None else masked_dsn(dsn.get_secret_value())

    @field_serializer("password")
    def _show_password(self, password: SecretStr | None) -> str | None:
        return None if password is None else MASK


class PostgresConfig(Section):
    """The source: a PostgreSQL database."""

    dsn: Dsn = Field(
        description="Connection string of libpq: a URI or key=value pairs, with parameters such as sslmode. Needs a "
        "role with REPLICATION that may read the catalog of this database.",
        json_schema_extra={"example": "postgresql://cdcd@localhost:5432/shop"},
    )
    dsn_file: FilePath | None = Field(
        None, description="File that holds the DSN, such as a mounted secret, instead of dsn."
    )
    password: SecretStr | None = Field(
        None,
        description="Password, instead of one in the DSN. It needs no escaping, for example password: ${PGPASSWORD}.",
    )
    password_file: FilePath | None = Field(
        None,
        description="File that holds the password, instead of password. cdcd reads this file, dsn_file and "
        "kafka.properties_files at each reconnect, so a secret may change without a restart.",
    )
    password_command: CommandLine | None = Field(
        None,
        description="Program and arguments that print the password, instead of password: for tokens that live for "
        "minutes (IAM, Entra ID). There is no shell. cdcd runs the command before each connection, and kills it after "
        "connect_timeout_s. Put no secret into the arguments: other users of the machine can see them.",
    )
    slot: SlotName = Field(
        description="Replication slot, created if missing. PostgreSQL keeps WAL for the slot until this pipeline has "
        "delivered the changes in it.",
        json_schema_extra={"default_from": "cdcd_{name}"},
    )
    failover: bool = Field(
        False,
        description="Whether the slot is copied to the physical standbys that ask for it (sync_replication_slots; "
        "17 and up), so that it is there after a failover. cdcd also alters an existing slot. Name the standbys' "
        "slots in synchronized_standby_slots. Without it, Kafka may have changes that the new primary lacks, and cdcd "
        "stops after such a failover.",
    )
    publication: PublicationName = Field(
        description="Publication, created if missing. The publication decides which tables and operations are sent.",
        json_schema_extra={"default_from": "cdcd_{name}"},
    )
    tables: TablePatterns | None = Field(
        None,
        description="Tables that a created publication covers: <schema>.<table> with * for any characters and ? for "
        "one; a part in double quotes is taken literally. null: all tables, later ones too, which needs a superuser. A "
        "publication that exists is left as it is, unless publication_changes lets cdcd change it.",
    )
    publication_changes: Literal["never", "owner", "function"] = Field(
        "never",
        description="Whether cdcd adds tables to the publication that postgres.tables, tables.include and "
        "tables.exclude select, and drops tables that they do not select. cdcd looks every 5 s. owner: cdcd runs ALTER "
        "PUBLICATION; its role must own the publication and the tables. function: cdcd calls the function that a DBA "
        "installs with deploy/sql/follow.sql. never: an event and cdcd check have the statement. never is the default, "
        "because others may read by the same publication. A table without a replica identity is never added.",
    )
    readers: list[ReaderConfig] = Field(
        default_factory=list,
        description="Roles that read the rows of tables, for snapshots, cdcd verify and Spark. A query on a table runs "
        "code of the table's owner (expressions of its indexes) with the rights of the role that reads. So give each "
        "owner a reader with SELECT on the owner's tables and no other right. Tables of no reader are read by the role "
        "of postgres.dsn.",
    )
    trusted_owners: tuple[Text, ...] = Field(
        (),
        strict=False,
        description="Roles whose tables may be read by the role of postgres.dsn. Superusers and that role itself need "
        "no entry. cdcd check warns of tables that have another owner and no reader.",
    )
    protocol: Literal["auto", 1, 2, 3, 4] = Field(
        "auto",
        description="Version of the logical replication protocol. auto: the newest version that the server supports.",
    )
    streaming: Streaming = Field(
        "auto",
        description="Whether PostgreSQL sends large transactions before they commit, which spares the server's disk "
        "and spreads the load. auto: parallel on PostgreSQL 16 and later, on with 14 and 15, off with 13. A "
        "transaction is large if it exceeds logical_decoding_work_mem. cdcd sets 8 MB for its session, unless the "
        "server, the database, the role or the DSN sets another value.",
    )
    two_phase: bool = Field(
        False,
        description="Whether PostgreSQL 15 or later sends prepared transactions at PREPARE rather than at COMMIT "
        "PREPARED. cdcd keeps such a transaction until COMMIT PREPARED or ROLLBACK PREPARED. Records appear only "
        "after COMMIT PREPARED, with either "
        "value. cdcd alters an existing slot. Only PostgreSQL 18 can change a slot from true to false; with an older "
        "server, the slot stays as it is, and cdcd logs a warning.",
    )
    messages: bool | Literal["asked"] | None = Field(
        None,
        description="Which logical decoding messages (pg_logical_emit_message, 14 and up) are delivered. Any role that "
        "may connect can send them, of any size. true: all of them have records in topics.message. asked: only those "
        "that outbox.messages and snapshot.signals ask for; the others are dropped, and large ones are not copied. "
        "false: the server sends none. null: true if topics.message names another topic than its default, else asked; "
        "a pipeline whose checkpoint is of a version that delivered all messages by default goes on delivering them.",
    )
    origin: Literal["any", "none"] = Field(
        "any",
        description="none: PostgreSQL 16 or later leaves out changes that came to this server by replication, which "
        "breaks loops between two servers.",
    )
    binary: bool = Field(
        False,
        description="Whether PostgreSQL sends values in binary form, if cdcd can read this form of every column's "
        "type.",
    )
    status_interval_s: float = Field(
        10,
        ge=0.1,
        le=600,
        description="Longest time between two status updates. The interval must be well below the server's "
        "wal_sender_timeout "
        "(60 s), after which the server closes the connection.",
    )
    connect_timeout_s: int = Field(
        10,
        ge=2,
        le=600,
        description="Longest time to wait for a connection (libpq has no limit of its own) and for password_command, "
        "in seconds.",
    )
    lease_s: float = Field(
        5,
        ge=1,
        le=600,
        description="Time without a sign of the active instance after which a standby ends its sessions and takes "
        "over, in seconds. The active instance may be frozen, cut off from the network, or on a lost machine. Set it "
        "higher for servers that "
        "sometimes stand still for seconds, and for values of hundreds of MB on a busy machine.",
    )
    prepared_warning_age_s: float = Field(
        PREPARED_WARNING_AGE_S,
        ge=1,
        le=2_592_000,
        description="Age of an undecided prepared transaction from which cdcd warns, in seconds. PostgreSQL keeps WAL "
        "as long as such a transaction is undecided.",
    )
    wal_warning_s: float = Field(
        3600,
        ge=0,
        le=2_592_000,
        description="cdcd warns (event wal.short) if the slot holds more than half of max_slot_wal_keep_size and may "
        "be lost within this time, at the WAL rate of the last ten minutes. 0: no warning.",
    )
    shutdown_grace_s: float = Field(
        5,
        ge=0,
        le=600,
        description="Time limit for PostgreSQL's fast shutdown, in seconds. The server waits until all sent changes "
        "are confirmed, without end if Kafka does not answer. After this time, cdcd closes the connection. PostgreSQL "
        "sends the rest again later.",
    )
    retry: RetryConfig = Field(description="Waiting times between attempts to connect to PostgreSQL.")

    @model_validator(mode="after")
    def _has_one_password(self) -> "PostgresConfig":
        if self.password_command is not None and self.password is not None:
            given = "password" if self.password_file is None else "password_file"
            raise ValueError(f"password_command and {given} are both given; give one of them")
        return self

    @property
    def stream(self) -> ReplicationSettings:
        """The stream that a session asks for."""
        return ReplicationSettings(
            slot=self.slot,
            publication=self.publication,
            protocol=self.protocol,
            streaming=self.streaming,
            two_phase=self.two_phase,
            origin=self.origin,
            failover=self.failover,
        )

    @field_serializer("dsn")
    def _show_dsn(self, dsn: SecretStr) -> str:
        return masked_dsn(dsn.get_secret_value())

    @field_serializer("password")
    def _show_password(self, password: SecretStr | None) -> str | None:
        return None if password is None else MASK

    def access(self) -> tuple[str, tuple[str, ...]]:
        """What `parse_dsn` needs: the DSN for libpq, and the command that prints the password. A secret."""
        return self.libpq(), self.password_command or ()

    def libpq(self) -> str:
        """The DSN with `password` in it, for libpq. A secret: never to be printed."""
        dsn = self.dsn.get_secret_value()
        if self.password is None:
            return dsn
        password = self.password.get_secret_value()
        # libpq takes the last value of a keyword that is given twice, in both forms.
        if dsn.startswith(("postgresql://", "postgres://")):
            return f"{dsn}{'&' if '?' in dsn else '?'}password={quote(password, safe='')}"
        quoted = password.replace("\\", "\\\\").replace("'", "\\'")
        return f"{dsn} password='{quoted}'"


INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 86_400


class HeartbeatConfig(Section):
    """Heartbeat records, watermarks, and the query that lets a quiet database move on (docs/records.md, Heartbeats)."""

    interval_s: float = Field(
        0,
        ge=0,
        le=INTERVAL_S_MAX,
        description="Debezium's heartbeat.interval.ms, in seconds: how often topics.heartbeat gets a record that says "
        "up to which LSN everything is delivered, also when nothing changes. 0: never. A heartbeat comes only after "
        "the transaction that is being delivered.",
    )
    action_query: Text | None = Field(
        None,
        description="Debezium's heartbeat.action.query: one SQL statement that the active instance runs on the source "
        "at each interval, as the role of postgres.dsn and on a connection of its own. search_path is empty there, so "
        "names need their schema. A query that fails is an event and a metric, and does not hold up the stream.",
    )
    action_timeout_s: float = Field(
        5,
        ge=0.1,
        le=600,
        description="Longest time that PostgreSQL may take for action_query, in seconds (statement_timeout). The "
        "query waits at most half of this time for a lock (lock_timeout).",
    )

    watermark_interval_s: float = Field(
        0,
        ge=0,
        le=INTERVAL_S_MAX,
        description="How often every partition of every table's topic gets a record without key and value, whose "
        "header cdcd.watermark says up to which LSN the partition is complete; only if the LSN has moved. Each "
        "interval costs one record for every partition of all these topics. Compacted topics refuse such records. 0: "
        "never.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if 0 < self.interval_s < INTERVAL_S_MIN:
            raise ValueError(f"interval_s must be 0 or at least {INTERVAL_S_MIN:g}")
        if 0 < self.watermark_interval_s < INTERVAL_S_MIN:
            raise ValueError(f"watermark_interval_s must be 0 or at least {INTERVAL_S_MIN:g}")
        if self.action_query is not None and not self.interval_s:
            raise ValueError("action_query needs interval_s, which says how often the query runs")
        return self

    @property
    def settings(self) -> HeartbeatSettings:
        """Intervals of heartbeats and watermarks."""
        return HeartbeatSettings(
            interval_s=self.interval_s,
            has_query=self.action_query is not None,
            watermark_s=self.watermark_interval_s,
        )
