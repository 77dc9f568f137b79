"""Changelogs that are folded from a log have each change once, with the values of its time."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.base.changes import fold_changes
from cdcd.mirror.base.kept import KeptFolded
from cdcd.mirror.base.part import OvertakenError
from cdcd.mirror.jars import DELTA, ICEBERG
from tests.integration.daemon import until
from tests.spark.base_model import DOCS, WAITS_S, Lake, Slow, as_row, form_of
from tests.spark.source_model import Source

pytestmark = pytest.mark.timeout(2400)


class Changelog:
    """The changelog beside the table of a lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.name = lake.table.replace("docs", "docs_changes")

    def fold(
        self,
        bound: int,
        *,
        spark: SparkSession | None = None,
        slow: Any = None,
        beside: bool = False,
        **more: Any,
    ) -> KeptFolded:
        lake = self.lake
        place, format_ = replace(lake.place(**more), name=self.name), slow or lake.format
        return fold_changes(spark or lake.spark, format_, place, lake.described, bound, beside=beside)

    def rows(self) -> list[tuple[Any, ...]]:
        return [
            tuple(row)
            for row in self.lake.spark.table(self.name)
            .select("_cdcd_commit_lsn", "_cdcd_event_no", "_cdcd_op", "id", "n")
            .collect()
        ]


def expected(source: Source, lsn: int) -> list[tuple[Any, ...]]:
    """The rows of the changes that committed at or before the LSN."""
    found = []
    for record in [each for records in source.log for each in records if each["commit_lsn"] <= lsn]:
        row = record["after"] or record["before"] or (None, None)
        found.append((record["commit_lsn"], record["event_no"], record["op"], row[0], row[1]))
    return found


@pytest.fixture(params=[ICEBERG, DELTA])
def changelog(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Changelog:
    return Changelog(Lake(spark, str(tmp_path), unique, request.param))


def order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def test_a_changelog_has_each_change_once_also_after_a_rollback(changelog: Changelog) -> None:
    source, lake, versions = Source(8, wanders=True), changelog.lake, []
    for _ in range(2):
        source.run(10)
        lake.write(source)
        versions.append(changelog.fold(source.lsn).folded.version)
        assert order(changelog.rows()) == order(expected(source, source.lsn))
    # WHEN the same fold comes again, THEN there is no commit
    before = lake.format.version(lake.spark, changelog.name).pin
    changelog.fold(source.lsn)
    assert lake.format.version(lake.spark, changelog.name).pin == before
    # WHEN the owner brings back a former version, THEN the next fold adds what is missing
    if lake.table_format == DELTA:
        lake.spark.sql(f"RESTORE TABLE {changelog.name} TO VERSION AS OF {versions[0]}")
    else:
        table = changelog.name.removeprefix("lake.")
        lake.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {versions[0]})")
    assert len(changelog.rows()) < len(expected(source, source.lsn))
    changelog.fold(source.lsn)
    assert order(changelog.rows()) == order(expected(source, source.lsn))


@pytest.mark.parametrize("phase", ["pinned", "running"])
def test_a_changelog_has_each_change_once_after_folds_that_race(
    changelog: Changelog, tmp_path: Path, phase: str
) -> None:
    source, lake = Source(10), changelog.lake
    source.run(4)
    lake.write(source)
    changelog.fold(source.lsn)
    source.run(4)
    middle = source.lsn
    source.run(4)
    lake.write(source)
    # WHEN a driver freezes in a fold, another one folds more, and the first one goes on
    own = lake.spark.newSession()
    slow = Slow(own, lake.format, phase, tmp_path)
    errors: list[Exception] = []

    def run() -> None:
        try:
            changelog.fold(middle, spark=own, slow=slow)
        except OvertakenError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: True if slow.there.exists() or not thread.is_alive() else None, phase, WAITS_S)
        changelog.fold(source.lsn)
    finally:
        slow.go.touch()
        thread.join(WAITS_S)
    assert not thread.is_alive()
    # THEN each change is there once, also after the next fold
    assert order(changelog.rows()) == order(expected(source, source.lsn))
    source.run(2)
    lake.write(source)
    changelog.fold(source.lsn)
    assert order(changelog.rows()) == order(expected(source, source.lsn))


def test_rows_stay_as_they_were_when_the_table_changes_or_is_made_again(changelog: Changelog) -> None:
    # GIVEN changes of three forms in one part of the log: a column of another type, and another table of the same name
    source, lake = Source(9, truncates=False), changelog.lake
    source.run(6)
    lake.write(source)
    rows = expected(source, source.lsn)
    lake.forms["text"] = form_of("text", ("id", 1, "int64"), ("n", 2, "text"), *DOCS[2:])
    lake.forms["other"] = form_of("other", *DOCS, oid=20000)
    lsn = source.lsn
    for form, value in (("text", "one"), ("other", 1)):
        lsn += 10
        record = {"commit_lsn": lsn, "event_no": 1, "partition": 0, "offset": lsn, "schema_id": form}
        lake.append(
            [as_row({**record, "op": "c", "before": None, "after": (7, value, "t", "b"), "key": (7,)})]
        )
    # WHEN they are folded
    changelog.fold(lsn)
    # THEN each change has its value in the column that had it
    found = lake.spark.table(changelog.name)
    kept = [name for name in found.columns if name.startswith("n__dropped")]
    assert len(kept) == 2
    values = sorted(
        str(next((row[name] for name in ("n", *kept) if row[name] is not None), None))
        for row in found.collect()
    )
    assert values == sorted([*[str(row[-1]) for row in rows], "one", "1"])


def test_rows_of_a_snapshot_are_told_apart_by_their_place(changelog: Changelog) -> None:
    lake = changelog.lake
    lake.forms["keyless"] = form_of("keyless", *DOCS)
    common = {
        "event_no": 0,
        "partition": 0,
        "schema_id": "form-1",
        "before": None,
        "key": (1,),
        "commit_lsn": 50,
    }
    rows = [as_row({**common, "op": "r", "after": (1, 1, None, None), "offset": at}) for at in (1, 2)]
    lake.append(rows)
    changelog.fold(60)
    changelog.fold(70)
    assert changelog.rows() == [(50, 0, "r", 1, 1)] * 2
    # WHEN the log lacks changes before a truncate, THEN the changelog goes on after it and says so
    truncate = {
        **common,
        "op": "t",
        "after": None,
        "key": None,
        "offset": 10,
        "commit_lsn": 90,
        "event_no": 1,
    }
    lake.append([as_row(truncate)])
    done = changelog.fold(100, log_begins=80)
    assert done.missing == (60, 90)
    assert order(changelog.rows())[-1][:3] == (90, 1, "t")


def test_a_changelog_beside_a_table_begins_where_the_log_begins_and_says_so(changelog: Changelog) -> None:
    source, lake = Source(13, truncates=False), changelog.lake
    source.run(3)
    begins = source.lsn
    source.run(3)
    lake.write(source)
    # WHEN retention has deleted the oldest changes of the log, THEN a changelog of a table without a key stops
    lake.spark.sql(f"DELETE FROM {lake.log} WHERE lsn <= {begins}")
    with pytest.raises(SinkError, match="lacks the table's changes"):
        changelog.fold(source.lsn, log_begins=begins)
    # AND one beside a table has the later changes
    done = changelog.fold(source.lsn, log_begins=begins, beside=True)
    assert done.missing == (0, begins)
    rows = [row for row in expected(source, source.lsn) if row[0] > begins]
    assert rows
    assert order(changelog.rows()) == order(rows)
    assert changelog.fold(source.lsn + 1, log_begins=begins, beside=True).missing is None
