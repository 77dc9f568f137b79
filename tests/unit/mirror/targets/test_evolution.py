from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
)

from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.evolution import (
    Add,
    Drop,
    IncompatibleSchemaError,
    Relabel,
    Rename,
    Step,
    Widen,
    check,
    is_unknown,
    plan,
    value_of,
)
from cdcd.mirror.targets.same_columns import is_other, numbered, widens
from cdcd.mirror.targets.target import Kind


def after(schema: TableSchema, step: Step) -> TableSchema:
    """The form of a table that had `schema` when `step` is done."""
    columns = list(schema.columns)
    key = schema.key
    match step:
        case Add(column):
            columns.append(column)
        case Drop(name):
            columns = [column for column in columns if column.name != name]
        case Rename(name, to):
            columns = [replace(column, name=to) if column.name == name else column for column in columns]
            key = tuple([to if part == name else part for part in key])
        case Widen(name, to):
            columns = [replace(column, spark=to) if column.name == name else column for column in columns]
        case Relabel(name, _, labels):
            columns = [
                replace(column, labels=labels) if column.name == name else column for column in columns
            ]
    return replace(schema, schema_id="", columns=tuple(columns), key=key)


def column(name: str, id_: int | None, kind: DataType | None = None) -> ColumnSchema:
    return ColumnSchema(name, id_, "text", 25, -1, kind or StringType())


def table(*columns: ColumnSchema, key: tuple[str, ...] = ("id",)) -> TableSchema:
    form = ",".join(f"{part.name}:{part.id}" for part in columns)
    return TableSchema("shop.public.t", "public", "t", form, key, columns)


ID = column("id", 1, LongType())


def test_the_same_form_needs_no_step():
    assert plan(table(ID), table(ID)) == ()


def test_a_new_id_is_a_new_column_and_a_gone_one_is_dropped():
    new = column("b", 3)
    assert plan(table(ID, column("a", 2)), table(ID, new)) == (Drop("a"), Add(new))


def test_a_new_column_whose_default_is_lost_stops_a_mirror_and_no_changelog():
    new = replace(column("b", 3), default_lost=True)
    with pytest.raises(
        IncompatibleSchemaError, match=r"column b is new, and its values in existing rows are not"
    ) as refusal:
        plan(table(ID), table(ID, new))
    assert "--snapshot public.t --source FILE" in refusal.value.hint
    assert plan(table(ID), table(ID, new), Kind.CHANGELOG) == (Add(new),)
    # AND a column that the target has already lost nothing
    assert plan(table(ID, column("b", 3)), table(ID, new)) == ()
    # AND another relation has no older rows
    one, other = replace(table(ID), oid=1), replace(table(ID, new), oid=2)
    assert plan(one, other) == (Add(new),)


def test_the_same_id_under_another_name_is_a_rename():
    assert plan(table(ID, column("a", 2)), table(ID, column("b", 2))) == (Rename("a", "b"),)


def test_a_column_dropped_and_added_again_under_its_name_is_another_one():
    again = column("a", 3)
    assert plan(table(ID, column("a", 2)), table(ID, again)) == (Drop("a"), Add(again))


def test_without_ids_names_decide():
    old, new = table(ID, column("a", None), column("x", 5)), table(ID, column("a", 2), column("b", 6))
    assert plan(old, new) == (Drop("x"), Add(column("b", 6)))


def test_a_column_without_an_id_is_another_one_if_its_place_does_not_allow_the_id():
    # Both forms are in the order of ids: what stands before 7 is not 9.
    old = table(ID, column("a", None), column("b", 7))
    again = column("a", 9, IntegerType())
    assert plan(old, table(ID, column("b", 7), again)) == (Drop("a"), Add(again))
    assert plan(old, table(ID, column("a", 5), column("b", 7))) == ()


def test_a_column_of_another_type_is_another_one_if_what_stands_after_it_has_a_lower_id():
    # No id of the two is known, but b has its name and type still: a stood before 7, and is not 9.
    old = table(ID, column("a", None), column("b", None))
    again = column("a", 9, IntegerType())
    assert plan(old, table(ID, column("b", 7), again)) == (Drop("a"), Add(again))
    # Where nothing shows it, the column may have been altered, and what its rows have by now is not known.
    for new in (table(ID, again), table(ID, column("c", 7), again), table(ID, again, column("b", 10))):
        with pytest.raises(IncompatibleSchemaError, match=r"column a changed|column c is sent now"):
            plan(old, new)


def test_columns_that_changed_places_are_not_taken_for_the_same():
    # a was dropped and added again, or the two took each other's names: its values now are those of neither, or of b.
    old = table(ID, column("a", None), column("b", None), column("c", None))
    now = table(ID, column("b", 7), column("a", 9), column("c", 10))
    # Numbers that were given by name alone tell no more than the names.
    by_name = table(ID, column("a", 9), column("b", 7), column("c", 10))
    for former, new in ((old, now), (by_name, now), (old, table(ID, column("b", None), column("a", None)))):
        with pytest.raises(
            IncompatibleSchemaError, match="columns b, a are not all the former columns"
        ) as stopped:
            plan(former, new)
        assert "--snapshot public.t " in stopped.value.hint
    # Also if the mirror has today's form, and the former one comes late.
    with pytest.raises(IncompatibleSchemaError, match="columns a, b are not all the former columns"):
        plan(now, numbered(now, old))
    # Rows of a changelog keep what they had.
    assert plan(old, now, Kind.CHANGELOG) == ()


def test_a_column_without_an_id_is_not_one_that_has_another_name_by_now():
    old = table(ID, column("m", 4), column("o", 5))
    new = table(ID, column("o", 4), column("m", None))
    steps = plan(old, new, Kind.CHANGELOG)
    assert [step for step in steps if isinstance(step, Rename)] == [Rename("m", "o")]
    # It may be 5.
    with pytest.raises(IncompatibleSchemaError, match="column m is new, or is the renamed column o"):
        plan(old, new)


def test_a_renamed_key_is_the_same_key():
    renamed = column("nr", 1, LongType())
    assert plan(table(ID), table(renamed, key=("nr",))) == (Rename("id", "nr"),)


@pytest.mark.parametrize(
    ("old", "new", "possible"),
    [
        (IntegerType(), LongType(), True),
        (FloatType(), DoubleType(), True),
        (DecimalType(10, 2), DecimalType(12, 2), True),
        (DecimalType(10, 2), DecimalType(12, 3), False),
        (LongType(), IntegerType(), False),
        (IntegerType(), StringType(), False),
    ],
)
def test_only_a_type_that_holds_all_values_of_the_old_one_is_wider(
    old: DataType, new: DataType, possible: bool
):
    assert widens(old, new) == possible
    before, now = table(ID, column("a", 2, old)), table(ID, column("a", 2, new))
    if possible:
        assert plan(before, now) == (Widen("a", new),)
    else:
        with pytest.raises(IncompatibleSchemaError, match=r"public\.t: column a .*--snapshot public.t"):
            plan(before, now)


def test_another_key_is_refused():
    both = (ID, column("a", 2))
    with pytest.raises(IncompatibleSchemaError, match=r"key changed from \(id\) to \(id, a\)"):
        plan(table(*both), table(*both, key=("id", "a")))


def test_another_column_under_the_name_of_the_key_is_another_key():
    # ALTER TABLE t DROP id, ADD id serial PRIMARY KEY: rows get keys that no record tells.
    old, new = table(column("id", 1), column("a", 2)), table(column("a", 2), column("id", 3))
    with pytest.raises(IncompatibleSchemaError, match="key changed"):
        plan(old, new)


def test_a_changelog_takes_any_form():
    before = table(ID, column("a", 2, IntegerType()))
    now = table(ID, column("a", 2), key=())
    assert plan(before, now, Kind.CHANGELOG) == (Drop("a"), Add(column("a", 2)))
    grown = table(ID, column("a", 2, LongType()), key=())
    assert plan(before, grown, Kind.CHANGELOG) == (Widen("a", LongType()),)


def test_a_name_that_the_format_keeps_for_itself_is_refused():
    check(table(ID, column("_partition", 2)))
    with pytest.raises(IncompatibleSchemaError, match="_partition has a name that the table format reserves"):
        check(table(ID, column("_partition", 2)), {"_partition"})


@pytest.mark.parametrize(
    ("names", "why"), [(("a", "A"), "differ only in case"), (("_cdcd_op",), "begins with _cdcd_")]
)
def test_names_that_a_target_cannot_have_are_refused(names: tuple[str, ...], why: str):
    new = table(ID, *[column(name, number) for number, name in enumerate(names, 2)])
    with pytest.raises(IncompatibleSchemaError, match=why):
        plan(table(ID), new)


@given(st.permutations(["a", "b", "c", "d"]), st.permutations(["a", "b", "c", "d"]))
def test_any_exchange_of_names_ends_well_and_never_has_one_name_twice(old: list[str], new: list[str]):
    before = table(ID, *[column(name, number) for number, name in enumerate(old, 2)])
    target = table(ID, *[column(name, number) for number, name in enumerate(new, 2)])
    form = before
    for step in plan(before, target):
        form = after(form, step)
        names = [part.name for part in form.columns]
        assert len(set(names)) == len(names)
        # Interrupted here, the rest of the way is planned again and leads to the same.
        rest = form
        for again in plan(form, target):
            rest = after(rest, again)
        assert {part.id: part.name for part in rest.columns} == {
            part.id: part.name for part in target.columns
        }
    assert {part.id: part.name for part in form.columns} == {part.id: part.name for part in target.columns}


def test_the_error_names_table_and_what_to_do():
    error = IncompatibleSchemaError("public.t", "what is wrong", "what to do")
    assert (error.table, error.what, error.hint) == ("public.t", "what is wrong", "what to do")
    assert str(error) == "public.t: what is wrong Hint: what to do"


def test_a_key_in_another_order_is_the_same_key():
    both = (ID, column("a", 2))
    assert plan(table(*both, key=("a", "id")), table(*both, key=("id", "a"))) == ()


def test_a_known_number_is_kept_where_a_later_form_lacks_it():
    old = table(ID, column("a", 2), column("b", 3))
    lacking = numbered(old, table(ID, column("a", None), column("c", 3)))
    assert [part.id for part in lacking.columns] == [1, 2, 3]
    assert plan(lacking, table(ID, column("renamed", 2), column("c", 3))) == (Rename("a", "renamed"),)


def test_a_number_that_another_column_has_is_not_given_twice():
    old = table(ID, column("a", 2))
    assert numbered(old, table(ID, column("a", None), column("b", 2))).columns[1].id is None


def mood(*labels: tuple[int, str], name: str = "mood") -> ColumnSchema:
    return ColumnSchema(name, 2, "mood", 90_000, -1, StringType(), None, labels)


def test_renamed_labels_are_a_step_after_the_columns_new_name():
    old = table(ID, mood((1, "sad"), (2, "ok")))
    new = table(ID, mood((1, "blue"), (2, "ok"), (3, "new"), name="feeling"))
    step = Relabel("feeling", (("sad", "blue"),), new.columns[1].labels)
    assert plan(old, new) == (Rename("mood", "feeling"), step)
    assert after(after(old, Rename("mood", "feeling")), step).columns == new.columns
    assert plan(new, new) == ()


def test_labels_of_which_nothing_was_known_are_looked_for_in_the_rows():
    assert plan(table(ID, mood()), table(ID, mood((1, "a")))) == (Relabel("mood", (), ((1, "a"),)),)
    assert plan(table(ID, mood((1, "a"))), table(ID, mood())) == ()


def test_labels_that_take_each_others_words_are_refused_with_a_way_on():
    old, new = table(ID, mood((1, "a"), (2, "b"))), table(ID, mood((1, "b"), (2, "c")))
    with pytest.raises(IncompatibleSchemaError, match="'b'; it is not known which label") as caught:
        plan(old, new)
    assert "--snapshot public.t" in caught.value.hint


def test_a_column_of_another_enum_has_other_labels():
    old, other = mood((1, "a"), (2, "b")), replace(mood((7, "a")), type_oid=90_001)
    # USING says what becomes of each value, and is not sent.
    with pytest.raises(IncompatibleSchemaError, match="mood changed from mood to another type of that name"):
        plan(table(ID, old), table(ID, other))
    assert plan(table(ID, old), table(ID, other), Kind.CHANGELOG) == ()


def test_words_are_replaced_in_arrays_too():
    step = Relabel("m", (("sad", "it's"),), ((1, "it's"),))
    assert value_of(step, StringType(), "`m`") == "CASE `m` WHEN 'sad' THEN 'it\\'s' ELSE `m` END"
    assert value_of(step, ArrayType(StringType()), "`m`").startswith("transform(`m`, v0 -> CASE v0 WHEN")
    assert is_unknown(step, ArrayType(StringType()), "m") == (
        "exists(m, v0 -> coalesce(v0 NOT IN ('it\\'s'), false))"
    )


def test_another_relation_keeps_what_it_has_room_for_whatever_the_numbers_and_the_key():
    old = replace(table(ID, column("a", 2), column("b", 3)), oid=1)
    added = replace(column("c", 3), default='"x"')
    new = replace(table(column("b", 1), column("id", 2), added, key=("b",)), oid=2)
    assert is_other(old, new)
    assert not is_other(old, replace(new, oid=None))
    steps = plan(old, new)
    assert steps == (Drop("id"), Drop("a"), Add(column("id", 2)), Add(column("c", 3)))
