"""The replication connection, which receives CopyData frames and sends status updates.

The rules: `receive` returns whole frames in the server's order, each exactly once, and never blocks the event loop
for longer than `_BUDGET_S`. The socket is read only during calls of `receive`, so a caller creates back-pressure by
not calling it, and silence counts against the server only during a call. This class confirms nothing by itself. The
only frame that it sends on its own is a repetition of the last status update with "reply requested", to get a sign
of life from a silent server.

How libpq is read: `get_copy_data(1)` never reads the socket, and `consume_input` reads the socket once. So a pass
receives every complete frame, reads the socket, and repeats both until a read brings no frame. Under TLS, decrypted
data of at most one record (16 KiB) may remain inside the TLS library after a read, and the socket's readiness does
not show this data; a second read receives it. A frame after a WARNING about a missing publication (PostgreSQL 18)
is not returned, because it belongs to a stream without some changes.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import psycopg
from psycopg import pq

from cdcd.adapters.postgres.answers import Answer, answer_of, answer_of_result, refused, translated
from cdcd.adapters.postgres.coming import ComingMessage
from cdcd.adapters.postgres.connection import Dsn, open_session
from cdcd.adapters.postgres.conversion import Conversion, server_encoding
from cdcd.adapters.postgres.quoting import identifier, literal
from cdcd.adapters.postgres.refusals import SlotActiveError
from cdcd.adapters.postgres.server_names import RAW
from cdcd.adapters.postgres.session import Row, Session
from cdcd.core.errors import CdcdError, SourceError, TransientError
from cdcd.core.protocol.copydata import Shorten, take_frames
from cdcd.core.protocol.lsn import Lsn

_BUDGET_S: Final = 0.004
"""Maximum of seconds for which one `receive` keeps the event loop, so that feedback and health checks stay
punctual."""

_SLOT_POLL_S: Final = 0.2

_SHORT_BURST_BYTES: Final = 32 * 1024
"""Bytes of a burst below which `receive` pauses (if it may) before the next wait: see performance notes."""

_CROWDED_S: Final = 0.0005
"""Maximum of seconds between two bursts for the first pause; at a moderate rate a pause would only cause delay."""

_WORTH_FRAMES: Final = 16
"""Minimum of frames that must have arrived in a pause for another pause."""

_FINISH_BYTES: Final = 1 << 20

STREAMED_FROM: Final = "8MB"
"""`logical_decoding_work_mem` of a streaming session, if the server has PostgreSQL's default of 64 MB."""

WARNING_S: Final = 60.0
"""Seconds within which the same warning of the server is reported only once. A walsender that waits for a standby
repeats its warning."""

_WARNINGS_MAX: Final = 100
"""Maximum number of different warnings that are remembered."""

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
    """Flush position of the server, as an LSN."""
    database: str


class ReplicationStream:
    """One walsender connection: commands first, then `start`, then frames until it is closed.

    One task receives; any task may send. After an error, only `close` may be called.
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
        # GSS encryption also buffers data, as TLS does.
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
        """Returns the replacement for a large frame; None: every frame is kept as received."""
        self.on_coming: Callable[[int], None] = lambda _: None
        """Called with the received bytes of a large, incomplete message, each time that they have doubled."""
        self._coming = ComingMessage(self._tell_coming)
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

        `silence_s_max`: seconds without data after which the server counts as lost, measured during `receive` and
        after a request for a sign of life. `pause_s`: seconds between a short burst that closely follows another
        burst and the next read of the socket (0: read at once). `warned` is called with the server's warnings, with
        each message at most once in `WARNING_S`.
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
        """Switch the session to texts in the server's encoding, and decode the texts of frames by `conversion`.

        Call this before `start`.

        The caller owes the conversion's `close`.
        """
        await self.query(f"SET client_encoding = '{RAW}'", "asking for texts without conversion")
        self._conversion = conversion

    @property
    def server_encoding(self) -> str:
        """The encoding of the database."""
        return server_encoding(self._session)

    async def query(self, command: str, what: str, **names: str) -> list[Row]:
        """Return the rows of one replication (or SQL) command; only before `start`. Errors as in `refusals`."""
        results = await self._session.query(command, what, names)
        return results[-1] if results else []

    async def cancel(self) -> None:
        """Ask the server to cancel the command in progress, by a second connection as libpq does."""
        with translated("cancelling", self._names):
            await asyncio.to_thread(self._pgconn.get_cancel().cancel)

    async def identify(self) -> Identity:
        """Return the server's answer to IDENTIFY_SYSTEM."""
        ((system, timeline, position, database),) = await self.query(
            "IDENTIFY_SYSTEM", "identifying the server"
        )
        assert system
        assert timeline
        assert position
        return Identity(system, int(timeline), Lsn.parse(position), database or "")

    async def branched_at(self, timeline: int, current: int) -> int | None:
        """Return the LSN at which the `current` timeline's history left `timeline`; None if it lacks `timeline`.

        A line of a history file has timeline, switch point and reason (timeline.c, readTimeLineHistory).
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
        """Return the value of a setting in this session, as SHOW prints it."""
        ((value,),) = await self.query(f"SHOW {name}", f"reading the setting {name}")
        return value or ""

    async def wal_sender_timeout_s(self) -> float:
        """Return the seconds of silence of cdcd after which the walsender gives up; 0 means never."""
        return _duration_s(await self.show("wal_sender_timeout"))

    async def stream_early(self) -> None:
        """Let the server stream transactions above `STREAMED_FROM`, unless `logical_decoding_work_mem` is set.

        Data that the server still holds at the commit is decoded only then, while the consumer waits.
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

        `wal_sender_timeout_s` is the server's setting if known, which saves a query.

        If another session reads the slot, the start is retried for `slot_wait_s` seconds, because the walsender of
        a killed daemon stays until `wal_sender_timeout`. After that: SourceError, which names the walsender's
        process. `on_slot_active` is called once, with the server's message, when the wait begins.
        """
        self._names |= {"slot": slot, "publication": publication}
        listed = ", ".join(f"{name} {literal(value)}" for name, value in options)
        command = f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {Lsn(position)} ({listed})"
        if self._silence_s_max:
            # While the server processes a large transaction without published changes, it reads status updates only
            # after half of its own timeout (walsender.c, WalSndUpdateProgress).
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
        """Return frames as `_receive` does, with texts in UTF-8.

        Also raises SourceError if the name of a table cannot be decoded.
        """
        if self._conversion is None:
            return await self._receive(bytes_max)
        if not self._taken:
            self._taken = await self._receive(bytes_max)
        frames = await self._conversion.frames(self._taken)
        self._taken = []
        return frames

    async def _receive(self, bytes_max: int) -> list[bytes]:
        """Return all complete frames, at least one, up to about `bytes_max` bytes or the time budget.

        Waits if there is no complete frame. Cancel-safe: a frame is removed from libpq only in the step that
        returns it. Raises StreamEndedError, TransientError (connection lost, server stopping, silence), SourceError
        (publication gone), PositionError (slot gone).
        """
        if self._short_burst and self._pause_s:
            self._short_burst = False
            self._paused = True
            await asyncio.sleep(self._pause_s)
        while True:
            frames = self._take(bytes_max)
            if frames:
                # This also runs without a wait, because an answer may have arrived before.
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
        self._coming.begin(began)
        try:
            while True:
                before = room
                size, room = take_frames(get_copy_data, frames, room, self.shorten)
                if size == 0:
                    self._coming.look()
                if self._failure:
                    # A notice just before the next frame ended the stream.
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
                    self._coming.count(self._pgconn.socket)
                    empty_reads += 1
                    if empty_reads > self._empty_reads_max:
                        break
                else:
                    empty_reads = 0
                    self._coming.arrived()
                self._coming.reading()
                try:
                    self._pgconn.consume_input()
                except psycopg.Error as error:
                    # Data from before the loss is still in libpq's buffer, including the server's last message.
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

    def _tell_coming(self, size: int) -> None:
        self.on_coming(size)

    def _ending(self) -> CdcdError:
        """Return the reason for the end of the copy, from libpq's result or because the connection is broken."""
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
        """Return when the socket has data, or after asking a silent server for a sign of life."""
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
                    hint="The network or the server may have failed without closing the connection. cdcd connects "
                    "again.",
                )
            )
        else:
            self._asked = True
            # The server's time to answer begins now, also if this process stood still (a machine that was paused).
            self._silent_s = self._silence_s_max / 2
            await self._put(self._status[:-1] + _REPLY_REQUESTED)

    def _fail(self, failure: CdcdError) -> None:
        self._failure = failure
        self._session.let_go()

    async def send(self, status: bytes) -> None:
        """Send one standby status update, and return when the kernel has accepted it. Any task may call it."""
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
            # The receiving task wakes up and reads the server's last message, if there is one.
            self._session.let_go()
            raise self._failure or refused("sending to the server", answer_of(error), self._names) from None

    async def finish(self, timeout_s: float) -> bool:
        """Ask the server to end the stream, discard remaining frames, and close the connection.

        True: the server confirmed the end, so it has read every status update sent before. cdcd has no other proof
        of this.
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
            # After any error the connection is unusable, and the server has confirmed nothing.
            ended = False
        self.close()
        return ended

    def close(self) -> None:
        """Close the connection at once. Idempotent; frames that `receive` has not returned are lost."""
        self._fail(self._failure or TransientError("the replication connection is closed"))
        self._session.close()
        self._coming.close()


def skips_publication(answer: Answer) -> bool:
    """Return True if the server leaves out the changes of a missing publication (PostgreSQL 18, pgoutput.c).

    Other warnings have the same SQLSTATE. One of them says that the server waits for a standby.
    """
    return answer.function == "LoadPublications" or "skipped loading publication" in answer.message


def _duration_s(shown: str) -> float:
    """Return the seconds of a time setting as SHOW prints it: a number and the largest unit that divides it."""
    match = _DURATION.fullmatch(shown)
    if match is None:
        raise SourceError(f"{shown!r} is not a duration as SHOW prints it")
    return int(match[1]) * _UNIT_S[match[2]]
