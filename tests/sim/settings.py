"""What a seed decides before anything happens: the server, the daemon's limits, the workload, what may break.

Each seed takes part of the features and faults only ("swarm testing", Groce et al.): what is always there hides what
shows when it is absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

RECORD_BYTES: Final = 800
"""About what a record takes."""


@dataclass(slots=True)
class Settings:
    """All of it, drawn from the seed."""

    version: int
    streaming: tuple[str, ...]
    two_phase: str
    messages: bool
    exactly_once: bool
    resends_after_abort: bool
    distributes: bool
    truncate_records: bool
    operations: int
    sessions: int
    multi_insert_max: int
    work_mem_max: int
    p_end: float
    p_savepoint: float
    p_abort: float
    p_prepare: float
    p_keep_prepared: float
    p_message: float
    p_origin: float
    p_request: float
    p_ddl: float
    p_truncate: float
    p_membership: float
    p_vacuum: float
    ddl: tuple[str, ...]
    requests: tuple[str, ...]
    tables: int
    rows: int
    page_rows: int
    keys_max: int
    p_composite: float
    p_full: float
    p_create_published: float
    p_insert: float
    p_delete: float
    p_key_change: float
    p_keep_toast: float
    unseen_ticks_max: int
    p_publication: float
    snapshot_mode: str
    snapshot_method: str
    added_tables: bool
    signals: str
    pipeline: str
    chunk_bytes: int
    parallelism: int
    slot_exists: bool
    p_lost: float
    ask_ticks_max: int
    lock_ticks: int
    checkpoint_bytes_max: int
    whole_bytes_max: int
    batch_records_max: int
    batch_bytes_max: int
    queue_bytes_max: int
    idle_s: float
    status_interval_s: float
    spool_memory_max: int
    receive_max: int
    p_workload: float
    p_decode: float
    p_keepalive: float
    p_fault: float
    p_aftershock: float
    faults: tuple[str, ...]
    p_reject: float
    p_unknown: float
    p_hold: float
    p_part: float
    p_hang: float = 0.0
    """How often the broker dies after it has acknowledged a commit, whose transaction then hangs."""
    p_refuse: float = 0.0
    """How often a step of a start, or a request for topics, is refused for good: a person must mend something."""
    locked: int = 0
    """How many tables somebody locks early, and keeps until all the others are read."""
    partitioned: bool = False
    """Requests may name a partitioned table, whose partitions are all tables."""
    publishes: bool = False
    """Some messages are events of an outbox (`published.py`)."""
    skipped: tuple[str, ...] = ()
    """Operations without records."""
    heartbeat_s: float = 0.0
    """Interval of heartbeats, and of the query on the source; 0: there are none (`core/engine/timed_records.py`)."""
    watermark_s: float = 0.0
    """Interval of watermarks in the topics of tables; 0: there are none (`watermarks.py`)."""
    filters: bool = False
    """Tables have a filter (`filtered.py`)."""
    parted: bool = False
    """Columns choose the partitions of records (`parted.py`)."""
    protected: bool = False
    """A rule protects a column of every table (`protected.py`)."""
    routes: bool = False
    """Rows of tables are routed (`routed.py`)."""
    shared: bool = False
    """All tables share one topic (`shared.py`)."""
    described: bool = False
    """Tables are described in the topic of schemas (`descriptions.py`)."""
    left_out: tuple[str, ...] = ()
    """Names of tables that the pipeline leaves out."""
    durable: bool = False
    heals: bool = False
    """Topics are healed after a gap, by their differences from the tables."""
    """While Kafka is away, the stream goes to a durable log (`spooling.py`)."""
    away_ticks_max: int = 120
    """How long Kafka may be away."""
    small_log: bool = False
    """The durable log is full soon."""
    metadata: bool = False
    """Transactions have BEGIN and END, and records their place in them (`metadata.py`)."""
    message_bytes_max: int = 0
    """Of larger logical messages, size and digest are taken; 0: all are taken whole."""
    p_keyless: float = 0.0
    """How often a table has no key."""
    large_bytes: int = 0
    tables_ahead: int = 0
    """How many tables beyond `parallelism` are looked up at a time. Never drawn, so that seeds stay what they are."""
    """After larger frames, the connection is renewed; 0: it is not."""

    p_topic_fault: float = 0.0
    """How often one topic of those that are asked for is refused."""
    p_batch_fault: float = 0.0
    """How often the broker refuses the records of one table in a batch."""
    refused_ticks_max: int = 0
    """How long the broker may take to refuse them."""
    topic_ticks_max: int = 0
    """How much longer it may take until topics are there."""
    refuses_markers: bool = False
    """Some topics refuse the markers of transactions (`broker.py`), which is found when they are asked for."""
    row_faults: bool = False
    """Some rows cannot be encoded (`aside.py`)."""
    p_kill_in_fault: float = 0.0
    """How often the instance that has set a table aside is killed within some ticks, before or while the batch without
    the table goes out."""

    @property
    def sets_aside(self) -> bool:
        """Whether tables have faults."""
        found = self.row_faults or self.p_topic_fault > 0 or self.p_batch_fault > 0
        return found or self.refuses_markers

    @property
    def part_bytes(self) -> int:
        """Large transactions are handed over in parts of this size."""
        return max(self.batch_bytes_max, min(3 * self.batch_bytes_max, self.queue_bytes_max // 2))


FAULTS: Final = (
    "disconnect",
    "crash_daemon",
    "stop_daemon",
    "crash_postgres",
    "shutdown_postgres",
    "freeze",
    "broker_away",
    "persist_slot",
)
"""What happens from outside. What Kafka's answers do (reject, fail after the write, hold) is drawn at each call."""


REFUSED: Final[dict[str, Any]] = {
    "p_refuse": 0.4,
    "p_part": 0.0,
    "whole_bytes_max": 0,
    "slot_exists": False,
    "faults": ("disconnect", "crash_daemon", "stop_daemon", "freeze"),
    "p_fault": 0.02,
}
"""First starts that come to nothing."""

TABLE_FAULTS: Final[dict[str, Any]] = {
    "exactly_once": True,
    "p_topic_fault": 0.2,
    "p_batch_fault": 0.06,
    "row_faults": True,
    "snapshot_mode": "initial",
    "added_tables": True,
    "messages": True,
    "signals": "all",
    "requests": ("start", "pause", "resume"),
    "truncate_records": True,
    "tables": 4,
    "ddl": ("add_column", "create"),
    "p_ddl": 0.03,
    "skipped": (),
    "left_out": (),
    "whole_bytes_max": 1 << 20,
    "p_prepare": 0.02,
    "p_fault": 0.015,
    "faults": ("disconnect", "crash_daemon", "stop_daemon", "crash_postgres", "broker_away"),
}
"""Faults of tables: tables go and come while sessions end."""

_WITH: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "at least once": {"exactly_once": False},
    "prepared": {"p_prepare": 0.3},
    "cut": {"whole_bytes_max": 0, "p_batch_fault": 0.1, "p_part": 0.1},
    "routes": {"routes": True},
    "filters": {"filters": True},
    "renames": {"ddl": ("add_column", "create", "rename"), "p_ddl": 0.08},
    "swaps": {"ddl": ("add_column", "create", "swap"), "p_ddl": 0.08},
    "drops": {"ddl": ("add_column", "create", "replace", "drop"), "p_ddl": 0.06, "p_create_published": 0.8},
    "partitions": {"parted": True, "p_full": 1.0},
    "partitioned roots": {"partitioned": True},
    "protected columns": {"protected": True},
    "descriptions": {"described": True},
    "metadata": {"metadata": True},
    "no keys": {"p_keyless": 0.4},
    "one topic": {"shared": True, "ddl": ("add_column", "create", "rename", "swap"), "p_ddl": 0.08},
}

TABLE_FAULTS_AND_KILLS: Final[dict[str, dict[str, Any]]] = {
    name: {**TABLE_FAULTS, "p_kill_in_fault": 0.5, **also} for name, also in _WITH.items()
}
"""The same with kills in the fault: before or while the batch without the table goes out."""

HANGING: Final[dict[str, Any]] = {
    "exactly_once": True,
    "p_hang": 0.1,
    "p_reject": 0.0,
    "p_unknown": 0.0,
    "away_ticks_max": 40,
    "faults": ("disconnect", "crash_daemon", "stop_daemon", "freeze", "broker_away"),
    "p_fault": 0.02,
}
"""Transactions that hang after their commit was acknowledged."""

SKIPPING: Final[dict[str, Any]] = {
    "skipped": ("u", "d"),
    "snapshot_mode": "never",
    "added_tables": False,
    "signals": "off",
    "p_request": 0.0,
    "p_end": 0.05,
    "p_delete": 0.2,
    "batch_records_max": 2,
    "p_fault": 0.03,
    "faults": ("disconnect", "crash_daemon"),
}
"""Operations without records, with restarts inside of transactions that have some."""

LEAVING_OUT: Final[dict[str, Any]] = {
    **SKIPPING,
    "skipped": (),
    "left_out": ("t1", "t3"),
    "tables": 3,
    "ddl": ("rename", "swap", "add_column", "create"),
    "p_ddl": 0.08,
    "p_truncate": 0.05,
    "p_savepoint": 0.1,
}
"""Tables that are left out, which come in and go out by their names, with restarts inside of transactions."""

LEAVING_OUT_AND_READING: Final[dict[str, Any]] = {
    **LEAVING_OUT,
    "snapshot_mode": "initial",
    "added_tables": True,
    # Each name that nobody had is left out. From there a table comes back to a former name.
    "left_out": tuple(f"t{number}" for number in range(2, 40)),
    "ddl": ("rename",),
    "p_ddl": 0.2,
    "p_end": 0.3,
    "p_membership": 0.0,
    "p_truncate": 0.0,
    "p_prepare": 0.0,
    "p_abort": 0.0,
    "p_insert": 0.8,
    "p_delete": 0.02,
    "keys_max": 60,
    "operations": 120,
    "p_workload": 0.9,
    "two_phase": "off",
    "p_fault": 0.0,
}
"""The same where each table that the pipeline has must be equal to its topic in the end."""

FLATTENED: Final[dict[str, Any]] = {
    **SKIPPING,
    "skipped": (),
    "truncate_records": False,
    "p_full": 0.0,
    "ddl": ("add_column", "drop_column"),
}
"""Flattened records (`flattened.py`), which have no TRUNCATE and no row before an update."""

DURABLE: Final[dict[str, Any]] = {
    "durable": True,
    "slot_exists": False,
    "two_phase": "off",
    "exactly_once": True,
    "idle_s": 0.2,
    "status_interval_s": 0.1,
    "p_workload": 0.15,
    "p_decode": 1.0,
    "p_end": 0.15,
    "p_hold": 0.0,
    "ask_ticks_max": 3,
    "receive_max": 30,
    "away_ticks_max": 800,
    "operations": 200,
    "faults": (
        "broker_away",
        "broker_away",
        "broker_away",
        "crash_daemon",
        "crash_daemon",
        "crash_machine",
        "crash_machine",
        "disconnect",
        "crash_postgres",
        "shutdown_postgres",
        "persist_slot",
        "stop_daemon",
        "freeze",
    ),
    "p_fault": 0.01,
    "p_aftershock": 0.005,
}
"""Outages of Kafka that a durable log bridges, with kills of the daemon and of its machine."""

TABLE_FAULTS_AND_KILLS["durable log"] = {
    **TABLE_FAULTS_AND_KILLS["plain"],
    **{key: value for key, value in DURABLE.items() if key != "p_fault"},
}

TABLE_FAULTS_WHILE_BATCHES_WAIT: Final[dict[str, Any]] = {
    **TABLE_FAULTS,
    "p_batch_fault": 0.25,
    "refused_ticks_max": 300,
    "p_topic_fault": 0.3,
    "row_faults": False,
    "batch_records_max": 1,
    "p_kill_in_fault": 0.95,
    "p_fault": 0.005,
    "faults": ("disconnect", "crash_daemon"),
}
"""Batches that are refused after tables have come back in batches behind them, and sessions that end right after."""

REFUSED_MARKERS: Final[dict[str, Any]] = {
    **TABLE_FAULTS,
    "refuses_markers": True,
    "p_topic_fault": 0.0,
    "p_batch_fault": 0.0,
    "row_faults": False,
}
"""Topics that would keep Kafka from ending a transaction."""

TABLE_FAULTS_AND_KILLS["refused markers"] = {**REFUSED_MARKERS, "p_kill_in_fault": 0.5}

SLOW_TOPICS: Final[dict[str, Any]] = {
    **TABLE_FAULTS,
    "slot_exists": False,
    "topic_ticks_max": 60,
    "p_batch_fault": 0.0,
}
"""The first tables are read before their topics are there."""

TABLE_FAULTS_AND_KILLS["slow topics"] = {**SLOW_TOPICS, "p_kill_in_fault": 0.5}

TABLE_FAULTS_AND_ROUTES: Final[dict[str, Any]] = {**TABLE_FAULTS, "routes": True}
"""Tables with several topics, of which one has the fault."""

MOVES: Final = ("move_slot",)
"""Ends most simulations, by a refusal to start; so few have it."""

RESTARTS: Final = ("disconnect", "crash_daemon")

SNAPSHOT: Final[dict[str, Any]] = {
    "snapshot_mode": "initial",
    "exactly_once": True,
    "truncate_records": True,
    "messages": True,
    "p_savepoint": 0.1,
    "p_prepare": 0.0,
    "rows": 30,
    "keys_max": 40,
    "page_rows": 3,
    "chunk_bytes": 8192,
    "tables": 2,
    "operations": 250,
    "p_truncate": 0.02,
    "idle_s": 0.2,
}
"""Tables of some pages, which are read while they change."""

KEYLESS: Final[dict[str, Any]] = {
    **SNAPSHOT,
    "p_keyless": 0.7,
    "p_full": 0.0,
    "p_request": 0.35,
    "p_message": 0.2,
    "version": 18,
    "signals": "all",
    "requests": ("start",),
    "snapshot_method": "exported",
    "operations": 500,
    "p_truncate": 0.01,
    "p_end": 0.4,
    "added_tables": True,
    "p_membership": 0.0,
    "p_vacuum": 0.05,
    "unseen_ticks_max": 20,
    "ask_ticks_max": 30,
    "p_workload": 0.4,
    "p_decode": 1.0,
    "receive_max": 30,
    "idle_s": 0.0,
    "queue_bytes_max": 1_000_000,
    "batch_bytes_max": 100_000,
    "batch_records_max": 10,
    "p_lost": 0.002,
    "ddl": ("add_column", "drop_column", "retype", "cluster"),
    "p_ddl": 0.03,
    "whole_bytes_max": 1_000_000_000,
    "slot_exists": False,
    "faults": ("disconnect", "crash_daemon", "stop_daemon", "crash_postgres", "freeze"),
    "p_fault": 0.002,
}
"""Tables without a key, which are read again while they change."""

KEYLESS_AND_QUIET: Final[dict[str, Any]] = {**KEYLESS, "p_request": 0.06}
"""As `KEYLESS`, with so few requests that the last reading ends long before the last change."""

LOST_SLOTS: Final[dict[str, Any]] = {
    **SNAPSHOT,
    "snapshot_mode": "when_needed",
    "two_phase": "off",
    "p_membership": 0.0,
    "p_delete": 0.2,
    "p_key_change": 0.2,
    "p_end": 0.3,
    "ask_ticks_max": 10,
    "faults": ("lose_slot", *RESTARTS),
    "p_fault": 0.02,
    "p_aftershock": 0.1,
}
"""The slot is dropped or moved past the checkpoint, and cdcd reads the tables again."""

HEALED: Final[dict[str, Any]] = {**LOST_SLOTS, "heals": True, "snapshot_method": "exported"}
"""As `LOST_SLOTS`, with topics that are compared with their tables."""

HEALED_AND_KILLED: Final[dict[str, Any]] = {
    **HEALED,
    "faults": ("lose_slot", "crash_daemon", "crash_daemon"),
    "p_fault": 0.06,
    "p_aftershock": 0.5,
    "rows": 30,
    "ask_ticks_max": 30,
    "batch_records_max": 2,
}
"""As `HEALED`, with sessions that end while topics are healed."""

LOST_SLOTS_AND_NAMES: Final[dict[str, Any]] = {
    **LOST_SLOTS,
    "ddl": ("swap", "rename", "replace", "create"),
    "p_ddl": 0.15,
    "p_create_published": 1.0,
    "added_tables": True,
    "tables": 3,
}
"""As `LOST_SLOTS`, while tables swap, change and reuse names."""

HEALED_AND_NAMES: Final[dict[str, Any]] = {
    **LOST_SLOTS_AND_NAMES,
    "heals": True,
    "snapshot_method": "exported",
}
"""As `LOST_SLOTS_AND_NAMES`, with topics that are compared with their tables."""

LOCKED: Final[dict[str, Any]] = {
    **SNAPSHOT,
    "locked": 1,
    "p_request": 0.0,
    "parallelism": 1,
    "tables": 3,
    "added_tables": True,
    "p_truncate": 0.0,
    "p_end": 0.6,
    "ask_ticks_max": 10,
    "lock_ticks": 5,
    "operations": 80,
    "faults": ("crash_daemon",),
    "p_fault": 0.01,
}
"""A table that somebody has locked while tables are read, one at a time."""

PARTITIONED: Final[dict[str, Any]] = {
    **SNAPSHOT,
    "snapshot_mode": "never",
    "partitioned": True,
    "signals": "all",
    "requests": ("partitioned",),
    "tables": 3,
    "operations": 80,
    "p_message": 0.1,
    "p_request": 0.8,
    "p_membership": 0.0,
    "p_ddl": 0.0,
    "p_end": 0.3,
    "ask_ticks_max": 10,
    "faults": ("crash_daemon",),
    "p_fault": 0.01,
}
"""Requests for a table that is published through its partitions."""

SNAPSHOTS: Final[tuple[dict[str, Any], ...]] = (
    # Updates that leave TOAST alone, beside chunks and after a snapshot was interrupted.
    {
        **SNAPSHOT,
        "p_keep_toast": 0.9,
        "p_insert": 0.1,
        "p_delete": 0.05,
        "p_key_change": 0.1,
        "p_full": 0.0,
        "p_end": 0.3,
        "ask_ticks_max": 10,
        "faults": RESTARTS,
        "p_fault": 0.02,
    },
    # Files that are rewritten and columns that are added between two chunks.
    {
        **SNAPSHOT,
        "ddl": ("add_column", "retype", "cluster"),
        "p_ddl": 0.15,
        "p_vacuum": 0.07,
        "p_end": 0.3,
        "ask_ticks_max": 10,
    },
    # Names that change hands.
    {
        **SNAPSHOT,
        "ddl": ("swap", "rename", "replace", "create"),
        "p_ddl": 0.15,
        "p_create_published": 1.0,
        "added_tables": True,
        "p_end": 0.3,
        "tables": 3,
    },
    # Tables that are added during the first snapshot, some with open writers.
    {
        **SNAPSHOT,
        "ddl": ("create",),
        "p_ddl": 0.1,
        "p_create_published": 0.3,
        "p_publication": 0.3,
        "p_membership": 0.9,
        "added_tables": True,
        "unseen_ticks_max": 10,
        "ask_ticks_max": 10,
    },
    # Requests, several for one table, paused and cancelled.
    {
        **SNAPSHOT,
        "signals": "all",
        "requests": ("start", "start", "start", "pause", "resume", "cancel", "where"),
        "p_message": 0.1,
        "p_request": 0.8,
        "p_end": 0.3,
        "ask_ticks_max": 10,
        "unseen_ticks_max": 10,
    },
    {
        **SNAPSHOT,
        "snapshot_mode": "never",
        "signals": "without_where",
        "requests": ("start", "start", "pause", "resume", "cancel"),
        "p_message": 0.1,
        "p_request": 0.8,
        "p_end": 0.3,
        "ask_ticks_max": 10,
        "p_keep_toast": 0.8,
    },
    # Paused for long, with a stream that is behind.
    {
        **SNAPSHOT,
        "signals": "all",
        "requests": ("pause", "pause", "resume", "start"),
        "p_message": 0.05,
        "p_request": 0.8,
        "p_end": 0.3,
        "p_keep_toast": 0.9,
        "p_decode": 0.2,
    },
    # An exported snapshot that is killed, and a backlog of transactions with one row each behind it.
    {
        **SNAPSHOT,
        "snapshot_method": "exported",
        "slot_exists": False,
        "p_end": 0.9,
        "p_workload": 1.0,
        "p_decode": 0.2,
        "p_keep_toast": 0.9,
        "p_fault": 0.02,
        "faults": RESTARTS,
        "unseen_ticks_max": 5,
    },
    # Requests that are meant badly.
    {
        **SNAPSHOT,
        "signals": "all",
        "requests": ("hostile", "hostile", "start", "cancel"),
        "p_message": 0.12,
        "p_request": 0.9,
        "p_end": 0.3,
        "p_fault": 0.01,
        "faults": RESTARTS,
    },
)
"""What reading tables beside the stream must withstand."""

FOCUSES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {},
    # Which definition is in force, with transactions of every kind open beside each other.
    {
        "version": 18,
        "streaming": ("off", "on", "parallel"),
        "two_phase": "on",
        "p_publication": 0.2,
        "p_ddl": 0.0,
        "p_abort": 0.1,
        "p_prepare": 0.5,
        "p_keep_prepared": 0.6,
        "work_mem_max": 3,
    },
    # Prepared before the slot knew of two phases, decided after.
    {
        "version": 17,
        "streaming": ("on",),
        "two_phase": "later",
        "work_mem_max": 8,
        "operations": 250,
        "p_workload": 0.3,
        "p_decode": 1.0,
        "p_abort": 0.1,
        "p_prepare": 0.7,
        "p_keep_prepared": 0.9,
        "faults": RESTARTS,
        "p_fault": 0.03,
    },
    # Two instances that take over from each other.
    {
        "faults": ("freeze",),
        "p_fault": 0.01,
        "exactly_once": True,
        "p_workload": 0.3,
        "p_decode": 1.0,
        "idle_s": 0.0,
    },
    # Large transactions, cut into many batches, with restarts inside of them.
    {
        "p_end": 0.05,
        "p_abort": 0.0,
        "batch_records_max": 2,
        "p_fault": 0.02,
        "p_aftershock": 0.2,
        "faults": RESTARTS,
        "p_keepalive": 0.3,
        "idle_s": 0.0,
        "p_decode": 0.4,
        "receive_max": 3,
    },
    *SNAPSHOTS,
    *SNAPSHOTS,
)
"""What some seeds look at more closely: bugs that need several rare things at once."""


DDL: Final = ("add_column", "drop_column", "retype", "cluster", "identity", "swap", "replace", "create")
REQUESTS: Final = ("start", "pause", "resume", "cancel", "where", "hostile")


def draw(rng: Random, focus: Mapping[str, Any] | None = None) -> Settings:
    """A seed's settings; `focus`: what some of them are, instead of one of `FOCUSES`."""
    drawn = _draw(rng)
    settings = replace(drawn, **(rng.choice(FOCUSES) if focus is None else focus))
    if "replace" in settings.ddl:
        # Nobody knows the key of a table with REPLICA IDENTITY FULL that was dropped before its changes are described.
        ddl = tuple([kind for kind in settings.ddl if kind != "identity"])
        settings = replace(settings, ddl=ddl, p_full=0.0)
    return settings


def _draw(rng: Random) -> Settings:
    version = rng.choice((13, 14, 15, 16, 17, 18, 18))
    streaming: tuple[str, ...] = ("off",)
    if version >= 14 and rng.random() < 0.85:
        modes = ["off", "on", "parallel"] if version >= 16 else ["off", "on"]
        streaming = tuple(modes) if rng.random() < 0.5 else (rng.choice(modes[1:]),)
    two_phase = rng.choice(("off", "on", "on", "later")) if version >= 15 else "off"
    batch_records_max = rng.choice((2, 2, 3, 5, 10, 1000))
    batch_bytes_max = RECORD_BYTES * rng.choice((2, 4, 8, 1000))
    return Settings(
        version=version,
        streaming=streaming,
        two_phase=two_phase,
        messages=version >= 14 and rng.random() < 0.7,
        exactly_once=rng.random() < 0.9,
        resends_after_abort=rng.random() < 0.5,
        distributes=rng.random() < 0.5,
        truncate_records=rng.random() < 0.7,
        operations=rng.choice((40, 80, 150, 250)),
        sessions=rng.choice((1, 2, 3, 4)),
        multi_insert_max=rng.choice((2, 4, 10)),
        work_mem_max=rng.choice((0, 2, 5, 20)),
        p_end=rng.choice((0.03, 0.08, 0.15, 0.3)),
        p_savepoint=rng.choice((0.0, 0.15, 0.35)),
        p_abort=rng.choice((0.0, 0.15, 0.4)),
        p_prepare=rng.choice((0.0, 0.2, 0.4)) if version >= 15 else 0.1,
        p_keep_prepared=rng.choice((0.1, 0.6)),
        p_message=rng.choice((0.0, 0.05, 0.12)),
        p_origin=rng.choice((0.0, 0.3)),
        p_request=rng.choice((0.0, 0.0, 0.3)),
        p_ddl=rng.choice((0.0, 0.04)),
        p_truncate=rng.choice((0.0, 0.02, 0.06)),
        p_membership=rng.choice((0.0, 0.3)),
        p_vacuum=rng.choice((0.0, 0.05)),
        ddl=tuple([kind for kind in DDL if rng.random() < 0.5]) or DDL,
        requests=tuple([kind for kind in REQUESTS if rng.random() < 0.5]) or REQUESTS,
        tables=rng.choice((1, 3, 4)),
        rows=rng.choice((0, 5, 12, 30)),
        page_rows=rng.choice((2, 3, 4)),
        keys_max=rng.choice((6, 15, 40)),
        p_composite=rng.choice((0.0, 0.4)),
        p_full=rng.choice((0.0, 0.3)),
        p_create_published=rng.choice((0.3, 1.0)),
        p_insert=rng.choice((0.2, 0.4)),
        p_delete=rng.choice((0.05, 0.2)),
        p_key_change=rng.choice((0.05, 0.2)),
        p_keep_toast=rng.choice((0.3, 0.8)),
        unseen_ticks_max=rng.choice((1, 1, 5, 40)),
        p_publication=rng.choice((0.0, 0.1, 0.3)),
        snapshot_mode=rng.choice(("initial", "initial", "initial", "never", "when_needed")),
        snapshot_method=rng.choice(("exported", "exported", "incremental")),
        added_tables=rng.random() < 0.6,
        signals=rng.choice(("all", "all", "without_where", "off")),
        pipeline="sim",
        chunk_bytes=8192 * rng.choice((1, 1, 2, 4)),
        parallelism=rng.choice((1, 2, 3)),
        slot_exists=rng.random() < 0.15,
        p_lost=rng.choice((0.0, 0.0, 0.02)),
        ask_ticks_max=rng.choice((1, 3, 10, 40)),
        lock_ticks=rng.choice((5, 100)),
        checkpoint_bytes_max=64_000,
        whole_bytes_max=RECORD_BYTES * rng.choice((0, 5, 20, 1_000_000)),
        batch_records_max=batch_records_max,
        batch_bytes_max=batch_bytes_max,
        queue_bytes_max=batch_bytes_max * rng.choice((1, 2, 4, 10)),
        idle_s=rng.choice((0.0, 0.2, 1.0)),
        status_interval_s=rng.choice((0.1, 1.0)),
        spool_memory_max=rng.choice((0, 300, 1_000_000, 1_000_000)),
        receive_max=rng.choice((1, 3, 30)),
        p_workload=rng.choice((0.3, 0.7, 1.0)),
        p_decode=rng.choice((0.2, 0.6, 1.0)),
        p_keepalive=rng.choice((0.02, 0.1, 0.3)),
        p_fault=rng.choice((0.0, 0.01, 0.03, 0.06)),
        p_aftershock=rng.choice((0.0, 0.1, 0.2)),
        faults=tuple(fault for fault in FAULTS if rng.random() < 0.6) + MOVES * (rng.random() < 0.1),
        p_reject=rng.choice((0.0, 0.0, 0.05, 0.15)),
        p_unknown=rng.choice((0.0, 0.0, 0.05, 0.2)),
        p_hold=rng.choice((0.0, 0.1, 0.5)),
        p_part=rng.choice((0.0, 0.0, 0.5, 0.8)),
    )
