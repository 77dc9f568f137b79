"""A table that its target cannot follow is read again from the database, and replaces its target in one commit.

What its topic has from before the snapshot is skipped then, whatever its form (`reduction.is_new`), so the daemon may
be as far behind as it likes.
"""

import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from cdcd.adapters.postgres.slot import SlotWait
from cdcd.mirror.snapshot.reading import Loaded, Snapshot, SnapshotSource, load_all, load_snapshot
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.progress import Observer, TableReloaded, TableReloading


def load_as_set(
    spark: SparkSession, target: Target, settings: MirrorSettings, snapshot: Snapshot, table: str
) -> Loaded:
    """Call `load_snapshot` for `table` (`schema.table`) with what the settings say of the table."""
    return load_snapshot(
        spark,
        snapshot,
        table,
        target,
        history=settings.keeps_history(table),
        variant=settings.variant,
        layout=partial(settings.layout_of, table),
    )


def read_again(
    spark: SparkSession,
    source: SnapshotSource,
    load_one: Callable[[Snapshot, str], Loaded],
    observe: Observer,
    table: str,
    why: str,
) -> None:
    """Read `table` (`schema.table`) whole, and let its changes go on from there.

    Args:
        load_one: reads one table at a snapshot.
        why: the reason, for the events.

    Raises:
        SourceError: it may not be read.
        TransientError: the database does not answer, or no snapshot lasted.
        IncompatibleSchemaError: no target can have its form.
    """

    def wait(held: SlotWait) -> None:
        who = held.gid if held.pid is None else f"the session with PID {held.pid} at the source"
        observe(TableReloading(table, why, f"{who or 'open transactions'} to end"))

    def locked(name: str, who: str, _seconds: float) -> None:
        observe(TableReloading(table, why, f"the lock on {name} ({who}) to end"))

    began = time.monotonic()
    observe(TableReloading(table, why))

    def load(snapshot: Snapshot, name: str) -> None:
        done = load_one(snapshot, name)
        seconds = time.monotonic() - began
        observe(TableReloaded(name, done.rows, done.quarantined, int(done.lsn), seconds))

    load_all(spark, source, [table], load, on_wait=wait, on_locked=locked)
