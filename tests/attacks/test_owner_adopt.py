"""Owners of tables that `cdcd adopt` looks into: it reads the values of columns that choose topics, by cdcd's role."""

import asyncio
from collections.abc import Iterator
from typing import Final

import psycopg
import pytest

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.core.errors import CdcdError
from tests.attacks.owners import Stage, staged
from tests.integration.conftest import Database

pytestmark = pytest.mark.postgres(only=[13, 18])

GAINS: Final = "the rights of the role that adopts a connector"

_CAST: Final = (
    "CREATE FUNCTION own.cast_text(own.k) RETURNS text LANGUAGE plpgsql AS "
    "$$BEGIN PERFORM mal.steal(); RETURN 'a'; END$$"
)

ATTACKS: Final[dict[str, tuple[str, ...]]] = {
    "an index": (
        "CREATE TABLE own.t (id int PRIMARY KEY, kind text)",
        "CREATE INDEX ON own.t ((id + mal.evil(1)))",
    ),
    "a cast to text": (
        "CREATE TYPE own.k AS ENUM ('a', 'b')",
        _CAST,
        "CREATE CAST (own.k AS text) WITH FUNCTION own.cast_text(own.k)",
        "CREATE TABLE own.t (id int PRIMARY KEY, kind own.k)",
    ),
    "a policy": (
        "CREATE TABLE own.t (id int PRIMARY KEY, kind text)",
        "ALTER TABLE own.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON own.t USING (mal.evil(true))",
    ),
}
AFTERWARDS: Final[dict[str, tuple[str, ...]]] = {
    "a view with the table's name": (
        "ALTER TABLE own.t RENAME TO t2",
        "CREATE VIEW own.t AS SELECT mal.evil(1) AS id, 'x'::text AS kind",
    ),
}
"""What the owner does after the table was described."""


@pytest.fixture
def stage(database: Database, unique: str) -> Iterator[Stage]:
    with staged(database, unique) as found:
        yield found


async def values(stage: Stage, *afterwards: str) -> list[str]:
    """The values of `own.t.kind`, as `cdcd adopt` reads them; none if PostgreSQL refuses."""
    connection = await connect(parse_dsn(stage.dsn), application_name="attacked", connect_timeout_s=10)
    try:
        row = stage.database.execute("SELECT 'own.t'::regclass::oid::int8")[0]
        (relation,) = await catalog.relations(connection, [row[0]])
        stage.owner(*afterwards)
        if afterwards:
            stage.database.execute(f"GRANT SELECT ON own.t TO {stage.ops}")
        try:
            return await catalog.distinct_values(connection, relation, "kind", 100)
        except CdcdError:
            return []
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name, marks=pytest.mark.attack(gains=GAINS, before="withstood"))
        for name in (*ATTACKS, *AFTERWARDS)
    ],
)
def test_reading_the_values_of_a_column_runs_nothing_of_the_owner(stage: Stage, name: str):
    stage.owner(*ATTACKS.get(name, ("CREATE TABLE own.t (id int PRIMARY KEY, kind text)",)))
    stage.owner("INSERT INTO own.t VALUES (1, 'a'), (2, 'b'), (3, 'a'), (4, NULL)")
    stage.publish()
    found = asyncio.run(values(stage, *AFTERWARDS.get(name, ())))
    assert stage.loot() == []
    assert found == (["a", "b"] if name in ("an index", "a cast to text") else [])


@pytest.mark.attack(gains="the memory of the machine, by a table with many values", before="withstood")
def test_no_more_values_are_kept_than_are_asked_for(stage: Stage):
    stage.owner("CREATE TABLE own.t (id int PRIMARY KEY, kind text)")
    with psycopg.connect(stage.database.dsn(), autocommit=True) as sql:
        sql.execute("INSERT INTO own.t SELECT g, g || repeat('x', 1000) FROM generate_series(1, 20000) g")
    stage.publish()
    assert len(asyncio.run(values(stage))) == 100
