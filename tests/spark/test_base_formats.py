"""Mirrors of one source in each format of records: all have the rows of the mirror of plain JSON, value by value."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.platform.tables import exists
from tests.altered_tables import DEFAULTS, SETUP
from tests.schema_registry import SchemaRegistry
from tests.spark.folding import Folds
from tests.spark.stage import Source, Stage

# Avro has no arrays of several dimensions.
ZOO: Final = [
    (f"c{number}", type_, "timestamptz '2024-02-29 09:00+02'" if value == "now()" else value)
    for number, (type_, value) in enumerate(DEFAULTS)
    if "[][]" not in type_
]
EVERY: Final = ", ".join(f"{name} {type_} DEFAULT {value}" for name, type_, value in ZOO)
NULLS: Final = ", ".join("'{}'" if type_.endswith("NOT NULL") else "NULL" for _, type_, _ in ZOO)
TABLES: Final = (
    *SETUP,
    f"CREATE TABLE every (id bigint PRIMARY KEY, {EVERY})",
    'CREATE TABLE odd ("1st" int, "größe %" text, "a-b" int[], big text, PRIMARY KEY ("1st", "größe %"))',
    "ALTER TABLE odd ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE whole (id int PRIMARY KEY, n numeric, f real, d float8, p point)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE TABLE gone (id int PRIMARY KEY, n int)",
    "INSERT INTO every (id) SELECT generate_series(1, 3)",
    "INSERT INTO odd SELECT g, 'ä' || g, ARRAY[g, NULL], repeat('x', 3000) FROM generate_series(1, 5) g",
    "INSERT INTO gone SELECT g, g FROM generate_series(1, 5) g",
)
CHANGES: Final = (
    f"INSERT INTO every VALUES (4, {NULLS})",
    "INSERT INTO every (id, c3, c4) VALUES (5, 'NaN', 1e300), (6, '-Infinity', 'NaN')",
    "UPDATE every SET id = 20 WHERE id = 2; DELETE FROM every WHERE id = 3",
    # The large value is not sent, also where the key changes.
    """UPDATE odd SET "a-b" = '{}' WHERE "1st" = 1""",
    """UPDATE odd SET "größe %" = 'new' WHERE "1st" = 2; DELETE FROM odd WHERE "1st" = 3""",
    "INSERT INTO whole VALUES (1, 1e-20, 'NaN', '-Infinity', '(1,2)'), (2, 'NaN', 1e20, 5e-324, NULL)",
    "UPDATE whole SET id = 3, n = NULL WHERE id = 2; UPDATE whole SET f = 0.1 WHERE id = 1",
    "INSERT INTO whole VALUES (9); DELETE FROM whole WHERE id = 9",
    "BEGIN; TRUNCATE gone; INSERT INTO gone VALUES (7, 7); COMMIT",
    """ALTER TABLE odd ADD "neu é" int DEFAULT 7; ALTER TABLE odd RENAME "a-b" TO "a b" """,
    """INSERT INTO odd ("1st", "größe %", "neu é") VALUES (8, '', 8)""",
)
NAMES: Final = ("every", "odd", "whole", "gone")

FLAT: Final[Mapping[str, Any]] = {"enabled": True}
FORMATS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "flat": {"format": {}, "event_flattening": FLAT},
    "flat_schema": {
        "format": {"value": "json_schema", "key": "json_schema"},
        "event_flattening": {**FLAT, "delete_tombstone_handling_mode": "rewrite", "add_fields": ["op"]},
    },
    "registry": {"format": {"value": "json_registry", "key": "json_registry"}},
    "flat_registry": {
        "format": {"value": "json_registry", "key": "json_registry"},
        "event_flattening": {**FLAT, "delete_tombstone_handling_mode": "rewrite-with-tombstone"},
    },
    "avro": {"format": {"value": "avro", "key": "avro"}},
    "flat_avro": {
        "format": {"value": "avro", "key": "json"},
        "event_flattening": {**FLAT, "add_fields": ["op", "source.ts_ms"]},
    },
}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def rows_of(folds: Folds, table: str) -> list[str]:
    """The rows of a table as text, without the mirror's own columns."""
    if not exists(folds.spark, folds.name(table)):
        # Nothing was ever in it.
        return []
    found = folds.spark.table(folds.name(table))
    names = [f"`{name}`" for name in found.columns if not name.startswith("_cdcd_")]
    row = sf.to_json(sf.struct(*names), {"ignoreNullFields": "false"})
    return sorted([each[0] for each in found.select(row).collect()])


def mirrored(source: Source, folds: Folds) -> list[dict[str, list[str]]]:
    """The rows of the tables after a snapshot, and after changes."""
    found = []
    for statements in ((), CHANGES):
        for statement in statements:
            source.execute(statement)
        source.deliver()
        stopped = folds.once()
        assert {name: error.message for name, error in stopped.items()} == {}
        # The other tables have infinite dates and numbers, which no text compares.
        assert folds.different("odd", "gone") == []
        found.append({table: rows_of(folds, table) for table in NAMES})
    return found


@pytest.fixture(scope="module")
def in_json(
    stage: Stage, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, list[str]]]:
    """The rows of the mirror of plain JSON."""
    with stage.source("fp_json", *TABLES) as source:
        found = mirrored(source, Folds(spark, source, tmp_path_factory.mktemp("json"), ICEBERG))
    assert [len(each) for each in found[1].values()] == [5, 5, 2, 1]
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FORMATS)
def test_the_mirror_of_each_format_has_the_rows_of_the_mirror_of_json(
    stage: Stage,
    spark: SparkSession,
    tmp_path: Path,
    registry: SchemaRegistry,
    in_json: list[dict[str, list[str]]],
    name: str,
) -> None:
    sections: dict[str, Any] = {key: dict(value) for key, value in FORMATS[name].items()}
    sections["format"]["change_header"] = True
    # GIVEN rows that a snapshot read; WHEN rows change: with other keys, values that are not sent, deletes, a truncate,
    # and other columns
    with stage.source(f"fo_{name}", *TABLES, registry={"url": registry.url}, **sections) as source:
        folds = Folds(spark, source, tmp_path, DELTA if name in {"flat_schema", "registry"} else ICEBERG)
        found = mirrored(source, folds)
    # THEN the tables are equal to those of the mirror of JSON
    for ours, theirs in zip(found, in_json, strict=True):
        for table in NAMES:
            assert ours[table] == theirs[table], table
    # AND the log has each record as a change or a truncate
    log = folds.spark.table(folds.place.name)
    kinds = {row["kind"]: row["count"] for row in log.groupBy("kind").count().collect()}
    assert "unreadable" not in kinds
    assert kinds["truncate"] == 1
