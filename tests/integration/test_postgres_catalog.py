"""Keys and types as real catalogs have them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from cdcd.adapters.postgres.catalog import describe, dropped, relations, types
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from tests.integration.conftest import Database

T = TypeVar("T")


def ask(database: Database, question: Callable[[Connection], Awaitable[T]]) -> T:
    async def run() -> T:
        connection = await connect(parse_dsn(database.dsn()), application_name="test")
        try:
            return await question(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def oid_of(database: Database, what: str, name: str) -> int:
    ((found,),) = database.execute(f"SELECT '{name}'::{what}::oid")
    assert isinstance(found, int)
    return found


def test_keys_are_told_in_the_order_of_their_index(database: Database):
    database.execute('CREATE SCHEMA "Größe"')
    tables = {
        '"Größe"."Kunde x"': ('("Nr" int, b int, PRIMARY KEY (b, "Nr"))', TableDescription(("b", "Nr"))),
        "nothing": ("(a int)", TableDescription()),
        "included": (
            "(a int, b int, c int, PRIMARY KEY (c) INCLUDE (a), UNIQUE (b))",
            TableDescription(("c",), ()),
        ),
        "unique_only": ("(a int NOT NULL, b int NOT NULL, UNIQUE (b, a))", TableDescription((), ("b", "a"))),
        "both_keys": ("(a int PRIMARY KEY, b int NOT NULL UNIQUE)", TableDescription(("a",), ("b",))),
        "deferred": ("(a int NOT NULL, UNIQUE (a) DEFERRABLE)", TableDescription()),
        "deferred_primary": (
            "(a int, b int NOT NULL, PRIMARY KEY (a) DEFERRABLE, UNIQUE (b))",
            TableDescription((), ("b",)),
        ),
        "partitioned": (
            "(a int, b int, PRIMARY KEY (b, a)) PARTITION BY RANGE (a)",
            TableDescription(("b", "a"), is_partitioned=True),
        ),
    }
    for name, (definition, _) in tables.items():
        database.execute(f"CREATE TABLE {name} {definition}")
    database.execute("CREATE TABLE odd (a int NOT NULL, b int NOT NULL, c int)")
    database.execute("CREATE UNIQUE INDEX ON odd (a) WHERE b > 0")
    database.execute("CREATE UNIQUE INDEX ON odd ((a + 1))")
    database.execute("CREATE UNIQUE INDEX ON odd (c)")
    expected = {oid_of(database, "regclass", name): description for name, (_, description) in tables.items()}
    expected[oid_of(database, "regclass", "odd")] = TableDescription()
    expected[4_000_000_000] = TableDescription()
    found = ask(database, lambda connection: describe(connection, expected.keys()))
    assert {oid: replace(one, columns=(), last_id=0) for oid, one in found.items()} == expected


@pytest.mark.postgres(since=18)
def test_a_column_that_may_have_null_in_older_rows_is_in_no_unique_key(database: Database):
    database.execute("CREATE TABLE t (a int UNIQUE, b int NOT NULL UNIQUE)")
    database.execute("INSERT INTO t VALUES (NULL, 1), (NULL, 2)")
    database.execute("ALTER TABLE t ADD CONSTRAINT a_is_there NOT NULL a NOT VALID")
    oid = oid_of(database, "regclass", "t")

    def unique_key() -> tuple[str, ...]:
        return ask(database, lambda connection: describe(connection, [oid]))[oid].unique_key

    assert unique_key() == ("b",)
    database.execute("UPDATE t SET a = b")
    database.execute("ALTER TABLE t VALIDATE CONSTRAINT a_is_there")
    assert unique_key() == ("a",)


def test_of_a_partitioned_table_it_is_told_what_its_partitions_do_not_send(database: Database):
    database.execute(
        "CREATE TABLE whole (id int, code int NOT NULL, note text, PRIMARY KEY (id) INCLUDE (note)) "
        "PARTITION BY RANGE (id)"
    )
    database.execute("CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10)")
    database.execute(
        "CREATE TABLE high PARTITION OF whole FOR VALUES FROM (10) TO (90) PARTITION BY RANGE (id)"
    )
    database.execute("CREATE TABLE highest PARTITION OF high FOR VALUES FROM (10) TO (90)")
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    oid = oid_of(database, "regclass", "whole")

    def unsent() -> dict[str, str]:
        return dict(ask(database, lambda connection: describe(connection, [oid]))[oid].unsent)

    # The primary key, without what its index includes
    assert unsent() == {"code": "public.highest", "note": "public.highest"}
    database.execute("ALTER TABLE highest REPLICA IDENTITY FULL")
    assert unsent() == {"code": "public.low", "note": "public.low"}
    database.execute("CREATE UNIQUE INDEX by_code ON low (code)")
    database.execute("ALTER TABLE low REPLICA IDENTITY USING INDEX by_code")
    assert unsent() == {"id": "public.low", "note": "public.low"}
    for identity in ("NOTHING", "FULL"):
        database.execute(f"ALTER TABLE low REPLICA IDENTITY {identity}")
        assert unsent() == {}
    # AND the columns of an index's key are the replica identity
    (low,) = ask(database, lambda connection: relations(connection, [oid_of(database, "regclass", "low")]))
    assert all(column.is_key for column in low.columns)
    database.execute("ALTER TABLE low REPLICA IDENTITY DEFAULT")
    (low,) = ask(database, lambda connection: relations(connection, [low.oid]))
    assert [column.name for column in low.columns if column.is_key] == ["id"]


def test_tables_that_were_dropped_are_found_once_the_drop_is_committed(database: Database):
    database.execute("CREATE TABLE t (id int); CREATE TABLE gone (id int)")
    oids = [oid_of(database, "regclass", name) for name in ("t", "gone")]
    with database.connect(autocommit=False) as session:
        session.execute("DROP TABLE gone")
        assert ask(database, lambda connection: dropped(connection, oids)) == ()
        session.commit()
    assert ask(database, lambda connection: dropped(connection, oids)) == (oids[1],)


def test_columns_are_told_with_their_numbers_and_what_older_rows_hold(database: Database):
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, gone int, price numeric(12,2)[], ä text)")
    database.execute(
        "ALTER TABLE t DROP gone, ADD note text DEFAULT 'it''s {,} \"so\"', ADD days int[] DEFAULT '{1,2}'"
    )
    oid = oid_of(database, "regclass", "t")
    assert ask(database, lambda connection: describe(connection, [oid]))[oid].columns == (
        CatalogColumn("id", 1, "bigint", 20, 0, None),
        CatalogColumn("price", 3, "numeric(12,2)[]", 1231, 1, None),
        CatalogColumn("ä", 4, "text", 25, 0, None),
        CatalogColumn("note", 5, "text", 25, 0, 'it\'s {,} "so"'),
        CatalogColumn("days", 6, "integer[]", 1007, 1, "{1,2}"),
    )


def test_a_table_that_was_written_anew_is_told_from_one_that_was_not(database: Database):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    oid = oid_of(database, "regclass", "t")

    def look() -> tuple[int, int, str | None]:
        found = ask(database, lambda connection: describe(connection, [oid]))[oid]
        return found.last_id, found.rewritten, found.columns[-1].missing

    database.execute("ALTER TABLE t ADD a int DEFAULT 3")
    assert look() == (3, 0, "3")
    database.execute("VACUUM FULL t")
    first, missing = look()[1:]
    assert (first != 0, missing) == (True, None)
    database.execute("ALTER TABLE t DROP a, ADD b int DEFAULT 5")
    assert look() == (4, first, "5")
    database.execute("ALTER TABLE t ALTER n TYPE bigint")
    assert look()[1] not in {0, first}


def test_a_partitioned_table_has_the_defaults_and_the_rewrites_of_its_partitions(database: Database):
    database.execute(
        "CREATE TABLE r (id int, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);"
        "CREATE TABLE r11 PARTITION OF r1 FOR VALUES FROM (0) TO (5);"
        "CREATE TABLE r12 PARTITION OF r1 FOR VALUES FROM (5) TO (10);"
        "ALTER TABLE r ADD a text DEFAULT 'x,y', ADD b int;"
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)"
    )
    oids = [oid_of(database, "regclass", name) for name in ("r", "r1", "r11", "r2")]

    def look() -> list[tuple[int, list[str | None]]]:
        found = ask(database, lambda connection: describe(connection, oids))
        return [(found[oid].rewritten, [each.missing for each in found[oid].columns]) for oid in oids]

    older = [None, None, "x,y", None]
    assert look() == [(0, older), (0, older), (0, older), (0, [None] * 4)]
    # WHEN one is written again, its sister still has the values
    database.execute("VACUUM FULL r11")
    (root, of_root), (branch, of_branch), (leaf, of_leaf), new = look()
    assert (of_root, of_branch, of_leaf) == (older, older, [None] * 4)
    assert 0 not in {root, branch, leaf}
    assert new == (0, [None] * 4)
    database.execute("VACUUM FULL r12")
    assert look()[0][0] not in {0, root}
    assert look()[0][1] == [None] * 4


def test_types_come_with_what_they_are_made_of(database: Database):
    database.execute("CREATE TYPE mood AS ENUM ('a', 'b')")
    database.execute("CREATE DOMAIN price AS numeric(10,2)")
    database.execute("CREATE DOMAIN prices AS price[]")
    database.execute("CREATE TYPE pair AS (x mood, y int)")
    database.execute("CREATE TYPE span AS RANGE (subtype = int8)")
    named = {
        name: oid_of(database, "regtype", name)
        for name in ("mood", "price", "prices", "pair", "span", "price[]")
    }
    found = ask(database, lambda connection: types(connection, [named["prices"], 4_000_000_000]))
    assert found == {
        named["prices"]: TypeDescription(
            named["prices"], "public", "prices", "d", "A", 0, named["price[]"], -1
        ),
        named["price[]"]: TypeDescription(
            named["price[]"], "public", "_price", "b", "A", named["price"], 0, -1
        ),
        named["price"]: TypeDescription(
            named["price"], "public", "price", "d", "N", 0, 1700, ((10 << 16) | 2) + 4
        ),
        1700: BUILTIN_TYPES[1700],
    }
    others = ask(
        database, lambda connection: types(connection, [named["mood"], named["pair"], named["span"]])
    )
    assert {each.name: (each.kind, each.parts) for each in others.values()} == {
        "mood": ("e", ()),
        "pair": ("c", (named["mood"], 23)),
        "span": ("r", (20,)),
        "int4": ("b", ()),
        "int8": ("b", ()),
    }


@pytest.mark.postgres(since=14)
def test_a_multirange_is_made_of_its_range(database: Database):
    database.execute("CREATE TYPE span AS RANGE (subtype = int8)")
    multirange, span = (oid_of(database, "regtype", name) for name in ("span_multirange", "span"))
    found = ask(database, lambda connection: types(connection, [multirange]))
    assert {oid: each.parts for oid, each in found.items()} == {multirange: (span,), span: (20,), 20: ()}


def test_whether_a_type_can_be_sent_in_binary_form_is_known(database: Database):
    database.execute("CREATE EXTENSION seg")
    database.execute("CREATE DOMAIN part AS seg")
    named = [oid_of(database, "regtype", name) for name in ("seg", "part", "seg[]", "aclitem")]
    found = ask(database, lambda connection: types(connection, named))
    assert [found[oid].sends for oid in named] == [False, False, True, False]


def test_the_built_in_types_are_those_of_the_server(database: Database):
    found = ask(database, lambda connection: types(connection, list(BUILTIN_TYPES)))
    # Category Z, for internal types, is younger than 14.
    known = {oid: replace(BUILTIN_TYPES[oid], category=found[oid].category) for oid in found}
    assert known == found
    assert len(found) > 140
