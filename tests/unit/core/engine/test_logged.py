from dataclasses import replace

import pytest

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.logged import (
    DurableLog,
    LoggedSession,
    LogOwner,
    SpoolStart,
    ended_early,
    judge,
    start_spooling,
)
from cdcd.core.engine.resuming import Source, resume
from cdcd.core.errors import PositionError
from cdcd.core.transactions.position import Position

OWNER = LogOwner("shop", "cdcd_shop", "7001", 1, "publication=shop")
FIRST = LoggedSession(1, OWNER, 100, 200)
SECOND = LoggedSession(2, OWNER, 180, 300)


def log(*sessions: LoggedSession) -> DurableLog:
    return DurableLog("/var/log", sessions)


def source(confirmed: int | None) -> Source:
    return Source("7001", 1, 1000, confirmed, "publication=shop", slot="cdcd_shop", log="/var/log")


def checkpoint(end: int) -> Checkpoint:
    return Checkpoint("7001", 1, "publication=shop", Position(end - 10, end), end)


def test_the_first_logged_session_that_goes_on_from_the_checkpoint_is_delivered():
    judged = judge(log(FIRST, SECOND), OWNER, checkpoint(100), source(290))
    assert judged.deliver == FIRST
    assert judged.remove == ()
    # The rest of a start sees a slot from which everything comes.
    assert resume(checkpoint(100), judged.source, accept_gap=False).position == checkpoint(100).position


def test_the_next_one_follows_and_what_is_delivered_is_removed():
    judged = judge(log(FIRST, SECOND), OWNER, checkpoint(200), source(290))
    assert (judged.deliver, judged.remove) == (SECOND, (1,))


def test_a_checkpoint_inside_of_a_transaction_goes_on_in_its_logged_session():
    inside = replace(checkpoint(150), position=Position(150, 150, events_done=4))
    assert judge(log(FIRST, SECOND), OWNER, inside, source(290)).deliver == FIRST


def test_live_streaming_begins_when_the_checkpoint_has_reached_all_of_the_log():
    judged = judge(log(FIRST, SECOND), OWNER, checkpoint(300), source(290))
    assert (judged.deliver, judged.remove, judged.source) == (None, (1, 2), source(290))


def test_not_before_it_has_reached_the_end_of_the_log_which_a_late_status_update_may_name():
    assert judge(log(FIRST, SECOND), OWNER, checkpoint(290), source(290)).deliver == SECOND
    assert judge(log(FIRST, SECOND), OWNER, checkpoint(100), source(100)).deliver == FIRST


def test_the_log_of_another_pipeline_is_refused_also_where_it_would_only_be_removed():
    foreign = replace(FIRST, owner=replace(OWNER, pipeline="other"))
    with pytest.raises(PositionError, match="belongs to another pipeline: its pipeline is other"):
        judge(log(foreign), OWNER, checkpoint(900), source(900))
    assert judge(
        log(replace(FIRST, owner=replace(OWNER, timeline=3))), OWNER, checkpoint(900), source(900)
    ).remove


def test_an_empty_log_changes_nothing():
    assert judge(log(), OWNER, None, source(290)).source == source(290)


@pytest.mark.parametrize(
    ("sessions", "reached", "confirmed", "said"),
    [
        ((FIRST, replace(SECOND, end=280, flaw="Segment x is torn.")), 100, 290, "0/118. Segment x is torn."),
        ((replace(FIRST, end=170, flaw="Segment y is torn."), SECOND), 100, 290, "0/AA. Segment y is torn."),
        ((LoggedSession(1, None, 80, 80, "Segment z is altered."),), 100, 290, "Segment z is altered."),
        ((SECOND,), 100, 290, "0/64. A part of the log is missing."),
        ((FIRST,), 100, 290, "0/C8. A part of the log is missing."),
    ],
)
def test_a_hole_before_the_slots_position_is_refused_by_name(sessions, reached, confirmed, said):
    with pytest.raises(PositionError, match="The durable log /var/log is damaged") as refused:
        judge(log(*sessions), OWNER, checkpoint(reached), source(confirmed))
    assert said in refused.value.message
    assert "move the folder /var/log away" in refused.value.hint


def test_a_tear_behind_the_slots_position_is_none():
    torn = replace(SECOND, end=280, flaw="Segment x is torn.")
    assert judge(log(FIRST, torn), OWNER, checkpoint(100), source(280)).deliver == FIRST


@pytest.mark.parametrize(
    "other",
    [
        {"pipeline": "other"},
        {"slot": "other"},
        {"system_identifier": "7002"},
        {"timeline": 2},
        {"stream": "publication=other"},
    ],
)
def test_the_log_of_another_one_is_refused(other):
    ((name, value),) = other.items()
    with pytest.raises(PositionError, match=f"belongs to another pipeline: its {name} is {value}"):
        judge(log(replace(FIRST, owner=replace(OWNER, **other))), OWNER, checkpoint(100), source(190))


def test_a_log_without_a_checkpoint_or_without_a_slot_is_refused():
    with pytest.raises(PositionError, match="Kafka has no checkpoint") as refused:
        judge(log(FIRST), OWNER, None, source(190))
    assert refused.value.hint.endswith("move /var/log away.")
    with pytest.raises(PositionError, match="Slot cdcd_shop is not there"):
        judge(log(FIRST), OWNER, checkpoint(100), source(None))


def test_a_gap_without_a_log_names_the_log_that_should_be_there():
    with pytest.raises(PositionError) as refused:
        resume(checkpoint(100), source(290), accept_gap=False)
    assert "start cdcd where that log is" in refused.value.hint


def test_a_logged_session_that_ends_early_is_told_with_its_flaw():
    error = ended_early("/var/log", FIRST, 150, "Segment x is torn.")
    assert "should reach 0/C8, and ends at 0/96. Segment x is torn." in error.message


def test_a_log_begins_where_this_process_has_delivered_up_to_the_slots_position():
    assert start_spooling(log(), OWNER, 100, checkpoint(100)) == SpoolStart(100)
    # What is left of a log that was delivered goes.
    assert start_spooling(log(FIRST), OWNER, 100, checkpoint(250)) == SpoolStart(100, (1,))
    # What is not, stays, whatever the slot says.
    assert start_spooling(log(FIRST), OWNER, 100, checkpoint(150)) == SpoolStart(100)


def test_a_log_goes_on_where_it_reaches_the_slots_position():
    assert start_spooling(log(FIRST), OWNER, 200, None) == SpoolStart(200)
    assert start_spooling(log(FIRST), OWNER, 200, checkpoint(120)) == SpoolStart(200)


@pytest.mark.parametrize(
    ("found", "confirmed", "delivered", "why"),
    [
        (log(), None, checkpoint(100), "is not there"),
        (log(), 100, None, "has not reached Kafka since it started"),
        (log(), 110, checkpoint(100), "past what this process has delivered"),
        (log(), 90, replace(checkpoint(100), timeline=2), "past what this process has delivered"),
        (log(FIRST), 210, None, "is damaged"),
        (log(replace(FIRST, owner=replace(OWNER, slot="x"))), 200, None, "belongs to another pipeline"),
    ],
)
def test_otherwise_nothing_is_spooled_and_it_is_said_why(found, confirmed, delivered, why):
    said = start_spooling(found, OWNER, confirmed, delivered)
    assert isinstance(said, str)
    assert why in said
