"""What becomes of the events of tables that the pipeline leaves out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.engine.left_out import KeptStep, LeftOut, LeftOutTables, WentOut
from cdcd.core.facts.tables import TableReplaced
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Delete, Truncate
from cdcd.core.protocol.reader import read_message
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.steps import Changes, Described, RelationPreview, Step
from tests.unit.core.engine.tables import relation, table
from tests.unit.core.engine.test_engine import Daemon, described, row, transaction
from tests.unit.core.transactions import wire

OTHER = 8
"""The oid of a table that is left out, and of one that the stream never described, if nothing says otherwise."""


def wants(name: str) -> bool:
    return name != "public.audit"


def steps_of(*steps: Step) -> list[KeptStep]:
    return list(LeftOutTables(wants).steps(iter(steps)))


def shown(steps: list[KeptStep]) -> list[Any]:
    """Each step as what matters of it: `Changes` as its items, `LeftOut` as a number."""
    return [
        step.items if isinstance(step, Changes) else step.events if isinstance(step, LeftOut) else type(step)
        for step in steps
    ]


HIDDEN = Described(relation(OTHER, "audit"))
SEEN = Described(relation(7, "t"))


def test_runs_of_events_are_kept_or_counted_in_their_order():
    kept = [row(1), row(2), row(3)]
    items = [kept[0], row(9, oid=OTHER), row(9, oid=OTHER), kept[1], kept[2], row(9, oid=OTHER)]
    found = steps_of(SEEN, HIDDEN, Changes(list(items), False))
    assert shown(found) == [Described, WentOut, [kept[0]], 2, kept[1:], 1]


def test_without_a_table_that_is_left_out_the_events_are_passed_on_as_they_are():
    step = Changes([row(1)], False)
    assert steps_of(SEEN, step)[1] is step


@pytest.mark.parametrize("in_stream", [False, True])
def test_of_a_truncate_the_other_tables_are_left(in_stream):
    xid = 5 if in_stream else None
    mixed, whole = [wire.frame(Truncate(xid, True, False, oids)) for oids in ((7, OTHER), (OTHER,))]
    _, _, changes, left_out = steps_of(SEEN, HIDDEN, Changes([mixed, whole], in_stream))
    assert isinstance(changes, Changes)
    (rest,) = changes.items
    assert isinstance(rest, bytes)
    assert rest[:XLOG_HEADER] == mixed[:XLOG_HEADER]
    assert read_message(rest, XLOG_HEADER, in_stream=in_stream) == Truncate(xid, True, False, (7,))
    assert left_out == LeftOut(1)


def test_drafts_count_each_of_their_rows():
    draft = (5, OTHER, 12, 2, 100, b"rows")
    assert shown(steps_of(HIDDEN, Changes([draft, row(1, oid=OTHER, xid=5)], True))) == [WentOut, 11]


def test_a_name_that_changes_brings_a_table_in_and_out_where_the_stream_is():
    renamed = Described(relation(OTHER, "orders"))
    change = Changes([row(1, oid=OTHER)], False)
    found = steps_of(HIDDEN, change, renamed, change, HIDDEN, change)
    assert shown(found) == [WentOut, 1, Described, change.items, WentOut, 1]


def test_what_an_open_transaction_says_of_a_table_leaves_its_events_alone():
    preview = RelationPreview(replace(relation(7, "audit"), xid=5))
    change = Changes([row(1)], False)
    assert steps_of(SEEN, preview, change) == [SEEN, change]
    assert steps_of(RelationPreview(relation(7, "t"))) == [RelationPreview(relation(7, "t"))]


def test_events_of_tables_that_are_left_out_move_the_position_and_have_no_records(tmp_path: Path):
    # GIVEN a table that the pipeline has, and one that it leaves out
    daemon = Daemon(tmp_path, tables=TableSelection(exclude=("*.audit",)))
    gone = wire.frame(Delete(None, OTHER, "K", (b"9", None)))

    # WHEN a transaction changes both, and another one that which is left out
    daemon.take(
        transaction(5, 100, described(), described("audit", OTHER), row(1), row(9, oid=OTHER), gone, row(2)),
        transaction(6, 200, row(9, oid=OTHER)),
    )

    # THEN the events of both have numbers, one table has records, and the position is behind both transactions
    numbers = [(value["after"]["id"], value["source"]["event_serial_no"]) for _, _, value in daemon.records]
    assert numbers == [(1, 1), (2, 4)]
    assert daemon.topics == ["p.public.t"]
    assert daemon.engine.checkpoint.position == Position(100, 210)


def test_the_first_event_of_a_table_under_a_name_that_is_left_out_is_told_once():
    change = Changes([row(1, oid=OTHER)], False)
    told = [step for step in steps_of(SEEN, HIDDEN, change, change) if isinstance(step, WentOut)]
    assert told == [WentOut({OTHER: "public.audit"})]
    assert not any(
        isinstance(step, WentOut) for step in steps_of(HIDDEN, Described(relation(OTHER, "orders")), change)
    )


def test_a_table_that_comes_back_from_a_name_that_is_left_out_ends_its_former_rows_and_is_read(
    tmp_path: Path,
):
    # GIVEN a table that the pipeline has, with a row
    daemon = Daemon(tmp_path, tables=TableSelection(exclude=("*.audit",)))
    daemon.tables[7] = table(7, pages=1)
    daemon.take(transaction(5, 100, described(), row(2)))

    # WHEN a row comes under a name that is left out, and another one under the former name
    daemon.take(transaction(6, 200, described("audit"), row(3), described(), row(4)))

    # THEN the rows in the topic end before it, and the table is read
    replaced = daemon.facts.of(TableReplaced)
    assert [(fact.table, fact.former_oid, fact.oid, fact.read) for fact in replaced] == [
        ("public.t", 7, 7, True)
    ]
    assert [value["op"] for _, _, value in daemon.records] == ["c", "t", "c", "r"]
    assert daemon.ids == [2, 4, 1]
