"""Columns of a base table, from whatever they are to the form of the next fold."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, ShortType, StringType, StructField, StructType

import cdcd.mirror.base
from cdcd.mirror.base.columns import OWN_COLUMNS, Present, alterations, comment, created, digest, present
from cdcd.mirror.records.schema import ColumnSchema, TableSchema

OID = 16384


def column(name: str, id_: int | None) -> ColumnSchema:
    return ColumnSchema(name, id_, "text", 25, -1, StringType())


def table(*columns: tuple[str, int | None], oid: int | None = OID) -> TableSchema:
    return TableSchema(
        "shop.public.t", "public", "t", "f", ("id",), tuple([column(*c) for c in columns]), oid
    )


def has(*columns: tuple[str, int | None], oid: int = OID) -> list[Present]:
    return [
        Present(name, None if number is None else (oid, number), StringType()) for name, number in columns
    ]


def apply(there: list[Present], changes: list[str]) -> list[Present]:
    """What a table format makes of the changes."""
    found = {each.name: each.number for each in there}
    for change in changes:
        names = re.findall(r"`([^`]*)`", change)
        said = re.search(r"column (\d+) of relation (\d+)", change)
        number = None if said is None else (int(said[2]), int(said[1]))
        if change.startswith("DROP"):
            del found[names[0]]
        elif change.startswith("RENAME"):
            assert names[1] not in found
            found = {names[1] if name == names[0] else name: at for name, at in found.items()}
        elif change.startswith("ADD"):
            assert names[0] not in found
            found[names[0]] = number
        else:
            found[names[0]] = number
    return [Present(name, at, StringType()) for name, at in found.items()]


def test_columns_that_have_the_form_need_no_change():
    assert list(alterations(has(("id", 1), ("a", 2)), table(("id", 1), ("a", 2)))) == []


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([("id", 1), ("a", 2)], [("id", 1), ("b", 2)]),
        ([("id", 1), ("a", 2), ("b", 3)], [("id", 1), ("b", 2), ("a", 3)]),
        ([("id", 1), ("a", 2), ("b", 3), ("c", 4)], [("id", 1), ("b", 2), ("c", 3), ("a", 4)]),
        ([("id", 1), ("a", 2)], [("id", 1), ("a", 3)]),
        ([("id", 1), ("a", 2), ("b", 3)], [("id", 1), ("a", 3), ("c", 4)]),
    ],
)
def test_a_process_that_ends_between_two_changes_leaves_a_table_that_gets_there(
    before: list[tuple[str, int]], now: list[tuple[str, int]]
):
    form = table(*now)
    aim = {name: (OID, number) for name, number in now}
    whole = list(alterations(has(*before), form))
    for done in range(len(whole) + 1):
        there = apply(has(*before), whole[:done])
        rest = apply(there, list(alterations(there, form)))
        assert {each.name: each.number for each in rest} == aim


def test_columns_of_another_relation_keep_their_place_by_name_and_get_its_numbers():
    changes = list(alterations(has(("id", 1), ("a", 2), oid=1), table(("id", 2), ("b", 1))))
    assert changes[0] == "DROP COLUMN `a`"
    assert changes[1].startswith("ADD COLUMN `b`")
    assert changes[2] == f"ALTER COLUMN `id` COMMENT 'cdcd: column 2 of relation {OID}'"


def test_columns_of_other_types_are_made_again_if_no_row_stays():
    there = [
        replace(each, type=LongType()) if each.name == "a" else each for each in has(("id", 1), ("a", 2))
    ]
    assert list(alterations(there, table(("id", 1), ("a", 2)))) == []
    changes = list(alterations(there, table(("id", 1), ("a", 2)), anew=True))
    assert changes == [
        "DROP COLUMN `a`",
        f"ADD COLUMN `a` string COMMENT 'cdcd: column 2 of relation {OID}'",
    ]


def test_a_table_that_keeps_its_rows_renames_columns_that_the_source_has_no_more():
    # GIVEN a column of another type, one that is gone, and two that had been dropped before
    there = has(("id", 1), ("a", 2), ("b", 3), ("b__dropped", None), ("c__dropped", 4))
    there = [replace(each, type=LongType()) if each.name == "a" else each for each in there]
    form = table(("id", 1), ("a", 2))
    whole = list(alterations(there, form, anew=True, keeps=True))
    assert not [change for change in whole if change.startswith("DROP")]
    # WHEN a process ends between two changes
    for done in range(len(whole) + 1):
        is_there = any(change.startswith("ADD") for change in whole[:done])
        now = [
            replace(each, type=LongType()) if each.number == (OID, 2) and not is_there else each
            for each in apply(there, whole[:done])
        ]
        rest = apply(now, list(alterations(now, form, anew=True, keeps=True)))
        # THEN the next process finds the way
        names = {each.name: each.number for each in rest}
        assert names.keys() == {"id", "a", "a__dropped", "b__dropped", "b__dropped_2", "c__dropped"}
        assert (names["a"], names["a__dropped"]) == ((OID, 2), None)
    # AND the columns that were dropped stay as they are
    assert list(alterations(apply(there, whole), form, keeps=True)) == []


def test_a_column_whose_type_the_format_widened_is_kept():
    columns = (
        replace(column("id", 1), spark=ShortType()),
        replace(column("a", 2), spark=ArrayType(ShortType(), False)),
    )
    form = TableSchema("shop.public.t", "public", "t", "f", ("id",), columns, OID)
    there = [
        Present("id", (OID, 1), IntegerType()),
        Present("a", (OID, 2), ArrayType(IntegerType())),
    ]
    assert list(alterations(there, form, anew=True)) == []


def test_a_comment_of_the_owner_leaves_the_column_to_its_name():
    (change,) = alterations(has(("id", 1), ("a", None)), table(("id", 1), ("a", 2)))
    assert change == f"ALTER COLUMN `a` COMMENT 'cdcd: column 2 of relation {OID}'"
    assert comment(column("a", None), OID) == comment(column("a", 1), None) == ""


def test_the_tables_own_columns_are_no_columns_of_the_source():
    fields = StructType(
        [
            StructField("id", LongType(), metadata={"comment": f"cdcd: column 1 of relation {OID}"}),
            StructField("note", StringType(), metadata={"comment": "mine"}),
            StructField(
                "_cdcd_rename_a", StringType(), metadata={"comment": f"cdcd: column 3 of relation {OID}"}
            ),
            *[StructField(name, ArrayType(StringType())) for name in OWN_COLUMNS],
        ]
    )
    (id_, *others) = has(("id", 1), ("note", None), ("_cdcd_rename_a", 3))
    assert present(fields) == [replace(id_, type=LongType()), *others]
    assert created(table(("id", 1), oid=None)).startswith("`id` string, `_cdcd_commit_lsn` bigint")


def test_forms_that_differ_have_other_digests():
    assert digest(table(("id", 1))) == digest(table(("id", 1)))
    assert digest(table(("id", 1))) != digest(table(("id", 2)))


def test_the_base_calls_nothing_but_sparks_public_api():
    (folder,) = cdcd.mirror.base.__path__
    for file in Path(folder).glob("*.py"):
        assert not re.search(r"py4j|_jvm|_jsparkSession|_jdf|mirror\.platform\.java", file.read_text()), file
