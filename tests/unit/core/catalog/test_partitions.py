"""What happened to partitions between two reads of the catalog, also if the checkpoint had the first one."""

import random
from dataclasses import replace

import pytest

from cdcd.core.catalog.oids import squeezed
from cdcd.core.catalog.partitions import (
    TEXT_MAX,
    Leaf,
    Partitions,
    gone,
    happened,
    recalled,
    remembered,
    to_read_again,
)
from cdcd.core.facts import Fact
from cdcd.core.facts.tables import PartitionAttached, PartitionDetached, PartitionTruncated

EVENTS = 9
ROOTS = {EVENTS: "public.events"}
JANUARY = Leaf(EVENTS, "public.events_01", 501, 7, rows=1000)
FEBRUARY = replace(JANUARY, name="public.events_02", file=502)
BEFORE = Partitions(ROOTS, {1: JANUARY, 2: FEBRUARY})


def after(
    leaves: dict[int, Leaf], before: Partitions = BEFORE, names: dict[int, str] | None = None
) -> list[Fact]:
    return happened(before, Partitions(ROOTS, leaves), names or {})


def restarted(partitions: Partitions) -> Partitions:
    """The same, as a session finds them in the checkpoint."""
    text, left_out = remembered(partitions)
    assert left_out == []
    return recalled(text)


def test_the_same_partitions_are_nothing_to_tell_also_with_other_statistics():
    for before in (BEFORE, restarted(BEFORE)):
        assert after({1: replace(JANUARY, rows=5000), 2: FEBRUARY}, before) == []


def test_a_partition_that_comes_is_told_with_the_command_if_it_seems_to_have_rows():
    empty = replace(JANUARY, name="public.events_03", file=503, rows=0, is_uncounted=True)
    full = replace(empty, name="public.events_04", rows=7)
    for before in (BEFORE, restarted(BEFORE)):
        assert after({**BEFORE.leaves, 3: empty, 4: full}, before) == [
            PartitionAttached(table="public.events", partition="public.events_03", rows=0, command=""),
            PartitionAttached(
                table="public.events",
                partition="public.events_04",
                rows=7,
                command="cdcd snapshot start --table public.events",
            ),
        ]


def test_a_partition_that_goes_is_told():
    assert after({1: JANUARY}) == [PartitionDetached(table="public.events", partition="public.events_02")]


def test_a_partition_that_went_while_nothing_ran_is_told_by_its_name_or_as_dropped():
    before = restarted(BEFORE)
    assert gone(before, Partitions(ROOTS, {})) == [1, 2]
    assert after({}, before, {2: "archive.events_02"}) == [
        PartitionDetached(table="public.events", partition="a partition that was dropped (oid 1)"),
        PartitionDetached(table="public.events", partition="archive.events_02"),
    ]


def test_the_last_partition_that_goes_is_told_too():
    assert len(after({})) == 2


def test_partitions_of_a_table_that_was_dropped_or_is_not_published_any_more_are_not_told():
    assert happened(BEFORE, Partitions({}, {}), {}) == []


def test_a_partition_that_moves_to_another_table_leaves_one_and_comes_to_the_other():
    before = Partitions({**ROOTS, 8: "public.archive"}, BEFORE.leaves)
    now = Partitions(before.roots, {1: JANUARY, 2: replace(FEBRUARY, root=8)})
    found = happened(before, now, {})
    assert [(type(each), each.table) for each in found] == [  # type: ignore[attr-defined]
        (PartitionAttached, "public.archive"),
        (PartitionDetached, "public.events"),
    ]
    assert to_read_again(found) == ["public.archive", "public.events"]


def test_tables_whose_partitions_lost_or_brought_rows_are_read_again_once():
    facts = [
        PartitionDetached(table="public.a", partition="public.a1"),
        PartitionTruncated(table="public.a", partition="public.a2"),
        PartitionAttached(table="public.b", partition="public.b1", rows=0, command=""),
        PartitionAttached(table="public.c", partition="public.c1", rows=5, command="x"),
        PartitionTruncated(table="public.d", partition="public.d1"),
    ]
    assert to_read_again(facts) == ["public.a", "public.c", "public.d"]
    assert to_read_again([]) == []


def test_the_first_partitions_of_a_new_table_are_not_told():
    now = Partitions({**ROOTS, 10: "public.new"}, {**BEFORE.leaves, 3: replace(JANUARY, root=10)})
    assert happened(BEFORE, now, {}) == []
    assert happened(recalled(""), BEFORE, {}) == []


def test_a_new_file_without_counted_pages_is_a_truncate_unless_columns_changed():
    truncated = replace(JANUARY, file=601, rows=0, is_uncounted=True)
    told = [PartitionTruncated(table="public.events", partition="public.events_01")]
    assert after({**BEFORE.leaves, 1: truncated}) == told
    assert after({**BEFORE.leaves, 1: truncated}, restarted(BEFORE)) == told
    vacuumed = replace(JANUARY, file=601)
    assert after({**BEFORE.leaves, 1: vacuumed}) == []
    # The server may have counted the pages of a truncated partition while nothing ran.
    assert after({**BEFORE.leaves, 1: vacuumed}, restarted(BEFORE)) == told
    altered = replace(truncated, columns=8)
    for before in (BEFORE, restarted(BEFORE)):
        assert after({**BEFORE.leaves, 1: altered}, before) == []


def test_the_checkpoint_has_what_a_comparison_needs_and_not_more():
    mixed = Partitions(
        {9: "public.a", 10: "public.empty", 4_000_000_000: "public.b"},
        {
            1: Leaf(9, "public.a1", 1, 5),
            2: Leaf(9, "public.a2", 700, 5),
            3: Leaf(4_000_000_000, "public.b1", 0, 0),
            7: Leaf(9, "public.a3", 7, 2**31 - 1, rows=3, is_attached=True),
        },
    )
    found = restarted(mixed)
    assert found.is_remembered
    assert set(found.roots) == set(mixed.roots)
    assert {oid: (leaf.root, leaf.file, leaf.columns) for oid, leaf in found.leaves.items()} == {
        oid: (leaf.root, leaf.file, leaf.columns) for oid, leaf in mixed.leaves.items()
    }
    assert remembered(Partitions({}, {})) == ("", [])


def test_ten_thousand_partitions_keep_the_checkpoint_small_and_too_many_leave_out_the_largest_table():
    leaves = {oid: Leaf(9, "", oid, 5) for oid in range(20_000, 70_000, 5)}
    assert len(remembered(Partitions(ROOTS, leaves))[0]) < 2000
    drawn = random.Random(7)
    oids = drawn.sample(range(100_000, 2**32), 60_000)
    for oid in oids:
        leaves[oid] = Leaf(8, "", drawn.randrange(2**32), 5)
    text, left_out = remembered(Partitions({8: "public.large", 9: "public.events"}, leaves))
    assert left_out == ["public.large"]
    assert len(text) < TEXT_MAX
    assert set(recalled(text).roots) == {9}


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x" * (TEXT_MAX + 1),
        squeezed(b"[" * 100_000),
        squeezed(b"{}"),
        squeezed(b"[1]"),
        squeezed(b"[[1,[2],[],[]]]"),
        squeezed(b'[["a",[],[],[]]]'),
    ],
)
def test_another_text_in_the_checkpoint_is_refused(text: str):
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says, the checkpoint is refused
        recalled(text)
