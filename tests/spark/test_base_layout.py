"""Folds into tables with partitions and buckets, of the configuration and of an owner."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.layout import Deletes, Layout
from cdcd.mirror.targets.partitions import Field
from tests.spark.base_model import DOCS, Lake, as_row, expected, form_of
from tests.spark.source_model import Source

FIELDS = (Field("n"), Field("id", "bucket", 4))
LAYOUTS = {
    "fields": Layout(fields=FIELDS),
    "buckets": Layout(buckets=4),
    "both, and marks": Layout(buckets=2, fields=FIELDS[:1], deletes=Deletes.MARK),
}


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


@pytest.mark.parametrize("name", LAYOUTS)
def test_folds_into_a_table_with_a_layout_follow_the_source(lake: Lake, name: str) -> None:
    source, layout = Source(5, wanders=True, truncates=name != "buckets"), LAYOUTS[name]
    for _ in range(3):
        source.run(10)
        lake.write(source)
        lake.fold(source.lsn, layout=layout)
        rows = lake.spark.table(lake.table)
        live = rows.filter("NOT _cdcd_deleted") if layout.marks else rows
        found = [tuple(row) for row in live.select("id", "n", "title", "body").collect()]
        assert len(found) == len(set(found))
        assert set(found) == expected(source, source.lsn)
    # Rows lie in the partitions of their values.
    files = lake.spark.table(lake.table).select(sf.input_file_name().alias("file"), "n").distinct().collect()
    paths = {row["file"]: row["n"] for row in files}
    if layout.fields:
        assert len(files) == len(paths), "a file has rows of two partitions"
    if layout.buckets > 1:
        assert BUCKET in lake.spark.table(lake.table).columns
    # WHEN the column of a field gets another name, THEN the field stays with it
    names = ("id", "number", "title", "body")
    lake.forms["renamed"] = form_of("renamed", DOCS[0], ("number", 2, "int32"), *DOCS[2:])
    lsn = source.lsn + 10
    record = {
        "commit_lsn": lsn,
        "event_no": 1,
        "partition": 0,
        "offset": 9000,
        "schema_id": "renamed",
        "before": None,
    }
    lake.append([as_row({**record, "op": "c", "after": (77, 7, None, None), "key": (77,)}, names)])
    lake.fold(lsn, layout=layout)
    assert lake.spark.table(lake.table).filter("number = 7 AND id = 77").count() == 1


def test_a_fold_reads_only_the_buckets_of_its_keys_and_those_of_an_owner_too(lake: Lake) -> None:
    source = Source(6, keys=40, moves=False, truncates=False)
    source.run(60)
    lake.write(source)
    configured = Layout(fields=(Field("id", "bucket", 16),))
    lake.fold(source.lsn, layout=configured if lake.table_format == DELTA else Layout())
    if lake.table_format == ICEBERG:
        lake.spark.sql(f"ALTER TABLE {lake.table} ADD PARTITION FIELD bucket(16, id)")
        lake.spark.sql(f"ALTER TABLE {lake.table} WRITE ORDERED BY n")
    seen = []
    keep = lake.spark.sql

    def spied(text: str, *rest: Any, **more: Any) -> object:
        if text.startswith("MERGE"):
            seen.append(text)
        return keep(text, *rest, **more)

    source.run(1)
    lake.write(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake.spark, "sql", spied)
        lake.fold(source.lsn)
    assert lake.rows() == expected(source, source.lsn)
    named = "system.bucket(16, t.`id`) IN (" if lake.table_format == ICEBERG else "_cdcd_partition_1 IN ("
    assert named in seen[-1]


MOODS = Layout(buckets=4, fields=(Field("mood"),))


def test_labels_of_a_key_and_of_a_field_move_rows_to_their_buckets_and_partitions(lake: Lake) -> None:
    def form(schema_id: str, *labels: str) -> Form:
        made = form_of(schema_id, ("mood", 1, "text"), ("n", 2, "int32"), key=("mood",))
        mood = replace(made.schema.columns[0], labels=tuple(enumerate(labels, 1)))
        return replace(made, schema=replace(made.schema, columns=(mood, made.schema.columns[1])))

    def upserted(lsn: int, schema_id: str, *rows: tuple[str, int]) -> None:
        common = {"commit_lsn": lsn, "partition": 0, "schema_id": schema_id, "before": None, "op": "c"}
        lake.append(
            [
                as_row(
                    {**common, "event_no": number, "offset": lsn + number, "after": row, "key": row[:1]},
                    ("mood", "n"),
                )
                | {"key": bytearray(json.dumps({"mood": row[0]}).encode())}
                for number, row in enumerate(rows, 1)
            ]
        )
        lake.fold(lsn, layout=MOODS)

    def rows() -> list[tuple[str, int]]:
        return sorted(map(tuple, lake.spark.table(lake.table).select("mood", "n").collect()))

    # GIVEN a table whose key is an enum, by which it is laid out
    lake.forms |= {"old": form("old", "sad", "ok", "glad"), "new": form("new", "blue", "fine", "glad")}
    upserted(10, "old", ("sad", 1), ("ok", 2), ("glad", 3))
    # WHEN labels get other names, and changes come under these
    upserted(20, "new", ("blue", 10), ("fine", 20))
    # THEN they change the rows that were there
    assert rows() == [("blue", 10), ("fine", 20), ("glad", 3)]
    # WHEN a row has a word that no description knows, THEN the table stops by name
    lake.forms["third"] = form("third", "low", "fine", "glad")
    lake.spark.sql(f"UPDATE {lake.table} SET mood = 'lost' WHERE mood = 'glad'")
    with pytest.raises(IncompatibleSchemaError, match="'lost' that is no label"):
        upserted(30, "third", ("low", 100))
    assert rows() == [("blue", 10), ("fine", 20), ("lost", 3)]
