"""Reports of large messages, in the log and in a file, before the messages need memory.

The kernel kills a process that needs more memory than its limit, and the process cannot report the reason. So
before a large message is received and copied, its position and size are written to the log and to a file in
`spool.directory`. If the file still exists at the next start, the process was killed meanwhile, and the log reports
at which message.

libpq returns a message when it is complete. Until then, its size is the number of bytes that were read from the
socket without a message.
"""

import io
import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdcd.core.engine.renewal import LARGE_BYTES
from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import LargeMessageComing, LargeMessageEndedRun, LargeMessageReceived
from cdcd.core.protocol import peek
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.shortened import MessageLimits
from cdcd.daemon.process import BASE_BYTES, MIB, RECORD_COPIES, WIRE_COPIES, memory_limit

_PROCESS: Final = uuid.uuid4().hex
"""Id that distinguishes this process from a former one. In a container, both have the same process id."""


COPIED_BYTES: Final = 8 * MIB
"""Bytes of a large frame that are copied at a time."""


@dataclass(frozen=True, slots=True)
class Note:
    """Contents of the file. `lsn` is in PostgreSQL's form; `bytes` is the minimum size of the message."""

    process: str
    table: str
    lsn: str
    bytes: int
    memory_limit: int | None


class LargeMessages:
    """Reporter of the large messages on one session's connection.

    Args:
        directory: `spool.directory`.
        name: name of the pipeline.
        limits: decide which logical messages are kept whole.
        table_name: returns the name `schema.table` of a relation that the stream has described, by its oid; "":
            unknown.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        limits: MessageLimits,
        table_name: Callable[[int], str],
        observe: Observer,
    ) -> None:
        self._file = directory / f"{name}.large"
        self._limits = limits
        self._table_name = table_name
        self._observe = observe
        self._memory_limit = memory_limit()
        self._lsn = 0
        self._noted_lsn: int | None = None

    def shorten(self, data: memoryview) -> bytes | None:
        """Report the frame in `data` if it is large, and return its replacement or a copy of it.

        None: the frame is not large, and is kept.
        """
        is_large = len(data) > LARGE_BYTES
        if is_large:
            tables = [name for oid in peek.relations_of_row(data) if (name := self._table_name(oid))]
            lsn = peek.lsn_of(data)
            self._note(tables[0] if tables else "", lsn, len(data))
            self._observe(
                LargeMessageReceived(
                    table=tables[0] if tables else "",
                    lsn=str(Lsn(lsn)),
                    bytes=len(data),
                    memory_limit=self._memory_limit,
                )
            )
        short = self._limits.shorten(data)
        return _copied(data) if short is None and is_large else short

    def coming(self, size: int) -> None:
        """Report that `size` bytes of an incomplete message have arrived."""
        self._note("", self._lsn, size)
        self._observe(
            LargeMessageComing(lsn=str(Lsn(self._lsn)), bytes=size, memory_limit=self._memory_limit)
        )

    def received(self, lsn: int) -> None:
        """Register that the stream was received up to this LSN."""
        self._lsn = lsn

    def confirmed(self, lsn: int) -> None:
        """Register that this position was confirmed to PostgreSQL. A large message before it caused no failure."""
        if self._noted_lsn is not None and lsn > self._noted_lsn:
            self.clear()

    def clear(self) -> None:
        """Remove the file: a later end of this process has another reason, which the process can report."""
        self._noted_lsn = None
        self._file.unlink(missing_ok=True)

    def tell_former(self) -> None:
        """If a former process was killed at a large message, report this, and remove its file."""
        note = self._read()
        if note is None or note.process == _PROCESS:
            return
        self._observe(
            LargeMessageEndedRun(
                table=note.table,
                lsn=note.lsn,
                bytes=note.bytes,
                memory_limit=note.memory_limit,
                hint=_hint(note),
            )
        )
        self._file.unlink(missing_ok=True)

    def _note(self, table: str, lsn: int, size: int) -> None:
        self._noted_lsn = lsn
        note = Note(_PROCESS, table, str(Lsn(lsn)), size, self._memory_limit)
        # Without this file, the next start only has less to report.
        try:
            self._file.write_text(json.dumps(asdict(note)))
        except OSError:
            return

    def _read(self) -> Note | None:
        try:
            fields = json.loads(self._file.read_bytes())
            return Note(**fields)
        except (OSError, ValueError, TypeError):
            return None


def _copied(data: memoryview) -> bytes:
    """Return a copy that is made in pieces, between which the thread of the advisory lock can run."""
    copy = io.BytesIO()
    for at in range(0, len(data), COPIED_BYTES):
        copy.write(data[at : at + COPIED_BYTES])
    # getvalue uses the buffer without copying it.
    return copy.getvalue()


def _hint(note: Note) -> str:
    needed = BASE_BYTES + (WIRE_COPIES + RECORD_COPIES) * note.bytes
    ways = (
        f"If the kernel killed cdcd for lack of memory, give the process at least {-(-needed // MIB)} MiB until cdcd "
        "has passed this place (docs/sizing.md). "
    )
    if note.table:
        return (
            ways + f"Or take {note.table} out of the publication, drop the slot and start again (cdcd reset)."
        )
    return (
        ways
        + "If nobody needs the logical message, set postgres.messages: asked, which saves one copy of the message, or "
        "postgres.messages: false, so that the server does not send the message."
    )
