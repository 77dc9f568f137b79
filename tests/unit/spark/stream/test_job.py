import re
import threading
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from cdcd.errors import CdcdError, FatalError, SinkUnavailableError, TransientError
from cdcd.formats.schemas import TableForm
from cdcd.rows.relations import ColumnForm
from cdcd.spark.kafka import KafkaSource
from cdcd.spark.platform.kafka_admin import TopicFacts
from cdcd.spark.stream.consistency import NOTHING, Covered, Mark
from cdcd.spark.stream.forms import UnknownFormError
from cdcd.spark.stream.job import WAITS_S, Mirror
from cdcd.spark.stream.points import Point
from cdcd.spark.stream.settings import MirrorSettings
from cdcd.spark.stream.tables import ATTEMPTS
from cdcd.spark.stream.topics import policy_problem
from cdcd.spark.targets.evolution import IncompatibleSchemaError, UnknownLabelError
from cdcd.spark.targets.pinned import Tag
from cdcd.spark.targets.state import OriginError
from cdcd.spark.watching.progress import (
    BatchDone,
    Fact,
    Progress,
    Retrying,
    SetChanged,
    TableFailed,
    TableResumed,
    TableStopped,
    TopicUnfit,
    Unmirrored,
)
from cdcd.spark.watching.stops import Stop


class FakeTable:
    """A table that fails so many times with an error, and then goes on."""

    def __init__(self, name: str, error: Exception | None = None, times: int = 1) -> None:
        self.table = name
        self.busy = threading.Lock()
        self.advanced: list[int | None] = []
        self.tags: list[Tag | None] = []
        self.forgotten = 0
        self._error = error
        self._times = times

    def advance(self, ends: Mapping[int, int], batch_id: int, cut: int | None, _tip: Any) -> Progress:
        if self._error is not None and self._times > 0:
            self._times -= 1
            raise self._error
        self.advanced.append(cut)
        return Progress(self.table, records=1, changes=1)

    def pin(self, tag: Tag | None) -> dict[str, int]:
        self.tags.append(tag)
        return {self.table: 7}

    def forget(self) -> None:
        self.forgotten += 1

    def may_lack(self, ends: Mapping[int, int]) -> bool:
        return True


class FakeAdmin:
    """Knows two topics; `policies` are those that somebody may see."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.policies: dict[str, str] = {}

    def facts(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        self.asked.append(list(topics))
        return {topic: TopicFacts(f"id of {topic}", {0: 0}) for topic in topics if topic != "shop.gone"}

    def cleanup_policies(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: self.policies[topic] for topic in topics if topic in self.policies}


class Harness:
    """A mirror of tables that are fakes, `public.a` and `public.b`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tables: FakeTable, **settings: Any) -> None:
        self.admin = FakeAdmin()
        monkeypatch.setattr("cdcd.spark.stream.job.Admin", lambda *_: self.admin)
        self.facts: list[Fact] = []
        self.fails_to_note = False
        self.tag: Tag | None = None
        self.published: list[tuple[int, tuple[str, ...]]] = []
        self.versions: list[dict[str, int]] = []
        given = MirrorSettings(
            "shop", KafkaSource("b:1"), "shop", "shop.schemas", "shop.checkpoint", "/c", **settings
        )
        self.mirror = Mirror(cast("Any", None), given, cast("Any", None), self.facts.append)
        fakes = {f"shop.{table.table}": table for table in tables}
        for number, table in enumerate(tables):
            schema, _, name = table.table.partition(".")
            form = TableForm(
                schema, name, f"shop.{table.table}", (), (ColumnForm("x", 1, "text", 25, -1, "text"),)
            )
            self.mirror._descriptions._take(form.record()[1], f"shop.schemas[0]@{number}")
        monkeypatch.setattr(self.mirror._tables, "_new_table", fakes.__getitem__)
        self.noted: list[dict[str, Stop | None]] = []
        monkeypatch.setattr(self.mirror._tables, "_write_stops", self._note)
        monkeypatch.setattr(self.mirror, "_points", self)
        self.ends = {topic: {0: 5} for topic in fakes}

    def _note(self, changes: Mapping[str, Stop | None]) -> None:
        self.noted.append(dict(changes))
        if self.fails_to_note:
            self.fails_to_note = False
            raise AnalysisException("no")

    def begin(self, commit_lsn: int) -> Point:
        """As `Points`."""
        return Point(commit_lsn, datetime.now(UTC), self.tag)

    def list_(
        self, point: Point, _batch_id: int, without: tuple[str, ...], versions: Mapping[str, int]
    ) -> None:
        """As `Points`."""
        self.published.append((point.commit_lsn, without))
        self.versions.append(dict(versions))

    def advance(self) -> None:
        self.mirror._advance(self.ends, 1)

    def done(self) -> list[list[str]]:
        return [[table.table for table in fact.tables] for fact in self.facts if isinstance(fact, BatchDone)]


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


def test_kafka_that_is_away_ends_the_batch_for_all(monkeypatch: pytest.MonkeyPatch):
    away = AnalysisException("org.apache.kafka.common.errors.TimeoutException: Timed out")
    harness = Harness(monkeypatch, FakeTable("public.a", away, 99), FakeTable("public.b"))
    with pytest.raises(SinkUnavailableError):
        harness.advance()
    assert harness.mirror.stopped == {}


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
    monkeypatch.setattr("cdcd.spark.stream.job.newest_checkpoints", lambda *_: (Covered(42, 50), NOTHING))
    harness.mirror._take_mark(settle=False)
    (mark,) = harness.mirror._cuts._marks
    assert sorted(mark.high) == ["shop.public.a", "shop.public.new", "shop.schemas"]


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


@pytest.mark.parametrize(
    "error",
    [
        IncompatibleSchemaError("public.a", "n changed", "do this"),
        UnknownLabelError("public.a", "no such label", "do this"),
        OriginError("The topic was made anew.", hint="do this"),
    ],
)
def test_a_table_that_cannot_follow_is_read_again_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, error: CdcdError
):
    read: list[str] = []
    monkeypatch.setattr("cdcd.spark.stream.tables.read_again", lambda *given: read.append(given[2]))

    def harness(**settings: Any) -> Harness:
        made = Harness(monkeypatch, FakeTable("public.a", error), **settings)
        made.mirror._tables._source = cast("Any", "a database")
        made.mirror._tables._spark = cast("Any", SimpleNamespace(newSession=lambda: None))
        made.advance()
        return made

    assert harness(reload=True).done() == [["public.a"]]
    assert read == ["public.a"]
    for stops in ({}, {"reload": True, "reload_for": (("public.*", False),)}):
        assert list(harness(**stops).mirror.stopped.values()) == [error]
    assert read == ["public.a"]


def test_a_topic_without_a_description_is_named_once(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a"))
    for _ in range(2):
        harness.mirror._topics.warn(["shop.public.a", "shop.other.x"])
    assert [fact.topic for fact in harness.facts if isinstance(fact, Unmirrored)] == ["shop.other.x"]


def test_a_description_that_cannot_be_read_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch)
    harness.mirror._descriptions._take(b"{}", "shop.schemas[0]@7")
    harness.mirror._topics.warn([])
    assert [fact.topic for fact in harness.facts if isinstance(fact, Unmirrored)] == ["shop.schemas[0]@7"]


def test_topics_that_hold_no_rows_are_not_read(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, not_tables=frozenset({"shop.message", "shop.dead.letter"}))
    pattern = re.compile(harness.mirror._topics.pattern())
    assert pattern.fullmatch("shop.public.orders")
    assert pattern.fullmatch("shop.public.a.b")
    assert pattern.fullmatch("shop.schemas"), "a description may come alone"
    for other in ("shop.checkpoint", "shop.message", "shop.dead.letter", "shopping.public.x"):
        assert not pattern.fullmatch(other)


def test_with_consistent_batches_the_checkpoint_moves_the_stream(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, consistent=True)
    assert re.fullmatch(harness.mirror._topics.pattern(), "shop.checkpoint")


def test_a_stream_that_began_with_the_checkpoint_keeps_it_without_consistent_batches(
    monkeypatch: pytest.MonkeyPatch,
):
    pattern = Harness(monkeypatch).mirror._topics.pattern(["shop.checkpoint", "shop.public.a"])
    assert re.fullmatch(pattern, "shop.checkpoint")
    assert re.fullmatch(pattern, "shop.public.b")


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
    monkeypatch.setattr("cdcd.spark.stream.job.RETRY_FIRST_S", 0.001)
    harness.mirror.run(once=False, stop=stop)
    assert attempts == [False, False]
    assert [fact.wait_s for fact in harness.facts if isinstance(fact, Retrying)] == [0.001, 0.002]
    with pytest.raises(TransientError):
        harness.mirror.run(once=True, stop=threading.Event())


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


def test_topics_are_looked_up_together_when_their_tables_begin_and_alone_when_one_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
):
    harness = Harness(monkeypatch, FakeTable("public.a"), FakeTable("public.b"))
    harness.advance()
    harness.advance()
    mirror, a, b = harness.mirror, "shop.public.a", "shop.public.b"
    assert harness.admin.asked == [[a, b]]
    assert mirror._topics.facts_of(a) == TopicFacts(f"id of {a}", {0: 0})
    assert mirror._topics.facts_of(b) == TopicFacts(f"id of {b}", {0: 0})
    assert harness.admin.asked == [[a, b]]
    mirror._topics.facts_of(a)
    assert mirror._topics.facts_of("shop.gone") == TopicFacts(None, {})
    assert harness.admin.asked == [[a, b], [a], ["shop.gone"]]


def test_topics_that_let_records_go_are_named_once(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a"), FakeTable("public.b"))
    harness.admin.policies = {
        "shop.public.a": "compact,delete", "shop.public.b": "delete", "shop.schemas": "delete",
    }  # fmt: skip
    harness.mirror._topics.look_at_policies(["shop.schemas"])
    harness.advance()
    harness.advance()
    found = [(fact.topic, fact.hint) for fact in harness.facts if isinstance(fact, TopicUnfit)]
    assert [topic for topic, _ in found] == ["shop.schemas", "shop.public.a"]
    assert found[0][1].endswith("--entity-name shop.schemas --add-config cleanup.policy=compact")
    assert policy_problem("shop.schemas", "compact", is_table=False) is None
    assert policy_problem("shop.public.c", "", is_table=True) is None


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
    monkeypatch.setattr("cdcd.spark.stream.job.time.monotonic", lambda: now[0])
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
    monkeypatch.setattr("cdcd.spark.stream.job.SETTLE_S", 0.0)
    harness.advance()
    harness.mirror._end_waiting(threading.Event())
    assert list(harness.mirror.stopped) == ["shop.public.a"]
    assert "Start the daemon" in harness.mirror.stopped["shop.public.a"].hint


class FakeQuery:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.stopped = False

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
        return self.stopped

    def stop(self) -> None:
        self.stopped = True


def test_a_failure_beside_the_query_ends_the_query_before_another_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
):
    harness = Harness(monkeypatch, FakeTable("public.a"))
    query, mirror = FakeQuery(), harness.mirror

    class Stream:
        def __getattr__(self, _: str) -> Any:
            return lambda *_args, **_more: self

        def start(self) -> FakeQuery:
            return query

    stream: Any = Stream()
    stream.writeStream = stream
    mirror._spark = cast("Any", SimpleNamespace(readStream=stream))
    monkeypatch.setattr(mirror._descriptions, "refresh", lambda: None)

    def away() -> None:
        if mirror._waiting:
            raise SinkUnavailableError("away", hint="")

    monkeypatch.setattr(mirror._tables, "read_stops", lambda: None)
    monkeypatch.setattr(mirror, "_topics_before", lambda: ())
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
