"""Filter, ContentBasedRouter, PartitionRouting and Kafka's Filter: what is written, and what differs."""

import pytest

from cdcd.tools.adopt.reach import KnownTable
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

ORDERS_ONLY = {"topic.regex": r"inventory\.public\.orders"}
FLAT = {"type": UNWRAP}


def filtered(condition: str, language: str = "jsr223.groovy", **given: str) -> dict[str, str]:
    return {"type": f"{DEBEZIUM}Filter", "language": language, "condition": condition, **given}


@pytest.mark.parametrize(
    ("condition", "language", "keep"),
    [
        ("value.after.status != 'draft'", "jsr223.groovy", "row.status != 'draft'"),
        ('value.after?.status == "it\\"s"', "jsr223.groovy", "row.status == 'it\"s'"),
        ("value.op == 'd' || value.after.total == 5;", "jsr223.groovy", "row.total == 5"),
        ("value.after == null || value.after.total == -5", "jsr223.groovy", "row.total == -5"),
        ("!(value.after.status === 'a')", "jsr223.graal.js", "!(row.status == 'a')"),
        (
            "value.after.status == 'a' && (value.after.total == 1 || value.after.email != null)",
            "jsr223.groovy",
            "row.status == 'a' && (row.total == 1 || row.email != null)",
        ),
    ],
)
def test_comparisons_of_columns_become_a_filter(condition: str, language: str, keep: str) -> None:
    options = connector(filtered(condition, language, **ORDERS_ONLY))
    verdict = verdicts(options, KNOWN)["a"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "filters rows, not events" in verdict.why
    assert {pattern: each.keep for pattern, each in config(options, KNOWN).filters.tables.items()} == {
        "public.orders": keep
    }


def test_behind_flattening_the_value_is_the_row() -> None:
    options = connector(FLAT, filtered("value.status == 'paid'", **ORDERS_ONLY))
    assert config(options, KNOWN).filters.tables["public.orders"].keep == "row.status == 'paid'"
    envelope = connector(FLAT, filtered("value.after.status == 'paid'", **ORDERS_ONLY))
    assert verdicts(envelope, KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE
    before = connector(filtered("value.status == 'paid'", **ORDERS_ONLY), FLAT)
    assert verdicts(before, KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE


@pytest.mark.parametrize(
    ("condition", "language"),
    [
        ("value.after.total > 5", "jsr223.groovy"),
        ("value.after.status =~ /a/", "jsr223.groovy"),
        ("value.after.status.startsWith('a')", "jsr223.groovy"),
        ("value.after.status == value.before.status", "jsr223.groovy"),
        ("value.before.status == 'a'", "jsr223.groovy"),
        ("value.source.table == 'orders'", "jsr223.groovy"),
        ("topic == 'orders'", "jsr223.groovy"),
        ("value.after.status === 'a'", "jsr223.groovy"),
        ("value.after.status == 'a'", "wasm.chicory"),
        ('value.after.status == "${x}"', "jsr223.groovy"),
        ("value.op == 'c' && value.after.status == 'a'", "jsr223.groovy"),
        ("value.after != null && value.after.status == 'a'", "jsr223.groovy"),
        ("true", "jsr223.groovy"),
        ("", "jsr223.groovy"),
        ("(" * 60 + "value.op == 'c'" + ")" * 60, "jsr223.groovy"),
    ],
)
def test_every_other_condition_is_for_a_person_to_write(condition: str, language: str) -> None:
    verdict = verdicts(connector(filtered(condition, language, **ORDERS_ONLY)), KNOWN)["a"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "filters.tables" in verdict.why
    assert "Do not take over before that" in verdict.why


def test_a_filter_of_a_table_without_the_column_is_refused() -> None:
    verdict = verdicts(connector(filtered("value.after.status == 'a'")), KNOWN)["a"]
    assert "Table public.customers has no column status" in verdict.why


def test_two_filters_of_a_table_are_refused() -> None:
    one = filtered("value.after.email == 'a'")
    found = verdicts(connector(one, one), KNOWN)
    assert [each.kind for each in found.values()] == [VerdictKind.DIFFERENT, VerdictKind.IMPOSSIBLE]
    apart = connector(
        {**one, "topic.regex": "inventory.public.orders"},
        {**one, "topic.regex": "inventory.public.customers"},
    )
    assert set(config(apart).filters.tables) == {"public.orders", "public.customers"}


@pytest.mark.parametrize(
    ("condition", "skipped"),
    [
        ("value.op != 'd'", {"d"}),
        ("value.op == 'c' || value.op == 'u' || value.op == 'r'", {"d", "t"}),
        ("!(value.op == 'd' || value.op == 'c')", {"c", "d"}),
        ("value.op != 'u'", {"u"}),
    ],
)
def test_conditions_on_the_operation_become_skipped_operations(condition: str, skipped: set[str]) -> None:
    options = connector(filtered(condition, **{"null.handling.mode": "drop"}), skipped__operations="none")
    found = config(options, KNOWN)
    assert set(found.topics.skipped_operations) == skipped
    if "u" in skipped:
        assert found.snapshot.signals == "off"


def test_operations_that_the_connector_skips_stay_skipped() -> None:
    options = connector(filtered("value.op != 'd'"), skipped__operations="c")
    assert set(config(options, KNOWN).topics.skipped_operations) == {"c", "d"}


def test_what_the_operation_leaves_in_the_topics_is_told() -> None:
    said = verdicts(connector(filtered("value.op == 'c'")), KNOWN)["a"].why
    assert "leaves out the tombstone of the delete" in said
    assert "op r" in said
    assert "Logical messages have records" in said
    exact = connector(filtered("value.op != 'd'", **{"null.handling.mode": "drop"}))
    assert verdicts(exact, KNOWN)["a"].kind is VerdictKind.SAME


def test_operations_of_some_tables_are_not_skipped() -> None:
    verdict = verdicts(connector(filtered("value.op != 'd'", **ORDERS_ONLY)), KNOWN)["a"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})


@pytest.mark.parametrize(
    "given",
    [
        {"null.handling.mode": "evaluate"},
        {**ORDERS_ONLY, "predicate": "p"},
    ],
)
def test_a_script_that_is_asked_about_other_records_stands_in_the_way(given: dict[str, str]) -> None:
    options = connector(
        filtered("value.after.status == 'a'", **given), **topic_predicate("inventory.public.orders")
    )
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE


def routed(expression: str, **given: str) -> dict[str, str]:
    return {
        "type": f"{DEBEZIUM}ContentBasedRouter",
        "language": "jsr223.groovy",
        "topic.expression": expression,
        **ORDERS_ONLY,
        **given,
    }


@pytest.mark.parametrize(
    ("expression", "rules"),
    [
        (
            "value.after.status == 'eu' ? 'inventory.public.orders-eu' : null",
            [("row.status == 'eu'", "inventory.public.orders-eu")],
        ),
        ("value.after.status == 'eu' ? 'orders-eu' : null", [("row.status == 'eu'", "orders-eu")]),
        (
            (
                "value.after.status == 'eu' ? 'inventory.public.eu' : "
                "(value.after.total == 1 ? 'inventory.public.one' : null)"
            ),
            [("row.status == 'eu'", "inventory.public.eu"), ("row.total == 1", "inventory.public.one")],
        ),
        (
            "value.after.status == 'eu' ? 'inventory.public.eu' : 'inventory.public.rest'",
            [
                ("row.status == 'eu'", "inventory.public.eu"),
                ("!(row.status == 'eu')", "inventory.public.rest"),
            ],
        ),
    ],
)
def test_choices_of_topics_become_routes(expression: str, rules: list[tuple[str, str]]) -> None:
    options = connector(routed(expression))
    for known in (None, KNOWN):
        assert verdicts(options, known)["a"].kind is VerdictKind.DIFFERENT
        found = config(options, known).routes.tables["public.orders"].rules
        assert [(each.when, each.topic) for each in found] == rules


@pytest.mark.parametrize(
    "expression",
    [
        "value.after.status == 'eu' ? 'inventory.' + value.after.status : null",
        "value.op == 'd' ? 'inventory.public.deletes' : null",
        "'inventory.public.all'",
        "value.after.status",
    ],
)
def test_topics_that_are_no_tables_or_no_texts_stand_in_the_way(expression: str) -> None:
    verdict = verdicts(connector(routed(expression)), KNOWN)["a"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})
    assert "routes.tables" in verdict.why


def test_rows_of_several_tables_do_not_share_a_topic() -> None:
    expression = "value.after.email == 'a' ? 'inventory.public.some' : null"
    options = connector(routed(expression, **{"topic.regex": ".*"}))
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE
    assert set(config(options, KNOWN[:1]).routes.tables) == {"public.orders"}


def test_routes_beside_a_router_of_topics_are_for_a_person() -> None:
    router = {"type": f"{CONNECT}RegexRouter", "regex": "(.*)", "replacement": "$1-v2"}
    options = connector(routed("value.after.status == 'a' ? 'inventory.public.a' : null"), router)
    assert verdicts(options, KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE


def partitioned(fields: str, **given: str) -> dict[str, str]:
    return {
        "type": f"{DEBEZIUM}partitions.PartitionRouting",
        "partition.payload.fields": fields,
        "partition.topic.num": "4",
        **given,
    }


def test_partitions_are_written_and_must_be_accepted_for_their_hash() -> None:
    options = connector(partitioned("change.id, change.email"))
    verdict = verdicts(options, KNOWN)["a"]
    assert verdict.kind is VerdictKind.IMPOSSIBLE
    assert "another hash" in verdict.why
    assert config(options, KNOWN).partitioner.columns == {"*.*": ("id", "email")}
    assert config(options).partitioner.columns == {"*.*": ("id", "email")}


def test_a_table_without_a_field_goes_by_the_others() -> None:
    options = connector(partitioned("change.status,change.id"))
    assert config(options, KNOWN).partitioner.columns == {
        "public.orders": ("status", "id"),
        "public.customers": ("id",),
    }
    nothing = connector(partitioned("change.nothing"))
    assert verdicts(nothing, KNOWN)["a"].kind is VerdictKind.IRRELEVANT


@pytest.mark.parametrize("fields", ["op", "source.table", "before.id", "change.id,source.lsn"])
def test_partitions_by_something_else_than_columns_stand_in_the_way(fields: str) -> None:
    verdict = verdicts(connector(partitioned(fields)), KNOWN)["a"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.IMPOSSIBLE, {})


def test_behind_flattening_partitions_are_as_without_the_transform() -> None:
    verdict = verdicts(connector(FLAT, partitioned("change.id")), KNOWN)["b"]
    assert (verdict.kind, dict(verdict.keys)) == (VerdictKind.SAME, {})


def dropping(predicate: str, **given: str) -> dict[str, str]:
    return {"type": f"{CONNECT}Filter", "predicate": "p", **given}


def test_tombstones_that_are_dropped_are_not_written() -> None:
    predicate = {"predicates__p__type": f"{CONNECT}predicates.RecordIsTombstone"}
    options = connector(dropping("p"), **predicate)
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.SAME
    assert config(options, KNOWN).topics.tombstones is False
    assert verdicts(connector(FLAT, dropping("p"), **predicate), KNOWN)["b"].kind is VerdictKind.IMPOSSIBLE
    assert (
        verdicts(connector(dropping("p", negate="true"), **predicate), KNOWN)["a"].kind
        is VerdictKind.IMPOSSIBLE
    )


def test_tables_whose_topics_are_dropped_are_left_out() -> None:
    options = connector(dropping("p"), **topic_predicate(r"inventory\.public\.(orders|x.*)"))
    assert verdicts(options, KNOWN)["a"].kind is VerdictKind.SAME
    assert config(options, KNOWN).tables.exclude == ("public.orders", "public.x*")


def test_tables_whose_topics_alone_are_kept_are_the_only_ones() -> None:
    options = connector(dropping("p", negate="true"), **topic_predicate(r"inventory\.public\..*"))
    assert config(options).tables.include == ("public.*",)
    assert "Logical messages still have records in inventory.message" in verdicts(options)["a"].why


@pytest.mark.parametrize("pattern", [r"inventory\.public\.[o].*", r"inventory\.public\.or?ders"])
def test_expressions_without_a_pattern_leave_out_todays_tables(pattern: str) -> None:
    options = connector(dropping("p"), **topic_predicate(pattern))
    assert config(options, KNOWN).tables.exclude == ("public.orders",)
    assert "the present tables" in verdicts(options, KNOWN)["a"].why
    assert verdicts(options)["a"].kind is VerdictKind.UNKNOWN


def test_heartbeats_that_are_dropped_are_told() -> None:
    options = connector(
        dropping("p"), **topic_predicate("__debezium-heartbeat.*"), heartbeat__interval__ms="1000"
    )
    verdict = verdicts(options, KNOWN)["a"]
    assert verdict.kind is VerdictKind.DIFFERENT
    assert "Heartbeats still have records in __debezium-heartbeat.inventory" in verdict.why


@pytest.mark.parametrize(
    ("pattern", "given"),
    [(".*", {}), (r"inventory\..*", {})],
)
def test_a_filter_that_drops_all_tables_stands_in_the_way(pattern: str, given: dict[str, str]) -> None:
    assert (
        verdicts(connector(dropping("p", **given), **topic_predicate(pattern)), KNOWN)["a"].kind
        is VerdictKind.IMPOSSIBLE
    )


def test_a_filter_without_a_predicate_or_by_headers_stands_in_the_way() -> None:
    assert verdicts(connector({"type": f"{CONNECT}Filter"}), KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE
    headers = connector(dropping("p"), predicates__p__type=f"{CONNECT}predicates.HasHeaderKey")
    assert verdicts(headers, KNOWN)["a"].kind is VerdictKind.IMPOSSIBLE


def test_a_name_that_cel_reserves_is_quoted() -> None:
    known = (KnownTable("public", "orders", ("id", "in")),)
    options = connector(filtered("value.after.in == 'a'"))
    assert config(options, known).filters.tables["*.*"].keep == "row['in'] == 'a'"
