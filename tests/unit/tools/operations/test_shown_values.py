import json
import time
from decimal import Decimal
from typing import Any

import pytest

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.tools.operations.change_lines import Filter, ReadRecord, as_line
from cdcd.tools.operations.shown_values import BINARY, READ_S, ShownForms, shown, shown_content


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        ("3q2+7w==", "bytes", r"\xdeadbeef"),
        ("3q2-7w==", "bytes_base64_url", r"\xdeadbeef"),
        ("deadbeef", "bytes_hex", r"\xdeadbeef"),
        ("", "bytes", r"\x"),
        ("not base64!", "bytes", '"not base64!"'),
        ("zz", "bytes_hex", '"zz"'),
        ("12.50", "decimal(10,2)", "12.50"),
        ("NAN", "decimal", "NAN"),
        ("BOI=", "decimal_bytes(5,2)", "12.50"),
        ("/4Y=", "decimal_bytes(5,2)", "-1.22"),
        ("AA==", "decimal_bytes(5,2)", "0.00"),
        ("fQ==", "decimal_bytes(5,0)", "125"),
        ({"scale": 1, "value": "fQ=="}, "decimal_variable", "12.5"),
        ({"scale": 10**9, "value": "fQ=="}, "decimal_variable", '{"scale": 1000000000, "value": "fQ=="}'),
        ({"scale": "x", "value": 1}, "decimal_variable", '{"scale": "x", "value": 1}'),
        ("!", "decimal_bytes(5,2)", '"!"'),
        (20_786, "date", "2026-11-29"),
        (2_145_042_905, "date", "5874897-12-31"),
        (-735_160, "date", "0044-03-15 BC"),
        (-2_147_472_692, "date", "infinity"),
        (-2_147_472_691, "date_connect", "-infinity"),
        (45_296_789_000, "time", "12:34:56.789"),
        (45_296_789, "time_ms", "12:34:56.789"),
        (1_795_914_123_500_000, "timestamp", "2026-11-29 01:02:03.5"),
        (-1, "timestamp_ns", "1969-12-31 23:59:59.999999999"),
        (9_223_372_036_854_775_807, "timestamp", "9223372036854775807"),
        ("2026-11-29T01:02:03Z", "timestamptz", "2026-11-29T01:02:03Z"),
        (["3q0=", None], "bytes[]", r"[\xdead, null]"),
        ([[1], [2]], "int32[]", "[[1], [2]]"),
        (True, "boolean", "true"),
        (7, "int32", "7"),
        (Decimal("0.1"), "float64", "0.1"),
        (None, "bytes", "null"),
        ("a b", "text", '"a b"'),
        ('{"a": 1}', "json", '{"a": 1}'),
        ("{\ud800}", "text", '"{\\ud800}"'),
    ],
)
def test_a_value_is_shown_as_people_write_it(value: Any, form: str, text: str):
    assert shown(value, form) == text


def test_a_long_value_is_cut_and_its_size_is_shown():
    assert shown("x" * 500).endswith('x" (500 characters)')
    assert shown("x" * 500).startswith('"xxx')
    assert shown("/v7+" * 500, "bytes").endswith("fefe (1,500 bytes)")
    assert len(shown("x" * 10**6)) < 100
    assert "\x1b" not in shown("\x1b[2J" * 50, "timestamptz")


def test_the_content_of_a_message_is_text_if_it_is_text():
    assert shown_content("eA==", BINARY["bytes"]) == '"x"'
    assert shown_content("/w==", BINARY["base64"]) == r"\xff"
    assert shown_content("eA==", "") == '"eA=="'
    assert shown_content(None, "bytes") == "null"


def form(*columns: ColumnForm) -> TableForm:
    return TableForm(
        schema="public", table="orders", topic="shop.public.orders", key=("id",), columns=columns, oid=1
    )


COLUMNS = (
    ColumnForm("id", 1, "integer", 23, -1, "int32"),
    ColumnForm("total", 2, "numeric", 1700, -1, "decimal"),
    ColumnForm("card", 3, "bytea", 17, -1, "bytes", protected="hash"),
)


def line(descriptions: ShownForms | None, schema_id: str | None) -> str:
    source = {"schema": "public", "table": "orders", "ts_ms": 1_767_268_800_123, "schema_id": schema_id}
    after = {"id": 1, "total": "1.50", "card": "eA=="}
    seen = ReadRecord(
        "t", None, json.dumps({"op": "c", "source": source, "before": None, "after": after}).encode()
    )
    envelope = Filter().wanted(seen)
    assert envelope is not None
    return as_line(seen, envelope, descriptions).partition("public.orders ")[2]


def test_each_record_has_the_forms_of_its_description_and_a_protected_value_has_none():
    described = form(*COLUMNS)
    _, value = described.record()
    descriptions = ShownForms()
    descriptions.take(value)
    descriptions.take(b"no description")
    fingerprint = json.loads(value)["fingerprint"]
    assert line(descriptions, fingerprint) == 'id=1 total=1.50 card="eA=="'
    # Of another description, nothing is known.
    assert line(descriptions, "other") == 'id=1 total="1.50" card="eA=="'
    assert line(None, fingerprint) == 'id=1 total="1.50" card="eA=="'
    # A flattened record names no description.
    assert descriptions.of("public.orders", None)["total"] == "decimal"
    assert descriptions.of("public.items", None) == {}


def test_descriptions_are_read_when_one_is_missing_but_not_for_each_record():
    _, value = form(*COLUMNS).record()
    fingerprint = json.loads(value)["fingerprint"]
    reads: list[float] = []

    def read(take: Any) -> None:
        reads.append(time.monotonic())
        if len(reads) > 1:
            take(value)

    descriptions = ShownForms(read=read)
    for _ in range(100):
        assert descriptions.of("public.orders", fingerprint) == {}
    assert len(reads) == 1
    descriptions._read_at -= READ_S
    assert descriptions.of("public.orders", fingerprint)["total"] == "decimal"
    assert descriptions.of("public.orders", fingerprint)["total"] == "decimal"
    assert len(reads) == 2
