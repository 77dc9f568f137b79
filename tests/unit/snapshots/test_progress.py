import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.snapshots.progress import (
    EXPORTED,
    OUTCOMES_MAX,
    Outcome,
    Part,
    Progress,
    TableTask,
    gaps,
    union,
)

ITEMS = TableTask("public.items", 7)
PLANNED = Progress(EXPORTED, (ITEMS,)).plan(ITEMS, 7, (Part(7, 70, 10, 1000), Part(8, 80, 2, 10)))


def test_pages_are_delivered_once_their_rows_are():
    progress = PLANNED.deliver(ITEMS, 7, 0, 4, 100).deliver(ITEMS, 7, 6, 10, 50)
    task = progress.find(ITEMS)
    assert task is not None
    assert task.parts is not None
    assert task.parts[0].done == ((0, 4), (6, 10))
    assert (task.rows, progress.serial, task.pages_done, task.pages) == (150, 150, 8, 12)
    assert task.share == pytest.approx(8 / 12)
    assert not task.is_done
    whole = progress.deliver(ITEMS, 7, 4, 6, 1).deliver(ITEMS, 8, 0, 2, 0).find(ITEMS)
    assert whole is not None
    assert whole.is_done


def test_an_empty_table_is_done_when_it_is_planned_and_not_before():
    assert not ITEMS.is_done
    task = Progress(tasks=(ITEMS,)).plan(ITEMS, 7, ()).find(ITEMS)
    assert task is not None
    assert task.is_done
    assert (task.share, ITEMS.share) == (1.0, 0.0)


def test_a_table_that_ends_leaves_its_outcome_and_only_the_last_ones_are_kept():
    ended = PLANNED.deliver(ITEMS, 7, 0, 1, 9).end(ITEMS, "dropped")
    assert ended.is_done
    assert ended.outcomes == (Outcome("public.items", "", 9, "dropped"),)
    assert ended.end(ITEMS) == ended
    assert ended.deliver(ITEMS, 7, 0, 1, 9) == ended
    many = Progress().add(TableTask(f"a.t{number}") for number in range(OUTCOMES_MAX + 5))
    for task in many.tasks:
        many = many.end(task)
    assert len(many.outcomes) == OUTCOMES_MAX
    assert many.outcomes[-1].name == f"a.t{OUTCOMES_MAX + 4}"


def test_a_table_that_waits_already_is_not_added_again_unless_for_other_rows():
    progress = Progress().add([ITEMS])
    assert progress.add([TableTask("public.items", request="again")]) is progress
    assert len(progress.add([TableTask("public.items", where="id > 1")]).tasks) == 2


def test_it_is_read_back_as_it_was_written():
    progress = PLANNED.deliver(ITEMS, 7, 0, 4, 100).add([TableTask("a.b", request="r", where="x = 1")])
    for each in (progress, progress.end(ITEMS, "why"), Progress(paused=True, known=(1, 2)), Progress()):
        assert Progress.from_json(json.loads(json.dumps(each.to_json()))) == each


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"method": "guess"},
        {"method": EXPORTED, "tasks": [{"name": "a.b"}]},
        {"method": EXPORTED, "tasks": [{"name": "a.b", "oid": 1, "parts": [[1, 2]]}]},
        {"method": EXPORTED, "tasks": [{"name": "a.b", "oid": 1, "parts": [[1, 2, 3, 4, [1]]]}]},
    ],
)
def test_what_is_no_progress_is_refused(fields: dict[str, object]):
    with pytest.raises((ValueError, KeyError, TypeError)):
        Progress.from_json(fields)


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=12)


@given(ranges)
def test_ranges_are_joined_and_their_gaps_are_the_rest(added: list[tuple[int, int]]):
    done: tuple[tuple[int, int], ...] = ()
    pages: set[int] = set()
    for begin, length in added:
        done = union(done, begin, begin + length)
        pages |= set(range(begin, begin + length))
    assert {page for begin, end in done for page in range(begin, end)} == pages
    assert all(one[1] < other[0] for one, other in pairwise(done))
    assert {page for begin, end in gaps(done, 50) for page in range(begin, end)} == set(range(50)) - pages
