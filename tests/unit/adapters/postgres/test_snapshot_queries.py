"""The SQL of snapshots' queries: every item of a page, literals that stay literals, a line for each condition."""

from dataclasses import replace

import pytest

from cdcd.adapters.postgres.snapshot_catalog import end_of_records
from cdcd.adapters.postgres.snapshot_queries import (
    Equality,
    copy_keys,
    copy_pages,
    copy_table,
    is_whole,
    items_per_page,
    lock,
    unwritable,
    without_rows,
)
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.snapshot.reading import KeyQuery, PageQuery, SourcePart, SourceTable
from cdcd.core.snapshot.table_task import Part

RELATION = Relation(None, 7, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, 'a "b"', 25, -1)))
TABLE = SourceTable(RELATION, "", (), "public.t")


def pages(*conditions: str) -> PageQuery:
    return PageQuery("public.t", 7, 8, 2, 5, TABLE, conditions)


@pytest.mark.parametrize(("block_size", "items"), [(8192, 291), (16384, 584), (32768, 1169), (1024, 35)])
def test_before_14_every_item_that_a_page_of_this_size_can_have_is_named(block_size: int, items: int):
    # MaxHeapTuplesPerPage
    assert items_per_page(block_size) == items
    query = copy_pages(pages(), 130023, block_size)
    assert f"generate_series(2, 4) page, generate_series(1, {items}) item" in query


def test_since_14_pages_are_a_range():
    assert copy_pages(pages(), 140000, 8192) == (
        'COPY (SELECT "id", "a ""b""" FROM ONLY public.t '
        "WHERE ctid >= '(2,0)'::tid AND ctid < '(5,0)'::tid) TO STDOUT"
    )


def test_each_condition_has_brackets_and_a_line_of_its_own_and_empty_ones_are_left_out():
    query = copy_pages(pages("id > 5 -- x", "", "id < 9"), 180000, 8192)
    assert query.endswith("AND (id > 5 -- x\n) AND (id < 9\n)) TO STDOUT")


def test_the_query_of_a_table_makes_its_rows_of_those_of_the_chunk():
    table = replace(TABLE, relation=replace(RELATION, columns=RELATION.columns[:1]))
    query = replace(pages(), table=table)
    chunk = "(SELECT \"id\" FROM ONLY public.t WHERE ctid >= '(2,0)'::tid AND ctid < '(5,0)'::tid)"
    assert copy_pages(query, 180000, 8192, "SELECT * FROM {rows} AS r -- the end") == (
        f'COPY (SELECT "id" FROM (SELECT * FROM {chunk} AS r -- the end\n) AS cdcd_rows) TO STDOUT'
    )
    both = "SELECT * FROM {rows} AS r WHERE r.id IN (SELECT id FROM {rows} AS s)"
    assert copy_pages(query, 180000, 8192, both).count(chunk) == 2
    keys = KeyQuery(table, ("id",), ())
    assert (
        without_rows("SELECT 1 -- the end") == "SELECT * FROM (SELECT 1 -- the end\n) AS cdcd_checked LIMIT 0"
    )
    chosen = "SELECT * FROM {rows} AS r"
    by_key = copy_keys(keys, [["5"]], {}, None, chosen)
    assert 'FROM (SELECT * FROM (SELECT "id" FROM ONLY public.t WHERE "id" IN' in by_key
    leaves = copy_keys(keys, [["5"]], {}, ["a.p", "a.q"], chosen)
    assert (leaves.count(" AS r"), leaves.count(" UNION ALL ")) == (1, 1)


def test_keys_of_one_column_are_one_list_and_those_of_several_are_alternatives():
    one = KeyQuery(TABLE, ("id",), ())
    assert "WHERE \"id\" IN ('1', 'it''s\\')" in copy_keys(one, [["1"], ["it's\\"]], {})
    several = KeyQuery(TABLE, ("id", 'a "b"'), ())
    equalities = {'a "b"': Equality("x.citext", "OPERATOR(x.=)")}
    assert (
        'WHERE (("id" = \'1\' AND "a ""b"""::x.citext OPERATOR(x.=) \'p\'::x.citext) OR '
        '("id" = \'2\' AND "a ""b"""::x.citext OPERATOR(x.=) \'q\'::x.citext))'
    ) in copy_keys(several, [["1", "p"], ["2", "q"]], equalities)


def test_a_column_of_a_domain_and_its_literals_are_of_the_base_type():
    one = KeyQuery(TABLE, ("id",), ())
    assert "WHERE \"id\"::pg_catalog.int4 IN ('1'::pg_catalog.int4)" in copy_keys(
        one, [["1"]], {"id": Equality("pg_catalog.int4")}
    )


def test_a_type_without_a_safe_equality_is_compared_by_its_text_and_nothing_is_cast_to_it():
    one = KeyQuery(TABLE, ("id",), ())
    query = copy_keys(one, [["(1,a)"], ["it's"]], {"id": Equality(by_text=True)})
    assert "WHERE format('%s', \"id\") IN ('(1,a)', 'it''s')" in query
    assert "::" not in query


def test_with_foreign_partitions_each_other_partition_is_read_and_none_is_no_row():
    one = KeyQuery(TABLE, ("id",), (), ("id > 0",))
    query = copy_keys(one, [["1"]], {}, ["own.a", "own.b"])
    assert query == (
        'COPY (SELECT "id", "a ""b""" FROM ONLY own.a WHERE "id" IN (\'1\') AND (id > 0\n) UNION ALL '
        'SELECT "id", "a ""b""" FROM ONLY own.b WHERE "id" IN (\'1\') AND (id > 0\n)) TO STDOUT'
    )
    assert "FROM ONLY public.t WHERE false" in copy_keys(one, [["1"]], {}, [])


def test_copy_of_the_table_gives_the_rows_if_no_page_row_or_column_of_the_plan_is_left_out():
    table = replace(TABLE, parts=(SourcePart(Part(7, 8, 5, 100), "public.t"),))
    assert not is_whole(pages()), "the plan of the part is not known"
    assert not is_whole(replace(pages(), table=table))
    assert is_whole(replace(pages(), table=table, begin=0))
    assert not is_whole(replace(pages(), table=table, begin=0, end=4))
    assert not is_whole(replace(pages("id > 5"), table=table, begin=0))
    assert is_whole(replace(pages(""), table=table, begin=0)), "an empty condition is none"
    without = replace(table, relation=replace(RELATION, columns=()))
    assert not is_whole(replace(pages(), table=without, begin=0)), "COPY t () is a syntax error"
    assert copy_table(pages()) == 'COPY public.t ("id", "a ""b""") TO STDOUT'


def test_no_key_is_no_row():
    assert "WHERE (SELECT false))" in copy_keys(KeyQuery(TABLE, ("id",), ()), [], {})


@pytest.mark.parametrize(("condition", "says"), [("a\0b", "NUL"), ("'\ud800'", "surrogate"), ("id = 1", "")])
def test_what_libpq_would_cut_short_is_not_sent(condition: str, says: str):
    assert (says in unwritable(condition)) if says else not unwritable(condition)


def test_a_lock_needs_no_right_on_the_table_if_a_query_is_parsed():
    assert lock(pages(), by_parsing=False) == ["LOCK TABLE ONLY public.t IN ACCESS SHARE MODE"]
    # Each is one command, because the protocol for pipelines takes one at a time.
    assert lock(pages(), by_parsing=True) == [
        "DEALLOCATE ALL",
        "PREPARE cdcd_lock AS SELECT FROM ONLY public.t",
    ]
    root = KeyQuery(replace(TABLE, partitioned=True), ("id",), ())
    assert lock(root, by_parsing=True)[-1].endswith("SELECT FROM public.t")


@pytest.mark.parametrize(
    ("insert", "expected"),
    [
        (5 * 8192 + 24, 5 * 8192),
        (5 * 8192 + 40, 5 * 8192 + 40),
        (5 * 8192 + 32, 5 * 8192 + 32),
        (2**24 + 40, 2**24),
        (2**24 + 8192 + 24, 2**24 + 8192),
        (2**24 + 8192 + 40, 2**24 + 8192 + 40),
    ],
)
def test_the_header_of_a_page_is_not_part_of_the_records_before_it(insert: int, expected: int):
    assert end_of_records(insert, 8192, 2**24) == expected
