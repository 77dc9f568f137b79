"""Connections of operator commands to PostgreSQL, and to the checkpoint in Kafka."""

import asyncio
from collections.abc import Callable
from typing import Final

from cdcd.adapters.credentials.columns import bindings_of
from cdcd.adapters.kafka.checkpoint import OnIgnored, peek_checkpoint, say_nothing
from cdcd.adapters.kafka.errors import unavailable
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.resuming import refuse_other_server
from cdcd.core.errors import SinkUnavailableError, TransientError
from cdcd.daemon.settings import checkpoint_topic

CHECKPOINT_S: Final = 15.0
"""Seconds that the broker may take for the checkpoint."""

AWAY_HINT: Final = (
    "Check: 1. the broker runs; 2. kafka.bootstrap_servers is reachable from this machine; 3. security.protocol in "
    "kafka.properties matches the broker's listener."
)


async def connect_to(config: Config, what: str) -> Connection:
    """Connect to the pipeline's database; the caller closes the connection. `what` is a part of its application_name.

    Raises TransientError and SourceError.
    """
    return await connect(
        parse_dsn(*config.postgres.access()),
        application_name=f"{config.name} {what}",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )


def peek(
    config: Config, timeout_s: float = CHECKPOINT_S, on_ignored: OnIgnored = say_nothing
) -> Checkpoint | None:
    """Return the newest checkpoint; None if there is none. Raises SinkUnavailableError, SinkError and PositionError."""
    try:
        return peek_checkpoint(checkpoint_topic(config, timeout_s), on_ignored)
    except TransientError as error:
        raise unavailable(error, error.hint or AWAY_HINT) from error


def bound_columns(config: Config) -> Bindings:
    """Return the columns to which the rules of `columns` are bound. Without rules, Kafka is not asked.

    Raises as `peek`, and PositionError if the checkpoint does not name the protected columns.
    """
    return bindings_of(config.columns, peek(config)) if config.columns.patterns else Bindings()


async def system_identifier(config: Config, what: str) -> str:
    """Return the system_identifier of the configuration's server, as the checkpoint names it.

    `what` as in `connect_to`.

    Raises TransientError and SourceError.
    """
    stream = await ReplicationStream.open(
        parse_dsn(*config.postgres.access()),
        application_name=f"{config.name} {what}",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    try:
        return (await stream.identify()).system_identifier
    finally:
        stream.close()


def check_server(config: Config, what: str, notice: Callable[[str], None]) -> None:
    """Check that the pipeline reads the server of the configuration.

    Args:
        what: as in `connect_to`.
        notice: called with a sentence if Kafka does not answer, so that the check is impossible.

    Raises:
        PositionError: the pipeline reads another server, or its checkpoint cannot be read.
        TransientError, SourceError: PostgreSQL does not answer, or refuses.
        SinkError: Kafka refuses.
    """
    try:
        found = peek(config)
    except SinkUnavailableError as error:
        notice(
            f"Kafka does not answer, so it is not known whether the pipeline reads this server. {error.message}"
        )
        return
    if found is not None:
        refuse_other_server(found, asyncio.run(system_identifier(config, what)))
