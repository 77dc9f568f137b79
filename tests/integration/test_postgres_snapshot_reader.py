"""Rows by pages and by keys against real servers: true, or why not, and the connection goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from psycopg import pq

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import create_slot
from cdcd.adapters.postgres.snapshot_catalog import SnapshotCatalog
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.errors import TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.reading import (
    Answer,
    Changed,
    KeyQuery,
    PageQuery,
    Refused,
    Rows,
    SourceTable,
    TooLarge,
)
from tests.integration.conftest import Database

PLENTY = 1 << 30


async def look(database: Database, *, user: str = "postgres") -> dict[str, SourceTable]:
    catalog = SnapshotCatalog(parse_dsn(database.dsn(user=user)), "p", application_name="test")
    try:
        seen = await catalog.look(list(await catalog.published()))
    finally:
        await catalog.close()
    return {table.name: table for table in seen.tables}


def pages(
    table: SourceTable, begin: int = 0, end: int | None = None, *conditions: str, part: int = 0
) -> PageQuery:
    """All of them, unless it is said otherwise."""
    each = table.parts[part]
    return PageQuery(
        each.sql_name,
        each.part.oid,
        each.part.filenode,
        begin,
        each.part.pages if end is None else end,
        table,
        conditions,
    )


def keys(table: SourceTable, *rows: tuple[str, ...], columns: tuple[str, ...] = ("id",)) -> KeyQuery:
    return KeyQuery(table, columns, tuple(tuple((False, value.encode()) for value in row) for row in rows))


async def types_of(database: Database, table: SourceTable) -> dict[int, TypeDescription]:
    """The types of the columns, as the daemon knows them."""
    catalog = SnapshotCatalog(parse_dsn(database.dsn()), "p", application_name="test")
    try:
        return await catalog.types({column.type_oid for column in table.relation.columns})
    finally:
        await catalog.close()


@asynccontextmanager
async def opened(
    database: Database, *, user: str = "postgres", **options: Any
) -> AsyncIterator[SnapshotReader]:
    reader = await SnapshotReader.open(
        parse_dsn(database.dsn(user=user)), application_name="reader", **options
    )
    try:
        yield reader
    finally:
        reader.close()


def create(database: Database, columns: str = "id int PRIMARY KEY, note text", name: str = "t") -> None:
    database.execute(f"CREATE TABLE {name} ({columns})")
    database.execute(f"CREATE PUBLICATION p FOR TABLE {name}")


def lines(answer: Answer) -> list[bytes]:
    assert isinstance(answer, Rows), answer
    return sorted(line.rstrip(b"\n") for line in answer.lines)


@asynccontextmanager
async def exported(database: Database) -> AsyncIterator[str]:
    stream = await ReplicationStream.open(parse_dsn(database.dsn()), application_name="test")
    try:
        created = await create_slot(stream, f"e{database.name[-8:]}", temporary=True, export=True)
        assert created.snapshot
        yield created.snapshot
    finally:
        stream.close()


def test_the_rows_of_every_page_are_read_once_whatever_the_size_of_the_ranges(database: Database):
    create(database)
    database.execute("INSERT INTO t SELECT g, repeat('x', g % 50) FROM generate_series(1, 3000) g")
    database.execute("DELETE FROM t WHERE id % 7 = 0")

    async def read() -> list[bytes]:
        table = (await look(database))["public.t"]
        async with opened(database) as reader:
            found: list[bytes] = []
            for begin in range(0, table.parts[0].part.pages, 3):
                found += lines(await reader.read(pages(table, begin, begin + 3), PLENTY))
            return found

    found = asyncio.run(read())
    assert sorted(int(line.split(b"\t")[0]) for line in found) == [i for i in range(1, 3001) if i % 7]


def test_what_a_query_sees_is_told_and_the_stream_reaches_what_lies_behind_it(database: Database):
    create(database)
    database.execute("INSERT INTO t VALUES (1)")
    server = database.connect()
    with server, database.connect(autocommit=False) as writer:
        before = server.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        open_xid = writer.execute("SELECT txid_current()").fetchone()
        writer.execute("INSERT INTO t VALUES (2)")

        async def read() -> Rows:
            table = (await look(database))["public.t"]
            async with opened(database) as reader:
                answer = await reader.read(pages(table), PLENTY)
                assert isinstance(answer, Rows)
                return answer

        rows = asyncio.run(read())
        assert lines(rows) == [b"1\t\\N"]
        assert rows.seen is not None
        assert rows.after is not None
        assert open_xid is not None
        assert not rows.seen.sees(open_xid[0])
        assert before is not None
        assert rows.after >= Lsn.parse(before[0])
        # A message was written behind it, and flushed.
        flushed = server.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        assert flushed is not None
        assert Lsn.parse(flushed[0]) > rows.after


@pytest.mark.parametrize("at_export", [False, True])
def test_the_rows_of_a_table_without_columns_are_counted(database: Database, at_export: bool):
    create(database, "")
    database.execute("INSERT INTO t DEFAULT VALUES")

    async def read() -> Answer:
        table = (await look(database))["public.t"]
        async with exported(database) as snapshot, opened(database) as reader:
            if at_export:
                await reader.import_snapshot(snapshot)
            return await reader.read(pages(table), PLENTY)

    assert lines(asyncio.run(read())) == [b""]


def test_a_table_that_grew_since_its_plan_is_read_by_pages_and_within_its_limit(database: Database):
    create(database)
    database.execute("INSERT INTO t VALUES (1, 'first')")

    async def read() -> Answer:
        # GIVEN a table of one page, so that the limit of bytes does not count
        table = (await look(database))["public.t"]
        assert table.parts[0].part.pages == 1
        # WHEN it grows before it is read
        database.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(2, 5000) g")
        async with opened(database) as reader:
            return await reader.read(pages(table), PLENTY)

    # THEN its first page is read
    assert 1 < len(lines(asyncio.run(read()))) < 300


CHANGES: dict[str, tuple[tuple[str, ...], str]] = {
    "another table has the name": (
        (
            "CREATE TABLE s.t_new (LIKE s.t INCLUDING ALL); INSERT INTO s.t_new VALUES (99, 'new')",
            "ALTER TABLE s.t RENAME TO t_old; ALTER TABLE s.t_new RENAME TO t",
        ),
        "another table",
    ),
    "dropped": (("DROP TABLE s.t",), ""),
    "renamed": (("ALTER TABLE s.t RENAME TO u",), ""),
    "the schema is renamed": (("ALTER SCHEMA s RENAME TO r",), ""),
    "replaced by a view": (("DROP TABLE s.t; CREATE VIEW s.t AS SELECT 1 AS id, '' AS note",), ""),
    "truncated": (("TRUNCATE s.t",), "rewritten"),
    "vacuumed full": (("VACUUM FULL s.t",), "rewritten"),
    "a column was added": (("ALTER TABLE s.t ADD more int DEFAULT 7",), "columns"),
    "a column was dropped": (("ALTER TABLE s.t DROP note",), ""),
    "a column was renamed": (("ALTER TABLE s.t RENAME note TO remark",), ""),
    "a type was widened in place": (("ALTER TABLE s.t ALTER at TYPE timestamp(6)",), "columns"),
    "names of columns were swapped": (
        (
            "ALTER TABLE s.t RENAME note TO x; ALTER TABLE s.t RENAME other TO note; ALTER TABLE s.t RENAME x TO other",
        ),
        "columns",
    ),
}


def create_for_changes(database: Database) -> None:
    database.execute("CREATE SCHEMA s")
    create(database, "id int PRIMARY KEY, note text, other text, at timestamp(3)", "s.t")
    database.execute("INSERT INTO s.t VALUES (1, 'note', 'other')")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by", ["pages", "keys"])
def test_a_table_that_is_not_the_one_of_the_plan_any_more_gives_no_row(
    database: Database, change: str, by: str
):
    # GIVEN a query for a table as it was
    create_for_changes(database)
    statements, reason = CHANGES[change]

    async def read() -> tuple[Answer, Answer]:
        table = (await look(database))["s.t"]
        query = pages(table) if by == "pages" else keys(table, ("1",))
        async with opened(database) as reader:
            before = await reader.read(query, PLENTY)
            # WHEN it is changed
            for statement in statements:
                database.execute(statement)
            after = await reader.read(query, PLENTY)
            # THEN the connection is of use for the next one
            for again in (await look(database)).values():
                assert isinstance(await reader.read(pages(again), PLENTY), Rows)
            return before, after

    before, after = asyncio.run(read())
    assert len(lines(before)) == 1
    if by == "keys" and "rewritten" in reason:
        # Whatever the file: rows by key are where they are now.
        assert isinstance(after, Rows)
    else:
        assert isinstance(after, Changed), after
        assert reason in after.reason


@pytest.mark.parametrize("change", CHANGES)
def test_at_an_exported_snapshot_only_what_keeps_the_rows_as_they_were_is_read_on(
    database: Database, change: str
):
    create_for_changes(database)

    async def read() -> tuple[Answer, Answer]:
        async with exported(database) as snapshot, opened(database) as reader:
            await reader.import_snapshot(snapshot)
            table = (await look(database))["s.t"]
            before = await reader.read(pages(table), PLENTY)
            for statement in CHANGES[change][0]:
                database.execute(statement)
            after = await reader.read(pages(table), PLENTY)
            # The transaction goes on, and with it the snapshot.
            assert type(await reader.read(keys(table, ("1",)), PLENTY)) in (type(after), Rows)
            assert await reader.read(pages(table), PLENTY) == after
            return before, after

    before, after = asyncio.run(read())
    assert before == Rows([b"1\tnote\tother\t\\N\n"], 16)
    if change == "a column was added":
        assert after == before
    else:
        assert isinstance(after, Changed), after


def test_rows_that_are_too_large_are_told_and_the_next_query_is_answered(database: Database):
    create(database)
    database.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g")

    async def read() -> None:
        table = (await look(database))["public.t"]
        async with opened(database) as reader:
            assert await reader.read(pages(table), 10_000) == TooLarge()
            assert await reader.read(keys(table, *((str(i),) for i in range(1, 200))), 10_000) == TooLarge()
            assert len(lines(await reader.read(pages(table), PLENTY))) == 1000

    asyncio.run(read())


FAILING = [
    "1/0 = id",
    "public.fails(id)",
    "public.fails_as(id, '40P01')",
    "public.fails_as(id, '57P01')",
    "public.fails_as(id, '42P01')",
    "public.fails_as(id, '53100')",
    "public.fails_as(id, '55P03')",
    "public.fails_as(id, 'XX000')",
    "public.writes(id)",
    "pg_sleep(30) IS NOT NULL",
    "true) ) TO STDOUT; DROP TABLE public.t; --\0",
    "no_such_column",
    "'\ud800' = ''",
    "'unterminated",
    "$1",
    "id = 1; COMMIT",
]


@pytest.mark.parametrize("condition", FAILING, ids=range(len(FAILING)))
def test_what_a_requests_condition_causes_is_refused_and_nothing_else(database: Database, condition: str):
    # GIVEN functions of somebody else's
    create(database)
    database.execute("INSERT INTO t VALUES (1), (0)")
    database.execute("CREATE TABLE loot (id int)")
    database.execute(
        "CREATE FUNCTION fails(id int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'no'; END $$"
    )
    database.execute(
        "CREATE FUNCTION fails_as(id int, code text) RETURNS bool LANGUAGE plpgsql STABLE AS "
        "$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = code; END $$"
    )
    database.execute(
        "CREATE FUNCTION writes(id int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM public.write_it(); RETURN true; END $$"
    )
    database.execute(
        "CREATE FUNCTION write_it() RETURNS void LANGUAGE sql VOLATILE AS 'INSERT INTO public.loot VALUES (1)'"
    )

    async def read() -> tuple[Answer, Answer]:
        table = (await look(database))["public.t"]
        async with opened(database, statement_timeout_s=2.0) as reader:
            answer = await reader.read(pages(table, 0, 10, "", condition), PLENTY)
            return answer, await reader.read(pages(table), PLENTY)

    answer, after = asyncio.run(read())
    # THEN it is the condition's own failure, and the reader goes on
    assert isinstance(answer, Refused), answer
    assert answer.reason
    assert answer.hint
    assert lines(after) == [b"0\t\\N", b"1\t\\N"]
    assert database.execute("SELECT * FROM loot") == []


def test_settings_that_a_condition_changed_are_what_they_were(database: Database):
    create(database)
    database.execute("INSERT INTO t VALUES (1, 'a\\b')")
    poison = (
        "set_config('standard_conforming_strings', 'off', false) IS NOT NULL AND "
        "set_config('row_security', 'on', false) IS NOT NULL AND set_config('extra_float_digits', '0', false) <> ''"
    )

    async def read() -> Answer:
        table = (await look(database))["public.t"]
        async with opened(database) as reader:
            assert lines(await reader.read(pages(table, 0, 10, poison), PLENTY)) == [b"1\ta\\\\b"]
            return await reader.read(keys(table, ("a\\b",), columns=("note",)), PLENTY)

    assert lines(asyncio.run(read())) == [b"1\ta\\\\b"]


def test_a_table_that_may_not_be_read_is_refused_with_the_grant_that_is_missing(
    database: Database, unique: str
):
    create(database)
    database.execute("INSERT INTO t VALUES (1)")
    role = f"r{unique}"[:60]
    database.execute(f"CREATE ROLE {role} LOGIN")

    async def read() -> Answer:
        table = (await look(database))["public.t"]
        async with opened(database, user=role) as reader:
            return await reader.read(pages(table), PLENTY)

    try:
        refused = asyncio.run(read())
        assert isinstance(refused, Refused)
        assert f'GRANT SELECT ON public.t TO "{role}"' in refused.hint
        # Row-level security hides rows: not without a word.
        database.execute(f"GRANT SELECT ON t TO {role}")
        database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        refused = asyncio.run(read())
        assert isinstance(refused, Refused)
        assert f'ALTER ROLE "{role}" BYPASSRLS' in refused.hint
        database.execute(f"ALTER ROLE {role} BYPASSRLS")
        assert lines(asyncio.run(read())) == [b"1\t\\N"]
    finally:
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")


def test_a_table_that_is_locked_is_tried_later_on_the_same_connection(database: Database):
    create(database)
    database.execute("INSERT INTO t VALUES (1)")

    async def read() -> Answer:
        table = (await look(database))["public.t"]
        async with exported(database) as snapshot, opened(database, lock_timeout_s=0.1) as reader:
            await reader.import_snapshot(snapshot)
            async with opened(database, lock_timeout_s=0.1) as other:
                with database.connect(autocommit=False) as writer:
                    writer.execute("LOCK TABLE t")
                    for each in (reader, other):
                        with pytest.raises(TableBusyError, match=r"public\.t is locked"):
                            await each.read(pages(table), PLENTY)
                assert lines(await other.read(pages(table), PLENTY)) == [b"1\t\\N"]
            return await reader.read(pages(table), PLENTY)

    assert lines(asyncio.run(read())) == [b"1\t\\N"]


def test_a_connection_that_is_ended_is_a_passing_failure(database: Database):
    create(database)

    async def read() -> None:
        table = (await look(database))["public.t"]
        async with opened(database) as reader:
            await reader.read(pages(table), PLENTY)
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reader'"
            )
            with pytest.raises(TransientError):
                await reader.read(pages(table), PLENTY)

    asyncio.run(read())


KEYS: dict[str, tuple[str, str, list[str]]] = {
    "int": ("int", "", ["-2147483648", "0", "7"]),
    "bigint": ("bigint", "", ["-9223372036854775808", "9223372036854775807"]),
    "uuid": ("uuid", "", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    "text": (
        "text",
        "",
        ["it's", "back\\slash", "\\x41", "new\nline", 'quote"d', "", "%s {} $1", "ünï\u2028", "--", "/*"],
    ),
    "numeric": ("numeric", "", ["1.50", "-0.000000000000000000001", "NaN"]),
    "timestamptz": (
        "timestamptz",
        "",
        ["2024-02-29 12:00:00.123456+00", "0044-03-15 00:00:00+00 BC", "infinity"],
    ),
    "bytea": ("bytea", "", ["\\x00ff27", "\\x", "\\x5c78"]),
    "enum": (
        "public.mood",
        "CREATE TYPE public.mood AS ENUM ('it''s', 'so\\so', 'Ok')",
        ["it's", "so\\so", "Ok"],
    ),
    "domain": ("public.word", "CREATE DOMAIN public.word AS text CHECK (value <> 'x')", ["it's", "a"]),
    "char": ("char(5)", "", ["ab   ", "     ", "it's "]),
    "float8": ("float8", "", ["0.1", "1e-323", "NaN", "Infinity", "3.0000000000000004"]),
    "bool": ("bool", "", ["t", "f"]),
    "bit": ("bit(3)", "", ["101"]),
    "inet": ("inet", "", ["10.0.0.1", "10.0.0.0/8", "::1"]),
    "array": ("text[]", "", ['{a,"b,c",NULL,"\\\\"}', "{}"]),
    "range": ("int4range", "", ["[1,5)", "empty"]),
    "composite": (
        "public.pair",
        "CREATE TYPE public.pair AS (a int, b text)",
        ["(1,it's)", '(2,"a b")', "(,)"],
    ),
    "interval": ("interval", "", ["1 mon", "-1 days +02:03:04"]),
    "name": ('"char"', "", ["a", "'"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_row_is_found_by_its_key_as_text_and_in_binary_form(database: Database, kind: str):
    # GIVEN rows with these keys, and others
    column, prepare, values = KEYS[kind]
    if prepare:
        database.execute(prepare)
    create(database, f"id {column} PRIMARY KEY, no int")
    with database.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for number, value in enumerate(values):
            connection.execute("INSERT INTO t VALUES (%s, %s)", (value, number))
    binary = binary_keys(database)

    async def read() -> None:
        table = (await look(database))["public.t"]
        types = await types_of(database, table)
        async with opened(database, types=types) as reader:
            for number, value in enumerate(values):
                # WHEN one is asked for, THEN it comes, and no other
                for key in ((False, value.encode()), (True, binary[number])):
                    (line,) = lines(await reader.read(KeyQuery(table, ("id",), ((key,),)), PLENTY))
                    assert line.endswith(b"\t%d" % number)
            # AND all of them at once, in both forms
            mixed = tuple(
                ((True, binary[number]),) if number % 2 else ((False, value.encode()),)
                for number, value in enumerate(values)
            )
            answer = await reader.read(KeyQuery(table, ("id",), mixed), PLENTY)
            assert len(lines(answer)) == len(values)
            assert isinstance(answer, Rows)
            assert answer.seen is not None

    asyncio.run(read())


def binary_keys(database: Database) -> dict[int, bytes]:
    """The values as pgoutput's binary form has them: what the type's send function gives."""
    with database.connect() as connection:
        found = connection.pgconn.exec_params(
            b"SELECT no::text, id FROM t", [], result_format=pq.Format.BINARY
        )
        assert found.status == pq.ExecStatus.TUPLES_OK, found.error_message
        return {
            int(found.get_value(row, 0) or b"0"): found.get_value(row, 1) or b""
            for row in range(found.ntuples)
        }


def test_a_key_of_several_columns_and_of_a_type_of_an_extension_is_found_by_its_index(database: Database):
    available = database.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'")
    if available:
        database.execute("CREATE EXTENSION citext")
    kind = "citext" if available else "text"
    create(database, f"a {kind}, b int, no int, PRIMARY KEY (a, b)")
    database.execute("INSERT INTO t SELECT 'Key ' || g % 100, g, g FROM generate_series(1, 5000) g")
    database.execute("ANALYZE t")

    async def read() -> Answer:
        table = (await look(database))["public.t"]
        async with opened(database) as reader:
            asked = keys(
                table,
                ("key 7" if available else "Key 7", "107"),
                ("Key 8", "8"),
                ("Key 8", "9"),
                columns=("a", "b"),
            )
            return await reader.read(asked, PLENTY)

    # GIVEN no other way than by the index
    database.execute("ALTER DATABASE " + database.name + " SET enable_seqscan = off")
    assert [line.split(b"\t")[-1] for line in lines(asyncio.run(read()))] == [b"107", b"8"]


def test_rows_of_a_partitioned_table_are_found_by_key_wherever_they_are(database: Database):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    for leaf, bounds in (("a", "0) TO (10"), ("b", "10) TO (20")):
        database.execute(f"CREATE TABLE t_{leaf} PARTITION OF t FOR VALUES FROM ({bounds})")
    database.execute("INSERT INTO t VALUES (1, 'one'), (11, 'eleven')")
    database.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = true)")

    async def read() -> tuple[Answer, list[Answer], Answer]:
        table = (await look(database))["public.t"]
        assert table.partitioned
        async with opened(database) as reader:
            found = await reader.read(keys(table, ("1",), ("11",)), PLENTY)
            by_pages = [await reader.read(pages(table, part=part), PLENTY) for part in (0, 1)]
            database.execute("ALTER TABLE t ADD more int")
            return found, by_pages, await reader.read(pages(table, part=1), PLENTY)

    found, by_pages, altered = asyncio.run(read())
    assert lines(found) == [b"1\tone", b"11\televen"]
    assert [lines(each) for each in by_pages] == [[b"1\tone"], [b"11\televen"]]
    assert isinstance(altered, Changed)


def test_conditions_keep_to_their_own_lines_and_brackets(database: Database):
    create(database)
    database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 10) g")

    async def read() -> None:
        table = (await look(database))["public.t"]
        async with opened(database) as reader:
            for conditions, ids in (
                (("id > 3", "id < 6 -- and no more"), {b"4", b"5"}),
                (("id = 1 OR id = 2", "id = 2 OR id = 3"), {b"2"}),
                (("", "note LIKE '%x%' AND id = 7 /* {} %s */"), {b"7"}),
            ):
                found = lines(await reader.read(pages(table, 0, 10, *conditions), PLENTY))
                assert {line.split(b"\t")[0] for line in found} == ids
                found = lines(
                    await reader.read(
                        replace(keys(table, *((str(i),) for i in range(20))), conditions=conditions), PLENTY
                    )
                )
                assert {line.split(b"\t")[0] for line in found} == ids

    asyncio.run(read())
