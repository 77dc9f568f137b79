"""What `cdcd status` says of a pipeline: what was found, what of it is a problem, and the exit code that follows.

Values come from three places: the server, Kafka's checkpoint, and the daemon's HTTP if it answers. Each place may be
away, which is a problem by itself, and the others are shown all the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from cdcd.errors import CdcdError
from cdcd.postgres.pipeline_state import Instance, PipelineState
from cdcd.postgres.slot import SlotState, check_slot
from cdcd.protocol.lsn import Lsn
from cdcd.snapshots.progress import Progress
from cdcd.telemetry.progress_bars import size
from cdcd.telemetry.terminal_text import ago, number
from cdcd.transactions.position import Checkpoint

FOUND: Final = 10
"""The exit code if both sides answered and something is wrong (`errors.EXIT_CODES`)."""

ROOM_SHARE_MIN: Final = 0.2
"""A slot that has less than this share of max_slot_wal_keep_size left is warned of."""

Level = Literal["warning", "error"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should act on.

    Attributes:
        code: the same in every version, for programs.
        exit_code: what `cdcd status` exits with if this is the worst problem; a warning has 0.
    """

    code: str
    level: Level
    message: str
    hint: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the daemon's /metrics and /readyz say. None: the daemon does not know it yet.

    Attributes:
        started_at: when the process started.
        lag_s: age in seconds of the last delivered commit while there is more to deliver.
        changes: number of delivered changes by `schema.table`, since the process started.
        reasons: why the daemon is not ready.
    """

    version: str
    role: str
    streaming: bool
    started_at: datetime | None
    lag_bytes: int | None
    lag_s: float | None
    queue_bytes: int
    queue_bytes_max: int
    spool_memory_bytes: int
    spool_disk_bytes: int
    streamed_open: int
    prepared_open: int
    changes: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Named:
    """What the configuration calls things.

    Attributes:
        file: the configuration, for commands in hints.
        url: where the daemon's HTTP is expected; "" if the configuration does not say.
    """

    pipeline: str
    file: str
    slot: str
    publication: str
    checkpoint_topic: str
    url: str = ""
    prepared_warning_age_s: float = 300.0


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline at one moment, `at` (UTC).

    Attributes:
        server: what PostgreSQL says, or why it cannot be asked.
        checkpoint: what Kafka says was delivered, or why it cannot be asked; None: there is no checkpoint.
        position: why slot and checkpoint do not go together; None: they do, or an instance reads the slot.
        numbers: the daemon's own; None: it does not answer.
        stranger: the name of another pipeline whose daemon answers there; "" if none does.
    """

    named: Named
    at: datetime
    server: PipelineState | CdcdError
    checkpoint: Checkpoint | CdcdError | None
    position: CdcdError | None = None
    numbers: Numbers | None = None
    stranger: str = ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Errors first, and the one that gives the exit code first of all."""
        found = [problem for look in _LOOKS for problem in look(self)]
        return tuple(sorted(found, key=lambda problem: problem.level != "error"))

    @property
    def exit_code(self) -> int:
        return next((problem.exit_code for problem in self.problems if problem.level == "error"), 0)

    @property
    def slot(self) -> SlotState | None:
        return None if isinstance(self.server, CdcdError) else self.server.slot

    @property
    def progress(self) -> Progress | None:
        """How far the reading of tables is; None: not known, or nothing was ever read."""
        return self.checkpoint.snapshot if isinstance(self.checkpoint, Checkpoint) else None

    @property
    def lag_bytes(self) -> int | None:
        """WAL that the server has and Kafka does not; None: a side cannot be asked."""
        if self.numbers is not None and self.numbers.lag_bytes is not None:
            return self.numbers.lag_bytes
        slot = self.slot
        if slot is None or slot.confirmed_flush_lsn is None:
            return None
        return max(0, slot.current_lsn - slot.confirmed_flush_lsn)

    @property
    def headline(self) -> str:
        """What an operator wants to know first."""
        if isinstance(self.server, CdcdError):
            return "PostgreSQL cannot be asked"
        if self.slot is None and self.checkpoint is None:
            return "not started yet"
        lag = "" if self.lag_bytes is None else f", {size(self.lag_bytes)} behind"
        if self.server.active is None:
            return f"no instance runs{lag}"
        if self.slot is None or not self.slot.active:
            return f"an instance is active and does not stream{lag}"
        return f"streams{lag}"

    def tables(self) -> list["TableState"]:
        """Published tables and those that are being read: what is not complete first, then by name."""
        names = {}
        if isinstance(self.server, PipelineState) and self.server.publication is not None:
            names = {table.oid: table.qualified for table in self.server.publication.tables}
        changes = {} if self.numbers is None else self.numbers.changes
        states = {name: TableState(name, changes=changes.get(name)) for name in names.values()}
        for name, state, share, rows in _reading(self.progress, names):
            states[name] = TableState(name, state, share, rows, changes.get(name))
        return sorted(states.values(), key=lambda table: (_STATES.index(table.state), table.name))

    def to_json(self) -> dict[str, Any]:
        """For programs. Keys are always there; what is not known is null. Times are ISO 8601, in UTC."""
        server = None if isinstance(self.server, CdcdError) else self.server
        checkpoint = self.checkpoint if isinstance(self.checkpoint, Checkpoint) else None
        slot, numbers, progress = self.slot, self.numbers, self.progress
        publication = None if server is None else server.publication
        return {
            "pipeline": self.named.pipeline,
            "at": _time(self.at),
            "exit_code": self.exit_code,
            "summary": self.headline,
            "lag_bytes": self.lag_bytes,
            "lag_s": None if numbers is None else numbers.lag_s,
            "problems": [
                {"code": each.code, "level": each.level, "message": each.message, "hint": each.hint}
                for each in self.problems
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
                "topic": self.named.checkpoint_topic,
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
            "daemon": None if numbers is None else _daemon(numbers),
            "tables": [
                {
                    "table": each.name,
                    "state": each.state,
                    "share": None if each.share is None else round(each.share, 4),
                    "rows_read": each.rows,
                    "changes": each.changes,
                }
                for each in self.tables()
            ],
        }


TableWord = Literal["failed", "reading", "waiting", "streams"]
_STATES: Final[tuple[TableWord, ...]] = ("failed", "reading", "waiting", "streams")


@dataclass(frozen=True, slots=True)
class TableState:
    """A table of the pipeline.

    Attributes:
        state: failed: its rows could not be read; reading, waiting: rows are still to be read. Changes are delivered
            in each state.
        share: how much of it is read, from 0 to 1; None: it is not being read.
        rows: rows that this reading delivered; None: it is not being read.
        changes: delivered since the daemon started; None: not known, or none.
    """

    name: str
    state: TableWord = "streams"
    share: float | None = None
    rows: int | None = None
    changes: int | None = None


def _reading(
    progress: Progress | None, names: Mapping[int, str]
) -> Iterator[tuple[str, TableWord, float | None, int | None]]:
    if progress is None:
        return
    last = {outcome.name: outcome for outcome in progress.outcomes}
    for outcome in last.values():
        if outcome.error:
            yield outcome.name, "failed", None, outcome.rows
    for oid in progress.waiting.oids[progress.begun :]:
        yield names.get(oid, f"oid {oid}"), "waiting", None, None
    for task in progress.tasks:
        # The record keeps the plan of a table only after its first rows.
        word: TableWord = "reading" if task.has_begun or task.rows else "waiting"
        yield task.name or names.get(task.oid, f"oid {task.oid}"), word, task.share, task.rows


def _sides(status: PipelineStatus) -> Iterator[Problem]:
    for code, found in (("postgres.away", status.server), ("kafka.away", status.checkpoint)):
        if isinstance(found, CdcdError):
            yield Problem(code, "error", found.message, found.hint, found.exit_code)


def _slot(status: PipelineStatus) -> Iterator[Problem]:
    """The slot itself, and whether it goes on where the checkpoint ends."""
    if isinstance(status.server, CdcdError):
        return
    slot = status.server.slot
    if slot is not None:
        try:
            check_slot(slot, status.server.database)
        except CdcdError as error:
            code = "slot.lost" if slot.invalidation_reason else "slot.unusable"
            yield Problem(code, "error", error.message, error.hint, error.exit_code)
            return
        if slot.active and status.server.slot_reader not in ("", status.named.pipeline):
            yield Problem(
                "slot.foreign",
                "error",
                f"Another program reads slot {slot.name}: {status.server.slot_reader}, process {slot.active_pid}.",
                "Two programs must not share a slot: changes that the other one confirms are lost for cdcd. Give this "
                "pipeline a slot of its own (postgres.slot).",
                FOUND,
            )
    if status.position is not None:
        gap = status.position
        yield Problem("position", "error", gap.message, gap.hint, gap.exit_code)


def _instances(status: PipelineStatus) -> Iterator[Problem]:
    if isinstance(status.server, CdcdError):
        return
    named, slot, active = status.named, status.server.slot, status.server.active
    if active is None and not (slot is not None and slot.active):
        if slot is None and status.checkpoint is None:
            message = f"The pipeline has not started yet: there is no slot {named.slot} and no checkpoint."
        elif slot is None:
            message = "No instance runs."
        else:
            message = f"No instance runs, and PostgreSQL keeps {size(slot.retained_bytes)} of WAL for it"
            room = (
                ""
                if slot.safe_wal_size is None
                else f"; after {size(slot.safe_wal_size)} more it may be lost"
            )
            message += f"{room}."
        yield Problem(
            "instance.none", "error", message, f"Start the pipeline: cdcd run --config {named.file}", FOUND
        )
    elif active is not None and (slot is None or not slot.active) and not _is_reading(status):
        yield Problem(
            "instance.idle",
            "error",
            f"The active instance (process {active.pid} of the server{_from(active)}) does not read the slot.",
            "See its log: the events reconnect.scheduled and slot.waiting say what it waits for.",
            FOUND,
        )


def _is_reading(status: PipelineStatus) -> bool:
    """Whether the initial snapshot is being read, before which the slot is not."""
    return (
        status.progress is not None and status.progress.method == "exported" and not status.progress.is_done
    )


def _publication(status: PipelineStatus) -> Iterator[Problem]:
    if isinstance(status.server, CdcdError) or (status.server.slot is None and status.checkpoint is None):
        return
    found = status.server.publication
    if found is None:
        yield Problem(
            "publication.missing",
            "error",
            f"Publication {status.named.publication} is not there: PostgreSQL cannot decode changes without it.",
            "Create the publication as it was (CREATE PUBLICATION), then start cdcd.",
            FOUND,
        )
    elif not found.tables:
        yield Problem(
            "publication.empty",
            "warning",
            f"Publication {found.name} has no table, so no change is delivered.",
            f'ALTER PUBLICATION "{found.name}" ADD TABLE schema.table;',
        )


def _wal(status: PipelineStatus) -> Iterator[Problem]:
    server, slot = status.server, status.slot
    if (
        isinstance(server, CdcdError)
        or slot is None
        or slot.invalidation_reason
        or slot.safe_wal_size is None
    ):
        return
    limit = server.keep_bytes or 0
    if slot.wal_status == "unreserved" or slot.safe_wal_size < limit * ROOM_SHARE_MIN:
        yield Problem(
            "slot.endangered",
            "error" if slot.wal_status == "unreserved" else "warning",
            f"Slot {slot.name} may soon be lost: it keeps {size(slot.retained_bytes)} of WAL, and only "
            f"{size(max(0, slot.safe_wal_size))} more may be written.",
            "Raise the limit at once: ALTER SYSTEM SET max_slot_wal_keep_size = '...'; SELECT pg_reload_conf(); then "
            "find out why the pipeline does not keep up.",
            FOUND if slot.wal_status == "unreserved" else 0,
        )


def _prepared(status: PipelineStatus) -> Iterator[Problem]:
    if isinstance(status.server, CdcdError):
        return
    limit_s = status.named.prepared_warning_age_s
    for each in status.server.prepared:
        if (status.server.at - each.since).total_seconds() > limit_s:
            gid = each.gid.replace("'", "''")
            yield Problem(
                "prepared.old",
                "warning",
                f"Prepared transaction {each.gid!r} has been undecided for {ago(each.since, status.server.at)}. The "
                "slot keeps the WAL since then.",
                f"Its transaction manager must decide. Otherwise: COMMIT PREPARED '{gid}'; or ROLLBACK PREPARED "
                f"'{gid}';",
            )


def _snapshots(status: PipelineStatus) -> Iterator[Problem]:
    progress = status.progress
    if progress is None:
        return
    if progress.paused and not progress.is_done:
        yield Problem(
            "snapshot.paused",
            "warning",
            f"The reading of {number(progress.tables_left, 'table')} is paused.",
            f"cdcd snapshot resume --config {status.named.file}",
        )
    for outcome in {each.name: each for each in progress.outcomes}.values():
        if outcome.error:
            yield Problem(
                "snapshot.failed",
                "warning",
                f"The rows of {outcome.name} are not all delivered: {outcome.error}",
                f"cdcd snapshot start --config {status.named.file} --table {outcome.name}",
            )


def _daemon_itself(status: PipelineStatus) -> Iterator[Problem]:
    if status.stranger:
        yield Problem(
            "http.foreign",
            "warning",
            f"{status.named.url} answers for another pipeline, {status.stranger}.",
            "Give each pipeline on this machine a port of its own (http.port).",
        )
    if status.numbers is not None and status.numbers.reasons and status.numbers.role == "active":
        yield Problem(
            "daemon.unready",
            "warning",
            f"The daemon is not ready: {'; '.join(status.numbers.reasons)}.",
            "See its log, and the runbook for the alerts CdcdNotStreaming and CdcdLagging.",
        )


_LOOKS: Final[tuple[Callable[[PipelineStatus], Iterator[Problem]], ...]] = (
    _slot,
    _sides,
    _instances,
    _publication,
    _wal,
    _prepared,
    _snapshots,
    _daemon_itself,
)
"""In the order of what gives the exit code."""


def _from(instance: Instance) -> str:
    return f" from {instance.client}" if instance.client else ""


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "pid": instance.pid,
        "client": instance.client or None,
        "since": None if instance.since is None else _time(instance.since),
    }


def _daemon(numbers: Numbers) -> dict[str, Any]:
    return {
        "version": numbers.version,
        "role": numbers.role,
        "streaming": numbers.streaming,
        "started_at": None if numbers.started_at is None else _time(numbers.started_at),
        "queue_bytes": numbers.queue_bytes,
        "spool_memory_bytes": numbers.spool_memory_bytes,
        "spool_disk_bytes": numbers.spool_disk_bytes,
        "streamed_open": numbers.streamed_open,
        "prepared_open": numbers.prepared_open,
        "reasons": list(numbers.reasons),
    }


def _lsn(position: int | None) -> str | None:
    return None if position is None else str(Lsn(position))


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
