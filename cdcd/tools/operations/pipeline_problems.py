"""The problems in a pipeline's status, with hints and the resulting exit code.

Each function finds one kind of problem. A problem that a start would refuse has the start's message and exit code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from cdcd.adapters.postgres.pipeline_state import Instance
from cdcd.adapters.postgres.slot import check_slot
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError
from cdcd.core.pasted import cdcd, literal, on_table, table_option
from cdcd.telemetry.terminal_text import ago, number, plain, size
from cdcd.tools.operations.pipeline_status import PipelineStatus

FOUND: Final = 10
"""Exit code if both PostgreSQL and Kafka answered and there is a problem (`errors.EXIT_CODES`)."""

ASIDE: Final = 13
"""Exit code if tables are set aside and there is no other problem."""

NAMED_MAX: Final = 5
"""Maximum number of tables that the text of a problem names."""

ROOM_SHARE_MIN: Final = 0.2
"""Share of max_slot_wal_keep_size that a slot has left, below which cdcd warns."""

Level = Literal["warning", "error"]


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """A problem that an operator should solve.

    Attributes:
        code: identifier for programs, the same in every version.
        exit_code: exit code of `cdcd status` if this is the worst problem; 0 for a warning.
    """

    code: str
    level: Level
    message: str
    hint: str
    exit_code: int = 0


def problems_of(status: PipelineStatus) -> tuple[PipelineProblem, ...]:
    """Return all problems: errors first, beginning with the one that determines the exit code."""
    found = [problem for look in _LOOKS for problem in look(status)]
    return tuple(sorted(found, key=lambda problem: problem.level != "error"))


def exit_code_of(status: PipelineStatus) -> int:
    """Return the exit code of the first error; 0 if there is no error."""
    return next((problem.exit_code for problem in problems_of(status) if problem.level == "error"), 0)


def _sides(status: PipelineStatus) -> Iterator[PipelineProblem]:
    for code, found in (("postgres.away", status.server), ("kafka.away", status.checkpoint)):
        if isinstance(found, CdcdError):
            yield PipelineProblem(code, "error", found.message, found.hint, found.exit_code)


def _slot(status: PipelineStatus) -> Iterator[PipelineProblem]:
    """Find problems of the slot itself, and between the slot and the checkpoint."""
    if isinstance(status.server, CdcdError):
        return
    slot = status.server.slot
    if slot is not None:
        try:
            check_slot(slot, status.server.database)
        except CdcdError as error:
            code = "slot.lost" if slot.invalidation_reason else "slot.unusable"
            yield PipelineProblem(code, "error", error.message, error.hint, error.exit_code)
            return
        if slot.active and status.server.slot_reader not in ("", status.named.pipeline):
            yield PipelineProblem(
                "slot.foreign",
                "error",
                f"Another program reads slot {slot.name}: {status.server.slot_reader}, process {slot.active_pid}.",
                "Two programs must not share a slot: changes that the other program confirms are lost for cdcd. Give "
                "this "
                "pipeline a slot of its own (postgres.slot).",
                FOUND,
            )
    if status.position is not None:
        gap = status.position
        yield PipelineProblem("position", "error", gap.message, gap.hint, gap.exit_code)


def _ignored(status: PipelineStatus) -> Iterator[PipelineProblem]:
    """Find foreign records in the checkpoint topic."""
    ignored = status.ignored
    if ignored is not None:
        yield PipelineProblem(
            "checkpoint.ignored",
            "warning",
            f"{number(ignored.count, 'record')} of topic {status.named.checkpoint_topic} "
            f"from offset {ignored.first} to {ignored.last} are ignored: {plain(ignored.why)}",
            "Find the program that writes there, and let only the pipeline's principal write to the topic.",
        )


def _instances(status: PipelineStatus) -> Iterator[PipelineProblem]:
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
        yield PipelineProblem(
            "instance.none",
            "error",
            message,
            f"Start the pipeline: {cdcd('run', '--config', named.file)}",
            FOUND,
        )
    elif active is not None and (slot is None or not slot.active) and not _is_reading(status):
        yield PipelineProblem(
            "instance.idle",
            "error",
            f"The active instance (process {active.pid} of the server{_from(active)}) does not read the slot.",
            "Read its log: the events reconnect.scheduled and slot.waiting have the reason.",
            FOUND,
        )


def _is_reading(status: PipelineStatus) -> bool:
    """Return True if the initial snapshot is being read; the slot is read only after it."""
    return (
        status.progress is not None and status.progress.method == "exported" and not status.progress.is_done
    )


def _publication(status: PipelineStatus) -> Iterator[PipelineProblem]:
    if isinstance(status.server, CdcdError):
        return
    found = status.server.publication
    if status.server.slot is None and not isinstance(status.checkpoint, Checkpoint):
        # The pipeline has apparently not started yet; its start creates the publication.
        return
    if found is None:
        yield PipelineProblem(
            "publication.missing",
            "error",
            f"Publication {status.named.publication} is not there: PostgreSQL cannot decode changes without it.",
            "Create the publication as it was (CREATE PUBLICATION), then start cdcd.",
            FOUND,
        )
    elif not found.tables:
        yield PipelineProblem(
            "publication.empty",
            "warning",
            f"Publication {found.name} has no table, so no change is delivered.",
            f'ALTER PUBLICATION "{found.name}" ADD TABLE schema.table;',
        )


def _wal(status: PipelineStatus) -> Iterator[PipelineProblem]:
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
        yield PipelineProblem(
            "slot.endangered",
            "error" if slot.wal_status == "unreserved" else "warning",
            f"Slot {slot.name} may soon be lost: it keeps {size(slot.retained_bytes)} of WAL, and only "
            f"{size(max(0, slot.safe_wal_size))} more may be written.",
            "Raise the limit at once: ALTER SYSTEM SET max_slot_wal_keep_size = '...'; SELECT pg_reload_conf(); then "
            "find out why the pipeline does not keep up.",
            FOUND if slot.wal_status == "unreserved" else 0,
        )


def _prepared(status: PipelineStatus) -> Iterator[PipelineProblem]:
    if isinstance(status.server, CdcdError):
        return
    limit_s = status.named.prepared_warning_age_s
    for each in status.server.prepared:
        if (status.server.at - each.since).total_seconds() > limit_s:
            gid = literal(each.gid)
            yield PipelineProblem(
                "prepared.old",
                "warning",
                f"Prepared transaction {each.gid!r} has been undecided for {ago(each.since, status.server.at)}. The "
                "slot keeps the WAL since then.",
                f"Its transaction manager must decide. Otherwise: COMMIT PREPARED {gid}; or ROLLBACK PREPARED "
                f"{gid};",
            )


def _aside(status: PipelineStatus) -> Iterator[PipelineProblem]:
    tables = [table for table in status.tables() if table.state == "set aside"]
    if not tables:
        return
    shown = ", ".join(f"{plain(table.name)} ({table.error})" for table in tables[:NAMED_MAX])
    more = "" if len(tables) <= NAMED_MAX else f" and {len(tables) - NAMED_MAX} more"
    is_one = len(tables) == 1
    published = [table for table in tables if table.is_published]
    name = table_option(published[0].name) if len(published) == 1 else "SCHEMA.TABLE"
    resume = f"Remove the cause, then: {cdcd('tables', 'resume', name, '--config', status.named.file)}. "
    yield PipelineProblem(
        "table.set_aside",
        "error",
        f"{number(len(tables), 'table')} {'is' if is_one else 'are'} set aside, so changes have no records: "
        f"{shown}{more}. All other tables go on.",
        f"{resume if published else ''}{cdcd('tables', '--config', status.named.file)} shows each table.",
        ASIDE,
    )


def _snapshots(status: PipelineStatus) -> Iterator[PipelineProblem]:
    progress = status.progress
    if progress is None:
        return
    if progress.paused and not progress.is_done:
        yield PipelineProblem(
            "snapshot.paused",
            "warning",
            f"The snapshot of {number(progress.tables_left, 'table')} is paused.",
            cdcd("snapshot", "resume", "--config", status.named.file),
        )
    for outcome in {each.name: each for each in progress.outcomes}.values():
        if outcome.error:
            yield PipelineProblem(
                "snapshot.failed",
                "warning",
                f"The rows of {outcome.name} are not all delivered: {outcome.error}",
                f"{cdcd('snapshot', 'start', '--config', status.named.file)} {on_table('--table', outcome.name)}",
            )


def _daemon_itself(status: PipelineStatus) -> Iterator[PipelineProblem]:
    if status.stranger:
        yield PipelineProblem(
            "http.foreign",
            "warning",
            f"{status.named.url} answers for another pipeline, {status.stranger}.",
            "Give each pipeline on this machine a port of its own (http.port).",
        )
    if status.numbers is not None and status.numbers.reasons and status.numbers.role == "active":
        yield PipelineProblem(
            "daemon.unready",
            "warning",
            f"The daemon is not ready: {'; '.join(status.numbers.reasons)}.",
            "See its log, and the runbook for the alerts CdcdNotStreaming and CdcdLagging.",
        )


_LOOKS: Final[tuple[Callable[[PipelineStatus], Iterator[PipelineProblem]], ...]] = (
    _slot,
    _ignored,
    _sides,
    _instances,
    _publication,
    _wal,
    _prepared,
    _snapshots,
    _daemon_itself,
    _aside,
)
"""The order determines which problem gives the exit code."""


def _from(instance: Instance) -> str:
    return f" from {instance.client}" if instance.client else ""
