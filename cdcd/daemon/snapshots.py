"""A life's snapshots, put together: the initial one at the slot's snapshot, and those beside the stream."""

from cdcd.config.loading import Config
from cdcd.daemon.snapshot_export import ExportedSnapshot
from cdcd.daemon.snapshot_run import SnapshotRun
from cdcd.daemon.snapshot_source import SnapshotSource
from cdcd.daemon.snapshot_state import SnapshotState
from cdcd.facts import Observer
from cdcd.snapshots.progress import Progress
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.batches import Batches
from cdcd.transactions.position import Checkpoint


async def open_snapshots(
    config: Config,
    *,
    source: SnapshotSource,
    batches: Batches,
    start: Checkpoint,
    exported: str | None,
    telemetry: Telemetry,
    observe: Observer,
) -> tuple[SnapshotRun, ExportedSnapshot | None]:
    """`exported` names the snapshot that the slot came with, if it came now; it is imported when this returns.

    Raises:
        TransientError, SourceError: PostgreSQL does not let the readers in.
    """
    wanted = config.snapshot
    state = SnapshotState(start.snapshot or Progress(), batches, telemetry, observe)
    run = SnapshotRun(
        state,
        source,
        name=config.name,
        chunk_bytes=wanted.chunk_bytes,
        parallelism=wanted.parallelism,
        added_tables=wanted.added_tables,
        signals=wanted.signals,
        observe=observe,
    )
    if exported is None:
        return run, None
    export = ExportedSnapshot(
        state,
        source,
        snapshot=exported,
        position=start.position.end_lsn,
        chunk_bytes=wanted.chunk_bytes,
        parallelism=wanted.parallelism,
        observe=observe,
    )
    await export.import_snapshot()
    return run, export
