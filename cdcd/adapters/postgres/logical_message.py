"""Writer of a logical message: content that a client writes into the WAL for decoders, outside of any table."""

from typing import Any

from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.refusals import translated
from cdcd.core.protocol.lsn import Lsn


async def emit_message(connection: Connection, prefix: str, content: str) -> Lsn:
    """Write a transactional logical message, and return its position in the WAL.

    Raises TransientError and SourceError.
    """
    with translated("writing a logical message", {}):
        row: Any = await (
            await connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (prefix, content))
        ).fetchone()
    return Lsn.parse(row[0])
