"""What the snapshots ask the catalog, on a connection of their own.

The rule: the stream never waits for what is asked here. Looking at the size of a table, or at what a publication
publishes, takes a lock on the table, and an ALTER TABLE or VACUUM FULL may hold that one up for hours. So this
connection is nobody else's, a lock is waited for a short time only, and then it is `TableBusyError`: ask again later.

The connection is opened when it is first needed, and again after it was lost. One question is asked at a time.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq

from cdcd.errors import CdcdError
from cdcd.postgres import catalog, tables
from cdcd.postgres.connection import Connection, Dsn, connect
from cdcd.postgres.refusals import TableBusyError, answer_of, translated
from cdcd.postgres.replication import literal
from cdcd.postgres.snapshot_queries import unwritable
from cdcd.protocol.lsn import Lsn
from cdcd.records.relations import TableDescription, TypeDescription
from cdcd.retry import Backoff
from cdcd.snapshots.reading import SourceTable
from cdcd.snapshots.visibility import Visibility

LOCK_TIMEOUT_S: Final = 5.0
STATEMENT_TIMEOUT_S: Final = 60.0
"""Longer than 10,000 tables take; a server that needs more is asked again."""

EXAMINE_TIMEOUT_S: Final = 5.0
"""How long PostgreSQL may plan a query with somebody's condition, which may call functions of theirs."""

_VANISHED_TRIES: Final = 10
"""How often a look is repeated while tables are dropped under it."""

_LOCK_NOT_AVAILABLE: Final = "55P03"
_LOOK: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Without statistics (reltuples -1, 0 before PostgreSQL 14) a page is taken for 100 rows, as a small table has them.
_ESTIMATES: Final = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION ALL
    SELECT tree.root, i.inhrelid
      FROM tree JOIN pg_class c ON c.oid = tree.oid AND c.relkind = 'p' JOIN pg_inherits i ON i.inhparent = c.oid
)
SELECT tree.root::int8, sum(CASE WHEN c.reltuples > 0 THEN c.reltuples
       ELSE 100 * (coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8) END)::int8
  FROM tree JOIN pg_class c ON c.oid = tree.oid
 WHERE c.relkind = 'r'
 GROUP BY tree.root
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """Tables as they are published, and what a snapshot sees that is not younger than what is said of them."""

    tables: list[SourceTable]
    seen: Visibility


@dataclass(frozen=True, slots=True)
class Writers:
    """Who writes to tables: `<virtual transaction> <pid or prepared>`.

    `seen` is of a moment after that: of the transactions that had written until then, it sees all but those that
    `names` has.
    """

    names: frozenset[str]
    seen: Visibility


class SnapshotCatalog:
    """Questions to the catalog; each raises TableBusyError, TransientError or SourceError, and can be repeated.

    Args:
        publication: whose tables are looked at.
        lock_timeout_s: how long one lock is waited for.
        statement_timeout_s: how long one query may take.
        examine_timeout_s: how long the examination of a condition may take.
    """

    def __init__(
        self,
        dsn: Dsn,
        publication: str,
        *,
        application_name: str,
        connect_timeout_s: float = 10.0,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        examine_timeout_s: float = EXAMINE_TIMEOUT_S,
    ) -> None:
        self._dsn = dsn
        self._publication = publication
        self._application_name = application_name
        self._connect_timeout_s = connect_timeout_s
        self._lock_timeout_s = lock_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._examine_timeout_s = examine_timeout_s
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def published(self) -> dict[int, str]:
        """The tables that the publication publishes, by oid, as `schema.table`."""
        return await self._ask(lambda sql: tables.published_tables(sql, self._publication))

    async def position(self) -> int:
        """An LSN behind every commit that a question before this one could see."""

        async def ask(sql: Connection) -> int:
            with translated("asking for the WAL's end", {}):
                row: Any = await (await sql.execute(b"SELECT pg_current_wal_insert_lsn()::text")).fetchone()
            return Lsn.parse(row[0])

        return await self._ask(ask)

    async def labels(self) -> int:
        """A checksum of the labels of all enums; 0 without any."""
        return await self._ask(catalog.labels)

    async def tables_with_enums(self, oids: Collection[int]) -> tuple[int, ...]:
        """Those of the relations that have a column of an enum, of a domain over one, or of an array of one."""
        return await self._ask(lambda sql: catalog.tables_with_enums(sql, oids))

    async def estimates(self, tables: Mapping[int, str]) -> dict[int, int]:
        """About how many rows these published tables have, by the planner's statistics; `tables` are by oid."""

        async def ask(sql: Connection) -> dict[int, int]:
            with translated("asking how many rows tables have", {}):
                cursor = await sql.execute(_ESTIMATES.encode(), (list(tables),))
                rows: Any = await cursor.fetchall()
            return {oid: int(count) for oid, count in rows}

        return await self._ask(ask)

    async def look(self, oids: Collection[int]) -> Look:
        """What there is to read of the published tables with these oids, as of now; others are left out."""

        async def look(sql: Connection) -> Look:
            seen = await catalog.visibility(sql)
            return Look(await tables.source_tables(sql, self._publication, oids), seen)

        return await self._ask(look, _LOOK)

    async def look_at(self, snapshot: str) -> Look:
        """What there is to read of all published tables at an exported snapshot. TransientError: it is gone."""

        async def look(sql: Connection) -> Look:
            with translated("importing the slot's snapshot", {}):
                await sql.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}".encode())
            seen = await catalog.visibility(sql)
            return Look(await tables.source_tables(sql, self._publication), seen)

        return await self._ask(look, _LOOK)

    async def describe(self, oids: Collection[int]) -> dict[int, TableDescription]:
        """The keys and columns of each relation, one entry for every oid asked for."""
        return await self._ask(lambda sql: catalog.describe(sql, oids), _LOOK)

    async def types(self, oids: Collection[int]) -> dict[int, TypeDescription]:
        """The types asked for, and those that they are made of; dropped ones are left out."""
        return await self._ask(lambda sql: catalog.types(sql, oids))

    async def writers(self, oids: Collection[int]) -> Writers:
        """Who writes to any of the tables now and has not ended."""

        async def look(sql: Connection) -> Writers:
            names = await tables.writers(sql, oids)
            # A statement of its own, after the locks were looked at: it sees who let go of one before that.
            return Writers(names, await catalog.visibility(sql))

        return await self._ask(look)

    async def examine(self, table: SourceTable, where: str) -> str:
        """Why somebody's condition cannot be one on the table's rows; empty when it can.

        The query is planned, not run, in a READ ONLY transaction with a timeout: planning calls IMMUTABLE functions.
        The condition stands in two kinds of brackets. Text that closes one kind and opens it again, to go on as
        another part of the query, makes no sense in the other. Without parameters, but by the extended protocol, a
        query is one command, and has no placeholders.
        """
        if problem := unwritable(where):
            return problem
        what = f"examining a condition on {table.name}"
        query = f"EXPLAIN SELECT FROM ONLY {table.sql_name} WHERE (ARRAY[{where}\n])[1] AND ({where}\n)"
        async with self._turn:
            for _ in range(2):
                connection = await self._open()
                try:
                    with translated(what, {}):
                        await connection.execute(b"BEGIN READ ONLY")
                        await _set_timeout(connection, "LOCAL statement_timeout", self._examine_timeout_s)
                    try:
                        # Before the condition is there: it is the table that somebody has locked, not what it calls.
                        await connection.execute(
                            f"LOCK TABLE ONLY {table.sql_name} IN ACCESS SHARE MODE".encode()
                        )
                    except psycopg.errors.LockNotAvailable as error:
                        raise TableBusyError(f"{what}: {error}") from error
                    await connection.execute(query.encode(), binary=True)
                    return ""
                except psycopg.Error as error:
                    if not connection.broken:
                        return f"{answer_of(error).message} [SQLSTATE {error.sqlstate}]"
                finally:
                    await self._settle(connection)
        return "the session ends where PostgreSQL plans a query with it"

    async def close(self) -> None:
        """End the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _ask(self, question: Callable[[Connection], Awaitable[T]], begin: str = "") -> T:
        """The answer, in a transaction if it has a beginning; asked again while tables vanish under it."""
        backoff = Backoff(0.01, 1.0)
        async with self._turn:
            for left in reversed(range(_VANISHED_TRIES)):
                connection = await self._open()
                try:
                    with translated("looking at the catalog", {}):
                        if begin:
                            await connection.execute(begin.encode())
                    return await question(connection)
                except CdcdError as error:
                    cause = error.__cause__
                    sqlstate = cause.sqlstate if isinstance(cause, psycopg.Error) else ""
                    if sqlstate == _LOCK_NOT_AVAILABLE:
                        raise TableBusyError(error.message) from error
                    if not left or sqlstate != "XX000" or "could not open relation" not in str(cause):
                        raise
                finally:
                    await self._settle(connection)
                await asyncio.sleep(backoff.next(random.random()))  # noqa: S311  no secret depends on it
        raise AssertionError("the last try returns or raises")

    async def _open(self) -> Connection:
        if self._connection is None:
            connection = await connect(
                self._dsn,
                application_name=self._application_name,
                connect_timeout_s=self._connect_timeout_s,
            )
            try:
                with translated("preparing to look at the catalog", {}):
                    await _set_timeout(connection, "lock_timeout", self._lock_timeout_s)
                    await _set_timeout(connection, "statement_timeout", self._statement_timeout_s)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _settle(self, connection: Connection) -> None:
        """End the transaction, if there is one; the connection, if it is lost or in the middle of something."""
        status = connection.pgconn.transaction_status
        try:
            if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
                await connection.execute(b"ROLLBACK")
            elif status != pq.TransactionStatus.IDLE:
                await self.close()
        except BaseException:
            await self.close()
            raise


async def _set_timeout(connection: Connection, name: str, seconds: float) -> None:
    await connection.execute(f"SET {name} = {round(seconds * 1000)}".encode())
