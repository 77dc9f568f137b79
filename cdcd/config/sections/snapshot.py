"""The keys of `snapshot`: rows that are in the tables already."""

from typing import Literal

from pydantic import Field

from cdcd.config.types import KIB, MIB, Section, TablePatterns


class SnapshotConfig(Section):
    """Rows that are in the tables already."""

    mode: Literal["initial", "never", "only", "when_needed"] = Field(
        "initial",
        description="initial: a new pipeline begins with the rows that exist, as op r, and goes on with the "
        "changes; what was interrupted is finished. never: changes only. only: the process ends when the rows are "
        "delivered; the slot stays for a later run. when_needed: as initial, and again when the slot was lost.",
    )
    method: Literal["exported", "incremental"] = Field(
        "exported",
        description="exported: read at the slot's first position, before streaming; the WAL since then is kept "
        "meanwhile. incremental: beside the stream; every table needs a key.",
    )
    parallelism: int = Field(
        4, ge=1, le=64, description="Connections that read. More than the source can spare slow it down."
    )
    chunk_bytes: int = Field(
        MIB,
        ge=8 * KIB,
        le=64 * MIB,
        description="How much of a table, on disk, is read at a time. Up to parallelism chunks are in memory, and "
        "one more for each table that is being read.",
    )
    added_tables: bool = Field(
        False, description="Whether a table that is added to the publication later is read too."
    )
    exclude: TablePatterns | None = Field(
        None,
        description="Tables of which only changes are delivered, as patterns like those of postgres.tables, such as "
        "those that Spark reads (cdcd mirror --snapshot). An interrupted snapshot leaves them out too. "
        "On demand they are read like any other.",
    )
    signals: Literal["all", "without_where", "off"] = Field(
        "without_where",
        description="Which requests by logical message (cdcd snapshot, pg_logical_emit_message) are followed. "
        "Whoever may connect to the database can send one. all: also those with a where, which PostgreSQL evaluates as "
        "this role, in a READ ONLY transaction with a timeout; a superuser's functions can do harm even there.",
    )
    condition_timeout_s: float = Field(
        60.0,
        ge=0.1,
        le=3600,
        description="How long PostgreSQL may evaluate the where of a request for one chunk. A request that takes "
        "longer is given up with the event table.failed, because a condition may sleep and would keep a reader.",
    )
