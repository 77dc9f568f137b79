"""`cdcd status --format json`: an object for programs."""

from datetime import UTC, datetime
from typing import Any

from cdcd.adapters.postgres.pipeline_state import Instance
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.lsn import Lsn
from cdcd.tools.operations.pipeline_problems import exit_code_of, problems_of
from cdcd.tools.operations.pipeline_status import PipelineStatus


def as_object(status: PipelineStatus) -> dict[str, Any]:
    """Return the status for programs. All keys are always present; unknown values are null. Times are ISO 8601, in UTC.

    `daemon` is the daemon's own object, as at `/v1/status`.
    """
    server = None if isinstance(status.server, CdcdError) else status.server
    checkpoint = status.checkpoint if isinstance(status.checkpoint, Checkpoint) else None
    slot, numbers, progress = status.slot, status.numbers, status.progress
    publication = None if server is None else server.publication
    return {
        "pipeline": status.named.pipeline,
        "at": _time(status.at),
        "exit_code": exit_code_of(status),
        "summary": status.headline,
        "lag_bytes": status.lag_bytes,
        "lag_s": None if numbers is None else numbers.lag_s,
        "problems": [
            {"code": each.code, "level": each.level, "message": each.message, "hint": each.hint}
            for each in problems_of(status)
        ],
        "active": None if server is None or server.active is None else _instance(server.active),
        "standbys": None if server is None else [_instance(each) for each in server.standbys],
        "slot": None
        if slot is None
        else {
            "name": slot.name,
            "active": slot.active,
            "restart_lsn": _lsn(slot.restart_lsn),
            "confirmed_flush_lsn": _lsn(slot.confirmed_flush_lsn),
            "server_lsn": _lsn(slot.current_lsn),
            "retained_bytes": slot.retained_bytes,
            "safe_wal_size": slot.safe_wal_size,
            "wal_status": slot.wal_status or None,
            "invalidation_reason": slot.invalidation_reason or None,
        },
        "publication": None
        if publication is None
        else {
            "name": publication.name,
            "operations": list(publication.operations),
            "tables": len(publication.tables),
        },
        "prepared": None
        if server is None
        else [{"gid": each.gid, "since": _time(each.since)} for each in server.prepared],
        "checkpoint": None
        if checkpoint is None
        else {
            "topic": status.named.checkpoint_topic,
            "commit_lsn": _lsn(checkpoint.position.commit_lsn),
            "end_lsn": _lsn(checkpoint.position.end_lsn),
            "events_done": checkpoint.position.events_done,
            "timeline": checkpoint.timeline,
            "system_identifier": checkpoint.system_identifier,
        },
        "snapshot": None
        if progress is None
        else {
            "tables_left": progress.tables_left,
            "rows": progress.event_no,
            "paused": progress.paused,
        },
        "daemon": None if numbers is None else numbers.status,
        "tables": [
            {
                "table": each.name,
                "state": each.state,
                "share": None if each.share is None else round(each.share, 4),
                "rows_read": each.rows,
                "changes": each.changes,
            }
            for each in status.tables()
        ],
    }


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "pid": instance.pid,
        "client": instance.client or None,
        "since": None if instance.since is None else _time(instance.since),
    }


def _lsn(position: int | None) -> str | None:
    return None if position is None else str(Lsn(position))


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
