"""What `cdcd snapshot` does: a request to the running daemon by a logical message, and a look at its checkpoint."""

import asyncio
from typing import Final

from cdcd.config.loading import Config
from cdcd.errors import ConfigError
from cdcd.kafka import client
from cdcd.kafka.checkpoint import peek_checkpoint
from cdcd.postgres.connection import connect, parse_dsn
from cdcd.postgres.logical_message import emit_message
from cdcd.protocol.lsn import Lsn
from cdcd.snapshots.progress import Progress
from cdcd.snapshots.signals import PREFIX, Signal

MESSAGES_SINCE: Final = 140000
"""The server version whose pgoutput sends logical messages."""

CHECKPOINT_S: Final = 15.0


def ask(config: Config, signal: Signal) -> Lsn:
    """Write the request into the WAL; where it is.

    Raises:
        ConfigError: this daemon would not hear it.
        TransientError, SourceError: PostgreSQL does not let us.
    """
    if not config.postgres.messages or config.snapshot.signals == "off":
        raise ConfigError(
            "The daemon does not listen: postgres.messages is false or snapshot.signals is off.",
            hint="Change that, and restart the daemon.",
        )
    if signal.where and config.snapshot.signals != "all":
        raise ConfigError(
            "snapshot.signals does not allow --where.", hint="Set it to all, and restart the daemon."
        )
    return asyncio.run(_emit(config, signal))


async def _emit(config: Config, signal: Signal) -> Lsn:
    sql = await connect(
        parse_dsn(config.postgres.libpq()),
        application_name=f"{config.name} snapshot request",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )
    try:
        if sql.info.server_version < MESSAGES_SINCE:
            raise ConfigError(
                "PostgreSQL 13 sends no logical messages to its clients, so the daemon would not hear this.",
                hint="It takes PostgreSQL 14 or newer. On 13, snapshot.added_tables reads tables that are added to the "
                "publication.",
            )
        return await emit_message(sql, PREFIX, signal.encode())
    finally:
        await sql.close()


def look(config: Config) -> Progress | None:
    """How far the daemon's snapshots have got, by what is committed in Kafka; None: it has not begun.

    Raises:
        TransientError: Kafka does not answer.
        PositionError: the checkpoint is not one of ours.
    """
    connection, _ = client.split(config.kafka.librdkafka())
    found = peek_checkpoint(connection, config.topics.checkpoint, config.name, CHECKPOINT_S)
    return None if found is None else found.snapshot or Progress()
