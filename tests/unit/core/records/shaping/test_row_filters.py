"""Whether the topic has a row."""

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import HASH, ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import UNCHANGED, Column, Relation, TupleData, Value
from cdcd.core.records.shaping.filtering import RowFilter, check_filter, contradiction, table_filters
from cdcd.core.records.shaping.settings import ASSUMED, LEAVE_OUT, TableFilter

INT4, TEXT, BYTEA = 23, 25, 17
PARTITIONED = TableDescription(("id",), is_partitioned=True, unsent=(("status", "public.orders_1"),))


def relation(identity: str = "d", key: tuple[str, ...] = ("id",), name: str = "orders") -> Relation:
    columns = (("id", INT4), ("status", TEXT), ("total", INT4), ("blob", BYTEA))
    return Relation(
        None,
        7,
        "public",
        name,
        identity,
        tuple(Column(int(identity == "f" or name in key), name, oid, -1) for name, oid in columns),
    )


def chosen(text: str, table: str = "public.orders", **rest: str) -> TableFilter:
    return TableFilter(table, text, parse_expression(text), **rest)


def made(text: str, of: Relation | None = None, **rest: str) -> RowFilter:
    return RowFilter(of or relation("f"), chosen(text, **rest), BUILTIN_TYPES, Protections())


def picked(found: RowFilter, row: TupleData) -> list[Value]:
    return [row[index] for index in found.indexes]


def refused(text: str, of: Relation, protections: Protections | None = None, **rest: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_filter(of, [chosen(text, **rest)], BUILTIN_TYPES, protections or Protections())
    return caught.value


def test_a_row_matches_or_does_not():
    found = made("row.status != 'draft' && row.total > 10")
    assert found.keeps(picked(found, (b"1", b"open", b"11", None)))
    assert not found.keeps(picked(found, (b"1", b"open", b"10", None)))
    assert not found.keeps(picked(found, (b"1", b"draft", b"11", None)))
    assert found.keeps_line(b"1\topen\t11\t\\N\n")
    assert not found.keeps_line(b"1\tdraft\t11\t\\N\n")
    assert found.reason == ""


def test_fields_of_copy_are_unescaped():
    found = made("row.status == 'a\\tb'")
    assert found.keeps_line(b"1\ta\\tb\t11\t\\N\n")
    assert made("row.status == null").keeps_line(b"1\t\\N\t11\t\\N\n")


def test_a_malformed_row_of_copy_is_left_to_the_encoder():
    assert made("row.status == 'a'").keeps_line(b"1\tb\n")


@pytest.mark.parametrize(("on_error", "kept"), [("keep", True), (LEAVE_OUT, False)])
def test_what_a_row_without_an_answer_does_is_a_setting_for_new_rows_only(on_error: str, kept: bool):
    found = made("row.total > 10", on_error=on_error)
    assert found.keeps(picked(found, (b"1", b"open", None, None))) is kept
    assert found.reason == "> of null"
    assert found.keeps_line(b"1\topen\t\\N\t\\N\n") is kept
    # The topic may have had the row, under another filter too. A delete too many is better than a row that stays.
    assert found.kept(picked(found, (b"1", b"open", None, None)), whole=True)
    assert found.reason == "> of null"


def test_of_an_old_row_only_the_replica_identity_is_known():
    found = made("row.id < 10", relation("d"))
    assert found.kept(picked(found, (b"1", None, None, None)), whole=False)
    assert not found.kept(picked(found, (b"11", None, None, None)), whole=False)
    other = made("row.status == 'open'", relation("d"), old_row=ASSUMED)
    assert other.kept(picked(other, (b"1", None, None, None)), whole=False)
    assert other.reason == "", "it is meant to be so"
    altered = made("row.status == 'open'", relation("d"))
    assert altered.kept(picked(altered, (b"1", None, None, None)), whole=False)
    assert altered.reason == "PostgreSQL did not send the old row"


PARTITIONS = TableDescription(
    ("id",), is_partitioned=True, unsent=(("status", "orders_1"), ("total", "orders_1"))
)


def test_of_a_partition_with_another_replica_identity_only_that_is_known():
    # The message says FULL, because the partitioned table has it, and the row has NULL for what was not sent.
    filter_of = chosen("row.status == 'open'")
    found = RowFilter(relation("f"), filter_of, BUILTIN_TYPES, Protections(), table=PARTITIONS)
    assert found.kept([None], whole=True)
    assert found.reason == "PostgreSQL did not send the old row"
    assert not found.kept([b"draft"], whole=True)
    # Without an old row, the identity is as in the new one, and the rest is not known.
    assert found.kept([b"draft"], whole=False)
    assert found.old_of((b"1", b"open", b"2", None)) == (b"1", None, None, None)
    # A large value is not NULL where it did not change.
    assert found.completed_values([UNCHANGED], [None], whole=True) == [UNCHANGED]
    new = (b"1", UNCHANGED, b"2", None)
    assert found.completed(new, (b"1", None, None, None), whole=True) == new
    # Where every partition has FULL, NULL is NULL.
    assert not made("row.status == 'open'").kept([None], whole=True)


def test_what_a_partition_does_not_send_is_refused_with_what_to_do():
    with pytest.raises(ConfigError) as caught:
        check_filter(
            relation("f"), [chosen("row.status == 'open'")], BUILTIN_TYPES, Protections(), PARTITIONS
        )
    assert "asks for status of public.orders" in caught.value.message
    assert "ALTER TABLE orders_1 REPLICA IDENTITY FULL;" in caught.value.hint
    for text, rest in (("row.status == 'open'", {"old_row": ASSUMED}), ("row.id > 1", {})):
        check_filter(relation("f"), [chosen(text, **rest)], BUILTIN_TYPES, Protections(), PARTITIONS)


def test_a_part_that_is_known_may_decide():
    found = made("row.id < 10 && row.status == 'open'", relation("d"), old_row=ASSUMED)
    assert not found.kept(picked(found, (b"11", None, None, None)), whole=False)


def test_a_new_row_has_unchanged_values_of_the_old_one():
    found = made("row.status == 'open'")
    new = (b"1", UNCHANGED, b"2", UNCHANGED)
    assert found.completed(new, (b"1", b"open", b"1", b"x"), whole=True) == (b"1", b"open", b"2", b"x")
    values = found.completed_values(picked(found, new), [b"open"], whole=True)
    assert values == [b"open"]
    assert found.completed_values([b"held"], [b"open"], whole=True) == [b"held"]
    identity = made("row.id == 1", relation("d"))
    assert identity.completed_values([UNCHANGED], [b"1"], whole=False) == [b"1"]
    assert identity.completed(new, (b"1", None, None, None), whole=False) == new
    assert identity.completed(new, None, whole=False) is new
    assert identity.old_of((b"1", b"open", b"2", None)) == (b"1", None, None, None)


def test_a_value_that_was_not_sent_is_no_answer():
    found = made("row.status == 'open'", relation("d"), old_row=ASSUMED)
    assert found.keeps(picked(found, (b"1", UNCHANGED, b"2", None)))
    assert "unchanged TOAST" in found.reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("row.none == 1", "there is no published column none"),
        ("row.status == 1", "== does not compare string with int"),
        ("row.total", "has the type int, and must have bool"),
        ("row.blob == null", "the type of column blob has no value in an expression"),
    ],
)
def test_an_expression_that_does_not_fit_the_table_is_refused(text: str, says: str):
    error = refused(text, relation("f"))
    assert says in error.message
    assert "public.orders" in error.message
    assert "filters.tables.public.orders.keep" in error.hint
    # A table that is altered, or comes later, does not end the daemon.
    found = made(text)
    assert found.keeps(picked(found, (b"1", b"open", b"1", None)))
    assert says in found.reason


def test_a_protected_column_is_refused():
    rule = ColumnRule(parse_column_pattern("*.*.status", "columns.hash"), HASH, seal=lambda value: value)
    error = refused("row.status == 'open'", relation("f"), Protections((rule,)))
    assert "columns.hash (*.*.status) protects column status" in error.message


def test_an_old_row_that_postgresql_does_not_send_is_refused_with_what_to_do():
    error = refused("row.status == 'open' && row.id > 1", relation("d"))
    assert "asks for status of public.orders" in error.message
    assert "ALTER TABLE public.orders REPLICA IDENTITY FULL;" in error.hint
    assert "old_row: assumed" in error.hint


@pytest.mark.parametrize(
    ("of", "text", "rest"),
    [
        (relation("f"), "row.status == 'open'", {}),
        (relation("d"), "row.id > 1", {}),
        (relation("i", ("status",)), "row.status == 'open'", {}),
        (relation("d"), "row.status == 'open'", {"old_row": ASSUMED}),
        # PostgreSQL rejects UPDATE and DELETE on such tables while they are published.
        (relation("n", ()), "row.status == 'open'", {}),
        (relation("d", ()), "row.status == 'open'", {}),
    ],
)
def test_what_is_known_of_old_rows_may_be_asked_for(of: Relation, text: str, rest: dict[str, str]):
    check_filter(of, [chosen(text, **rest)], BUILTIN_TYPES, Protections())


def test_a_table_has_one_filter():
    one, two = chosen("row.id > 1"), chosen("row.id > 2", "public.*")
    filters = table_filters((one, two, chosen("row.id > 3", "sales.*")))
    assert filters.of_table(relation()) == [one, two]
    assert filters.of_table(relation(name="other")) == [two]
    assert [each.table for each in filters.unmatched([relation()])] == ["sales.*"]
    assert contradiction([two]) == contradiction([]) == ""
    with pytest.raises(ConfigError, match=r"The table public\.orders can have one filter") as caught:
        check_filter(relation(), [one, two], BUILTIN_TYPES, Protections())
    assert "Narrow one of the patterns" in caught.value.hint
    found = RowFilter(relation(), one, BUILTIN_TYPES, Protections(), contradiction([one, two]))
    assert found.keeps(picked(found, (b"0", None, None, None)))
    assert "both match" in found.reason


def test_old_rows_of_partitions_under_full_are_not_relied_on():
    with pytest.raises(ConfigError) as caught:
        check_filter(
            relation("f"), [chosen("row.status == 'open'")], BUILTIN_TYPES, Protections(), PARTITIONED
        )
    assert "Of rows of partition public.orders_1" in caught.value.message
    assert "ALTER TABLE public.orders_1 REPLICA IDENTITY FULL;" in caught.value.hint
