"""Routers of topics: a template where it says the same of every table, else today's tables, else why not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdcd.tools.adopt.judging import judge
from cdcd.tools.adopt.reach import KnownTable
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind
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


def router(regex: str, replacement: str, **given: str) -> dict[str, str]:
    return {"type": f"{CONNECT}RegexRouter", "regex": regex, "replacement": replacement, **given}


@pytest.mark.parametrize(
    ("regex", "replacement", "template"),
    [
        ("(.*)", "$1.v2", "{prefix}.{schema}.{table}.v2"),
        (r"([^.]+)\.([^.]+)\.([^.]+)", "$1.$2.$3-cdc", "{prefix}.{schema}.{table}-cdc"),
        ("inventory.(.*)", "inventory.db.$1", "{prefix}.db.{schema}.{table}"),
        (r"(?<p>inventory)\.(?<s>.*)\.(?<t>.*)", "${p}.${t}.${s}", "{prefix}.{table}.{schema}"),
        (r"inventory\.(.*)", "prod.$1", "prod.{schema}.{table}"),
        (r"(.*)", "prod.$1", "prod.inventory.{schema}.{table}"),
    ],
)
@pytest.mark.parametrize("known", [None, KNOWN], ids=["not asked", "asked"])
def test_a_template_is_written_if_it_says_the_same_of_every_table(
    regex: str, replacement: str, template: str, known: tuple[KnownTable, ...] | None
) -> None:
    options = connector(router(regex, replacement))
    found = config(options, known)
    assert found.topics.name == template
    assert verdicts(options, known)["a"].keys["topics.name"] == template


def test_the_routers_become_rules_if_their_expressions_depend_on_the_tables_names() -> None:
    options = connector(router(r"inventory\.public\.(orders)", "inventory.public.$1-v2"))
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.SAME
    topics = config(options, KNOWN).topics
    assert [(each.regex, each.replacement) for each in topics.rename] == [
        (r"inventory\.public\.(orders)", "inventory.public.$1-v2")
    ]
    assert verdicts(options)["a"].kind is VerdictKind.UNKNOWN


def test_topics_of_todays_tables_are_named_if_the_configuration_takes_no_such_rule() -> None:
    options = connector(router(r"inventory\.(?:public)+\.(?:(or)+ders)+", "inventory.public.v2"))
    found = verdicts(options, KNOWN)["a"]
    assert found.kind is VerdictKind.DIFFERENT
    assert "each present table" in found.why
    assert config(options, KNOWN).topics.names == {"public.orders": "inventory.public.v2"}


def test_an_expression_that_matches_no_table_changes_nothing() -> None:
    for known in (None, KNOWN):
        verdict = verdicts(connector(router(r"other\.(.*)", "x.$1")), known)["a"]
        assert "topics.name" not in verdict.keys
        assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.SAME, {})


@pytest.mark.parametrize(
    ("regex", "replacement"),
    [(r"inventory\.public\.(.*)", "inventory.public.all"), (r"(.*)\.(.*)\.(.*)", "$1.$2.all")],
)
def test_tables_that_a_router_brings_together_share_a_topic_with_the_keys_that_they_have(
    regex: str, replacement: str
) -> None:
    options = connector(router(regex, replacement))
    assert verdicts(options)["a"].kind is VerdictKind.UNKNOWN
    verdict = verdicts(options, KNOWN)["a"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "their keys may be the same" in verdict.why
    assert "Add a later one before anybody writes" in verdict.why
    (shared,) = config(options, KNOWN).topics.shared_topics
    assert (shared.topic, shared.key_field) == ("inventory.public.all", "")
    assert [each.text for each in shared.tables] == [each.pattern for each in KNOWN]


def test_other_tables_keep_the_topics_that_the_router_gives_them() -> None:
    others = (*KNOWN, KnownTable("sales", "lines", ("id",)))
    options = connector(router(r"inventory\.(public|sales)\.(.*)", "inventory.$1"))
    found = config(options, others).topic_names()
    assert found.table("sales", "lines") == "inventory.sales"
    assert found.table("public", "orders") == found.table("public", "customers") == "inventory.public"


def test_logical_messages_do_not_go_to_a_topic_of_tables() -> None:
    verdict = verdicts(connector(router("(.*)", "all_cdc")), KNOWN)["a"]
    assert sorted(verdict.keys) == ["topics.shared"]
    assert "Logical messages stay in inventory.message" in verdict.why


def test_topics_that_are_no_tables_are_renamed_too() -> None:
    options = connector(
        router("(__debezium-heartbeat|inventory)[.](inventory|transaction|message)", "ops-$1-$2"),
        heartbeat__interval__ms="1000",
        provide__transaction__metadata="true",
    )
    found = config(options, KNOWN).topics
    assert found.heartbeat == "ops-__debezium-heartbeat-inventory"
    assert found.transaction == "ops-inventory-transaction"
    assert found.message == "ops-inventory-message"


def test_a_topic_that_would_look_like_a_tables_is_told() -> None:
    verdict = verdicts(connector(router("(.*)", "$1.v2")), KNOWN)["a"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "Logical messages stay in inventory.message" in verdict.why


def test_two_routers_follow_each_other() -> None:
    options = connector(
        router(r"inventory\.(.*)", "x.$1"), {"type": UNWRAP}, router(r"x\.(.*)", "inventory.y.$1")
    )
    assert verdicts(options)["c"].kind is VerdictKind.UNKNOWN
    found = config(options, KNOWN)
    assert len(found.topics.rename) == 2
    assert found.topic_names().table("public", "orders") == "inventory.y.public.orders"
    assert verdicts(options, KNOWN)["a"].why == "The router after this transform has the keys for both."


def test_a_predicate_behind_a_router_goes_by_the_new_topic() -> None:
    mask = {"type": f"{CONNECT}MaskField$Value", "fields": "email", "replacement": "x", "predicate": "p"}
    options = connector(
        {"type": UNWRAP}, router("(.*)", "$1-v2"), mask, **topic_predicate(r"inventory\.public\.orders-v2")
    )
    assert config(options, KNOWN).columns.mask == {"public.orders.email": "x"}
    assert verdicts(options)["c"].kind is VerdictKind.UNKNOWN
    assert "A transform before it renames topics" in verdicts(options)["c"].why


def test_a_router_that_renames_nothing_leaves_predicates_as_they_are() -> None:
    mask = {"type": f"{CONNECT}MaskField$Value", "fields": "email", "replacement": "x", "predicate": "p"}
    options = connector(
        {"type": UNWRAP}, router(r"other\.(.*)", "x.$1"), mask, **topic_predicate("inventory.public.orders")
    )
    assert config(options).columns.mask == {"public.orders.email": "x"}


def test_a_router_with_a_predicate_renames_the_tables_that_it_means() -> None:
    options = connector(router("(.*)", "$1-v2", predicate="p"), **topic_predicate("inventory.public.orders"))
    assert config(options, KNOWN).topics.names == {"public.orders": "inventory.public.orders-v2"}


def test_schemas_that_keep_the_former_topics_names_are_told() -> None:
    options = connector(
        router(r"inventory\.(.*)\.(.*)", "inventory.$1.$2-v2"), value__converter__schemas__enable="true"
    )
    assert "Schemas have the names of the new topics" in verdicts(options, KNOWN)["a"].why


def logical(kind: str = "ByLogicalTableRouter", **given: str) -> dict[str, str]:
    return {
        "type": f"{DEBEZIUM}{kind}",
        "topic.regex": r"inventory\.(.*)\.(.*)",
        "topic.replacement": "inventory.$1.$2-v2",
        **given,
    }


def test_routers_of_logical_tables_are_carried_over_without_their_field_in_keys() -> None:
    options = connector(logical(**{"key.enforce.uniqueness": "false"}))
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.SAME
    assert config(options, KNOWN).topics.name == "{prefix}.{schema}.{table}-v2"


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("ByLogicalTableRouter", "__dbz__physicalTableIdentifier"),
        ("ToLogicalTopicRouter", "__dbz__sourceIdentifier"),
    ],
)
def test_the_field_that_routers_of_logical_tables_add_to_keys_is_a_constant_of_keys(
    kind: str, field: str
) -> None:
    found = config(connector(logical(kind)), KNOWN)
    assert found.topics.name == "{prefix}.{schema}.{table}-v2"
    assert {pattern: form.constants for pattern, form in found.key.forms.items()} == {
        each.pattern: {field: f"inventory.public.{each.name}"} for each in KNOWN
    }
    assert verdicts(connector(logical(kind)))["a"].kind is VerdictKind.UNKNOWN


def test_shards_share_a_topic_and_have_the_routers_field_in_keys() -> None:
    shards = tuple(
        [KnownTable("public", f"orders_{number}", ("id",), frozenset({"id"})) for number in (1, 2)]
    )
    merged = logical(**{"topic.regex": r"(.*)orders_(.*)", "topic.replacement": "$1orders"})
    found = config(connector(merged), shards)
    (shared,) = found.topics.shared_topics
    assert (shared.topic, shared.key_field) == ("inventory.public.orders", "")
    constants = [dict(each.constants) for each in found.key.forms.values()]
    assert constants == [
        {"__dbz__physicalTableIdentifier": f"inventory.public.orders_{number}"} for number in (1, 2)
    ]
    assert "compacted" not in verdicts(connector(merged), shards)["a"].why


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"regex": r"(?i)INVENTORY\.(\p{L}+)", "replacement": "$1"}, VerdictKind.IMPOSSIBLE),
        ({"regex": "(.*)", "replacement": "$2"}, VerdictKind.IMPOSSIBLE),
        ({"regex": "(.*"}, VerdictKind.IMPOSSIBLE),
        ({"regex": "${file:/a:b}", "replacement": "x"}, VerdictKind.UNKNOWN),
        ({"regex": "", "replacement": "x"}, VerdictKind.IMPOSSIBLE),
    ],
)
def test_what_cannot_be_read_stands_in_the_way(given: dict[str, str], kind: VerdictKind) -> None:
    verdict = verdicts(connector({"type": f"{CONNECT}RegexRouter", "replacement": "x", **given}), KNOWN)["a"]
    assert (verdict.kind, dict(verdict.keys)) == (kind, {})


def test_a_prefix_that_stands_elsewhere_is_unknown() -> None:
    options = connector(router("(.*)", "$1-v2"), topic__prefix="${file:/a:b}")
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.UNKNOWN


def outbox(**given: str) -> dict[str, str]:
    return {
        "type": f"{DEBEZIUM}outbox.EventRouter",
        **{name.replace("__", "."): value for name, value in given.items()},
    }


def _tables(verdict: Verdict) -> Mapping[str, object]:
    found = verdict.keys["outbox.tables"]
    assert isinstance(found, Mapping)
    return found


def outbox_table(*values: str) -> KnownTable:
    columns = ("id", "aggregatetype", "aggregateid", "type", "payload", "created_at")
    return KnownTable("public", "outbox", columns, frozenset({"id"}), values=(("aggregatetype", values),))


def _beside_tables(option: str, converter: str) -> VerdictKind:
    """The verdict on a converter that writes changes of tables too."""
    if converter.endswith("JsonConverter"):
        return VerdictKind.SAME
    is_text = option == "key.converter" and converter.endswith("StringConverter")
    return VerdictKind.DIFFERENT if is_text else VerdictKind.IMPOSSIBLE


EXISTING = frozenset({"outbox.event.Order", "outbox.event.Payment", "other", "inventory.public.outbox"})


def test_topics_of_events_are_those_that_exist_or_that_rows_name() -> None:
    found = {
        each.name: each.verdict
        for each in judge(connector(outbox()), References(), (outbox_table("Order", "Refund"),), EXISTING)
    }["transforms.a.type"]
    assert found.kind is VerdictKind.DIFFERENT
    assert found.keys["outbox.topics"] == [
        "outbox.event.Order",
        "outbox.event.Refund",
        "outbox.event.Payment",
    ]
    assert sorted(_tables(found)) == ["public.outbox"]
    assert "make at most 100 topics (topics_max)" in found.why
    (columns,) = _tables(found).values()
    assert isinstance(columns, dict)
    assert columns["topics_max"] == 100


@pytest.mark.parametrize(
    ("router", "table", "topics"),
    [
        # Every topic of the cluster fits a template without a text of its own.
        ({"route__topic__replacement": "${routedByValue}"}, outbox_table(), None),
        ({"route__topic__replacement": "${routedByValue}"}, outbox_table("orders"), ["orders"]),
        ({"route__topic__replacement": "${routedByValue}"}, outbox_table("inventory.public.x"), None),
        # Rows make topics of the form.
        ({"route__topic__replacement": "none.${routedByValue}"}, outbox_table(), []),
        ({"route__topic__replacement": "inventory.x.${routedByValue}"}, outbox_table(), None),
        ({"route__by__field": "type"}, outbox_table("x"), ["outbox.event.Order", "outbox.event.Payment"]),
        ({}, outbox_table(*[str(number) for number in range(101)]), None),
    ],
)
def test_topics_of_events_that_nothing_names_are_for_a_person(
    router: dict[str, str], table: KnownTable, topics: list[str] | None
) -> None:
    found = {
        each.name: each.verdict
        for each in judge(connector(outbox(**router)), References(), (table,), EXISTING)
    }["transforms.a.type"]
    assert (found.kind, found.keys.get("outbox.topics")) == (
        VerdictKind.IMPOSSIBLE if topics is None else VerdictKind.DIFFERENT,
        topics,
    )


def test_every_captured_table_is_an_outbox_if_all_records_are_events() -> None:
    tables = outbox_table("Order"), replace(outbox_table(), name="outbox_2")
    options = connector(outbox(table__field__event__timestamp="created_at"))
    found = verdicts(options, tables)["a"]
    assert sorted(_tables(found)) == ["public.outbox", "public.outbox_2"]
    assert "not that of created_at" in found.why
    assert config(options, tables).outbox.topics == ("outbox.event.Order",)


def test_an_outbox_whose_topics_or_columns_are_others_is_for_a_person() -> None:
    table = outbox_table("Order")
    moved = verdicts(connector(outbox(), router(r"outbox\.event\.(.*)", "events")), (table,))["a"]
    assert (moved.kind, "Transform b, which comes after this one" in moved.why) == (
        VerdictKind.IMPOSSIBLE,
        True,
    )
    beside = verdicts(connector(outbox(), router("other", "x")), (table,))["a"]
    assert beside.kind is VerdictKind.DIFFERENT
    lacking = verdicts(connector(outbox(table__field__event__key="who")), (table,))["a"]
    assert (lacking.kind, "has no column who" in lacking.why) == (VerdictKind.IMPOSSIBLE, True)


@pytest.mark.parametrize(
    ("converter", "kind"),
    [
        ("org.apache.kafka.connect.storage.StringConverter", VerdictKind.SAME),
        ("io.debezium.converters.ByteBufferConverter", VerdictKind.SAME),
        ("org.apache.kafka.connect.json.JsonConverter", VerdictKind.DIFFERENT),
        ("com.example.Own", VerdictKind.IMPOSSIBLE),
    ],
)
def test_converters_of_events_write_what_the_columns_have(converter: str, kind: VerdictKind) -> None:
    for name in ("key.converter", "value.converter"):
        for options, expected in (
            (connector(outbox(), **{name: converter}), kind),
            (
                connector(
                    outbox(predicate="p"), **{name: converter}, **topic_predicate("inventory.public.outbox")
                ),
                _beside_tables(name, converter),
            ),
        ):
            found = {each.name: each.verdict for each in judge(options, References(), (outbox_table("a"),))}
            assert found[name].kind is expected


AVRO = "io.confluent.connect.avro.AvroConverter"


@pytest.mark.parametrize(
    ("router", "converters", "forms"),
    [
        ({}, {"key": AVRO, "value": AVRO}, {"key_form": "avro", "payload_form": "avro"}),
        ({"table__expand__json__payload": "true"}, {"value": AVRO}, {"payload_form": "avro_record"}),
        (
            {
                "table__expand__json__payload": "true",
                "table__json__payload__null__behavior": "optional_bytes",
                "table__json__payload__empty__array__behavior": "optional_string",
            },
            {"value": AVRO},
            {"payload_form": "avro_record", "null_fields": "bytes", "empty_arrays": "strings"},
        ),
        (
            {"table__expand__json__payload": "true"},
            {"value": "org.apache.kafka.connect.json.JsonConverter"},
            {},
        ),
        ({}, {"value": "io.debezium.converters.BinaryDataConverter"}, {}),
    ],
)
def test_events_in_avro_keep_the_form_that_the_converters_gave_them(
    router: dict[str, str], converters: dict[str, str], forms: dict[str, str]
) -> None:
    written = {f"{part}.converter": each for part, each in converters.items()}
    written |= {f"{part}.converter.schema.registry.url": "http://registry:8081" for part in converters}
    options = connector(outbox(**router), **written)
    found = {each.name: each.verdict for each in judge(options, References(), (outbox_table("a"),))}
    columns: Any
    (columns,) = _tables(found["transforms.a.type"]).values()
    named = ("key_form", "payload_form", "null_fields", "empty_arrays")
    assert {name: columns[name] for name in named if name in columns} == forms
    expected = (
        VerdictKind.DIFFERENT
        if AVRO in converters.values() or "json" in written["value.converter"]
        else VerdictKind.SAME
    )
    assert found["value.converter"].kind is expected


@pytest.mark.parametrize(
    ("router", "converters", "lost"),
    [
        ({}, {"key": AVRO}, "keys in Avro beside values in another format"),
        (
            {"table__fields__additional__placement": "type:envelope"},
            {"value": AVRO},
            "fields in the envelope of events in Avro",
        ),
    ],
)
def test_forms_of_events_that_cdcd_lacks_are_impossible(
    router: dict[str, str], converters: dict[str, str], lost: str
) -> None:
    written = {f"{part}.converter": each for part, each in converters.items()}
    found = verdicts(connector(outbox(**router), **written), (outbox_table("a"),))["a"]
    assert (found.kind, lost in found.why) == (VerdictKind.IMPOSSIBLE, True)
