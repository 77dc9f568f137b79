"""Which relations one query describes, and how long its answers count."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdcd.adapters.postgres import catalog as catalog_module
from cdcd.adapters.postgres.catalog import AHEAD_MAX, NOTED_MAX, CatalogLookUp
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, Relation, TupleData
from cdcd.core.protocol.writer import write_message
from cdcd.core.snapshot.reading import Visibility

INT4 = 23
SEEN = Visibility(7, 7, frozenset())
SHOWN = TableDescription(("id",), (), (CatalogColumn("id", 1, "integer", INT4, 0, None),))
HIDDEN = TableDescription()


class Catalog:
    """Answers by `shown`, and notes the oids of each query."""

    def __init__(self) -> None:
        self.shown = SHOWN
        self.asked: list[list[int]] = []

    async def describe(
        self, _sql: Any, oids: Sequence[int], *, with_kin: bool
    ) -> dict[int, TableDescription]:
        self.asked.append(list(oids))
        return dict.fromkeys(oids, self.shown)

    async def visibility(self, _sql: Any) -> Visibility:
        return SEEN


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    found = Catalog()
    monkeypatch.setattr(catalog_module, "describe", found.describe)
    monkeypatch.setattr(catalog_module, "visibility", found.visibility)
    return found


def relation(oid: int) -> Relation:
    return Relation(None, oid, "public", f"t{oid}", "d", (Column(1, "id", INT4, -1),))


def frames(*oids: int) -> list[bytes]:
    """A Relation message for each, with a row behind it."""
    messages = [message for oid in oids for message in (relation(oid), Insert(None, oid, TupleData((b"1",))))]
    return [write_frame(XLogData(1, 1, 1, write_message(each))) for each in messages]


def ask(looks_up: CatalogLookUp, *oids: int, tentative: bool = False) -> list[Any]:
    async def run() -> list[Any]:
        return [await looks_up(relation(oid), tentative=tentative) for oid in oids]

    return asyncio.run(run())


def made(*, protects: bool = False) -> CatalogLookUp:
    sql: Any = None
    return CatalogLookUp(sql, protects=protects)


def test_the_relations_of_the_received_frames_are_described_by_one_query(catalog: Catalog):
    looks_up = made()
    looks_up.received(frames(1, 2, 3, 2))
    assert [found for found, _, _ in ask(looks_up, 1, 2, 3)] == [SHOWN] * 3
    assert catalog.asked == [[1, 2, 3]]


def test_an_answer_counts_once_and_not_for_frames_that_came_later(catalog: Catalog):
    """A table may have been altered by the transaction of a later message."""
    looks_up = made()
    looks_up.received(frames(1, 2))
    ask(looks_up, 1, 1)
    looks_up.received(frames(2))
    ask(looks_up, 2)
    assert catalog.asked == [[1, 2], [1, 2], [2]]


def test_the_answer_about_a_partitioned_table_stays_until_further_frames(catalog: Catalog):
    """PostgreSQL describes the table again before the first change of each partition."""
    catalog.shown = replace(SHOWN, is_partitioned=True)
    looks_up = made(protects=True)
    looks_up.received(frames(1, 2, 1, 3, 1, 4))
    ask(looks_up, 1, 2, 1, 3, 1, 4)
    assert catalog.asked == [[1, 2, 3, 4]]
    ask(looks_up, 1, tentative=True)
    ask(looks_up, 1)
    looks_up.received(frames(1))
    ask(looks_up, 1)
    assert catalog.asked == [[1, 2, 3, 4], [1], [1]]


def test_an_answer_that_did_not_see_the_transaction_is_not_given_twice(catalog: Catalog):
    catalog.shown = replace(SHOWN, is_partitioned=True)
    looks_up = made(protects=True)
    looks_up.received(frames(1))
    message = relation(1)
    asyncio.run(looks_up(message))
    asyncio.run(looks_up(message))
    assert catalog.asked == [[1], [1]]


def test_a_query_is_bounded(catalog: Catalog):
    looks_up = made()
    many = range(1, 2 * AHEAD_MAX + 1)
    looks_up.received(frames(*many))
    ask(looks_up, *many)
    assert [len(each) for each in catalog.asked] == [AHEAD_MAX, AHEAD_MAX]


def test_a_relation_that_is_not_among_the_frames_is_asked_for_alone(catalog: Catalog):
    looks_up = made()
    looks_up.received(frames(1, 2))
    ask(looks_up, 9)
    assert catalog.asked == [[9]]


def test_a_streamed_transactions_relations_are_described_together_at_its_commit(catalog: Catalog):
    looks_up = made()
    for oid in (1, 2, 3):
        looks_up.received([b"k" * 18])
        ask(looks_up, oid, tentative=True)
    looks_up.received([b"k" * 18])
    ask(looks_up, 1, 2, 3)
    assert catalog.asked == [[1], [2], [3], [1, 2, 3]]


def test_a_table_that_the_catalog_does_not_show_yet_is_asked_for_once_more_with_the_others(
    catalog: Catalog,
):
    """A commit may be streamed a moment before snapshots see it."""
    catalog.shown = HIDDEN
    looks_up = made()
    looks_up.received(frames(1, 2))
    assert [seen for _, _, seen in ask(looks_up, 1, 2)] == [SEEN, SEEN]
    assert catalog.asked == [[1, 2], [1, 2]]


def test_a_transaction_that_may_not_commit_is_not_waited_for(catalog: Catalog):
    catalog.shown = HIDDEN
    assert ask(made(), 1, tentative=True)[0][0] == HIDDEN
    assert catalog.asked == [[1]]


def test_with_rules_that_protect_columns_each_answer_has_its_snapshot(catalog: Catalog):
    looks_up = made(protects=True)
    looks_up.received(frames(1, 2))
    assert [seen for _, _, seen in ask(looks_up, 1, 2)] == [SEEN, SEEN]


def test_relations_of_transactions_that_never_end_are_not_kept_without_limit(catalog: Catalog):
    looks_up = made()
    ask(looks_up, *range(1, NOTED_MAX + 10), tentative=True)
    assert len(looks_up._noted) < NOTED_MAX


def test_a_large_last_frame_is_not_kept(catalog: Catalog):
    looks_up = made()
    looks_up.received([*frames(1), b"w" * 100_000])
    assert max(map(len, looks_up._frames)) < 1000
