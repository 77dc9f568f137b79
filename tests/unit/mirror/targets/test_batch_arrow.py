import datetime as dt
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType

from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.batch_arrow import (
    KEYS_MAX,
    TABLE_BYTES_MAX,
    brought_in,
    joined,
    limits,
    rewritten_bytes,
)
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import EVENT, LSN, OP, Summary
from cdcd.mirror.targets.small_files import VALUES_BYTES_MAX, Limits

ID = ColumnSchema("id", 1, "bigint", 20, -1, LongType())
PART = ColumnSchema("part", 2, "text", 25, -1, StringType())
N = ColumnSchema("n", 3, "integer", 23, -1, IntegerType())
FORM = TableSchema("shop.public.items", "public", "items", "form-1", ("id", "part"), (ID, PART, N))
OWN = {"_cdcd_commit_lsn": pa.int64(), "_cdcd_event_no": pa.int64(), "_cdcd_unknown": pa.list_(pa.string())}
ROWS = pa.schema({"id": pa.int64(), "part": pa.string(), "n": pa.int32(), **OWN})
CHANGES = pa.schema({"_cdcd_op": pa.string(), "id": pa.int64(), "part": pa.string(), "n": pa.int32(), **OWN})
FOUND = Summary(
    changes=9, keys=3000, last=(9, 1), held={}, waiting=0, truncated=None, partial=frozenset(), moves=False,
    key_range=None, hashes=frozenset(), unfit=0, commit_time=None, values_bytes=100,
)  # fmt: skip

Row = tuple[Any, ...]


def table(rows: list[Row], schema: pa.Schema = ROWS) -> pa.Table:
    return pa.table(list(map(list, zip(*rows, strict=True))) or [[]] * len(schema), schema=schema)


def after(rows: list[Row], *changes: Row) -> list[Row] | None:
    """Rows and changes: id, part, n, commit LSN, number of the event; a change has its op before them."""
    found = joined(
        table([(*row, None) for row in rows]),
        table([(*change, None) for change in changes], CHANGES),
        FORM.key,
    )
    if found is None:
        return None
    assert found.schema == ROWS
    return sorted(tuple(row.values())[:-1] for row in found.to_pylist())


def test_changes_go_in_as_a_merge_brings_them_in():
    rows = [(1, "a", 1, 10, 1), (1, "b", 2, 10, 2), (3, "c", 3, 30, 1), (4, "d", 4, 30, 1)]
    changes = [
        ("u", 1, "a", 11, 20, 1),
        ("d", 1, "b", None, 20, 2),
        ("u", 3, "c", 33, 20, 3),
        ("d", 4, "d", None, 20, 4),
        ("c", 5, "e", None, 20, 5),
        ("r", 6, "f", 6, 20, 6),
        ("d", 7, "g", None, 20, 7),
    ]
    want = [
        (1, "a", 11, 20, 1), (3, "c", 3, 30, 1), (4, "d", 4, 30, 1), (5, "e", None, 20, 5), (6, "f", 6, 20, 6)
    ]  # fmt: skip
    assert after(rows, *changes) == want
    # The same changes once more change nothing.
    assert after(want, *changes) == want
    assert after([], *changes) == [
        (1, "a", 11, 20, 1), (3, "c", 33, 20, 3), (5, "e", None, 20, 5), (6, "f", 6, 20, 6)
    ]  # fmt: skip
    assert after(rows) == rows


def test_of_one_commit_the_number_of_the_event_decides():
    rows = [(1, "a", 1, 20, 7)]
    assert [after(rows, ("u", 1, "a", 2, 20, event)) for event in (6, 7)] == [rows, rows]
    assert after(rows, ("u", 1, "a", 2, 20, 8)) == [(1, "a", 2, 20, 8)]
    assert after(rows, ("d", 1, "a", None, 20, 7)) == rows
    assert after(rows, ("d", 1, "a", None, 20, 8)) == []


def test_a_table_that_has_a_key_twice_is_left_to_spark():
    twice = [(1, "a", 1, 10, 1), (1, "a", 2, 10, 2)]
    assert after(twice, ("u", 1, "a", 3, 20, 1)) is None
    assert after(twice, ("u", 2, "a", 3, 20, 1)) == [*twice, (2, "a", 3, 20, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_random_rows_and_changes_give_what_a_dictionary_gives(seed: int):
    chance = random.Random(seed)
    keys = [(number, text) for number in range(40) for text in ("", "a", "Grüße")]

    def at() -> tuple[int, int]:
        return chance.randrange(5), chance.randrange(5)

    rows = {key: (chance.randrange(100), *at()) for key in chance.sample(keys, chance.randrange(100))}
    changes = {
        key: (chance.choice("cudr"), chance.randrange(100), *at())
        for key in chance.sample(keys, chance.randrange(100))
    }
    want = dict(rows)
    for key, (op, *values) in changes.items():
        if key in rows and rows[key][1:] >= tuple(values[1:]):
            continue
        want.pop(key, None)
        if op != "d":
            want[key] = (values[0], values[1], values[2])
    given = [(op, *key, *values) for key, (op, *values) in changes.items()]
    assert after([(*key, *values) for key, values in rows.items()], *given) == sorted(
        (*key, *values) for key, values in want.items()
    )


@pytest.mark.parametrize(
    ("type_", "first", "last"),
    [
        (pa.bool_(), False, True),
        (pa.int16(), -1, 1),
        (pa.binary(), b"\0", b"\xff"),
        (pa.date32(), dt.date(1, 1, 1), dt.date(9999, 12, 31)),
        (pa.decimal128(38, 2), Decimal("-0.01"), Decimal("0.01")),
        (pa.timestamp("us"), -9_223_372_036_832_400_000, 9_223_372_036_825_200_000),
        (pa.timestamp("us", tz="UTC"), -1, 9_223_372_036_825_200_000),
    ],
)
def test_a_key_may_be_of_any_type_whose_values_are_equal_or_not(type_: pa.DataType, first: Any, last: Any):
    place = {
        LSN: pa.array([10, 10]),
        EVENT: pa.array([1, 1]),
        UNKNOWN: pa.array([None, None], pa.list_(pa.string())),
    }
    rows = pa.table({"id": pa.array([first, last], type_), **place})
    changes = pa.table({OP: ["d"], "id": pa.array([last], type_), LSN: [20], EVENT: [1], UNKNOWN: [None]})
    changes = changes.set_column(4, UNKNOWN, pa.array([None], pa.list_(pa.string())))
    found = joined(rows, changes, ("id",))
    assert found is not None
    assert found["id"].combine_chunks() == pa.array([first], type_)


def test_a_table_with_other_columns_than_a_plain_mirror_is_left_to_spark(spark: SparkSession):
    rows = table([(1, "a", 1, 10, 1, None)])
    source = spark.sql(
        "SELECT 'u' _cdcd_op, 1L id, 'a' part, 2 n, 20L _cdcd_commit_lsn, 1L _cdcd_event_no, array() _cdcd_keep"
    )
    found = brought_in(rows, source, FORM)
    assert found is not None
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, "a", 2, 20, 1, None)]
    assert brought_in(rows.append_column("_cdcd_deleted", pa.array([False])), source, FORM) is None
    assert brought_in(rows.drop_columns(["n"]), source, FORM) is None


def test_a_batch_that_is_not_plain_or_too_large_is_left_to_spark():
    assert limits(FOUND, FORM) == Limits(1_536_000, KEYS_MAX)
    assert limits(replace(FOUND, keys=1), FORM) == Limits(256 << 10, KEYS_MAX)
    assert limits(replace(FOUND, keys=KEYS_MAX, values_bytes=VALUES_BYTES_MAX), FORM) == Limits(
        TABLE_BYTES_MAX, KEYS_MAX
    )
    others: list[dict[str, Any]] = [
        {"truncated": (5, 1)}, {"partial": frozenset({"n"})}, {"moves": True}, {"keys": KEYS_MAX + 1},
        {"values_bytes": VALUES_BYTES_MAX + 1}, {"values_bytes": None},
    ]  # fmt: skip
    assert [limits(replace(FOUND, **other), FORM) for other in others] == [None] * len(others)
    assert limits(FOUND, replace(FORM, key=())) is None
    # NaN, and -0.0 beside 0.0, are other keys for Arrow than for Spark.
    ratio = replace(PART, spark=DoubleType())
    assert limits(FOUND, replace(FORM, columns=(ID, ratio, N))) is None


@pytest.mark.parametrize(("keys", "size"), [(1, 256 << 10), (2048, 256 << 10), (100_000, 12_800_000)])
def test_the_table_whose_files_a_merge_replaces_grows_with_the_batch(keys: int, size: int):
    assert rewritten_bytes(keys) == size
