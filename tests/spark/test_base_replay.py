"""Records in quarantine that can be read by now come back in their place among the changes."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.base.changes import fold_changes
from cdcd.mirror.base.fold import fold
from cdcd.mirror.base.part import Place
from cdcd.mirror.base.replay import release, topics_waiting, waiting
from cdcd.mirror.base.states import fold_states
from cdcd.mirror.jars import DELTA, ICEBERG
from tests.spark.base_model import TOPIC, Lake, as_row, expected
from tests.spark.source_model import Source
from tests.spark.test_base_changes import expected as expected_changes

pytestmark = pytest.mark.timeout(2400)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
APPENDED = {"appended": NOW, "day": NOW.date(), "ts": NOW}


def unreadable(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The row of a record that the append could not read."""
    read = dict.fromkeys(("tbl", "schema_id", "lsn", "ord", "op", "before", "after"))
    return row | read | APPENDED | {"kind": "unreadable", "reason": "its JSON is not that of a change"} | more


def lacks_values(row: dict[str, Any]) -> bool:
    """The record moves a row to another key, and has not all values of the row."""
    return row["oldkey"] is not None and row["unchanged"] is not None


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


def fold_all(lake: Lake, place: Place, bound: int) -> None:
    """Fold the table, its changelog, and its table of states."""
    fold(lake.spark, lake.format, place, lake.described, bound)
    changes = replace(place, name=lake.table.replace("docs", "docs_changes"))
    fold_changes(lake.spark, lake.format, changes, lake.described, bound, beside=True)
    fold_states(lake.spark, lake.format, states(lake, place, "scd2"), lake.described, bound)


def states(lake: Lake, place: Place, suffix: str) -> Place:
    return replace(place, name=lake.table.replace("docs", f"docs_{suffix}"))


def rows_of(lake: Lake, name: str) -> list[str]:
    columns = sorted(lake.spark.table(name).columns)
    return sorted(repr(tuple(row)) for row in lake.spark.table(name).select(columns).collect())


def test_records_of_the_quarantine_come_back_and_later_changes_stay(lake: Lake) -> None:
    # With truncates in one format, and without them in the other one.
    seed = 5 if lake.table_format == ICEBERG else 1
    source, draw, spark = Source(seed, truncates=seed == 5), random.Random(seed), lake.spark
    source.run(12)
    rows = [as_row(record) | APPENDED for records in source.log for record in records]
    lake._written = [len(records) for records in source.log]
    # GIVEN records that could not be read, one that is none, and one of a former topic
    bad = draw.sample([row for row in rows if not lacks_values(row)], 5)
    lake.append([unreadable(row) if row in bad else row for row in rows])
    garbage = unreadable(rows[0], off=999, value=bytearray(b"{"))
    former = unreadable(rows[0], off=998, topic_id="former", appended=datetime(2025, 1, 1, tzinfo=UTC))
    # A log that was rolled back has a record twice.
    lake.append([garbage, former, unreadable(bad[0])])
    fold_all(lake, lake.place(), source.lsn)
    # AND later changes
    source.run(4)
    lake.write(source)
    fold_all(lake, lake.place(), source.lsn)
    assert lake.rows() != expected(source, source.lsn)
    # WHEN they can be read, and the first process is killed when it has folded them
    assert topics_waiting(spark, lake.log, "") == {TOPIC: "T"}
    for _ in range(2):
        found = waiting(spark, lake.place(), "T", lake.described)
        assert (found.count, found.left, found.gone) == (5, 1, 1)
        assert found.replay is not None
        fold_all(lake, lake.place(replay=found.replay), source.lsn)
        assert lake.rows() == expected(source, source.lsn)
    assert found.replay is not None
    release(spark, lake.place(), found.replay)
    # THEN the tables have them once, and the log has the others
    again = waiting(spark, lake.place(), "T", lake.described)
    assert (again.replay, again.count, again.left, again.gone) == (None, 0, 1, 1)
    changes = spark.table(lake.table.replace("docs", "docs_changes"))
    have = changes.select("_cdcd_commit_lsn", "_cdcd_event_no", "_cdcd_op", "id", "n").collect()
    assert sorted(map(repr, map(tuple, have))) == sorted(map(repr, expected_changes(source, source.lsn)))
    # AND the table of states has the same rows as a new table of states that is folded from the released log
    anew = states(lake, lake.place(), "anew")
    fold_states(spark, lake.format, anew, lake.described, source.lsn)
    assert rows_of(lake, states(lake, lake.place(), "scd2").name) == rows_of(lake, anew.name)
    # AND folds continue
    source.run(2)
    lake.write(source)
    fold_all(lake, lake.place(), source.lsn)
    assert lake.rows() == expected(source, source.lsn)


def test_records_that_cannot_come_back_stay_in_quarantine(lake: Lake) -> None:
    source = Source(3, truncates=False, moves=False)
    source.run(6)
    rows = [as_row(record) | APPENDED for records in source.log for record in records]
    first = min(rows, key=lambda row: (row["lsn"], row["ord"]))
    late = as_row(source.log[0][-1] | {"schema_id": "form-1"}) | APPENDED
    # GIVEN a record that is older than what retention has deleted, and one whose form is not described
    lake.append(
        [unreadable(first), unreadable(late, off=998, value=late["value"].replace(b"form-1", b"form-9"))]
    )
    found = waiting(lake.spark, lake.place(log_begins=first["lsn"]), "T", lake.described)
    assert (found.replay, found.count, found.left, found.gone) == (None, 0, 1, 1)


def test_a_moved_row_that_lacks_values_stays_in_quarantine(lake: Lake) -> None:
    source = Source(1, truncates=False)
    source.run(12)
    rows = [as_row(record) | APPENDED for records in source.log for record in records]
    moved = [row for row in rows if lacks_values(row)]
    other = next(row for row in rows if not lacks_values(row))
    assert moved
    # WHEN a fold without the record has removed the row with the former key, nothing has the values any more
    lake.append([unreadable(row) if row in moved or row is other else row for row in rows])
    found = waiting(lake.spark, lake.place(), "T", lake.described)
    assert (found.count, found.left, found.gone) == (1, len(moved), 0)


def test_released_records_are_changes_of_the_log(lake: Lake) -> None:
    source = Source(3, truncates=False)
    source.run(6)
    rows = [as_row(record) | APPENDED for records in source.log for record in records]
    lake.append([unreadable(row) if number < 3 else row for number, row in enumerate(rows)])
    found = waiting(lake.spark, lake.place(), "T", lake.described)
    assert found.replay is not None
    release(lake.spark, lake.place(), found.replay)
    read = ("part", "off", "kind", "tbl", "schema_id", "lsn", "ord", "op", "reason")
    have = lake.spark.table(lake.log).select(*read).collect()
    assert sorted(map(tuple, have)) == sorted(tuple([row.get(name) for name in read]) for row in rows)
