"""Tables with the same columns share the layout of their rows, and other tables do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cdcd.core.catalog.field_names import Fields
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import MASK, ColumnRule
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.connect_schema import WITH_SCHEMA
from cdcd.core.records.debezium_json.row_layout import LAYOUTS_MAX, DescribedTable, Layouts
from cdcd.core.records.debezium_json.table_fragments import TableFragments, Tally
from cdcd.core.records.encoder import EncoderSettings

COLUMNS = (Column(1, "id", 23, -1), Column(0, "note", 25, -1))
KEYED = TableDescription(primary_key=("id",))


def described(name: str = "t", *columns: Column) -> DescribedTable:
    return DescribedTable(Relation(None, 1, "s", name, "d", columns or COLUMNS), KEYED, {})


def layouts(key_format: str = "json") -> Layouts:
    return Layouts(EncoderSettings("1", "p", "d", key_format=key_format))


def fragments(layouts: Layouts, table: DescribedTable) -> TableFragments:
    name = table.relation.name
    return TableFragments(table, layouts, topic=f"p.s.{name}", tally=Tally())


def test_tables_with_the_same_columns_share_one_layout_and_have_their_own_names():
    made = layouts()
    one, other = (fragments(made, described(name)) for name in ("one", "other"))
    assert one.plan is other.plan
    assert one.places is other.places
    assert one.event_template is other.event_template
    assert (one.topic, one.relation.name) == ("p.s.one", "one")
    assert (other.topic, other.relation.name) == ("p.s.other", "other")
    values = other.event_template.copy()
    values[other.plan[0][0]] = b"7"
    assert one.key(values) == other.key(values) == b'{"id":7}'


@pytest.mark.parametrize(
    "changed",
    [
        lambda table: replace(
            table, relation=replace(table.relation, columns=(COLUMNS[0], replace(COLUMNS[1], name="other")))
        ),
        lambda table: replace(
            table, relation=replace(table.relation, columns=(COLUMNS[0], replace(COLUMNS[1], type_oid=23)))
        ),
        lambda table: replace(
            table, relation=replace(table.relation, columns=(COLUMNS[0], replace(COLUMNS[1], flags=1)))
        ),
        lambda table: replace(table, table=replace(KEYED, chosen_key=("note",))),
        lambda table: replace(table, table=replace(KEYED, bare_key=True)),
        lambda table: replace(table, table=replace(KEYED, key_constants=(("tenant", "a"),))),
        lambda table: replace(table, fields=Fields(("id", "note"), (("tenant", "a"),))),
        lambda table: replace(table, fields=Fields(("id", "text"))),
    ],
    ids=["name", "type", "identity", "key", "bare key", "constant of keys", "constant field", "field name"],
)
def test_a_table_that_differs_in_its_columns_or_key_has_a_layout_of_its_own(
    changed: Callable[[DescribedTable], DescribedTable],
):
    made, table = layouts(), described()
    assert made.layout(changed(table)) is not made.layout(table)
    assert made.layout(changed(table)) is made.layout(changed(table))


def test_a_table_with_a_protected_column_shares_nothing():
    made = layouts()
    rule = ColumnRule(parse_column_pattern("s.t.note", "columns.mask"), MASK, mask="x")
    table = replace(described(), rules=[None, rule])
    assert made.layout(table) is not made.layout(table)
    assert made.layout(replace(table, rules=[None, None])) is made.layout(described())


def test_keys_with_schemas_name_the_topic_of_their_own_table():
    made = layouts(WITH_SCHEMA)
    keys = [fragments(made, described(name)).key_fragments[0] for name in ("one", "other")]
    assert [b"p.s.one.Key" in keys[0], b"p.s.other.Key" in keys[1]] == [True, True]


def test_the_number_of_layouts_that_are_kept_is_limited():
    made = layouts()
    tables = [described("t", Column(1, f"c{number}", 23, -1)) for number in range(LAYOUTS_MAX + 1)]
    first = [made.layout(table) for table in tables]
    assert made.layout(tables[-1]) is first[-1]
    assert made.layout(tables[0]) is not first[0]
