import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.types import rules, table_schema
from cdcd.mirror.targets.few import FewChanges, Raw, reduce_few
from cdcd.mirror.targets.state import Place, State

FORMS = (
    ("id", "int64"), ("n", "int16"), ("ratio", "float64"), ("price", "decimal(6,2)"), ("at", "timestamptz"),
    ("flag", "boolean"), ("day", "date"), ("note", "text"),
)  # fmt: skip
PLAIN = {
    "id": 1, "n": 7, "ratio": 1.5, "price": "12.30", "at": "2026-01-02T03:04:05.006Z", "flag": True, "day": 20_000,
    "note": "it's",
}  # fmt: skip


def form_of(*columns: tuple[str, str], key: tuple[str, ...] = ("id",)) -> Form:
    described = TableForm(
        topic="shop.public.item",
        schema="public",
        table="item",
        key=key,
        columns=tuple(
            [ColumnForm(name, number, form, 1, -1, form) for number, (name, form) in enumerate(columns, 1)]
        ),
    )
    return Form(table_schema("form", described), rules(described))


FORM = form_of(*FORMS)
EMPTY = State()


def raw(op: str, lsn: int, row: Any, **more: Any) -> Raw:
    image = "before" if op == "d" else "after"
    source = {"commit_lsn": lsn, "event_serial_no": 1, "ts_us": lsn * 1_000_000, "schema_id": "form"}
    envelope = {
        "op": op,
        "before": None,
        "after": None,
        "source": source | more.pop("source", {}),
        image: row,
    }
    return Raw(more.pop("partition", 0), lsn, json.dumps(envelope | more).encode())


def reduced(*records: Raw, form: Form = FORM, state: State = EMPTY, bound: Any = None) -> FewChanges:
    found = reduce_few(records, form, state, bound)
    assert found is not None
    return found


def test_of_a_key_the_last_change_stays_by_lsn_and_number_not_by_arrival():
    late, early = raw("u", 30, PLAIN | {"n": 3}), raw("c", 10, PLAIN | {"n": 1})
    gone = [raw("c", 20, PLAIN | {"id": 2}), raw("d", 40, PLAIN | {"id": 2}), Raw(0, 41, None)]
    few = reduced(late, early, *gone)
    assert [(change.op, change.at, change.row["id"], change.row["n"]) for change in few.changes] == [
        ("u", (30, 1), "1", "3"), ("d", (40, 1), "2", "7"),
    ]  # fmt: skip
    found = few.found
    assert (found.changes, found.keys, found.last, found.waiting) == (4, 2, (40, 1), 0)
    assert found.key_range == (1, 2)
    assert found.commit_time is not None
    assert found.commit_time.timestamp() == 40


def test_what_a_table_has_is_left_out_and_what_lies_after_the_bound_is_held():
    state = State(commit_lsn=20, partitions={0: Place(20, 1, 1, 20)}, truncated=(15, 1))
    records = [raw("c", lsn, PLAIN | {"id": lsn}) for lsn in (10, 20, 30, 40, 50)]
    read = raw("r", 5, PLAIN, source={"event_serial_no": None})
    few = reduced(*records, read, state=state, bound=(30, 1))
    assert [change.row["id"] for change in few.changes] == ["30"]
    assert (few.found.held, few.found.waiting, few.found.changes) == ({0: 40}, 2, 1)
    # Another partition has a place of its own, and a truncate counts for all.
    elsewhere = [raw("c", lsn, PLAIN, partition=1) for lsn in (14, 16)]
    assert [change.at for change in reduced(*elsewhere, state=state).changes] == [(16, 1)]


def test_the_delete_of_an_old_key_does_not_hide_the_other_half_of_the_change():
    state = State(commit_lsn=20, partitions={0: Place(20, 1, 0, 20)})
    few = reduced(raw("d", 20, PLAIN), raw("c", 20, PLAIN | {"id": 2}), state=state)
    assert [(change.op, change.row["id"]) for change in few.changes] == [("c", "2")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 32768), ("n", "7"), ("n", True), ("n", 1.0), ("ratio", "NaN"), ("ratio", 1e300), ("price", "NAN"),
        ("price", "12345.00"), ("price", "1.234"), ("price", 12), ("at", "infinity"), ("at", "2026-02-31T00:00:00Z"),
        ("at", "12026-02-01T00:00:00Z"), ("price", "٣"), ("at", "٢٠٢٦-01-02T03:04:05Z"),
        ("flag", 1), ("day", 2**31), ("note", 5), ("note", "\ud800"),
        ("note", {"a": 1}), ("id", None),
    ],
)  # fmt: skip
def test_a_value_that_may_not_fit_its_column_is_left_to_spark(name: str, value: Any):
    assert reduce_few([raw("c", 1, PLAIN | {name: value})], FORM, State(), None) is None
    # In the image that is not used too.
    if name != "id":
        assert reduce_few([raw("u", 1, PLAIN, before=PLAIN | {name: value})], FORM, State(), None) is None


@pytest.mark.parametrize(
    "record",
    [
        raw("t", 1, None),
        raw("x", 1, PLAIN),
        raw("c", 1, None),
        raw("c", 1, [1]),
        raw("c", 1, PLAIN, source={"schema_id": "other"}),
        raw("c", 1, PLAIN, source={"schema_id": None}),
        raw("c", 1, PLAIN, source={"commit_lsn": None}),
        raw("c", 1, PLAIN, source={"commit_lsn": "1"}),
        raw("c", -1, PLAIN),
        raw("c", 1, PLAIN, source={"ts_us": 2**62}),
        raw("c", 1, PLAIN, source={"event_serial_no": "1"}),
        raw("u", 1, PLAIN)._replace(unchanged='["note"]'),
        raw("u", 1, PLAIN)._replace(unchanged="{"),
        Raw(0, 1, b"{"),
        Raw(0, 1, b"[]"),
        Raw(0, 1, b"null"),
        Raw(0, 1, b'{"op":"c"}'),
        raw("c", 1, PLAIN, source={"event_serial_no": False}),
        raw("c", 1, PLAIN, source={"event_serial_no": ""}),
        raw("c", 1, PLAIN)._replace(value=b"\xef\xbb\xbf" + (raw("c", 1, PLAIN).value or b"")),
        raw("c", 1, PLAIN)._replace(value=(raw("c", 1, PLAIN).value or b"").decode().encode("utf-16-le")),
        Raw(0, 1, b"\xff"),
        Raw(0, 1, b"[" * 100_000),
    ],
)
def test_a_record_that_is_no_plain_change_of_this_form_is_left_to_spark(record: Raw):
    assert reduce_few([raw("c", 2, PLAIN), record], FORM, State(), None) is None


@pytest.mark.parametrize(
    "columns",
    [
        [("id", "decimal(6,2)")],
        [("id", "float64")],
        [("id", "timestamp")],
        [("id", "bytes")],
        [("id", "float32")],
        [("id", "text[]")],
        [("id", "int64"), ("x", "boolean[]")],
        [("id", "int64"), ("x", "point")],
        [("id", "int64"), ("x", "point[]")],
    ],
)
def test_a_table_with_other_keys_or_columns_is_left_to_spark(columns: list[tuple[str, str]]):
    assert reduce_few([], form_of(*columns), State(), None) is None
    assert reduce_few([], form_of(*columns, key=()), State(), None) is None


def test_minus_zero_without_a_point_is_left_to_spark():
    record = raw("c", 1, PLAIN | {"ratio": 424242})
    assert record.value is not None
    for number, is_plain in (("-0", False), ("-0.0", True), ("0", True)):
        written = record._replace(value=record.value.replace(b"424242", number.encode()))
        assert (reduce_few([written], FORM, State(), None) is not None) == is_plain


def test_values_are_found_by_the_names_that_records_have():
    described = TableForm(
        topic="shop.public.item",
        schema="public",
        table="item",
        key=("_pos",),
        columns=(
            ColumnForm("_pos", 1, "int64", 1, -1, "int64"),
            ColumnForm("_file", 2, "text", 1, -1, "text"),
        ),
    )
    form = Form(table_schema("form", described, mirrored=True), rules(described, mirrored=True))
    few = reduced(
        raw("c", 10, {"_pos": 1, "_file": "a"}), raw("d", 11, {"_pos": 2, "_file": None}), form=form
    )
    assert [change.row for change in few.changes] == [
        {"source__pos": "1", "source__file": "a"},
        {"source__pos": "2", "source__file": None},
    ]
