"""Publications of real servers: created when missing, read, never altered."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.adapters.postgres.publication import Publication, ensure_publication, read_publication
from cdcd.core.errors import SourceError
from tests.integration.conftest import Database


@dataclass(frozen=True)
class Ensured:
    """The publication, and whether it was made just now."""

    publication: Publication
    created: bool


def ensure(database: Database, patterns: Sequence[str] | None, user: str = "postgres") -> Ensured:
    async def run() -> Ensured:
        connection = await connect(parse_dsn(database.dsn(user=user)), application_name="test")
        try:
            created = await ensure_publication(connection, "p", patterns)
            publication = await read_publication(connection, "p")
            assert publication is not None
            return Ensured(publication, created)
        finally:
            await connection.close()

    return asyncio.run(run())


def read(database: Database) -> Publication | None:
    async def run() -> Publication | None:
        connection = await connect(parse_dsn(database.dsn()), application_name="test")
        try:
            return await read_publication(connection, "p")
        finally:
            await connection.close()

    return asyncio.run(run())


def names(publication: Publication) -> list[str]:
    return [table.qualified for table in publication.tables]


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute('CREATE SCHEMA "Sales"')
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE TABLE plain (id int)")
    database.execute('CREATE TABLE "Sales"."Odd.Name" (id int)')
    database.execute("CREATE UNLOGGED TABLE unlogged (id int)")
    database.execute("CREATE VIEW view AS SELECT 1")
    database.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)")
    return database


def test_without_patterns_all_tables_are_published_those_to_come_too(shop: Database):
    ensured = ensure(shop, None)
    assert ensured.created
    assert ensured.publication.all_tables
    assert ensured.publication.operations == ("insert", "update", "delete", "truncate")
    assert not ensured.publication.via_root
    shop.execute("CREATE TABLE later (id int)")
    assert {"public.later", "public.orders", "public.leaf", 'Sales."Odd.Name"'} <= set(
        names(ensure(shop, None).publication)
    )


def test_patterns_make_a_list_or_whole_schemas_where_the_server_has_them(shop: Database):
    publication = ensure(shop, ["public.*", 'Sales."Odd.Name"']).publication
    assert names(publication) == ['Sales."Odd.Name"', "public.leaf", "public.orders", "public.plain"]
    shop.execute("CREATE TABLE later (id int)")
    again = ensure(shop, ["public.*"])
    assert not again.created
    assert ("public.later" in names(again.publication)) == (shop.version >= 15)
    assert publication.schemas == (("public",) if shop.version >= 15 else ())


def test_a_role_that_is_no_superuser_gets_a_list_of_what_it_owns(shop: Database):
    role = f"r_{shop.name[-8:]}"
    shop.execute(f"CREATE ROLE {role} LOGIN")
    try:
        by_hand = 'CREATE PUBLICATION "p" FOR TABLE "public"."orders";'
        with pytest.raises(SourceError, match="permission denied for database") as caught:
            ensure(shop, ["public.orders"], role)
        assert by_hand in caught.value.hint
        shop.execute(f"GRANT CREATE ON DATABASE {shop.name} TO {role}")
        with pytest.raises(SourceError, match="must be owner of table") as caught:
            ensure(shop, ["public.orders"], role)
        assert by_hand in caught.value.hint
        with pytest.raises(SourceError, match="ALL TABLES") as caught:
            ensure(shop, None, role)
        assert "superuser" in caught.value.hint
        shop.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {role}")
        shop.execute(f"ALTER TABLE orders OWNER TO {role}")
        assert names(ensure(shop, ["public.ord*"], role).publication) == ["public.orders"]
    finally:
        shop.execute(f"DROP OWNED BY {role} CASCADE")
        shop.execute(f"DROP ROLE {role}")


def test_an_existing_publication_is_left_as_it_is(shop: Database):
    shop.execute(
        "CREATE PUBLICATION p FOR TABLE plain WITH (publish = 'insert', publish_via_partition_root = true)"
    )
    ensured = ensure(shop, ["public.orders"])
    assert not ensured.created
    assert ensured.publication.operations == ("insert",)
    assert ensured.publication.via_root
    assert names(ensured.publication) == ["public.plain"]
    assert ensured.publication.without_identity == ()


def test_what_matches_nothing_is_refused(shop: Database):
    for patterns in (["public.missing"], ["nowhere.*"], ["public.unlogged"], ["public.view"]):
        with pytest.raises(SourceError):
            ensure(shop, patterns)
    assert read(shop) is None


def test_tables_in_which_updates_would_fail_are_found(shop: Database):
    tables = {
        "nothing": ("(id int PRIMARY KEY)", "REPLICA IDENTITY NOTHING", False),
        "full_one": ("(id int)", "REPLICA IDENTITY FULL", True),
        "indexed": ("(id int CONSTRAINT k UNIQUE NOT NULL)", "REPLICA IDENTITY USING INDEX k", True),
        "unindexed": ("(id int CONSTRAINT k2 UNIQUE NOT NULL)", "REPLICA IDENTITY USING INDEX k2", False),
        "deferred": ("(id int, PRIMARY KEY (id) DEFERRABLE)", "REPLICA IDENTITY DEFAULT", False),
        "deferred_full": ("(id int, PRIMARY KEY (id) DEFERRABLE)", "REPLICA IDENTITY FULL", True),
    }
    for name, (definition, identity, _) in tables.items():
        shop.execute(f"CREATE TABLE {name} {definition}")
        shop.execute(f"ALTER TABLE {name} {identity}")
    shop.execute("ALTER TABLE unindexed DROP CONSTRAINT k2")
    expected = {name: has for name, (_, _, has) in tables.items()} | {
        "orders": True,
        "plain": False,
        "leaf": True,
    }
    publication = ensure(shop, ["public.*"]).publication
    assert {table.name: table.has_identity for table in publication.tables} == expected
    # A deferrable primary key is none.
    assert {table.name for table in publication.tables if table.has_key} == {
        "indexed",
        "nothing",
        "orders",
        "leaf",
    }
    for name, has in expected.items():
        if name != "leaf":
            shop.execute(f"INSERT INTO {name} VALUES (1)")
            if has:
                shop.execute(f"UPDATE {name} SET id = 2")
            else:
                with pytest.raises(Exception, match="replica identity"):
                    shop.execute(f"UPDATE {name} SET id = 2")


@pytest.mark.postgres(since=15)
def test_column_lists_and_row_filters_are_told(shop: Database):
    shop.execute("CREATE TABLE wide (id int PRIMARY KEY, b int, c int)")
    shop.execute("CREATE PUBLICATION p FOR TABLE wide (id, b) WHERE (id > 5), TABLE orders")
    publication = read(shop)
    assert publication is not None
    orders, wide = publication.tables
    assert (orders.columns, orders.row_filter) == (None, None)
    assert (wide.columns, wide.row_filter) == (("id", "b"), "(id > 5)")
