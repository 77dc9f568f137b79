from dataclasses import replace

import pytest

from cdcd.core.catalog.oids import Oids, name_sum
from cdcd.core.snapshot.beginning import (
    INITIAL,
    NEVER,
    ONLY,
    WHEN_NEEDED,
    begin,
    end_former_rows,
    first_tables,
    healable,
    initial,
    leave_out,
    wanted,
)
from cdcd.core.snapshot.progress import EXPORTED, INCREMENTAL, Progress
from cdcd.core.snapshot.signals import ADDED, REPLACED
from cdcd.core.snapshot.table_task import TableTask

UNFINISHED = Progress(
    EXPORTED, (TableTask("a.b", 1, number=1), TableTask("a.c", request="me", number=2)), event_no=5
)


@pytest.mark.parametrize("mode", [INITIAL, ONLY, WHEN_NEEDED])
def test_a_new_pipeline_reads_everything(mode: str):
    beginning = begin(mode, None, has_checkpoint=False, has_gap=False)
    assert (beginning.initial, beginning.progress, beginning.interrupted) == (True, Progress(), "")


@pytest.mark.parametrize("mode", [INITIAL, ONLY, WHEN_NEEDED])
def test_a_pipeline_that_streams_already_reads_nothing(mode: str):
    for found in (None, Progress(event_no=9)):
        beginning = begin(mode, found, has_checkpoint=True, has_gap=False)
        assert (beginning.initial, beginning.progress.tasks, beginning.interrupted) == (False, (), "")


def test_what_was_interrupted_goes_on_beside_the_stream():
    beginning = begin(INITIAL, UNFINISHED, has_checkpoint=True, has_gap=False)
    assert beginning.interrupted == EXPORTED
    assert beginning.progress.method == INCREMENTAL
    assert beginning.progress.tasks == UNFINISHED.tasks


def test_never_gives_up_the_initial_snapshot_and_keeps_what_was_asked_for():
    assert begin(NEVER, None, has_checkpoint=False, has_gap=False).progress == Progress()
    beginning = begin(NEVER, UNFINISHED, has_checkpoint=True, has_gap=False)
    assert [task.name for task in beginning.progress.tasks] == ["a.c"]
    assert beginning.progress.outcomes[0].error == "snapshot.mode: never"
    assert not beginning.initial


def test_a_gap_is_read_again_only_where_the_configuration_says_so():
    assert not begin(INITIAL, UNFINISHED, has_checkpoint=True, has_gap=True).initial
    needed = begin(WHEN_NEEDED, UNFINISHED, has_checkpoint=True, has_gap=True)
    assert needed.initial
    # What is numbered on stays so, since it stands in topics already.
    assert needed.progress == Progress(event_no=5)


def test_every_published_table_waits_but_the_excluded_ones_and_all_are_known():
    published = {2: "a.c", 1: "a.b", 3: "audit.log"}
    progress = initial(Progress(event_no=5), published, ["audit.*"], exported=True)
    assert progress == Progress(
        EXPORTED, event_no=5, waiting=Oids((1, 2)), begun=0, known=Oids(published, published)
    )
    assert progress.tables_left == 2
    nothing = initial(Progress(), {}, (), exported=False)
    assert nothing.is_done
    assert nothing.known == Oids(())


def test_never_gives_up_the_tables_that_nobody_began_with():
    found = replace(UNFINISHED, waiting=Oids((3, 4)))
    assert begin(INITIAL, found, has_checkpoint=True, has_gap=False).progress.tables_left == 4
    beginning = begin(NEVER, found, has_checkpoint=True, has_gap=False)
    assert (beginning.progress.tables_left, beginning.interrupted) == (1, INCREMENTAL)


def test_what_the_publication_asked_for_is_given_up_by_never_and_what_a_person_asked_for_is_not():
    tasks = Progress().add(
        [TableTask("a.b", request=ADDED), TableTask("a.c", request=REPLACED), TableTask("a.d", request="me")]
    )
    beginning = begin(NEVER, tasks, has_checkpoint=True, has_gap=False)
    assert [task.name for task in beginning.progress.tasks] == ["a.d"]


def test_tables_that_are_excluded_are_not_wanted():
    published = {1: "public.orders", 2: "public.events", 3: "audit.log_2020", 4: "audit.log"}
    assert wanted(published, ["public.events", "audit.log_*"]) == {1: "public.orders", 4: "audit.log"}
    assert wanted(published, ()) == published
    assert wanted({1: "public.orders"}, ["public.events"]) == {1: "public.orders"}
    assert wanted({1: "public.events"}, ["public.*"]) == {}


def test_a_table_that_is_added_while_the_slot_is_made_belongs_to_the_first_ones():
    # GIVEN no snapshot of the slot: all is read beside the stream
    before, after = {1: "a.b"}, {1: "a.b", 2: "a.c"}
    assert first_tables(before, after, None) == (after, {})


def test_beside_an_exported_snapshot_it_is_read_later_because_the_slot_may_not_have_all_changes_of_it():
    before, after = {1: "a.b", 4: "a.e"}, {1: "a.b", 2: "a.c"}
    # GIVEN a slot's snapshot, in which table 1 has another name, and table 4 is gone
    first, later = first_tables(before, after, {1: "a.d", 2: "a.c"})
    assert (first, later) == ({1: "a.d", 4: "a.e"}, {2: "a.c"})
    progress = initial(Progress(), first, (), exported=True, later=later)
    assert progress.waiting == Oids((1, 4))
    assert progress.tasks == (TableTask("a.c", 2, request=ADDED, number=1),)
    assert progress.known == Oids((1, 2, 4), {**first, **later})
    # THEN unless it is excluded
    assert initial(Progress(), first, ["a.c"], exported=True, later=later).tasks == ()


def test_an_interrupted_snapshot_leaves_out_what_is_excluded_by_now():
    names = {1: "public.a", 2: "public.b", 3: "public.c"}
    progress, _ = initial(Progress(), names, (), exported=True).begin_next(names) or (None, None)
    assert progress is not None
    asked = progress.add([TableTask("public.b", 2, request="by hand")])

    left = leave_out(asked, names, ("public.a", "public.b"))

    # What was begun with ends, what waited is left out, and what a person asked for stays.
    assert [task.request for task in left.tasks] == ["by hand"]
    assert left.outcomes[-1].error == "snapshot.exclude"
    assert (left.waiting.oids[left.begun :], left.tables_left) == ((3,), 2)
    assert leave_out(asked, names, ("public.z",)) is asked


# After a gap.


def test_after_a_gap_the_former_rows_of_all_tables_that_are_read_end():
    published = {1: "a.b", 2: "a.c"}
    progress = initial(Progress(), published, ["a.c"], exported=True)
    ended = end_former_rows(progress, Progress(), published, ["a.c"])
    assert ended.outdated == Oids((1,))
    assert replace(ended, outdated=Oids(())) == progress


def test_names_that_tables_had_before_a_gap_stay_known():
    """Whoever takes such a name next ends the rows of the table that had it."""
    names = {1: "a.kept", 2: "a.renamed", 3: "a.dropped", 4: "a.made_again", 5: "a.excluded"}
    found = Progress(known=Oids(names, names), vacated=(name_sum("a.vacated"), name_sum("a.new")))
    now = {1: "a.kept", 2: "a.new", 5: "a.excluded", 6: "a.made_again"}
    progress = initial(Progress(), now, ["a.excluded"], exported=True)
    ended = end_former_rows(progress, found, now, ["a.excluded"])
    assert ended.outdated == Oids((1, 2, 6))
    known = {1: "a.kept", 2: "a.new", 3: "a.dropped", 5: "a.excluded", 6: "a.made_again"}
    assert ended.known == Oids(known, known)
    assert ended.vacated == tuple(sorted((name_sum("a.vacated"), name_sum("a.renamed"))))


def test_a_table_that_is_excluded_before_it_is_read_keeps_its_former_rows():
    published = {1: "a.b", 2: "a.c"}
    progress = initial(Progress(), published, [], exported=False)
    ended = end_former_rows(progress, Progress(), published, [])
    assert leave_out(ended, published, ["a.c"]).outdated == Oids((1,))


def test_topics_are_healed_that_have_the_rows_of_the_same_tables_as_before():
    names = {1: "public.a", 2: "public.b", 3: "public.c", 4: "public.d"}
    found = Progress(known=Oids(names, names), outdated=Oids((3,)))
    now = {1: "public.a", 2: "public.renamed", 3: "public.c", 5: "public.new"}
    # The topic of 3 still has rows from before an earlier gap.
    assert healable(found, now) == Oids((1,))
    # In an attempt that did not end, only its own tables are compared again.
    again = replace(found, outdated=Oids((1, 3)), healing=Oids((1,)))
    assert healable(again, now) == Oids((1,))
    assert healable(replace(found, known=None), now) == Oids(())


def test_an_attempt_that_is_not_begun_again_leaves_its_tables_to_be_read():
    names = {1: "public.a"}
    found = Progress(
        known=Oids(names, names), waiting=Oids(names), outdated=Oids(names), healing=Oids(names), gap=7
    )
    beginning = begin("initial", found, has_checkpoint=True, has_gap=False)
    assert not beginning.initial
    assert (beginning.progress.healing, beginning.progress.gap) == (Oids(()), 0)
    assert (beginning.progress.outdated, beginning.progress.waiting) == (Oids((1,)), Oids((1,)))
