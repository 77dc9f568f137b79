"""Transforms in their order: what the earlier ones make of the records decides what the later ones are."""

import pytest

from cdcd.tools.adopt.options import TRANSFORMS
from cdcd.tools.adopt.reach import KnownTable
from cdcd.tools.adopt.transforms import CLASSES
from cdcd.tools.adopt.verdicts import VerdictKind
from tests.unit.tools.adopt.transforms_examples import (
    CONNECT,
    DEBEZIUM,
    KNOWN,
    UNWRAP,
    config,
    connector,
    topic_predicate,
    verdicts,
)

FLAT = {"type": UNWRAP}
RENAME = {
    "type": f"{CONNECT}ReplaceField$Value",
    "renames": "status:state",
    "replace.null.with.default": "false",
}


def test_several_transforms_become_one_configuration() -> None:
    options = connector(
        {
            "type": f"{DEBEZIUM}Filter",
            "language": "jsr223.groovy",
            "condition": "value.after.email != null",
        },
        {**FLAT, "add.fields": "op", "delete.tombstone.handling.mode": "rewrite"},
        RENAME,
        {"type": f"{CONNECT}InsertField$Value", "static.field": "region", "static.value": "eu"},
        {"type": f"{CONNECT}MaskField$Value", "fields": "email", "replacement": "***"},
        {"type": f"{CONNECT}RegexRouter", "regex": "(.*)", "replacement": "$1-v2"},
    )
    assert all(
        each.kind in (VerdictKind.SAME, VerdictKind.DIFFERENT) for each in verdicts(options, KNOWN).values()
    )
    found = config(options, KNOWN)
    assert found.filters.tables["*.*"].keep == "row.email != null"
    assert found.event_flattening.enabled
    assert found.event_flattening.add_fields == ("op",)
    assert (found.fields.rules[0].rename, found.fields.rules[0].constants) == (
        (("status", "state"),),
        (("region", "eu"),),
    )
    assert found.columns.mask == {"*.*.email": "***"}
    assert found.topics.name == "{prefix}.{schema}.{table}-v2"
    assert found.topics.message == "inventory.message-v2"


def test_behind_a_transform_without_a_counterpart_the_others_say_so() -> None:
    own = {"type": "com.example.Own"}
    found = verdicts(connector(FLAT, own, RENAME), KNOWN)
    assert [each.kind for each in found.values()] == [
        VerdictKind.SAME,
        VerdictKind.IMPOSSIBLE,
        VerdictKind.DIFFERENT,
    ]
    assert "as if transform b, which comes before it, did not exist" in found["c"].why
    assert [each.kind for each in verdicts(connector(FLAT, RENAME, own), KNOWN).values()] == [
        VerdictKind.SAME,
        VerdictKind.SAME,
        VerdictKind.IMPOSSIBLE,
    ]


def test_behind_a_router_that_brings_tables_together_fields_are_judged_as_they_are() -> None:
    router = {"type": f"{CONNECT}RegexRouter", "regex": r"(.*)\.(.*)\.(.*)", "replacement": "all"}
    found = verdicts(connector(router, FLAT, RENAME), KNOWN)
    assert [each.kind for each in found.values()] == [
        VerdictKind.DIFFERENT,
        VerdictKind.SAME,
        VerdictKind.SAME,
    ]


@pytest.mark.parametrize(
    ("pattern", "negate", "known", "kind"),
    [
        (r"inventory\..*", "false", None, VerdictKind.SAME),
        (r"inventory\.public\..*", "false", None, VerdictKind.IMPOSSIBLE),
        (r"inventory\.public\..*", "false", KNOWN, VerdictKind.DIFFERENT),
        (r"inventory\.public\.orders", "false", KNOWN, VerdictKind.IMPOSSIBLE),
        (r"__debezium-heartbeat.*", "false", None, VerdictKind.IRRELEVANT),
        (r"__debezium-heartbeat.*", "true", KNOWN, VerdictKind.DIFFERENT),
    ],
)
def test_records_are_flattened_for_all_tables_or_for_none(
    pattern: str, negate: str, known: tuple[KnownTable, ...] | None, kind: VerdictKind
) -> None:
    options = connector({**FLAT, "predicate": "p", "negate": negate}, **topic_predicate(pattern))
    verdict = verdicts(options, known)["a"]
    assert verdict.kind is kind
    assert ("event_flattening.enabled" in verdict.keys) == (kind in (VerdictKind.SAME, VerdictKind.DIFFERENT))
    assert config(options, known).event_flattening.enabled == (
        kind in (VerdictKind.SAME, VerdictKind.DIFFERENT)
    )


def test_an_outbox_beside_flattened_tables_is_for_a_person_and_the_tables_are_flattened() -> None:
    outbox = KnownTable("public", "outbox", ("id", "aggregatetype", "aggregateid", "type", "payload"))
    options = connector(
        {
            "type": f"{DEBEZIUM}outbox.EventRouter",
            "predicate": "p",
            "route.topic.replacement": "events.${routedByValue}",
            "table.fields.additional.placement": "type:header:eventType,note:partition",
        },
        {**FLAT, "predicate": "p", "negate": "true"},
        **topic_predicate(r"inventory\.public\.outbox"),
    )
    found = verdicts(options, (*KNOWN, outbox))
    assert found["a"].kind is VerdictKind.IMPOSSIBLE
    assert "note:partition" in found["a"].why
    assert found["a"].keys == {}
    assert found["a"].draft == {
        "outbox.topics": [],
        "outbox.tables": {
            "public.outbox": {
                "topic": "events.{value}",
                "route_by": "aggregatetype",
                "event_id": "id",
                "key": "aggregateid",
                "payload": "payload",
                "headers": {"eventType": "type"},
                "topics_max": 100,
            }
        },
    }
    assert "as if transform a" not in found["b"].why
    assert config(options, (*KNOWN, outbox)).event_flattening.enabled


def test_an_outbox_with_one_topic_is_written_out() -> None:
    table = KnownTable("public", "outbox", ("id", "aggregatetype", "aggregateid", "type", "payload"))
    options = connector(
        {"type": f"{DEBEZIUM}outbox.EventRouter", "predicate": "p", "route.topic.replacement": "events"},
        **topic_predicate(r"inventory\.public\.outbox"),
    )
    assert verdicts(options, (*KNOWN, table))["a"].kind is VerdictKind.DIFFERENT
    found = config(options, (*KNOWN, table)).outbox
    assert found.topics == ("events",)
    assert found.tables["public.outbox"].topic == "events"


@pytest.mark.parametrize(
    "router",
    [
        {
            "type": f"{DEBEZIUM}ContentBasedRouter",
            "language": "jsr223.groovy",
            "topic.expression": "value.after.status == 'a' ? 'inventory.public.a' : null",
            "topic.regex": "inventory.public.orders",
        },
        {"type": f"{CONNECT}TimestampRouter"},
        {"type": f"{CONNECT}RegexRouter", "regex": r"\p{L}+", "replacement": "x"},
        {"type": UNWRAP, "route.by.field": "status"},
    ],
)
def test_behind_records_in_other_topics_nothing_is_chosen_by_topics(router: dict[str, str]) -> None:
    mask = {"type": f"{CONNECT}MaskField$Value", "fields": "email", "replacement": "x"}
    options = connector(
        router, FLAT, {**mask, "predicate": "p"}, mask, **topic_predicate("inventory.public.orders")
    )
    found = verdicts(options, KNOWN)
    assert found["c"].kind is VerdictKind.IMPOSSIBLE
    assert "the topics after transform a are not known" in found["c"].why
    assert found["d"].kind is VerdictKind.DIFFERENT


def test_records_are_flattened_once() -> None:
    found = verdicts(connector(FLAT, FLAT), KNOWN)
    assert [each.kind for each in found.values()] == [VerdictKind.SAME, VerdictKind.SAME]
    assert "The transform has no effect" in found["b"].why


def test_a_transform_without_a_type_is_told() -> None:
    options = connector(FLAT)
    options["transforms"] = "a, z"
    assert verdicts(options)["a"].kind is VerdictKind.SAME


def test_connect_takes_the_last_part_of_a_class_too() -> None:
    assert verdicts(connector({"type": "RegexRouter", "regex": "(.*)", "replacement": "$1-x"}))["a"].keys[
        "topics.name"
    ]
    assert verdicts(connector({"type": "com.example.RegexRouter"}))["a"].kind is VerdictKind.IMPOSSIBLE
    assert verdicts(connector({"type": "Filter"}))["a"].kind is VerdictKind.IMPOSSIBLE


@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - set(CLASSES)))
def test_a_class_without_a_counterpart_says_what_to_do(name: str) -> None:
    verdict = verdicts(connector({"type": name}))["a"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "accept this option" in verdict.why


def test_every_class_that_is_judged_by_a_function_has_a_row() -> None:
    assert set(CLASSES) <= set(TRANSFORMS)


def test_names_of_schemas_matter_only_where_there_are_schemas() -> None:
    schema = {"type": f"{CONNECT}SetSchemaMetadata$Value", "schema.name": "x"}
    assert verdicts(connector(schema))["a"].kind is VerdictKind.SAME
    with_schemas = connector(schema, value__converter__schemas__enable="true")
    assert verdicts(with_schemas)["a"].kind is VerdictKind.IMPOSSIBLE
    assert verdicts(connector({"type": f"{DEBEZIUM}SchemaChangeEventFilter"}))["a"].kind is VerdictKind.SAME


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [("other.public.orders", VerdictKind.IRRELEVANT), (r"inventory\.public\.orders", VerdictKind.IMPOSSIBLE)],
)
def test_a_transform_without_a_counterpart_is_no_matter_if_its_predicate_selects_no_table(
    pattern: str, kind: VerdictKind
) -> None:
    hoist = {"type": f"{CONNECT}HoistField$Key", "field": "id", "predicate": "p"}
    found = verdicts(connector(hoist, **topic_predicate(pattern)), KNOWN)["a"]
    assert found.kind is kind
