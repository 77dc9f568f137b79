"""The durable log of the configuration, and a logged session in place of the replication stream.

`engine/logged.py` has the rules of a logged session. The log's contents were confirmed when they were written, so
status updates are not sent.
"""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cdcd.adapters.durable.log import LogFiles, segments_in
from cdcd.config.loading import Config
from cdcd.core.errors import LimitError, out_of_files

SEGMENT_BYTES: Final = 8 << 20
"""Size of a segment in bytes. Each start reads the last segment of each logged session."""


def open_log(config: Config) -> LogFiles | None:
    """Open and lock the log; None if there is none. The caller owes `close`.

    An existing log also counts if `spool.durable` is off again, because its changes are stored nowhere else.

    Raises:
        LimitError: the folder cannot be read or written.
        TransientError: another process uses the log.
    """
    spool = config.spool
    if spool.durable_directory is None:
        return None
    folder = Path(spool.durable_directory)
    try:
        if not spool.durable and not segments_in(folder):
            return None
    except OSError as error:
        raise log_error(config, error) from error
    return LogFiles(folder, spool.durable_bytes_max, min(SEGMENT_BYTES, spool.durable_bytes_max))


def has_log(config: Config) -> bool:
    """Return True if there is a log that may contain changes.

    False if the folder cannot be read, which `open_log` reports.
    """
    folder = config.spool.durable_directory
    try:
        return folder is not None and bool(segments_in(Path(folder)))
    except OSError:
        return False


def log_error(config: Config, error: OSError) -> LimitError:
    """Return the error for a log folder that cannot be used."""
    folder = config.spool.durable_directory
    return out_of_files(error) or LimitError(
        f"Cannot use the durable log {folder}: {os.strerror(error.errno or errno.EIO)}.",
        hint=f"Let the user of the daemon read and write {folder} and what is in it. Nothing was skipped.",
    )


class LoggedStream:
    """The methods of a stream that a pipeline needs: `receive`, `send` and `finish`."""

    def __init__(self, frames: Iterator[list[bytes]]) -> None:
        self._frames = frames

    async def receive(self, bytes_max: int) -> list[bytes]:
        """Return the next frames. After the last frames, this call waits for the end of the session.

        Raises:
            PositionError: the log ends too early.
        """
        frames = await asyncio.to_thread(next, self._frames, None)
        if frames is None:
            await asyncio.Event().wait()
        assert frames is not None
        return frames

    async def send(self, status: bytes) -> None:
        """Ignore a status update, because the log's contents are confirmed already."""

    async def finish(self, timeout_s: float) -> bool:
        """Return True, because there is no stream to end."""
        return True
