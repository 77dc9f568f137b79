import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.core.errors import FatalError, SinkUnavailableError, TransientError
from cdcd.mirror.stream.consistency import NOTHING, Covered, Mark
from cdcd.mirror.stream.job import WAITS_S
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.watching.progress import (
    Progress,
    Retrying,
    SetChanged,
    TableFailed,
    TableStopped,
)
from cdcd.mirror.watching.stops import Stop
from tests.unit.mirror.stream.mirror_of_fakes import FakeTable, Harness


def test_a_consistent_mirror_waits_for_a_common_point(monkeypatch: pytest.MonkeyPatch):
    one, two = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, one, two, consistent=True)
    harness.advance()
    assert harness.done() == []
    harness.mirror._cuts.take(Mark(42, {topic: {0: 5} for topic in harness.ends}))
    harness.advance()
    assert (one.advanced, two.advanced, harness.published) == ([42], [42], [(42, ())])


def test_a_table_that_stops_leaves_the_set_of_a_consistent_mirror_which_says_so(
    monkeypatch: pytest.MonkeyPatch,
):
    one, two = FakeTable("public.a", FatalError("no"), 99), FakeTable("public.b")
    harness = Harness(monkeypatch, one, two, consistent=True)
    for lsn in (42, 43):
        harness.mirror._cuts.take(Mark(lsn, {}))
        harness.advance()
    assert (two.advanced, harness.published) == ([42, 43], [(42, ("public.a",)), (43, ("public.a",))])
    assert [fact for fact in harness.facts if isinstance(fact, SetChanged)] == [SetChanged(42, ("public.a",))]
    # One that failed comes back, and that is said too.
    del harness.mirror.stopped["shop.public.a"]
    one._times = 0
    harness.mirror._cuts.take(Mark(44, {}))
    harness.advance()
    assert harness.published[-1] == (44, ())
    assert harness.facts[-2] == SetChanged(44, ())


def test_no_common_point_before_the_descriptions_are_read_that_were_there(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a"), consistent=True)
    harness.mirror._cuts.take(Mark(42, {"shop.schemas": {0: 7}}))
    harness.mirror._descriptions._next = {0: 6}
    harness.advance()
    assert harness.published == []
    harness.mirror._descriptions._next = {0: 7}
    harness.advance()
    assert harness.published == [(42, ())]


def test_a_mark_looks_at_topics_that_are_not_described_yet_and_at_the_descriptions(
    monkeypatch: pytest.MonkeyPatch,
):
    class FakeAdmin:
        def topics(self) -> list[str]:
            return [
                "other",
                "shop.checkpoint",
                "shop.public.a",
                "shop.public.new",
                "shop.public.x",
                "shop.schemas",
            ]

        def ends(self, topics: list[str], *, committed: bool = True) -> dict[str, dict[int, int]]:
            return {topic: {0: 5} for topic in topics}

    harness = Harness(monkeypatch, FakeTable("public.a"), FakeTable("public.x"), exclude=("public.x",))
    harness.mirror._admin = harness.mirror._topics._admin = cast("Any", FakeAdmin())
    monkeypatch.setattr(harness.mirror._descriptions, "refresh", lambda: None)
    monkeypatch.setattr("cdcd.mirror.stream.job.newest_checkpoints", lambda *_: (Covered(42, 50), NOTHING))
    harness.mirror._take_mark(settle=False)
    (mark,) = harness.mirror._cuts._marks
    assert sorted(mark.high) == ["shop.public.a", "shop.public.new", "shop.schemas"]


def test_what_passes_is_waited_for_but_not_by_a_run_that_ends(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch)
    stop = threading.Event()
    attempts: list[bool] = []

    def fail(once: bool, _stop: threading.Event) -> None:
        attempts.append(once)
        if len(attempts) == 2:
            stop.set()
        raise TransientError("away")

    monkeypatch.setattr(harness.mirror, "_run_query", fail)
    monkeypatch.setattr("cdcd.mirror.stream.job.RETRY_FIRST_S", 0.001)
    harness.mirror.run(once=False, stop=stop)
    assert attempts == [False, False]
    assert [fact.wait_s for fact in harness.facts if isinstance(fact, Retrying)] == [0.001, 0.002]
    with pytest.raises(TransientError):
        harness.mirror.run(once=True, stop=threading.Event())


def test_a_point_has_the_versions_of_the_tables_that_are_as_of_it(monkeypatch: pytest.MonkeyPatch):
    bad, good, ahead = (
        FakeTable("public.a", FatalError("no"), 99),
        FakeTable("public.b"),
        FakeTable("public.c"),
    )
    monkeypatch.setattr(ahead, "advance", lambda *_: Progress("public.c", ahead=True))
    harness = Harness(monkeypatch, bad, good, ahead, consistent=True)
    harness.tag = Tag(42, 7)
    harness.mirror._cuts.take(Mark(42, {topic: {0: 5} for topic in harness.ends}))
    harness.advance()
    assert (harness.published, harness.versions) == ([(42, ("public.a", "public.c"))], [{"public.b": 7}])
    assert (bad.tags, good.tags, ahead.tags) == ([], [Tag(42, 7)], [])


def test_changes_that_wait_for_a_checkpoint_are_tried_again_and_named(monkeypatch: pytest.MonkeyPatch):
    table = FakeTable("public.a")
    harness = Harness(monkeypatch, table)
    mirror = harness.mirror
    behind = [True]
    monkeypatch.setattr(table, "behind", lambda _: behind[0], raising=False)
    monkeypatch.setattr(table, "advance", lambda *_: Progress("public.a", held=3 if behind[0] else 0))
    again: list[int] = []

    def catch_up() -> None:
        again.append(1)
        harness.advance()

    monkeypatch.setattr(mirror, "_catch_up", catch_up)
    now = [100.0]
    monkeypatch.setattr("cdcd.mirror.stream.job.time.monotonic", lambda: now[0])
    harness.advance()
    mirror._look_after_waiting()
    assert [fact for fact in harness.facts if isinstance(fact, TableFailed)] == []
    now[0] += WAITS_S + 1
    mirror._look_after_waiting()
    (said,) = [fact for fact in harness.facts if isinstance(fact, TableFailed)]
    assert (said.table, said.stopped) == ("public.a", False)
    assert "3 changes wait" in said.message
    assert "shop.checkpoint" in said.message
    # With a checkpoint they are in, and nothing is tried any more.
    behind[0] = False
    mirror._look_after_waiting()
    mirror._look_after_waiting()
    assert len(again) == 3


def test_a_run_that_ends_stops_a_table_of_which_changes_wait(monkeypatch: pytest.MonkeyPatch):
    table = FakeTable("public.a")
    harness = Harness(monkeypatch, table)
    monkeypatch.setattr(table, "behind", lambda _: True, raising=False)
    monkeypatch.setattr(table, "advance", lambda *_: Progress("public.a", held=3))
    monkeypatch.setattr("cdcd.mirror.stream.job.SETTLE_S", 0.0)
    harness.advance()
    harness.mirror._end_waiting(threading.Event())
    assert list(harness.mirror.stopped) == ["shop.public.a"]
    assert "Start the daemon" in harness.mirror.stopped["shop.public.a"].hint


@pytest.mark.parametrize(
    ("ends", "forgotten"),
    [({0: 5}, 0), ({0: 6}, 0), ({0: 5, 1: 1}, 0), ({0: 4}, 1), ({}, 1), ({1: 9}, 1)],
)
def test_a_table_whose_offsets_fell_since_the_batch_before_looks_at_its_topic_anew(
    monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], forgotten: int
):
    table, other = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, table, other)
    harness.advance()
    for batch in (harness.ends, {**harness.ends, "shop.public.a": ends}):
        harness.mirror._look_for_deleted(batch)
    assert (table.forgotten, other.forgotten) == (forgotten, 0)
    assert harness.mirror.stopped == {}


@pytest.mark.parametrize("once", [False, True])
def test_a_table_whose_topic_is_gone_does_not_go_on_and_the_others_do(
    monkeypatch: pytest.MonkeyPatch, *, once: bool
):
    table, other = FakeTable("public.a"), FakeTable("public.b")
    harness = Harness(monkeypatch, table, other)
    harness.mirror._tables.once = once
    harness.advance()
    harness.mirror._look_for_deleted(dict(harness.ends))
    gone = harness.ends.pop("shop.public.a")
    harness.mirror._look_for_deleted(harness.ends)
    harness.advance()
    (failed,) = [fact for fact in harness.facts if isinstance(fact, TableFailed)]
    assert (failed.table, failed.stopped, failed.message) == (
        "public.a",
        once,
        "The topic shop.public.a was deleted.",
    )
    assert list(harness.mirror.stopped) == ["shop.public.a"] * once
    assert harness.done()[-1] == ["public.b"]
    # The table asks for the topic's id when a topic of that name is there again.
    assert table.forgotten == 1
    harness.ends["shop.public.a"] = gone
    harness.advance()
    assert harness.done()[-1] == (["public.b"] if once else ["public.a", "public.b"])


def test_a_topic_that_is_missing_is_told_at_every_start_as_long_as_its_table_is_there(
    monkeypatch: pytest.MonkeyPatch,
):
    deleted, stopped, dropped, goes_on = map(FakeTable, ("public.a", "public.b", "public.c", "public.d"))
    dropped.is_there = False
    harness = Harness(monkeypatch, deleted, stopped, dropped, goes_on)
    mirror = harness.mirror
    mirror._tables.once = True
    # GIVEN a last batch with the topics of a, c and d. An earlier run stopped the tables b and c
    mirror._before = {topic: end for topic, end in harness.ends.items() if topic != "shop.public.b"}
    for topic in ("shop.public.b", "shop.public.c"):
        mirror._tables._stops.failed(topic, Stop(topic, datetime.now(UTC), False, "no", ""))
    # WHEN the next run begins, and three topics are missing
    harness.admin.there = ["shop.public.d", "other"]
    mirror._look_for_missing()
    # THEN it tells of the two whose tables are there
    told = [(fact.table, fact.message) for fact in harness.facts if isinstance(fact, TableStopped)]
    assert told == [(f"public.{name}", f"The topic shop.public.{name} was deleted.") for name in "ab"]
    assert mirror._tables.held_up == ["shop.public.b", "shop.public.a"]
    # AND a batch does not tell the same again
    mirror._look_for_deleted({"shop.public.d": {0: 6}})
    assert len([fact for fact in harness.facts if isinstance(fact, TableStopped)]) == 2


class FakeQuery:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.stopped = False

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
        return self.stopped

    def stop(self) -> None:
        self.stopped = True


class FakeStream:
    """A stream that takes all that is said of it, and then is the query."""

    def __init__(self, query: FakeQuery) -> None:
        self.writeStream = self
        self.settings: dict[str, Any] = {}
        self._query = query

    def __getattr__(self, _: str) -> Any:
        return lambda *_args, **_more: self

    def option(self, name: str, value: Any) -> "FakeStream":
        self.settings[name] = value
        return self

    def start(self) -> FakeQuery:
        return self._query


def streaming(harness: Harness, monkeypatch: pytest.MonkeyPatch, query: FakeQuery) -> FakeStream:
    """What the mirror's Spark streams, by this query. Nothing was mirrored before."""
    stream, mirror = FakeStream(query), harness.mirror
    mirror._spark = cast("Any", SimpleNamespace(readStream=stream))
    monkeypatch.setattr(mirror._descriptions, "refresh", lambda: None)
    monkeypatch.setattr(mirror._tables, "read_stops", lambda: None)
    monkeypatch.setattr(mirror, "_last_batch", lambda: None)
    monkeypatch.setattr(mirror._upkeep, "finish", lambda *_: None)
    return stream


def test_a_run_has_one_batch_and_a_live_mirror_has_batches_of_limited_size(monkeypatch: pytest.MonkeyPatch):
    limits = {}
    for once in (True, False):
        harness, query = Harness(monkeypatch, FakeTable("public.a")), FakeQuery()
        query.stopped = True
        stream = streaming(harness, monkeypatch, query)
        harness.mirror._run_query(once=once, stop=threading.Event())
        limits[once] = stream.settings.get("maxOffsetsPerTrigger")
    assert limits == {True: None, False: 500_000}


def test_a_failure_beside_the_query_ends_the_query_before_another_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
):
    harness = Harness(monkeypatch, FakeTable("public.a"))
    query, mirror = FakeQuery(), harness.mirror
    streaming(harness, monkeypatch, query)

    def away() -> None:
        if mirror._waiting:
            raise SinkUnavailableError("away", hint="")

    monkeypatch.setattr(mirror, "_catch_up", away)
    # Nothing waits while it starts; then something does, and Kafka is away.
    original = mirror._look_after_waiting

    def wait_now() -> None:
        mirror._waiting = {"shop.public.a": 1}
        original()

    monkeypatch.setattr(mirror, "_look_after_waiting", wait_now)
    with pytest.raises(SinkUnavailableError):
        mirror._run_query(once=False, stop=threading.Event())
    assert query.stopped
