import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from cdcd.core.errors import FencedError, PositionError
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.stream.points import Pins
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.stream.table import TableMirror
from cdcd.mirror.stream.upkeep import POOL, Upkeep
from cdcd.mirror.targets.state import RolledBackError
from cdcd.mirror.targets.target import Maintained, Maintenance
from cdcd.mirror.watching.progress import Fact, TableFailed, TableMaintained, TableRolledBack

LIMIT_S = 60.0


class FakeSpark:
    """Takes down what each thread says of its jobs, and lets `cancelled` be set."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.cancelled = threading.Event()

    @property
    def sparkContext(self) -> "FakeSpark":  # noqa: N802 - Spark's name
        return self

    def newSession(self) -> "FakeSpark":  # noqa: N802 - Spark's name
        return self

    def setLocalProperty(self, _key: str, value: str) -> None:  # noqa: N802 - Spark's name
        self.said.append((threading.current_thread().name, value))

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.said.append((threading.current_thread().name, tag))

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        assert tag == POOL
        self.cancelled.set()


class FakeTable:
    """A table whose maintenance calls something first."""

    def __init__(self, name: str, during: Any = lambda: None) -> None:
        self.table = name
        self.topic = f"shop.{name}"
        self.forgotten = 0
        self.busy = threading.Lock()
        self.maintained = 0
        self.pins: Pins | None = None
        self._during = during

    def use(self, spark: Any) -> None:
        assert self.busy.locked(), "nobody else works on the table"

    def forget(self) -> None:
        self.forgotten += 1

    def maintain(self, policy: Maintenance, pins: Pins | None) -> Iterator[tuple[str, Maintained]]:
        self.pins = pins
        assert self.busy.locked(), "nobody else works on the table"
        self._during()
        self.maintained += 1
        yield f"lake.{self.table}", Maintained(9, 1, 3)
        yield f"lake.{self.table}_changes", Maintained(0, 0, 0)


class FakeTarget:
    def __init__(self) -> None:
        self.pruned: list[tuple[str, int]] = []
        self.fails_to_prune: Exception | None = None

    def own_name(self, name: str) -> str:
        return f"lake.cdcd.{name}"

    def prune(self, _spark: Any, name: str, order: str, policy: Maintenance) -> int:
        assert order == "commit_lsn"
        if self.fails_to_prune is not None:
            raise self.fails_to_prune
        self.pruned.append((name, policy.keep_versions))
        return 1

    def maintain_own(self, _spark: Any, policy: Maintenance) -> Iterator[tuple[str, Maintained]]:
        yield "lake.cdcd.quarantine", Maintained(4, 1, 0)


PINS = Pins(42, 1_000_000, {"public.a": 7})


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the mirror is consistent, each time that points are looked up."""
    asked: list[bool] = []

    def look_up(_spark: Any, _target: Any, *, consistent: bool) -> Pins:
        asked.append(consistent)
        return PINS

    monkeypatch.setattr("cdcd.mirror.stream.upkeep.look_up_pins", look_up)
    return asked


class Harness:
    """The maintenance of fakes."""

    def __init__(self, *tables: FakeTable, **settings: Any) -> None:
        self.facts: list[Fact] = []
        self.spark = FakeSpark()
        self.target = FakeTarget()
        self.tables = cast("list[TableMirror]", tables)
        given = MirrorSettings(
            "shop", KafkaSource("b:1"), "shop", "shop.schemas", "shop.checkpoint", "/c", **settings
        )
        self.caught_up: list[str] = []
        self.upkeep = Upkeep(
            cast("Any", self.spark), cast("Any", self.target), given, self.facts.append, self.caught_up.append
        )

    def finish(self) -> None:
        self.upkeep.finish(self.tables, threading.Event())

    def round(self) -> None:
        """One beside the stream, to its end."""
        self.upkeep._due_at = time.monotonic()
        self.upkeep.look(self.tables)
        for thread in self.upkeep._threads:
            thread.join(LIMIT_S)

    def maintained(self) -> list[str]:
        return [fact.table for fact in self.facts if isinstance(fact, TableMaintained)]


def fail(error: Exception) -> Any:
    def during() -> None:
        raise error

    return during


def test_tables_are_tidied_up_and_one_that_cannot_be_is_named_and_hinders_nobody():
    conflict = FakeTable("public.a", fail(AnalysisException("conflict")))
    gone = FakeTable("public.b", fail(PositionError("gone", hint="do this")))
    harness = Harness(conflict, gone, FakeTable("public.c"))
    harness.round()
    assert harness.maintained() == ["lake.public.c", "lake.cdcd.quarantine"]
    assert [fact for fact in harness.facts if isinstance(fact, TableFailed)] == [
        TableFailed("public.a", "maintenance: conflict", ""),
        TableFailed("public.b", "maintenance: gone", "do this"),
    ]
    harness.upkeep.look(())


def test_points_are_let_go_of_first_and_the_tables_keep_what_the_others_need(points: list[bool]):
    one, two = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(one, two, consistent=True, threads=2)
    harness.finish()
    harness.round()
    assert harness.target.pruned == [("lake.cdcd.consistent", 10)] * 2
    assert (one.pins, two.pins, points) == (PINS, PINS, [True, True])
    # Of a mirror that makes no more points, none stays for its number.
    harness = Harness(consistent=False)
    harness.round()
    assert harness.target.pruned == [("lake.cdcd.consistent", 0)]
    assert points == [True, True, False]


def test_where_points_cannot_be_looked_up_no_table_is_maintained():
    table = FakeTable("public.a")
    harness = Harness(table, consistent=True)
    harness.target.fails_to_prune = AnalysisException("conflict")
    harness.round()
    assert (table.maintained, harness.facts) == (0, [TableFailed("cdcd", "maintenance: conflict", "")])
    harness.target.fails_to_prune = None
    harness.round()
    assert table.maintained == 1


def test_a_round_begins_when_it_is_due_and_none_is_under_way(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("cdcd.mirror.stream.upkeep.time", SimpleNamespace(monotonic=lambda: now[0]))
    go_on = threading.Event()
    table = FakeTable("public.a", lambda: go_on.wait(LIMIT_S))
    harness = Harness(table, maintenance_interval_s=600)
    harness.upkeep.look(harness.tables)
    assert harness.upkeep._threads == []
    now[0] += 600
    harness.upkeep.look(harness.tables)
    (under_way,) = harness.upkeep._threads
    now[0] += 600
    harness.upkeep.look(harness.tables)
    assert harness.upkeep._threads == [under_way]
    go_on.set()
    under_way.join(LIMIT_S)
    # The next one is due so long after the end of this one.
    now[0] += 599
    harness.upkeep.look(harness.tables)
    assert harness.upkeep._threads == [under_way]
    now[0] += 1
    harness.upkeep.look(harness.tables)
    assert harness.upkeep._threads != [under_way]
    harness.upkeep.end(LIMIT_S)


def test_where_it_is_off_nothing_is_maintained():
    harness = Harness(FakeTable("public.a"), maintenance_interval_s=None)
    harness.round()
    harness.finish()
    assert harness.facts == []


def test_beside_the_stream_one_table_is_maintained_at_a_time_and_at_the_end_of_a_run_several():
    both = threading.Barrier(2, timeout=LIMIT_S)
    one, two = FakeTable("public.a", both.wait), FakeTable("public.b", both.wait)
    # Each waits for the other one.
    harness = Harness(one, two, threads=2)
    harness.finish()
    assert (one.maintained, two.maintained) == (1, 1)
    assert {(name, POOL) for name in ("maintenance-0", "maintenance-1")} == set(harness.spark.said)
    alone = FakeTable("public.c", lambda: time.sleep(0))
    harness = Harness(alone, threads=2)
    harness.round()
    assert {name for name, _ in harness.spark.said} == {"maintenance-0"}


def test_a_table_that_gets_changes_is_waited_for():
    table = FakeTable("public.a")
    harness = Harness(table)
    with table.busy:
        harness.upkeep._due_at = time.monotonic()
        harness.upkeep.look(harness.tables)
        assert table.maintained == 0
    harness.upkeep._wait(threading.Event())
    assert table.maintained == 1


def test_a_commit_of_another_process_ends_the_mirror_and_the_round():
    fenced, after_it = FakeTable("public.a", fail(FencedError("another one"))), FakeTable("public.b")
    harness = Harness(fenced, after_it)
    harness.round()
    with pytest.raises(FencedError):
        harness.upkeep.look(harness.tables)
    assert after_it.maintained == 0
    with pytest.raises(FencedError):
        harness.finish()


def test_a_mirror_that_ends_cancels_what_is_under_way_and_begins_no_other_table():
    begun = threading.Event()
    harness = Harness()

    def until_cancelled() -> None:
        begun.set()
        assert harness.spark.cancelled.wait(LIMIT_S)
        raise AnalysisException("cancelled")

    long, next_one = FakeTable("public.a", until_cancelled), FakeTable("public.b")
    harness.tables = cast("list[TableMirror]", (long, next_one))
    harness.upkeep._due_at = time.monotonic()
    harness.upkeep.look(harness.tables)
    assert begun.wait(LIMIT_S)
    harness.upkeep.end(LIMIT_S)
    # What was cancelled did not fail.
    assert (harness.upkeep._is_under_way, next_one.maintained, harness.facts) == (False, 0, [])


def test_a_mirror_that_ends_does_not_wait_for_ever():
    go_on = threading.Event()
    harness = Harness(FakeTable("public.a", lambda: go_on.wait(LIMIT_S)))
    harness.upkeep._due_at = time.monotonic()
    harness.upkeep.look(harness.tables)
    harness.upkeep.end(0.01)
    assert harness.upkeep._is_under_way
    go_on.set()
    harness.upkeep.end(LIMIT_S)
    assert not harness.upkeep._is_under_way


def test_the_end_of_a_run_that_is_stopped_does_not_wait_for_its_maintenance():
    go_on, stop = threading.Event(), threading.Event()

    def stopped() -> None:
        stop.set()
        go_on.wait(LIMIT_S)

    harness = Harness(FakeTable("public.a", stopped))
    harness.upkeep.finish(harness.tables, stop)
    assert harness.upkeep._is_under_way
    go_on.set()
    harness.upkeep.end(LIMIT_S)


def test_a_table_that_was_rolled_back_is_brought_up_to_date_and_the_others_are_maintained():
    def rolled_back() -> None:
        raise RolledBackError("t was rolled back", hint="ask who")

    table, other = FakeTable("public.a", rolled_back), FakeTable("public.b")
    harness = Harness(table, other)
    harness.round()
    assert harness.caught_up == ["shop.public.a"]
    assert (table.forgotten, other.maintained) == (1, 1)
    assert TableRolledBack("public.a", "t was rolled back", "ask who") in harness.facts


def test_whatever_a_table_raises_leaves_the_others_their_maintenance():
    def unreadable() -> None:
        raise OSError("Could not read encrypted metadata")

    other = FakeTable("public.b")
    harness = Harness(FakeTable("public.a", unreadable), other)
    harness.round()
    assert other.maintained == 1
    (failed,) = [fact for fact in harness.facts if isinstance(fact, TableFailed)]
    assert failed.message == "maintenance: Unexpected OSError: Could not read encrypted metadata"
