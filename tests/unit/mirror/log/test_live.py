"""The log beside folds: its user waits until the log has what it asked for, and gets the error that ended the query."""

import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.errors import SinkError, SinkUnavailableError
from cdcd.mirror.log import job as log_job
from cdcd.mirror.log import lineage, positions
from cdcd.mirror.log.job import Appended, LogJob
from cdcd.mirror.log.lineage import Entry, Lineage
from cdcd.mirror.log.live import FollowedLog, LiveLog
from cdcd.mirror.log.positions import Positions
from cdcd.mirror.log.table import LogPlace

WANTED = {"t": {0: 5}, "u": {0: 3}}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogJob:
    monkeypatch.setattr(log_job, "TopicStarts", lambda _: None)
    settings: Any = type("Settings", (), {"maintenance": None, "maintenance_interval_s": None})
    none: Any = None
    return LogJob(none, settings, none, {}, lambda _: None)


def running(
    log: LogJob, monkeypatch: pytest.MonkeyPatch, query: Callable[[threading.Event], None]
) -> list[bool]:
    """Let runs of the log do this, and return for each run whether it was to append once."""
    runs: list[bool] = []

    def run(*, once: bool, stop: threading.Event) -> None:
        runs.append(once)
        if not once:
            query(stop)

    monkeypatch.setattr(log, "run", run)
    return runs


def find(log: LogJob, **ends: int) -> None:
    """Let a comparison find that the log has the topics up to these offsets."""
    with log._comparison:
        log.appended = Appended("1", {topic: {0: end} for topic, end in ends.items()}, at=time.monotonic())
        log._comparison.notify_all()


def test_the_log_is_read_up_to_its_end_first_and_runs_on_until_its_user_ends(
    log: LogJob, monkeypatch: pytest.MonkeyPatch
):
    runs = running(log, monkeypatch, assert_set)
    with LiveLog(log) as live:
        assert not live.runs()
        assert live.append(WANTED, threading.Event(), once=False) is log.appended
        assert live.runs()
        # A comparison from before the question does not count, because a topic may have lost records since.
        find(log, t=5, u=3)
        found: list[Any] = []
        asking = threading.Thread(
            target=lambda: found.append(live.append(WANTED, threading.Event(), once=False))
        )
        asking.start()
        while asking.is_alive():
            find(log, t=5, u=3)
            asking.join(0.01)
        assert found == [log.appended] or found[0].has(WANTED)
    assert runs == [True, False]


def assert_set(stop: threading.Event) -> None:
    assert stop.wait(30)


def test_a_run_that_appends_once_starts_no_query(log: LogJob, monkeypatch: pytest.MonkeyPatch):
    runs = running(log, monkeypatch, lambda _: None)
    with LiveLog(log) as live:
        live.append(WANTED, threading.Event(), once=True)
        assert not live.runs()
    assert runs == [True]


def test_the_error_that_ended_the_query_ends_the_wait_for_it(log: LogJob, monkeypatch: pytest.MonkeyPatch):
    def fails(_: threading.Event) -> None:
        raise SinkError("log: broken", hint="Mend it.")

    running(log, monkeypatch, fails)
    live = LiveLog(log)
    live.append(WANTED, threading.Event(), once=False)
    with pytest.raises(SinkError, match="log: broken"):
        live.append(WANTED, threading.Event(), once=False)
    # It is told too if nobody waits.
    with pytest.raises(SinkError, match="log: broken"), LiveLog(log) as live:
        live.append(WANTED, threading.Event(), once=False)


def test_a_wait_ends_when_its_user_is_stopped(log: LogJob, monkeypatch: pytest.MonkeyPatch):
    running(log, monkeypatch, assert_set)
    stop = threading.Event()
    with LiveLog(log) as live:
        live.append(WANTED, stop, once=False)
        stop.set()
        assert live.append(WANTED, stop, once=False) is None


def test_the_log_has_what_is_wanted_when_each_topic_that_goes_on_is_read_so_far():
    assert Appended(ends={"t": {0: 5}, "u": {0: 3}}).has(WANTED)
    assert not Appended(ends={"t": {0: 5}, "u": {0: 2}}).has(WANTED)
    assert not Appended(ends={"t": {0: 5}}).has(WANTED)
    assert Appended(ends={"t": {0: 5}}, stopped={"u": SinkError("u", hint="")}).has(WANTED)


class Records:
    """Topics whose records have these offsets. All other offsets are markers of transactions."""

    def __init__(self, **records: set[int]) -> None:
        self._records = records
        self.asked: list[tuple[str, Mapping[int, int], Mapping[int, int]]] = []

    def read(self, _: Any, topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> Any:
        self.asked.append((topic, start, end))
        found = [off for part in end for off in range(start[part], end[part]) if off in self._records[topic]]
        return SimpleNamespace(isEmpty=lambda: not found)


def followed(
    monkeypatch: pytest.MonkeyPatch, records: Any, has: Callable[[], Positions], wait_s: float = 0.0
) -> FollowedLog:
    monkeypatch.setattr(lineage, "read", lambda *_: Lineage([Entry("7")]))
    monkeypatch.setattr(positions, "read", lambda _, __, version: has() if version == "7" else None)
    spark: Any = None
    return FollowedLog(spark, LogPlace("lake.log", "iceberg", "/checkpoint"), records, wait_s)


def test_a_log_of_another_process_lacks_no_markers_of_transactions(monkeypatch: pytest.MonkeyPatch):
    records = Records(t={0, 1, 2}, u={0, 1, 2})
    has = Positions({"t": {0: 3}, "u": {0: 3}}, stopped={"gone": "the topic was deleted"}, gaps={"gone": "g"})
    log = followed(monkeypatch, records, lambda: has)
    with log as live:
        found = live.append({"t": {0: 5}, "u": {0: 3}, "gone": {0: 9}}, threading.Event(), once=True)
    assert found is not None
    assert (found.version, found.ends, found.gaps) == ("7", has.ends, {"gone": "g"})
    assert "the topic was deleted" in str(found.stopped["gone"])
    assert records.asked == [("t", {0: 3}, {0: 5})]


def test_a_log_that_another_process_does_not_append_to_ends_the_wait(monkeypatch: pytest.MonkeyPatch):
    records = Records(t={0, 1, 2, 3})
    for has in (Positions({"t": {0: 3}}), Positions()):
        log = followed(monkeypatch, records, iter([has]).__next__)
        with pytest.raises(SinkUnavailableError, match="lacks records of t that Kafka has") as raised:
            log.append({"t": {0: 5}}, threading.Event(), once=True)
        assert "cdcd mirror --once" in raised.value.hint


def test_what_another_process_appends_meanwhile_ends_the_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cdcd.mirror.log.live._POLL_S", 0.0)
    ends = iter(({"t": {0: 3}}, {"t": {0: 4}}))
    log = followed(monkeypatch, Records(t={0, 1, 2, 3}), lambda: Positions(next(ends)), wait_s=30.0)
    found = log.append({"t": {0: 5}}, threading.Event(), once=True)
    assert found is not None
    assert found.ends == {"t": {0: 4}}
    stop = threading.Event()
    stop.set()
    assert log.append({"t": {0: 5}}, stop, once=True) is None
