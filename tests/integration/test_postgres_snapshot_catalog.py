"""What snapshots ask the catalog of real servers: nobody waits for them, and nobody gets in by a condition."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import create_slot
from cdcd.adapters.postgres.snapshot_catalog import CatalogTimeouts, SnapshotCatalog
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.core.errors import TransientError
from cdcd.core.snapshot.reading import PageQuery, Refused, Rows, SourceTable
from tests.integration.conftest import Database
from tests.integration.daemon import until
from tests.integration.hostile_conditions import ATTACKS, FUNCTIONS, GOOD

OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'catalog' AND datname = current_database()"


@asynccontextmanager
async def opened(database: Database, **options: Any) -> AsyncIterator[SnapshotCatalog]:
    catalog = SnapshotCatalog(parse_dsn(database.dsn()), "p", application_name="catalog", **options)
    try:
        yield catalog
    finally:
        await catalog.close()


def test_a_look_says_of_a_table_all_that_a_query_is_made_of(database: Database):
    database.execute('CREATE TABLE "A b" (id int PRIMARY KEY, "gone" text, note varchar(10))')
    database.execute('ALTER TABLE "A b" DROP gone')
    database.execute("CREATE TABLE other (id int)")
    database.execute('CREATE PUBLICATION p FOR TABLE "A b"')
    database.execute("INSERT INTO \"A b\" SELECT g, 'x' FROM generate_series(1, 1000) g")

    async def look() -> None:
        async with opened(database) as catalog:
            # Opened when it is needed.
            assert database.execute(OURS) == [(0,)]
            ((oid, name),) = (await catalog.published()).items()
            assert name == "public.A b"
            seen = await catalog.look([oid, 1])
            (table,) = seen.tables
            assert (table.oid, table.sql_name, table.partitioned) == (oid, 'public."A b"', False)
            assert table.columns == '[[1, "id", 23, -1], [3, "note", 1043, 14]]'
            assert [column.name for column in table.relation.columns] == ["id", "note"]
            (part,) = table.parts
            assert part.part.oid == oid
            assert part.part.pages > 3
            assert database.execute(OURS) == [(1,)]
            description = (await catalog.describe([oid, 1]))[oid]
            assert description.primary_key == ("id",)
            assert set(await catalog.types([23, 1043])) >= {23, 1043}
            # WHEN it is lost, THEN the next question but one finds another.
            database.execute(OURS.replace("count(*)", "pg_terminate_backend(pid)"))
            with pytest.raises(TransientError):
                await catalog.published()
            assert await catalog.published() == {oid: "public.A b"}

    asyncio.run(look())


def test_a_table_that_is_locked_is_busy_and_the_catalog_goes_on(database: Database):
    for name in ("t", "u"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t, u")

    async def look() -> None:
        async with opened(database, timeouts=CatalogTimeouts(lock_s=0.1)) as catalog:
            oid, other = await catalog.published()
            (table,) = (await catalog.look([oid])).tables
            with database.connect(autocommit=False) as connection:
                connection.execute("LOCK TABLE t")
                began = time.monotonic()
                # A daemon that starts now must not wait for hours.
                assert list(await catalog.published()) == [oid, other]
                # The lock of one table is nothing to another one.
                assert [each.name for each in (await catalog.look([other])).tables] == ["public.u"]
                assert await catalog.lock_holders([other]) == []
                assert await catalog.lock_holders([oid]) == [
                    f"server process {connection.info.backend_pid} (role postgres)"
                ]
                with pytest.raises(TableBusyError):
                    await catalog.look([oid])
                with pytest.raises(TableBusyError):
                    await catalog.examine(table, "true")
                assert time.monotonic() - began < 30
                # What needs no lock on the table is answered.
                assert (await catalog.describe([oid]))[oid].primary_key == ("id",)
            assert [each.oid for each in (await catalog.look([oid])).tables] == [oid]

    asyncio.run(look())


def test_a_look_at_an_exported_snapshot_leaves_out_what_is_locked_and_says_by_whom(database: Database):
    for name in ("t", "u"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    database.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (1) TO (9)")
    database.execute("CREATE PUBLICATION p FOR TABLE t, u, parted WITH (publish_via_partition_root)")

    async def look() -> None:
        stream = await ReplicationStream.open(parse_dsn(database.dsn()), application_name="test")
        try:
            created = await create_slot(stream, f"l{database.name[-8:]}", temporary=True, export=True)
            assert created.snapshot
            async with opened(database) as catalog:
                names = await catalog.published()
                with database.connect(autocommit=False) as connection:
                    connection.execute("LOCK TABLE t, part")
                    found = await catalog.look_at(created.snapshot)
                    by = f"locked by server process {connection.info.backend_pid} (role postgres)"
                    assert [each.name for each in found.tables] == ["public.u"]
                    assert {names[oid]: who for oid, who in found.locked.items()} == {
                        "public.t": by,
                        "public.parted": by,
                    }
                    # Their keys are known without the lock.
                    described = await catalog.describe(list(found.locked))
                    assert all(each.primary_key == ("id",) for each in described.values())
                free = await catalog.look_at(created.snapshot)
                assert ({each.oid for each in free.tables}, free.locked) == (set(names), {})
        finally:
            stream.close()

    asyncio.run(look())


PUBLICATIONS = {
    "FOR ALL TABLES": 13,
    "FOR ALL TABLES WITH (publish_via_partition_root)": 13,
    "FOR TABLE t, p": 13,
    "FOR TABLE t, p WITH (publish_via_partition_root)": 13,
    "FOR TABLE p_1, p_2_1, other.t": 13,
    "FOR TABLE p_2 WITH (publish_via_partition_root)": 13,
    "FOR TABLE p, p_2, p_2_1 WITH (publish_via_partition_root)": 15,
    "FOR TABLE t (id), p_1 (id, a) WHERE (id > 5)": 15,
    "FOR TABLES IN SCHEMA other, public WITH (publish_via_partition_root)": 15,
    "FOR TABLES IN SCHEMA other, TABLE p": 15,
    "FOR TABLE t, g": 15,
    "FOR TABLE g (id, stored)": 18,
    "FOR TABLE t, g WITH (publish_generated_columns = stored)": 18,
}
TREE = """
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE g (id int PRIMARY KEY, stored int GENERATED ALWAYS AS (id + 1) STORED, dropped int);
ALTER TABLE g DROP COLUMN dropped;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY);
CREATE VIEW v AS SELECT * FROM t;
CREATE TABLE p (id int, a int, PRIMARY KEY (id, a)) PARTITION BY LIST (id);
CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p_2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (a);
CREATE TABLE p_2_1 PARTITION OF p_2 FOR VALUES IN (1);
CREATE SCHEMA other;
CREATE TABLE other.t (id int PRIMARY KEY);
CREATE TABLE other.p_2_2 PARTITION OF p_2 FOR VALUES IN (2);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent)"""


def test_what_is_published_is_what_the_server_says(database: Database):
    for statement in TREE.split(";\n"):
        database.execute(statement)

    async def look() -> None:
        for what, since in PUBLICATIONS.items():
            if database.version < since:
                continue
            database.execute(f"CREATE PUBLICATION p {what}")
            said = database.execute(
                "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = 'p'"
            )
            async with opened(database) as catalog:
                published = await catalog.published()
                assert sorted(published.values()) == sorted(name for (name,) in said), what
                looked = (await catalog.look(list(published))).tables
                assert [each.oid for each in looked] == sorted(published), what
            if database.version >= 15:
                assert {each.name: described(each) for each in looked} == server_describes(database), what
            database.execute("DROP PUBLICATION p")

    asyncio.run(look())


def described(table: SourceTable) -> tuple[set[str], str]:
    return {column.name for column in table.relation.columns}, table.row_filter


def server_describes(database: Database) -> dict[str, tuple[set[str], str]]:
    """The published columns and the row filter of each table, as the server's view has them."""
    rows = database.execute(
        "SELECT t.schemaname || '.' || t.tablename, array_agg(a.attname::text), coalesce(t.rowfilter, '') "
        "  FROM pg_publication_tables t JOIN pg_attribute a ON a.attname = ANY(t.attnames) "
        "   AND a.attrelid = format('%I.%I', t.schemaname, t.tablename)::regclass "
        " WHERE t.pubname = 'p' AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000) "
        " GROUP BY 1, 3"
    )
    return {name: (set(columns), row_filter) for name, columns, row_filter in rows}


def test_the_end_of_the_wal_is_where_an_idle_server_ends_its_stream(database: Database):
    """At the beginning of a page, the next record is inserted behind the page's header, where no record ends."""
    insert = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
    emit = insert.replace("SELECT", "SELECT pg_logical_emit_message(false, 'x', repeat('x', %s)),")
    ((block,),) = database.execute("SELECT current_setting('wal_block_size')::int8")

    def fill() -> bool:
        """Write up to the end of a page; whether nobody else wrote meanwhile."""
        with database.connect() as connection:
            before = int(connection.execute(insert).fetchall()[0][0])
            ends = [int(connection.execute(emit, (300,)).fetchall()[0][1]) for _ in range(2)]
            room = block - ends[-1] % block
            overhead = ends[-1] - ends[-2] - 300
            if before // block != ends[-1] // block or room <= overhead + 300:
                return False
            connection.execute(emit, (room - overhead,))
            return int(connection.execute(insert).fetchall()[0][0]) % block in (24, 40)

    async def ask(catalog: SnapshotCatalog) -> int | None:
        """The catalog's answer, if the server's background processes wrote nothing before it."""
        if not fill():
            return None
        ((before,),) = database.execute(insert)
        position = await catalog.position()
        ((after,),) = database.execute(insert)
        return position if before == after and before % block in {24, 40} else None

    async def ask_at_the_beginning_of_a_page() -> int:
        async with opened(database) as catalog:
            for _ in range(300):
                if (position := await ask(catalog)) is not None:
                    return position
        raise AssertionError("no page was ever filled")

    database.execute("CREATE PUBLICATION p")
    position = asyncio.run(ask_at_the_beginning_of_a_page())
    assert position % block == 0
    # THEN the server's WAL writer gets there, though nobody writes any more
    flushed = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn"
    until(
        lambda: True if int(database.execute(flushed)[0][0]) >= position else None, "the WAL is not written"
    )


def test_who_writes_is_named_and_who_had_written_is_seen(database: Database):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")

    async def look() -> None:
        async with opened(database) as catalog:
            (oid,) = await catalog.published()
            with database.connect(autocommit=False) as connection:
                connection.execute("INSERT INTO t VALUES (1)")
                ((xid,),) = connection.execute("SELECT txid_current()").fetchall()
                during = await catalog.writers([oid])
                assert len(during.names) == 1
                assert str(connection.info.backend_pid) in next(iter(during.names))
                assert not during.seen.sees(xid)
            after = await catalog.writers([oid])
            assert after.names == frozenset()
            assert after.seen.sees(xid)

    asyncio.run(look())


def test_a_look_at_an_exported_snapshot_has_the_columns_of_that_moment(database: Database):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")

    async def look() -> None:
        stream = await ReplicationStream.open(parse_dsn(database.dsn()), application_name="test")
        try:
            created = await create_slot(stream, f"e{database.name[-8:]}", temporary=True, export=True)
            assert created.snapshot
            async with opened(database) as catalog:
                database.execute("ALTER TABLE t ADD note text")
                (then,) = (await catalog.look_at(created.snapshot)).tables
                (now,) = (await catalog.look([then.oid])).tables
                assert [column.name for column in then.relation.columns] == ["id"]
                assert [column.name for column in now.relation.columns] == ["id", "note"]
                assert then.columns != now.columns
                stream.close()
                with pytest.raises(TransientError):
                    await catalog.look_at("00000000-00000000-1")
                assert await catalog.published() == {then.oid: "public.t"}
        finally:
            stream.close()

    asyncio.run(look())


@pytest.mark.postgres(only=[13, 18])
def test_two_thousand_tables_are_looked_at_in_seconds(database: Database):
    database.execute(
        "DO $$ BEGIN FOR i IN 1..2000 LOOP EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, note text)', i); "
        "IF i % 500 = 0 THEN COMMIT; END IF; END LOOP; END $$"
    )
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")

    async def look() -> tuple[float, float]:
        async with opened(database) as catalog:
            published = await catalog.published()
            began = time.monotonic()
            assert len((await catalog.look(list(published))).tables) == 2000
            assert len(await catalog.describe(list(published))) == 2000
            all_s = time.monotonic() - began
            one_s = []
            for oid in list(published)[:5]:
                began = time.monotonic()
                (found,) = (await catalog.look([oid])).tables
                one_s.append(time.monotonic() - began)
                assert found.oid == oid
            return all_s, min(one_s)

    all_s, one_s = asyncio.run(look())
    assert all_s < 60
    # The columns of the other tables are not looked at.
    assert one_s * 10 < all_s


@pytest.mark.postgres(only=[16, 18])
def test_a_table_that_vanishes_under_a_look_does_not_end_it(database: Database):
    # GIVEN a table that is being dropped
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    waiting = OURS + " AND wait_event_type = 'Lock'"

    async def look() -> list[str]:
        async with opened(database, timeouts=CatalogTimeouts(lock_s=60)) as catalog:
            oids = list(await catalog.published())
            with database.connect(autocommit=False) as connection:
                connection.execute("DROP TABLE u")
                # WHEN the look has found it, and waits for it
                looked = asyncio.create_task(catalog.look(oids))
                await asyncio.to_thread(
                    until, lambda: database.execute(waiting) == [(1,)] or None, "it does not wait"
                )
                connection.commit()
                # THEN it ends well: it may have read of the table before the drop, and the next look has not
                assert "public.t" in [table.name for table in (await looked).tables]
                return [table.name for table in (await catalog.look(oids)).tables]

    assert asyncio.run(look()) == ["public.t"]


def prepare(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    database.execute("CREATE TABLE other (id int)")
    database.execute("CREATE SEQUENCE s")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute("CREATE TABLE loot (id int)")
    for name, body in FUNCTIONS.items():
        database.execute(f"CREATE FUNCTION {name}() RETURNS bool LANGUAGE plpgsql {body}")
    database.execute("CREATE FUNCTION rows_of() RETURNS SETOF bool LANGUAGE sql AS 'VALUES (true), (false)'")


def test_no_condition_gets_out_of_its_place_writes_or_holds_anybody_up(database: Database):
    prepare(database)

    async def examine() -> dict[str, str]:
        options = {"timeouts": CatalogTimeouts(examine_s=0.5, lock_s=0.5)}
        async with opened(database, **options) as catalog:
            (oid,) = await catalog.published()
            (table,) = (await catalog.look([oid])).tables
            found = {}
            with database.connect() as other:
                # GIVEN somebody who holds a lock that a condition waits for
                other.execute("SELECT pg_advisory_lock(4711)")
                for where in ATTACKS:
                    began = time.monotonic()
                    found[where] = await catalog.examine(table, where)
                    assert time.monotonic() - began < 20, where
            # THEN the catalog is as useful as before, and its settings are what they were
            assert (await catalog.look([oid])).tables == [table]
        # A machine that stands still for half a second must not have a good condition refused.
        async with opened(database) as catalog:
            for where in GOOD:
                assert await catalog.examine(table, where) == "", where
        return found

    found = asyncio.run(examine())
    # Each is refused with a reason.
    assert [where for where, problem in found.items() if not problem] == []
    assert "read-only transaction" in found["public.writes()"]
    assert "ends" in found["public.ends()"]
    # AND nothing was written
    assert database.execute("SELECT * FROM loot") == []
    assert database.execute("SELECT is_called FROM s") == [(False,)]


def test_what_passes_the_examination_stays_in_its_brackets_when_it_is_read(database: Database):
    prepare(database)
    database.execute("INSERT INTO t VALUES (7, 'filtered')")

    async def read() -> None:
        async with opened(database) as catalog:
            (oid,) = await catalog.published()
            (table,) = (await catalog.look([oid])).tables
            part = table.parts[0]
            for where in GOOD:
                sleeps = "pg_sleep" in where
                # A machine that stands still for a second must not have a good condition refused.
                reader = await SnapshotReader.open(
                    parse_dsn(database.dsn()),
                    application_name="reader",
                    statement_timeout_s=1.0 if sleeps else 60.0,
                )
                query = PageQuery(
                    part.sql_name, oid, part.part.filenode, 0, part.part.pages, table, ("id < 7", where)
                )
                try:
                    answer = await reader.read(query, 1 << 20)
                finally:
                    reader.close()
                if sleeps or "rows_of" in where:
                    assert isinstance(answer, Refused)
                    continue
                assert isinstance(answer, Rows), where
                assert b"7\tfiltered\n" not in answer.lines, where

    asyncio.run(read())
