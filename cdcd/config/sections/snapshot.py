"""The keys of `snapshot`: rows that are in the tables already."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, field_serializer

from cdcd.config.masking import MASK
from cdcd.config.types import KIB, MIB, FilePath, Section, TableName, TablePatterns, Text, TopicName
from cdcd.core.catalog.routing import table_named
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.snapshot.reading import ROWS
from cdcd.core.snapshot.signals import NAME_MAX

TABLES_AHEAD: Final = 32
"""Number of tables that are looked up while other tables are read. A new table takes some 20 round trips and waits for
the stream twice, so four tables at a time would take minutes for 2,000 tables. Each table takes some 100 bytes of the
checkpoint."""

TOKEN_LENGTH_MIN: Final = 16
"""Characters: fewer can be guessed, since anybody may try."""


def _check_token(token: SecretStr) -> SecretStr:
    if not TOKEN_LENGTH_MIN <= len(token.get_secret_value()) <= NAME_MAX:
        raise ValueError(f"must have {TOKEN_LENGTH_MIN} to {NAME_MAX} characters")
    return token


SharedToken = Annotated[SecretStr, AfterValidator(_check_token)]
"""Token that the configuration shares with the senders of logical messages."""


def _check_query(text: str) -> str:
    if ROWS not in text:
        raise ValueError(f"must read the rows of the table as {ROWS}, with an alias: … FROM {ROWS} AS r …")
    return text


def _check_queries(queries: dict[str, str]) -> dict[str, str]:
    if len(set(map(table_named, queries))) < len(queries):
        raise ValueError("must have each table once")
    return queries


SnapshotQuery = Annotated[Text, AfterValidator(_check_query)]


class SnapshotConfig(Section):
    """Reading of rows that exist already."""

    mode: Literal["initial", "never", "only", "when_needed"] = Field(
        "initial",
        description="initial: a new pipeline begins with the existing rows, as op r, and continues with the changes; "
        "an interrupted snapshot is completed. never: changes only. only: the process ends when the rows are "
        "delivered; the slot stays for a later run. when_needed: as initial, and again when the slot was lost.",
    )
    lost_slot: Literal["heal", "read_again"] = Field(
        "heal",
        description="What when_needed does after a slot was lost. heal: a new slot, then each topic is compared with "
        "its table at the slot's snapshot, and gets a record for each difference (deletes, updates, inserts). Topics "
        "that cannot be compared reliably are treated as with read_again: a truncate record ends the former rows, and "
        "the table is read again. read_again: cdcd does that for all tables.",
    )
    method: Literal["exported", "incremental"] = Field(
        "exported",
        description="exported: cdcd reads the rows at the slot's first position, before it streams; PostgreSQL keeps "
        "the WAL meanwhile. incremental: cdcd reads the rows while it streams; every table needs a key.",
    )
    parallelism: int = Field(
        4, ge=1, le=64, description="Connections that read. Too many readers slow the source down."
    )
    chunk_bytes: int = Field(
        MIB,
        ge=8 * KIB,
        le=64 * MIB,
        description="Size of the part of a table that is read at a time, in bytes on disk. Memory holds at most "
        "parallelism chunks, and one more for each table that is being read.",
    )
    added_tables: bool | None = Field(
        None,
        description="Whether a table that is added to the publication later is read too. null: true if "
        "postgres.publication_changes lets cdcd add tables, else false.",
    )
    changed_partitions: Literal["tell", "read"] = Field(
        "tell",
        description="What cdcd does when a partition of a table that is published as a whole was detached, dropped or "
        "truncated by its own name, or attached with rows (by the server's statistics), of which PostgreSQL sends "
        "nothing. tell: an event. read: also, the former rows of the table end in its topic, and the table is read "
        "again; needs PostgreSQL 14 and snapshot.signals. tell is the default because large tables with partitions "
        "that come and go would be read often.",
    )
    exclude: TablePatterns | None = Field(
        None,
        description="Tables of which only changes are delivered, as patterns like those of postgres.tables, such as "
        "those that Spark reads (cdcd mirror --snapshot). An interrupted snapshot leaves them out too. "
        "A request reads them like any other table.",
    )
    queries: Annotated[dict[TableName, SnapshotQuery], AfterValidator(_check_queries)] = Field(
        default_factory=dict,
        description="Queries of tables, as <schema>.<table>: the SELECT that reads the rows of the table in place of "
        "the table itself. {rows} stands for a chunk of the table: SELECT * FROM {rows} AS r WHERE r.kind <> 'old'. "
        "The query returns the table's columns, with their names and types, among them the key. PostgreSQL runs it as "
        "the role that reads the table, with search_path = pg_catalog. Changes are not affected.",
    )
    signals: Literal["all", "without_where", "off"] = Field(
        "without_where",
        description="Kinds of requests by logical message (cdcd snapshot, pg_logical_emit_message) that cdcd accepts, "
        "if signals_from allows the sender. all: also those with a where, which PostgreSQL evaluates as this role, in "
        "a READ "
        "ONLY transaction with a timeout; a superuser's functions can do harm even there.",
    )
    signals_from: Literal["authorized", "anybody"] = Field(
        "authorized",
        description="Who may send requests. authorized: a request needs a token: signal_token, or that of the running "
        "instance, which only the pipeline's role can read, and which cdcd snapshot sends by itself. anybody: whoever "
        "may connect to the database can start, pause and cancel snapshots, unless EXECUTE on pg_logical_emit_message "
        "is revoked from PUBLIC.",
    )
    signal_token: SharedToken | None = Field(
        None,
        description="Secret text of at least 16 characters, as the token of requests that are sent while no instance "
        "runs, or by other programs. The token is then in the WAL, where roles with REPLICATION can read it.",
    )
    signal_token_file: FilePath | None = Field(
        None, description="File that holds signal_token, instead of signal_token."
    )
    signal_topic: TopicName | None = Field(
        None,
        description="Topic in which programs write requests in the form of Debezium's signals, with topics.prefix as "
        "the key (docs/snapshots.md). null: none is read. Whoever may write into the topic can make requests, so the "
        "rights in Kafka decide who may.",
    )
    rereads_per_hour_max: int = Field(
        1000,
        ge=0,
        le=3600,
        description="Number of times in an hour that requests may read a table. A further request is refused "
        "(snapshot.refused), because reading a large table costs the source, Kafka and all readers a lot. 0: no limit.",
    )
    condition_timeout_s: float = Field(
        60.0,
        ge=0.1,
        le=3600,
        description="How long PostgreSQL may evaluate the where of a request for one chunk. A request that takes "
        "longer fails with the event table.failed, because a condition that sleeps would block a reader.",
    )

    @property
    def query_texts(self) -> dict[str, str]:
        """Queries by the texts of their tables (`core/table_names.py`), however the configuration quotes the names."""
        return {table_named(table): query for table, query in self.queries.items()}

    def settings(self, exclude: tuple[str, ...], *, added_tables: bool) -> SnapshotSettings:
        """Return the settings of the engine, with those that depend on other sections as arguments."""
        return SnapshotSettings(
            mode=self.mode,
            method=self.method,
            exclude=exclude,
            chunk_bytes=self.chunk_bytes,
            parallelism=self.parallelism,
            added_tables=added_tables,
            signals=self.signals,
            rereads_per_hour_max=self.rereads_per_hour_max,
            tables_ahead=TABLES_AHEAD,
            heals=self.lost_slot == "heal",
        )

    @field_serializer("signal_token")
    def _show_token(self, token: SecretStr | None) -> str | None:
        return None if token is None else MASK
