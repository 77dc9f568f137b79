"""ExtractField for keys and values, and keys to which a router adds a field."""

from dataclasses import replace

import pytest

from cdcd.tools.adopt.verdicts import VerdictKind
from tests.unit.tools.adopt.transforms_examples import (
    CONNECT,
    DEBEZIUM,
    KNOWN,
    ORDERS,
    UNWRAP,
    config,
    connector,
    topic_predicate,
    verdicts,
)

EXTRACT = {"type": f"{CONNECT}ExtractField$Key", "field": "id"}
AFTER = {"type": f"{CONNECT}ExtractField$Value", "field": "after"}
ROUTER = {
    "type": f"{DEBEZIUM}ByLogicalTableRouter",
    "topic.regex": r"(.*)\.orders",
    "topic.replacement": "$1.all",
}


def test_keys_are_bare_values_of_their_column() -> None:
    found = config(connector(EXTRACT), KNOWN)
    assert [(pattern, form.bare) for pattern, form in found.key.forms.items()] == [("*.*", True)]
    assert found.format.key == "json"


def test_keys_of_a_converter_for_texts_are_texts() -> None:
    options = connector(EXTRACT, key__converter="org.apache.kafka.connect.storage.StringConverter")
    assert config(options, KNOWN).format.key == "text"


def test_a_predicate_says_which_tables_have_bare_keys() -> None:
    options = connector({**EXTRACT, "predicate": "p"}, **topic_predicate(r"inventory\.public\.orders"))
    assert list(config(options, KNOWN).key.forms) == ["public.orders"]


@pytest.mark.parametrize(
    ("key", "says"),
    [({"id", "email"}, "has 2 columns"), ({"email"}, "has no field id, so the connector stops")],
)
def test_a_key_that_is_not_the_field_alone_stands_in_the_way(key: set[str], says: str) -> None:
    verdict = verdicts(connector(EXTRACT), (replace(ORDERS, key=frozenset(key)),))["a"]
    assert verdict.kind is VerdictKind.IMPOSSIBLE
    assert says in verdict.why
    assert verdicts(connector(EXTRACT))["a"].kind is VerdictKind.UNKNOWN


def test_a_router_adds_its_field_to_the_keys_of_the_tables_that_it_renames() -> None:
    field = "__dbz__physicalTableIdentifier"
    (forms,) = [config(connector(ROUTER), KNOWN).key.forms]
    assert {pattern: form.constants for pattern, form in forms.items()} == {
        "public.orders": {field: "inventory.public.orders"}
    }
    named = {
        **ROUTER,
        "key.field.name": "shard",
        "key.field.regex": r".*\.(.*)",
        "key.field.replacement": "$1",
    }
    (forms,) = [config(connector(named), KNOWN).key.forms]
    assert forms["public.orders"].constants == {"shard": "orders"}


def test_a_field_that_a_later_transform_leaves_out_of_keys_again_is_not_added() -> None:
    forms = config(connector(ROUTER, EXTRACT), KNOWN).key.forms
    assert [(pattern, form.bare, form.constants) for pattern, form in forms.items()] == [("*.*", True, {})]
    wrong = {**EXTRACT, "field": "__dbz__physicalTableIdentifier"}
    assert verdicts(connector(ROUTER, wrong), KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE


def test_after_alone_is_a_flattened_record() -> None:
    found = config(connector(AFTER), KNOWN).event_flattening
    assert (found.enabled, found.delete_tombstone_handling_mode) == (True, "delete-to-tombstone")


def test_two_transforms_that_flatten_all_tables_together_are_one_setting() -> None:
    predicate = topic_predicate(r"inventory\.public\.orders")
    flat = {"type": UNWRAP, "predicate": "p"}
    rest = {**AFTER, "predicate": "p", "negate": "true"}
    found = verdicts(connector(flat, rest, **predicate), KNOWN)
    assert [each.kind for each in found.values()] == [VerdictKind.DIFFERENT, VerdictKind.DIFFERENT]
    assert config(connector(flat, rest, **predicate), KNOWN).event_flattening.enabled
    assert verdicts(connector(flat, **predicate), KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE
    assert verdicts(connector(rest, **predicate), KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE


@pytest.mark.parametrize("transforms", [({**AFTER, "field": "email"},), ({"type": UNWRAP}, AFTER)])
def test_one_field_of_a_row_stands_in_the_way(transforms: tuple[dict[str, str], ...]) -> None:
    assert list(verdicts(connector(*transforms), KNOWN).values())[-1].kind is VerdictKind.IMPOSSIBLE


VALUES = {"type": f"{CONNECT}ValueToKey", "fields": "email"}


def test_a_key_of_values_is_a_key_of_columns_and_a_later_transform_makes_it_bare() -> None:
    customers = topic_predicate(r"inventory\.public\.customers")
    keyed = {**VALUES, "predicate": "p"}
    bare = {"type": f"{CONNECT}ExtractField$Key", "field": "email", "predicate": "p"}
    options = connector({"type": UNWRAP}, keyed, bare, **customers)
    found = config(options, KNOWN)
    assert dict(found.key.columns) == {"public.customers": ("email",)}
    assert found.key.forms["public.customers"].bare
    assert "REPLICA IDENTITY FULL" in verdicts(options, KNOWN)["b"].why


@pytest.mark.parametrize(
    ("transforms", "says"),
    [
        ((VALUES,), "Records are envelopes here"),
        (({"type": UNWRAP}, {**VALUES, "fields": ""}), "no field"),
        (({"type": UNWRAP}, {**VALUES, "fields": "unknown"}), "has no column unknown"),
        (({"type": UNWRAP, "add.fields": "op"}, {**VALUES, "fields": "__op"}), "__op"),
    ],
)
def test_a_key_of_other_fields_than_columns_is_impossible(
    transforms: tuple[dict[str, str], ...], says: str
) -> None:
    found = list(verdicts(connector(*transforms), KNOWN).values())[-1]
    assert (found.kind, says in found.why) == (VerdictKind.IMPOSSIBLE, True), found.why
