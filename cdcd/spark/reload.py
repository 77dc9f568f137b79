"""A table that its target cannot follow is read again from the database, and replaces its target in one commit.

What its topic has from before the snapshot is skipped then, whatever its form (`reduction.is_new`), so the daemon may
be as far behind as it likes.
"""

import time
from typing import Final

from pyspark.sql import SparkSession

from cdcd.errors import TransientError
from cdcd.postgres.slot import SlotWait
from cdcd.spark.progress import Observer, TableReloaded, TableReloading
from cdcd.spark.settings import MirrorSettings
from cdcd.spark.snapshot import SnapshotSource, load_snapshot, open_snapshot
from cdcd.spark.targets.target import Target

ATTEMPTS: Final = 3
"""How often a table is read at a snapshot that does not last."""


def read_again(  # noqa: PLR0917
    spark: SparkSession,
    source: SnapshotSource,
    table: str,
    target: Target,
    settings: MirrorSettings,
    observe: Observer,
    why: str,
) -> None:
    """Read `table` (`schema.table`) whole, and let its stream go on from there.

    Raises:
        SourceError: it may not be read.
        TransientError: the database does not answer, or no snapshot lasted.
        IncompatibleSchemaError: no target can have its form.
    """

    def wait(held: SlotWait) -> None:
        who = held.gid if held.pid is None else f"the session with PID {held.pid} at the source"
        observe(TableReloading(table, why, f"{who or 'open transactions'} to end"))

    began = time.monotonic()
    observe(TableReloading(table, why))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with open_snapshot(spark, source, [table], wait) as snapshot:
                done = load_snapshot(
                    spark,
                    snapshot,
                    table,
                    target,
                    history=settings.keeps_history(table),
                    variant=settings.variant,
                )
        except TransientError:
            if attempt == ATTEMPTS:
                raise
        else:
            seconds = time.monotonic() - began
            observe(TableReloaded(table, done.rows, done.quarantined, int(done.lsn), seconds))
            return
