"""The part of the configuration that the engine's decisions depend on."""

from dataclasses import dataclass
from typing import Final

from cdcd.core.engine.renewal import LARGE_BYTES, QUIET_S

PREPARED_WARNING_AGE_S: Final = 300
"""Default of `prepared_warning_age_s`, in seconds."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's settings.

    Attributes:
        name: name of the pipeline.
        bytes_max, records_max, queue_bytes_max, whole_bytes_max: as in `BatchQueue`.
        status_interval_s: seconds between status updates to PostgreSQL.
        shutdown_grace_s: maximum of seconds that a PostgreSQL which shuts down waits for what is being delivered.
        prepared_warning_age_s: seconds after which an undecided prepared transaction is reported.
        chunk_bytes, parallelism: bytes of a chunk on disk, and number of chunks that are read at a time.
        tables_ahead: number of tables beyond `parallelism` that are looked up and wait at a time, if each has only
            one chunk.
        snapshot_mode, added_tables, signals: as in the configuration, under `snapshot`.
        request_tokens: digests of the tokens that requests need; None if they need none.
        rereads_per_hour_max: number of readings of one table that requests may start in an hour; 0: no limit.
        truncate: whether TRUNCATE makes a record.
        snapshot_only: whether the session ends when every table is read.
        heartbeat_s: interval of heartbeats in seconds; 0 if there are none.
        heartbeat_query: whether a query is also run on the source at each interval.
        watermark_s: interval of watermarks in the topics of tables, in seconds; 0 if there are none.
        message_prefixes: prefixes of the logical messages that have records; None if all have records.
        large_bytes, quiet_s: as in `Renewal`.
        record_bytes_max: size above which the producer refuses records, if each row has a record with all its
            columns; 0 if this is not certain, or if larger records go elsewhere.
        sets_aside: whether a fault of a table sets the table aside; if not, it ends the session.
        has_requests: whether requests can arrive as logical messages. Servers before PostgreSQL 14 send none.
        fails_over_bytes: size of key and value above which a record is a fault of its table; 0 if larger records go
            elsewhere.
    """

    name: str
    bytes_max: int
    records_max: int
    queue_bytes_max: int
    whole_bytes_max: int | None
    status_interval_s: float
    shutdown_grace_s: float = 5.0
    prepared_warning_age_s: float = PREPARED_WARNING_AGE_S
    chunk_bytes: int = 1 << 20
    parallelism: int = 4
    snapshot_mode: str = "initial"
    added_tables: bool = False
    signals: str = "without_where"
    truncate: bool = True
    snapshot_only: bool = False
    heartbeat_s: float = 0.0
    heartbeat_query: bool = False
    watermark_s: float = 0.0
    request_tokens: tuple[str, ...] | None = None
    message_prefixes: tuple[bytes, ...] | None = None
    large_bytes: int = LARGE_BYTES
    quiet_s: float = QUIET_S
    record_bytes_max: int = 0
    rereads_per_hour_max: int = 0
    tables_ahead: int = 0
    sets_aside: bool = False
    fails_over_bytes: int = 0
    has_requests: bool = True
