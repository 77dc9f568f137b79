import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import SinkError
from cdcd.records.routing import TOPIC_LENGTH_MAX, Routes, topic_name


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
    assert Routes("shop").table(schema, table) == topic


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
    routes = Routes("shop")
    routes.table(*one)
    with pytest.raises(SinkError, match="collides") as caught:
        routes.table(*other)
    assert f'"{one[0]}"."{one[1]}"' in caught.value.message
    assert caught.value.hint


def test_a_table_may_come_again_and_names_differ_by_case():
    routes = Routes("shop")
    assert routes.table("a", "t") == routes.table("a", "t")
    assert routes.table("a", "T") == "shop.a.T"


def test_a_table_cannot_take_the_topic_of_the_messages():
    routes = Routes("shop")
    routes.claim("shop.public.audit", "logical messages")
    with pytest.raises(SinkError, match="logical messages"):
        routes.table("public", "audit")
