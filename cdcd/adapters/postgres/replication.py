"""Stage 1's shell: the replication connection -> CopyData frames, and status updates back.

Rules. `receive` hands over whole frames in the server's order, each exactly once, and never blocks the event
loop for longer than `_BUDGET_S`. It reads only when it is called: not calling it is the back-pressure, so
silence counts against the server only while we listen. Nothing here confirms anything by itself: the one
frame it sends of its own accord is the last status update again, with "reply requested" set, to hear from a
server that has been silent for long.

How libpq is read: `get_copy_data(1)` never reads the socket, `consume_input` reads it once. So a pass is:
take every complete frame, read, take again, until a read brings nothing. Under TLS one read may leave a
decrypted rest inside the TLS library that the socket's readiness does not show, at most one record of 16 KiB,
which a second read takes. A frame that comes after a WARNING about a missing publication (PostgreSQL 18) is
not handed over: it belongs to a stream with changes left out.
"""

import asyncio
import fcntl
import os
import re
import termios
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import psycopg
from psycopg import pq

from cdcd.adapters.postgres.connection import Dsn, open_session
from cdcd.adapters.postgres.conversion import RAW, Conversion, server_encoding
from cdcd.adapters.postgres.refusals import (
    Answer,
    SlotActiveError,
    answer_of,
    answer_of_result,
    refused,
    translated,
)
from cdcd.adapters.postgres.session import Row, Session
from cdcd.core.errors import CdcdError, SourceError, TransientError
from cdcd.core.protocol.copydata import Shorten, take_frames
from cdcd.core.protocol.lsn import Lsn

_BUDGET_S: Final = 0.004
"""The longest that one `receive` keeps the event loop, so that feedback and health checks stay punctual."""

_SLOT_POLL_S: Final = 0.2

_SHORT_BURST_BYTES: Final = 32 * 1024
"""A burst below this makes `receive` pause (if it may) before it waits for the next one: see performance
notes."""

_CROWDED_S: Final = 0.0005
"""How soon after the last one a burst must come for the first pause: at a moderate rate it would only be a delay."""

_WORTH_FRAMES: Final = 16
"""What must have come meanwhile for a further one."""

_FINISH_BYTES: Final = 1 << 20

COUNTED_READS: Final = 16
"""Reads without a complete message after which the bytes of further ones are counted, by a system call each."""

COMING_BYTES: Final = 16 << 20
"""Bytes of an incomplete message from which `on_coming` is called."""

STREAMED_FROM: Final = "8MB"
"""`logical_decoding_work_mem` of a session that streams, where it is PostgreSQL's own default of 64 MB."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

WARNING_S: Final = 60.0
"""Seconds in which a warning of the server is told once. A walsender that waits for a standby repeats its warning."""

_WARNINGS_MAX: Final = 100
"""So many different warnings are remembered."""

_NO_STATUS: Final = b"r" + bytes(33)
"""A status update that confirms nothing: position 0 is "no position" (ProcessStandbyReplyMessage)."""

_REPLY_REQUESTED: Final = b"\x01"

_DURATION: Final = re.compile(r"(\d+)(us|ms|s|min|h|d|)")
_UNIT_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1e-3}


class StreamEndedError(TransientError):
    """The server ended the stream in good order (CommandComplete): it is shutting down."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The answer to IDENTIFY_SYSTEM."""

    system_identifier: str
    timeline: int
    flushed: int
    """The server's own flush position, as an LSN."""
    database: str


_KNOWN_S: Final = 0.05
"""Seconds for which a size of the address space counts as the size at the start of the next pass over the socket.

In this time, cdcd itself maps much less than a message that is reported (`COMING_BYTES`). Small transactions need many
passes a second, and each look at the size costs as much as a third of a row.
"""


class MappedMemory:
    """The size of this process's address space (proc(5), statm).

    When libpq knows the length of a message, it enlarges its buffer, by doubling, until the message fits. Then it reads
    all that the server has sent, in one call. So the address space grows for a large message before the message needs
    memory.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/statm", os.O_RDONLY)
        self._known_bytes = 0
        self._known_until = 0.0

    def begin(self, now: float) -> None:
        """Have `growth_bytes` count from now on (`time.monotonic`), or from the last look if it was a moment ago."""
        if now >= self._known_until:
            self.growth_bytes()

    def growth_bytes(self) -> int:
        """Return by how many bytes the address space has grown since the last call."""
        mapped = self.mapped_bytes()
        growth = mapped - self._known_bytes
        self._known_bytes = mapped
        self._known_until = time.monotonic() + _KNOWN_S
        return growth

    def mapped_bytes(self) -> int:
        """Bytes; 0 where the system does not say. It takes 2 µs."""
        if self._descriptor < 0:
            return 0
        return int(os.pread(self._descriptor, 24, 0).split(b" ", 1)[0]) * _PAGE_BYTES

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ReplicationStream:
    """One walsender connection: commands first, then `start`, then frames until it is closed.

    One task receives; any task may send. After an error only `close` is left.
    """

    def __init__(
        self, session: Session, *, silence_s_max: float, pause_s: float, warned: Callable[[Answer], None]
    ) -> None:
        self._session = session
        self._warned = warned
        self._warned_at: dict[str, float] = {}
        self._pgconn = pgconn = session.pgconn
        self._names = session.names
        self._silence_s_max = silence_s_max
        self._pause_s = pause_s
        # GSS encryption buffers like TLS does.
        self._empty_reads_max = 2 if pgconn.ssl_in_use or pgconn.used_gssapi else 1
        self._short_burst = False
        self._paused = False
        self._received_at = 0.0
        self._silent_s = 0.0
        self._asked = False
        self._failure: CdcdError | None = None
        self._frames: list[bytes] = []
        self._sound = 0
        self._status = _NO_STATUS
        self._sending = asyncio.Lock()
        self.shorten: Shorten | None = None
        """Gives the frame that takes the place of a large one; None: every frame is taken as it is."""
        self.on_coming: Callable[[int], None] = lambda _: None
        """Is told how many bytes of a large message are here that is not complete, whenever they have doubled."""
        self._reads = 0
        self._coming = 0
        self._coming_told = COMING_BYTES
        self._memory = MappedMemory()
        self._conversion: Conversion | None = None
        self._taken: list[bytes] = []
        session.on_notice(self._on_notice)

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        *,
        application_name: str,
        connect_timeout_s: float = 10.0,
        silence_s_max: float = 60.0,
        pause_s: float = 0.0,
        warned: Callable[[Answer], None] = lambda _: None,
    ) -> Self:
        """Connect as walsender for the DSN's database. Errors as `connection.open_session`.

        `silence_s_max`: a server that says nothing for so long, while we listen and after it was asked, is
        lost. `pause_s`: after a short burst that came soon after another one, let so much time pass before the
        next look at the socket (0: look at once). `warned` hears what the server warns of, each message at most
        once in `WARNING_S`.
        """
        session = await open_session(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s, replication=True
        )
        return cls(session, silence_s_max=silence_s_max, pause_s=pause_s, warned=warned)

    @property
    def server_version(self) -> int:
        """`server_version_num`, e.g. 180001."""
        return self._session.server_version

    @property
    def backend_pid(self) -> int:
        """The walsender's process id."""
        return self._session.backend_pid

    async def take_raw(self, conversion: Conversion) -> None:
        """Have texts sent in the server's encoding from now on, and decode those of frames. Call it before `start`.

        The caller owes the conversion's `close`.
        """
        await self.query(f"SET client_encoding = '{RAW}'", "asking for texts without conversion")
        self._conversion = conversion

    @property
    def server_encoding(self) -> str:
        """The encoding of the database."""
        return server_encoding(self._session)

    async def query(self, command: str, what: str, **names: str) -> list[Row]:
        """The rows of one replication (or SQL) command before `start`. Errors as in `refusals`."""
        results = await self._session.query(command, what, names)
        return results[-1] if results else []

    async def cancel(self) -> None:
        """Ask the server to give up the command in progress, by a second connection as libpq does it."""
        with translated("cancelling", self._names):
            await asyncio.to_thread(self._pgconn.get_cancel().cancel)

    async def identify(self) -> Identity:
        """IDENTIFY_SYSTEM."""
        ((system, timeline, position, database),) = await self.query(
            "IDENTIFY_SYSTEM", "identifying the server"
        )
        assert system
        assert timeline
        assert position
        return Identity(system, int(timeline), Lsn.parse(position), database or "")

    async def branched_at(self, timeline: int, current: int) -> int | None:
        """Where the history of the server's `current` timeline left `timeline`, an LSN; None where it never was on it.

        The lines of a history file: timeline, switch point, reason (timeline.c, readTimeLineHistory).
        """
        if timeline >= current:
            return None
        ((_, content),) = await self.query(
            f"TIMELINE_HISTORY {current}", f"reading the history of timeline {current}"
        )
        for line in (content or "").splitlines():
            fields = line.split("\t")
            if fields[0].strip() == str(timeline):
                return Lsn.parse(fields[1])
        return None

    async def show(self, name: str) -> str:
        """The value of a setting in this session, as SHOW prints it."""
        ((value,),) = await self.query(f"SHOW {name}", f"reading the setting {name}")
        return value or ""

    async def wal_sender_timeout_s(self) -> float:
        """After how much silence from us the walsender gives up; 0 means never."""
        return _duration_s(await self.show("wal_sender_timeout"))

    async def stream_early(self) -> None:
        """Have transactions sent that hold more than `STREAMED_FROM`, unless somebody set `logical_decoding_work_mem`.

        What the server still holds of one at its commit is decoded only then, while the consumer waits.
        """
        await self.query(
            f"SELECT set_config(name, '{STREAMED_FROM}', false) FROM pg_settings "
            "WHERE name = 'logical_decoding_work_mem' AND source = 'default'",
            "setting logical_decoding_work_mem for the session",
        )

    async def start(
        self,
        slot: str,
        position: int,
        options: Sequence[tuple[str, str]],
        *,
        publication: str = "",
        wal_sender_timeout_s: float | None = None,
        slot_wait_s: float = 0.0,
        on_slot_active: Callable[[str], None] = lambda _: None,
    ) -> None:
        """START_REPLICATION from `position` (0: from the slot's confirmed_flush_lsn).

        `wal_sender_timeout_s` saves the question to the server where the answer is known.

        A slot that another session holds is tried again all the time for `slot_wait_s`: the walsender of a
        daemon that was killed lingers until `wal_sender_timeout`. After that: SourceError, naming its
        process. `on_slot_active` is called once, with the server's words, when the waiting begins.
        """
        self._names |= {"slot": slot, "publication": publication}
        listed = ", ".join(f"{name} {literal(value)}" for name, value in options)
        command = f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {Lsn(position)} ({listed})"
        if self._silence_s_max:
            # Busy with a large transaction of which nothing is published, the server looks at what we send only after
            # half of its own timeout (walsender.c, WalSndUpdateProgress).
            if wal_sender_timeout_s is None:
                wal_sender_timeout_s = await self.wal_sender_timeout_s()
            self._silence_s_max = max(self._silence_s_max, wal_sender_timeout_s)
        written = command if self._conversion is None else await self._conversion.command(command)
        deadline = time.monotonic() + slot_wait_s
        waiting = False
        while True:
            try:
                await self._session.query(written, f"starting replication from slot {slot}")
                break
            except SlotActiveError as error:
                if time.monotonic() >= deadline:
                    raise SourceError(
                        error.message,
                        hint="Another session reads this slot: see pg_stat_replication. End it (SELECT "
                        "pg_terminate_backend(pid)), or give this pipeline a slot of its own.",
                    ) from None
                if not waiting:
                    on_slot_active(error.message)
                    waiting = True
            await asyncio.sleep(min(_SLOT_POLL_S, max(0.0, deadline - time.monotonic())))

    async def receive(self, bytes_max: int) -> list[bytes]:
        """As `_receive`, with texts in UTF-8. Raises SourceError, too: the name of a table cannot be decoded."""
        if self._conversion is None:
            return await self._receive(bytes_max)
        if not self._taken:
            self._taken = await self._receive(bytes_max)
        frames = await self._conversion.frames(self._taken)
        self._taken = []
        return frames

    async def _receive(self, bytes_max: int) -> list[bytes]:
        """Every complete frame that is here, at least one, until about `bytes_max` bytes or the time budget
        is reached.

        Waits while there is none. Cancel-safe: a frame is taken only in the step that returns it. Raises
        StreamEndedError, TransientError (connection lost, server stopping, silence), SourceError (publication
        gone), PositionError (slot gone).
        """
        if self._short_burst and self._pause_s:
            self._short_burst = False
            self._paused = True
            await asyncio.sleep(self._pause_s)
        while True:
            frames = self._take(bytes_max)
            if frames:
                # Also without a wait: an answer may be there before anybody waits for it.
                self._hear()
                return frames
            if self._failure:
                raise self._failure
            await self._await_input()

    def _take(self, bytes_max: int) -> list[bytes]:
        frames: list[bytes] = []
        self._frames = frames
        if self._failure:
            return frames
        get_copy_data = self._pgconn.get_copy_data
        began = time.monotonic()
        deadline = began + _BUDGET_S
        room = bytes_max
        empty_reads = 0
        lost: psycopg.Error | None = None
        self._memory.begin(began)
        try:
            while True:
                before = room
                size, room = take_frames(get_copy_data, frames, room, self.shorten)
                if size == 0:
                    # Only an incomplete message makes libpq enlarge its buffer.
                    self._look_for_large()
                if self._failure:
                    # A notice, read just before the frame that was to be the next one then, ended the stream.
                    del frames[self._sound :]
                    return frames
                if room <= 0 or (frames and time.monotonic() >= deadline):
                    break
                if size < 0:
                    self._fail(self._ending())
                    break
                if lost:
                    self._fail(refused("receiving from the server", answer_of(lost), self._names))
                    break
                if room == before:
                    self._reads += 1
                    if self._reads > COUNTED_READS:
                        self._count_coming()
                    empty_reads += 1
                    if empty_reads > self._empty_reads_max:
                        break
                else:
                    empty_reads = 0
                    if self._reads:
                        self._reads = self._coming = 0
                        self._coming_told = COMING_BYTES
                try:
                    self._pgconn.consume_input()
                except psycopg.Error as error:
                    # What came before the loss is still in libpq's buffer, the server's last words too.
                    lost = error
                    self._session.let_go()
        except psycopg.Error as error:
            self._fail(refused("receiving from the server", answer_of(error), self._names))
        if frames:
            now = time.monotonic()
            crowded = len(frames) >= _WORTH_FRAMES if self._paused else now - self._received_at < _CROWDED_S
            self._paused = False
            self._short_burst = crowded and bytes_max - room < _SHORT_BURST_BYTES
            self._received_at = now
        return frames

    def _look_for_large(self) -> None:
        """Report a large message if libpq has mapped memory for one."""
        growth = self._memory.growth_bytes()
        if growth > 2 * COMING_BYTES:
            self._tell_coming(growth // 2)

    def _count_coming(self) -> None:
        """Count what the next read brings of a message that is not complete. Under TLS, it is a little less."""
        waiting = array("i", [0])
        fcntl.ioctl(self._pgconn.socket, termios.FIONREAD, waiting)
        self._coming += waiting[0]
        if self._coming > self._coming_told:
            self._tell_coming(self._coming)

    def _tell_coming(self, size: int) -> None:
        self._coming_told = 2 * size
        self.on_coming(size)

    def _ending(self) -> CdcdError:
        """Why the copy is over: libpq holds the result already, or the connection is broken."""
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return StreamEndedError(
                "the server ended the stream", hint="It is shutting down; cdcd connects again."
            )
        return refused("streaming", answer_of_result(result), self._names)

    def _on_notice(self, answer: Answer, severity: bytes) -> None:
        if severity != b"WARNING":
            return
        if not skips_publication(answer):
            self._warn(answer)
        elif self._failure is None:
            self._sound = len(self._frames)
            known = Answer("55000", "skipped loading publication", f"{answer.message}: {answer.detail}")
            self._fail(refused("streaming", known, self._names))

    def _warn(self, answer: Answer) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(answer.message, -WARNING_S) < WARNING_S:
            return
        if len(self._warned_at) >= _WARNINGS_MAX:
            self._warned_at.clear()
        self._warned_at[answer.message] = now
        self._warned(answer)

    async def _await_input(self) -> None:
        """Return when the socket has something, or after asking a silent server for a sign of life."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = None
        if self._silence_s_max:
            limit = self._silence_s_max if self._asked else self._silence_s_max / 2
            until = began + limit - self._silent_s
        try:
            heard = await self._session.readable(until)
        except asyncio.CancelledError:
            self._silent_s += loop.time() - began
            raise
        if heard:
            self._hear()
        else:
            self._silent_s += loop.time() - began
            await self._on_silence()

    def _hear(self) -> None:
        self._silent_s = 0.0
        self._asked = False

    async def _on_silence(self) -> None:
        if self._asked:
            self._fail(
                TransientError(
                    f"the server has been silent for {self._silence_s_max:g} s, also when asked for a reply",
                    hint="The network or the server may be gone without a word; cdcd connects again.",
                )
            )
        else:
            self._asked = True
            # Its time to answer begins now, also where it was us who stood still (a machine that was paused).
            self._silent_s = self._silence_s_max / 2
            await self._put(self._status[:-1] + _REPLY_REQUESTED)

    def _fail(self, failure: CdcdError) -> None:
        self._failure = failure
        self._session.let_go()

    async def send(self, status: bytes) -> None:
        """Send one standby status update; returns when the kernel has it. Any task may call it."""
        if self._failure:
            raise self._failure
        self._status = status
        await self._put(status)

    async def _put(self, data: bytes) -> None:
        try:
            async with self._sending:
                while self._pgconn.put_copy_data(data) == 0:
                    await self._session.writable()
                await self._session.flush()
        except psycopg.Error as error:
            # Whoever receives wakes up and reads the server's last words, if there are any.
            self._session.let_go()
            raise self._failure or refused("sending to the server", answer_of(error), self._names) from None

    async def finish(self, timeout_s: float) -> bool:
        """Ask the server to end the stream, throw away what still comes, and close.

        True: the server said that it ended it, so it has read every status update sent before. The one way to
        know.
        """
        ended = False
        try:
            async with asyncio.timeout(timeout_s):
                async with self._sending:
                    self._pgconn.put_copy_end()
                    await self._session.flush()
                while True:
                    await self.receive(_FINISH_BYTES)
        except StreamEndedError:
            ended = True
        except (TimeoutError, CdcdError, psycopg.Error):
            # Whatever it was, the connection is of no more use, and nothing was confirmed by it.
            ended = False
        self.close()
        return ended

    def close(self) -> None:
        """Close the connection at once. Idempotent; what `receive` has not returned is dropped."""
        self._fail(self._failure or TransientError("the replication connection is closed"))
        self._session.close()
        self._memory.close()


def skips_publication(answer: Answer) -> bool:
    """The server leaves out the changes of a publication that it does not find (PostgreSQL 18, pgoutput.c).

    Other warnings have the same SQLSTATE. One of them says that the server waits for a standby.
    """
    return answer.function == "LoadPublications" or "skipped loading publication" in answer.message


def _duration_s(shown: str) -> float:
    """Seconds of a time setting as SHOW prints it: a number and the largest unit that divides it."""
    match = _DURATION.fullmatch(shown)
    if match is None:
        raise SourceError(f"{shown!r} is not a duration as SHOW prints it")
    return int(match[1]) * _UNIT_S[match[2]]


def identifier(name: str) -> str:
    """`name` as a quoted identifier of SQL and of the replication grammar."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """`value` as a string literal of the replication grammar, which knows no backslash (repl_scanner.l)."""
    return "'" + value.replace("'", "''") + "'"
