"""A snapshot for many readers: it sees exactly what committed before its LSN, whoever writes meanwhile."""

import asyncio
import threading
from dataclasses import replace
from struct import unpack_from

import psycopg
import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.shared_snapshot import APPLICATION, SharedSnapshot
from cdcd.adapters.postgres.slot import SlotWait
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.adapters.postgres.table_chunks import ChangedTableError, TableChunks
from cdcd.core.errors import SourceError
from cdcd.core.snapshot.reading import PageQuery, Rows
from tests.integration.conftest import Database
from tests.integration.daemon import until

SESSIONS = 4


def test_what_it_sees_is_what_committed_before_its_lsn(database: Database, unique: str):
    # GIVEN a slot, and sessions that commit one row after the other
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute(f"SELECT pg_create_logical_replication_slot('{unique}', 'pgoutput')")
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(database.dsn(), each, stop)) for each in range(SESSIONS)]
    for writer in writers:
        writer.start()
    # WHEN snapshots are taken meanwhile, and read by somebody else
    try:
        taken = [asyncio.run(take(database, unique)) for _ in range(5)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    # THEN each has the rows of all commits before its LSN, as the stream has them, and no other
    commits = committed(database, unique)
    assert all(seen for _, seen in taken)
    for position, seen in taken:
        assert seen == {row for row, lsn in commits.items() if lsn < position}
    assert len(commits) > len(taken[-1][1])
    # AND neither a slot nor a session is left: the server ends a session when it has heard that the client is gone
    left = (
        "SELECT slot_name FROM pg_replication_slots WHERE temporary UNION ALL "
        f"SELECT application_name FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"
    )
    until(lambda: database.execute(left) == [] or None, "a slot or a session is left")


@pytest.mark.parametrize("rows", [0, 3])
def test_a_table_that_was_truncated_is_not_taken_for_an_empty_one(database: Database, unique: str, rows: int):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"INSERT INTO t SELECT generate_series(1, {rows})")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute(f"SELECT pg_create_logical_replication_slot('{unique}', 'pgoutput')")

    async def look() -> None:
        dsn = parse_dsn(database.dsn())
        shared = await SharedSnapshot.open(dsn, publication="p", tables=["public.t"], slot=unique)
        table = shared.tables["public.t"].source
        (found,) = table.parts
        # As if the rows had gone between the snapshot and the look at the pages.
        part = replace(found.part, pages=0, size=0)
        reader = await SnapshotReader.open(dsn, application_name="reader", connect_timeout_s=10)
        try:
            await reader.import_snapshot(shared.name)
            await shared.close()
            assert await TableChunks(reader, table, found.sql_name, part, 1 << 20).next() is None
            database.execute("TRUNCATE t")
            with pytest.raises(ChangedTableError, match="the table was rewritten"):
                await TableChunks(reader, table, found.sql_name, part, 1 << 20).next()
        finally:
            reader.close()

    asyncio.run(look())


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_snapshot_is_shared_in_a_database_of_another_encoding(
    database: Database, unique: str, encoding: str
):
    # GIVEN a database whose catalog is read by queries that may be repeated without conversion
    name = f"e_{unique[-40:]}"
    database.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    dsn = database.server.dsn(name)
    try:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
            sql.execute("CREATE PUBLICATION p FOR TABLE t")
            sql.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (unique,))

        async def share() -> list[str]:
            # WHEN a snapshot is taken on each way, as Spark, `cdcd verify` and healing take it
            given = parse_dsn(dsn)
            shared = [
                await SharedSnapshot.open(given, publication="p", tables=["public.t"], slot=unique),
                await SharedSnapshot.now(given, publication="p", slot=unique),
            ]
            shared.append(await SharedSnapshot.imported(given, shared[0].name))
            for each in shared:
                await each.close()
            return [each.name for each in shared]

        # THEN each has a name, by which other sessions can import it
        assert all(asyncio.run(share()))
    finally:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("SELECT pg_drop_replication_slot(%s)", (unique,))
        database.execute(f"DROP DATABASE {name} WITH (FORCE)")


def write(dsn: str, session: int, stop: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = session
        while not stop.is_set():
            connection.execute("INSERT INTO t VALUES (%s)", (row,))
            row += SESSIONS


async def take(database: Database, slot: str) -> tuple[int, set[int]]:
    dsn = parse_dsn(database.dsn())
    shared = await SharedSnapshot.open(dsn, publication="p", tables=["public.t"], slot=slot)
    (part,) = shared.tables["public.t"].source.parts
    reader = await SnapshotReader.open(dsn, application_name="reader", connect_timeout_s=10)
    try:
        await reader.import_snapshot(shared.name)
        # Who has imported it reads on.
        await shared.close()
        table = shared.tables["public.t"].source
        query = PageQuery(part.sql_name, part.part.oid, part.part.filenode, 0, 10_000, table)
        rows = await reader.read(query, 1 << 30)
        assert isinstance(rows, Rows)
    finally:
        reader.close()
    return shared.position, {int(line) for line in rows.lines}


def committed(database: Database, slot: str) -> dict[int, int]:
    """The LSN of the commit of each row, by pgoutput."""
    found: dict[int, int] = {}
    lsn = 0
    for (message,) in database.execute(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p')"
    ):
        if message[:1] == b"B":
            (lsn,) = unpack_from("!Q", message, 1)
        elif message[:1] == b"I":
            # Oid, N, one column, t, length, text.
            found[int(message[1 + 4 + 1 + 2 + 1 + 4 :])] = lsn
    return found


@pytest.mark.postgres(only=[13, 18])
def test_it_waits_for_open_transactions_and_says_for_whom(database: Database, unique: str):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute(f"SELECT pg_create_logical_replication_slot('{unique}', 'pgoutput')")
    heard: list[SlotWait] = []
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (1)")

        def on_wait(wait: SlotWait) -> None:
            heard.append(wait)
            writer.commit()

        async def open_() -> None:
            dsn = parse_dsn(database.dsn())
            shared = await SharedSnapshot.open(
                dsn, publication="p", tables=["public.t"], slot=unique, on_wait=on_wait
            )
            await shared.close()

        asyncio.run(open_())
        assert [wait.pid for wait in heard] == [writer.info.backend_pid]


@pytest.mark.postgres(only=18)
def test_without_the_slot_or_the_table_there_is_none(database: Database, unique: str):
    database.execute("CREATE PUBLICATION p")
    dsn = parse_dsn(database.dsn())
    with pytest.raises(SourceError, match="no slot nobody"):
        asyncio.run(SharedSnapshot.open(dsn, publication="p", tables=[], slot="nobody"))
    database.execute(f"SELECT pg_create_logical_replication_slot('{unique}', 'pgoutput')")
    with pytest.raises(SourceError, match=r"does not publish public\.t"):
        asyncio.run(SharedSnapshot.open(dsn, publication="p", tables=["public.t"], slot=unique))
