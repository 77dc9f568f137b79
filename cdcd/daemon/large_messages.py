"""What is said, and noted in a file, of large messages before they need memory.

The kernel kills a process that needs more memory than its limit, and the process cannot say why. So before a large
message is received and copied, the log and a file in `spool.directory` say where it is and how large. If the file is
still there at the next start, the process was killed meanwhile, and the log says at what.

libpq hands a message out when all of it is there. Until then, the size is what was read from the socket without a
message.
"""

import io
import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cdcd.core.engine.renewal import LARGE_BYTES
from cdcd.core.facts import LargeMessageComing, LargeMessageEndedRun, LargeMessageReceived, Observer
from cdcd.core.protocol import peek
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.shortened import MessageLimits
from cdcd.daemon.memory_limit import BASE_BYTES, MIB, RECORD_COPIES, WIRE_COPIES, memory_limit

_PROCESS: Final = uuid.uuid4().hex
"""Tells this process from a former one. In a container, both have the same id."""


COPIED_BYTES: Final = 8 * MIB
"""Bytes of a large frame that are copied at a time."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the file says. `lsn` is in PostgreSQL's form; `bytes` is the least size of the message."""

    process: str
    table: str
    lsn: str
    bytes: int
    memory_limit: int | None


class LargeMessages:
    """Tells of the large messages of one session's connection.

    Args:
        directory: `spool.directory`.
        name: the pipeline's.
        limits: decide which logical messages are taken whole.
        table_name: `schema.table` of a relation that the stream has described, by its oid; empty: it is not known.
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
        """Tell of the frame in `data` if it is large, and return the frame that takes its place, or a copy of it.

        None: the frame is not large, and is taken as it is.
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
        """This many bytes of a message are here, and the message is not complete."""
        self._note("", self._lsn, size)
        self._observe(
            LargeMessageComing(lsn=str(Lsn(self._lsn)), bytes=size, memory_limit=self._memory_limit)
        )

    def received(self, lsn: int) -> None:
        """The stream was received up to this LSN."""
        self._lsn = lsn

    def confirmed(self, lsn: int) -> None:
        """PostgreSQL was told this position. A large message before it did no harm."""
        if self._noted_lsn is not None and lsn > self._noted_lsn:
            self.clear()

    def clear(self) -> None:
        """Remove the file: if this process ends now, it is for another reason, which it can tell."""
        self._noted_lsn = None
        self._file.unlink(missing_ok=True)

    def tell_former(self) -> None:
        """If a former process was killed at a large message, say so, and remove what it left."""
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
        # Without this file, only the next start has less to say.
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
    """A copy in pieces, between which the thread of the advisory lock can run."""
    copy = io.BytesIO()
    for at in range(0, len(data), COPIED_BYTES):
        copy.write(data[at : at + COPIED_BYTES])
    # This takes the buffer over, and copies nothing.
    return copy.getvalue()


def _hint(note: Note) -> str:
    needed = BASE_BYTES + (WIRE_COPIES + RECORD_COPIES) * note.bytes
    ways = (
        f"If the kernel killed it for lack of memory, give the process at least {-(-needed // MIB)} MiB for the time "
        "until it has passed this place (docs/sizing.md). "
    )
    if note.table:
        return (
            ways + f"Or take {note.table} out of the publication, drop the slot and start again (cdcd reset)."
        )
    return (
        ways
        + "If it is a logical message that nobody needs, postgres.messages: asked spares one copy of it, and "
        "postgres.messages: false has the server not send it."
    )
