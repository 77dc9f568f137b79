"""The mirror's tables in the eyes of others: Iceberg's by PyIceberg, Delta's by delta-rs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, VariantType

from cdcd.mirror.api import apply_changes
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.schema import ColumnSchema
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import Kind, Target
from tests.spark.jobs import Job
from tests.spark.source_model import frame
from tests.spark.stage import Source, Stage
from tests.spark.test_given import FORM, change

COLUMNS = (
    "id", "small", "price", "ratio", "sure", "day", "at", "local_at", "note", "raw", "words", "place"
)  # fmt: skip
ITEMS = """
    CREATE TABLE items (
        id bigint PRIMARY KEY, small smallint, price numeric(12, 3), ratio double precision, sure boolean, day date,
        at timestamptz, local_at timestamp, note text, raw bytea, words text[], place point)
"""
INSERT = """
    INSERT INTO items
    SELECT i, i % 100, i / 8.0, i / 7.0, i % 2 = 0, date '2026-01-01' + i,
           timestamptz '2026-01-01 00:00Z' + i * interval '1 s', timestamp '1800-01-01' + i * interval '1 day',
           'note ' || i, decode(md5(i::text), 'hex'), ARRAY['a', NULL, 'ü' || i],
           CASE WHEN i % 3 = 0 THEN point(i, -i) END
    FROM generate_series({0}, {1}) i
"""


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    name = f"o{abs(hash(request.node.nodeid)) % 10**8}"
    with stage.source(name, ITEMS, partitions=1) as made:
        yield made


def by_pyiceberg(folder: Path) -> pa.Table:
    """The newest version of an Iceberg table, without a catalog."""
    table: Any = pytest.importorskip("pyiceberg.table")
    newest = (folder / "metadata" / "version-hint.text").read_text()
    return (
        table.StaticTable.from_metadata(str(folder / "metadata" / f"v{newest}.metadata.json"))
        .scan()
        .to_arrow()
    )


def by_delta_rs(folder: Path) -> pa.Table:
    deltalake: Any = pytest.importorskip("deltalake")
    mirrored = deltalake.QueryBuilder().register("mirrored", deltalake.DeltaTable(str(folder)))
    return pa.table(mirrored.execute("SELECT * FROM mirrored").read_all())


READERS = {ICEBERG: by_pyiceberg, DELTA: by_delta_rs}


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with the source's columns, by id."""
    rows: list[dict[str, Any]] = table.select(list(COLUMNS)).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def in_source(source: Source) -> list[dict[str, Any]]:
    query = """
        SELECT id, small, price, ratio, sure, day, at, local_at, note, raw, words,
               CASE WHEN place IS NOT NULL THEN json_build_object('x', place[0], 'y', place[1]) END AS place
        FROM items ORDER BY id"""
    with source.connect() as connection:
        return connection.cursor(row_factory=dict_row).execute(query).fetchall()


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_mirrored_table_is_the_same_for_another_reader_for_spark_and_in_the_source(
    source: Source, spark: SparkSession, warehouse: Path, tmp_path: Path, table_format: str
) -> None:
    job = Job(spark, source, tmp_path, table_format)
    # GIVEN a table into which inserts, updates and deletes were merged
    for statement in (
        INSERT.format(1, 900),
        "UPDATE items SET note = 'new', words = '{}' WHERE id % 5 = 0; DELETE FROM items WHERE id % 7 = 0",
        f"UPDATE items SET id = id + 10000, raw = NULL, price = NULL WHERE id % 11 = 0; {INSERT.format(2001, 2100)}",
    ):
        source.execute(statement)
        source.deliver()
        assert job.once() == {}
    iceberg = warehouse / "iceberg" / source.name / "public_items"
    folder = iceberg if table_format == ICEBERG else tmp_path / "public" / "items"
    marked = "*-deletes.parquet" if table_format == ICEBERG else "deletion_vector_*.bin"
    assert list(folder.rglob(marked)) != [], "rows are marked as deleted, in files of their own"
    # THEN all three have the same rows
    want = in_source(source)
    assert len(want) > 800
    assert in_order(job.table(source, "items").toArrow()) == want
    assert in_order(READERS[table_format](folder)) == want
    # AND so it is when the table was tidied up, and after more changes
    if table_format == ICEBERG:
        options = "options => map('rewrite-all', 'true')"
        spark.sql(
            f"CALL lake.system.rewrite_data_files(table => '{source.name}.public_items', {options})"
        ).collect()
    else:
        spark.sql(f"OPTIMIZE delta.`{folder}`").collect()
    assert in_order(READERS[table_format](folder)) == want
    source.execute("UPDATE items SET sure = NOT sure WHERE id % 2 = 0; DELETE FROM items WHERE id % 13 = 0")
    source.deliver()
    assert job.once() == {}
    assert in_order(READERS[table_format](folder)) == in_source(source)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows without the mirror's own columns."""
    columns = [name for name in table.column_names if not name.startswith("_cdcd_")]
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())


@pytest.fixture(params=[ICEBERG, DELTA])
def place(request: pytest.FixtureRequest, warehouse: Path, unique: str) -> tuple[Target, Path]:
    """A target, and the folder of its table `public.items`."""
    folder = warehouse / request.param / unique
    if request.param == ICEBERG:
        return IcebergTarget("lake", unique), folder / "public_items"
    return DeltaTarget(str(folder)), folder / "public" / "items"


def test_another_reader_follows_changed_columns_but_delta_rs_no_column_that_grew(
    spark: SparkSession, place: tuple[Target, Path]
) -> None:
    target, folder = place
    read = READERS[target.format]
    apply_changes(
        target, frame(spark, [change("c", 10, (1, 1, "a")), change("c", 11, (2, 2, "b"))], FORM), FORM
    )
    # WHEN columns are renamed, dropped and added
    id_, n, _ = FORM.columns
    more = ColumnSchema("more", 4, "text", 25, -1, StringType())
    form = replace(FORM, schema_id="form-2", columns=(id_, replace(n, name="m"), more))
    apply_changes(target, frame(spark, [change("u", 20, (1, 10, "new"), schema_id="form-2")], form), form)
    # THEN the other reader has them
    assert rows(read(folder)) == [(1, 10, "new"), (2, 2, None)]
    # WHEN a column grows
    form = replace(form, schema_id="form-3", columns=(id_, replace(n, name="m", spark=LongType()), more))
    apply_changes(target, frame(spark, [change("u", 30, (2, 2**40, "big"), schema_id="form-3")], form), form)
    # THEN PyIceberg has that too, and delta-rs refuses the table
    if target.format == ICEBERG:
        assert rows(read(folder)) == [(1, 10, "new"), (2, 2**40, "big")]
    else:
        with pytest.raises(Exception, match=r"features required:.*TypeWidening"):
            read(folder)


def test_delta_rs_reads_variants_and_pyiceberg_refuses_a_table_that_has_them(
    spark: SparkSession, place: tuple[Target, Path]
) -> None:
    target, folder = place
    doc = ColumnSchema("doc", 4, "jsonb", 3802, -1, VariantType())
    form = replace(FORM, columns=(*FORM.columns, doc))
    name = target.name_of(form, Kind.MIRROR)
    apply_changes(target, frame(spark, [change("c", 10, (1, 1, "a", None))], form), form)
    spark.sql(f"DELETE FROM {name}")
    spark.sql(f"""INSERT INTO {name} SELECT 1, 2, 'a', parse_json('{{"b": 3}}'), 0, 0, NULL""")
    if target.format == ICEBERG:
        with pytest.raises(Exception, match="Unsupported field type: 'variant'"):
            by_pyiceberg(folder)
    else:
        assert by_delta_rs(folder).select(["id", "n", "note"]).to_pylist() == [{"id": 1, "n": 2, "note": "a"}]


def test_delta_rs_leaves_deleted_rows_out_by_its_query_engine_and_refuses_other_ways(
    spark: SparkSession, warehouse: Path, unique: str
) -> None:
    deltalake: Any = pytest.importorskip("deltalake")
    target = DeltaTarget(str(warehouse / "delta" / unique))
    apply_changes(
        target, frame(spark, [change("c", 10, (1, 1, "a")), change("c", 11, (2, 2, "b"))], FORM), FORM
    )
    apply_changes(target, frame(spark, [change("d", 20, (1, 1, "a"))], FORM), FORM)
    folder = warehouse / "delta" / unique / "public" / "items"
    assert rows(by_delta_rs(folder)) == [(2, 2, "b")]
    # Rather than to give wrong rows
    with pytest.raises(Exception, match="reader features"):
        deltalake.DeltaTable(str(folder)).to_pyarrow_table()
