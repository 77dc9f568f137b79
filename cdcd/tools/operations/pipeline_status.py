"""The status of a pipeline for `cdcd status`, as values, and how it is read: from the server, Kafka's checkpoint and
the daemon's HTTP, concurrently. `pipeline_problems.py` finds the problems in it.

The values come from three sources: the server, Kafka's checkpoint, and the daemon's HTTP if it answers. A source
that does not answer is a problem itself, and the others are still shown.

Nothing is changed, and no instance is affected. A missing answer is part of the status.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

from cdcd.adapters.durable.log import look as look_at_log
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.pipeline_state import PipelineState, read_source, read_state
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import SlotState
from cdcd.config.loading import Config
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.checkpoint_record import Ignored
from cdcd.core.engine.logged import LogOwner, judge
from cdcd.core.engine.resuming import refuse_sealed, resume
from cdcd.core.errors import CdcdError
from cdcd.core.snapshot.progress import Progress
from cdcd.telemetry.http_client import status_of, url_of
from cdcd.telemetry.terminal_text import size
from cdcd.tools.operations.sides import connect_to, peek


@dataclass(frozen=True, slots=True)
class StatusNumbers:
    """Figures from the daemon. None: the daemon does not know it yet.

    Attributes:
        compiled: False if the daemon's code is not compiled; None: unknown.
        started_at: start of the process.
        lag_s: age in seconds of the last delivered commit while there is more to deliver.
        changes: number of delivered changes by `schema.table`, since the process started, without rows of
            snapshots.
        read: number of delivered rows of snapshots by `schema.table`, since the process started.
        reasons: reasons why the daemon is not ready.
        status: the whole status object (`telemetry/daemon_pages.py`).
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
    compiled: bool | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Self:
        """Create the object from the JSON at `/v1/status`."""
        plain = (
            "version", "role", "streaming", "lag_bytes", "lag_s", "queue_bytes", "queue_bytes_max",
            "spool_memory_bytes", "spool_disk_bytes", "streamed_open", "prepared_open",
        )  # fmt: skip
        return cls(
            **{name: status[name] for name in plain},
            compiled=status.get("compiled"),
            started_at=datetime.fromisoformat(status["started_at"]),
            changes={each["table"]: each["rows"] - each["rows_read"] for each in status["tables"]},
            read={each["table"]: each["rows_read"] for each in status["tables"]},
            reasons=tuple(status["reasons"]),
            status=status,
        )


@dataclass(frozen=True, slots=True)
class Named:
    """Names from the configuration.

    Attributes:
        file: file of the configuration, for commands in hints.
        url: expected address of the daemon's HTTP; "" if the configuration has none.
    """

    pipeline: str
    file: str
    slot: str
    publication: str
    checkpoint_topic: str
    prepared_warning_age_s: float
    url: str = ""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Status of a pipeline at one moment, `at` (UTC).

    Attributes:
        server: PostgreSQL's state of the pipeline, or the error if PostgreSQL does not answer.
        checkpoint: Kafka's checkpoint, or the error if Kafka does not answer; None: there is no checkpoint.
        position: error if slot and checkpoint do not fit; None: they fit, or an instance reads the slot.
        numbers: the daemon's figures; None: the daemon does not answer.
        stranger: name of another pipeline whose daemon answers at the address; "" if none does.
        selection: selection of the published tables that belong to the pipeline.
        ignored: ignored records of the checkpoint topic; None: none.
    """

    named: Named
    at: datetime
    server: PipelineState | CdcdError
    checkpoint: Checkpoint | CdcdError | None
    position: CdcdError | None = None
    numbers: StatusNumbers | None = None
    stranger: str = ""
    selection: TableSelection = field(default_factory=TableSelection)
    ignored: Ignored | None = None

    @property
    def slot(self) -> SlotState | None:
        return None if isinstance(self.server, CdcdError) else self.server.slot

    @property
    def progress(self) -> Progress | None:
        """Progress of reading tables; None: unknown, or no table was ever read."""
        return self.checkpoint.snapshot if isinstance(self.checkpoint, Checkpoint) else None

    @property
    def aside(self) -> tuple[AsideTable, ...]:
        """Tables that are set aside."""
        return self.checkpoint.tables if isinstance(self.checkpoint, Checkpoint) else ()

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of WAL that the server has and Kafka does not; None: PostgreSQL or Kafka does not answer."""
        if self.numbers is not None and self.numbers.lag_bytes is not None:
            return self.numbers.lag_bytes
        slot = self.slot
        if slot is None or slot.confirmed_flush_lsn is None:
            return None
        return max(0, slot.current_lsn - slot.confirmed_flush_lsn)

    @property
    def headline(self) -> str:
        """The first line for an operator: the main state of the pipeline."""
        if isinstance(self.server, CdcdError):
            return "PostgreSQL cannot be asked"
        if self.slot is None and self.checkpoint is None:
            return "not started yet"
        lag = (
            ""
            if self.lag_bytes is None
            else f", {size(self.lag_bytes)} behind"
            if self.lag_bytes
            else ", no lag"
        )
        if self.server.active is None:
            return f"stopped{lag}"
        if self.slot is None or not self.slot.active:
            return f"an instance is active and does not stream{lag}"
        return f"streaming{lag}"

    def tables(self) -> list["TableState"]:
        """Return the pipeline's tables and those that are being read, incomplete ones first, then by name."""
        names = {}
        has = self.selection.test()
        if isinstance(self.server, PipelineState) and self.server.publication is not None:
            published = self.server.publication.tables
            names = {table.oid: table.qualified for table in published if has(table.qualified)}
        changes = {} if self.numbers is None else self.numbers.changes
        read = {} if self.numbers is None else self.numbers.read
        states = {
            name: TableState(name, rows=read.get(name) or None, changes=changes.get(name))
            for name in names.values()
        }
        for name, state, share, rows, error in _reading(self.progress, names):
            if state != "published" or name in states:
                states[name] = TableState(name, state, share, rows, changes.get(name), error)
        for each in self.aside:
            name = names.get(each.oid, f"oid {each.oid}")
            former = states.get(name, TableState(name))
            is_published = each.oid in names
            states[name] = replace(
                former,
                state="set aside",
                error=fault_said(each.fault) if is_published else UNPUBLISHED,
                since_lsn=each.since_lsn,
                is_published=is_published,
            )
        return sorted(states.values(), key=lambda table: (_STATES.index(table.state), table.name))


UNPUBLISHED: Final = (
    "it was dropped, or is not published or not included any more: a running daemon forgets it within seconds"
)
"""Why no command helps a table that is set aside and whose name is not known."""

TableWord = Literal["set aside", "failed", "reading", "waiting", "published"]
_STATES: Final[tuple[TableWord, ...]] = ("set aside", "failed", "reading", "waiting", "published")

_FAULTS: Final[Mapping[str, str]] = {
    "name": "its topic's name is too long or that of another table",
    "topic": "its topic is missing or refused",
    "registry": "the schema registry refuses its schema",
    "claimed": "its topic belongs to another pipeline",
    "protection": "it is not certain which of its columns a rule protects",
    "rule": "a rule of the configuration cannot be followed",
    "value": "a value has no form in a record, or the key was not sent",
    "size": "a record is larger than Kafka takes",
    "snapshot": "its rows cannot be read",
    "broker": "Kafka refused a record",
    "request": "somebody asked for it",
}
"""What each kind of fault in the checkpoint means."""


def fault_said(fault: str) -> str:
    """Return what a kind of fault in the checkpoint means, as part of a sentence."""
    return _FAULTS.get(fault, fault)


@dataclass(frozen=True, slots=True)
class TableState:
    """A table of the pipeline.

    Attributes:
        state: set aside: a fault stopped the table, and its changes have no records; failed: its rows could not be
            read; reading, waiting: rows are still to be read; published: neither. Changes are delivered in each state
            but the first one.
        share: share of the table that is read, from 0 to 1; None: it is not being read.
        rows: number of rows that the last snapshot delivered; None: unknown, or the table was never read.
        changes: number of changes that were delivered since the daemon started, without rows of snapshots; None:
            unknown, or no changes.
        error: why the table is set aside, or why its rows could not be read; "": neither.
        since_lsn: commit LSN from which the changes of a table that is set aside are left out.
        is_published: False for a table that is set aside and is not published or not included any more. Its name is
            its oid then.
    """

    name: str
    state: TableWord = "published"
    share: float | None = None
    rows: int | None = None
    changes: int | None = None
    error: str = ""
    since_lsn: int | None = None
    is_published: bool = True


def _reading(
    progress: Progress | None, names: Mapping[int, str]
) -> Iterator[tuple[str, TableWord, float | None, int | None, str]]:
    if progress is None:
        return
    last = {outcome.name: outcome for outcome in progress.outcomes}
    for outcome in last.values():
        yield outcome.name, "failed" if outcome.error else "published", None, outcome.rows, outcome.error
    for oid in progress.waiting.oids[progress.begun :]:
        yield names.get(oid, f"oid {oid}"), "waiting", None, None, ""
    for task in progress.tasks:
        # The checkpoint keeps the plan of a table only after its first rows.
        word: TableWord = "reading" if task.has_begun or task.rows else "waiting"
        yield task.name or names.get(task.oid, f"oid {task.oid}"), word, task.share, task.rows, ""


CHECKPOINT_S: Final = 10.0
"""Seconds that the broker may take for the checkpoint."""


def look(config: Config, file: str, url: str = "") -> PipelineStatus:
    """Return the status from all sources. Errors of PostgreSQL, Kafka and HTTP are part of the status, and not raised.

    Args:
        file: name of the configuration file, for commands in hints.
        url: address of the daemon's HTTP; "": the configured one.
    """
    return asyncio.run(_look(config, file, url or url_of(config)))


async def _look(config: Config, file: str, url: str) -> PipelineStatus:
    named = Named(
        config.name,
        file,
        config.postgres.slot,
        config.postgres.publication,
        config.topics.checkpoint,
        config.postgres.prepared_warning_age_s,
        url,
    )
    server, (checkpoint, ignored), (numbers, stranger) = await asyncio.gather(
        _server(config), _newest_checkpoint(config), asyncio.to_thread(ask_daemon, config, url)
    )
    position = None
    if isinstance(server, PipelineState) and server.active is None and isinstance(checkpoint, Checkpoint):
        slot = server.slot
        # An unusable slot is reported for the slot. An active instance has compared slot and checkpoint itself.
        if slot is None or not (slot.active or slot.invalidation_reason or slot.confirmed_flush_lsn is None):
            position = await _position(config, checkpoint, None if slot is None else slot.confirmed_flush_lsn)
    now, selection = datetime.now(UTC), config.tables.selection
    return PipelineStatus(named, now, server, checkpoint, position, numbers, stranger, selection, ignored)


async def _server(config: Config) -> PipelineState | CdcdError:
    postgres = config.postgres
    try:
        sql = await connect_to(config, "status")
        try:
            return await read_state(sql, config.name, postgres.slot, postgres.publication)
        finally:
            await sql.close()
    except CdcdError as error:
        return error


async def _newest_checkpoint(config: Config) -> tuple[Checkpoint | CdcdError | None, Ignored | None]:
    """Return the checkpoint, and the ignored records of its topic."""
    ignored: list[Ignored] = []
    found: Checkpoint | CdcdError | None
    try:
        found = await asyncio.to_thread(peek, config, CHECKPOINT_S, ignored.append)
    except CdcdError as error:
        found = error
    return found, ignored[0] if ignored else None


async def _position(config: Config, found: Checkpoint, confirmed: int | None) -> CdcdError | None:
    """Return the error with which a start would refuse; None if it would not, or if PostgreSQL does not answer."""
    postgres = config.postgres
    async with AsyncExitStack() as stack:
        try:
            stream = await ReplicationStream.open(
                parse_dsn(*postgres.access()),
                application_name=f"{config.name} status",
                connect_timeout_s=postgres.connect_timeout_s,
            )
            stack.callback(stream.close)
            source = await read_source(
                stream,
                await stream.identify(),
                confirmed,
                found,
                slot_name=postgres.slot,
                options=config.stream_options,
            )
            refuse_sealed(found)
            folder = config.spool.durable_directory
            if folder is not None:
                owner = LogOwner(
                    config.name, postgres.slot, source.system_identifier, source.timeline, source.stream
                )
                log = await asyncio.to_thread(look_at_log, Path(folder))
                source = judge(log, owner, found, replace(source, log=str(folder))).source
            resume(found, source, accept_gap=False)
        except CdcdError as error:
            return error
    return None


def ask_daemon(config: Config, url: str = "") -> tuple[StatusNumbers | None, str]:
    """Return the daemon's figures, and the name of another pipeline if that one answers."""
    found = status_of(config, url, all_tables=True)
    if found is None:
        return None, ""
    if found["pipeline"] != config.name:
        return None, found["pipeline"]
    return StatusNumbers.of(found), ""
