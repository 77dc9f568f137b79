"""Reads a pipeline's status for `cdcd status`: the server, Kafka's checkpoint and the daemon's HTTP, concurrently.

Nothing is changed, and no instance is affected. A missing answer is part of the status.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cdcd.adapters.durable.log import look as look_at_log
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.pipeline_state import PipelineState, read_state
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.source import read_source
from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint, refuse_sealed, resume
from cdcd.core.engine.checkpoint_record import Ignored
from cdcd.core.engine.logged import LogOwner, judge
from cdcd.core.errors import CdcdError
from cdcd.telemetry.http_client import status_of, url_of
from cdcd.tools.operations.pipeline_status import Named, Numbers, PipelineStatus
from cdcd.tools.operations.sides import connect_to, peek

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
        _server(config), _checkpoint(config), asyncio.to_thread(ask_daemon, config, url)
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


async def _checkpoint(config: Config) -> tuple[Checkpoint | CdcdError | None, Ignored | None]:
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


def ask_daemon(config: Config, url: str = "") -> tuple[Numbers | None, str]:
    """Return the daemon's figures, and the name of another pipeline if that one answers."""
    found = status_of(config, url, all_tables=True)
    if found is None:
        return None, ""
    if found["pipeline"] != config.name:
        return None, found["pipeline"]
    return Numbers.of(found), ""
