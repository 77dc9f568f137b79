from typing import Any

from deploy.demo.events_log import examine_log
from deploy.demo.history import examine
from tests.unit.deploy.synthetic import Topics


def log(topics: Topics, sequence: int, session: str = "s", **row: Any) -> Topics:
    default = {"attempt": 1, "kind": "small", "doomed": False, "changes": 0, "messages": 0, "standalone": []}
    key = {"session": session, "sequence": sequence}
    return topics.insert("events_log", key, **(key | default | row))


def kinds(topics: Topics) -> set[str]:
    history = examine(topics.records)
    examine_log(history, history.violations)
    return set(history.violations.counts)


def test_sessions_count_each_for_itself() -> None:
    topics = log(log(Topics().begin(10), 1).begin(20), 1, session="other")
    assert not kinds(log(log(topics.begin(30), 2).begin(40), 1, session="s/5"))


def test_a_lost_transaction_leaves_its_number_out() -> None:
    assert kinds(log(log(Topics().begin(10), 1).begin(20), 3)) == {"a session's transactions out of turn"}


def test_transactions_in_another_order_are_out_of_turn() -> None:
    assert kinds(log(log(Topics().begin(10), 2).begin(20), 1)) == {"a session's transactions out of turn"}


def test_what_was_rolled_back_may_not_be_there() -> None:
    assert kinds(log(Topics().begin(10), -4, doomed=True)) == {"rolled back, and yet here"}


def test_events_are_counted() -> None:
    good = log(Topics().begin(10).insert("t", None, a=1).message("s 1 1 0"), 1, changes=1, messages=1)
    assert not kinds(good)
    lost = log(Topics().begin(10).insert("t", None, a=1), 1, changes=2)
    assert kinds(lost) == {"a transaction with too few or too many events"}
    assert not kinds(log(Topics().begin(10).insert("t", None, a=1), 1, changes=None))


def test_transactional_messages_are_those_that_were_sent() -> None:
    wrong = log(Topics().begin(10).message("s 1 1 0 doomed"), 1, messages=1)
    assert kinds(wrong) == {"other messages than were sent"}


def test_a_standalone_message_comes_once_and_before_its_sessions_commit() -> None:
    assert not kinds(log(Topics().message("m", lsn=5).begin(10), 1, standalone=["m"]))
    assert not kinds(log(Topics().message("nobody knows of it", lsn=5).begin(10), 1))
    assert kinds(log(Topics().begin(10), 1, standalone=["m"])) == {"a non-transactional message is missing"}
    twice = log(Topics().message("m", lsn=5).message("m", lsn=6).begin(10), 1, standalone=["m"])
    assert kinds(twice) == {"a non-transactional message twice"}
    late = log(Topics().begin(10), 1, standalone=["m"]).message("m", lsn=15)
    assert kinds(late) == {"a non-transactional message after its session's commit"}


def test_every_transaction_has_one_row() -> None:
    assert kinds(Topics().begin(10).insert("t", None, a=1)) == {"a transaction without a row in events_log"}
    assert kinds(log(log(Topics().begin(10), 1, changes=1), 2)) == {
        "a transaction with other than one row in events_log"
    }
