"""Changes that a job hands over: forms of tables, changelogs, rare values, and tables of a target's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
    VariantType,
)

from cdcd.mirror.api import apply_changes, create_scd2_view, scd2
from cdcd.mirror.base.given import form_of, reached
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.target import Kind, Maintenance, Target
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import EPOCH, frame
from tests.spark.test_given import FORM, ID, NOTE, N, change, rows

ODD: tuple[str, ...] = (
    "_op", "_offset", "_keep", "_lost", "_moved", "_changes", "_partial", "_unfit", "_commit_time",
    "_half", "_halves_high", "_at_0", "_fill_1", "_key_0", "_value", "_found", "_new_0", "_old_0", "_then", "_image",
    "_unknown", "last", "at", "key", "op", "partition", "offset", "changes", "place", "after", "value", "t", "s",
)  # fmt: skip


def test_a_truncate_is_in_order_with_rows_of_partitions_that_are_ahead_or_behind(
    spark: SparkSession, target: Target
):
    name = target.name_of(FORM, Kind.MIRROR)
    ahead = [change("c", 10, (1, 1, "a")), change("c", 30, (2, 2, "b"), partition=1)]
    apply_changes(target, frame(spark, ahead, FORM), FORM)
    # Partition 0 has the truncate; partition 2 lags and brings a row from before it.
    apply_changes(target, frame(spark, [change("t", 20, None)], FORM), FORM)
    late = [change("c", 15, (3, 3, "c"), partition=2), change("c", 25, (4, 4, "d"), partition=2)]
    apply_changes(target, frame(spark, late, FORM), FORM)
    assert rows(spark, name, "id") == [(2,), (4,)]


def test_a_table_follows_its_source_through_added_renamed_widened_and_dropped_columns(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = target.name_of(FORM, Kind.MIRROR)
    apply_changes(
        target, frame(spark, [change("c", 10, (1, 1, "a")), change("c", 11, (2, 2, "b"))], FORM), FORM
    )
    wide = replace(N, name="amount", spark=LongType(), type="bigint")
    flag = ColumnSchema("flag", 4, "text", 25, -1, StringType(), form="text", default='"it\'s \\\\ ${x}"')
    new = replace(FORM, schema_id="form-2", columns=(ID, wide, flag))
    # A process is killed after the first steps and before it could say so.
    spark.sql(f"ALTER TABLE {name} DROP COLUMN note")
    target = make_target()
    apply_changes(target, frame(spark, [change("u", 20, (2, 2**40, "x"))], new), new)
    assert rows(spark, name, "id", "amount", "flag") == [(1, 1, "it's \\ ${x}"), (2, 2**40, "x")]
    assert form_of(spark, target, name) == new
    # A partition that lags still brings the old form; the table keeps the new one.
    apply_changes(target, frame(spark, [change("c", 15, (3, 3, "c"), partition=1)], FORM), FORM)
    assert form_of(spark, target, name) == new
    assert rows(spark, name, "id", "amount", "flag")[2] == (3, 3, "it's \\ ${x}")
    # A form that the table cannot follow is refused, and the table stays as it was.
    text = replace(new, schema_id="form-3", columns=(ID, replace(wide, spark=StringType()), flag))
    with pytest.raises(IncompatibleSchemaError, match=r"public\.items: column amount"):
        apply_changes(target, frame(spark, [change("u", 30, (2, "x", "y"))], text), text)
    assert form_of(spark, target, name) == new
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("kind", Kind)
def test_names_of_columns_in_rows_follow_the_columns(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    target = make_target()
    name = target.name_of(FORM, kind)
    names, dropped = {
        Kind.MIRROR: ("_cdcd_unknown", None),
        Kind.CHANGELOG: ("_cdcd_unchanged", ["remark__dropped"]),
    }[kind]
    # GIVEN a row that the target never had, whose update did not send a value
    half = change("u", 11, (2, 2, None), unchanged=["note"])
    apply_changes(target, frame(spark, [change("c", 10, (1, 1, "a")), half], FORM), FORM, kind=kind)
    assert rows(spark, name, "id", names) == [(1, None), (2, ["note"])]
    # WHEN the column is renamed, THEN a later update that leaves it alone still does not know it
    renamed = replace(FORM, schema_id="form-2", columns=(ID, N, replace(NOTE, name="remark")))
    target = make_target()
    later = frame(spark, [change("u", 21, (2, 3, None), unchanged=["remark"])], renamed)
    apply_changes(target, later, renamed, kind=kind)
    assert rows(spark, name, "id", names)[-1] == (2, ["remark"])
    # WHEN it is dropped, THEN a mirror names it no more, and a changelog by the name that it has now
    without = replace(FORM, schema_id="form-3", columns=(ID, N))
    apply_changes(target, frame(spark, [change("c", 30, (3, 3))], without), without, kind=kind)
    assert (2, dropped) in rows(spark, name, "id", names)
    assert reached(spark, target, name).commit_lsn == 30


@pytest.mark.parametrize("kind", Kind)
def test_a_source_may_call_its_columns_what_it_likes(spark: SparkSession, target: Target, kind: Kind):
    odd = tuple([ColumnSchema(name, at, "text", 25, -1, StringType()) for at, name in enumerate(ODD, 10)])
    form = replace(FORM, columns=(ID, *odd))

    def row(id_: int, value: str | None) -> tuple[Any, ...]:
        return (id_, *[value for _ in ODD])

    name = target.name_of(form, kind)
    apply_changes(
        target,
        frame(spark, [change("c", 10, row(1, "a")), change("c", 11, row(2, "b"))], form),
        form,
        kind=kind,
    )
    # A key changes under values that are not sent, one row is updated without them, one goes.
    moved = [
        change("d", 20, row(1, None), new_key=(3,)),
        change("c", 20, row(3, None), old_key=(1,), unchanged=list(ODD), offset=21),
        change("u", 30, row(2, None), unchanged=[ODD[0]]),
    ]
    apply_changes(target, frame(spark, moved, form), form, kind=kind)
    found = rows(spark, name, "id", *[f"`{column}`" for column in ODD])
    if kind is Kind.MIRROR:
        assert found == [(2, "b", *[None for _ in ODD[1:]]), row(3, "a")]
    else:
        assert len(found) == 5


def test_a_changelog_has_each_change_once_and_gives_the_states_between_commits(
    spark: SparkSession, target: Target, unique: str
):
    name = target.name_of(FORM, Kind.CHANGELOG)
    changes = [
        change("c", 10, (1, 1, "a")),
        change("u", 20, (1, 2, None), unchanged=["note"]),
        change("u", 20, (1, 3, None), unchanged=["note"], event_no=2, offset=21),
        change("c", 20, (2, 9, "z"), event_no=3, offset=22),
        change("d", 30, (1, None, None)),
        change("t", 40, None),
    ]
    assert apply_changes(target, frame(spark, changes, FORM), FORM, kind=Kind.CHANGELOG).changes == 6
    assert apply_changes(target, frame(spark, changes, FORM), FORM, kind=Kind.CHANGELOG).changes == 0
    assert [row[0] for row in rows(spark, name, "_cdcd_op")] == ["c", "c", "d", "t", "u", "u"]
    states = scd2(spark, target, "public.items")
    found = sorted(map(tuple, states.select("id", "n", "note", "valid_from_lsn", "valid_to_lsn").collect()))
    assert found == [(1, 1, "a", 10, 20), (1, 3, "a", 20, 30), (2, 9, "z", 20, 40)]
    assert states.filter("is_current").isEmpty()
    # AND as a view, of Spark's own catalog here, it goes on with the table.
    view = f"spark_catalog.default.{unique}"
    create_scd2_view(spark, target, "public.items", view)
    apply_changes(target, frame(spark, [change("c", 50, (3, 1, "new"))], FORM), FORM, kind=Kind.CHANGELOG)
    (current,) = spark.table(view).filter("is_current").collect()
    assert (current["id"], current["valid_from"].timestamp()) == (3, EPOCH.timestamp() + 50)
    spark.sql(f"DROP VIEW {view}")


def test_readers_of_a_delta_table_need_type_widening_only_when_a_column_has_grown(
    spark: SparkSession, warehouse: Path, unique: str
):
    target = DeltaTarget(str(warehouse / "delta" / unique))
    name = target.name_of(FORM, Kind.MIRROR)
    apply_changes(target, frame(spark, [change("c", 10, (1, 1, "a"))], FORM), FORM)

    def features() -> list[str]:
        (row,) = spark.sql(f"DESCRIBE DETAIL {name}").select("tableFeatures").collect()
        return list(row["tableFeatures"])

    assert "typeWidening" not in features()
    grown = replace(
        FORM,
        schema_id="2",
        columns=tuple(
            replace(column, type="bigint", type_oid=20, spark=LongType()) if column.name == "n" else column
            for column in FORM.columns
        ),
    )
    apply_changes(target, frame(spark, [change("u", 20, (1, 2**40, "x"))], grown), grown)
    assert "typeWidening" in features()
    assert rows(spark, name, "id", "n") == [(1, 2**40)]


def test_a_table_without_a_key_has_the_old_row_of_an_update_beside_the_new_one(
    spark: SparkSession, target: Target
):
    form = replace(FORM, key=())
    name = target.name_of(form, Kind.CHANGELOG)
    update = change("u", 10, (1, 2, "new"), key=None, before=(1, 1, "old"))
    apply_changes(target, frame(spark, [update], form), form)
    assert rows(spark, name, "_cdcd_op", "id", "n", "note") == [("b", 1, 1, "old"), ("u", 1, 2, "new")]


def test_json_can_be_variant_in_a_new_table_and_in_a_column_that_comes_later(
    spark: SparkSession, target: Target
):
    doc = ColumnSchema("doc", 4, "jsonb", 3802, -1, VariantType())
    more = ColumnSchema("more", 5, "json", 114, -1, VariantType(), form="json", default='"{\\"a\\": 0}"')

    def with_documents(form: TableSchema, *values: tuple[int, str]) -> DataFrame:
        """Inserts; the VARIANT columns have what `note` has."""
        plain = replace(form, columns=(ID, N, NOTE))
        changes = frame(spark, [change("c", lsn, (lsn, 1, text)) for lsn, text in values], plain)
        documents = [sf.parse_json("after.note").alias(column.name) for column in form.columns[3:]]
        return changes.withColumns(
            {
                "after": sf.struct("after.*", *documents),
                "before": sf.lit(None).cast(form.row_type),
                "schema_id": sf.lit(form.schema_id),
            }
        )

    # GIVEN a table without such a column, and with rows
    name = target.name_of(FORM, Kind.MIRROR)
    apply_changes(target, frame(spark, [change("c", 1, (1, 1, "x"))], FORM), FORM)
    # WHEN it gets one, and another with a default
    form = replace(FORM, schema_id="form-2", columns=(*FORM.columns, doc))
    apply_changes(target, with_documents(form, (10, '{"a": 10}')), form)
    both = replace(form, schema_id="form-3", columns=(*form.columns, more))
    apply_changes(target, with_documents(both, (10, '{"a": 11}'), (20, '{"a": 20}')), both)
    # THEN paths into the documents can be read
    found = spark.table(name).selectExpr(
        "id", "variant_get(doc, '$.a', 'int') AS doc", "variant_get(more, '$.a', 'int') AS more"
    )
    assert sorted(map(tuple, found.collect())) == [(1, None, 0), (10, 10, 0), (20, 20, 20)]
    # AND a table may have it from the start
    other = replace(both, name="others")
    name = target.name_of(other, Kind.MIRROR)
    apply_changes(target, with_documents(other, (30, '{"a": 30}')), other)
    apply_changes(target, with_documents(other, (40, '{"a": 40}')), other)
    got = spark.table(name).selectExpr("variant_get(more, '$.a', 'int')").collect()
    assert sorted(row[0] for row in got) == [30, 40]


def test_what_is_rare_but_legal_is_in_the_table_as_it_was(spark: SparkSession, target: Target):
    form = replace(
        FORM,
        columns=(
            ID,
            ColumnSchema("day", 2, "date", 1082, -1, DateType()),
            ColumnSchema("at", 3, "timestamptz", 1184, -1, TimestampType()),
            ColumnSchema("ratio", 4, "double precision", 701, -1, DoubleType()),
            ColumnSchema("price", 5, "numeric(38,10)", 1700, -1, DecimalType(38, 10)),
        ),
    )
    name = target.name_of(form, Kind.MIRROR)
    rare = {
        # 44 BC, the year 20000, infinity, and as far back as the type goes.
        1: (-735_000, -63_000_000_000_000_000, "NaN", "9999999999999999999999999999.0123456789"),
        2: (6_585_000, 569_000_000_000_000_000, "Infinity", "-0.0000000001"),
        3: (2_147_483_647, 9_223_372_036_825_200_000, "-Infinity", "0"),
        4: (-2_147_483_648, -9_223_372_036_832_400_000, "-0.0", "1"),
    }
    read = "unix_date(day)", "unix_micros(at)", "CAST(ratio AS STRING)", "CAST(price AS STRING)"
    for lsn in (10, 20):  # appended first, merged then
        empty = frame(spark, [change("u", lsn + key, (key,) + (None,) * 4) for key in rare], form)
        values = spark.createDataFrame(
            [(key, *row) for key, row in rare.items()],
            "_id bigint, _day int, _at bigint, _ratio string, _price string",
        )
        row = sf.struct(
            sf.col("_id").alias("id"),
            sf.date_from_unix_date("_day").alias("day"),
            sf.timestamp_micros("_at").alias("at"),
            sf.col("_ratio").cast("double").alias("ratio"),
            sf.col("_price").cast("decimal(38,10)").alias("price"),
        )
        changes = empty.join(values, sf.col("key.id") == sf.col("_id")).withColumn("after", row)
        apply_changes(target, changes.select(empty.columns), form)
        found = spark.table(name).orderBy("id").selectExpr(*read).collect()
        want = values.orderBy("_id").selectExpr(
            "_day", "_at", "_ratio", "CAST(CAST(_price AS DECIMAL(38,10)) AS STRING)"
        )
        assert [tuple(row) for row in found] == [tuple(row) for row in want.collect()]


def test_rows_of_a_table_of_our_own_are_there_once(spark: SparkSession, target: Target):
    name = target.own_name("quarantine")
    one = spark.createDataFrame(
        [("t", 0, 1, "bad")], "topic string, partition int, offset bigint, reason string"
    )
    two = spark.createDataFrame([("t", 0, 2, "bad")], one.schema)
    place = ["topic", "partition", "offset"]
    assert target.append(name, one, place) == 1
    assert target.append(name, one.unionByName(two), place) == 1
    assert rows(spark, name, "offset") == [(1,), (2,)]


def test_rows_of_a_table_of_our_own_go_as_former_versions_do(spark: SparkSession, target: Target):
    name = target.own_name("consistent")
    hours = "at > current_timestamp() - INTERVAL 1 HOUR"
    for lsn, at in ((1, "2026-01-01"), (2, "2026-01-02"), (3, "2026-01-03"), (4, "2999-01-01")):
        row = spark.range(1).select(sf.lit(lsn).alias("commit_lsn"), sf.to_timestamp(sf.lit(at)).alias("at"))
        target.append(name, row, ["commit_lsn"])
    # Whatever their age, so many stay.
    assert target.prune(spark, name, "commit_lsn", Maintenance(keep_s=3600, keep_versions=3)) == 1
    assert rows(spark, name, "commit_lsn") == [(2,), (3,), (4,)]
    # However few, what is young stays.
    assert target.prune(spark, name, "commit_lsn", Maintenance(keep_s=3600, keep_versions=1)) == 2
    assert target.prune(spark, name, "commit_lsn", Maintenance(keep_s=3600, keep_versions=1)) == 0
    assert spark.table(name).filter(hours).count() == spark.table(name).count() == 1
    assert target.prune(spark, target.own_name("nowhere"), "commit_lsn", Maintenance()) == 0


@pytest.mark.parametrize("key", [(), FORM.key])
def test_a_change_that_was_sent_again_is_in_a_changelog_once(
    spark: SparkSession, make_target: MakeTarget, key: tuple[str, ...]
):
    target, form = make_target(), replace(FORM, key=key)
    name = target.name_of(form, Kind.CHANGELOG)
    more = {} if key else {"key": None}

    def sent(lsn: int, partition: int, offset: int) -> dict[str, object]:
        return change("c", lsn, (lsn, lsn, "x"), partition=partition, offset=offset, **more)

    # Within a batch, in the same partition and in another one, and in a later batch.
    batches = (
        [sent(10, 0, 1), sent(20, 0, 2), sent(10, 0, 3), sent(20, 1, 1)],
        [sent(20, 2, 1), sent(30, 2, 2), sent(15, 3, 1)],
        [sent(30, 0, 4), sent(15, 1, 2)],
    )
    for batch in batches:
        apply_changes(target, frame(spark, batch, form), form, kind=Kind.CHANGELOG)
    assert rows(spark, name, "id") == [(10,), (15,), (20,), (30,)]
