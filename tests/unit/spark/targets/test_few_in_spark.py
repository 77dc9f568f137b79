"""Few changes reduced in the driver beside the same changes reduced by Spark."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.spark.jars import DELTA, ICEBERG
from cdcd.spark.records.changes import parse
from cdcd.spark.records.descriptions import Form
from cdcd.spark.targets.delta import DeltaTarget
from cdcd.spark.targets.few import Raw, frame, reduce_few
from cdcd.spark.targets.iceberg import IcebergTarget
from cdcd.spark.targets.lakehouse import Lakehouse
from cdcd.spark.targets.layout import Layout
from cdcd.spark.targets.reduction import fresh, prepared, summary
from cdcd.spark.targets.reduction import reduced as by_spark
from cdcd.spark.targets.state import Origin, Place, Reach, State
from cdcd.spark.targets.target import Applied, Kind, New
from tests.unit.spark.targets.test_few import FORMS, PLAIN, form_of, raw

FORM = form_of(*FORMS, ("local", "timestamp"), ("time", "time_ms"), ("amount", "decimal"))
NULLS = dict.fromkeys([name for name, _ in FORMS])
STATE = State(commit_lsn=2, partitions={0: Place(2, 1, 1, 2)})


def records_of(spark: SparkSession, records: list[Raw]) -> DataFrame:
    """As Spark's source gives them."""
    rows = [(each.partition, each.offset, each.value) for each in records]
    given = spark.createDataFrame(rows, "partition int, offset bigint, value binary")
    headers = sf.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers")
    return given.select("*", sf.lit(None).cast("binary").alias("key"), sf.lit("t").alias("topic"), headers)


def texts(rows: DataFrame, form: Form) -> list[tuple[Any, ...]]:
    """The rows with their values as text, for Python has no year 294247."""
    names = ["_cdcd_op", "_cdcd_commit_lsn", "_cdcd_event_no", "_cdcd_keep", "_cdcd_lost"]
    names += [f"`{column.name}`" for column in form.schema.columns]
    assert [field.dataType for field in rows.select(names[5:]).schema] == [
        column.spark for column in form.schema.columns
    ]
    return sorted(map(tuple, rows.select([sf.col(name).cast("string") for name in names]).collect()))


def test_the_rows_are_those_that_spark_makes_of_the_records(spark: SparkSession):
    notes = ["it's", 'say "no"', "back\\slash", "${x}", "two\nlines", "", "Grüße 🐘", "\\u0041", "$", "%s"]
    rows = [PLAIN | {"id": number, "note": note} for number, note in enumerate(notes)]
    rows += [
        NULLS | {"id": 100},
        PLAIN | {"id": -(2**63), "n": -32768, "ratio": -0.001, "price": "-1234.50", "amount": "NAN"},
        PLAIN | {"id": 101, "day": -2147472692, "at": "0001-01-01T00:00:00Z", "ratio": 3, "amount": "1e5"},
        PLAIN
        | {"id": 102, "day": -800_000, "at": "9999-12-31T23:59:59.999999Z", "flag": False, "price": "0"},
        PLAIN | {"id": 103, "local": -9_000_000_000_000_001, "time": 86_399_999, "price": "007.5"},
    ]
    records = [raw("c", number, row) for number, row in enumerate(rows, 1)]
    records += [
        raw("u", 50, PLAIN | {"n": 8}, before=PLAIN),
        raw("d", 60, NULLS | {"id": 2}),
        Raw(0, 61, None),
    ]
    few = reduce_few(records, FORM, STATE, None)
    assert few is not None
    changes = fresh(prepared(parse(records_of(spark, records), FORM.schema, FORM.rules)), STATE)
    assert changes.filter("problem IS NOT NULL").isEmpty()
    reduced = by_spark(changes, FORM.schema, ()).cache()
    live = sf.col("_cdcd_op") != "d"
    mine = frame(spark, few, FORM)
    assert texts(mine.filter(live), FORM) == texts(reduced.filter(live), FORM)
    # Of what is deleted only the key matters.
    gone = [[row["id"] for row in each.filter(~live).collect()] for each in (mine, reduced)]
    assert gone[0] == gone[1] == [2]
    want = summary(reduced, FORM.schema)
    got = few.found
    assert (got.changes, got.keys, got.last, got.held, got.waiting, got.key_range, got.unfit) == (
        want.changes, want.keys, want.last, want.held, want.waiting, want.key_range, want.unfit,
    )  # fmt: skip
    assert got.commit_time is not None
    assert want.commit_time is not None
    assert got.commit_time.timestamp() == want.commit_time.timestamp()


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_few_changes_go_into_a_new_table_and_are_merged_into_it_with_their_position(
    spark: SparkSession, warehouse: Path, table_format: str
):
    def target() -> Lakehouse:
        place = warehouse / "few"
        return IcebergTarget("lake", "few") if table_format == ICEBERG else DeltaTarget(str(place))

    first, new = target(), New(FORM.schema, Kind.MIRROR)
    name = first.name_of(FORM.schema, Kind.MIRROR)
    assert first.takes_reduced(spark, name, new)
    assert not first.takes_reduced(spark, name, New(FORM.schema, Kind.MIRROR, Layout(4)))

    def apply(to: Lakehouse, until: int, *records: Raw) -> Applied:
        few = reduce_few(records, FORM, to.reached(spark, name), None)
        assert few is not None
        rows = frame(spark, few, FORM) if few.changes else None
        origin, reach = Origin("first", {0: 0}), Reach({0: until})
        return to.apply_reduced(spark, name, rows, few.found, batch_id=3, new=new, origin=origin, reach=reach)

    made = [raw("c", lsn, PLAIN | {"id": lsn}) for lsn in (1, 2, 3)]
    assert apply(first, 5, *made).changes == 3
    # WHEN changes come, those before them once more
    again = target()
    changed = [raw("u", 11, PLAIN | {"id": 1, "note": "new"}), raw("d", 12, PLAIN | {"id": 2})]
    changed += [
        raw("c", 13, NULLS | {"id": 4}),
        raw("c", 14, PLAIN | {"id": 5}),
        raw("d", 15, PLAIN | {"id": 5}),
    ]
    done = apply(again, 20, *made, *changed)
    # THEN they are in the table, and the commit says so
    assert (done.changes, done.rows, done.state.commit_lsn) == (5, 4, 15)
    last = target()
    assert last.reached(spark, name) == done.state
    assert done.state.partitions == {0: Place(15, 1, 1, 19)}
    assert done.state.batch_id == 3
    rows = {row["id"]: row["note"] for row in spark.table(name).select("id", "note").collect()}
    assert rows == {1: "new", 3: "it's", 4: None}
    # AND nothing is committed where nothing is new
    assert (apply(last, 25, *made, *changed).changes, target().reached(spark, name)) == (0, done.state)
