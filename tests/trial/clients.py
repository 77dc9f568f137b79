"""Clients that write concurrently, and note of each transaction what they know of its outcome.

A transaction whose COMMIT was not sent is "failed". One whose COMMIT was sent and not answered is "unknown". Whatever
else a client does, it goes on.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, LiteralString

import psycopg

from tests.trial.history import TABLES, Operation, Outcome, Row, Write

CLIENTS: Final = 4
RATE: Final = 5.0
"""Transactions a second of each client, at most."""

KEYS: Final = 8
ACCOUNTS: Final = 6
BALANCE: Final = 1000
ABANDONED: Final = 0.08
"""The share of transactions that their client rolls back in the end."""

BULK_ROWS: Final = 160
BULK_VALUE: Final = 500
"""Characters. A part of that many rows is more than the 64 kB from which on PostgreSQL streams."""

RETRY_S: Final = 0.1

Cursor = psycopg.Cursor[tuple[Any, ...]]


def create_tables(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(
                f"CREATE TABLE {table} (key text PRIMARY KEY, version int, value text, op bigint)".encode()
            )


def read_tables(dsn: str) -> dict[str, dict[str, Row]]:
    """All rows, in one snapshot."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return {
            table: {
                key: Row(version, value, op)
                for key, version, value, op in connection.execute(
                    f"SELECT key, version, value, op FROM {table}".encode()
                )
            }
            for table in TABLES
        }


class Client:
    """One session after the other with the primary. `history` is complete once `close` has returned."""

    def __init__(self, number: int, seed: int, dsn: str, *, bulk: float = 0.04) -> None:
        """`bulk`: the share of large transactions."""
        self.number = number
        self.history: list[Operation] = []
        self._dice = random.Random(f"client {seed} {number}")
        self._dsn = dsn
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._failure: BaseException | None = None
        self._shares = (bulk, 0.25, 0.15, 0.25, 0.15, 0.20)
        self._kinds: Sequence[Callable[[_Transaction], None]] = (
            self._write_bulk,
            self._append,
            self._set_register,
            self._transfer,
            self._take_unique,
            self._write_several,
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """Returns when it has ended; raises what ended it before it was told to."""
        self.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a client does not end"
        self._disconnect()
        if self._failure is not None:
            raise self._failure

    def open_accounts(self) -> Operation:
        """Before all else."""

        def write(transaction: "_Transaction") -> None:
            for number in range(ACCOUNTS):
                transaction.insert("accounts", str(number), str(BALANCE))

        return self._attempt(write, abandoned=False)

    def fence(self) -> Operation:
        """A transaction behind all others; try again where it is not committed."""
        return self._attempt(lambda _: None, abandoned=False)

    def _work(self) -> None:
        try:
            while not self._stop.wait(self._dice.uniform(0, 2 / RATE)):
                (write,) = self._dice.choices(self._kinds, self._shares)
                done = self._attempt(write, abandoned=self._dice.random() < ABANDONED)
                if self._connection is None and done.outcome is not Outcome.OK:
                    self._stop.wait(RETRY_S)
        except BaseException as error:  # noqa: BLE001  it is raised where the client is closed
            self._failure = error

    def _attempt(self, write: "Callable[[_Transaction], None]", *, abandoned: bool) -> Operation:
        op = len(self.history) * CLIENTS + self.number + 1
        transaction = _Transaction(op)
        outcome, is_committing = Outcome.FAILED, False
        try:
            connection = self._connect()
            with connection.cursor() as transaction.cursor:
                transaction.insert("ops", str(op), "")
                write(transaction)
            if abandoned:
                connection.rollback()
            else:
                is_committing = True
                connection.commit()
                outcome = Outcome.OK
        except psycopg.Error:
            outcome = Outcome.UNKNOWN if is_committing else Outcome.FAILED
            self._disconnect()
        done = Operation(op, tuple(transaction.writes), outcome, tuple(transaction.undone))
        self.history.append(done)
        return done

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # What a transaction writes. Tables and keys come in one order, so that deadlocks are rare.

    def _append(self, transaction: "_Transaction") -> None:
        transaction.upsert("lists", self._key(), f",{transaction.op}", "t.value || excluded.value")

    def _set_register(self, transaction: "_Transaction") -> None:
        transaction.upsert("registers", self._key(), f"by {transaction.op}", "excluded.value")

    def _transfer(self, transaction: "_Transaction") -> None:
        one, two = sorted(self._dice.sample(range(ACCOUNTS), 2))
        amount = self._dice.randint(-50, 50)
        for account, change in ((one, amount), (two, -amount)):
            transaction.upsert(
                "accounts", str(account), str(change), "(t.value::int + excluded.value::int)::text"
            )

    def _take_unique(self, transaction: "_Transaction") -> None:
        key = self._key()
        if self._dice.random() < 0.5:
            transaction.insert("uniques", key, f"of {transaction.op}")
        else:
            transaction.delete("uniques", key)

    def _write_several(self, transaction: "_Transaction") -> None:
        self._append(transaction)
        self._set_register(transaction)
        self._transfer(transaction)

    def _write_bulk(self, transaction: "_Transaction") -> None:
        """Two parts that stay, and between them one that is rolled back."""
        transaction.fill(0)
        transaction.execute("SAVEPOINT part")
        before = len(transaction.writes)
        transaction.fill(1)
        transaction.execute("ROLLBACK TO SAVEPOINT part")
        transaction.undone += transaction.writes[before:]
        del transaction.writes[before:]
        transaction.fill(2)

    def _key(self) -> str:
        return f"k{self._dice.randrange(KEYS)}"


class _Transaction:
    """Carries out statements, and notes what they wrote."""

    def __init__(self, op: int) -> None:
        self.op = op
        self.writes: list[Write] = []
        self.undone: list[Write] = []
        self.cursor: Cursor

    def execute(self, sql: LiteralString) -> None:
        self.cursor.execute(sql)

    def insert(self, table: str, key: str, value: str) -> None:
        self.cursor.execute(f"INSERT INTO {table} VALUES (%s, 1, %s, %s)".encode(), (key, value, self.op))
        self.writes.append(Write(table, key, "c", Row(1, value, self.op)))

    def upsert(self, table: str, key: str, value: str, merged: str) -> None:
        self.cursor.execute(
            f"""INSERT INTO {table} AS t VALUES (%s, 1, %s, %s) ON CONFLICT (key)
                DO UPDATE SET version = t.version + 1, value = {merged}, op = excluded.op
                RETURNING version, value""".encode(),
            (key, value, self.op),
        )
        row = self.cursor.fetchone()
        assert row is not None, "an upsert returns its row"
        self.writes.append(Write(table, key, "c" if row[0] == 1 else "u", Row(row[0], row[1], self.op)))

    def delete(self, table: str, key: str) -> None:
        self.cursor.execute(f"DELETE FROM {table} WHERE key = %s".encode(), (key,))
        if self.cursor.rowcount:
            self.writes.append(Write(table, key, "d", None))

    def fill(self, part: int) -> None:
        self.cursor.execute(
            b"""INSERT INTO bulk SELECT format('%%s-%%s-%%s', %s::bigint, %s::int, lpad(n::text, 4, '0')), 1,
                    repeat(chr(97 + n %% 26), %s), %s
                FROM generate_series(1, %s) n RETURNING key, value""",
            (self.op, part, BULK_VALUE, self.op, BULK_ROWS),
        )
        self.writes += [Write("bulk", key, "c", Row(1, value, self.op)) for key, value in self.cursor]
