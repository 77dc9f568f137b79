"""Rules of the configuration for tables."""

from dataclasses import dataclass

import pytest

from cdcd.core.catalog.table_rules import TableRules, both_match
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation


@dataclass(frozen=True)
class Rule:
    pattern: str

    def __str__(self) -> str:
        return f"some.key ({self.pattern})"


def relation(schema: str, name: str) -> Relation:
    return Relation(None, 1, schema, name, "d", ())


ORDERS, ITEMS = relation("public", "orders"), relation("public", "items")


def rules(*patterns: str) -> TableRules[Rule]:
    return TableRules("some.key", [(each, Rule(each)) for each in patterns])


def test_rules_match_tables_by_their_patterns():
    some = rules("public.o*", "sales.*", "public.orders")
    assert some.of_table(ORDERS) == [Rule("public.o*"), Rule("public.orders")]
    assert some.matched([ORDERS, ITEMS])[0] == (Rule("public.o*"), [ORDERS])
    assert some.unmatched([ORDERS, ITEMS]) == [Rule("sales.*")]
    assert (bool(some), bool(rules())) == (True, False)


def test_one_rule_decides():
    assert rules("public.o*").only(ORDERS, "decides") == Rule("public.o*")
    assert rules("public.o*").only(ITEMS, "decides") is None
    with pytest.raises(
        ConfigError, match=r"some\.key \(public\.\*\) and some\.key \(\*\.orders\) both"
    ) as caught:
        rules("public.*", "*.orders").only(ORDERS, "decides what it is")
    assert caught.value.hint == "Narrow one of the patterns, so that one rule decides what it is."


def test_two_patterns_of_a_table_contradict_each_other():
    assert both_match("some.key", ["a.b"]) == both_match("some.key", []) == ""
    assert both_match("some.key", ["a.b", "a.*"]) == "some.key.a.b and some.key.a.* both match it"


def test_a_malformed_pattern_is_refused_with_its_key():
    with pytest.raises(ConfigError, match=r"some\.key"):
        rules("orders")
