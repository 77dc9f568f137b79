"""The heartbeat query beside the stream: who runs it, and what is told of its failures."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.adapters.postgres.heartbeat_query import HeartbeatQuery
from cdcd.core.errors import SourceError
from cdcd.core.facts import Fact
from cdcd.core.facts.operation import HeartbeatQueryFailed, HeartbeatQueryRuns
from cdcd.daemon import postgres_side
from cdcd.daemon.postgres_side import REPORT_S, HeartbeatAction
from cdcd.telemetry.state import Telemetry
from tests.unit.config.test_loading import parse
from tests.unit.daemon.test_pipeline import in_a_loop

CONFIG = parse("heartbeat: {interval_s: 5, action_query: SELECT 1, action_timeout_s: 3}\n")
REFUSED = SourceError("no such table", hint="Create it.")


class Query:
    """Stands in for the connection."""

    def __init__(self) -> None:
        self.is_lost = False
        self.runs = 0
        self.fails: BaseException | None = None
        self.closed = 0

    async def run(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.runs += 1

    def close(self) -> None:
        self.closed += 1


class Surroundings:
    """A lock that the test lets lapse, a clock that it moves, and what was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.query = Query()
        self.opened: list[dict[str, Any]] = []
        self.facts: list[Fact] = []
        self.telemetry = Telemetry()
        self.lock = SimpleNamespace(lapsed=False)
        self.now = 1000.0
        self.lapses_meanwhile = False
        monkeypatch.setattr(HeartbeatQuery, "open", self._open)
        monkeypatch.setattr(postgres_side, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.action = HeartbeatAction(
            CONFIG,
            "SELECT 1",
            dsn=None,  # type: ignore[arg-type]
            lock=self.lock,  # type: ignore[arg-type]
            telemetry=self.telemetry,
            observe=self.facts.append,
        )

    async def _open(self, dsn: Any, query: str, **options: Any) -> Query:
        self.opened.append({"query": query, **options})
        self.lock.lapsed = self.lapses_meanwhile
        return self.query


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    return Surroundings(monkeypatch)


@in_a_loop
async def test_the_query_is_run_on_one_connection_with_its_timeout(around: Surroundings):
    await around.action.run()
    await around.action.run()
    assert around.query.runs == 2
    ((opened),) = around.opened
    assert (opened["query"], opened["timeout_s"]) == ("SELECT 1", 3)
    assert around.telemetry.heartbeat_queries == {"done": 2, "failed": 0}
    assert around.facts == []


@in_a_loop
async def test_a_lost_connection_is_made_again(around: Surroundings):
    await around.action.run()
    around.query.is_lost = True
    await around.action.run()
    assert len(around.opened) == 2
    assert around.query.closed == 1


@in_a_loop
async def test_nothing_is_run_once_the_lease_of_the_lock_is_over(around: Surroundings):
    around.lapses_meanwhile = True
    await around.action.run()
    await around.action.run()
    assert len(around.opened) == 1
    assert around.query.runs == 0
    assert around.telemetry.heartbeat_queries == {"done": 0, "failed": 0}


@in_a_loop
async def test_failures_are_told_once_a_minute_and_their_end_is_told(around: Surroundings):
    around.query.fails = REFUSED
    for _ in range(3):
        await around.action.run()
    around.now += REPORT_S
    await around.action.run()
    around.query.fails = None
    await around.action.run()
    assert around.facts == [
        HeartbeatQueryFailed(message="no such table", hint="Create it.", failures=1),
        HeartbeatQueryFailed(message="no such table", hint="Create it.", failures=4),
        HeartbeatQueryRuns(failures=4),
    ]
    assert around.telemetry.heartbeat_queries == {"done": 1, "failed": 4}


@in_a_loop
async def test_a_session_that_ends_meanwhile_closes_the_connection(around: Surroundings):
    around.query.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await around.action.run()
    assert around.query.closed == 1
    around.action.close()
    assert around.query.closed == 1
