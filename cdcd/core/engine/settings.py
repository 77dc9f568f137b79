"""What of the configuration the engine's decisions depend on."""

from dataclasses import dataclass
from typing import Final

from cdcd.core.engine.renewal import LARGE_BYTES, QUIET_S

PREPARED_WARNING_AGE_S: Final = 300
"""The default of `prepared_warning_age_s`: seconds."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The configuration as the engine has it.

    Attributes:
        name: the pipeline's name.
        bytes_max, records_max, queue_bytes_max, whole_bytes_max: as in `BatchQueue`.
        status_interval_s: PostgreSQL gets a status update at this interval.
        shutdown_grace_s: a PostgreSQL that shuts down waits at most so long for what is being delivered.
        prepared_warning_age_s: age at which an undecided prepared transaction is reported.
        chunk_bytes, parallelism: size of a chunk on disk, and how many are read at a time.
        tables_ahead: how many tables beyond `parallelism` are looked up and waited for at a time, if each is one chunk.
        snapshot_mode, added_tables, signals: as in the configuration, under `snapshot`.
        request_tokens: digests of the tokens that requests need; None: they need none.
        rereads_per_hour_max: number of readings of one table that requests may start in an hour; 0: no limit.
        truncate: TRUNCATE makes a record.
        snapshot_only: the session ends when every table is read.
        heartbeat_s: interval of heartbeats, in seconds; 0: there are none.
        heartbeat_query: at each interval, a query is run on the source, too.
        watermark_s: interval of watermarks in the topics of tables, in seconds; 0: there are none.
        message_prefixes: prefixes of the logical messages that have records; None: all have records.
        large_bytes, quiet_s: as in `Renewal`.
        record_bytes_max: the producer refuses larger records, and each row has a record with all of its columns; 0:
            this is not certain, or larger records go elsewhere.
        sets_aside: a fault that belongs to a table sets the table aside; False: it ends the session.
        fails_over_bytes: a record of a table with more bytes of key and value is a fault of the table; 0: larger
            records go elsewhere.
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
