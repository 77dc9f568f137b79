import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException

from cdcd.core.errors import CdcdError, FatalError, SinkUnavailableError, TransientError
from cdcd.core.records.gaps import Aside
from cdcd.mirror.stream.consistency import Mark
from cdcd.mirror.stream.forms import UnknownFormError
from cdcd.mirror.stream.tables import ATTEMPTS
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, UnknownLabelError
from cdcd.mirror.targets.state import OriginError, RolledBackError
from cdcd.mirror.watching.progress import (
    Progress,
    TableFailed,
    TableResumed,
    TableRolledBack,
    TableStopped,
)
from tests.unit.mirror.stream.mirror_of_fakes import FakeTable, Harness


def test_a_table_that_cannot_follow_stops_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    bad, good = FakeTable("public.a", FatalError("no", hint="do this"), 99), FakeTable("public.b")
    harness = Harness(monkeypatch, bad, good)
    harness.advance()
    harness.advance()
    assert harness.done() == [["public.b"], ["public.b"]]
    assert TableStopped("public.a", "no", "do this") in harness.facts
    assert list(harness.mirror.stopped) == ["shop.public.a"]
    assert bad.forgotten == 1


def test_what_stopped_is_recorded_once_until_it_goes_on(monkeypatch: pytest.MonkeyPatch):
    bad, good = FakeTable("public.a", FatalError("no", hint="do this"), 1), FakeTable("public.b")
    harness = Harness(monkeypatch, bad, good)
    harness.advance()
    harness.advance()
    ((topic, stop),) = harness.noted[0].items()
    assert topic == "shop.public.a"
    assert stop is not None
    assert (stop.table, stop.waits, stop.message, stop.hint) == ("public.a", False, "no", "do this")
    assert len(harness.noted) == 1
    # As after a start, which tries it again.
    harness.mirror.stopped.clear()
    harness.advance()
    assert harness.noted[1:] == [{"shop.public.a": None}]
    assert [fact for fact in harness.facts if isinstance(fact, TableResumed)] == [TableResumed("public.a")]


def test_what_cannot_be_recorded_is_said_and_recorded_after_the_next_batch(monkeypatch: pytest.MonkeyPatch):
    bad = FakeTable("public.a", FatalError("no"), 1)
    harness = Harness(monkeypatch, bad, FakeTable("public.b"))
    harness.fails_to_note = True
    monkeypatch.setattr(
        harness.mirror._tables, "_target", SimpleNamespace(own_name=lambda name: f"cdcd.{name}")
    )
    harness.advance()
    (said,) = [fact for fact in harness.facts if isinstance(fact, TableFailed) and not fact.stopped]
    assert (said.table, said.message) == ("cdcd.stopped", "stopped tables are not recorded: no")
    harness.advance()
    assert [list(noted) for noted in harness.noted] == [["shop.public.a"]] * 2


def test_what_may_pass_is_tried_again_from_what_the_target_has(monkeypatch: pytest.MonkeyPatch):
    table = FakeTable("public.a", AnalysisException("conflict"), ATTEMPTS - 1)
    harness = Harness(monkeypatch, table)
    harness.advance()
    assert harness.done() == [["public.a"]]
    assert table.forgotten == ATTEMPTS - 1
    assert [fact.stopped for fact in harness.facts if isinstance(fact, TableFailed)] == [False] * (
        ATTEMPTS - 1
    )


def test_what_does_not_pass_stops_the_table(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a", AnalysisException("conflict"), 99))
    harness.advance()
    assert list(harness.mirror.stopped) == ["shop.public.a"]


@pytest.mark.parametrize(
    "error", [OSError("no footer"), MemoryError(), ValueError("Parquet magic bytes"), KeyError("x")]
)
def test_whatever_a_table_raises_stops_that_table_only(monkeypatch: pytest.MonkeyPatch, error: Exception):
    harness = Harness(monkeypatch, FakeTable("public.a", error, 99), FakeTable("public.b"))
    harness.advance()
    assert harness.done() == [["public.b"]]
    (stopped,) = harness.mirror.stopped.values()
    assert stopped.message.startswith(f"Unexpected {type(error).__name__}: ")
    assert "--snapshot" in stopped.hint


def test_a_table_that_was_rolled_back_is_looked_at_again_and_goes_on(monkeypatch: pytest.MonkeyPatch):
    table = FakeTable("public.a", RolledBackError("t was rolled back", hint="ask who"), 1)
    harness = Harness(monkeypatch, table)
    harness.advance()
    assert harness.done() == [["public.a"]]
    assert table.forgotten == 1
    assert TableRolledBack("public.a", "t was rolled back", "ask who") in harness.facts


def test_a_table_that_is_rolled_back_again_and_again_stops(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a", RolledBackError("t was rolled back"), 99))
    harness.advance()
    assert [error.message for error in harness.mirror.stopped.values()] == ["t was rolled back"]


def test_kafka_that_is_away_ends_the_batch_for_all(monkeypatch: pytest.MonkeyPatch):
    away = AnalysisException("org.apache.kafka.common.errors.TimeoutException: Timed out")
    harness = Harness(monkeypatch, FakeTable("public.a", away, 99), FakeTable("public.b"))
    with pytest.raises(SinkUnavailableError):
        harness.advance()
    assert harness.mirror.stopped == {}


def test_a_table_whose_form_is_not_described_yet_is_tried_again_with_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
):
    unknown = UnknownFormError("public.a", ["0f"])
    harness = Harness(monkeypatch, FakeTable("public.a", unknown), FakeTable("public.b"))
    harness.advance()
    harness.advance()
    assert harness.done() == [["public.b"], ["public.a", "public.b"]]
    assert harness.mirror.stopped == {}
    # A run that ends says that it is behind.
    harness = Harness(monkeypatch, FakeTable("public.a", unknown))
    harness.mirror._tables.once = True
    harness.advance()
    assert list(harness.mirror.stopped.values()) == [unknown]


def give_database(harness: Harness) -> None:
    """Give the mirror a source, which it can read tables from again."""
    harness.mirror._tables._source = cast("Any", "a database")
    harness.mirror._tables._spark = cast("Any", SimpleNamespace(newSession=lambda: None))


@pytest.mark.parametrize(
    "error",
    [
        IncompatibleSchemaError("public.a", "n changed", "do this"),
        UnknownLabelError("public.a", "no such label", "do this"),
        OriginError("The topic was made again.", hint="do this"),
    ],
)
def test_a_table_that_cannot_follow_is_read_again_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, error: CdcdError
):
    read: list[str] = []
    monkeypatch.setattr("cdcd.mirror.stream.tables.read_again", lambda *given: read.append(given[4]))

    def harness(**settings: Any) -> Harness:
        made = Harness(monkeypatch, FakeTable("public.a", error), **settings)
        give_database(made)
        made.advance()
        return made

    assert harness(reload=True).done() == [["public.a"]]
    assert read == ["public.a"]
    for stops in ({}, {"reload": True, "reload_for": (("public.*", False),)}):
        assert list(harness(**stops).mirror.stopped.values()) == [error]
    assert read == ["public.a"]


@pytest.mark.parametrize("reload", [False, True])
def test_records_that_are_gone_unread_are_a_reason_to_read_the_table_again(
    monkeypatch: pytest.MonkeyPatch, *, reload: bool
):
    read: list[str] = []
    monkeypatch.setattr("cdcd.mirror.stream.tables.read_again", lambda *given: read.append(given[4]))
    gone = AnalysisException("Some data may have been lost because they are not available in Kafka any more")
    harness = Harness(monkeypatch, FakeTable("public.a", gone), FakeTable("public.b"), reload=reload)
    give_database(harness)
    harness.advance()
    assert read == ["public.a"] * reload
    assert harness.done() == [["public.a", "public.b"] if reload else ["public.b"]]
    if not reload:
        (error,) = harness.mirror.stopped.values()
        assert isinstance(error, OriginError)
        assert "are gone" in error.message
        assert "--snapshot public.a " in error.hint


def reloading(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, times: int, *others: FakeTable
) -> tuple[Harness, list[str]]:
    """A mirror of public.a, which cannot follow, and of `others`. Reading it again fails so often. With the tables that
    were read."""
    read: list[str] = []

    def read_again(*given: Any) -> None:
        read.append(given[4])
        if len(read) <= times:
            raise failure
        table.goes_on()

    monkeypatch.setattr("cdcd.mirror.stream.tables.read_again", read_again)
    table = FakeTable("public.a", IncompatibleSchemaError("public.a", "n changed", "do this"), 99)
    harness = Harness(monkeypatch, table, *others, reload=True)
    give_database(harness)
    harness.advance()
    return harness, read


def test_a_table_that_spark_fails_to_read_again_is_tried_once_more(monkeypatch: pytest.MonkeyPatch):
    lost = PySparkException("Job aborted: ExecutorLostFailure")
    harness, read = reloading(monkeypatch, lost, 1, FakeTable("public.b"))
    assert harness.mirror.stopped == {}
    assert read == ["public.a", "public.a"]
    assert harness.done() == [["public.a", "public.b"]]
    (said,) = [fact for fact in harness.facts if isinstance(fact, TableFailed) and not fact.stopped]
    assert (said.table, said.message) == (
        "public.a",
        "It was not read again: Job aborted: ExecutorLostFailure",
    )


@pytest.mark.parametrize("failure", [PySparkException("No space left"), Py4JError("No space left")])
def test_a_table_that_spark_cannot_read_again_stops_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
):
    harness, read = reloading(monkeypatch, failure, 99, FakeTable("public.b"))
    assert harness.done() == [["public.b"]]
    (error,) = harness.mirror.stopped.values()
    assert error.message == "It was not read again: No space left"
    assert "--snapshot public.a " in error.hint
    assert read == ["public.a"] * (ATTEMPTS - 1)


def test_kafka_that_is_away_while_a_table_is_read_again_ends_the_batch_for_all(
    monkeypatch: pytest.MonkeyPatch,
):
    away = PySparkException("org.apache.kafka.common.errors.TimeoutException: Timed out")
    with pytest.raises(SinkUnavailableError):
        reloading(monkeypatch, away, 99, FakeTable("public.b"))


def test_a_batch_passes_over_a_table_that_is_maintained_which_catches_up_afterwards(
    monkeypatch: pytest.MonkeyPatch,
):
    one, two = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, one, two)
    mirror = harness.mirror
    monkeypatch.setattr(mirror, "_catch_up", harness.advance)
    # GIVEN the maintenance of one table, WHEN batches come, THEN the other one gets its changes
    with one.busy:
        harness.advance()
        harness.advance()
        mirror._look_after_passed_over()
    assert harness.done() == [["public.b"], ["public.b"]]
    # WHEN the maintenance has ended, THEN the table catches up without a batch, once
    mirror._look_after_passed_over()
    mirror._look_after_passed_over()
    assert harness.done()[2:] == [["public.a", "public.b"]]


@pytest.mark.parametrize("consistent", [True, False])
def test_a_common_lsn_and_the_end_of_a_run_wait_for_a_table_that_is_maintained(
    monkeypatch: pytest.MonkeyPatch, consistent: bool
):
    one, two = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, one, two, consistent=consistent)
    harness.mirror._tables.once = not consistent
    harness.mirror._cuts.take(Mark(42, {topic: {0: 5} for topic in harness.ends}))
    advanced = two.advance

    def then_free(*given: Any) -> Progress:
        one.busy.release()
        return advanced(*given)

    # GIVEN the maintenance of one table, which ends when the other one has got its changes
    monkeypatch.setattr(two, "advance", then_free)
    one.busy.acquire()
    harness.advance()
    assert harness.done() == [["public.a", "public.b"]]


def test_after_a_failure_all_tables_are_looked_at_anew_but_one_that_is_maintained(
    monkeypatch: pytest.MonkeyPatch,
):
    one, two = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, one, two)
    harness.advance()
    stop = threading.Event()

    def fail(*_: Any) -> None:
        stop.set()
        raise TransientError("away")

    monkeypatch.setattr(harness.mirror, "_run_query", fail)
    with one.busy:
        harness.mirror.run(once=False, stop=stop)
    assert (one.forgotten, two.forgotten) == (0, 1)


def test_tables_take_turns_with_as_many_sessions_as_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch):
    tables = [FakeTable(f"public.{name}") for name in "abcd"]
    harness = Harness(monkeypatch, *tables, threads=1)
    harness.advance()
    harness.advance()
    assert len({id(session) for table in tables for session in table.sessions}) == 1


def test_a_table_that_the_daemon_has_set_aside_is_stopped_by_name_until_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
):
    one, two = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, one, two)
    tables = harness.mirror._tables
    # WHEN the schemas topic says so, and says so again
    for _ in range(2):
        tables.set_aside({100: Aside(100, "public.a", 256, "size"), 7: Aside(7, "public.c", 1, "topic")})
        harness.advance()
    # THEN what the topics have is applied, and the table counts as stopped
    assert harness.done() == [["public.a", "public.b"]] * 2
    (stopped,) = [fact for fact in harness.facts if isinstance(fact, TableStopped)]
    assert stopped.table == "public.a"
    assert stopped.message == (
        "The daemon has set the table aside (size), so that changes of it since 0/100 are in no topic."
    )
    assert "cdcd tables" in stopped.hint
    assert list(harness.mirror.stopped) == ["shop.public.a"]
    ((topic, stop),) = harness.noted[0].items()
    assert stop is not None
    assert (topic, stop.waits, len(harness.noted)) == ("shop.public.a", False, 1)
    # WHEN the table has come back
    tables.set_aside({})
    harness.advance()
    assert [fact for fact in harness.facts if isinstance(fact, TableResumed)] == [TableResumed("public.a")]
    assert harness.noted[1:] == [{"shop.public.a": None}]
    assert harness.mirror.stopped == {}


def test_a_table_that_is_set_aside_is_not_in_the_common_points(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a"), FakeTable("public.b"), consistent=True)
    harness.mirror._tables.set_aside({101: Aside(101, "public.b", 16, "topic")})
    harness.mirror._cuts.take(Mark(42, {}))
    harness.advance()
    assert harness.published == [(42, ("public.b",))]


def test_a_table_that_stopped_by_itself_stays_stopped_when_it_is_set_aside_no_more(
    monkeypatch: pytest.MonkeyPatch,
):
    harness = Harness(monkeypatch, FakeTable("public.a", FatalError("no"), 99), FakeTable("public.b"))
    harness.advance()
    harness.mirror._tables.set_aside({100: Aside(100, "public.a", 16, "value")})
    harness.mirror._tables.set_aside({})
    assert [error.message for error in harness.mirror.stopped.values()] == ["no"]
    assert [fact for fact in harness.facts if isinstance(fact, TableResumed)] == []
