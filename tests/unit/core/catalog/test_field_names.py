from dataclasses import replace

import pytest

from cdcd.core.catalog.field_names import ChosenFields, FieldRule, Fields
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule, Protections
from cdcd.core.errors import ConfigError
from tests.unit.core.catalog.test_table_rules import FULL


def chosen(*rules: FieldRule, hidden: str = "") -> ChosenFields:
    protected = (ColumnRule(parse_column_pattern(hidden, "columns.exclude"), "exclude"),) if hidden else ()
    return ChosenFields(rules, Protections(protected))


def rule(pattern: str = "public.t", constants: dict[str, str] | None = None, **rename: str) -> FieldRule:
    return FieldRule(pattern, tuple(rename.items()), tuple((constants or {}).items()))


def test_columns_get_their_names_and_others_keep_theirs():
    fields = chosen(rule(tenant="customer", constants={"region": "eu"})).of_table(FULL)
    assert fields == Fields(("id", "customer", "code", "note"), (("region", "eu"),))
    assert [column.name for column in fields.renamed(FULL).columns] == list(fields.names)
    assert fields.of_columns(FULL, ("tenant", "id")) == ("customer", "id")


def test_other_tables_are_left_alone():
    fields = chosen(rule(tenant="customer")).of_table(replace(FULL, name="u"))
    assert fields == Fields(("id", "tenant", "code", "note"))
    assert fields.renamed(FULL) is FULL


def test_names_may_be_exchanged_and_a_column_that_is_not_there_is_not_renamed():
    fields = chosen(rule(id="code", code="id", gone="note")).of_table(FULL)
    assert fields.names == ("code", "tenant", "id", "note")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (rule(tenant="note"), "two fields note: column tenant and column note"),
        (rule(constants={"note": "x"}), "two fields note: the constant note and column note"),
        (
            rule(tenant="region", constants={"region": "eu"}),
            "two fields region: the constant region and column tenant",
        ),
    ],
)
def test_two_fields_of_one_name_are_refused_with_a_way_out(given: FieldRule, says: str):
    with pytest.raises(ConfigError) as caught:
        chosen(given).of_table(FULL)
    assert says in caught.value.message
    assert "rename: {" in caught.value.hint


def test_a_column_that_is_left_out_has_no_field():
    assert chosen(rule(tenant="note"), hidden="*.*.note").of_table(FULL).names[1] == "note"


def test_two_rules_for_a_table_are_refused():
    with pytest.raises(ConfigError, match=r"both match table public\.t"):
        chosen(rule(id="a"), rule("*.t", id="b")).of_table(FULL)


def test_what_matches_nothing_is_named():
    found = chosen(rule("public.*", tenant="a", nmae="b"), rule("x.y", id="b")).unmatched([FULL])
    assert found == [
        "fields.tables (public.*) renames column nmae, which no matched table has",
        "fields.tables (x.y) matches no published table",
    ]
    assert not chosen()
