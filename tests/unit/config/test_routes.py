"""The sections `routes` and `filters`: what is refused, and what the engine is given."""

import pytest

from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.records.shaping.expressions import CelCall, CelColumn, CelLiteral
from cdcd.core.records.shaping.settings import Route, TableFilter, TableRoutes
from cdcd.daemon.settings import encoder_settings
from tests.unit.config.test_loading import MINIMAL, parse, problem


def rule(topic: str = "{prefix}.{schema}.{table}-x", when: str = "row.a") -> str:
    return f"{{when: '{when}', topic: '{topic}'}}"


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (f"orders: {{rules: [{rule()}]}}", "must be <schema>.<table>"),
        ("public.orders: {}", "rules"),
        ("public.orders: {rules: []}", "rules"),
        (f"public.orders: {{rules: [{', '.join([rule()] * 101)}]}}", "at most 100"),
        (f"public.orders: {{rules: [{rule(when='row.a =')}]}}", "cannot stand here"),
        (f"public.orders: {{rules: [{rule(when='1 == 1')}]}}", "uses no column"),
        (f"public.orders: {{rules: [{rule()}], on_error: stop}}", "on_error"),
        (f"public.orders: {{rules: [{rule()}], old_row: none}}", "old_row"),
        (f"public.orders: {{rules: [{rule('a b')}]}}", "may hold only ASCII letters"),
        (f"public.orders: {{rules: [{rule('{region}.a')}]}}", "{region} is not a placeholder"),
        (f"public.o*: {{rules: [{rule('shop.public.eu')}]}}", "needs {table}"),
        (
            f"public.a: {{rules: [{rule('shop.public.x_y')}]}}, public.b: {{rules: [{rule('shop.public.x.y')}]}}",
            "collides with that of table",
        ),
    ],
)
def test_what_is_wrong_is_named(tables: str, says: str):
    assert says in problem(f"{MINIMAL}routes: {{tables: {{{tables}}}}}\n")


def test_a_topic_of_a_route_is_none_of_cdcds_own():
    own = "topics: {schemas: shop.public.x}\n"
    given = f"{MINIMAL}{own}routes: {{tables: {{public.a: {{rules: [{rule('shop.public.x')}]}}}}}}\n"
    assert "collides with that of descriptions of tables" in problem(given)


def test_rows_of_an_outbox_table_cannot_be_routed():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}routes: {{tables: {{public.*: {{rules: [{rule()}]}}}}}}\n"
    assert "matches public.outbox, whose rows are events" in problem(given)


def test_events_with_data_in_avro_cannot_be_routed():
    form = "format: {value: cloudevents}\ncloudevents: {data: avro}\nregistry: {url: 'http://r'}\n"
    given = f"{MINIMAL}{form}routes: {{tables: {{public.a: {{rules: [{rule()}]}}}}}}\n"
    assert "routes.tables needs another cloudevents.data than avro" in problem(given)


def test_nothing_is_routed_by_default():
    config = parse()
    assert config.routes.settings == ()
    assert config.topic_names().routes == ()


def test_rules_are_parsed_and_their_topics_known_to_everybody():
    topic = "{prefix}.{schema}.{table}-x"
    config = parse(
        f"routes: {{tables: {{'public.o*': {{rules: [{rule(when='row.a == 1')}], old_row: assumed}}}}}}\n"
    )
    when = CelCall("==", (CelColumn("a"), CelLiteral(1)))
    routes = (TableRoutes("public.o*", (Route("row.a == 1", when, topic),), "own_topic", "assumed"),)
    assert config.routes.settings == routes
    topics = (RoutedTopics("public.o*", (topic,)),)
    assert config.topic_names().routes == encoder_settings(config, "db").routes == topics
    assert config.topic_names().all_of("public", "orders") == ("shop.public.orders", "shop.public.orders-x")


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("orders: {keep: row.a}", "must be <schema>.<table>"),
        ("public.orders: {}", "keep"),
        ("public.orders: {keep: 'row.a ='}", "cannot stand here"),
        ("public.orders: {keep: 'true'}", "uses no column"),
        ("public.orders: {keep: row.a, on_error: stop}", "on_error"),
        ("public.orders: {keep: row.a, old_row: none}", "old_row"),
    ],
)
def test_what_is_wrong_is_named_of_filters(tables: str, says: str):
    assert says in problem(f"{MINIMAL}filters: {{tables: {{{tables}}}}}\n")


def test_rows_of_an_outbox_table_cannot_be_filtered():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}filters: {{tables: {{public.*: {{keep: row.a}}}}}}\n"
    assert "matches public.outbox, whose rows are events" in problem(given)


def test_nor_can_columns_choose_their_partitions():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}partitioner: {{columns: {{public.*: [id]}}}}\n"
    assert "partitioner.columns: public.* matches public.outbox, whose rows are events" in problem(given)


def test_nothing_is_filtered_by_default():
    assert parse().filters.settings == ()


def test_a_filter_is_parsed():
    config = parse("filters: {tables: {'public.o*': {keep: row.a == 1, old_row: assumed}}}\n")
    keep = CelCall("==", (CelColumn("a"), CelLiteral(1)))
    assert config.filters.settings == (TableFilter("public.o*", "row.a == 1", keep, "keep", "assumed"),)
