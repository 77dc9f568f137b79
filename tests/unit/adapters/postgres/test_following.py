"""Which tables are added to a publication and dropped from it, and the statements that do so."""

import re
from dataclasses import replace

import pytest

from cdcd.adapters.postgres.following import (
    PASTED_MAX,
    Desired,
    PublicationDifferences,
    alteration,
    compare,
    pasted,
)
from cdcd.adapters.postgres.publication import Candidate, PublishedTable
from cdcd.core.catalog.patterns import TableSelection


def table(oid: int, schema: str, name: str) -> PublishedTable:
    return PublishedTable(oid, schema, name, "d", True, True)


def candidate(oid: int, schema: str, name: str, *ancestors: int) -> Candidate:
    return Candidate(table(oid, schema, name), ancestors)


TABLES = [
    candidate(1, "public", "orders"),
    candidate(2, "public", "order_lines"),
    candidate(3, "sales", "a.b"),
    candidate(4, "sales", 'quo"te'),
    candidate(5, "Sales", "Kunde*"),
    candidate(6, "part", "root", 6),
    candidate(7, "part", "leaf", 7, 6),
    candidate(8, "part", "other", 8, 6),
]


def found(desired: Desired, published: list[int]) -> tuple[list[str], list[str], tuple[str, ...]]:
    listed = [each.table for each in TABLES if each.table.oid in published]
    differences: PublicationDifferences = compare(desired, TABLES, listed)
    return (
        [each.qualified for each in differences.lacking],
        [each.qualified for each in differences.extra],
        differences.absent,
    )


@pytest.mark.parametrize(
    ("patterns", "published", "lacking", "extra"),
    [
        (["public.*"], [1, 2], [], []),
        (["public.*"], [1], ["public.order_lines"], []),
        (["public.orders"], [1, 2], [], ["public.order_lines"]),
        # A partitioned table and its partitions are the same here.
        (["part.*"], [7], ["part.other"], []),
        (["part.root"], [7], [], []),
        (["part.leaf"], [6], [], []),
        (["public.orders"], [1, 7], [], ["part.leaf"]),
        # A partitioned table that is new is added as a whole.
        (["part.*"], [], ["part.root"], []),
        (["part.l*"], [], ["part.leaf"], []),
        (['sales."a.b"', 'Sales."Kunde*"'], [4], ['sales."a.b"', "Sales.Kunde*"], ['sales.quo"te']),
    ],
)
@pytest.mark.parametrize("drops", [False, True])
def test_a_publication_is_compared_with_the_patterns_of_postgres_tables(
    patterns: list[str], published: list[int], lacking: list[str], extra: list[str], drops: bool
) -> None:
    assert found(Desired(tuple(patterns), TableSelection(), drops), published) == (lacking, extra, ())


def test_a_pattern_without_wildcards_that_no_table_matches_is_named() -> None:
    desired = Desired(("public.orders", "public.gone"), TableSelection())
    assert found(desired, [1]) == ([], [], ("public.gone",))


@pytest.mark.parametrize(
    ("drops", "extra"),
    [(True, ["public.order_lines", 'sales."a.b"']), (False, ['sales."a.b"'])],
    ids=["altered", "not altered"],
)
def test_a_table_that_tables_exclude_names_is_extra_only_where_cdcd_alters_the_publication(
    drops: bool, extra: list[str]
) -> None:
    """A publication that cdcd does not alter may have other readers, and the pipeline leaves the table out itself."""
    desired = Desired(("public.*",), TableSelection(exclude=("public.order_l*",)), drops)
    assert found(desired, [1, 2, 3]) == ([], extra, ())


def test_tables_include_alone_says_what_is_to_be_published() -> None:
    desired = Desired(None, TableSelection(include=("public.*",)), drops=True)
    assert desired.is_stated
    assert found(desired, [1, 4]) == (["public.order_lines"], ['sales.quo"te'], ())
    assert not Desired(None, TableSelection(exclude=("public.*",))).is_stated


def test_a_pattern_of_a_schema_has_no_tables_of_a_schema_whose_name_begins_so_with_a_dot() -> None:
    wants = Desired(None, TableSelection(include=("crm.*",)), drops=True).wants()
    assert wants(table(1, "crm", "x.t"))
    assert not wants(table(2, "crm.x", "t"))


@pytest.mark.parametrize("drops", [False, True])
def test_if_no_table_matches_the_patterns_are_wrong_and_none_is_dropped(drops: bool) -> None:
    assert found(Desired(("typo.*",), TableSelection(), drops), [1, 2]) == ([], [], ())


def test_names_are_quoted_and_tables_that_inherit_are_left_out() -> None:
    tables = [table(1, "a", 'x"; DROP TABLE y; --'), table(2, "Odd Schema", "t")]
    assert alteration('p"q', "ADD", tables) == (
        'ALTER PUBLICATION "p""q" ADD TABLE ONLY "a"."x""; DROP TABLE y; --", ONLY "Odd Schema"."t";'
    )


def test_a_statement_for_a_person_is_exact_and_bounded() -> None:
    tables = [table(oid, "a", f"t{oid}") for oid in range(1, 2001)]
    statement = pasted("p", tables, tables[:1])
    assert len(re.findall("ONLY", statement)) == PASTED_MAX + 1
    assert statement.startswith('ALTER PUBLICATION "p" ADD TABLE ONLY "a"."t1", ')
    assert statement.endswith('ALTER PUBLICATION "p" DROP TABLE ONLY "a"."t1";')
    assert "..." not in statement


def test_a_statement_for_a_person_first_gives_a_table_without_a_key_an_identity() -> None:
    keyless = replace(table(7, "a", "log"), has_identity=False)
    assert pasted("p", [table(1, "a", "t"), keyless], []) == (
        'ALTER TABLE "a"."log" REPLICA IDENTITY FULL; ALTER PUBLICATION "p" ADD TABLE ONLY "a"."t", ONLY "a"."log";'
    )
    only_inserts = pasted("p", [keyless], [], changes_rows=False)
    assert only_inserts == 'ALTER PUBLICATION "p" ADD TABLE ONLY "a"."log";'
