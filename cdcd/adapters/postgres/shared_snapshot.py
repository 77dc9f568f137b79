"""A snapshot that any number of sessions can import, with its exact position in the WAL.

Only the creation of a logical slot gives both: the snapshot sees exactly the transactions whose commits lie before
the slot's first position (snapbuild.c). PostgreSQL's own table synchronization relies on this. So cdcd creates a
temporary slot, imports its snapshot into a session that exports it again, and drops the slot at once, so that it
keeps WAL only briefly. One transaction remains, which reads nothing and keeps old rows from being vacuumed.

A caller that needs no LSN, because it judges each transaction by its id, uses an ordinary snapshot
(`SharedSnapshot.now`), without a slot and without waiting.

The contents of the publication and the pages of the tables are read at the same snapshot.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import uuid4

import psycopg

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection, Dsn, connect
from cdcd.adapters.postgres.money import find_money_digits
from cdcd.adapters.postgres.quoting import literal
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import SlotWait, create_slot
from cdcd.adapters.postgres.snapshot_queries import SETTINGS
from cdcd.adapters.postgres.tables import lock_holders, locked_tables, published_tables, source_tables
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import SourceError, TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.reading import SourceTable, Visibility

APPLICATION: Final = "cdcd shared snapshot"

LOCK_TIMEOUT_MS: Final = 5000
"""Milliseconds that the query of all tables waits for a lock."""

_LOCKED_TRIES: Final = 3
"""Number of attempts of the query of all tables if a table gets locked while it runs."""

# The snapshot of the transaction is taken before its first statement runs, so the end of the WAL is read after the
# snapshot.
_NOW: Final = b"SELECT pg_export_snapshot(), pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"

_SLOT: Final = """
SELECT coalesce(restart_lsn, '0/0')::text
  FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()
"""


_PUBLISHES_ALL: Final = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s
"""


@dataclass(frozen=True, slots=True)
class SharedTable:
    """A published table, with the catalog's description of its columns."""

    source: SourceTable
    description: TableDescription


class SharedSnapshot:
    """A snapshot that lasts until `close` or the end of its connection.

    Attributes:
        visibility: the snapshot's visibility if `now` took it (`position` is then the end of the WAL just after the
            snapshot), else None.
        old_lsn: start of the WAL that the pipeline's slot needs, if `now` took the snapshot.
        name: the snapshot's name for `SET TRANSACTION SNAPSHOT` on this server.
        position: LSN; the snapshot sees exactly the transactions that committed before it.
        database: name of the snapshot's database.
        tables: the tables by `schema.table`.
        locked: published tables that another session has locked, with a description of this session; they are not
            in `tables`.
        types: descriptions of the types of the tables' columns.
        money_digits: number of decimal digits of money.
    """

    def __init__(self, connection: Connection, name: str, position: int) -> None:
        self._connection = connection
        self.name = name
        self._names: Mapping[str, int] | None = None
        """The published tables, which `look_at` lists once."""
        self.position = position
        self.database = ""
        self.visibility: Visibility | None = None
        self.old_lsn = 0
        self.tables: Mapping[str, SharedTable] = {}
        self.locked: Mapping[str, str] = {}
        self.types: Mapping[int, TypeDescription] = BUILTIN_TYPES
        self.money_digits = DIGITS_OF_C

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        *,
        publication: str,
        tables: Collection[str] | None,
        slot: str,
        connect_timeout_s: float = 10.0,
        on_wait: Callable[[SlotWait], None] = lambda _: None,
        money_digits: int | None = None,
    ) -> Self:
        """Create the snapshot, after waiting for open transactions as the creation of any slot does.

        Args:
            tables: `schema.table` of each table to read; None: all published tables.
            slot: the pipeline's slot, which must exist because later commits arrive through it.
            on_wait: called every few seconds with the transaction that the creation waits for.
            money_digits: `money.digits` of the configuration.

        Raises:
            SourceError: the slot or a table does not exist, a privilege is missing, or no slot is free.
            TransientError: the server does not answer.
        """
        connection = await connect(dsn, application_name=APPLICATION, connect_timeout_s=connect_timeout_s)
        try:
            with translated("preparing to read", {}):
                await connection.execute(SETTINGS.encode())
            await _needed_wal(
                connection,
                slot,
                "Start the daemon first, with these tables in snapshot.exclude. It creates the slot. "
                "Then read them.",
            )
            digits = await find_money_digits(
                dsn, money_digits, application_name=APPLICATION, connect_timeout_s=connect_timeout_s
            )
            shared = await cls._take_over(dsn, connection, connect_timeout_s, on_wait)
            shared.money_digits = digits
            await shared._look_at(publication, tables)
        except BaseException:
            await connection.close()
            raise
        return shared

    @classmethod
    async def now(
        cls,
        dsn: Dsn,
        *,
        publication: str,
        slot: str,
        connect_timeout_s: float = 10.0,
        money_digits: int | None = None,
    ) -> Self:
        """Create a snapshot of this moment, for all published tables.

        Arguments and errors are the same as in `open`.
        """
        connection = await connect(dsn, application_name=APPLICATION, connect_timeout_s=connect_timeout_s)
        try:
            with translated("preparing to read", {}):
                await connection.execute(SETTINGS.encode())
            old_lsn = await _needed_wal(connection, slot, "Start the daemon, which creates the slot.")
            digits = await find_money_digits(
                dsn, money_digits, application_name=APPLICATION, connect_timeout_s=connect_timeout_s
            )
            with translated("taking a snapshot", {}):
                await connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                row: Any = await (await connection.execute(_NOW)).fetchone()
            name, visibility, end = row
            shared = cls(connection, name, Lsn.parse(end))
            shared.visibility = Visibility.parse(visibility)
            shared.old_lsn = old_lsn
            shared.money_digits = digits
            await shared._look_at(publication, None)
        except BaseException:
            await connection.close()
            raise
        return shared

    @classmethod
    async def imported(
        cls,
        dsn: Dsn,
        name: str,
        *,
        connect_timeout_s: float = 10.0,
        money_digits: int | None = None,
    ) -> Self:
        """Import a snapshot that another session has exported, without its tables (`look_at`).

        Raises:
            TransientError: the server does not answer, or the snapshot has ended.
        """
        connection = await connect(dsn, application_name=APPLICATION, connect_timeout_s=connect_timeout_s)
        try:
            with translated("preparing to read", {}):
                await connection.execute(SETTINGS.encode())
            digits = await find_money_digits(
                dsn, money_digits, application_name=APPLICATION, connect_timeout_s=connect_timeout_s
            )
            with translated("importing the snapshot", {}):
                await connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await connection.execute(f"SET TRANSACTION SNAPSHOT {literal(name)}".encode())
                row: Any = await (await connection.execute(b"SELECT pg_export_snapshot()")).fetchone()
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode())
                await connection.execute(b"SAVEPOINT looking")
        except BaseException:
            await connection.close()
            raise
        shared = cls(connection, row[0], 1)
        shared.money_digits = digits
        return shared

    async def publishes_all(self, publication: str) -> bool:
        """Return whether the publication publishes inserts, updates, deletes and truncates."""
        with translated("looking at the publication", {}):
            found: Any = await (
                await self._connection.execute(_PUBLISHES_ALL.encode(), (publication,))
            ).fetchone()
        return bool(found is not None and found[0])

    async def look_at(self, publication: str, table: str) -> None:
        """Read the definition of one table (`schema.table`); `tables` has only this table afterwards.

        Raises:
            SourceError: the publication does not publish the table.
            TableBusyError: another session has locked the table.
            TransientError: the server does not answer.
        """
        try:
            if self._names is None:
                self._names = await self._published(publication)
            await self._look_at(publication, [table], self._names)
        except (SourceError, TransientError) as error:
            with translated("looking at a table again", {}):
                await self._connection.execute(b"ROLLBACK TO looking")
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise TableBusyError(f"{table} is locked by another session.") from error
            raise

    @classmethod
    async def _take_over(
        cls,
        dsn: Dsn,
        connection: Connection,
        connect_timeout_s: float,
        on_wait: Callable[[SlotWait], None],
    ) -> Self:
        stream = await ReplicationStream.open(
            dsn, application_name=APPLICATION, connect_timeout_s=connect_timeout_s
        )
        try:
            created = await create_slot(
                stream,
                f"cdcd_snapshot_{uuid4().hex[:12]}",
                temporary=True,
                export=True,
                observer=connection,
                on_wait=on_wait,
            )
            assert created.snapshot is not None, "it was asked for"
            with translated("importing the snapshot", {}):
                await connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await connection.execute(f"SET TRANSACTION SNAPSHOT {literal(created.snapshot)}".encode())
                row: Any = await (await connection.execute(b"SELECT pg_export_snapshot()")).fetchone()
        finally:
            # The temporary slot ends with the stream.
            stream.close()
        return cls(connection, row[0], created.consistent_point)

    async def _published(self, publication: str) -> dict[str, int]:
        """Return the oids of the published tables by name."""
        return {name: oid for oid, name in (await published_tables(self._connection, publication)).items()}

    async def _look_at(
        self, publication: str, tables: Collection[str] | None, names: Mapping[str, int] | None = None
    ) -> None:
        if names is None:
            names = await self._published(publication)
        published: Mapping[str, SourceTable] = {}
        if tables is None:
            published = await self._look_at_free(publication, names)
            tables = published
        elif not set(tables) - names.keys():
            # Locks of other tables do not count. A reader of a few tables waits for the sessions that have locked
            # them.
            wanted_oids = [names[name] for name in tables]
            found = await source_tables(self._connection, publication, wanted_oids)
            published = {table.name: table for table in found}
        if missing := sorted(set(tables) - published.keys()):
            raise SourceError(
                f"The publication {publication} does not publish {', '.join(missing)}.",
                hint="A table is named schema.table, as it is published: with publish_via_partition_root the root, "
                "else each partition.",
            )
        wanted = [published[name] for name in tables]
        descriptions = await catalog.describe(
            self._connection, [table.oid for table in wanted], with_kin=True
        )
        self.tables = {table.name: SharedTable(table, descriptions[table.oid]) for table in wanted}
        oids = {column.type_oid for table in wanted for column in table.relation.columns}
        self.types = {**BUILTIN_TYPES, **await catalog.types(self._connection, oids)}
        self.database = self._connection.info.dbname

    async def _look_at_free(self, publication: str, names: Mapping[str, int]) -> dict[str, SourceTable]:
        """Read the definitions of the tables that no session has locked, and note the locked tables."""
        sql = self._connection
        with translated("preparing to look at the tables", {}):
            await sql.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode())
        for left in reversed(range(_LOCKED_TRIES)):
            locked = await locked_tables(sql, names.values())
            self.locked = {name: locked[oid] for name, oid in names.items() if oid in locked}
            free = [oid for oid in names.values() if oid not in locked]
            with translated("preparing to look at the tables", {}):
                await sql.execute(b"SAVEPOINT looking")
            try:
                return {table.name: table for table in await source_tables(sql, publication, free)}
            except TransientError as error:
                cause = error.__cause__
                if not left or not isinstance(cause, psycopg.errors.LockNotAvailable):
                    raise
                # The table was locked after the locks had been read. The next attempt leaves it out.
                with translated("looking at the tables again", {}):
                    await sql.execute(b"ROLLBACK TO looking")
        raise AssertionError("the last try returns or raises")

    async def lock_holders(self, oids: Collection[int]) -> list[str]:
        """Return descriptions of the sessions whose locks prevent reading the tables with these oids."""
        return await lock_holders(self._connection, oids)

    async def close(self) -> None:
        """End the snapshot. Sessions that have imported it can still read."""
        await self._connection.close()


async def _needed_wal(connection: Connection, slot: str, hint: str) -> Lsn:
    """Return the start of the WAL that the slot needs. SourceError: the slot does not exist."""
    with translated("looking for the pipeline's slot", {"slot": slot}):
        found: Any = await (await connection.execute(_SLOT, (slot,))).fetchone()
    if found is None:
        raise SourceError(
            f"There is no slot {slot}, through which the changes after the snapshot would come.", hint=hint
        )
    return Lsn.parse(found[0])
