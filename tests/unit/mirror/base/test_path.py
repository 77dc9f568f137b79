"""The forms that a part of the log leads a table through."""

from dataclasses import replace

import pytest
from pyspark.sql.types import DataType, IntegerType, LongType, StringType

from cdcd.mirror.base.path import Path
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError

_OIDS = {IntegerType: 23, LongType: 20, StringType: 25}


def column(
    name: str, id_: int | None, kind: DataType | None = None, default: str | None = None
) -> ColumnSchema:
    kind = kind or StringType()
    return ColumnSchema(name, id_, "text", _OIDS[type(kind)], -1, kind, default=default)


def form(schema_id: str, *columns: ColumnSchema, oid: int = 7) -> Form:
    key = (columns[0].name,)
    return Form(TableSchema("shop.public.t", "public", "t", schema_id, key, columns, oid), {})


ID = column("id", 1, LongType())


def test_a_column_that_is_added_and_then_renamed_gives_older_rows_its_default_under_its_last_name():
    added = form("b", ID, column("a", 2, default='"x"'))
    # A later description may not know any more what older rows have.
    renamed = form("c", ID, replace(column("b", 2), default_lost=True))
    steps = Path(form("a", ID).schema, [added, renamed]).steps()
    assert {name: each.default for name, each in steps.defaults.items()} == {"b": '"x"'}
    with pytest.raises(IncompatibleSchemaError):
        Path(form("a", ID).schema, [renamed]).steps()


def test_a_column_that_is_added_and_dropped_again_leaves_nothing():
    path = Path(form("a", ID).schema, [form("b", ID, column("a", 2, default='"x"')), form("c", ID)])
    assert path.steps().defaults == {}
    assert path.schema.schema_id == "c"


def test_a_type_that_grows_is_told_by_the_last_name_of_its_column():
    path = Path(
        form("a", ID, column("n", 2, IntegerType())).schema,
        [form("b", ID, column("n", 2, LongType())), form("c", ID, column("m", 2, LongType()))],
    )
    assert path.steps().types == {"m": LongType()}


def test_labels_that_were_renamed_are_told():
    before = replace(column("mood", 2), labels=((1, "sad"), (2, "ok")))
    now = replace(before, labels=((1, "blue"), (2, "ok"), (3, "new")))
    steps = Path(form("a", ID, before).schema, [form("b", ID, now)]).steps()
    assert steps.labels["mood"].words == (("sad", "blue"),)


def test_forms_from_before_that_of_the_rows_take_no_step_back():
    has = form("b", ID, column("n", 2, LongType()), column("a", 3, default='"x"'))
    older = form("a", ID, column("n", 2, IntegerType()))
    newer = form("c", ID, column("n", 2, LongType()), column("a", 3), column("c", 4, default='"y"'))
    steps = Path(has.schema, [older, has, newer]).steps()
    assert set(steps.defaults) == {"c"}
    assert steps.types == {}


def test_a_table_without_rows_needs_no_step():
    steps = Path(None, [form("a", ID), form("b", ID, column("a", 2, default='"x"'))]).steps()
    assert (steps.defaults, steps.types, steps.labels) == ({}, {}, {})


def test_a_number_that_a_later_form_lacks_stays_known():
    path = Path(form("a", ID, column("n", 2)).schema, [form("b", ID, column("n", None))])
    assert path.schema.column("n").id == 2


def test_a_form_whose_columns_are_not_known_is_passed_over_if_it_can_become_the_last_one():
    # `o` was renamed to `m`, and another `o` was added, while the daemon was away.
    has = form("a", ID, column("o", 3)).schema
    unclear = form("b", ID, column("m", None))
    last = form("c", ID, column("m", 3), column("o", 5, default='"9"'))
    with pytest.raises(IncompatibleSchemaError):
        Path(has, [unclear]).steps()
    assert {name: each.default for name, each in Path(has, [unclear, last]).steps().defaults.items()} == {
        "o": '"9"'
    }


def test_a_form_of_another_type_is_not_passed_over():
    number, text = form("a", ID, column("n", 2, IntegerType())), form("b", ID, column("n", 2))
    with pytest.raises(IncompatibleSchemaError):
        # PostgreSQL wrote the rows again in between.
        Path(number.schema, [text, replace(number, schema=replace(number.schema, schema_id="c"))]).steps()
