"""Every cell of the sink's two tables, what the tables promise as a whole, and the verbs around them."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdcd.adapters.kafka import transaction_state
from cdcd.adapters.kafka.transaction_state import (
    AT_LEAST_ONCE,
    DELIVER,
    EXACTLY_ONCE,
    Action,
    CallEnd,
    SinkState,
    Step,
    TransactionEvent,
    TransactionState,
    Transitions,
    error_of,
    event_of,
)
from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import FencedError, LimitError, SinkError, TransientError
from cdcd.core.snapshot.progress import EXPORTED, Progress
from cdcd.core.snapshot.table_task import Part
from cdcd.core.transactions.position import Position
from tests.unit.test_architecture import offences

BEFORE = Checkpoint("7001", 1, "publication=shop", Position(100, 110), 110)
OURS = replace(BEFORE, position=Position(200, 210))
ANOTHER = replace(BEFORE, position=Position(150, 160))
LATER_EPOCH = replace(ANOTHER, epoch=1)

TABLES = {"exactly once": EXACTLY_ONCE, "at least once": AT_LEAST_ONCE}


# (state, event): (next state, steps, end). Written apart from the tables, cell by cell.
EXPECTED_EXACTLY_ONCE = """
CLOSED OPEN: OPENING prove create fence read
CLOSED CLOSE: CLOSED -> RETURN
OPENING DONE: READY -> RETURN
OPENING SILENT: CLOSED discard -> RAISE
OPENING FAILED: CLOSED discard -> RAISE
OPENING REFUSED: CLOSED discard -> RAISE
OPENING CLOSE: CLOSED discard -> RETURN
READY LAST: WHOLE lease begin note hand_over commit
READY PART: FIRST lease begin hand_over release
READY CLOSE: CLOSED discard -> RETURN
WHOLE DONE: READY -> RETURN
WHOLE SILENT: REOPENING discard pause prove create fence read
WHOLE FAILED: REOPENING discard pause prove create fence read
WHOLE TOO_LARGE: FITTING fit
WHOLE REFUSED: CLOSED discard -> RAISE
WHOLE CLOSE: CLOSED discard -> RETURN
FIRST DONE: OPEN -> RETURN
FIRST SILENT: REOPENING discard pause prove create fence read
FIRST FAILED: REOPENING discard pause prove create fence read
FIRST TOO_LARGE: FITTING fit
FIRST REFUSED: CLOSED abort discard -> RAISE
FIRST CLOSE: CLOSED abort discard -> RETURN
FITTING DONE: REOPENING discard prove create fence read
FITTING REFUSED: CLOSED discard -> RAISE
FITTING CLOSE: CLOSED discard -> RETURN
REOPENING DELIVERED: READY -> RETURN
REOPENING UNCHANGED: READY deliver
REOPENING CHANGED: CLOSED discard -> CHANGED
REOPENING SUPERSEDED: CLOSED discard -> SUPERSEDED
REOPENING SILENT: REOPENING discard pause prove create fence read
REOPENING FAILED: REOPENING discard pause prove create fence read
REOPENING REFUSED: CLOSED discard -> RAISE
REOPENING STOPPED: CLOSED discard -> RAISE
REOPENING CLOSE: CLOSED discard -> RETURN
OPEN PART: LATER lease give_away release
OPEN LAST: LAST lease note give_away commit
OPEN CLOSE: CLOSED abort discard -> RETURN
LATER DONE: OPEN -> RETURN
LATER SILENT: CLOSED abort discard -> START_OVER
LATER FAILED: CLOSED abort discard -> START_OVER
LATER TOO_LARGE: FITTING_LATE fit
LATER REFUSED: CLOSED abort discard -> RAISE
LATER CLOSE: CLOSED abort discard -> RETURN
LAST DONE: READY -> RETURN
LAST SILENT: CLOSED discard -> START_OVER
LAST FAILED: CLOSED discard -> START_OVER
LAST TOO_LARGE: FITTING_LATE fit
LAST REFUSED: CLOSED discard -> RAISE
LAST CLOSE: CLOSED discard -> RETURN
FITTING_LATE DONE: CLOSED abort discard -> START_OVER
FITTING_LATE REFUSED: CLOSED abort discard -> RAISE
FITTING_LATE CLOSE: CLOSED abort discard -> RETURN
"""
EXPECTED_AT_LEAST_ONCE = """
CLOSED OPEN: OPENING prove create read
CLOSED CLOSE: CLOSED -> RETURN
OPENING DONE: READY -> RETURN
OPENING SILENT: CLOSED discard -> RAISE
OPENING FAILED: CLOSED discard -> RAISE
OPENING REFUSED: CLOSED discard -> RAISE
OPENING CLOSE: CLOSED discard -> RETURN
READY LAST: WHOLE lease hand_over flush
READY PART: FIRST lease hand_over flush
READY CLOSE: CLOSED drain discard -> RETURN
WHOLE DONE: NOTING lease note flush
WHOLE SILENT: HELD pause prove read
WHOLE FAILED: REOPENING drain discard pause prove create read
WHOLE TOO_LARGE: FITTING fit
WHOLE REFUSED: CLOSED drain discard -> RAISE
WHOLE CLOSE: CLOSED drain discard -> RETURN
FIRST DONE: READY -> RETURN
FIRST SILENT: HELD pause prove read
FIRST FAILED: REOPENING drain discard pause prove create read
FIRST TOO_LARGE: FITTING fit
FIRST REFUSED: CLOSED drain discard -> RAISE
FIRST CLOSE: CLOSED drain discard -> RETURN
NOTING DONE: READY -> RETURN
NOTING SILENT: HELD_NOTE pause prove read
NOTING FAILED: REOPENING drain discard pause prove create read
NOTING TOO_LARGE: FITTING fit
NOTING REFUSED: CLOSED drain discard -> RAISE
NOTING CLOSE: CLOSED drain discard -> RETURN
HELD DELIVERED: READY deliver
HELD UNCHANGED: READY deliver
HELD CHANGED: READY deliver
HELD SUPERSEDED: CLOSED drain discard -> SUPERSEDED
HELD SILENT: HELD pause prove read
HELD FAILED: HELD pause prove read
HELD REFUSED: CLOSED drain discard -> RAISE
HELD STOPPED: CLOSED drain discard -> RAISE
HELD CLOSE: CLOSED drain discard -> RETURN
HELD_NOTE DELIVERED: NOTING flush
HELD_NOTE UNCHANGED: NOTING flush
HELD_NOTE CHANGED: NOTING flush
HELD_NOTE SUPERSEDED: CLOSED drain discard -> SUPERSEDED
HELD_NOTE SILENT: HELD_NOTE pause prove read
HELD_NOTE FAILED: HELD_NOTE pause prove read
HELD_NOTE REFUSED: CLOSED drain discard -> RAISE
HELD_NOTE STOPPED: CLOSED drain discard -> RAISE
HELD_NOTE CLOSE: CLOSED drain discard -> RETURN
FITTING DONE: REOPENING drain discard prove create read
FITTING REFUSED: CLOSED drain discard -> RAISE
FITTING CLOSE: CLOSED drain discard -> RETURN
REOPENING DELIVERED: READY -> RETURN
REOPENING UNCHANGED: READY deliver
REOPENING CHANGED: READY deliver
REOPENING SUPERSEDED: CLOSED discard -> SUPERSEDED
REOPENING SILENT: REOPENING drain discard pause prove create read
REOPENING FAILED: REOPENING drain discard pause prove create read
REOPENING REFUSED: CLOSED discard -> RAISE
REOPENING STOPPED: CLOSED discard -> RAISE
REOPENING CLOSE: CLOSED discard -> RETURN
"""


def said(table: Transitions) -> Iterator[str]:
    for (state, event), (after, action) in table.items():
        steps = "deliver" if action is DELIVER else " ".join(step.name.lower() for step in action.steps)
        end = "" if action.end is None else f" -> {action.end.name}"
        yield f"{state.name} {event.name}: {after.name}{' ' * bool(steps)}{steps}{end}"


@pytest.mark.parametrize(
    ("table", "expected"),
    [(EXACTLY_ONCE, EXPECTED_EXACTLY_ONCE), (AT_LEAST_ONCE, EXPECTED_AT_LEAST_ONCE)],
    ids=TABLES,
)
def test_every_cell_says_what_is_meant(table: Transitions, expected: str):
    assert list(said(table)) == expected.strip().splitlines()


# What holds for every cell.


def cells() -> list[tuple[str, SinkState, TransactionEvent, SinkState, Action]]:
    return [
        (name, state, event, after, action)
        for name, table in TABLES.items()
        for (state, event), (after, action) in table.items()
    ]


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell[0]}: {cell[1].name} {cell[2].name}")
def test_a_cell_keeps_the_rules(cell: tuple[str, SinkState, TransactionEvent, SinkState, Action]):
    name, _, event, after, action = cell
    table = TABLES[name]
    # A call that ends leaves a state in which another call is understood; an action that goes on can end.
    if action.end is not None:
        assert {key[1] for key in table if key[0] is after} & {TransactionEvent.OPEN, TransactionEvent.LAST}
    elif action is not DELIVER:
        follows = {key[1] for key in table if key[0] is after}
        assert follows & {TransactionEvent.DONE, TransactionEvent.UNCHANGED}
        assert TransactionEvent.REFUSED in follows
        assert (TransactionEvent.STOPPED in follows) == (
            Step.PAUSE in action.steps or after.name.startswith(("HELD", "RE"))
        )
    # Whoever raises has no producer, and whoever has no producer raised or closed.
    assert (Step.DISCARD in action.steps) or action.end in {None, CallEnd.RETURN}
    # A new producer fences before it sends, and its ownership is proven before it fences.
    if Step.CREATE in action.steps:
        assert action.steps.index(Step.PROVE) < action.steps.index(Step.CREATE)
        assert (Step.FENCE in action.steps) == (name == "exactly once")
        assert action.steps[-1] is Step.READ
    # A commit has the checkpoint in it; a part has none.
    assert (Step.COMMIT in action.steps) <= (Step.NOTE in action.steps)
    if event is TransactionEvent.PART:
        assert Step.NOTE not in action.steps


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_state_is_reached_and_may_be_closed(table: Transitions):
    reached, new = {SinkState.CLOSED}, {SinkState.CLOSED}
    while new:
        new = {after for (state, _), (after, _) in table.items() if state in new} - reached
        reached |= new
    assert reached == {state for state, _ in table}
    assert all((state, TransactionEvent.CLOSE) in table for state in reached)


def test_both_tables_together_use_every_state_event_and_step():
    merged = [*EXACTLY_ONCE.items(), *AT_LEAST_ONCE.items()]
    assert {key[0] for key, _ in merged} == set(SinkState)
    assert {key[1] for key, _ in merged} == set(TransactionEvent)
    assert {step for _, (_, action) in merged for step in action.steps} == set(Step)
    assert {action.end for _, (_, action) in merged} - {None} == set(CallEnd)


def test_what_is_outside_the_table_is_a_bug():
    with pytest.raises(AssertionError, match="LAST"):
        TransactionState(EXACTLY_ONCE).deliver(OURS, closes=True)


def test_the_module_is_pure():
    source = Path(transaction_state.__file__).read_text()
    assert offences("cdcd.core.engine.transaction_state", ast.parse(source)) == []


# The verbs.


def ready(table: Transitions, found: Checkpoint | None = BEFORE) -> TransactionState:
    state = TransactionState(table)
    state.open()
    assert state.done(found).end is CallEnd.RETURN
    assert state.committed == found
    return state


def test_a_batch_is_delivered():
    state = ready(EXACTLY_ONCE)
    action = state.deliver(OURS, closes=True)
    assert action.steps[-1] is Step.COMMIT
    assert state.done().end is CallEnd.RETURN
    assert state.committed == OURS


@pytest.mark.parametrize(
    ("found", "end", "after"),
    [
        (OURS, CallEnd.RETURN, SinkState.READY),
        (BEFORE, None, SinkState.WHOLE),
        (ANOTHER, CallEnd.CHANGED, SinkState.CLOSED),
        (None, CallEnd.CHANGED, SinkState.CLOSED),
        (LATER_EPOCH, CallEnd.SUPERSEDED, SinkState.CLOSED),
    ],
    ids=["delivered", "unchanged", "changed", "gone", "superseded"],
)
def test_the_checkpoint_that_is_read_back_decides(
    found: Checkpoint | None, end: CallEnd | None, after: SinkState
):
    state = ready(EXACTLY_ONCE)
    state.deliver(OURS, closes=True)
    assert state.failed(TransactionEvent.SILENT).steps[-1] is Step.READ
    action = state.done(found)
    assert (action.end, state.state) == (end, after)
    if end is None:
        assert Step.HAND_OVER in action.steps


def test_a_checkpoint_is_known_again_although_memory_has_more_of_a_snapshot_than_the_record():
    begun = Progress(EXPORTED, waiting=Oids((7,)), known=Oids((7,), {7: "a.b"})).begin_next({7: "a.b"})
    assert begun is not None
    progress = begun[0].plan(begun[1], 7, "a.b", (Part(7, 70, 3, 1000),), 1)
    before = replace(BEFORE, snapshot=progress.end(begun[1], unix_s=9))
    ours = replace(OURS, snapshot=progress)
    for written, after in ((before, SinkState.WHOLE), (ours, SinkState.READY)):
        state = ready(EXACTLY_ONCE, before)
        state.deliver(ours, closes=True)
        state.failed(TransactionEvent.SILENT)
        found = Checkpoint.decode(written.encode(), "the topic")
        assert found != written, "the record has less"
        assert found.encode() == written.encode()
        state.done(found)
        assert state.state is after


def test_a_failure_of_the_second_attempt_is_judged_by_what_the_first_one_read():
    state = ready(EXACTLY_ONCE, None)
    state.deliver(OURS, closes=True)
    for _ in range(3):
        state.failed(TransactionEvent.FAILED)
        assert Step.HAND_OVER in state.done(None).steps
    state.done()
    assert state.committed == OURS


@pytest.mark.parametrize("found", [BEFORE, ANOTHER, None])
def test_at_least_once_sends_again_whatever_was_read(found: Checkpoint | None):
    state = ready(AT_LEAST_ONCE)
    state.deliver(OURS, closes=True)
    state.failed(TransactionEvent.FAILED)
    assert Step.HAND_OVER in state.done(found).steps


def test_a_part_is_no_checkpoint():
    state = ready(EXACTLY_ONCE)
    for _ in range(3):
        assert Step.NOTE not in state.deliver(OURS, closes=False).steps
        assert state.done().end is CallEnd.RETURN
        assert state.committed == BEFORE
    assert Step.NOTE in state.deliver(OURS, closes=True).steps
    state.done()
    assert state.committed == OURS


def test_a_first_part_whose_checkpoint_is_in_kafka_already_is_sent_all_the_same():
    # A part has no checkpoint of its own: what the batch after it will write says nothing of it.
    state = ready(EXACTLY_ONCE, OURS)
    state.deliver(OURS, closes=False)
    state.failed(TransactionEvent.FAILED)
    assert Step.HAND_OVER in state.done(OURS).steps


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("event", [TransactionEvent.SILENT, TransactionEvent.FAILED])
def test_behind_a_part_that_was_let_go_nothing_is_sent_again(event: TransactionEvent, closes: bool):
    state = ready(EXACTLY_ONCE)
    state.deliver(OURS, closes=False)
    state.done()
    state.deliver(OURS, closes=closes)
    action = state.failed(event)
    assert action.end is CallEnd.START_OVER
    assert action.steps[-1] is Step.DISCARD


def test_at_least_once_nothing_is_open_behind_a_part():
    state = ready(AT_LEAST_ONCE)
    state.deliver(OURS, closes=False)
    assert state.done().end is CallEnd.RETURN
    assert state.state is SinkState.READY
    state.deliver(OURS, closes=False)
    state.failed(TransactionEvent.FAILED)
    assert Step.HAND_OVER in state.done(BEFORE).steps


def test_at_least_once_keeps_a_producer_that_is_not_answered():
    state = ready(AT_LEAST_ONCE)
    state.deliver(OURS, closes=True)
    for _ in range(3):
        looked = state.failed(TransactionEvent.SILENT)
        assert not {Step.CREATE, Step.DISCARD} & set(looked.steps)
        assert Step.FLUSH in state.done(BEFORE).steps
    assert Step.NOTE in state.done().steps
    state.failed(TransactionEvent.SILENT)
    waits = state.done(BEFORE)
    assert waits.steps == (Step.FLUSH,), "the checkpoint record is with the producer already"
    assert state.done().end is CallEnd.RETURN
    assert state.committed == OURS


@pytest.mark.parametrize(
    ("failure", "given", "event"),
    [
        (TransientError("x", hint=""), {}, TransactionEvent.FAILED),
        (TransientError("x", hint=""), {"silent": True}, TransactionEvent.SILENT),
        (SinkError("x", hint=""), {}, TransactionEvent.REFUSED),
        (SinkError("x", hint=""), {"silent": True}, TransactionEvent.REFUSED),
        (SinkError("x", hint=""), {"too_large": True}, TransactionEvent.TOO_LARGE),
        (FencedError("x", hint=""), {}, TransactionEvent.REFUSED),
        (LimitError("x", hint=""), {}, TransactionEvent.REFUSED),
    ],
)
def test_a_failure_is_one_event(failure, given: dict[str, bool], event: TransactionEvent):
    assert event_of(failure, **given) is event


def test_how_a_call_ends_says_what_is_raised():
    failure = SinkError("no such topic", hint="Create it.")
    assert error_of(CallEnd.RAISE, failure) is failure
    assert isinstance(error_of(CallEnd.SUPERSEDED, None), FencedError)
    assert isinstance(error_of(CallEnd.CHANGED, None), TransientError)
    over = error_of(CallEnd.START_OVER, failure)
    assert isinstance(over, TransientError)
    assert "no such topic" in over.message
    assert "Create it." in over.hint


def sent_with(table: Transitions, events: list[TransactionEvent]) -> TransactionState:
    """A machine that had `BEFORE` in Kafka and was given `OURS`, after these events."""
    state = TransactionState(table)
    state.open()
    state.done(BEFORE)
    state.deliver(OURS, closes=True)
    for event in events:
        if event is TransactionEvent.DONE:
            state.done()
        else:
            state.failed(event)
    return state


UNANSWERED = [
    (EXACTLY_ONCE, [TransactionEvent.SILENT], [TransactionEvent.REFUSED]),
    (EXACTLY_ONCE, [TransactionEvent.FAILED, TransactionEvent.SILENT], [TransactionEvent.STOPPED]),
    (AT_LEAST_ONCE, [TransactionEvent.DONE, TransactionEvent.SILENT], [TransactionEvent.REFUSED]),
    (
        AT_LEAST_ONCE,
        [TransactionEvent.DONE, TransactionEvent.FAILED, TransactionEvent.FAILED],
        [TransactionEvent.REFUSED],
    ),
]


@pytest.mark.parametrize(("table", "unanswered", "end"), UNANSWERED)
def test_a_commit_without_an_answer_is_unknown_until_the_checkpoint_is_read_back(
    table: Transitions, unanswered: list[TransactionEvent], end: list[TransactionEvent]
):
    # A refusal that comes instead of an answer to another commit says nothing of the first one.
    assert sent_with(table, [*unanswered, *end]).outcome_unknown
    state = sent_with(table, unanswered)
    if state.state is SinkState.REOPENING:
        state.done(BEFORE)
        assert not state.outcome_unknown
        state.failed(TransactionEvent.REFUSED)
        assert not state.outcome_unknown


def test_a_producer_that_is_kept_may_still_send_its_checkpoint_whatever_is_read():
    state = sent_with(AT_LEAST_ONCE, [TransactionEvent.DONE, TransactionEvent.SILENT])
    looks = [(state.done(BEFORE), state.outcome_unknown), (state.done(), state.outcome_unknown)]
    assert [unknown for _, unknown in looks] == [True, False]
    assert state.committed == OURS


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_refusal_at_once_and_a_delivery_are_known(table: Transitions):
    assert not sent_with(table, [TransactionEvent.REFUSED]).outcome_unknown
    steps = (
        [TransactionEvent.DONE] if table is EXACTLY_ONCE else [TransactionEvent.DONE, TransactionEvent.DONE]
    )
    assert not sent_with(table, steps).outcome_unknown
