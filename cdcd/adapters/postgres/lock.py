"""The advisory lock that makes one instance of a pipeline the writer, and a witness of PostgreSQL's shutdown.

The lock belongs to a session, so PostgreSQL gives it up exactly when that session ends. `keep` makes a round trip on it
every moment, so that a standby can tell a holder that is gone from one that is quiet, and ends its session
(`lease.py`). Between the round trips the connection is watched: a fast shutdown terminates it at once (FATAL 57P01),
while it keeps our walsender until that has confirmed everything. This is how the daemon learns that it is time to
finish. libpq treats an ErrorResponse to an idle connection as a notice (fe-protocol3.c, pqParseInput3, PGASYNC_IDLE).

Losing the connection without a word means that the lock may be another's by now: only `verify` or a new `acquire`
says more.

Any role that may connect can take any advisory lock, and pg_locks shows the numbers. So the lock alone says nothing: it
counts only if a *peer* holds it, which is a session of this role, or of one with REPLICATION. A stranger who holds it
is reported and keeps nobody out: an instance then announces itself by a second lock, with a random number that nobody
can take before it. The order makes this safe. Each instance takes a lock first and looks for peers afterwards, and
gives up what it took if it sees one. Of two instances, the one that looks later sees the other. The first lock is
always tried, so that earlier versions, which know no other, are kept out by this one and keep it out.
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

from cdcd.adapters.postgres.connection import Connection, Dsn, open_session
from cdcd.adapters.postgres.lease import BEATS, Sign, Silence, next_look_s
from cdcd.adapters.postgres.refusals import Answer, answer_of, refused, translated
from cdcd.adapters.postgres.session import Row, Session, rows_of
from cdcd.core.errors import CdcdError, TransientError

_SHUTDOWN: Final = frozenset({"57P01", "57P02"})
"""admin_shutdown (fast or immediate shutdown, pg_terminate_backend) and crash_shutdown (a backend died)."""

LEASE_S: Final = 5.0
"""The default of `postgres.lease_s`: more than the longest step of the event loop, 3.2 s for a message of 1 GB."""

EVICTED_S: Final = 0.05
"""What a session that was told to end needs for it."""

ANSWER_S_MIN: Final = 1.0
"""A heartbeat's answer is waited for so long at least: after a pause of our own, the session may still be ours."""

REQUESTS_MARK: Final = "cdcd request token"
"""Stands before the token of requests in the text of a query."""

T = TypeVar("T")

LOOK_S: Final = 10.0
"""Seconds that the server may take for a query of an instance that wants the lock. The connection of a standby is idle
otherwise, and TCP does not notice a server that is frozen: its kernel answers."""

_LOCK: Final = (
    "{0}locktype = 'advisory' AND {0}granted AND {0}objsubid = 1 AND {0}classid = {1} AND {0}objid = {2}"
)
_ANNOUNCEMENT: Final = "{0}locktype = 'advisory' AND {0}granted AND {0}objsubid = 2 AND {0}classid = {1}"

PEER: Final = (
    "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.usesysid "
    "AND (r.rolname = current_user OR r.rolreplication OR r.rolsuper))"
)
"""SQL: the session `a` of pg_stat_activity is one that may run this pipeline. Every role sees this of every session. A
name of an application says nothing, because anybody may choose it."""

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
"""A prepared transaction keeps its locks without a session. cdcd prepares none."""


@dataclass(frozen=True, slots=True)
class LockLost:
    """The lock's connection has ended."""

    sqlstate: str
    """The server's last word, or "" if it said none."""
    admin_shutdown: bool
    """PostgreSQL is stopping, or somebody ended this session: `57P01`, `57P02`."""
    message: str


@dataclass(frozen=True, slots=True)
class LockHeld:
    """Another session has the lock.

    Attributes:
        pid: its server process; None: it is a prepared transaction.
        application_name: as the session says, or the name of the prepared transaction.
        client: its address; "": unknown, because PostgreSQL shows it to the session's own role.
        role: whose session it is.
    """

    pid: int | None
    application_name: str
    client: str
    role: str = ""


def lock_key(slot: str) -> int:
    """The advisory lock's key for a slot: a signed 64-bit number, the same in every version of cdcd."""
    digest = hashlib.sha256(f"cdcd {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def announcement_class(slot: str) -> int:
    """The first number of the lock by which an instance announces itself, if a stranger has the lock of the slot."""
    digest = hashlib.sha256(f"cdcd {slot}".encode()).digest()
    return int.from_bytes(digest[8:12], "big") >> 1


def lock_condition(slot: str, table: str = "") -> str:
    """SQL: the rows of pg_locks that are the lock of this slot or an announcement, in whatever database.

    `table` is the name that the query has for pg_locks, with a point behind it.
    """
    key = lock_key(slot)
    lock = _LOCK.format(table, (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF)
    return f"({lock} OR {_ANNOUNCEMENT.format(table, announcement_class(slot))})"


class AdvisoryLock:
    """A session that holds, or waits for, the lock of one slot. One task at a time may call it."""

    def __init__(self, session: Session, slot: str, lease_s: float = LEASE_S, token: str = "") -> None:
        self._mark = f" /* {REQUESTS_MARK} {token} */" if token else ""
        self._lease_s = lease_s
        self._proved_at = time.monotonic()
        self._session = session
        self._key = lock_key(slot)
        self._what = f"the advisory lock of slot {slot}"
        self._lost: LockLost | None = None
        self._lapsed = False
        self._turn = asyncio.Lock()
        self._last_words = Answer("", "")
        self._mine = lock_condition(slot)
        self._holders = _HOLDERS.format(lock_condition(slot, "l."))
        self._announcement = f"{announcement_class(slot)}, {secrets.randbits(31)}"
        self._has_lock = False
        """This session has the lock of the slot, and not only an announcement."""
        self._sign: Sign | None = None
        """The sign of life of the peer that was seen last, if it is one that may be ended."""
        self.stranger: LockHeld | None = None
        """Who has the lock of the slot and is no peer."""
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
        """Connect, without the lock yet. Errors as `connection.open_session`; the caller owes `close`.

        `token` stands in every query, so that others of this role can read it there (`credentials/tokens.py`).
        """
        session = await open_session(
            dsn, application_name=application_name, connect_timeout_s=connect_timeout_s
        )
        return cls(session, slot, lease_s, token)

    @property
    def backend_pid(self) -> int:
        """The server process that holds the lock."""
        return self._session.backend_pid

    @property
    def lapsed(self) -> bool:
        """Whether the last proof that the lock is ours is older than the lease: ask (`verify`) before writing on.

        After the connection's end: whether it was so then, and another instance may have been let in before.
        """
        return self._lapsed if self._lost else time.monotonic() - self._proved_at > self._lease_s

    async def acquire(
        self,
        on_wait: Callable[[LockHeld], None] = lambda _: None,
        on_ended: Callable[[LockHeld, float], None] = lambda _held, _silent_s: None,
        on_stranger: Callable[[LockHeld], None] = lambda _held: None,
    ) -> None:
        """Return when this session is the active one, however long that takes; cancel to stop waiting.

        A holder of the same role that gives no sign of life for the lease has its session ended. `on_wait` is called
        when the waiting begins and when the holder changes, `on_ended` with the silence that ended a session,
        `on_stranger` with a session that has the lock and keeps nobody out.
        TransientError: the connection is lost, or the server does not answer in `LOOK_S`.
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
                # Two instances that see each other's announcements give both up. They must not meet again.
                wait_s *= random.uniform(0.5, 1.5)  # noqa: S311  spreads attempts, guards nothing
            if sign is not None and silent_s > self._lease_s and await self._answer(self._evict(sign)):
                on_ended(held, silent_s)
                wait_s = EVICTED_S
            await asyncio.sleep(wait_s)

    async def _answer(self, asked: Awaitable[T]) -> T:
        """The answer to a query. TransientError: it did not come in time, so this connection is of no more use."""
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
        """Take the lock if no peer has it. None: this session is the active one now; else who has it.

        TransientError: the connection is lost.
        """
        return await self._attempt()

    async def keep(self, may_prove: Callable[[], bool] = lambda: True) -> None:
        """Give the signs of life that others see, until the connection ends; for a task beside everything else.

        While `may_prove` returns False, there are none.
        """
        while self._lost is None:
            await asyncio.sleep(self._lease_s / BEATS)
            if not may_prove():
                continue
            sent_at = time.monotonic()
            patience_s = max(self._proved_at + self._lease_s - sent_at, ANSWER_S_MIN)
            try:
                async with asyncio.timeout(patience_s):
                    # Earlier versions know no announcements, so the lock is taken when the stranger leaves it.
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
        """A round trip that proves that this session lives and has the lock; TransientError if not, or not in time."""
        command = f"SELECT count(*) FROM pg_catalog.pg_locks WHERE {self._mine} AND pid = pg_backend_pid()"
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                held = await self._query(command)
        except TimeoutError:
            # The command may still be running, so this connection cannot be used for another.
            self._end(f"the server did not answer in {timeout_s:g} s")
            raise TransientError(f"{self._what}: the server did not answer in {timeout_s:g} s") from None
        if held in ([], [("0",)]):
            raise TransientError(f"{self._what} is not held by this session any more")
        self._proved_at = sent_at

    async def wait_lost(self) -> LockLost:
        """Return when the connection has ended, and how; at once if it has already. Cancel-safe.

        It may run beside `verify`: what comes while a command is under way is the command's.
        """
        while self._lost is None:
            await self._session.readable()
            async with self._turn:
                self._look()
        return self._lost

    def close(self) -> None:
        """End the session, and with it the lock. Idempotent."""
        self._end("closed by ourselves")
        self._session.close()

    def _look(self) -> None:
        """Read what came to the idle connection: notices, or its end."""
        if self._lost is not None:
            return
        failure = ""
        try:
            self._session.consume()
        except psycopg.Error as error:
            failure = answer_of(error).message
        # Parses, and so calls the notice handler, also for what came before the end.
        self._session.pgconn.is_busy()
        if failure:
            self._end(failure)

    def _end(self, failure: str, *, lapsed: bool = False) -> None:
        if self._lost is None:
            self._lapsed = lapsed or self.lapsed
            words = self._last_words
            message = words.message or " ".join(failure.split())
            self._lost = LockLost(words.sqlstate, words.sqlstate in _SHUTDOWN, message)
        self._session.wake()

    def _on_notice(self, answer: Answer, severity: bytes) -> None:
        # FATAL at a fast shutdown, but a WARNING at an immediate one or after a crash (postgres.c, quickdie).
        if answer.sqlstate.startswith("57P"):
            self._last_words = answer

    async def _attempt(self) -> LockHeld | None:
        """Become the active one if no peer is. None: this session is; else the peer.

        A lock is taken before peers are looked for, and given up if there is one: see the top of this module.
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
        """Who of this session's peers has the lock, or an announcement. Notes its sign of life, and a stranger."""
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
        """End the holder's session, unless it has stirred since; whether there was one to end."""
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
    """Whether an instance of the pipeline is active, and the token of its requests ("": it has none).

    PostgreSQL shows the query of a session to the same role. Raises TransientError and SourceError.
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
