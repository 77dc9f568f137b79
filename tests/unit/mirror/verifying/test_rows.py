"""Sums and differences, by Spark."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from cdcd.core.records.flattening import Flattening
from cdcd.mirror.base.part import records_of
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.verifying.forms import Compared, ComparedColumn
from cdcd.mirror.verifying.rows import (
    ONLY_MIRROR,
    Excuses,
    RangeSum,
    Sums,
    deleted_keys,
    differing,
    flagged,
    in_ranges,
    mirror_side,
    source_side,
    sums,
    tell,
)
from cdcd.mirror.verifying.texts import shown, text
from cdcd.mirror.verifying.waiting import Deletes
from cdcd.tools.verify.comparing import DIFFERS, ONLY_SOURCE, ComparedOutcome
from tests.unit.core.records.test_change_headers import FLAT
from tests.unit.core.records.test_change_headers import records_of as encoded
from tests.unit.mirror.records.test_values import READ, TOPIC, described, in_log

ID = ComparedColumn("id", "id", IntegerType())
NAME = ComparedColumn("name", "called", StringType())
TAGS = ComparedColumn("tags", "tags", ArrayType(StringType()))
WHAT = Compared((ID, NAME, TAGS), (ID,))

AFTER = "after struct<id int, name string, tags array<string>>, problem string"
MIRROR = "id int, called string, tags array<string>, _cdcd_commit_lsn bigint, _cdcd_unknown array<string>"


def source_of(spark: SparkSession, *rows: Any) -> DataFrame:
    return source_side(spark.createDataFrame([(row, None) for row in rows], AFTER), WHAT)


def mirror_of(spark: SparkSession, *rows: Any) -> DataFrame:
    return mirror_side(spark.createDataFrame([(*row, 5, None)[:5] for row in rows], MIRROR), WHAT)


def none_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "k string")


def outcome_of(
    spark: SparkSession, source: DataFrame, mirror: DataFrame, excuses: Excuses
) -> ComparedOutcome:
    outcome = ComparedOutcome()
    nobody = none_of(spark)
    ours, theirs = flagged(source, nobody), flagged(mirror, nobody)
    ranges = sums(ours, 3).differing(sums(theirs, 3))
    found = differing(in_ranges(ours, ranges), in_ranges(theirs, ranges), 3)
    tell(found, WHAT, outcome, excuses)
    return outcome


def test_ranges_differ_where_the_number_or_the_sum_of_rows_does():
    ours = Sums({1: RangeSum(2, 10), 2: RangeSum(1, 7), 3: RangeSum(1, 4)}, 4)
    theirs = Sums({1: RangeSum(2, 10), 2: RangeSum(1, 8), 4: RangeSum(1, 4)}, 4)
    assert ours.differing(theirs) == [2, 3, 4]
    assert ours.differing(ours) == []


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (DoubleType(), [0.0, -0.0, float("nan"), float("inf"), 0.1, 0.1 + 1e-17 * 2, 0.10000000000000002]),
        (ArrayType(IntegerType()), [None, [], [None], [1], [1, None], [None, 1]]),
        (ArrayType(StringType()), [["null"], [None], ["1,2"], ["1", "2"], ['"'], [""]]),
        (ArrayType(ArrayType(LongType())), [[[1], [2]], [[1, 2]], [[1], None]]),
        (BinaryType(), [b"", b"\x00", b"\x00\x00"]),
        (DecimalType(10, 2), [Decimal("1.10"), Decimal("1.01")]),
        (
            StructType([StructField("x", DoubleType()), StructField("y", DoubleType())]),
            [None, (None, 1.0), (1.0, None), (1.0, 1.0)],
        ),
    ],
)
def test_two_values_have_the_same_text_only_if_they_are_equal(
    spark: SparkSession, type_: DataType, values: list[Any]
) -> None:
    frame = spark.createDataFrame(
        [(value,) for value in values], StructType([StructField("v", type_)])
    ).select(text(sf.col("v"), type_).alias("t"))
    texts = [row["t"] for row in frame.collect()]
    distinct = {repr(value) for value in values}
    assert len(set(texts)) == len(distinct)
    assert [each is None for each in texts] == [value is None for value in values]


def test_a_null_that_changes_its_place_changes_the_sum(spark: SparkSession) -> None:
    nobody = none_of(spark)
    for one, other in (
        ((1, None, ["a"]), (1, "a", None)),
        ((1, "", None), (1, None, None)),
        ((1, "a", [None]), (1, "a", [])),
    ):
        ours = sums(flagged(source_of(spark, one), nobody), 3)
        theirs = sums(flagged(mirror_of(spark, other), nobody), 3)
        assert len(ours.differing(theirs)) == 1, (one, other)
        assert ours.rows == theirs.rows == 1


def test_each_difference_is_named_once_and_equal_rows_are_not(spark: SparkSession) -> None:
    # GIVEN rows that are equal, altered, only here, only there, twice, twice with an altered one
    source = source_of(
        spark,
        (1, "same", ["x", None]),
        (2, "x" * 100, None),
        (3, "gone", None),
        (5, "twice", None),
        (6, "twice", None),
    )
    mirror = mirror_of(
        spark,
        (1, "same", ["x", None]),
        (2, "x" * 99 + "y", []),
        (4, "new", None),
        (5, "twice", None),
        (5, "twice", None),
        (6, "twice", None),
        (6, "other", None),
    )
    # WHEN they are compared
    outcome = outcome_of(spark, source, mirror, Excuses())
    # THEN each is named, with both values, long ones cut
    found = {each.key: each for each in outcome.differences}
    assert outcome.differing == len(found) == 5
    assert {key: each.kind for key, each in found.items()} == {
        '{"id":"2"}': DIFFERS,
        '{"id":"3"}': ONLY_SOURCE,
        '{"id":"4"}': ONLY_MIRROR,
        '{"id":"5"}': DIFFERS,
        '{"id":"6"}': DIFFERS,
    }
    name, tags = found['{"id":"2"}'].columns
    assert (name.column, tags.column, tags.source, tags.topics) == ("name", "tags", "NULL", "[]")
    assert name.source.startswith("x" * 24 + "… (100 bytes, sha256 ")
    assert name.source != name.topics
    assert [tuple(each) for each in found['{"id":"5"}'].columns] == [("(how often)", "1", "2")]
    assert [tuple(each) for each in found['{"id":"6"}'].columns] == [
        ("(how often)", "1", "2"),
        ("name", "twice", "other"),
    ]
    assert [tuple(each) for each in found['{"id":"4"}'].columns] == [("id", "", "4"), ("name", "", "new")]


def test_a_value_that_the_mirror_never_got_is_not_compared_and_any_other_null_is_a_difference(
    spark: SparkSession,
) -> None:
    source = source_of(spark, (1, "a", ["t"]), (2, "a", ["t"]), (3, "a", ["t"]))
    mirror = mirror_of(spark, (1, None, ["t"], 5, ["called"]), (2, None, ["t"]), (3, None, [], 5, ["called"]))
    outcome = outcome_of(spark, source, mirror, Excuses())
    assert {each.key: [column.column for column in each.columns] for each in outcome.differences} == {
        '{"id":"2"}': ["name"],
        '{"id":"3"}': ["tags"],
    }
    assert outcome.not_compared == {"values of name that the mirror never got (_cdcd_unknown)": 2}


def test_rows_of_one_side_may_be_excused_and_are_counted_then(spark: SparkSession) -> None:
    source, mirror = source_of(spark, (1, "a", None)), mirror_of(spark, (2, "a", None))
    outcome = outcome_of(spark, source, mirror, Excuses("still being read", "it fits no type"))
    assert outcome.differing == 0
    assert outcome.not_compared == {
        f"rows that are {ONLY_SOURCE}: still being read": 1,
        f"rows that are {ONLY_MIRROR}: it fits no type": 1,
    }


def test_keys_that_changed_meanwhile_are_left_out_and_counted_among_the_rows(spark: SparkSession) -> None:
    keys = spark.createDataFrame([('["1"]',)], "k string")
    ours = flagged(source_of(spark, (1, "old", None), (2, "a", None)), keys)
    theirs = flagged(mirror_of(spark, (1, "new", None), (2, "a", None)), keys)
    assert sums(ours, 3).differing(sums(theirs, 3)) == []
    assert sums(ours, 3).rows == 2
    assert in_ranges(ours, range(4096)).count() == 1


def test_a_row_that_fits_no_type_is_counted_and_not_compared(spark: SparkSession) -> None:
    frame = spark.createDataFrame([((1, "a", None), "its tags is no array"), ((2, "b", None), None)], AFTER)
    found = sums(flagged(source_side(frame, WHAT), none_of(spark)), 3)
    assert (found.rows, found.unfit, sum(each.rows for each in found.ranges.values())) == (2, 1, 1)


def test_what_is_shown_is_of_bounded_length(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,), ("short",), ("é" * 1000,)], "t string").select(
        shown(sf.col("t")).alias("s")
    )
    null, short, long = [row["s"] for row in frame.collect()]
    assert (null, short) == ("NULL", "short")
    assert long.startswith("é" * 24 + "… (2000 bytes, sha256 ")
    assert len(long) < 80


def deletes_in(
    spark: SparkSession, value_format: str, flattening: Flattening | None, **more: Any
) -> tuple[Deletes, TableSchema]:
    """The deletes and truncates that a log has of a table, and the table's form."""
    records = encoded(value_format, flattening, **more)
    known = described(records)
    deletes = Deletes.of(
        records_of(in_log(spark, records).filter(sf.col("op").isin("d", "t"))).persist(), TOPIC, known
    )
    assert deletes is not None
    return deletes, known.newest(TOPIC).schema


def keys_of(deletes: Deletes, mirror: TableSchema) -> list[str | None]:
    found = deleted_keys(deletes, mirror, Compared((ID, NAME), (ID,))).collect()
    return sorted([row["k"] for row in found], key=str)


@pytest.mark.parametrize("value_format", READ)
@pytest.mark.parametrize("flattening", [None, *FLAT.values()], ids=["envelopes", *FLAT])
def test_deletes_tell_their_keys_in_each_format(
    spark: SparkSession, value_format: str, flattening: Flattening | None
):
    deletes, schema = deletes_in(spark, value_format, flattening)
    # The key of an updated row, and that of a deleted one. Two truncates have none.
    assert keys_of(deletes, schema) == [None, None, '["1"]', '["2"]']


def test_deletes_without_the_header_tell_their_keys_in_json(spark: SparkSession):
    deletes, schema = deletes_in(spark, "json", None, change_header=False)
    assert keys_of(deletes, schema) == [None, None, '["1"]', '["2"]']


def test_a_delete_in_a_form_that_is_not_known_or_has_another_key_tells_no_key(spark: SparkSession):
    deletes, schema = deletes_in(spark, "avro", None)
    assert keys_of(replace(deletes, forms={}), schema) == [None] * 4
    assert keys_of(deletes, replace(schema, oid=8)) == [None] * 4


def test_there_are_no_deletes_where_there_is_no_record(spark: SparkSession):
    records = spark.createDataFrame([], "form string")
    assert Deletes.of(records, TOPIC, described([])) is None
