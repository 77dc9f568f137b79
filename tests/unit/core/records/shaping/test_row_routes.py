"""Which of its table's topics a row goes to."""

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import HASH, ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import UNCHANGED, Column, Relation, TupleData, Value
from cdcd.core.records.shaping.routed import RowRoutes, check_routes, contradiction, table_routes
from cdcd.core.records.shaping.settings import ASSUMED, NEXT_RULE, Route, TableRoutes

INT4, TEXT, BYTEA = 23, 25, 17
PARTITIONED = TableDescription(("id",), is_partitioned=True, unsent=(("region", "public.orders_1"),))
OWN = "shop.public.orders"
EU, BIG = "shop.public.orders-eu", "shop.public.orders-big"
RULES = {"row.region == 'eu'": EU, "row.total > 1000": BIG}


def relation(identity: str = "d", key: tuple[str, ...] = ("id",), name: str = "orders") -> Relation:
    columns = (("id", INT4), ("region", TEXT), ("total", INT4), ("blob", BYTEA))
    return Relation(
        None,
        7,
        "public",
        name,
        identity,
        tuple(Column(int(identity == "f" or name in key), name, oid, -1) for name, oid in columns),
    )


def chosen(rules: dict[str, str] | None = None, table: str = "public.orders", **rest: str) -> TableRoutes:
    given = RULES if rules is None else rules
    return TableRoutes(
        table, tuple(Route(text, parse_expression(text), topic) for text, topic in given.items()), **rest
    )


def made(of: Relation | None = None, rules: dict[str, str] | None = None, **rest: str) -> RowRoutes:
    routes = chosen(rules, **rest)
    topics = (OWN, *[rule.topic for rule in routes.rules])
    return RowRoutes(of or relation("f"), routes, topics, BUILTIN_TYPES, Protections())


def picked(found: RowRoutes, row: TupleData) -> list[Value]:
    return [row[index] for index in found.indexes]


def goes(found: RowRoutes, region: Value, total: Value) -> str:
    return found.goes(picked(found, (b"1", region, total, None)))


def went(found: RowRoutes, region: Value, total: Value, *, whole: bool = True) -> list[str]:
    return found.went(picked(found, (b"1", region, total, None)), whole=whole)


def refused(of: Relation, *routes: TableRoutes, protections: Protections | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_routes(of, routes, BUILTIN_TYPES, protections or Protections())
    return caught.value


def test_the_first_rule_that_is_true_says_where_a_row_goes():
    found = made()
    assert found.topics == (OWN, EU, BIG)
    assert goes(found, b"eu", b"5000") == EU
    assert goes(found, b"us", b"5000") == BIG
    assert goes(found, b"us", b"5") == OWN
    assert [went(found, *each) for each in ((b"eu", b"5000"), (b"us", b"5000"), (b"us", b"5"))] == [
        [EU],
        [BIG],
        [OWN],
    ]
    assert found.reason == ""


def test_rows_of_copy_go_where_changes_go():
    found = made()
    assert found.goes_line(b"1\teu\t5\t\\N\n") == EU
    assert found.goes_line(b"1\tus\t5000\t\\N\n") == BIG
    assert found.goes_line(b"1\t\\N\t5\t\\N\n") == OWN
    assert found.goes_line(b"1\tb\n") == OWN, "the encoder says what is wrong with it"


def test_several_rules_may_have_a_topic_also_the_tables_own():
    found = made(rules={"row.total < 0": OWN, "row.region == 'eu'": EU, "row.region == 'fr'": EU})
    assert found.topics == (OWN, EU)
    assert goes(found, b"eu", b"-1") == OWN
    assert goes(found, b"fr", b"1") == EU
    assert went(found, b"eu", b"-1") == [OWN]


def test_a_row_without_an_answer_goes_to_its_own_topic_or_by_the_next_rule():
    rules = {"row.total > 1000": BIG, "row.region == 'eu'": EU}
    found = made(rules=rules)
    assert goes(found, b"eu", None) == OWN
    assert found.reason == "> of null"
    found = made(rules=rules, on_error=NEXT_RULE)
    assert goes(found, b"eu", None) == EU
    assert found.reason == "> of null"
    assert goes(found, b"us", None) == OWN
    assert goes(found, b"us", b"1") == OWN
    assert found.reason == ""


def test_a_rule_that_is_null_has_no_answer():
    found = made(rules={"row.region == 'eu' ? true : null": EU})
    assert goes(found, b"us", b"1") == OWN
    assert found.reason == "the expression is null"


def test_an_old_row_that_is_known_was_where_it_goes_also_without_an_answer():
    rules = {"row.total > 1000": BIG, "row.region == 'eu'": EU}
    assert went(made(rules=rules), b"eu", None) == [OWN]
    assert went(made(rules=rules, on_error=NEXT_RULE), b"eu", None) == [EU]


def test_an_old_row_that_is_not_known_may_be_in_several_topics():
    assumed = made(relation(), old_row=ASSUMED)
    assert went(assumed, None, None, whole=False) == [EU, OWN, BIG]
    by_identity = made(relation(key=("id", "region")), old_row=ASSUMED)
    assert went(by_identity, b"eu", None, whole=False) == [EU], "the first rule is known to be true"
    assert went(by_identity, b"us", None, whole=False) == [BIG, OWN]
    last = made(relation(), {"row.total > 1000": BIG, "row.id == 1": EU}, old_row=ASSUMED, on_error=NEXT_RULE)
    assert went(last, None, None, whole=False) == [BIG, EU], "the second rule is known to be true"
    own = made(relation(), {"row.total > 1000": BIG, "row.id == 1": EU}, old_row=ASSUMED)
    assert went(own, None, None, whole=False) == [BIG, OWN, EU], "or it had no answer"


def test_a_part_that_is_known_may_decide():
    found = made(relation(), {"row.id == 2 && row.total > 1000": BIG}, old_row=ASSUMED)
    assert went(found, None, None, whole=False) == [OWN]


def test_a_value_that_was_not_sent_is_not_known():
    found = made(relation(), {"row.region == 'eu'": EU}, old_row=ASSUMED)
    assert goes(found, UNCHANGED, b"1") == OWN
    assert "unchanged TOAST" in found.reason
    assert went(found, UNCHANGED, b"1") == [EU, OWN]


def test_a_table_that_the_rules_do_not_fit_any_more_has_its_rows_anywhere():
    found = made(rules={"row.absent == 1": EU, "row.id == 1": BIG})
    assert found.problem == "there is no published column absent"
    assert goes(found, b"eu", b"1") == OWN
    assert found.reason == found.problem
    assert went(found, b"eu", b"1") == [OWN, EU, BIG]
    retyped = made(rules={"row.id == 1": BIG, "row.region > 1": EU})
    assert retyped.problem.startswith("rule 2: ")


def test_patterns_of_tables_are_held_against_names():
    found = table_routes([chosen(), chosen(table="public.*"), chosen(table="sales.*")])
    of_orders = found.of_table(relation())
    assert [each.table for each in of_orders] == ["public.orders", "public.*"]
    assert contradiction(of_orders) == "routes.tables.public.orders and routes.tables.public.* both match it"
    assert contradiction(of_orders[:1]) == contradiction([]) == ""
    assert [each.table for each in found.unmatched([relation()])] == ["sales.*"]


def test_routes_that_fit_are_allowed():
    check_routes(relation("f"), [chosen()], BUILTIN_TYPES, Protections())
    check_routes(relation(), [chosen(old_row=ASSUMED)], BUILTIN_TYPES, Protections())
    check_routes(relation(key=("id", "region", "total")), [chosen()], BUILTIN_TYPES, Protections())
    # Updates and deletes of a published table without a replica identity are rejected by PostgreSQL.
    check_routes(relation(key=()), [chosen()], BUILTIN_TYPES, Protections())


def test_what_does_not_fit_is_refused_with_a_way_out():
    found = refused(relation(), chosen())
    assert "ask for region, total of public.orders" in found.message
    assert "REPLICA IDENTITY FULL" in found.hint
    assert "old_row: assumed" in found.hint


def refused_rules(rules: dict[str, str]) -> ConfigError:
    return refused(relation("f"), chosen(rules))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("row.absent == 1", "no published column absent"),
        ("row.total == 'x'", "rule 1: "),
        ("row.total", "rule 1"),
    ],
)
def test_rules_that_do_not_fit_the_columns_are_refused(text: str, says: str):
    assert says in refused_rules({text: EU}).message


def test_a_protected_column_can_not_be_asked_for():
    rule = ColumnRule(parse_column_pattern("public.orders.region", "columns"), HASH)
    found = refused(relation("f"), chosen(), protections=Protections((rule,)))
    assert "which topic a row goes to would show its values" in found.message


def test_two_lists_of_rules_of_one_table_are_refused():
    found = refused(relation("f"), chosen(), chosen(table="public.*"))
    assert "both match it" in found.message
    assert "Narrow one of the patterns" in found.hint


def test_old_rows_of_partitions_under_full_are_not_relied_on():
    with pytest.raises(ConfigError) as caught:
        check_routes(relation("f"), [chosen()], BUILTIN_TYPES, Protections(), PARTITIONED)
    assert "Of rows of partition public.orders_1" in caught.value.message
    assert "ALTER TABLE public.orders_1 REPLICA IDENTITY FULL;" in caught.value.hint
