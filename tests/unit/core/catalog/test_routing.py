import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import Router, compiled
from cdcd.core.catalog.routing import (
    DEFAULT,
    TOPIC_LENGTH_MAX,
    ClaimedTopics,
    RoutedTopics,
    TopicNames,
    check_routed,
    check_template,
    collisions,
    needs_name,
    parse_table,
    rendered,
    topic_name,
)
from cdcd.core.catalog.sharing import SharedTopic
from cdcd.core.errors import SinkError

NAMES = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        (DEFAULT, "shop.sales.orders"),
        ("{prefix}.eu.{schema}.{table}", "shop.eu.sales.orders"),
        ("{prefix}.app.{table}", "shop.app.orders"),
        ("{prefix}.{table}.{schema}-v1", "shop.orders.sales-v1"),
        ("{prefix}.{prefix}.{table}", "shop.shop.orders"),
        ("{schema}.{table}", "sales.orders"),
        ("{table}", "orders"),
        ("eu-{table}", "eu-orders"),
    ],
)
def test_a_template_gives_a_topic_for_the_names_and_for_the_text_of_a_table(template, topic):
    check_template(template)
    assert rendered(template, "shop", "sales", "orders") == topic
    assert TopicNames("shop", template=template).qualified("sales.orders") == topic


@pytest.mark.parametrize(
    ("template", "meaning"),
    [
        ("{prefix}.{schema}.{tabel}", "{tabel} is not a placeholder; there are"),
        ("{prefix}.{}.{table}", "{} is not a placeholder"),
        ("{prefix}.{database}.{table}", "a pipeline reads one database; write its name"),
        ("{prefix}.a b.{table}", "may hold only ASCII letters"),
        ("{prefix}.a{{b}}.{table}", "{b} is not a placeholder"),
        ("{prefix}.{table", "may hold only ASCII letters"),
        ("", "must not be empty"),
        ("..", "must not be empty, . or .."),
    ],
)
def test_what_would_not_name_topics_of_tables_is_refused(template, meaning):
    with pytest.raises(ValueError, match=r"placeholder|letters|must not be") as caught:
        check_template(template)
    assert meaning in str(caught.value)


@pytest.mark.parametrize("template", [DEFAULT, "{prefix}.x.{schema}.{table}-y"])
@given(schema=st.text(), table=st.text())
def test_schema_and_table_side_by_side_need_no_name(template, schema, table):
    assert not needs_name(template, schema, table)


@pytest.mark.parametrize(
    "template", ["{prefix}.{table}.{schema}", "{prefix}.a.{table}", "{prefix}.{schema}.{schema}.{table}"]
)
@given(schema=NAMES, table=NAMES)
def test_other_templates_name_tables_without_points(template, schema, table):
    assert not needs_name(template, schema, table)
    assert needs_name(template, f"{schema}.x", table)
    assert needs_name(template, schema, f"x.{table}")


def test_a_name_that_looks_like_a_placeholder_stays_as_it_is():
    assert rendered(DEFAULT, "p", "{table}", "{prefix}") == "p.{table}.{prefix}"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("shop.public.orders-eu", "public.orders"),
        ("{prefix}.{schema}.{table}-eu", "public.orders"),
        ("{prefix}.eu.{table}", "public.*"),
        ("{prefix}.{schema}.eu", "*.orders"),
        ("orders-eu", "public.orders"),
    ],
)
def test_a_topic_of_a_route_is_a_name_or_a_template(text, pattern):
    check_routed(text, pattern)


@pytest.mark.parametrize(
    ("text", "pattern", "meaning"),
    [
        ("{prefix}.{schema}.{region}", "public.orders", "{region} is not a placeholder"),
        ("shop.public.orders/eu", "public.orders", "may hold only ASCII letters"),
        ("shop.public.eu", "public.o*", "needs {table}, because public.o* may match several tables"),
        ("shop.{table}.eu", "*.orders", "needs {schema}"),
    ],
)
def test_what_would_not_name_topics_of_routes_is_refused(text, pattern, meaning):
    with pytest.raises(ValueError, match=r"topic: ") as caught:
        check_routed(text, pattern)
    assert meaning in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "table", "topic"),
    [
        ("public", "orders", "shop.public.orders"),
        ("public", "Order Lines", "shop.public.Order_Lines"),
        ("Größe", "a/b", "shop.Gr__e.a_b"),
        ("s", "x.y", "shop.s.x.y"),
        ("s", "日本", "shop.s.__"),
        ("s", "🐘", "shop.s.__"),
        ("s", "a-b_c", "shop.s.a-b_c"),
    ],
)
def test_a_topic_is_prefix_schema_and_table_with_underscores_for_what_kafka_forbids(schema, table, topic):
    assert ClaimedTopics(TopicNames("shop")).table(schema, table) == topic


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_every_topic_is_one_that_kafka_allows(schema, table):
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic_name("p", schema, table))


def test_a_topic_that_is_too_long_is_refused():
    assert len(topic_name("p", "s" * (TOPIC_LENGTH_MAX - 2))) == TOPIC_LENGTH_MAX
    with pytest.raises(SinkError, match="250 characters"):
        topic_name("p", "s" * (TOPIC_LENGTH_MAX - 1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b_c"), ("a", "b.c")),
        (("a.b", "c"), ("a", "b.c")),
        (("a", "x y"), ("a", "x_y")),
        (("a", "ä"), ("a", "ö")),
    ],
)
def test_two_tables_with_one_topic_to_kafka_are_refused(one, other):
    routes = ClaimedTopics(TopicNames("shop"))
    routes.table(*one)
    with pytest.raises(SinkError, match="collides") as caught:
        routes.table(*other)
    assert f'"{one[0]}"."{one[1]}"' in caught.value.message
    assert caught.value.hint


def test_a_table_may_come_again_and_names_differ_by_case():
    routes = ClaimedTopics(TopicNames("shop"))
    assert routes.table("a", "t") == routes.table("a", "t")
    assert routes.table("a", "T") == "shop.a.T"


def test_a_table_cannot_take_the_topic_of_the_messages():
    routes = ClaimedTopics(TopicNames("shop"))
    routes.claim("shop.public.audit", "logical messages")
    with pytest.raises(SinkError, match="logical messages"):
        routes.table("public", "audit")


def test_a_name_of_the_configuration_goes_before_the_rule():
    names = TopicNames("shop", {("a", "x y"): "shop.a.x-y"})
    routes = ClaimedTopics(names)
    assert routes.table("a", "x_y") == "shop.a.x_y"
    assert routes.table("a", "x y") == "shop.a.x-y" == names.qualified("a.x y")
    assert names.qualified("a.x_y") == "shop.a.x_y"


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("public.orders", ("public", "orders")),
        ("public.Order Lines", ("public", "Order Lines")),
        ('"a.b".c', ("a.b", "c")),
        ('a."b.""c"', ("a", 'b."c')),
    ],
)
def test_a_table_is_named_by_schema_and_name_with_points_in_quotes(text, table):
    assert parse_table(text) == table


@pytest.mark.parametrize("text", ["", "orders", "a.b.c", ".a", "a.", '"a.b', 'a."b"c', '"".b'])
def test_what_names_no_table_is_refused(text):
    with pytest.raises(ValueError, match="is not <schema>"):
        parse_table(text)


def test_all_collisions_are_found_at_once_and_in_the_words_of_the_first_record():
    names = TopicNames(
        "shop", message="shop.message", schemas="shop.schemas", checkpoint="shop.c", dead_letter="shop.d_l"
    )
    tables = [
        ("a", "b c"),
        ("a", "b_c"),
        ("a", "b.c"),
        ("a", "free"),
        ("d", "l"),
        ("a", "x" * TOPIC_LENGTH_MAX),
    ]
    found = collisions(tables, names)
    routes = ClaimedTopics(names)
    raised = []
    for table in tables:
        try:
            routes.table(*table)
        except SinkError as error:
            raised.append(error.message)
    assert [error.message for error in found] == raised
    told = ['of table "a"."b_c" collides', 'of table "a"."b.c" collides', "records that are too large", "249"]
    assert all(word in message for word, message in zip(told, raised, strict=True))
    assert all("topics.names" in error.hint for error in found)
    assert collisions([("a", "b_c")], names) == []


def test_what_is_given_a_name_of_its_own_collides_no_more():
    tables = [("a", "b c"), ("a", "b_c"), ("a", "x" * TOPIC_LENGTH_MAX)]
    names = TopicNames("shop", {tables[0]: "shop.a.b-c", tables[2]: "shop.a.x"})
    assert collisions(tables, names) == []


def test_two_topics_of_cdcds_own_collide_too_and_so_does_an_illegal_name():
    (error,) = collisions([], TopicNames("shop", message="shop.a.b", checkpoint="shop.a_b"))
    assert "logical messages" in error.message
    (error,) = collisions([("a", "b")], TopicNames("shop", {("a", "b"): "a/b"}))
    assert "does not allow" in error.message


FLAT = "{prefix}.app.{schema}_{table}"


def test_a_template_is_the_rule_for_tables_without_a_name_of_their_own():
    names = TopicNames("shop", {("a", "x"): "shop.b.x"}, template=FLAT)
    routes = ClaimedTopics(names)
    assert routes.table("a", "x") == "shop.b.x" == names.qualified("a.x")
    assert routes.table("a", "y z") == "shop.app.a_y_z" == names.qualified("a.y z")


def test_tables_that_a_template_does_not_tell_apart_collide():
    (error,) = collisions([("a", "b_c"), ("a_b", "c"), ("a", "d")], TopicNames("shop", template=FLAT))
    assert 'of table "a_b"."c" collides' in error.message
    found = collisions([("a", "t"), ("b", "t")], TopicNames("shop", template="{prefix}.app.{table}"))
    assert len(found) == 1


def test_a_point_in_a_name_is_refused_where_the_template_would_need_to_split_at_it():
    names = TopicNames("shop", template=FLAT)
    (error,) = collisions([("a", "b"), ('"x.y', "c")], names)
    assert "has a point in its name" in error.message
    assert 'topics.names: {\'"""x.y"."c"\': shop.app._x.y_c}' in error.hint
    named = TopicNames("shop", {('"x.y', "c"): "shop.app.c"}, template=FLAT)
    assert collisions([('"x.y', "c")], named) == []
    assert parse_table('"""x.y"."c"') == ('"x.y', "c")


ROUTED = TopicNames(
    "shop",
    {("a", "named"): "shop.a.x"},
    checkpoint="shop.checkpoint",
    dead_letter="shop.a.dead",
    routes=(
        RoutedTopics("a.*", ("{prefix}.{schema}.{table}-eu", "{prefix}.{schema}.{table}")),
        RoutedTopics("b.t", ("shop.b.t-big", "shop.b.t-big")),
    ),
)


def test_a_table_with_routes_has_further_topics():
    assert ROUTED.routed("a", "Ä t") == ("shop.a.__t-eu", "shop.a.__t")
    assert ROUTED.all_of("a", "t") == ("shop.a.t", "shop.a.t-eu")
    assert ROUTED.all_of("a", "named") == ("shop.a.x", "shop.a.named-eu", "shop.a.named")
    assert ROUTED.all_of("b", "t") == ("shop.b.t", "shop.b.t-big")
    assert ROUTED.routed("c", "t") == ()
    assert ROUTED.all_of("c", "t") == ("shop.c.t",)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ([("a", "t"), ("a", "t-eu")], 'shop.a.t-eu of table "a"."t-eu" collides with that of table "a"."t"'),
        ([("b", "t_big"), ("b", "t")], None),
        (
            [("b", "t-big"), ("b", "t")],
            'shop.b.t-big of table "b"."t" collides with that of table "b"."t-big"',
        ),
    ],
)
def test_topics_of_routes_collide_as_topics_of_tables_do(tables, says):
    found = collisions(tables, ROUTED)
    assert says is None or says in found[0].message
    assert (says is None) == (not found)


def test_topics_of_routes_collide_with_cdcds_own():
    names = TopicNames(
        "shop", dead_letter="shop.a.dead_letter", routes=(RoutedTopics("a.t", ("shop.a.dead.letter",)),)
    )
    (error,) = collisions([("a", "t")], names)
    assert "collides with that of records that are too large" in error.message


def test_a_topic_of_a_route_may_be_too_long():
    names = TopicNames("shop", routes=(RoutedTopics("a.t", ("shop.a." + "x" * 250,)),))
    (error,) = collisions([("a", "t")], names)
    assert "Kafka allows 249" in error.message


RENAMED = TopicNames(
    "shop",
    {("a", "named"): "Given"},
    checkpoint="shop.checkpoint",
    template="{prefix}.{schema}.{table}",
    renames=(
        Router(compiled(r"shop\.(.*)\.(.*)"), "$2"),
        Router(compiled("(.*)_old"), "$1"),
    ),
    claims="cdcd.claims",
)


def test_rules_rename_the_topic_of_the_template_one_after_the_other():
    routes = ClaimedTopics(RENAMED)
    assert routes.table("a", "orders") == "orders" == RENAMED.qualified("a.orders")
    assert routes.table("a", "lines_old") == "lines"
    assert routes.table("a", "named") == "Given"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("_schemas", "begins with _"),
        ("__consumer_offsets", "begins with _"),
        ("cdcd.claims", "the claims of all pipelines"),
        ("checkpoint", None),
    ],
)
def test_a_tables_name_cannot_choose_a_topic_of_kafkas_or_of_the_claims(table, says):
    found = collisions(
        [("a", table)],
        RENAMED
        if says != "the claims of all pipelines"
        else TopicNames("shop", template="{table}", names={("a", table): table}, claims="cdcd.claims"),
    )
    assert (says is None) == (not found)
    assert says is None or says in found[0].message


def test_a_topic_that_begins_with_an_underscore_may_be_named():
    names = TopicNames("shop", {("a", "_x"): "_x"}, template="{table}")
    assert collisions([("a", "_x")], names) == []
    (error,) = collisions([("a", "_y")], names)
    assert "topics.names: {'" in error.hint
    assert collisions([("a", "_y")], TopicNames("_shop")) == []


@pytest.mark.parametrize(
    ("names", "has"),
    [
        (TopicNames("shop"), False),
        (TopicNames("shop", {("a", "b"): "shop.x"}, template="shop.{table}"), False),
        (TopicNames("shop", {("a", "b"): "x"}), True),
        (TopicNames("shop", template="{schema}.{table}"), True),
        (TopicNames("shop", routes=(RoutedTopics("a.t", ("eu",)),)), True),
        (RENAMED, True),
    ],
)
def test_only_names_without_the_prefix_need_claims(names, has):
    assert names.has_claims == has


def test_tables_whose_names_differ_in_the_place_of_a_dot_have_the_topics_of_their_own_names():
    names = TopicNames(
        "shop",
        {("crm", "x.t"): "shop.payments"},
        shared=(SharedTopic("shop.all", (parse_pattern("crm.*"),)),),
    )
    assert names.qualified('crm."x.t"') == "shop.payments"
    assert names.qualified('"crm.x".t') == names.share_named('"crm.x".t') == "shop.crm.x.t"
    assert names.share_named("crm.t") == "shop.all/crm.t"
