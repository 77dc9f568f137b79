"""How the commands of an operator reach the two sides of a pipeline: PostgreSQL, and the checkpoint in Kafka."""

from typing import Final

from cdcd.config.loading import Config
from cdcd.errors import TransientError
from cdcd.kafka import client
from cdcd.kafka.checkpoint import peek_checkpoint
from cdcd.kafka.errors import unavailable
from cdcd.postgres.connection import Connection, connect, parse_dsn
from cdcd.transactions.position import Checkpoint

CHECKPOINT_S: Final = 15.0
"""Seconds that the broker may take for the checkpoint."""

AWAY_HINT: Final = (
    "Check: 1. the broker runs; 2. kafka.bootstrap_servers is reachable from this machine; 3. security.protocol in "
    "kafka.properties matches the broker's listener."
)


async def connect_to(config: Config, what: str) -> Connection:
    """A connection to the pipeline's database; the caller closes it. `what` is a part of its application_name.

    Raises TransientError and SourceError.
    """
    return await connect(
        parse_dsn(*config.postgres.access()),
        application_name=f"{config.name} {what}",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )


def peek(config: Config, timeout_s: float = CHECKPOINT_S) -> Checkpoint | None:
    """The newest checkpoint; None: there is none. Raises SinkUnavailableError, SinkError and PositionError."""
    connection, _ = client.configured(config.kafka)
    try:
        return peek_checkpoint(connection, config.topics.checkpoint, config.name, timeout_s)
    except TransientError as error:
        raise unavailable(error, error.hint or AWAY_HINT) from error
