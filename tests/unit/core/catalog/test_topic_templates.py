import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.topic_templates import (
    DEFAULT,
    begins_as_table,
    check,
    check_routed,
    needs_name,
    rendered,
    rendered_qualified,
)

NAMES = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        (DEFAULT, "shop.sales.orders"),
        ("{prefix}.eu.{schema}.{table}", "shop.eu.sales.orders"),
        ("{prefix}.app.{table}", "shop.app.orders"),
        ("{prefix}.{table}.{schema}-v1", "shop.orders.sales-v1"),
        ("{prefix}.{prefix}.{table}", "shop.shop.orders"),
    ],
)
def test_a_template_gives_a_topic_whether_the_name_is_split_or_not(template, topic):
    check(template)
    assert rendered(template, "shop", "sales", "orders") == topic
    assert rendered_qualified(template, "shop", "sales.orders") == topic


@pytest.mark.parametrize(
    ("template", "meaning"),
    [
        ("{prefix}.{schema}.{tabel}", "{tabel} is not a placeholder; there are"),
        ("{prefix}.{}.{table}", "{} is not a placeholder"),
        ("{prefix}.{database}.{table}", "a pipeline reads one database; write its name"),
        ("{prefix}.a b.{table}", "may hold only ASCII letters"),
        ("{prefix}.a{{b}}.{table}", "{b} is not a placeholder"),
        ("{prefix}.{table", "may hold only ASCII letters"),
        ("{prefix}.{table}", "must begin with {prefix}. and have a second point"),
        ("{schema}.a.{table}", "must begin with {prefix}. and have a second point"),
        ("{prefix}..{table}", "must begin with {prefix}. and have a second point"),
        ("shop.{schema}.{table}", "must begin with {prefix}. and have a second point"),
        ("", "must begin with {prefix}. and have a second point"),
    ],
)
def test_what_would_not_name_topics_of_tables_is_refused(template, meaning):
    with pytest.raises(ValueError, match=r"placeholder|letters|second point") as caught:
        check(template)
    assert meaning in str(caught.value)


@pytest.mark.parametrize("template", [DEFAULT, "{prefix}.x.{schema}.{table}-y"])
@given(schema=st.text(), table=st.text())
def test_schema_and_table_side_by_side_need_no_split(template, schema, table):
    assert not needs_name(template, schema, table)
    whole = rendered_qualified(template, "p", f"{schema}.{table}")
    assert whole == rendered(template, "p", schema, table)


@pytest.mark.parametrize(
    "template", ["{prefix}.{table}.{schema}", "{prefix}.a.{table}", "{prefix}.{schema}.{schema}.{table}"]
)
@given(schema=NAMES, table=NAMES)
def test_other_templates_name_tables_without_points(template, schema, table):
    assert not needs_name(template, schema, table)
    assert rendered_qualified(template, "p", f"{schema}.{table}") == rendered(template, "p", schema, table)
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
    ],
)
def test_a_topic_of_a_route_is_a_name_or_a_template(text, pattern):
    check_routed(text, pattern)
    assert begins_as_table(text, "shop")


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
    "text", ["orders-eu", "shop.eu", "other.public.orders", "shop..orders", "{schema}.a.b"]
)
def test_topics_that_do_not_look_like_those_of_tables_are_told(text):
    assert not begins_as_table(text, "shop")
