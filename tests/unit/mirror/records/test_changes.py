"""Records to typed changes, and what is said of those that are none: in a real Spark, without Kafka."""

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.connect_schema import CLOSING, envelope_schema, opening, schema_of_key
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.types import rules, table_schema

FORMS = {
    "id": "int64", "price": "decimal(9,2)", "free": "decimal", "day": "date", "stamp": "timestamp",
    "coarse": "timestamp_ms", "at": "timestamptz", "clock": "time_ms", "raw": "bytes", "open": "boolean",
    "numbers": "int32[]", "grid": "int32[][]", "prices": "decimal(9,2)[]", "flags": "boolean[]", "place": "point",
    "doc": "json", "ratio": "float64", "times": "timestamptz[]", "note": "text",
}  # fmt: skip
FORM = TableForm(
    "public", "t", "x.public.t", ("id",),
    tuple([ColumnForm(name, place, form, 0, -1, form) for place, (name, form) in enumerate(FORMS.items(), 1)]),
)  # fmt: skip
ROW: dict[str, Any] = {
    "id": 1, "price": "12.30", "free": "1e-20", "day": 19723, "stamp": 1_700_000_000_123_456,
    "coarse": 1_700_000_000_123, "at": "2024-01-31T12:34:56.789000Z", "clock": 86_400_000, "raw": "AAE=", "open": True,
    "numbers": [1, None, 3], "grid": [[1, 2], [3, 4]], "prices": ["1.5", None], "flags": [True, None],
    "place": {"x": 1.0, "y": 2.5, "wkb": "zz", "srid": None}, "doc": '{"a": 1}', "ratio": 0.1,
    "times": ["2024-01-31T12:34:56.789000Z", None], "note": "né",
}  # fmt: skip


def record(
    op: str, after: dict[str, Any] | None, before: dict[str, Any] | None = None, **source: Any
) -> bytes:
    position = {"ts_us": 1_700_000_000_123_456, "commit_lsn": 100, "event_serial_no": 1, "schema_id": "abc"}
    return json.dumps({"before": before, "after": after, "source": {**position, **source}, "op": op}).encode()


def changes(
    spark: SparkSession,
    *values: bytes | None,
    headers: Sequence[tuple[str, bytes]] | None = None,
    **options: Any,
) -> list[Row]:
    rows = [(None, value, "x.public.t", 0, offset, headers) for offset, value in enumerate(values)]
    records = spark.createDataFrame(
        rows,
        "key binary, value binary, topic string, partition int, offset bigint,"
        " headers array<struct<key: string, value: binary>>",
    )
    parsed = parse(records, table_schema("abc", FORM, **options), rules(FORM, **options))
    found: list[Row] = parsed.orderBy("offset").collect()
    return found


def test_a_row_has_the_values_of_its_types(spark: SparkSession):
    (found,) = changes(spark, record("c", ROW))
    assert found[PROBLEM] is None
    assert found["key"].asDict() == {"id": 1}
    after = found["after"].asDict(recursive=True)
    assert after == {
        "id": 1, "price": Decimal("12.30"), "free": "1e-20", "day": date(2024, 1, 1),
        "stamp": datetime.fromisoformat("2023-11-14T22:13:20.123456"),
        "coarse": datetime.fromisoformat("2023-11-14T22:13:20.123"),
        "at": after["at"], "clock": 86_400_000_000, "raw": bytearray(b"\x00\x01"), "open": True,
        "numbers": [1, None, 3], "grid": [[1, 2], [3, 4]], "prices": [Decimal("1.50"), None], "flags": [True, None],
        "place": {"x": 1.0, "y": 2.5}, "doc": '{"a": 1}', "ratio": 0.1, "times": [after["at"], None], "note": "né",
    }  # fmt: skip
    assert after["at"].timestamp() == 1_706_704_496.789
    assert (found["op"], found["commit_lsn"], found["event_no"], found["schema_id"]) == ("c", 100, 1, "abc")


# With a column whose name looks like the end of the schema.
RELATION = Relation(None, 1, "public", "t", "d", (Column(1, "id", 20, -1), Column(0, ',"payload":', 25, -1)))


def with_schema(payload: bytes) -> bytes:
    """A value as a daemon with `format: json_schema` writes it."""
    return opening(envelope_schema(RELATION, [0], {}, "x.public.t")) + payload + CLOSING


def test_a_record_with_its_schema_is_the_change_without_it(spark: SparkSession):
    row = {**ROW, "note": 'a","payload":{"b":1}}'}
    values = [record("c", row), record("d", None, {"id": 1})]
    plain = changes(spark, *values, headers=[("__debezium.oldkey", b'{"id":7}')])
    key = opening(schema_of_key(RELATION, [0], {}, "x.public.t")) + b'{"id":7}' + CLOSING
    found = changes(spark, *map(with_schema, values), headers=[("__debezium.oldkey", key)])
    assert found == plain
    assert [one[PROBLEM] for one in found] == [None, None]
    assert found[0]["old_key"].asDict() == {"id": 7}


def test_what_is_rare_but_legal_has_a_rule(spark: SparkSession):
    rare = {
        "price": "NAN", "free": "NEGATIVE_INFINITY", "day": -2147472692, "stamp": 9_223_372_036_825_200_000,
        "coarse": -9_223_372_036_832_400, "at": "infinity", "ratio": "NaN", "times": ["-infinity"],
    }  # fmt: skip
    old = {"day": -735_000, "at": "-0043-03-15T00:00:00Z", "stamp": -62_135_596_800_000_001}
    rows = [(None, record("c", {**ROW, **each}), "t", 0, at, None) for at, each in enumerate((rare, old))]
    records = spark.createDataFrame(
        rows,
        "key binary, value binary, topic string, partition int, offset bigint,"
        " headers array<struct<key: string, value: binary>>",
    )
    parsed = parse(records, table_schema("abc", FORM), rules(FORM)).orderBy("offset")
    texts = parsed.selectExpr(
        PROBLEM, "after.price", "after.free", "unix_date(after.day)", "unix_micros(cast(after.stamp AS timestamp))",
        "unix_micros(cast(after.coarse AS timestamp))", "unix_micros(after.at)", "cast(after.ratio AS string)",
        "unix_micros(after.times[0])", "cast(after.at AS string)",
    )  # fmt: skip
    first, second = [list(row) for row in texts.collect()]
    infinity, minus = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
    assert first[:9] == [None, None, "-Infinity", 2147483647, infinity, minus, infinity, "NaN", minus]
    assert (second[0], second[3], second[4], second[9]) == (
        None, -735_000, -62_135_596_800_000_001, "-0043-03-15 00:00:00",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("op", "columns", "is_problem"),
    [("c", ["price"], True), ("r", ["price"], True), ("d", ["price"], False), ("d", ["price", "id"], True)],
)
def test_a_row_without_a_form_for_a_value_is_a_problem_unless_only_its_key_is_needed(
    spark: SparkSession, op: str, columns: list[str], is_problem: bool
):
    row = {**ROW, "price": None}
    value = record("d", None, row) if op == "d" else record(op, row)
    (found,) = changes(spark, value, headers=[("cdcd.unwritable", json.dumps(columns).encode())])
    problem = f"its format has no form for a value of {', '.join(columns)}"
    assert found[PROBLEM] == (problem if is_problem else None)


def test_a_placeholder_is_no_problem_and_its_column_is_named(spark: SparkSession):
    absent = "__debezium_unavailable_value"
    row = {**ROW, "note": absent, "flags": [absent], "times": [absent], "prices": [absent], "doc": absent}
    headers = [
        ("cdcd.unchanged", b'["note","flags","times","prices","doc"]'),
        ("__debezium.oldkey", b'{"id":77}'),
    ]
    (found,) = changes(spark, record("u", row), headers=headers)
    assert found[PROBLEM] is None
    assert found["unchanged"] == ["note", "flags", "times", "prices", "doc"]
    assert found["old_key"].asDict() == {"id": 77}
    assert found["new_key"] is None


def test_deletes_have_the_key_of_the_row_before_truncates_none_and_tombstones_are_left_out(
    spark: SparkSession,
):
    deleted, truncated = changes(spark, record("d", None, {"id": 5}), None, record("t", None))
    assert (deleted["op"], deleted["key"]["id"], deleted["after"]) == ("d", 5, None)
    assert (truncated["op"], truncated["key"], truncated[PROBLEM]) == ("t", None, None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"{ not json", "its JSON is not that of a change"),
        (b"", "its JSON is not that of a change"),
        (b"null", "its JSON is not that of a change"),
        (b"[]", "its JSON is not that of a change"),
        (record("c", {**ROW, "id": "one"}), "its JSON is not that of a change"),
        (record("c", {**ROW, "numbers": [[1]]}), "its JSON is not that of a change"),
        (record("c", {**ROW, "price": "dear"}), "its price is not the JSON of a decimal(9,2)"),
        (record("c", {**ROW, "at": "noon"}), "its at is not the JSON of a timestamptz"),
        (record("c", {**ROW, "flags": [3]}), "its flags is not the JSON of a boolean[]"),
        # The year 294276 is PostgreSQL's last one, and Spark's microseconds end before it.
        (
            record("c", {**ROW, "coarse": 9_224_318_015_999_999}),
            "its coarse is not the JSON of a timestamp_ms",
        ),
        (record("m", ROW), "its op is no change of a row: m"),
        (record("c", ROW, commit_lsn=None), "it has no source.commit_lsn"),
        (record("c", None), "it has no row in after"),
        (record("d", None), "it has no row in before"),
    ],
)
def test_what_is_no_change_says_why(spark: SparkSession, value: bytes, problem: str):
    (found,) = changes(spark, value)
    assert found[PROBLEM] == problem


def test_json_can_be_variant(spark: SparkSession):
    (found,) = changes(spark, record("c", {**ROW, "doc": '{"a": [1, null]}'}), variant=True)
    assert found["after"]["doc"].toPython() == {"a": [1, None]}
    (found,) = changes(spark, record("c", {**ROW, "doc": "{"}), variant=True)
    assert found[PROBLEM] == "its doc is not the JSON of a json"


RESERVED = TableForm(
    "public", "t", "x.public.t", ("_partition",),
    tuple([ColumnForm(name, place, form, 0, -1, form)
           for place, (name, form) in enumerate(
               (("_partition", "int32"), ("_file", "text"), ("n", "int32"), ("_pos", "date")), 1)]),
)  # fmt: skip


def test_columns_are_read_by_their_names_in_records_and_have_their_names_in_the_mirror(spark: SparkSession):
    row = {"_partition": 1, "_file": "a", "n": 2, "_pos": 0}
    values = [record("u", row), record("d", None, row)]
    headers = [("cdcd.unchanged", b'["_file", "n"]'), ("__debezium.oldkey", b'{"_partition": 7}')]
    records = spark.createDataFrame(
        [(None, value, "x.public.t", 0, offset, headers) for offset, value in enumerate(values)],
        "key binary, value binary, topic string, partition int, offset bigint,"
        " headers array<struct<key: string, value: binary>>",
    )
    schema = table_schema("abc", RESERVED, mirrored=True)
    assert schema.key == ("source__partition",)
    changed, deleted = parse(records, schema, rules(RESERVED, mirrored=True)).orderBy("offset").collect()
    mirrored = {"source__partition": 1, "source__file": "a", "n": 2, "source__pos": date(1970, 1, 1)}
    assert changed["after"].asDict() == deleted["before"].asDict() == mirrored
    assert changed["key"].asDict() == deleted["key"].asDict() == {"source__partition": 1}
    assert changed["old_key"].asDict() == {"source__partition": 7}
    assert changed["unchanged"] == ["source__file", "n"]
    assert changed[PROBLEM] is None


@pytest.mark.parametrize("text", [b"", b" ", b"null", b"[]", b"7", b"{"])
def test_an_old_key_that_is_no_object_is_a_key_of_nulls(spark: SparkSession, text: bytes):
    (found,) = changes(spark, record("u", ROW), headers=[("__debezium.oldkey", text)])
    assert (found["old_key"]["id"], found["key"]["id"]) == (None, 1)
