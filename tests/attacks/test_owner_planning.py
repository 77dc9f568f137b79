"""Functions that an owner attaches to a table: none of them runs while the table is read as a whole."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import psycopg
import pytest

from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.core.snapshot.reading import Answer, Changed, Refused
from cdcd.tools.verify.source import equality
from tests.attacks.owners import PLENTY, READS, Stage, keys, lines_of, pages, staged, types_of
from tests.integration.conftest import Database

GAINS: Final = "the rows of other owners' tables, and columns that are hashed or left out"

_TABLE: Final = (
    "CREATE TABLE own.t (id int PRIMARY KEY, note text)",
    "INSERT INTO own.t VALUES (1, 'right')",
)
_TRIGGER: Final = (
    "CREATE FUNCTION mal.fire() RETURNS trigger LANGUAGE plpgsql AS "
    "$$BEGIN PERFORM mal.steal(); RETURN NULL; END$$"
)

ATTACHED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "index expression": ("failed", (*_TABLE, "CREATE INDEX ON own.t ((id + mal.evil(1)))")),
    "index predicate": ("failed", (*_TABLE, "CREATE INDEX ON own.t (id) WHERE id > mal.evil(0)")),
    "unique index expression": (
        "failed",
        (*_TABLE, "CREATE UNIQUE INDEX ON own.t ((note || mal.evil('x'::text)))"),
    ),
    "check constraint": ("failed", (*_TABLE, "ALTER TABLE own.t ADD CHECK (id > mal.evil(0))")),
    "default": ("withstood", (*_TABLE, "ALTER TABLE own.t ALTER note SET DEFAULT mal.evil('x'::text)")),
    "trigger": (
        "withstood",
        (
            *_TABLE,
            _TRIGGER,
            "CREATE TRIGGER fire AFTER UPDATE ON own.t FOR EACH STATEMENT EXECUTE FUNCTION mal.fire()",
        ),
    ),
    "rule": ("withstood", (*_TABLE, "CREATE RULE r AS ON UPDATE TO own.t DO ALSO SELECT mal.evil(1)")),
    "generated column": (
        "withstood",
        (
            "CREATE TABLE own.t (id int PRIMARY KEY, note text, g int GENERATED ALWAYS AS (mal.evil(1)) STORED)",
            "INSERT INTO own.t (id, note) VALUES (1, 'right')",
        ),
    ),
    "parent with a child": (
        "withstood",
        (
            *_TABLE,
            "CREATE TABLE own.child () INHERITS (own.t)",
            "CREATE INDEX ON own.child ((id + mal.evil(1)))",
        ),
    ),
    "partition key": (
        "failed",
        (
            "CREATE TABLE own.t (id int, note text) PARTITION BY RANGE ((id + mal.evil(1)))",
            "CREATE TABLE own.leaf PARTITION OF own.t DEFAULT",
            "INSERT INTO own.t VALUES (1, 'right')",
        ),
    ),
    "index of a partition": (
        "failed",
        (
            "CREATE TABLE own.t (id int, note text) PARTITION BY LIST (id)",
            "CREATE TABLE own.leaf PARTITION OF own.t DEFAULT",
            "CREATE INDEX ON own.leaf ((id + mal.evil(1)))",
            "INSERT INTO own.t VALUES (1, 'right')",
        ),
    ),
}


@pytest.fixture
def stage(database: Database, unique: str) -> Iterator[Stage]:
    with staged(database, unique) as stage:
        yield stage


def publish(stage: Stage) -> None:
    stage.database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA own TO {stage.ops}")
    stage.database.execute("CREATE PUBLICATION p FOR TABLE own.t WITH (publish_via_partition_root = true)")


def read(stage: Stage, way: str) -> Answer:
    async def asked() -> Answer:
        return await READS[way](stage, await stage.table(), None)

    return asyncio.run(asked())


def _attached() -> list[object]:
    return [
        pytest.param(
            name,
            id=name,
            marks=[
                pytest.mark.attack(gains=GAINS, before=before),
                *([pytest.mark.worst] if name == "index expression" else []),
            ],
        )
        for name, (before, _) in ATTACHED.items()
    ]


@pytest.mark.parametrize("name", _attached())
@pytest.mark.parametrize("way", READS)
def test_a_table_that_is_read_as_a_whole_runs_nothing_that_is_attached_to_it(
    stage: Stage, way: str, name: str
):
    # GIVEN that the planner would evaluate CHECK constraints too
    stage.database.execute(f"ALTER ROLE {stage.ops} SET constraint_exclusion = on")
    stage.owner(*ATTACHED[name][1])
    publish(stage)
    assert lines_of(read(stage, way)) == [b"1\tright"]
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.postgres(since=14)
@pytest.mark.parametrize("way", READS)
def test_expressions_of_statistics_are_not_evaluated(stage: Stage, way: str):
    stage.owner(*_TABLE, "CREATE STATISTICS own.s ON (id + mal.evil(1)), note FROM own.t", "ANALYZE own.t")
    publish(stage)
    assert lines_of(read(stage, way)) == [b"1\tright"]
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="withstood")
@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("force", [True, False])
def test_a_policy_is_not_evaluated_and_its_table_is_refused(stage: Stage, way: str, force: bool):
    stage.database.execute(f"ALTER ROLE {stage.ops} SET row_security = on")
    stage.owner(
        *_TABLE,
        "CREATE POLICY p ON own.t USING (mal.evil_check(id))",
        f"ALTER TABLE own.t ENABLE ROW LEVEL SECURITY{', FORCE ROW LEVEL SECURITY' if force else ''}",
    )
    publish(stage)
    answer = read(stage, way)
    assert isinstance(answer, Refused)
    assert "row-level security" in answer.reason
    assert stage.loot() == []


def _shadow(signature: str, returns: str, value: str) -> str:
    return (
        f"CREATE FUNCTION mal.{signature} RETURNS {returns} LANGUAGE plpgsql AS "
        f"$$BEGIN PERFORM mal.steal(); RETURN {value}; END$$"
    )


_SHADOWS: Final = (
    _shadow("to_regclass(text)", "regclass", "pg_catalog.to_regclass($1)"),
    _shadow("format(text, text)", "text", "$2"),
    _shadow("same(int, int)", "boolean", "$1 OPERATOR(pg_catalog.=) $2"),
    "CREATE OPERATOR mal.= (LEFTARG = int, RIGHTARG = int, FUNCTION = mal.same)",
    "CREATE DOMAIN mal.tid AS text CHECK (mal.evil_check(VALUE))",
    "CREATE VIEW mal.pg_attribute AS SELECT attrelid, attname, attnum, mal.evil(1) FROM pg_catalog.pg_attribute",
    "CREATE VIEW mal.pg_publication AS SELECT a.*, mal.evil(1) FROM pg_catalog.pg_publication a",
)


@pytest.mark.attack(gains=GAINS, before="withstood")
@pytest.mark.parametrize("way", [*READS, "key"])
def test_names_in_front_of_those_of_postgresql_are_not_found(stage: Stage, way: str):
    stage.owner(*_TABLE, *_SHADOWS, f"GRANT SELECT ON ALL TABLES IN SCHEMA mal TO {stage.ops}")
    publish(stage)
    stage.database.execute(f"ALTER ROLE {stage.ops} SET search_path = mal, pg_catalog")
    answer = asyncio.run(by_key(stage, "1")) if way == "key" else read(stage, way)
    assert lines_of(answer) == [b"1\tright"]
    assert stage.loot() == []


async def by_key(stage: Stage, value: str) -> Answer:
    table = await stage.table()
    reader = await stage.reader()
    try:
        return await reader.read(keys(table, (value,)), PLENTY)
    finally:
        reader.close()


_FOREIGN: Final = (
    "CREATE FOREIGN DATA WRAPPER nothing",
    "CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing",
    "GRANT USAGE ON FOREIGN SERVER nowhere TO {mallory}",
)
_PARTITIONED: Final = (
    "CREATE TABLE own.t (id int, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE own.one PARTITION OF own.t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE own.two PARTITION OF own.t FOR VALUES FROM (10) TO (20)",
    "INSERT INTO own.t VALUES (1, 'right'), (11, 'right')",
)
_ATTACHED_FOREIGN: Final = (
    "CREATE FOREIGN TABLE own.far PARTITION OF own.t FOR VALUES FROM (20) TO (30) SERVER nowhere"
)


@pytest.mark.attack(
    gains="keys of the table on the owner's server, and the end of the snapshot", before="failed"
)
def test_a_foreign_table_as_a_partition_is_not_read_and_the_rows_of_the_others_are_found(stage: Stage):
    for statement in _FOREIGN:
        stage.database.execute(statement.format(mallory=stage.mallory))
    stage.owner(*_PARTITIONED, _ATTACHED_FOREIGN)
    publish(stage)

    async def read() -> list[Answer]:
        table = await stage.table()
        reader = await stage.reader()
        try:
            found = [await reader.read(pages(table, part), PLENTY) for part in range(len(table.parts))]
            return [*found, await reader.read(keys(table, ("1",), ("11",), ("21",)), PLENTY)]
        finally:
            reader.close()

    one, two, both = [lines_of(answer) for answer in asyncio.run(read())]
    assert one + two == both == [b"1\tright", b"11\tright"]


@pytest.mark.attack(gains="keys of the table on the owner's server", before="failed")
def test_a_foreign_table_that_is_attached_after_the_check_is_not_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    for statement in _FOREIGN:
        stage.database.execute(statement.format(mallory=stage.mallory))
    stage.owner(*_PARTITIONED)
    publish(stage)
    real = SnapshotReader._copy

    async def attached_before(self: SnapshotReader, *arguments: Any) -> Answer:
        # ATTACH PARTITION does not wait for readers of the table, and CREATE … PARTITION OF does.
        stage.owner(
            "CREATE FOREIGN TABLE own.far (id int, note text) SERVER nowhere",
            "ALTER TABLE own.t ATTACH PARTITION own.far FOR VALUES FROM (20) TO (30)",
        )
        return await real(self, *arguments)

    monkeypatch.setattr(SnapshotReader, "_copy", attached_before)
    # The planner leaves out a partition that cannot have the key, so this key is one of the foreign table.
    assert isinstance(asyncio.run(by_key(stage, "21")), Changed)
    monkeypatch.undo()
    assert lines_of(asyncio.run(by_key(stage, "1"))) == [b"1\tright"]


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.postgres(only=[13])
@pytest.mark.parametrize("way", READS)
def test_a_rule_that_makes_a_view_of_the_table_itself_is_not_read(stage: Stage, way: str):
    # Before PostgreSQL 16, a rule makes a view of an empty table, which keeps its oid.
    stage.owner("CREATE TABLE own.t (id int, note text)")
    publish(stage)

    async def asked() -> Answer:
        table = await stage.table()
        stage.owner(
            "CREATE RULE \"_RETURN\" AS ON SELECT TO own.t DO INSTEAD SELECT mal.evil(1) AS id, 'x'::text AS note"
        )
        return await READS[way](stage, table, None)

    assert isinstance(asyncio.run(asked()), Changed)
    assert stage.loot() == []


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.parametrize("of", ["own.k", "own.d"])
def test_the_condition_of_a_repair_casts_nothing_to_the_owners_type(stage: Stage, of: str):
    # GIVEN a key of an enum, or of a domain over it, with a cast of the owner that PostgreSQL would choose
    stage.owner(
        "CREATE TYPE own.k AS ENUM ('it''s', 'b')",
        "CREATE DOMAIN own.d AS own.k",
        "CREATE FUNCTION own.cast_k(own.k) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
        "$$BEGIN PERFORM mal.steal(); RETURN 'x'; END$$",
        "CREATE CAST (own.k AS text) WITH FUNCTION own.cast_k(own.k) AS IMPLICIT",
        f"CREATE TABLE own.t (id {of} PRIMARY KEY, note text)",
        "INSERT INTO own.t VALUES ('it''s', 'right'), ('b', 'other')",
    )
    publish(stage)

    async def asked() -> Answer:
        # WHEN the row is asked for with the condition that `cdcd verify --repair` makes
        table = await stage.table()
        how = equality(table.relation.columns[0].type_oid, await types_of(stage, table))
        reader = await stage.reader()
        try:
            query = replace(
                pages(table), conditions=(f"{how.left('id')} = {how.right(chr(39).join(('it', 's')))}",)
            )
            return await reader.read(query, PLENTY)
        finally:
            reader.close()

    # THEN it comes
    assert lines_of(asyncio.run(asked())) == [b"it's\tright"]
    assert stage.loot() == []


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            name,
            marks=pytest.mark.attack(
                gains="a session that sees other rows, reads views or evaluates constraints", before=before
            ),
        )
        for name, before in {
            "row_security": "withstood",
            "search_path": "withstood",
            "constraint_exclusion": "failed",
            "restrict_nonsystem_relation_kind": "failed",
        }.items()
    ],
)
def test_settings_of_the_role_and_of_the_database_do_not_count(stage: Stage, setting: str):
    value = {"row_security": "on", "search_path": "mal", "constraint_exclusion": "on"}.get(setting, "''")
    expected = {"row_security": "off", "search_path": "pg_catalog, pg_temp", "constraint_exclusion": "off"}
    stage.database.execute(f"ALTER ROLE {stage.ops} SET {setting} = {value}")
    stage.database.execute(f'ALTER DATABASE "{stage.database.name}" SET {setting} = {value}')

    async def asked() -> str | None:
        reader = await stage.reader()
        try:
            *_, ((found,),) = await reader._session.query(f"SHOW {setting}", "asking")
            return found
        finally:
            reader.close()

    assert asyncio.run(asked()) == expected.get(setting, "view, foreign-table")


@pytest.mark.attack(gains="nothing: it shows that the trap works", before="failed")
def test_the_trap_works(stage: Stage):
    """Not an attack on cdcd: the function takes the secret if anything calls it with the rights of the role."""
    stage.owner(*_TABLE, "CREATE INDEX ON own.t ((id + mal.evil(1)))")
    publish(stage)
    with psycopg.connect(stage.dsn) as sql:
        sql.execute("SET TRANSACTION READ ONLY")
        sql.execute("SELECT * FROM own.t")
        sql.rollback()
    assert stage.loot() == ["got_sesame42"]
