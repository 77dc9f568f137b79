"""The settings that seeds share which look for one planted bug (`planted.py`): they bring about what it breaks.

A bug that needs several rare things at once would take hundreds of seeds otherwise. All else is drawn as ever.
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.sim.settings import LOCKED, REFUSED, RESTARTS, SNAPSHOT

MOVED_BEHIND_PREPARES: Final[Mapping[str, Any]] = {
    "version": 17,
    "two_phase": "on",
    "slot_exists": False,
    "p_abort": 0.1,
    "p_prepare": 0.7,
    "p_keep_prepared": 0.95,
    "faults": ("move_slot",),
    "p_fault": 0.02,
}
"""Somebody moves the slot while a PREPARE is undecided."""

MOVED: Final[Mapping[str, Any]] = {
    "two_phase": "off",
    "snapshot_mode": "initial",
    "faults": ("move_slot",),
    "p_fault": 0.02,
}
"""Somebody moves the slot."""

DESCRIBED_BETWEEN: Final[Mapping[str, Any]] = {
    "version": 18,
    "streaming": ("off",),
    "two_phase": "on",
    "p_publication": 0.3,
    "p_membership": 0.0,
    "p_ddl": 0.0,
    "p_abort": 0.1,
    "p_prepare": 0.5,
    "p_keep_prepared": 0.7,
    "operations": 250,
    "faults": (),
}
"""A table's column list changes between PREPARE and COMMIT PREPARED."""

STREAMED_SUBTRANSACTIONS: Final[Mapping[str, Any]] = {
    "version": 18,
    "streaming": ("on",),
    "two_phase": "off",
    "work_mem_max": 0,
    "p_savepoint": 0.35,
    "p_abort": 0.4,
    "p_publication": 0.3,
    "operations": 250,
    "snapshot_mode": "never",
    "faults": (),
}
"""Everything is streamed, columns change, and many subtransactions are rolled back."""

LARGE_MESSAGES: Final[Mapping[str, Any]] = {
    "version": 18,
    "messages": True,
    "exactly_once": True,
    "p_message": 0.12,
    "p_request": 0.0,
    "operations": 250,
    "message_bytes_max": 2,
    "large_bytes": 70,
    "faults": (),
}
"""Messages of three bytes are too large to be taken whole, and some frames have the connection renewed."""

CUT: Final[Mapping[str, Any]] = {
    "exactly_once": True,
    "snapshot_mode": "never",
    "operations": 250,
    "sessions": 2,
    "p_end": 0.05,
    "p_abort": 0.0,
    "p_delete": 0.2,
    "p_key_change": 0.2,
    "p_truncate": 0.06,
    "whole_bytes_max": 0,
    "batch_records_max": 2,
    "receive_max": 3,
    "p_decode": 0.4,
    "p_keepalive": 0.3,
    "idle_s": 0.0,
    "faults": RESTARTS,
    "p_fault": 0.05,
    "p_aftershock": 0.2,
}
"""Transactions that are cut into many batches, with restarts inside of them, and events of two records or of none."""

STREAMED_AGAIN: Final[Mapping[str, Any]] = {
    "version": 17,
    "streaming": ("on",),
    "two_phase": "later",
    "work_mem_max": 20,
    "snapshot_mode": "never",
    "operations": 250,
    "p_workload": 0.3,
    "p_decode": 1.0,
    "p_end": 0.3,
    "multi_insert_max": 4,
    "p_abort": 0.1,
    "p_prepare": 0.7,
    "p_keep_prepared": 0.98,
    "p_message": 0.0,
    "faults": RESTARTS,
    "p_fault": 0.03,
}
"""What was prepared before the slot knew of two phases is streamed once more after a restart, and rolled back.

PostgreSQL streams it once more if it is the largest transaction in memory, so work_mem must be large enough that it was
not written to disk when it was decoded again up to the start.
"""

AT_LEAST_ONCE: Final[Mapping[str, Any]] = {
    "exactly_once": False,
    "p_hold": 0.5,
    "p_fault": 0.05,
    "faults": ("crash_daemon", "broker_away"),
}
"""Daemons that die between two writes without a Kafka transaction."""

REWRITTEN_WHILE_EXPORTED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "exported",
    "slot_exists": False,
    "ddl": ("cluster",),
    "p_ddl": 0.3,
    "p_vacuum": 0.07,
    "p_end": 0.5,
    "p_workload": 1.0,
    "ask_ticks_max": 10,
    "parallelism": 1,
    "faults": (),
}
"""Files that are rewritten while they are read at the slot's snapshot."""

ALTERED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "ddl": ("add_column",),
    "p_ddl": 0.15,
    "p_end": 0.3,
    "ask_ticks_max": 10,
    "parallelism": 1,
    "faults": (),
}
"""Columns that are added between two chunks."""

REWRITTEN: Final[Mapping[str, Any]] = {
    **ALTERED,
    "ddl": ("cluster",),
    "p_ddl": 0.3,
    "p_truncate": 0.0,
    "p_decode": 0.2,
}
"""Files that are rewritten between two chunks, with a stream that is behind."""

SWAPPED: Final[Mapping[str, Any]] = {
    **ALTERED,
    "ddl": ("swap",),
    "p_ddl": 0.3,
    "tables": 3,
    "truncate_records": True,
}
"""Names that change hands between two chunks."""

FROZEN_AT_THE_START: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "slot_exists": False,
    "operations": 10,
    "faults": ("freeze", "crash_postgres"),
    "p_fault": 0.1,
}
"""Instances that stand still while they start, and PostgreSQL gone meanwhile: another instance goes on."""

ADDED_MEANWHILE: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "exported",
    "slot_exists": False,
    "added_tables": False,
    "ddl": ("create",),
    "p_ddl": 0.2,
    "p_create_published": 0.0,
    "p_publication": 0.6,
    "p_membership": 1.0,
    "operations": 80,
    "p_workload": 1.0,
    "p_end": 0.2,
    "sessions": 4,
    "ask_ticks_max": 10,
    "faults": (),
}
"""Tables that are added to the publication while the creation of the slot waits, or right behind it."""

RENAMED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "added_tables": True,
    "ddl": ("rename",),
    "p_ddl": 0.6,
    "p_full": 0.0,
    "tables": 3,
    "p_end": 0.6,
    "p_abort": 0.0,
    "p_savepoint": 0.0,
    "p_decode": 1.0,
    "p_membership": 0.0,
    "p_truncate": 0.0,
    "p_workload": 0.3,
    "p_hold": 0.0,
    "p_reject": 0.0,
    "p_unknown": 0.0,
    "p_lost": 0.0,
    "p_keepalive": 0.3,
    "sessions": 2,
    "messages": False,
    "receive_max": 30,
    "ask_ticks_max": 1,
    "unseen_ticks_max": 1,
    "idle_s": 0.0,
    "faults": RESTARTS,
    "p_fault": 0.02,
}
"""Names that are taken for a short while, and daemons that die before they look at the publication."""

RENAMED_NOT_ADDED: Final[Mapping[str, Any]] = {**RENAMED, "added_tables": False}
"""The same, where tables that are added are not read by themselves."""

TRUNCATED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "messages": False,
    "sessions": 1,
    "p_truncate": 0.3,
    "p_end": 0.6,
    "p_keepalive": 0.02,
    "p_workload": 1.0,
    "ask_ticks_max": 10,
    "faults": (),
}
"""TRUNCATE right behind the reading of a chunk, with nothing in the stream between them."""

UNSEEN: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "signals": "all",
    "requests": ("start",),
    "p_message": 0.15,
    "p_request": 0.9,
    "p_end": 0.6,
    "sessions": 4,
    "p_decode": 1.0,
    "receive_max": 30,
    "ask_ticks_max": 1,
    "lock_ticks": 100,
    "p_truncate": 0.0,
    "unseen_ticks_max": 120,
    "faults": (),
}
"""Commits that are streamed long before snapshots see them, and tables that are read at that moment."""

UNSEEN_VALUES: Final[Mapping[str, Any]] = {
    **UNSEEN,
    "tables": 1,
    "keys_max": 30,
    "p_keep_toast": 0.95,
    "p_insert": 0.05,
    "p_delete": 0.0,
    "p_key_change": 0.0,
    "faults": ("disconnect",),
    "p_fault": 0.01,
}
"""The same, with updates that leave large values alone, and sessions that begin while a commit is not seen yet."""

OWED_AND_KILLED: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "tables": 1,
    "keys_max": 100,
    "p_keep_toast": 0.95,
    "p_insert": 0.05,
    "p_delete": 0.02,
    "p_key_change": 0.0,
    "p_full": 0.0,
    "p_truncate": 0.0,
    "p_end": 0.6,
    "p_decode": 1.0,
    "unseen_ticks_max": 40,
    "ask_ticks_max": 5,
    "parallelism": 2,
    "faults": ("crash_daemon",),
    "p_fault": 0.02,
}
"""Updates that leave TOAST alone beside chunks, and daemons that die before the rows are read again."""

TAKEN_OVER: Final[Mapping[str, Any]] = {
    "exactly_once": True,
    "snapshot_mode": "never",
    "operations": 250,
    "tables": 3,
    "p_end": 0.3,
    "p_abort": 0.0,
    "faults": ("freeze",),
    "p_fault": 0.03,
    "p_aftershock": 0.0,
    "p_reject": 0.0,
    "p_unknown": 0.0,
    "p_workload": 0.3,
    "p_decode": 1.0,
    "p_hold": 0.1,
    "idle_s": 0.0,
}
"""Two instances that take over from each other, with a Kafka transaction in their hands."""

RESTARTED_AT_REST: Final[Mapping[str, Any]] = {
    "messages": False,
    "snapshot_mode": "never",
    "slot_exists": False,
    "operations": 40,
    "p_keepalive": 0.02,
    "idle_s": 0.2,
    "status_interval_s": 1.0,
    "faults": (),
}
"""A daemon that dies when Kafka has everything, and PostgreSQL has not heard so."""

LOCKED_WHILE_EXPORTED: Final[Mapping[str, Any]] = {
    **LOCKED,
    "snapshot_method": "exported",
    "slot_exists": False,
}
"""Tables that are locked before the slot's snapshot is read, or meanwhile."""

LOCKED_BESIDE_THE_STREAM: Final[Mapping[str, Any]] = {**LOCKED, "snapshot_method": "incremental"}
"""Tables that are locked while they are read beside the stream."""

HOSTILE: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "signals": "all",
    "requests": ("hostile",),
    "p_message": 0.2,
    "p_request": 0.9,
    "p_end": 0.4,
    "faults": (),
}
"""Requests that are meant badly."""

UNKNOWN_AND_REFUSED: Final[Mapping[str, Any]] = {
    **REFUSED,
    "p_refuse": 0.2,
    "p_unknown": 0.5,
    "p_lost": 0.3,
}
"""First starts whose commits have no answer, and a broker that then refuses."""

PUBLISHING: Final[Mapping[str, Any]] = {
    "publishes": True,
    "exactly_once": True,
    "version": 16,
    "messages": True,
    "p_message": 0.3,
}
"""Many events among rows, of which some cannot be published. Records of the outbox do not say which event they are, so
that only a log without repetitions can be judged."""

PUBLISHING_AND_CUT: Final[Mapping[str, Any]] = {**CUT, **PUBLISHING}

FILTERED: Final[Mapping[str, Any]] = {
    "filters": True,
    "exactly_once": True,
    "ddl": ("add_column", "retype", "cluster", "swap", "identity"),
    "p_full": 0.4,
    "p_keep_toast": 0.0,
}
"""Tables with a filter, of which few tell the old values. A row that enters a filter then has no value that the server
did not send."""

FILTERED_WHOLE: Final[Mapping[str, Any]] = {
    **FILTERED,
    "ddl": ("add_column", "retype", "cluster", "swap"),
    "p_full": 1.0,
    "p_keep_toast": 0.8,
}
"""The same with REPLICA IDENTITY FULL, and values that updates leave out."""

FILTERED_AND_CUT: Final[Mapping[str, Any]] = {**CUT, **FILTERED, "ddl": ("add_column", "replace", "swap")}
"""Restarts inside of transactions of which some events have no record, and tables that are replaced."""

PARTED: Final[Mapping[str, Any]] = {
    "parted": True,
    "exactly_once": True,
    "p_full": 1.0,
    "ddl": ("add_column", "retype", "cluster", "swap"),
}
"""Columns choose the partitions. PostgreSQL sends whole old rows, without which a start is refused."""

PARTED_AND_CUT: Final[Mapping[str, Any]] = {**CUT, **PARTED, "ddl": ("add_column", "swap")}
"""The same, with restarts inside of transactions."""

PARTED_BESIDE_CHUNKS: Final[Mapping[str, Any]] = {
    **PARTED,
    **SNAPSHOT,
    "snapshot_method": "incremental",
    "p_full": 1.0,
    "ddl": ("add_column", "swap"),
    "ask_ticks_max": 10,
    "parallelism": 2,
}
"""The same, with rows that move while their table is read."""

ROUTED: Final[Mapping[str, Any]] = {**FILTERED, "filters": False, "routes": True}
"""Tables whose rows are routed, of which few tell the old values, so that a row may have been in several topics."""

ROUTED_WHOLE: Final[Mapping[str, Any]] = {**FILTERED_WHOLE, "filters": False, "routes": True}
"""The same with REPLICA IDENTITY FULL, and values that updates leave out."""

ROUTED_AND_CUT: Final[Mapping[str, Any]] = {**FILTERED_AND_CUT, "filters": False, "routes": True}
"""Restarts inside of transactions of which some events have records in several topics, and tables that are replaced."""

ROUTED_BESIDE_THE_STREAM: Final[Mapping[str, Any]] = {**UNSEEN, **ROUTED}
"""The same with tables that are read while commits are streamed which snapshots do not see yet."""

ROUTED_AND_SWAPPED: Final[Mapping[str, Any]] = {**SWAPPED, **ROUTED, "ddl": ("swap", "replace")}
"""The same with names that change hands."""

SHARED: Final[Mapping[str, Any]] = {**SWAPPED, "shared": True, "ddl": ("swap", "replace", "rename")}
"""One topic for all tables, whose names change hands."""

SHARED_BESIDE_THE_STREAM: Final[Mapping[str, Any]] = {**UNSEEN, "shared": True}
"""One topic for all tables, which are read while commits are streamed that snapshots do not see yet."""

SHARED_AND_CUT: Final[Mapping[str, Any]] = {**CUT, "shared": True, "tables": 3, "p_key_change": 0.3}
"""One topic for all tables, with restarts inside of transactions."""

METADATA: Final[Mapping[str, Any]] = {"metadata": True, "exactly_once": True}
"""Transaction metadata. Only a log without repetitions can be counted."""

METADATA_AND_CUT: Final[Mapping[str, Any]] = {**CUT, **METADATA, "p_key_change": 0.3, "p_savepoint": 0.2}
"""The same, with restarts inside of transactions, and records that are more than their events."""

DESCRIBED: Final[Mapping[str, Any]] = {
    "described": True,
    "ddl": ("add_column", "add_column", "drop_column", "rename_column"),
    "p_ddl": 0.3,
    "p_end": 0.3,
    "p_workload": 1.0,
    "p_decode": 0.2,
    "tables": 1,
    "operations": 250,
}
"""Columns come, go and change their names, with a stream that is behind."""

CONDITIONS: Final[Mapping[str, Any]] = {
    **SNAPSHOT,
    "version": 18,
    "signals": "all",
    "requests": ("where", "where", "start"),
    "p_message": 0.1,
    "p_request": 0.8,
    "p_end": 0.3,
    "ask_ticks_max": 10,
}
"""Requests with conditions, and kills, in a pipeline without a key."""

HEARTBEATS: Final[Mapping[str, Any]] = {"heartbeat_s": 0.3}
"""Heartbeats, and a query on the source, every few ticks."""

HEARTBEATS_AT_A_SHUTDOWN: Final[Mapping[str, Any]] = {
    "heartbeat_s": 0.1,
    "faults": ("shutdown_postgres",),
    "p_fault": 0.03,
}
"""The same, where a PostgreSQL that shuts down waits for what is being delivered."""

WATERMARKS: Final[Mapping[str, Any]] = {"watermark_s": 0.2}
"""Watermarks in the topics of tables, every few ticks."""

WATERMARKS_AT_LEAST_ONCE: Final[Mapping[str, Any]] = {**AT_LEAST_ONCE, **WATERMARKS}
"""The same, where a part of a batch may be there before the batch is sent again."""

WATERMARKS_AND_CUT: Final[Mapping[str, Any]] = {**CUT, **WATERMARKS}
"""The same, among parts of large transactions, with restarts inside of them."""

PROTECTED: Final[Mapping[str, Any]] = {
    "protected": True,
    "exactly_once": True,
    "slot_exists": False,
    "ddl": ("rename_column", "rename_column", "swap_columns", "rename", "swap", "add_column", "drop_column"),
    "p_ddl": 0.08,
    "p_publication": 0.0,
    "p_membership": 0.0,
    "p_truncate": 0.0,
    "p_create_published": 1.0,
    "p_hold": 0.0,
    "faults": ("crash_daemon", "stop_daemon", "disconnect", "crash_postgres"),
    "p_fault": 0.02,
}
"""Columns and tables change their names between restarts, and a rule protects a column of every table."""

PROTECTED_AND_SWAPPED: Final[Mapping[str, Any]] = {
    **PROTECTED,
    "ddl": ("swap_columns", "rename_column"),
    "p_ddl": 0.15,
    "p_decode": 0.2,
    "p_workload": 1.0,
    "p_end": 0.3,
}
"""As `PROTECTED`, with a stream that lags, so that the catalog has later names than the messages."""

PROTECTED_AND_DROPPED: Final[Mapping[str, Any]] = {
    **PROTECTED_AND_SWAPPED,
    "ddl": ("rename_column", "drop_column"),
}
"""As `PROTECTED_AND_SWAPPED`, and columns are dropped before the daemon reads the catalog."""

PROTECTED_AND_TABLES_DROPPED: Final[Mapping[str, Any]] = {
    **PROTECTED_AND_SWAPPED,
    "ddl": ("rename_column", "rename_column", "drop", "create"),
}
"""As `PROTECTED_AND_SWAPPED`, and tables are dropped while the stream still has changes of them."""
