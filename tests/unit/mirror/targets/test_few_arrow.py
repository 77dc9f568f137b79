from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.targets.few import Change, FewChanges
from cdcd.mirror.targets.few_arrow import brought_in
from tests.unit.mirror.targets.test_few import form_of, raw, reduced

FORM = form_of(("id", "int64"), ("note", "text"), ("small", "float32"))
SCHEMA = pa.schema(
    {
        "id": pa.int64(), "note": pa.string(), "small": pa.float32(), "_cdcd_commit_lsn": pa.int64(),
        "_cdcd_event_no": pa.int64(), "_cdcd_unknown": pa.list_(pa.string()),
    }
)  # fmt: skip


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.table(list(map(list, zip(*rows, strict=True))) or [[]] * 6, schema=SCHEMA)


def few(*changes: Change) -> FewChanges:
    return FewChanges(
        list(changes), reduced(raw("c", 1, {"id": 1, "note": None, "small": None}), form=FORM).found
    )


def change(
    op: str, at: tuple[int, int], key: int, note: str | None = None, small: str | None = None
) -> Change:
    return Change(op, at, {"id": str(key), "note": note, "small": small})


def found(rows: pa.Table, *changes: Change, form: Form = FORM) -> list[tuple[Any, ...]] | None:
    after = brought_in(rows, few(*changes), form)
    if after is None:
        return None
    assert after.schema == rows.schema
    return sorted(tuple(row.values()) for row in after.to_pylist())


def test_changes_go_in_as_a_merge_brings_them_in():
    rows = table((1, "a", 1.5, 10, 1, None), (2, "b", None, 10, 2, ["small"]), (3, "c", None, 30, 1, None))
    changes = [
        change("u", (20, 1), 1, "new", "2.5"),
        change("d", (20, 2), 2),
        change("u", (20, 3), 3, "older than the row's own"),
        change("c", (20, 4), 4, None),
        change("d", (20, 5), 5),
    ]
    after = [(1, "new", 2.5, 20, 1, None), (3, "c", None, 30, 1, None), (4, None, None, 20, 4, None)]
    assert found(rows, *changes) == after
    # The same changes once more change nothing.
    assert found(table(*after), *changes) == after


def test_a_change_in_the_place_of_the_rows_own_is_no_later_one():
    rows = table((1, "a", None, 20, 7, ["small"]))
    assert found(rows, change("u", (20, 7), 1, "b")) == [(1, "a", None, 20, 7, ["small"])]
    assert found(rows, change("u", (20, 8), 1, "b")) == [(1, "b", None, 20, 8, None)]
    assert found(rows, change("d", (20, 8), 1)) == []


def test_a_table_that_is_not_as_a_mirror_is_left_to_spark():
    some = change("u", (20, 1), 1, "b")
    twice = table((1, "a", None, 10, 1, None), (1, "b", None, 10, 2, None))
    assert found(twice, some) is None
    rows = table((1, "a", None, 10, 1, None))
    assert found(rows, some) is not None
    assert found(rows.append_column("more", pa.array([1])), some) is None
    assert found(rows.drop_columns(["note"]), some) is None


def test_a_value_that_python_or_the_column_cannot_have_is_left_to_spark():
    rows = table((1, "a", None, 10, 1, None))
    narrow = rows.set_column(0, "id", pa.array([1], pa.int8()))
    assert found(narrow, change("u", (20, 1), 300, "b")) is None
    rules = FORM.rules | {"note": replace(FORM.rules["note"], convert=lambda text: text)}
    assert found(rows, change("u", (20, 1), 1, "b"), form=Form(FORM.schema, rules)) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.1", 0.10000000149011612), ("-0.0", -0.0), ("0", 0.0), ("16777217", 16777216.0),
        # In the middle between two FLOATs: of the number itself both ways lead to the even one.
        ("1.000000059604644775390625", 1.0), ("1.0000000596046448", None),
    ],
)  # fmt: skip
def test_a_float_is_rounded_once(text: str, number: float | None):
    after = found(table(), change("c", (1, 1), 1, None, text))
    assert (None if after is None else str(after[0][2])) == (None if number is None else str(number))
