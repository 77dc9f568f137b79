"""A template stands for what a router makes of every table's topic, whatever the names are."""

import itertools
import random
from dataclasses import replace

import pytest

from cdcd.core.catalog.renaming import Router, compiled
from cdcd.tools.adopt.course import TopicCourse
from cdcd.tools.adopt.reach import UndecidedError

NAMES = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product("ab", repeat=length)]
PARTS = ("a", "b", r"\.", ".", "(.*)", ".+", "([^.]+)", "[^.]*", r"(?:[^\.]*)", r"(a\.)")


@pytest.mark.parametrize("seed", range(4))
def test_a_template_says_the_same_as_the_router_for_any_names(seed: int) -> None:
    source = random.Random(seed)
    proven = 0
    for _ in range(1500):
        prefix = source.choice(["a", "ab", "b.a"])
        expression = "".join(source.choices(PARTS, k=source.randint(1, 6)))
        if source.random() < 0.6:
            expression = prefix.replace(".", r"\.") + source.choice([r"\.", "."]) + expression
        regex = compiled(expression)
        router = Router(regex, "x." + "-".join(f"${group + 1}" for group in range(regex.groups)))
        template = TopicCourse(prefix, None).routed(router, lambda _topic: True, is_everywhere=True).template
        if template is None:
            continue
        proven += 1
        for schema, table in itertools.product(NAMES, NAMES):
            filled = (
                template.replace("{prefix}", prefix).replace("{schema}", schema).replace("{table}", table)
            )
            assert router.routed(f"{prefix}.{schema}.{table}") == filled, (prefix, expression, schema, table)
    assert proven > 100


@pytest.mark.parametrize(
    "expression",
    [
        r"shop\.public\.(.*)",
        r"(.*)orders(.*)",
        r"(.*)(.*)",
        r"(.+?)\.(.*)",
        r"(\w+)\.(\w+)\.(\w+)",
        r"shop\.(a|b)",
        r"(.*)\.orders",
        r"shop\.(.*){2}",
        r"shop\.[a]*",
    ],
)
def test_an_expression_that_can_tell_names_apart_has_no_template(expression: str) -> None:
    course = TopicCourse("shop", None)
    assert (
        course.routed(Router(compiled(expression), "x"), lambda _topic: True, is_everywhere=True).template
        is None
    )


def test_behind_a_router_or_a_predicate_there_is_no_template() -> None:
    router = Router(compiled("(.*)"), "$1-x")
    course = TopicCourse("shop", None)
    once = course.routed(router, lambda _topic: True, is_everywhere=True)
    assert once.template == "{prefix}.{schema}.{table}-x"
    assert once.routed(router, lambda _topic: True, is_everywhere=True).template is None
    assert course.routed(router, lambda _topic: False, is_everywhere=False).template is None
    assert (
        once.routed(router, lambda topic: topic.endswith("-x"), is_everywhere=False).final("shop.a.b")
        == "shop.a.b-x-x"
    )


def test_a_list_of_names_stands_for_tables_that_the_database_was_not_asked_for() -> None:
    router = Router(compiled(r"([^.]+)\.([^.]+)\.([^.]+)"), "cdc.$3")
    course = TopicCourse("shop", None).routed(router, lambda _topic: True, is_everywhere=True)
    with pytest.raises(UndecidedError):
        _ = course.keys
    assert replace(course, listed=(("public", "a"), ("public", "b"))).keys == {"topics.name": "cdc.{table}"}
    shared = {"cdc.a": {"tables": ["public.a", "sales.a"], "key_field": None}}
    assert replace(course, listed=(("public", "a"), ("sales", "a"))).keys == {"topics.shared": shared}
    half = TopicCourse("shop", None, listed=(("public", "a"),)).routed(
        Router(compiled(r"shop\.public\.a+"), "first"), lambda _topic: True, is_everywhere=False
    )
    assert half.keys == {"topics.names": {"public.a": "first"}}
