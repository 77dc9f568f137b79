"""One session of the workload: its connection, what it remembers across losing it, and the parts of transactions.

What the rows of `events_log` mean stands in workload.py.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from psycopg import ClientCursor, errors, sql
from psycopg.conninfo import make_conninfo

from deploy.demo.dice import Dice
from deploy.demo.workload_tables import Statement, statement

SETTINGS: Final = "-c datestyle=ISO,MDY -c intervalstyle=postgres -c timezone=UTC -c lock_timeout=250"
"""A lock that a prepared transaction holds may be held for long; so nobody waits for one."""

PREFIX: Final = "workload"
"""Of the logical messages' prefixes and of the application's name."""


@dataclass(slots=True)
class Attempt:
    """What a transaction has done so far; a savepoint keeps a copy and takes it back."""

    kind: str
    session: str
    sequence: int
    number: int
    changes: int | None = 0
    messages: int = 0
    doomed: bool = False


@dataclass(slots=True)
class Prepared:
    """A prepared transaction: when it is decided, as a number of transactions from then, and how."""

    session: str
    due: int
    commit: bool


class RolledBackError(Exception):
    """The transaction was meant to fail."""


class Session:
    """One connection at a time, and what it remembers across them.

    `run` attempts one transaction after another; `finish` decides what is left prepared, and `close` ends it.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        number: int,
        stats: Counter[str],
        *,
        messages: bool,
        large: bool,
        new_tables: bool,
    ) -> None:
        """`stats` is shared with other sessions; the flags say what transactions may contain."""
        self.name = name
        self.number = number
        self.dice = Dice(name, number)
        self.messages = messages
        self.large = large
        self.new_tables = new_tables
        self.stats = stats
        self.sequence = 1
        self.attempts = 0
        self.prepared: dict[str, Prepared] = {}
        self.standalone: list[str] = []
        self.attempt = Attempt("", name, 0, 0)
        self._dsn = dsn
        self._connection: psycopg.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def run(self, kind: str, transaction: Callable[["Session", psycopg.Connection], None]) -> None:
        """One attempt; whatever the server does about it is survived."""
        stats = self.stats
        try:
            # First the connection: finding out about the last commit may move the sequence.
            connection = self._connected()
            self.attempts += 1
            self.attempt = Attempt(kind, self.name, self.sequence, self.attempts)
            self._decide_due()
            transaction(self, connection)
        except RolledBackError:
            stats["rolled back"] += 1
        except psycopg.Error as error:
            if self._lost():
                stats["connections lost"] += 1
                return
            self._roll_back()
            if isinstance(error, errors.UniqueViolation) and error.diag.constraint_name == "events_log_pkey":
                self.committed()  # an earlier attempt, whose answer was lost
            elif isinstance(error, CONFLICTS):
                stats["conflicts"] += 1
            else:
                raise
        else:
            stats[kind] += 1

    def finish(self) -> None:
        """Decide everything that is prepared, waiting for the server if need be."""
        while True:
            try:
                self._connected()
                for gid in list(self.prepared):
                    self._decide(gid)
            except psycopg.Error:
                if not self._lost():
                    raise
            else:
                return

    # Connections.

    def _connected(self) -> psycopg.Connection:
        """The connection, a new one when it is lost; waits for a server that is away, for ever."""
        while self._connection is None:
            try:
                self._connection = psycopg.connect(
                    make_conninfo(self._dsn, options=SETTINGS, application_name=f"{PREFIX} {self.name}"),
                    connect_timeout=5,
                    autocommit=True,
                    cursor_factory=ClientCursor,
                )
                self._recover(self._connection)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                self.close()
                time.sleep(0.1)
        return self._connection

    def _lost(self) -> bool:
        if self._connection is not None and not self._connection.closed and not self._connection.broken:
            return False
        self.close()
        # What was not followed by a commit may have been lost with the server's last WAL.
        self.standalone.clear()
        return True

    def _recover(self, connection: psycopg.Connection) -> None:
        """After the loss of a connection: which of our commits and prepares took place?"""
        row = connection.execute(
            """SELECT coalesce(max(sequence) FILTER (WHERE session = %s), 0), coalesce(max(attempt), 0)
               FROM events_log WHERE split_part(session, '/', 1) = %s""",
            (self.name, self.name),
        ).fetchone()
        assert row is not None
        self.attempts = max(self.attempts, row[1])
        if row[0] >= self.sequence:
            self.sequence = row[0]
            self.committed()
        gids = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE %s",
            (f"{self.name}/%",),
        ).fetchall()
        alive = {gid for (gid,) in gids}
        self.prepared = {gid: prepared for gid, prepared in self.prepared.items() if gid in alive}
        for gid in alive - set(self.prepared):
            # Prepared by a Workload of the same seed that ended without deciding it.
            self.prepared[gid] = Prepared("", self.attempts, commit=False)

    def _roll_back(self) -> None:
        assert self._connection is not None
        with contextlib.suppress(psycopg.Error):
            self._connection.execute("ROLLBACK")

    def committed(self) -> None:
        self.sequence += 1
        self.standalone.clear()
        self.stats["committed"] += 1

    # Parts of a transaction.

    def execute(self, connection: psycopg.Connection, chosen: Statement) -> None:
        cursor = connection.execute(chosen.sql, chosen.values)
        attempt = self.attempt
        if chosen.uncounted:
            attempt.changes = None
        elif attempt.changes is not None:
            attempt.changes += max(0, cursor.rowcount)
        self.stats["statements"] += 1

    def some(self, connection: psycopg.Connection, low: int, high: int) -> None:
        for _ in range(self.dice.random.randint(low, high)):
            self.execute(connection, statement(self.dice))
            if self.messages and self.dice.chance(0.05):
                self.message(connection)

    def message(self, connection: psycopg.Connection) -> None:
        attempt = self.attempt
        transactional = self.dice.chance(0.6)
        content = f"{attempt.session} {attempt.sequence} {attempt.number} "
        content += str(attempt.messages) if transactional else f"alone {len(self.standalone)}"
        if transactional:
            attempt.messages += 1
            if attempt.doomed:
                content += " doomed"
        else:
            # Noted only when the server has answered; but it may be there in any case.
            content += f" {self.dice.fresh()}"
        connection.execute(
            "SELECT pg_logical_emit_message(%s, %s, %s::text)",
            (transactional, f"{PREFIX} {'doomed' if attempt.doomed else 'ü'}", content),
        )
        if not transactional:
            self.standalone.append(content)

    def log(self, connection: psycopg.Connection) -> None:
        """The row in events_log; last, as it counts what was done before."""
        attempt = self.attempt
        sequence = -attempt.number if attempt.doomed else attempt.sequence
        connection.execute(
            "INSERT INTO events_log VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                attempt.session,
                sequence,
                attempt.number,
                attempt.kind,
                attempt.doomed,
                attempt.changes,
                attempt.messages,
                self.standalone,
            ),
        )

    @contextlib.contextmanager
    def doomed(self) -> Iterator[None]:
        """What is done here will be rolled back, perhaps to a savepoint only: it is marked, and not counted."""
        before = replace(self.attempt)
        self.attempt.doomed = True
        yield
        self.attempt = before

    def nested(self, connection: psycopg.Connection, depth: int, step: Callable[[], None]) -> None:
        """Savepoints within savepoints, some rolled back, with `step` done at every level."""
        for number in range(self.dice.random.randint(1, 3)):
            savepoint = sql.Identifier(f"s{depth}_{number}")
            connection.execute(sql.SQL("SAVEPOINT {}").format(savepoint))
            rolled_back = self.dice.chance(0.4)
            with self.doomed() if rolled_back else contextlib.nullcontext():
                step()
                if depth < 3 and self.dice.chance(0.5):
                    self.nested(connection, depth + 1, step)
                if rolled_back and self.dice.chance(0.5):
                    self.log(connection)
            if rolled_back:
                connection.execute(sql.SQL("ROLLBACK TO {}").format(savepoint))
            if self.dice.chance(0.6):
                connection.execute(sql.SQL("RELEASE {}").format(savepoint))
            if self.dice.chance(0.5):
                step()

    def wide(self, connection: psycopg.Connection) -> None:
        """Rows that fill the server's logical_decoding_work_mem (64 kB at least) by themselves."""
        first = 100_000 * (self.number + 1) + 50_000 * self.dice.own + self.dice.below(400)
        chosen = sql.SQL(self.dice.random.choice(_WIDE)).format(
            name=self.dice.text(), first=first, last=first + 60 + self.dice.below(60)
        )
        self.execute(connection, Statement(chosen.as_string(connection)))
        time.sleep(self.dice.random.random() * 0.02)

    def _decide_due(self) -> None:
        for gid, prepared in list(self.prepared.items()):
            if prepared.due <= self.attempts:
                self._decide(gid)

    def _decide(self, gid: str) -> None:
        prepared = self.prepared[gid]
        verb = "COMMIT" if prepared.commit else "ROLLBACK"
        assert self._connection is not None
        self._connection.execute(sql.SQL(f"{verb} PREPARED {{}}").format(sql.Literal(gid)))
        del self.prepared[gid]
        self.stats[f"{verb.lower()} prepared"] += 1

    def commit(self, connection: psycopg.Connection) -> None:
        self.log(connection)
        connection.execute("COMMIT")
        self.committed()


_WIDE: Final = (
    """INSERT INTO plain (id, name, note) SELECT g, {name}, repeat(md5(g::text), 30 + g %% 80)
       FROM generate_series({first}, {last}) g ON CONFLICT (id) DO UPDATE SET name = excluded.name""",
    """INSERT INTO whole (id, name, big) SELECT g, {name}, repeat(md5(g::text), 30 + g %% 80)
       FROM generate_series({first}, {last}) g ON CONFLICT (id) DO UPDATE SET name = excluded.name""",
    "INSERT INTO heap_full SELECT g, {name}, repeat('ü', 900) FROM generate_series({first}, {last}) g",
    "UPDATE plain SET note = note || {name} || repeat('w', 700) WHERE id BETWEEN {first} AND {last}",
    "UPDATE whole SET name = {name} || repeat('n', 700) WHERE id BETWEEN {first} AND {last}",
    "DELETE FROM plain WHERE name <> {name} AND id BETWEEN {first} AND {last}",
    "DELETE FROM heap_full WHERE name <> {name} AND number BETWEEN {first} AND {last}",
)

CONFLICTS: Final = (
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.UniqueViolation,
    errors.UndefinedColumn,
    errors.UndefinedTable,
    # "maximum number of prepared transactions reached".
    errors.OutOfMemory,
    # "tuple concurrently updated", of two sessions that change one definition.
    errors.InternalError_,
)
"""What sessions do to each other."""
