"""Folds into a table that marks deletes: it has the last values of each row that the source ever had."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.base.now import now
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.layout import DELETED, Deletes, Layout
from tests.spark.base_model import DOCS, Lake, as_row, form_of
from tests.spark.source_model import Source

MARKS = Layout(deletes=Deletes.MARK)


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


def marked(lake: Lake) -> set[tuple[Any, ...]]:
    """All rows of the table, and whether they are deleted."""
    rows = lake.spark.sql(f"SELECT id, n, title, body, {DELETED} FROM {lake.table}").collect()
    assert len(rows) == len({row["id"] for row in rows}), "a key is there twice"
    return {tuple(row) for row in rows}


def test_deleted_and_truncated_rows_stay_with_their_last_values(lake: Lake) -> None:
    source = Source(2, wanders=True)
    versions = []
    for _ in range(3):
        source.run(12)
        lake.write(source)
        versions.append((lake.fold(source.lsn, layout=MARKS).version, source.marked()))
        assert marked(lake) == source.marked()
    assert any(row[-1] for row in marked(lake))
    # A view of now has the rows of the source.
    view = now(lake.spark, lake.format, lake.place(), lake.described)
    assert {tuple(row) for row in view.select("id", "n", "title", "body").collect()} == source.expected()
    # WHEN the owner brings back a former version, THEN the next fold marks again what was deleted since
    first, then = versions[0]
    if lake.table_format == DELTA:
        lake.spark.sql(f"RESTORE TABLE {lake.table} TO VERSION AS OF {first}")
    else:
        table = lake.table.removeprefix("lake.")
        lake.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    assert marked(lake) == then
    lake.fold(source.lsn, layout=MARKS)
    assert marked(lake) == source.marked()


def test_a_table_that_removes_deleted_rows_marks_them_after_the_statements_of_the_hint(lake: Lake) -> None:
    source = Source(3, moves=False, truncates=False)
    source.run(10)
    lake.write(source)
    lake.fold(source.lsn)
    gone = set(source.gone)
    # WHEN the configuration says mark, THEN the table stops, and goes on after the statements of the hint
    source.run(10)
    lake.write(source)
    with pytest.raises(SinkError, match=r"tables\.deletes: mark") as stopped:
        lake.fold(source.lsn, layout=MARKS)
    said = stopped.value.hint.removeprefix("Run in Spark: ").partition(". Deletes")[0]
    for statement in said.split("; "):
        lake.spark.sql(statement)
    lake.fold(source.lsn, layout=MARKS)
    found = marked(lake)
    assert {row for row in found if not row[-1]} == {row for row in source.marked() if not row[-1]}
    assert {row[0] for row in found if row[-1]} >= set(source.gone) - gone
    # AND back
    source.run(5)
    lake.write(source)
    with pytest.raises(SinkError, match=r"tables\.deletes: remove") as stopped:
        lake.fold(source.lsn)
    said = stopped.value.hint.removeprefix("To remove the marked rows, run in Spark: ").partition(
        ". To keep"
    )[0]
    for statement in said.split("; "):
        lake.spark.sql(statement)
    lake.fold(source.lsn)
    assert lake.rows() == source.expected()


def test_a_table_that_was_made_again_begins_without_marked_rows_and_another_type_stops_it(lake: Lake) -> None:
    source = Source(4, moves=False, truncates=False)
    source.run(10)
    lake.write(source)
    lake.fold(source.lsn, layout=MARKS)
    assert any(row[-1] for row in marked(lake))

    def append(form: str, *records: tuple[str, Any]) -> int:
        """Append records of one transaction: op and row."""
        lsn = source.lsn = source.lsn + 10
        rows = []
        for number, (op, row) in enumerate(records, 1):
            where = {"commit_lsn": lsn, "event_no": number, "partition": 0, "offset": lsn + number}
            key = None if row is None else row[:1]
            images = {"before": row if op == "d" else None, "after": row if op in "cur" else None}
            rows.append(as_row({**where, **images, "op": op, "schema_id": form, "key": key}))
        lake.append(rows)
        return lsn

    # WHEN a column has another type after a truncate, THEN the table stops, because marked rows lack values of it
    lake.forms["text"] = form_of("text", ("id", 1, "int64"), ("n", 2, "text"), *DOCS[2:])
    lsn = append("text", ("t", None), ("r", (1, "one", None, None)))
    with pytest.raises(IncompatibleSchemaError) as stopped:
        lake.fold(lsn, layout=MARKS)
    assert f"Rename {lake.table}" in stopped.value.hint
    # WHEN another table has the name now, THEN no row of the former one stays
    lake.forms["other"] = form_of("other", *DOCS, oid=20000)
    lsn = append(
        "other",
        ("t", None),
        ("r", (1, 1, None, None)),
        ("r", (2, 2, None, None)),
        ("d", (2, None, None, None)),
    )
    lake.fold(lsn, layout=MARKS)
    assert marked(lake) == {(1, 1, None, None, False), (2, 2, None, None, True)}
