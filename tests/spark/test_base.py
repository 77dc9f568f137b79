"""Folds of a log into a base table: the table equals the source at its position, in both formats."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.base.commit import Folded
from cdcd.mirror.base.part import LacksChangesError, LogReader, Part
from cdcd.mirror.base.sessions import Sessions
from cdcd.mirror.base.shared import MOST, shared
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from deploy.demo.mirrored import compare
from tests.spark.base_model import DOCS, TOPIC, Lake, as_row, expected, form_of
from tests.spark.source_model import Source
from tests.spark.stage import Stage, target_for
from tests.spark.workload import DEFINITIONS, MIRRORED, TABLES, TOUCH, Workload


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


@pytest.mark.parametrize("seed", [1, 2])
def test_folds_follow_a_source_with_moved_keys_unsent_values_and_truncates(lake: Lake, seed: int) -> None:
    source = Source(seed, wanders=True)
    for _ in range(4):
        source.run(12)
        lake.write(source)
        done = lake.fold(source.lsn)
        assert done.lsn == source.lsn
        assert lake.rows() == expected(source, source.lsn)
        position = lake.format.version(lake.spark, lake.table).position
        assert position is not None
        assert position.clean
    # A fold that comes again changes nothing, and one in the middle of the log stops there.
    before = lake.format.version(lake.spark, lake.table).pin
    lake.fold(source.lsn)
    assert lake.format.version(lake.spark, lake.table).pin == before


def test_folds_of_one_round_share_rows_in_memory_and_a_table_that_is_behind_reads_the_log(
    lake: Lake,
) -> None:
    # GIVEN a table that is folded up to half of its changes, and a round that keeps the rest in memory
    source = Source(1, wanders=True)
    source.run(8)
    lake.write(source)
    first = source.lsn
    lake.fold(first)
    source.run(8)
    lake.write(source)
    own = lake.spark.newSession()
    with shared(lake.spark.table(lake.log), [TOPIC, "other"], first, source.lsn, 10) as rows:

        def plan(lower: int, bound: int) -> str:
            reader: Any = LogReader(own, lake.place(shared=rows), lake.described, bound)
            return str(reader.records(Part(lower))._jdf.queryExecution().executedPlan().toString())

        # WHEN another session reads a part, THEN it reads the memory only if all of the part is there
        assert "InMemoryTableScan" in plan(first, source.lsn)
        assert "InMemoryTableScan" not in plan(first - 1, source.lsn)
        assert "InMemoryTableScan" not in plan(first, source.lsn + 1)
        # AND the fold is right
        lake.fold(source.lsn, spark=own, shared=rows)
    assert lake.rows() == expected(source, source.lsn)
    # AND nothing stays
    assert not lake.spark.catalog.listTables("global_temp")
    # AND one table, or too many rows, are not kept
    log = lake.spark.table(lake.log)
    for topics, count in (([TOPIC], 10), ([TOPIC, "other"], MOST + 1), ([TOPIC, "other"], 0)):
        with shared(log, topics, first, source.lsn, count) as none:
            assert none is None


def test_a_table_that_is_read_again_begins_with_its_truncate_whatever_was_before(lake: Lake) -> None:
    # GIVEN a table, and changes in a form that it cannot take, in which a number is a text
    source = Source(4, moves=False, truncates=False)
    source.run(8)
    lake.write(source)
    lake.fold(source.lsn)
    folded = source.lsn
    lake.forms["other"] = form_of("other", ("id", 1, "int64"), ("n", 2, "text"), *DOCS[2:])
    source.run(2)
    lake.write(source, form="other")
    before = lake.rows()
    with pytest.raises(IncompatibleSchemaError) as stopped:
        lake.fold(source.lsn)
    assert "cdcd tables resume public.docs" in stopped.value.hint
    assert lake.rows() == before
    # AND the log has lost records that the table needs
    with pytest.raises(SinkError) as lacks:
        lake.fold(source.lsn, log_begins=folded + 1)
    assert "cdcd tables resume public.docs" in lacks.value.hint
    # WHEN its topic was made again, and it is read again
    lsn = source.lsn + 10
    common = {"commit_lsn": lsn, "partition": 0, "schema_id": "other", "before": None}
    rows = [{**common, "op": "t", "after": None, "key": None, "event_no": 1, "offset": 1000}]
    for number, (id_, row) in enumerate(sorted(source.rows.items()), 2):
        values = (id_, None if row["n"] is None else str(row["n"]), row["title"], row["body"])
        rows.append(
            {**common, "op": "r", "after": values, "key": (id_,), "event_no": number, "offset": 1000 + number}
        )
    lake.append([as_row(row) | {"topic_id": "U"} for row in rows])
    done = lake.fold(lsn, log_begins=folded + 1)
    # THEN the table has the rows of now, and goes on
    texts = {(*row[:1], None if row[1] is None else str(row[1]), *row[2:]) for row in expected(source, lsn)}
    assert lake.rows() == texts
    assert lake.rows(done.version) == texts
    last = {**common, "commit_lsn": lsn + 5, "event_no": 1, "offset": 2000}
    changes = [{**last, "op": "c", "after": (99, "x", None, None), "key": (99,)}]
    lake.append([as_row(change) | {"topic_id": "U"} for change in changes])
    lake.fold(lsn + 5, log_begins=folded + 1)
    assert lake.rows() == texts | {(99, "x", None, None)}
    # AND changes of a third topic stop it
    lake.append([as_row({**last, **changes[0], "commit_lsn": lsn + 9}) | {"topic_id": "V"}])
    with pytest.raises(SinkError, match="made again"):
        lake.fold(lsn + 9)


def test_a_table_of_iceberg_that_its_owner_replaces_is_folded_as_a_whole(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    lake, source = Lake(spark, str(tmp_path), unique, ICEBERG), Source(3, truncates=False)
    source.run(12)
    lake.write(source)
    lake.fold(source.lsn)
    table, replaced = lake.table, f"CREATE OR REPLACE TABLE {lake.table}"
    more = "SELECT 999 AS id, 1 AS n, 'mine' AS title, 'mine' AS body, 1 AS _cdcd_commit_lsn, 1 AS _cdcd_event_no"
    own = "_cdcd_commit_lsn bigint, _cdcd_event_no bigint, _cdcd_unknown array<string>"
    for statement in (
        # Some rows go, one comes, and the columns lose their numbers.
        f"USING iceberg AS SELECT * FROM {table} WHERE id % 2 = 0 UNION ALL {more}, array() AS _cdcd_unknown",
        f"USING iceberg AS SELECT body, id, n, _cdcd_commit_lsn, _cdcd_event_no, _cdcd_unknown FROM {table}",
        f"USING iceberg AS SELECT * FROM {table} WHERE false",
        f"(id bigint, n int, {own}) USING iceberg",
    ):
        # WHEN the owner replaces the table, THEN it stops by name if the log lacks some of its changes
        spark.sql(f"{replaced} {statement}")
        with pytest.raises(LacksChangesError) as stopped:
            lake.fold(source.lsn, log_begins=1)
        assert "cdcd tables resume public.docs" in stopped.value.hint
        # AND otherwise has the rows of its source, and goes on
        lake.fold(source.lsn)
        assert lake.rows() == expected(source, source.lsn)
        source.run(3)
        lake.write(source)
        lake.fold(source.lsn)
        assert lake.rows() == expected(source, source.lsn)
    # WHEN the owner's table has other columns, THEN it stops by name
    spark.sql(f"{replaced} USING iceberg AS SELECT id, title FROM {table}")
    with pytest.raises(SinkError, match="_cdcd_commit_lsn"):
        lake.fold(source.lsn)


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_that_are_folded_side_by_side_follow_their_sources_each_to_its_own_position(
    spark: SparkSession, tmp_path: Path, unique: str, table_format: str
) -> None:
    lakes = [Lake(spark, str(tmp_path / f"{n}"), f"{unique}_{n}", table_format) for n in range(3)]
    sources = [Source(seed) for seed in range(3)]
    sessions = Sessions(spark)

    def fold(session: SparkSession, number: int) -> Folded:
        return lakes[number].fold(sources[number].lsn, spark=session)

    for form in ("form-1", "form-1", "form-2"):
        for number, (lake, source) in enumerate(zip(lakes, sources, strict=True)):
            source.run(6 + number)
            lake.write(source, form)
        done = sessions.each(2, fold, range(3))
        assert [each.attempts for each in done] == [1, 1, 1] or form == "form-2"
        for lake, source in zip(lakes, sources, strict=True):
            assert lake.rows() == expected(source, source.lsn)
            position = lake.format.version(spark, lake.table).position
            assert position is not None
            assert (position.lsn, position.clean) == (source.lsn, True)
    assert all("note" in spark.table(lake.table).columns for lake in lakes)


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_equal_their_source_through_changes_of_tables(
    stage: Stage, spark: SparkSession, table_format: str
) -> None:
    with stage.source(f"base_{table_format}", *TABLES) as source, source.connect() as connection:
        workload = Workload(connection, 7, source.deliver)
        mirror = source.mirror(table_format, change_log="fold", tables={"exclude": ["public.log"]})
        # GIVEN a mirror, and a workload with all changes of definitions after it
        workload.run(20)
        source.deliver()
        assert mirror.once() == 0, mirror.errors()[-3000:]
        workload.run(20, definitions=len(DEFINITIONS))
        for statement in TOUCH:
            connection.execute(statement)
        source.deliver()
        # WHEN it has caught up
        assert mirror.once() == 0, mirror.errors()[-3000:]
        # THEN all tables equal the source
        target = target_for(spark, mirror, f"c_{source.name}")
        verdicts = compare(source.dsn, spark, target, MIRRORED)
        assert [str(verdict) for verdict in verdicts if not verdict.equal] == []
