"""The part of the configuration that the engine's decisions depend on.

A section of the configuration builds each group (`cdcd/config/sections/`); `daemon/settings.py` adds what depends on
several sections.
"""

from dataclasses import dataclass, field
from typing import Final

from cdcd.core.engine.renewal import LARGE_BYTES, QUIET_S
from cdcd.core.snapshot.beginning import ONLY
from cdcd.core.snapshot.progress import EXPORTED

PREPARED_WARNING_AGE_S: Final = 300
"""Default of `prepared_warning_age_s`, in seconds."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Limits of batches and of the queue, from the section `kafka`.

    Attributes:
        bytes_max: size in bytes of keys and values at which a batch ends (see also `queue.PART`).
        records_max: number of records at which a batch ends. A transaction with as many is handed over in parts.
        queue_bytes_max: bytes that wait or are being delivered, above which nothing is added to the queue. It must not
            be less than `bytes_max`: a transaction of a size between the two would wait for room that only its own end
            could make.
        whole_bytes_max: a transaction with more bytes of records than this is cut into several Kafka transactions.
            0: every part is a Kafka transaction of its own. None if there are no Kafka transactions.
    """

    bytes_max: int
    records_max: int
    queue_bytes_max: int
    whole_bytes_max: int | None = 0


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How rows are read that are in the tables already, from the section `snapshot`.

    Attributes:
        mode, method, signals: as in the configuration.
        exclude: patterns of the tables that no snapshot reads unless somebody requests it.
        chunk_bytes, parallelism: bytes of a chunk on disk, and number of chunks that are read at a time.
        added_tables: whether a table that is added to the publication is read.
        rereads_per_hour_max: number of readings of one table that requests may start in an hour; 0: no limit.
        tables_ahead: number of tables beyond `parallelism` that are looked up and wait at a time, if each has only
            one chunk, so that no table is watched for long before a connection is free for its rows.
        heals: whether a gap is healed by the differences between topics and tables (`snapshot.lost_slot`).
    """

    mode: str = "initial"
    method: str = EXPORTED
    exclude: tuple[str, ...] = ()
    chunk_bytes: int = 1 << 20
    parallelism: int = 4
    added_tables: bool = False
    signals: str = "without_where"
    rereads_per_hour_max: int = 0
    tables_ahead: int = 0
    heals: bool = False

    @property
    def reads(self) -> bool:
        """True if tables are read without a request."""
        return self.mode != "never"

    @property
    def ends(self) -> bool:
        """True if the session ends when every table is read."""
        return self.mode == ONLY


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """Intervals of the records that cdcd makes by itself, from the section `heartbeat`.

    Attributes:
        interval_s: seconds between heartbeats; 0 if there are none.
        has_query: whether a query is also run on the source at each interval.
        watermark_s: seconds between watermarks in the topics of tables; 0 if there are none.
    """

    interval_s: float = 0.0
    has_query: bool = False
    watermark_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Which contexts of transactions become headers (`context.py`), from the section `context`.

    Attributes:
        tokens: digests of tokens (`token_digest`), one of which a context must have; None if it needs none.
        bytes_max: maximum of bytes in the content of the message; a larger context is refused.
    """

    tokens: tuple[str, ...] | None = None
    bytes_max: int = 4096


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's settings.

    Attributes:
        name: name of the pipeline.
        batches, snapshot, heartbeat: what the sections of the configuration build.
        status_interval_s: seconds between status updates to PostgreSQL.
        shutdown_grace_s: maximum of seconds that a PostgreSQL which shuts down waits for what is being delivered.
        prepared_warning_age_s: seconds after which an undecided prepared transaction is reported.
        request_tokens: digests of the tokens that requests need; None if they need none.
        truncate: whether TRUNCATE makes a record.
        message_prefixes: prefixes of the logical messages that have records; None if all have records.
        large_bytes, quiet_s: as in `Renewal`.
        record_bytes_max: size above which the producer refuses records, if each row has a record with all its
            columns; 0 if this is not certain, or if larger records go elsewhere.
        sets_aside: whether a fault of a table sets the table aside; if not, it ends the session.
        has_requests: whether requests can arrive as logical messages. Servers before PostgreSQL 14 send none.
        context: contexts of transactions; None if they are logical messages like any other.
        fails_over_bytes: size of key and value above which a record is a fault of its table; 0 if larger records go
            elsewhere.
    """

    name: str
    batches: BatchSettings
    status_interval_s: float
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    shutdown_grace_s: float = 5.0
    prepared_warning_age_s: float = PREPARED_WARNING_AGE_S
    truncate: bool = True
    request_tokens: tuple[str, ...] | None = None
    message_prefixes: tuple[bytes, ...] | None = None
    large_bytes: int = LARGE_BYTES
    quiet_s: float = QUIET_S
    record_bytes_max: int = 0
    sets_aside: bool = False
    fails_over_bytes: int = 0
    has_requests: bool = True
    context: ContextSettings | None = None
