"""The advisory lock that makes one instance of a pipeline the writer, and a witness of PostgreSQL's shutdown.

The lock belongs to a session, so PostgreSQL releases it exactly when that session ends. `keep` makes a round trip
on the session at short intervals, so that a standby can distinguish a dead holder from an idle one and can end a
dead holder's session (`lease.py`). Between the round trips the connection is watched: a fast shutdown terminates it
at once (FATAL 57P01), but keeps the walsender until cdcd has confirmed everything. So the daemon learns of the
shutdown and can finish. libpq treats an ErrorResponse to an idle connection as a notice (fe-protocol3.c,
pqParseInput3, PGASYNC_IDLE).

If the connection is lost without an error message, another instance may hold the lock by now; only `verify` or a
new `acquire` can tell.

Any role that may connect can acquire any advisory lock, and pg_locks shows the numbers. So the lock counts only if
a *peer* holds it: a session of the same role, or of a role with REPLICATION. A stranger that holds the lock is
reported and blocks no instance: an instance then announces itself by a second lock, with a random number that
nobody can lock before. The order of the steps makes this safe. Each instance acquires a lock first, looks for peers
afterwards, and releases its lock if it sees a peer. Of two instances, the one that looks later sees the other. The
first lock is always tried, so that this version and earlier versions, which know only the first lock, keep each
other out.
"""

import asyncio
import hashlib
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import psycopg

from cdcd.adapters.postgres.answers import Answer, answer_of, refused, translated
from cdcd.adapters.postgres.connection import Connection, Dsn, open_session
from cdcd.adapters.postgres.lease import BEATS, Sign, Silence, next_look_s
from cdcd.adapters.postgres.session import Row, Session, rows_of
from cdcd.core.errors import CdcdError, TransientError

_SHUTDOWN: Final = frozenset({"57P01", "57P02"})
"""admin_shutdown (fast or immediate shutdown, pg_terminate_backend) and crash_shutdown (a backend died)."""

LEASE_S: Final = 5.0
"""Default of `postgres.lease_s` in seconds: more than the longest step of the event loop, 3.2 s for a message of 1
GB."""

EVICTED_S: Final = 0.05
"""Seconds that a session needs to end after pg_terminate_backend."""

ANSWER_S_MIN: Final = 1.0
"""Minimum of seconds that a heartbeat waits for its answer, because after a pause of this process the session may
still hold the lock."""

REQUESTS_MARK: Final = "cdcd request token"
"""Mark in front of the request token in the text of a query."""

T = TypeVar("T")

LOOK_S: Final = 10.0
"""Seconds within which the server must answer a query of an instance that waits for the lock. The connection of a
standby is idle otherwise, and TCP does not detect a frozen server because its kernel still answers."""

_LOCK: Final = (
    "{0}locktype = 'advisory' AND {0}granted AND {0}objsubid = 1 AND {0}classid = {1} AND {0}objid = {2}"
)
_ANNOUNCEMENT: Final = "{0}locktype = 'advisory' AND {0}granted AND {0}objsubid = 2 AND {0}classid = {1}"

PEER: Final = (
    "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.usesysid "
    "AND (r.rolname = current_user OR r.rolreplication OR r.rolsuper))"
)
"""SQL condition: the session `a` of pg_stat_activity may run this pipeline. Every role sees these columns for every
session. The application_name proves nothing, because every client may choose it."""

_HOLDERS: Final = f"""
SELECT l.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
       coalesce(a.usename, p.owner, ''), coalesce('prepared transaction ' || p.gid, ''), l.objsubid = 1,
       coalesce({PEER}, false), CASE WHEN a.usename = current_user THEN a.state_change::text END
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_catalog.pg_locks t ON l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid'
    AND t.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = t.transactionid
 WHERE {{}} AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""
"""A prepared transaction keeps its locks without a session. cdcd prepares no transactions."""


@dataclass(frozen=True, slots=True)
class LostLock:
    """The lock's connection has ended."""

    sqlstate: str
    """SQLSTATE of the server's last message; "" if there was no message."""
    admin_shutdown: bool
    """True if PostgreSQL is stopping, or somebody ended this session: `57P01`, `57P02`."""
    message: str


@dataclass(frozen=True, slots=True)
class LockHeld:
    """Another session that holds the lock.

    Attributes:
        pid: process id of its server process; None: a prepared transaction holds the lock.
        application_name: application_name of the session, or the name of the prepared transaction.
        client: address of the client; "": unknown, because PostgreSQL shows it only to the session's own role.
        role: role of the session.
    """

    pid: int | None
    application_name: str
    client: str
    role: str = ""


def lock_key(slot: str) -> int:
    """Return the advisory lock's key for a slot: a signed 64-bit number, the same in every version of cdcd."""
    digest = hashlib.sha256(f"cdcd {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def announcement_class(slot: str) -> int:
    """Return the first number of the lock that announces an instance while a stranger holds the lock of the slot."""
    digest = hashlib.sha256(f"cdcd {slot}".encode()).digest()
    return int.from_bytes(digest[8:12], "big") >> 1


def lock_condition(slot: str, table: str = "") -> str:
    """SQL condition for the rows of pg_locks that are this slot's lock or an announcement, in any database.

    `table` is the query's alias of pg_locks with a trailing dot, or "".
    """
    key = lock_key(slot)
    lock = _LOCK.format(table, (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF)
    return f"({lock} OR {_ANNOUNCEMENT.format(table, announcement_class(slot))})"


class AdvisoryLock:
    """A session that holds or waits for the lock of one slot. Only one task at a time may call its methods."""

    def __init__(self, session: Session, slot: str, lease_s: float = LEASE_S, token: str = "") -> None:
        self._mark = f" /* {REQUESTS_MARK} {token} */" if token else ""
        self._lease_s = lease_s
        self._proved_at = time.monotonic()
        self._session = session
        self._key = lock_key(slot)
        self._what = f"the advisory lock of slot {slot}"
        self._lost: LostLock | None = None
        self._lapsed = False
        self._turn = asyncio.Lock()
        self._last_words = Answer("", "")
        self._mine = lock_condition(slot)
        self._holders = _HOLDERS.format(lock_condition(slot, "l."))
        self._announcement = f"{announcement_class(slot)}, {secrets.randbits(31)}"
        self._has_lock = False
        """True if this session holds the lock of the slot itself, False if it holds at most an announcement."""
        self._sign: Sign | None = None
        """Last sign of life of the peer that was seen last; None if its session may not be ended."""
        self.stranger: LockHeld | None = None
        """The holder of the slot's lock that is not a peer; None if there is no such holder."""
        session.on_notice(self._on_notice)

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        slot: str,
        *,
        application_name: str,
        connect_timeout_s: float = 10.0,
        lease_s: float = LEASE_S,
        token: str = "",
    ) -> Self:
        """Connect, without acquiring the lock yet.

        Raises the errors of `connection.open_session`; the caller must call `close`.

        `token` is part of the text of every query, where other sessions of the same role can read it
        (`credentials/tokens.py`).
        """
        session = await open_session(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        return cls(session, slot, lease_s, token)

    @property
    def backend_pid(self) -> int:
        """Process id of the server process that holds the lock."""
        return self._session.backend_pid

    @property
    def lapsed(self) -> bool:
        """True if the last proof of the lock is older than the lease; then call `verify` before the next write.

        After the connection's end: True if the lease had run out by then, so that another instance may have started
        before.
        """
        return self._lapsed if self._lost else time.monotonic() - self._proved_at > self._lease_s

    async def acquire(
        self,
        on_wait: Callable[[LockHeld], None] = lambda _: None,
        on_ended: Callable[[LockHeld, float], None] = lambda _held, _silent_s: None,
        on_stranger: Callable[[LockHeld], None] = lambda _held: None,
    ) -> None:
        """Return when this session is the active one, without a time limit; cancel the call to stop waiting.

        The session of a holder of the same role that gives no sign of life for a lease is ended. `on_wait` is
        called when the wait begins and when the holder changes, `on_ended` with the seconds of silence after which
        a session was ended, `on_stranger` with a session that holds the lock but is no peer. TransientError: the
        connection is lost, or the server does not answer within `LOOK_S`.
        """
        told: LockHeld | None = None
        named: LockHeld | None = None
        silence = Silence()
        while True:
            held = await self._answer(self._attempt())
            if self.stranger is not None and self.stranger != named:
                named = self.stranger
                on_stranger(named)
            if held is None:
                return
            sign = self._sign
            if held != told:
                told = held
                on_wait(held)
            silent_s = silence.observe(sign, time.monotonic())
            wait_s = next_look_s(silent_s, self._lease_s)
            if self.stranger is not None:
                # Two instances that see each other's announcements release both. They must not meet again.
                wait_s *= random.uniform(0.5, 1.5)  # noqa: S311  spreads attempts, guards nothing
            if sign is not None and silent_s > self._lease_s and await self._answer(self._evict(sign)):
                on_ended(held, silent_s)
                wait_s = EVICTED_S
            await asyncio.sleep(wait_s)

    async def _answer(self, asked: Awaitable[T]) -> T:
        """Return the answer to a query.

        TransientError: the answer did not arrive in time, so this connection is unusable.
        """
        try:
            async with asyncio.timeout(LOOK_S):
                return await asked
        except TimeoutError:
            self._end(f"the server did not answer in {LOOK_S:g} s")
            raise TransientError(
                f"{self._what}: the server did not answer in {LOOK_S:g} s",
                hint="Find out whether PostgreSQL's machine is overloaded, suspended or cut off. cdcd connects again.",
            ) from None

    async def acquire_at_once(self) -> LockHeld | None:
        """Acquire the lock if no peer holds it. Returns None if this session is now the active one, else the holder.

        TransientError: the connection is lost.
        """
        return await self._attempt()

    async def keep(self, may_prove: Callable[[], bool] = lambda: True) -> None:
        """Send the signs of life that other instances see, until the connection ends; run this as a separate task.

        While `may_prove` returns False, no signs are sent.
        """
        while self._lost is None:
            await asyncio.sleep(self._lease_s / BEATS)
            if not may_prove():
                continue
            sent_at = time.monotonic()
            patience_s = max(self._proved_at + self._lease_s - sent_at, ANSWER_S_MIN)
            try:
                async with asyncio.timeout(patience_s):
                    # Earlier versions know no announcements, so this session acquires the lock as soon as
                    # the stranger releases it.
                    await self._query("SELECT 1" if self._has_lock else self._take_lock)
            except TimeoutError:
                self._end(f"the server did not answer in {self._lease_s:g} s", lapsed=True)
            except CdcdError as error:
                self._end(error.message)
            else:
                self._proved_at = sent_at

    @property
    def _take_lock(self) -> str:
        return f"SELECT pg_catalog.pg_try_advisory_lock({self._key})"

    async def verify(self, timeout_s: float) -> None:
        """Prove by a round trip that this session lives and holds the lock.

        Raises TransientError if the proof fails or does not arrive within `timeout_s`.
        """
        command = f"SELECT count(*) FROM pg_catalog.pg_locks WHERE {self._mine} AND pid = pg_backend_pid()"
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                held = await self._query(command)
        except TimeoutError:
            # The command may still be running, so this connection is unusable for another command.
            self._end(f"the server did not answer in {timeout_s:g} s")
            raise TransientError(f"{self._what}: the server did not answer in {timeout_s:g} s") from None
        if held in ([], [("0",)]):
            raise TransientError(f"{self._what} is not held by this session any more")
        self._proved_at = sent_at

    async def wait_lost(self) -> LostLock:
        """Wait until the connection has ended, and return how it ended; return at once if it has ended already.

        Cancel-safe.

        Safe to run beside `verify`: data that arrives during a command belongs to the command.
        """
        while self._lost is None:
            await self._session.readable()
            async with self._turn:
                self._look()
        return self._lost

    def close(self) -> None:
        """End the session, which releases the lock. Idempotent."""
        self._end("closed by ourselves")
        self._session.close()

    def _look(self) -> None:
        """Read data of the idle connection: notices, or the end of the connection."""
        if self._lost is not None:
            return
        failure = ""
        try:
            self._session.consume()
        except psycopg.Error as error:
            failure = answer_of(error).message
        # Parses the data before the end, too, and so calls the notice handler.
        self._session.pgconn.is_busy()
        if failure:
            self._end(failure)

    def _end(self, failure: str, *, lapsed: bool = False) -> None:
        if self._lost is None:
            self._lapsed = lapsed or self.lapsed
            words = self._last_words
            message = words.message or " ".join(failure.split())
            self._lost = LostLock(words.sqlstate, words.sqlstate in _SHUTDOWN, message)
        self._session.wake()

    def _on_notice(self, answer: Answer, severity: bytes) -> None:
        # The severity is FATAL at a fast shutdown, but WARNING at an immediate one or after a crash
        # (postgres.c, quickdie).
        if answer.sqlstate.startswith("57P"):
            self._last_words = answer

    async def _attempt(self) -> LockHeld | None:
        """Become the active instance unless a peer is active.

        Returns None if this session is now active, else the peer.

        The lock is acquired before peers are looked for, and released if a peer exists: see the top of this module.
        """
        sent_at = time.monotonic()
        held = await self._peer()
        if held is not None:
            return held
        self._has_lock = await self._query(self._take_lock) == [("t",)]
        held = await self._peer()
        if held is None and not self._has_lock:
            await self._query(f"SELECT pg_catalog.pg_try_advisory_lock({self._announcement})")
            held = await self._peer()
        if held is not None:
            await self._query("SELECT pg_catalog.pg_advisory_unlock_all()")
            self._has_lock = False
            return held
        self._proved_at = sent_at
        return None

    async def _peer(self) -> LockHeld | None:
        """Return the peer that holds the lock or an announcement, or None.

        Also stores the peer's sign of life, and the stranger that holds the lock.
        """
        rows = await self._query(self._holders)
        self._sign = self.stranger = None
        peer: LockHeld | None = None
        for pid, application, client, role, prepared, is_lock, is_peer, active_at in rows:
            held = LockHeld(
                int(pid) if pid else None, application or prepared or "", client or "", role or ""
            )
            if is_peer == "t":
                peer = held
                self._sign = (int(pid), active_at) if pid and active_at else None
            elif is_lock == "t":
                self.stranger = held
        return peer

    async def _evict(self, sign: Sign) -> bool:
        """End the holder's session unless it was active since `sign`; return True if a session was ended."""
        pid, active_at = sign
        rows = await self._query(
            "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity "
            f"WHERE pid = {pid} AND state_change::text = '{active_at}'"
        )
        return bool(rows)

    async def _query(self, command: str) -> list[Row]:
        async with self._turn:
            if self._lost:
                raise TransientError(f"{self._what}: {self._lost.message}")
            outcome = await self._session.run(f"{command}{self._mark}".encode())
            if not outcome.errors:
                return rows_of(outcome.results[-1])
            error = refused(self._what, outcome.errors[0], self._session.names)
            if said := [answer for answer in outcome.errors if answer.sqlstate]:
                self._last_words = said[-1]
            if self._session.is_lost:
                self._end(error.message)
            raise error


async def read_token(connection: Connection, slot: str) -> tuple[bool, str]:
    """Return (True if an instance of the pipeline is active, the token of its requests or "" without a token).

    PostgreSQL shows a session's query to sessions of the same role. Raises TransientError and SourceError.
    """
    query = f"""
SELECT a.query FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE {lock_condition(slot, "l.")} AND {PEER}
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""
    with translated("looking for the running instance", {}):
        rows: list[Any] = await (await connection.execute(query.encode())).fetchall()
    for (text,) in rows:
        found = re.search(rf"/\* {REQUESTS_MARK} ([\w-]+) \*/", text or "", re.ASCII)
        if found:
            return True, found[1]
    return bool(rows), ""
