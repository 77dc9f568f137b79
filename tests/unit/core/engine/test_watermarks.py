"""Watermarks in the topics of tables: when they come, which LSN they name, and to which topics they go."""

from pathlib import Path
from typing import Any

import pytest

from cdcd.core.engine.actions import EnsureTopics, Ship
from cdcd.core.engine.batch import Watermark
from cdcd.core.errors import TransientError
from tests.unit.core.engine.test_engine import Daemon, described, row, transaction
from tests.unit.core.transactions import wire

T, U = "p.public.t", "p.public.u"


class Marking(Daemon):
    """A daemon with watermarks every five seconds, of two tables."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        published = {1: "public.t", 2: "public.u"}
        super().__init__(directory, **{"watermark_s": 5.0, "published": published, **settings})

    @property
    def marks(self) -> list[int]:
        """The LSNs that watermarks named."""
        return [each.batch.watermark.lsn for each in self.shipped if each.batch.watermark is not None]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.idle()


@pytest.fixture
def daemon(tmp_path: Path) -> Marking:
    found = Marking(tmp_path)
    found.idle()
    return found


def test_they_go_to_the_topics_of_all_published_tables_also_of_those_that_never_changed(daemon: Marking):
    daemon.pass_time(5)
    (ship,) = [each for each in daemon.shipped if each.batch.watermark is not None]
    assert ship.batch.watermark == Watermark(60, (T, U))
    assert (ship.batch.records, ship.batch.size, ship.batch.closes) == ([], 0, True)


def test_they_come_at_the_interval_and_only_if_the_position_has_moved(daemon: Marking):
    daemon.pass_time(4.9)
    assert daemon.marks == []
    daemon.pass_time(0.1)
    for _ in range(3):
        daemon.pass_time(5)
    assert daemon.marks == [60]
    daemon.take([wire.keepalive(500)])
    # What the keepalive says is in a checkpoint first.
    daemon.pass_time(11)
    daemon.idle()
    assert daemon.marks == [60, 500]


def test_without_an_interval_there_are_none(tmp_path: Path):
    daemon = Marking(tmp_path, watermark_s=0.0)
    daemon.pass_time(100)
    assert daemon.marks == []


def test_the_shell_is_asked_when_the_next_ones_are_due_and_does_not_spin(tmp_path: Path):
    daemon = Marking(tmp_path, watermark_s=3.0, status_interval_s=1000.0)
    assert daemon.idle().until == 3.0
    daemon.pass_time(3)
    daemon.now = 7.0
    wait = daemon.idle()
    assert wait.until is None or wait.until > 7.0, "the position has not moved"


def test_they_name_what_the_broker_held_before_them_and_not_their_own_batch(daemon: Marking):
    daemon.take(transaction(5, 100, described(), row(1)))
    daemon.now = 5.0
    daemon.feed(transaction(6, 200, row(2)))
    daemon.carry_out(daemon.until(Ship))
    daemon.idle()
    assert daemon.marks == [110]
    daemon.pass_time(5)
    assert daemon.marks == [110, 210]


def test_they_wait_for_the_end_of_a_transaction(daemon: Marking):
    begin, *rest = transaction(5, 100, described(), row(1))
    daemon.take([begin, *rest[:-1]])
    daemon.now = 7.0
    wait = daemon.idle()
    assert daemon.marks == []
    assert wait.until is None or wait.until > 7.0, "the shell does not spin"
    daemon.take([rest[-1]])
    assert daemon.marks == [60]


def test_one_round_is_under_way_at_a_time_however_long_kafka_is_away(daemon: Marking):
    daemon.now = 5.0
    out = daemon.until(Ship)
    daemon.feed(transaction(5, 100, described(), row(1)))
    for now in (10.0, 15.0, 20.0):
        daemon.now = now
        wait = daemon.idle()
        assert wait.until is None or wait.until > now
    assert daemon.marks == []
    daemon.carry_out(out)
    daemon.idle()
    # Those that were left out are not made up for.
    assert daemon.marks == [60, 110]


def test_none_are_made_before_the_stream_or_when_the_lock_is_lost(tmp_path: Path):
    reading = Marking(tmp_path, exported=[])
    reading.now = 20.0
    reading.idle()
    assert reading.marks == []
    daemon = Marking(tmp_path)
    daemon.idle()
    daemon.engine.lock_lost(TransientError("lost"), "57P01", shutting_down=True, now=4.0)
    daemon.now = 5.5
    daemon.next()
    assert daemon.marks == []


def test_a_topic_that_the_start_has_not_seen_gets_them_when_it_is_known_to_take_them(tmp_path: Path):
    daemon = Marking(tmp_path, published={2: "public.u"})
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), row(1)))
    action = daemon.until(EnsureTopics)
    # Its rows have keys. Watermarks have none.
    assert action.keyless == frozenset({T})
    daemon.carry_out(action)
    daemon.idle()
    daemon.pass_time(5)
    assert [each.batch.watermark for each in daemon.shipped if each.batch.watermark] == [
        Watermark(110, (T, U))
    ]
