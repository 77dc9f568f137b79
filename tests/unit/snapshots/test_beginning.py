import pytest

from cdcd.snapshots.beginning import INITIAL, NEVER, ONLY, WHEN_NEEDED, begin, initial, wanted
from cdcd.snapshots.progress import EXPORTED, INCREMENTAL, Progress, TableTask

UNFINISHED = Progress(EXPORTED, (TableTask("a.b", 1), TableTask("a.c", request="me")), serial=5)


@pytest.mark.parametrize("mode", [INITIAL, ONLY, WHEN_NEEDED])
def test_a_new_pipeline_reads_everything(mode: str):
    beginning = begin(mode, None, has_checkpoint=False, has_gap=False)
    assert (beginning.initial, beginning.progress, beginning.interrupted) == (True, Progress(), "")


@pytest.mark.parametrize("mode", [INITIAL, ONLY, WHEN_NEEDED])
def test_a_pipeline_that_streams_already_reads_nothing(mode: str):
    for found in (None, Progress(serial=9)):
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
    assert needed.progress == Progress(serial=5)


def test_every_published_table_is_a_task():
    progress = initial(Progress(serial=5), {1: "a.b", 2: "a.c"}, exported=True)
    assert progress == Progress(EXPORTED, (TableTask("a.b", 1), TableTask("a.c", 2)), serial=5)
    assert initial(Progress(), {}, exported=False) == Progress()


def test_tables_that_are_excluded_are_not_wanted():
    published = {1: "public.orders", 2: "public.events", 3: "audit.log_2020", 4: "audit.log"}
    assert wanted(published, ["public.events", "audit.log_*"]) == {1: "public.orders", 4: "audit.log"}
    assert wanted(published, ()) == published
