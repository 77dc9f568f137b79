"""When an outage begins and ends, and what is told of it."""

import pytest

from cdcd.core.engine.reachability import STOOD_STILL_S, Outage, Reachability, Undelivered
from cdcd.core.errors import TransientError
from cdcd.core.facts import Fact
from cdcd.core.facts.operation import KafkaReachable, KafkaUnreachable, PostgresReachable, PostgresUnreachable

REFUSED = TransientError("Connection refused", hint="Start the broker.")


class Watched:
    """A `Reachability` with 3 records that wait, and what it told."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.reach = Reachability(lambda: Undelivered(3, 700, 0x50, 1 << 20), self.facts.append)

    def fails(self, side: str, asked_at: float, now: float, patience_s: float = 3.0) -> None:
        self.reach.failed(side, REFUSED, asked_at=asked_at, patience_s=patience_s, now=now)  # type: ignore[arg-type]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_side_that_was_not_asked_is_neither_up_nor_down(watched: Watched):
    assert (watched.reach.up, watched.reach.outages, watched.facts) == ({}, {}, [])


def test_an_answer_without_an_outage_before_it_is_no_event(watched: Watched):
    watched.reach.answered("kafka", 1.0)
    assert watched.reach.up == {"kafka": True}
    assert watched.facts == []


def test_the_first_attempt_without_an_answer_begins_an_outage_and_tells_what_waits(watched: Watched):
    watched.reach.answered("kafka", 1.0)
    watched.fails("kafka", 2.0, 5.0)
    assert watched.reach.up == {"kafka": False}
    assert watched.reach.outages == {"kafka": Outage(2.0, "Connection refused", "Start the broker.")}
    assert watched.facts == [
        KafkaUnreachable("Connection refused", "Start the broker.", 3, 700, 0x50, 1 << 20)
    ]


def test_an_outage_is_told_once_and_its_end_with_the_time_since_the_first_question(watched: Watched):
    for asked_at in (2.0, 6.0, 10.0):
        watched.fails("kafka", asked_at, asked_at + 3)
    watched.reach.answered("kafka", 14.5)
    assert [type(fact) for fact in watched.facts] == [KafkaUnreachable, KafkaReachable]
    assert watched.facts[1] == KafkaReachable(12.5, 3, 700, 0x50, 1 << 20)
    assert (watched.reach.up, watched.reach.outages) == ({"kafka": True}, {})


def test_each_side_has_an_outage_of_its_own(watched: Watched):
    watched.fails("kafka", 2.0, 5.0)
    watched.fails("postgres", 3.0, 6.0)
    watched.reach.answered("kafka", 7.0)
    watched.reach.answered("postgres", 9.0)
    kinds = [KafkaUnreachable, PostgresUnreachable, KafkaReachable, PostgresReachable]
    assert [type(fact) for fact in watched.facts] == kinds


def test_the_newest_message_is_the_reason(watched: Watched):
    watched.fails("kafka", 2.0, 5.0)
    watched.reach.failed("kafka", TransientError("Timed out"), asked_at=6.0, patience_s=3.0, now=9.0)
    assert watched.reach.outages["kafka"] == Outage(2.0, "Timed out")


def test_an_attempt_of_a_process_that_stood_still_says_nothing(watched: Watched):
    watched.reach.answered("kafka", 1.0)
    watched.fails("kafka", 2.0, 2.0 + 3.0 + STOOD_STILL_S + 1)
    assert watched.reach.up == {"kafka": True}
    assert watched.facts == []
