"""What happened to partitions between two looks at the catalog."""

from dataclasses import replace

from cdcd.adapters.postgres.partition_tree import Leaf, happened, to_read_again
from cdcd.core.facts.tables import PartitionAttached, PartitionDetached, PartitionTruncated

JANUARY = Leaf("public.events", "public.events_01", 501, 1000, False, "c")
FEBRUARY = replace(JANUARY, name="public.events_02", file=502)
BEFORE = {1: JANUARY, 2: FEBRUARY}


def test_the_same_partitions_are_nothing_to_tell_also_with_other_statistics():
    assert happened(BEFORE, {1: replace(JANUARY, rows=5000), 2: FEBRUARY}) == []


def test_a_partition_that_comes_is_told_with_the_command_if_it_seems_to_have_rows():
    empty = replace(JANUARY, name="public.events_03", file=503, rows=0, is_uncounted=True)
    full = replace(empty, name="public.events_04", rows=7)
    assert happened(BEFORE, {**BEFORE, 3: empty, 4: full}) == [
        PartitionAttached(table="public.events", partition="public.events_03", rows=0, command=""),
        PartitionAttached(
            table="public.events",
            partition="public.events_04",
            rows=7,
            command="cdcd snapshot start --table public.events",
        ),
    ]


def test_a_partition_that_goes_is_told():
    assert happened(BEFORE, {1: JANUARY}) == [
        PartitionDetached(table="public.events", partition="public.events_02")
    ]


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
    assert happened(BEFORE, {**BEFORE, 9: replace(JANUARY, root="public.new", name="public.new_01")}) == []


def test_a_new_file_without_counted_pages_is_a_truncate_unless_columns_changed():
    truncated = replace(JANUARY, file=601, rows=0, is_uncounted=True)
    assert happened(BEFORE, {**BEFORE, 1: truncated}) == [
        PartitionTruncated(table="public.events", partition="public.events_01")
    ]
    for rewritten in (
        replace(JANUARY, file=601),  # VACUUM FULL
        replace(truncated, columns="another"),  # ALTER TABLE ... ALTER COLUMN ... TYPE
    ):
        assert happened(BEFORE, {**BEFORE, 1: rewritten}) == []
