import json
from dataclasses import replace
from random import Random

import pytest

from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.partitions import Leaf, Partitions, remembered
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.owners import GONE_MAX, VACATED_MAX
from cdcd.core.snapshot.beginning import NEVER, begin, initial
from cdcd.core.snapshot.outcomes import OUTCOMES_MAX, Outcome
from cdcd.core.snapshot.placement import Owed
from cdcd.core.snapshot.progress import ASKERS_MAX, EXPORTED, INCREMENTAL, Progress
from cdcd.core.snapshot.signals import ADDED
from cdcd.core.snapshot.table_task import OWED_KEYS_MAX, Key, Part, TableTask
from cdcd.core.transactions.position import Position

ITEMS = TableTask("public.items", 7, number=1)
PLANNED = Progress(EXPORTED, (ITEMS,), next_number=2).plan(
    ITEMS, 7, "public.items", (Part(7, 70, 10, 1000), Part(8, 80, 2, 10)), 1
)


def test_pages_are_delivered_once_their_rows_are():
    progress = PLANNED.deliver(ITEMS, 7, 0, 4, 100).deliver(ITEMS, 7, 6, 10, 50)
    task = progress.find(ITEMS)
    assert task is not None
    assert task.parts is not None
    assert task.parts[0].done == ((0, 4), (6, 10))
    assert (task.rows, progress.event_no, task.pages_done, task.pages) == (150, 150, 8, 12)
    assert task.share == pytest.approx(8 / 12)
    assert not task.is_done
    whole = progress.deliver(ITEMS, 7, 4, 6, 1).deliver(ITEMS, 8, 0, 2, 0).find(ITEMS)
    assert whole is not None
    assert whole.is_done


def test_an_empty_table_is_done_when_it_is_planned_and_not_before():
    assert not ITEMS.is_done
    task = Progress(tasks=(ITEMS,)).plan(ITEMS, 7, "public.items", (), 1).find(ITEMS)
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


def test_one_that_is_being_read_already_is_read_once_more():
    progress = PLANNED.deliver(ITEMS, 7, 0, 4, 100).add([TableTask("public.items", request="again")])
    assert [task.number for task in progress.tasks] == [1, 2]


def test_tables_wait_in_the_order_of_their_oids_and_are_begun_one_by_one():
    progress = Progress(EXPORTED, waiting=Oids((9, 5)))
    assert (progress.tables_left, progress.is_done) == (2, False)
    begun = progress.begin_next({5: "a.five"})
    assert begun is not None
    progress, task = begun
    assert (task.oid, task.name, progress.begun, progress.tables_left) == (5, "a.five", 1, 2)
    begun = progress.begin_next({5: "a.five"})
    assert begun is not None
    progress, other = begun
    # THEN one whose name is not known is known by its oid
    assert (other.oid, other.name) == (9, "")
    assert other.number != task.number
    assert progress.begin_next({}) is None
    assert progress.end(task).end(other).is_done


def test_tables_that_are_added_wait_beside_those_of_the_initial_snapshot():
    progress = Progress(waiting=Oids((3, 5, 9)), begun=1).await_added((7, 5))
    # THEN one that waits already is the initial snapshot's
    assert (progress.waiting.oids, progress.begun, progress.added.oids) == ((5, 7, 9), 0, (7,))
    begun = progress.begin_next({})
    assert begun is not None
    begun_next = begun[0].begin_next({})
    assert begun_next is not None
    assert [begun[1].request, begun_next[1].request] == ["", ADDED]
    # AND the same holds for further tables, and after a restart
    more = begun[0].await_added((6,))
    assert (more.waiting.oids, more.begun, more.added.oids) == ((6, 7, 9), 0, (6, 7))
    assert Progress.from_json(more.to_json()) == more
    within = replace(more, known=Oids((5, 6, 7, 8, 9)))
    assert Progress.from_json(within.to_json()) == within
    assert more.await_added((7,)) is more


def test_many_tables_that_are_added_take_few_bytes_of_the_record():
    many = range(20_000, 30_000)
    progress = Progress(known=Oids(many)).await_added(many)
    assert len(json.dumps(progress.to_json())) < 1000


def test_a_table_that_another_task_reads_waits_no_more():
    progress = Progress(waiting=Oids((3, 5, 9)), begun=1)
    assert progress.take_from_waiting(9).waiting.oids == (5,)
    assert progress.take_from_waiting(3) is progress


def test_a_table_keeps_its_number_whatever_becomes_of_it():
    progress = PLANNED.restart(ITEMS)
    found = progress.find(ITEMS)
    assert found is not None
    assert (found.parts, found.owed, found.number) == (None, (), 1)
    renamed = progress.plan(ITEMS, 7, "public.goods", (), 1).find(ITEMS)
    assert renamed is not None
    assert renamed.name == "public.goods"


def test_what_a_table_owes_is_part_of_it_until_it_is_read_from_its_beginning():
    key = ((False, b"1"),)
    progress = PLANNED.owe(ITEMS, (key,))
    assert progress.owe(ITEMS, (key,)) is progress
    found = progress.find(ITEMS)
    assert found is not None
    assert (found.owed, found.unsettled) == ((key,), False)
    too_many = progress.owe(ITEMS, None).find(ITEMS)
    assert too_many is not None
    assert (too_many.owed, too_many.unsettled) == ((), True)
    again = progress.owe(ITEMS, None).restart(ITEMS).find(ITEMS)
    assert again is not None
    assert not again.unsettled
    assert progress.end(ITEMS).owe(ITEMS, (key,)) == progress.end(ITEMS)


def test_rows_that_are_read_by_key_are_counted_without_pages():
    progress = PLANNED.count(ITEMS, 3)
    found = progress.find(ITEMS)
    assert found is not None
    assert (found.rows, found.pages_done, progress.event_no) == (3, 0, 3)
    assert progress.end(ITEMS).count(ITEMS, 3).event_no == 3


def test_it_is_read_back_as_it_was_written():
    progress = PLANNED.deliver(ITEMS, 7, 0, 4, 100).add([TableTask("a.b", request="r", where="x = 1")])
    owing = progress.owe(ITEMS, (((False, "ß".encode()), (True, b"\0\xff")),))
    waiting = Progress(EXPORTED, waiting=Oids((5, 9)), begun=1)
    known = Progress(paused=True, known=Oids((1, 2), {1: "a.b", 2: "a.c"}))
    unsettled = progress.owe(ITEMS, None)
    askers = progress.add([TableTask("a.b", request="x", where="x = 1", askers=("x",), asked=7)])
    named = progress.add([TableTask("a.c", request="me", askers=("me",), asked=7)]).request("me", 1, 7)
    left = replace(known, vacated=(7, 1 << 16), unlisted=Oids((2,)))
    for each in (
        progress,
        progress.end(ITEMS, "why"),
        owing,
        unsettled,
        waiting,
        known,
        left,
        replace(known, outdated=Oids((1, 2))),
        askers,
        named,
        Progress(),
    ):
        assert Progress.from_json(json.loads(json.dumps(each.to_json()))) == each


def test_every_request_that_waits_for_a_table_gets_its_outcome():
    progress = Progress().add([ITEMS])
    for number in range(ASKERS_MAX):
        name = f"me {number}"
        progress = progress.add([TableTask("public.items", request=name, askers=(name,))]).request(name, 1, 5)
    assert len(progress.tasks) == 1
    # AND as many as the record has room for
    more = progress.add([TableTask("public.items", request="more", askers=("more",))])
    assert [task.askers for task in more.tasks[1:]] == [("more",)]
    progress = progress.begin(progress.tasks[0], 6).end(progress.tasks[0], unix_s=9)
    assert {(each.complete, each.ended) for each in progress.requests} == {(1, 9)}
    assert (progress.complete, progress.failed) == (1, 0)
    assert (progress.outcomes[0].began, progress.outcomes[0].ended) == (6, 9)


def test_a_request_that_has_ended_begins_anew_and_one_that_is_open_is_not_refused():
    progress = Progress().request("me", 1, 5)
    assert progress.refuse("me", "too much", 2, 6).requests == progress.requests
    progress = progress.add([TableTask("a.b", request="me", askers=("me",))])
    ended = progress.end(progress.tasks[0], "denied", code=3, unix_s=7)
    assert (ended.requests[0].code, ended.requests[0].error) == (3, "denied")
    again = ended.request("me", 2, 8)
    assert (again.requests[0].tables, again.requests[0].code, again.requests[0].asked) == (2, 0, 8)
    refused = ended.refuse("me", "too much", 2, 9)
    assert (refused.requests[0].has_ended, refused.requests[0].code) == (True, 2)


def test_numbers_are_given_anew_after_a_restart():
    progress = PLANNED.deliver(ITEMS, 7, 0, 1, 0).add([TableTask("a.b"), TableTask("a.c")]).end(ITEMS)
    read = Progress.from_json(progress.to_json())
    assert [task.number for task in read.tasks] == [1, 2]
    assert [task.number for task in read.add([TableTask("a.d")]).tasks] == [1, 2, 3]


def test_a_plan_of_which_nothing_was_delivered_is_not_kept():
    found = Progress.from_json(PLANNED.to_json()).tasks[0]
    assert (found.name, found.oid, found.parts) == ("public.items", 7, None)


def test_tables_that_were_all_begun_with_leave_nothing_in_the_record():
    progress = Progress(EXPORTED, waiting=Oids((5,)), event_no=3)
    begun = progress.begin_next({})
    assert begun is not None
    assert "waiting" in progress.to_json()
    assert begun[0].end(begun[1]).to_json() == {
        "method": EXPORTED,
        "serial": 3,
        "outcomes": [["", "", 0, "", 0, 0, 0]],
        "ended": [1, 0],
    }


def test_a_record_of_former_versions_is_read():
    fields = {"method": INCREMENTAL, "known": [3, 1], "tasks": [{"name": "a.b", "oid": 1}]}
    progress = Progress.from_json(fields)
    assert progress.known == Oids((1, 3))
    assert progress.known is not None
    assert progress.known.sum_of(1) is None


RECORD_MAX = 64_000


def key_of(number: int, text: str) -> Key:
    return ((False, f"{number:08d}".encode()), (False, text.encode()))


@pytest.mark.parametrize(
    "text", ["", "plain text of a key", "\u00df\u4e2d", '"\\\n\x01' * 5, "\U0001f600" * 6]
)
def test_the_checkpoint_record_is_small_with_ten_thousand_tables_to_read(text: str):
    # GIVEN ten thousand tables with scattered oids, of which four are being read and owe all that may be written down
    random = Random(15)
    found = random.sample(range(16_384, 200_000), 10_000)
    names = {oid: f"schema_{oid % 7}.table_{number}" for number, oid in enumerate(found)}
    progress = initial(Progress(), names, (), exported=True)
    for _ in range(4):
        begun = progress.begin_next(names)
        assert begun is not None
        progress, task = begun
        parts = (Part(task.oid, task.oid, 100_000, 1 << 40),)
        progress = progress.plan(task, task.oid, task.name, parts, 0xFFFFFFFF)
        for page in range(0, 20, 2):
            progress = progress.deliver(task, task.oid, page, page + 1, 1000)
        owed = Owed(key_of(number, text) for number in range(OWED_KEYS_MAX))
        while (keys := owed.to_write_down()) is None:
            owed.settle([(None, key) for _, key in owed.some(1)], set())
        assert len(keys) >= 40
        progress = progress.owe(task, keys)
    # GIVEN requests and outcomes at their limits
    for number in range(OUTCOMES_MAX):
        progress = progress.add([TableTask(f"public.refused_{number}", request="signal")])
        progress = progress.end(progress.tasks[-1], "x" * 1000)
    # GIVEN as many names that tables have left, and tables that are gone, as are remembered
    gone = {oid: f"schema.gone_{oid}" for oid in random.sample(range(200_000, 300_000), GONE_MAX)}
    progress = replace(
        progress,
        known=Oids({**names, **gone}, {**names, **gone}),
        vacated=tuple(sorted(random.sample(range(1 << 16), VACATED_MAX))),
        unlisted=Oids(gone),
        outdated=Oids(names),
    )
    # WHEN the checkpoint is written
    record = Checkpoint("7" * 19, 1, "v4 streaming", Position(1 << 60, 1 << 60), 1 << 60, snapshot=progress)
    # THEN it is small, and says all of it
    assert len(record.encode()) < RECORD_MAX
    assert Checkpoint.decode(record.encode(), "checkpoint") == record


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


def test_partitions_and_the_newest_entry_of_the_publication_are_read_back_and_a_gap_forgets_the_partitions():
    text, _ = remembered(Partitions({9: "public.p"}, {10: Leaf(9, "public.p1", 11, 12)}))
    progress = Progress(known=Oids((9,), {9: "public.p"}), partitions=text, newest_member=77)
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says, the checkpoint is refused
        Progress.from_json({**progress.to_json(), "partitions": "nonsense"})
    assert begin(NEVER, progress, has_checkpoint=True, has_gap=False).progress.partitions == text
    # Healed or not, the partitions before the new slot are no longer compared.
    assert begin(NEVER, progress, has_checkpoint=True, has_gap=True).progress.partitions == ""
