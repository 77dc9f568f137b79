from dataclasses import replace

from pyspark.sql.types import DateType, DecimalType, LongType, StringType

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.verifying.forms import ComparedColumn, compared, key_in, keyed

ID = ColumnSchema("id", 1, "bigint", 20, -1, LongType(), form="int64")
PRICE = ColumnSchema("price", 2, "numeric(8,2)", 1700, 524294, DecimalType(8, 2), form="decimal(8,2)")
MOOD = ColumnSchema("mood", 3, "mood", 9, -1, StringType(), labels=((5, "ok"),), form="text")
SOURCE = TableSchema("shop.public.t", "public", "t", "f", ("id",), (ID, PRICE, MOOD), 7)
THERE = frozenset({"id", "price", "mood", "_cdcd_commit_lsn"})


def daemon(**changes: ColumnForm | None) -> TableForm:
    """How the daemon describes the table; a column that is None is left out."""
    columns = {
        column.name: ColumnForm(
            column.name, column.id, column.type, column.type_oid, column.modifier, column.form or ""
        )
        for column in SOURCE.columns
    }
    kept = {name: changes.get(name, column) for name, column in columns.items()}
    return TableForm("public", "t", "shop.public.t", ("id",), tuple([c for c in kept.values() if c]), 7)


def column_of(which: str, **fields: object) -> ColumnForm:
    found = next(column for column in daemon().columns if column.name == which)
    return replace(found, **fields)  # type: ignore[arg-type]


def mirror(*columns: ColumnSchema, key: tuple[str, ...] = ("id",), oid: int = 7) -> TableSchema:
    return replace(SOURCE, columns=columns, key=key, oid=oid)


def test_every_column_is_compared_under_the_name_that_the_mirror_has():
    found = compared(SOURCE, daemon(), mirror(ID, replace(PRICE, name="cost"), MOOD), THERE | {"cost"})
    assert found.limits == ()
    assert found.columns[1] == ComparedColumn("price", "cost", DecimalType(8, 2))
    assert found.key == (ComparedColumn("id", "id", LongType()),)


def test_what_the_topics_do_not_have_as_spark_reads_it_is_left_out_and_named():
    for changed, words in (
        (None, "leaves out"),
        (column_of("price", protected="hash"), "replaces"),
        (column_of("price", form="float64"), "another form"),
    ):
        found = compared(SOURCE, daemon(price=changed), SOURCE, THERE)
        assert [column.name for column in found.columns] == ["id", "mood"]
        assert len(found.limits) == 1
        assert "column price" in found.limits[0]
        assert words in found.limits[0]


def test_what_the_mirror_does_not_have_as_the_source_has_it_now_is_left_out_and_named():
    for mirrored, there, words in (
        (mirror(ID, MOOD), THERE, "does not have yet"),
        (SOURCE, THERE - {"price"}, "does not have yet"),
        (mirror(ID, replace(PRICE, type="date", spark=DateType()), MOOD), THERE, "type date in the mirror"),
    ):
        found = compared(SOURCE, daemon(), mirrored, there)
        assert [column.name for column in found.columns] == ["id", "mood"]
        assert words in found.limits[0]
    old = mirror(ID, PRICE, replace(MOOD, labels=((5, "fine"),)))
    found = compared(SOURCE, daemon(), old, THERE)
    assert "labels were renamed" in found.limits[0]


def test_no_row_is_compared_without_its_key_or_with_another_tables():
    masked = daemon(id=column_of("id", protected="hash"))
    for form, mirrored in ((masked, SOURCE), (daemon(), mirror(ID, PRICE, MOOD, key=("id", "price")))):
        found = compared(SOURCE, form, mirrored, THERE)
        assert found.key == ()
        assert any("columns of the key" in limit for limit in found.limits)
    other = compared(SOURCE, daemon(), mirror(ID, PRICE, MOOD, oid=8), THERE)
    assert other.key == ()
    assert "another table" in other.limits[0]


def test_a_renamed_field_is_compared_with_its_column():
    renamed = daemon(price=column_of("price", name="cost", column="price"))
    found = compared(SOURCE, renamed, mirror(ID, replace(PRICE, name="cost"), MOOD), THERE | {"cost"})
    assert found.limits == ()
    assert found.columns[1] == ComparedColumn("price", "cost", DecimalType(8, 2))
    # AND a rule still holds for the column
    masked = daemon(price=column_of("price", name="cost", column="price", protected="hash"))
    found = compared(SOURCE, masked, mirror(ID, replace(PRICE, name="cost"), MOOD), THERE | {"cost"})
    assert found.limits == ("column price, whose values the daemon replaces (`columns`: hash)",)


def test_the_key_that_is_compared_is_that_of_the_records():
    # GIVEN a key of two columns that the daemon chooses, and that has a field of another name
    described = replace(daemon(mood=column_of("mood", name="temper", column="mood")), key=("id", "temper"))
    source = keyed(SOURCE, described)
    assert source.key == ("id", "mood")
    mirrored = mirror(ID, PRICE, replace(MOOD, name="temper"), key=("id", "temper"))
    found = compared(source, described, mirrored, THERE | {"temper"})
    assert found.limits == ()
    assert [(column.name, column.mirrored) for column in found.key] == [("id", "id"), ("mood", "temper")]
    # AND a mirror that has another key is not compared
    found = compared(source, described, mirror(ID, PRICE, replace(MOOD, name="temper")), THERE | {"temper"})
    assert found.key == ()


def test_a_record_tells_the_key_if_its_form_has_the_columns_of_the_key_in_their_types():
    what = compared(SOURCE, daemon(), SOURCE, THERE)
    assert key_in(SOURCE, SOURCE, what) == what.key
    former = replace(SOURCE, key=("number",), columns=(replace(ID, name="number"), PRICE))
    assert key_in(former, SOURCE, what) == (ComparedColumn("number", "id", LongType()),)
    for other in (
        replace(SOURCE, key=("id", "price")),
        replace(SOURCE, key=("price",)),
        replace(SOURCE, key=()),
        replace(SOURCE, oid=8),
        replace(SOURCE, columns=(replace(ID, spark=StringType()), PRICE, MOOD)),
        replace(SOURCE, columns=(replace(ID, id=9), PRICE, MOOD)),
    ):
        assert key_in(other, SOURCE, what) == ()
    # AND not if the form has a part of the key
    wide = replace(SOURCE, key=("id", "mood"))
    what = compared(wide, daemon(), wide, THERE)
    assert [column.name for column in key_in(wide, wide, what)] == ["id", "mood"]
    assert key_in(replace(SOURCE, columns=(ID, PRICE)), wide, what) == ()
