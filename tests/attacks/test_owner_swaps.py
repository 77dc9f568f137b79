"""A published table becomes something else while cdcd reads it: nothing of the owner runs, no row of it is sent."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.core.snapshot.reading import Answer, Changed, KeyQuery, PageQuery, Refused, SourceTable
from tests.attacks.owners import PLENTY, READS, Read, Stage, keys, pages, staged
from tests.integration.conftest import Database

GAINS: Final = "the rows of other owners' tables, and columns that are hashed or left out"

_VIEW: Final = ("CREATE VIEW own.t AS SELECT mal.evil(1) AS id, 'x'::text AS note, '(0,1)'::tid AS ctid",)
WITHSTOOD: Final = ("foreign table", "table with a policy that calls a function")
"""Swaps that gained nothing on commit 99c61843 either."""

SWAPS: Final[dict[str, tuple[str, ...]]] = {
    "view": ("ALTER TABLE own.t RENAME TO t2", *_VIEW),
    "view with a barrier": (
        "ALTER TABLE own.t RENAME TO t2",
        "CREATE VIEW own.t WITH (security_barrier) AS SELECT id, note, ctid FROM own.t2 WHERE mal.evil_check(id)",
    ),
    "view over the table itself": (
        "ALTER TABLE own.t RENAME TO t2",
        "CREATE VIEW own.t AS SELECT mal.evil(id) AS id, note, ctid FROM own.t2",
    ),
    "view of another schema with the name": (
        "ALTER SCHEMA own RENAME TO gone",
        "CREATE SCHEMA own",
        "CREATE VIEW own.t AS SELECT mal.evil(1) AS id, 'x'::text AS note, '(0,1)'::tid AS ctid",
    ),
    "foreign table": (
        "ALTER TABLE own.t RENAME TO t2",
        "CREATE FOREIGN TABLE own.t (id int, note text) SERVER nowhere",
    ),
    "table with an index that calls a function": (
        "ALTER TABLE own.t RENAME TO t2",
        "CREATE TABLE own.t (id int PRIMARY KEY, note text)",
        "CREATE INDEX ON own.t ((id + mal.evil(1)))",
    ),
    "table with a policy that calls a function": (
        "ALTER TABLE own.t RENAME TO t2",
        "CREATE TABLE own.t (id int PRIMARY KEY, note text)",
        "ALTER TABLE own.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON own.t USING (mal.evil_check(id))",
    ),
}


@pytest.fixture
def stage(database: Database, unique: str) -> Iterator[Stage]:
    with staged(database, unique) as stage:
        stage.owner("CREATE TABLE own.t (id int PRIMARY KEY, note text)", "INSERT INTO own.t VALUES (1, 'a')")
        database.execute("CREATE FOREIGN DATA WRAPPER nothing")
        database.execute("CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing")
        database.execute(f"GRANT USAGE ON FOREIGN SERVER nowhere TO {stage.mallory}")
        database.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO {stage.mallory}')
        stage.publish()
        yield stage


async def swapped_while_it_waits(stage: Stage, table: SourceTable, read: Read, swap: str) -> Answer:
    """Swap the table while the reader waits for its lock."""
    with psycopg.connect(stage.database.dsn(user=stage.mallory)) as holder:
        holder.execute("LOCK TABLE own.t IN ACCESS EXCLUSIVE MODE")

        async def attack() -> None:
            await waits(stage)
            for statement in SWAPS[swap]:
                holder.execute(statement)
            holder.execute(f"GRANT USAGE ON SCHEMA own TO {stage.ops}")
            holder.execute(f"GRANT SELECT ON own.t TO {stage.ops}")
            holder.commit()

        return await read(stage, table, attack())


async def waits(stage: Stage) -> None:
    """Wait until the reader waits for a lock."""
    while not stage.database.execute(  # noqa: ASYNC110  the server tells nobody who waits
        f"SELECT FROM pg_stat_activity WHERE usename = '{stage.ops}' AND wait_event_type = 'Lock'"
    ):
        await asyncio.sleep(0.02)


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.worst
@pytest.mark.parametrize("way", READS)
def test_a_view_that_takes_the_name_while_the_reader_waits_for_the_lock_is_not_read(stage: Stage, way: str):
    async def read() -> Answer:
        return await swapped_while_it_waits(stage, await stage.table(), READS[way], "view")

    answer = asyncio.run(read())
    assert isinstance(answer, Changed), answer
    assert stage.loot() == []


@pytest.mark.parametrize(
    "swap",
    [
        pytest.param(
            name,
            marks=pytest.mark.attack(gains=GAINS, before="withstood" if name in WITHSTOOD else "failed"),
        )
        for name in SWAPS
        if name != "view"
    ],
)
def test_whatever_takes_the_name_while_the_reader_waits_for_the_lock_is_not_read(stage: Stage, swap: str):
    async def read() -> Answer:
        return await swapped_while_it_waits(stage, await stage.table(), READS["beside the stream"], swap)

    answer = asyncio.run(read())
    assert isinstance(answer, Changed | Refused), answer
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="failed")
def test_a_view_that_takes_the_name_while_a_row_is_read_by_its_key_is_not_read(stage: Stage):
    async def by_keys(stage: Stage, table: SourceTable, attack: Any) -> Answer:
        reader = await stage.reader()
        try:
            task = asyncio.create_task(reader.read(keys(table, ("1",)), PLENTY))
            await attack
            return await task
        finally:
            reader.close()

    async def read() -> Answer:
        return await swapped_while_it_waits(stage, await stage.table(), by_keys, "view")

    assert isinstance(asyncio.run(read()), Changed)
    assert stage.loot() == []


RENAMED_SCHEMA: Final[dict[str, str]] = {
    "view": "CREATE VIEW own.t AS SELECT mal.evil(1) AS id, 'x'::text AS note, '(0,1)'::tid AS ctid",
    "foreign table": "CREATE FOREIGN TABLE own.t (id int, note text) SERVER nowhere",
    "table": "CREATE TABLE own.t (id int PRIMARY KEY, note text)",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("view", marks=pytest.mark.attack(gains=GAINS, before="failed")),
        pytest.param("foreign table", marks=pytest.mark.attack(gains=GAINS, before="withstood")),
        pytest.param("table", marks=pytest.mark.attack(gains="rows of another table", before="withstood")),
    ],
)
@pytest.mark.parametrize("query", ["whole table", "pages", "key"])
def test_a_schema_that_is_renamed_after_the_check_gives_no_row(
    stage: Stage, query: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    # ALTER SCHEMA RENAME waits for no lock of a table, so it can come between check and COPY.
    real = SnapshotReader._copy

    async def renamed_before(self: SnapshotReader, *arguments: Any) -> Answer:
        stage.owner(
            "ALTER SCHEMA own RENAME TO gone",
            "CREATE SCHEMA own",
            RENAMED_SCHEMA[kind],
            f"GRANT USAGE ON SCHEMA own TO {stage.ops}",
            f"GRANT SELECT ON own.t TO {stage.ops}",
        )
        return await real(self, *arguments)

    async def read() -> Answer:
        if query == "pages":
            stage.owner("INSERT INTO own.t SELECT g, repeat('x', 500) FROM generate_series(2, 100) g")
        table = await stage.table()
        monkeypatch.setattr(SnapshotReader, "_copy", renamed_before)
        reader = await stage.reader()
        try:
            asked: dict[str, PageQuery | KeyQuery] = {
                "whole table": pages(table),
                "pages": pages(table, begin=1),
                "key": keys(table, ("1",)),
            }
            return await reader.read(asked[query], PLENTY)
        finally:
            reader.close()

    answer = asyncio.run(read())
    assert isinstance(answer, Changed), answer
    assert stage.loot() == []
