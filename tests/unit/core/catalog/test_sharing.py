import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import Router, compiled
from cdcd.core.catalog.routing import ClaimedTopics, RoutedTopics, TopicNames, collisions
from cdcd.core.catalog.sharing import SharedTopic, is_share, share_of, whole_topic
from cdcd.core.errors import SinkError


def shared(topic: str, *patterns: str, key_field: str = "t", key_value: Router | None = None) -> SharedTopic:
    return SharedTopic(
        topic, tuple([parse_pattern(each, "topics.shared") for each in patterns]), key_field, key_value
    )


def names(*topics: SharedTopic, **more: object) -> TopicNames:
    return TopicNames("shop", shared=topics, **more)  # type: ignore[arg-type]


def test_a_share_names_its_topic_and_a_topic_names_itself() -> None:
    share = share_of("shop.orders", "public.orders_eu")
    assert (whole_topic(share), is_share(share)) == ("shop.orders", True)
    assert (whole_topic("shop.orders"), is_share("shop.orders")) == ("shop.orders", False)


def test_tables_share_a_topic_by_its_patterns_and_have_shares_of_their_own() -> None:
    found = names(shared("shop.orders", "public.orders_*"))
    assert found.table("public", "orders_eu") == found.qualified("public.orders_us") == "shop.orders"
    assert found.share("public", "orders_eu") == found.share_named("public.orders_eu")
    assert found.share("public", "orders_eu") != found.share("public", "orders_us")
    assert found.share("public", "lines") == found.share_named("public.lines") == "shop.public.lines"
    assert found.all_of("public", "orders_eu") == ("shop.orders",)
    assert collisions([("public", "orders_eu"), ("public", "orders_us")], found) == []


def test_a_name_of_a_single_table_has_precedence_over_the_patterns() -> None:
    found = names(shared("shop.orders", "public.*"), names={("public", "lines"): "shop.lines"})
    assert found.table("public", "lines") == found.share_named("public.lines") == "shop.lines"
    assert found.shared_topic("public", "lines") is None


@pytest.mark.parametrize(
    ("given", "table"),
    [
        # By its name alone, by a rule, by an entry of names, and by a route.
        (names(shared("shop.public.orders", "public.orders_*")), ("public", "orders")),
        (
            names(shared("shop.orders", "public.o_*"), renames=(Router(compiled("(.*)x"), "shop.orders"),)),
            ("public", "x"),
        ),
        (names(shared("shop.orders", "public.o_*"), names={("a", "b"): "shop.orders"}), ("a", "b")),
        (
            names(shared("shop.orders", "public.o_*"), routes=(RoutedTopics("a.b", ("shop.orders",)),)),
            ("a", "b"),
        ),
    ],
)
def test_no_other_table_gets_into_a_shared_topic(given: TopicNames, table: tuple[str, str]) -> None:
    claimed = ClaimedTopics(given)
    with pytest.raises(SinkError, match=r"collides with that of the tables of topics\.shared"):
        claimed.table(*table)


def test_a_shared_topic_is_none_of_cdcds_own() -> None:
    found = names(shared("shop.schemas", "public.*"), schemas="shop.schemas")
    assert "topics.shared.shop.schemas" in collisions((), found)[0].message


def test_a_table_that_two_topics_match_has_neither() -> None:
    found = names(shared("shop.one", "public.*"), shared("shop.two", "*.orders"))
    (error,) = collisions([("public", "orders"), ("public", "lines")], found)
    assert "topics.shared.shop.one and topics.shared.shop.two" in error.message


def test_a_table_with_a_point_in_its_name_shares_no_topic() -> None:
    (error,) = collisions([("a.b", "c")], names(shared("shop.one", "*.*")))
    assert "has a point in its name" in error.message


def test_keys_get_the_topic_that_the_table_would_have_alone_or_what_a_rule_makes_of_it() -> None:
    by_rule = Router(compiled(r"shop\.public\.orders_(.*)"), "$1")
    assert shared("t", "public.*").identifier("shop.public.orders_eu") == "shop.public.orders_eu"
    assert shared("t", "public.*", key_value=by_rule).identifier("shop.public.orders_eu") == "eu"
    assert shared("t", "public.*", key_value=by_rule).identifier("shop.public.lines") == "shop.public.lines"


def test_two_tables_with_one_value_in_keys_are_refused_and_without_a_field_they_are_not() -> None:
    by_rule = Router(compiled("(.*)"), "same")
    tables = [("public", "a"), ("public", "b")]
    (error,) = collisions(tables, names(shared("shop.one", "public.*", key_value=by_rule)))
    assert 'The tables "public"."a" and "public"."b" share topic shop.one' in error.message
    assert "key_regex" in error.hint
    assert collisions(tables, names(shared("shop.one", "public.*", key_field=""))) == []


def test_a_shared_topic_without_the_prefix_needs_claims() -> None:
    assert names(shared("orders", "public.*")).has_claims
    assert not names(shared("shop.orders", "public.*")).has_claims
