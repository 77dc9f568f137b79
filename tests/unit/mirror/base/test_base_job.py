"""One round of folds: a table that cannot be folded stops by name, and the others go on."""

import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.errors import CdcdError, ConfigError, SinkError, SinkUnavailableError, TransientError
from cdcd.core.records.gaps import Aside
from cdcd.mirror.base import job, plan, topic_folds
from cdcd.mirror.base.checkpoints import Covered
from cdcd.mirror.base.commit import Folded
from cdcd.mirror.base.due import LOOK_S, Known, Lags, LogChanges, at_most, first_waiting, is_due, pause_s
from cdcd.mirror.base.formats import IcebergBase
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.base.kept import KeptFolded
from cdcd.mirror.base.part import FromQuarantine, LacksChangesError, OvertakenError, Place
from cdcd.mirror.base.points import Point
from cdcd.mirror.base.position import Position
from cdcd.mirror.base.replay import InQuarantine
from cdcd.mirror.base.topic_folds import Lake, policy_problem
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import job as log_job
from cdcd.mirror.log import positions
from cdcd.mirror.log.job import Appended
from cdcd.mirror.log.positions import Began, Positions
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.targets.target import LaidOut
from cdcd.mirror.watching.progress import (
    ChangesMissing,
    MirrorStarted,
    Replayed,
    Retrying,
    SetChanged,
    TableFailed,
    TableResumed,
    TableStopped,
)
from cdcd.mirror.watching.stops import Stop


class Forms:
    """Descriptions of tables. Their names are those of their topics."""

    def __init__(self, keyless: str) -> None:
        self._keyless = keyless
        self.ids: dict[str, str] = {}
        self.aside: dict[int, Aside] = {}
        self.returned: dict[int, Aside] = {}

    def refresh(self) -> None:
        """Nothing new is described."""

    def table(self, topic: str) -> str:
        return f"public.{topic}"

    def newest(self, topic: str) -> Any:
        return SimpleNamespace(
            schema=SimpleNamespace(
                key=() if topic == self._keyless else ("id",),
                name=topic,
                oid=len(topic),
                schema_id=self.ids.get(topic, "1"),
            )
        )

    def oid(self, topic: str) -> int:
        return len(topic)

    def former_name(self, schema: Any) -> None:
        return None


class Target:
    """Names of tables are those of their topics."""

    def name_of(self, schema: Any, kind: Any) -> str:
        return f"lake.{schema.name}"

    format = "iceberg"

    def bare_name(self, name: str) -> str:
        return name.removeprefix("lake.")


class Topics:
    """Knows how Kafka keeps topics."""

    def __init__(self, _: Any) -> None:
        self.policies = {"t": "compact", "m.schemas": "compact"}
        self.asked: list[str] = []

    def cleanup_policies(self, topics: list[str]) -> dict[str, str]:
        self.asked += topics
        return self.policies


@pytest.fixture
def facts() -> list[Any]:
    return []


@pytest.fixture
def base(facts: list[Any], monkeypatch: pytest.MonkeyPatch) -> BaseJob:
    settings = MirrorSettings(
        "m", KafkaSource("b:1"), "m", "m.schemas", "m.checkpoint", "", fold_interval_s=300
    )
    spark: Any = SimpleNamespace(newSession=object)
    target: Any = Target()
    for module in (job, log_job):
        monkeypatch.setattr(module, "TopicStarts", Topics)
    made = BaseJob(
        spark,
        settings,
        Lake(LogPlace("lake.log", "iceberg", "/checkpoint"), IcebergBase(), target),
        {},
        facts.append,
    )
    forms = Forms("events")
    for part in (made, made._tables):
        monkeypatch.setattr(part, "_forms", forms)
    monkeypatch.setattr(topic_folds, "exists", lambda *_: True)
    return made


def let_have(base: BaseJob, **has: Any) -> None:
    """The log has this in the next round."""
    base._tables.log = Appended(**has)


class Listing:
    """Stands for the table of points."""

    def __init__(self, listed: list[Any]) -> None:
        self.listed = listed

    def is_newest(self, *newest: Any) -> bool:
        return bool(self.listed) and self.listed[-1][2:] == newest

    def list_(self, *given: Any) -> None:
        self.listed.append(given)


class JavaError(Exception):
    """What a table format raises, of which PySpark knows nothing."""


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (SinkError("t: broken", hint="Mend it."), TableStopped),
        (JavaError("org.apache.iceberg.exceptions.NotFoundException: a file"), TableStopped),
        (OvertakenError("t: others commit", hint="Wait."), TableFailed),
    ],
)
def test_a_table_that_cannot_be_folded_stops_and_goes_on_when_it_can(
    base: BaseJob,
    facts: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    fact: type[TableFailed],
):
    broken = True

    def fold(_: Any, __: Any, place: Place, *___: Any) -> Folded:
        if place.topic == "t" and broken:
            raise error
        return Folded(7, changes=2, keys=1)

    monkeypatch.setattr(topic_folds, "fold", fold)
    done = [base._fold(topic, 7) for topic in ("t", "u", "t")]
    assert [None if each is None else each.table for each in done] == [None, "public.u", None]
    # The same error is told once.
    (told,) = facts
    assert (type(told), told.table) == (fact, "public.t")
    assert isinstance(base.stopped["public.t"], CdcdError)
    broken = False
    assert base._fold("t", 7) is not None
    assert base.stopped == {}
    assert isinstance(facts[-1], TableResumed)


def test_tables_are_folded_side_by_side_each_in_a_session_of_its_own(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    both = threading.Barrier(2, timeout=30)
    sessions: list[Any] = []

    def fold(spark: Any, _: Any, place: Place, *___: Any) -> Folded:
        sessions.append(spark)
        both.wait()
        if place.topic == "c":
            raise SinkError("c: broken", hint="Mend it.")
        return Folded(7, changes=1)

    monkeypatch.setattr(topic_folds, "fold", fold)
    monkeypatch.setattr(positions, "at_version", lambda *_: None)
    # Two threads fold four tables. Each fold waits for another one.
    done = base._fold_all(["a", "b", "c", "d"], 7)
    assert [each.table for each in done] == ["public.a", "public.b", "public.d"]
    assert base.stopped.keys() == {"public.c"}
    assert len(sessions) == 4
    assert len(set(map(id, sessions))) == 2


@pytest.mark.parametrize(
    "cannot", [IncompatibleSchemaError("t", "n changed", ""), LacksChangesError("t: n changed")]
)
def test_a_table_that_cannot_follow_is_read_again_after_the_folds_of_the_others(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch, cannot: CdcdError
):
    done: list[str] = []

    def fold(_: Any, __: Any, place: Place, *___: Any) -> Folded:
        if place.topic == "t" and "read t" not in done:
            raise cannot
        done.append(f"fold {place.topic}")
        return Folded(9)

    def read(table: str, why: str) -> None:
        assert (table, why) == ("public.t", "t: n changed")
        done.append("read t")

    monkeypatch.setattr(topic_folds, "fold", fold)
    monkeypatch.setattr(base, "_settings", replace(base._settings, reload=True))
    monkeypatch.setattr(base, "_read_again", read)
    for topic in ("t", "u"):
        base._fold(topic, 7)
    for topic in list(base._unread):
        base._read(topic, 7)
    assert done == ["fold u", "read t", "fold t"]
    assert (base.stopped, base._unread, base._changed) == ({}, {}, {"lake.t"})


def test_a_table_stops_that_cannot_follow_and_that_cannot_be_read_again(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    said = "t: n changed"

    def fold(*_: Any) -> Folded:
        raise IncompatibleSchemaError("t", "n changed", "Read it again.")

    def read(*_: Any) -> None:
        if said == "t: no database":
            raise TransientError(said, hint="Start it.")

    monkeypatch.setattr(topic_folds, "fold", fold)
    # The settings say that it stops.
    monkeypatch.setattr(base, "_read_again", read)
    base._fold("t", 7)
    assert base.stopped["public.t"].message == said
    # The database does not answer. The next round tries it again.
    monkeypatch.setattr(base, "_settings", replace(base._settings, reload=True))
    said = "t: no database"
    base._fold("t", 7)
    base._read("t", 7)
    assert base.stopped["public.t"].message == said
    assert base._retried == {"t"}
    # The table still cannot follow after it was read.
    said = "t: n changed"
    base._fold("t", 7)
    base._read("t", 7)
    assert base.stopped["public.t"].message == said
    # What the daemon has set aside is not read.
    forms: Any = base._forms
    forms.aside[1] = Aside(1, "public.t", 5, "size")
    base._fold("t", 7)
    assert base._unread == {}
    assert [type(fact) for fact in facts] == [TableStopped, TableFailed, TableStopped]


def test_a_replay_folds_all_tables_before_the_log_says_that_the_records_are_changes(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    done: list[Any] = []
    rows: Any = None
    replay = FromQuarantine(rows, 5)
    found = {
        "t": InQuarantine(replay, 3, 1, 2),
        "u": InQuarantine(None, 0, 4, 0),
        "v": InQuarantine(replay, 1, 0, 0),
    }

    def fold(_: Any, __: Any, place: Place, *___: Any) -> Folded:
        if place.topic == "v":
            raise SinkError("v: broken", hint="Mend it.")
        done.append(("fold", place.topic, place.replay))
        return Folded(7)

    monkeypatch.setattr(topic_folds, "fold", fold)
    monkeypatch.setattr(job, "topics_waiting", lambda *_: dict.fromkeys(["t", "u", "v", "message"], "id"))
    monkeypatch.setattr(job, "waiting", lambda _spark, place, *_: found[place.topic])
    monkeypatch.setattr(job, "release", lambda *_: done.append("release"))
    monkeypatch.setattr(base, "_described", lambda: ["t", "u", "v"])
    base._replay(7)
    assert done == [("fold", "t", replay), "release"]
    # A table whose records cannot come back goes on.
    assert base.stopped == {}
    assert facts == [
        Replayed("public.t", 3, 1, 2),
        Replayed("public.u", 0, 4, 0),
        TableFailed("public.v", "quarantine is not replayed: v: broken", "Mend it."),
    ]


def test_only_a_table_with_a_key_that_is_there_is_written_again(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    done = LaidOut(PLAIN, Layout(buckets=4))
    monkeypatch.setattr(base, "_described", lambda: ["t", "events", "new"])
    monkeypatch.setattr(topic_folds, "exists", lambda _, name: name != "lake.new")
    monkeypatch.setattr(job, "relayout", lambda *_: done)
    base.relayout(["public.t"])
    (fact,) = facts
    assert (fact.table, fact.before, fact.after) == ("public.t", 1, 4)
    for other in ("public.events", "public.new", "public.gone"):
        with pytest.raises(ConfigError, match=f"--relayout {other}: the mirror has no such table"):
            base.relayout([other])

    def broken(*_: Any) -> LaidOut:
        raise JavaError("a file is gone")

    monkeypatch.setattr(job, "relayout", broken)
    with pytest.raises(SinkError, match=r"public\.t: .* a file is gone"):
        base.relayout(["public.t"])


def test_a_table_without_a_key_has_a_changelog_that_tells_what_it_lacks(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    folded: list[str] = []

    def fold_changes(_spark: Any, _format: Any, place: Place, *_: Any, beside: bool) -> KeptFolded:
        assert not beside
        folded.append(place.name)
        return KeptFolded(Folded(7, changes=2, keys=2), missing=(3, 5))

    monkeypatch.setattr(topic_folds, "fold_changes", fold_changes)
    done = base._fold("events", 7)
    assert (folded, base.stopped) == (["lake.events"], {})
    assert done is not None
    assert done.changes == 2
    (missing,) = facts
    assert isinstance(missing, ChangesMissing)
    assert (missing.table, missing.changelog, missing.after_lsn, missing.until_lsn) == (
        "public.events",
        "lake.events",
        3,
        5,
    )


def test_a_topic_that_stopped_in_the_log_stops_its_table(base: BaseJob, facts: list[Any]):
    let_have(base, stopped={"t": SinkError("t: the topic was deleted", hint="Run a statement.")})
    assert base._fold("t", 7) is None
    assert "deleted" in base.stopped["public.t"].message


def test_a_table_whose_topic_lost_records_is_read_again_and_the_log_goes_on_with_the_topic(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    reason = "partition 0 begins at offset 5, and the log has it up to 1"
    let_have(base, gaps={"t": reason}, stopped={"t": SinkError(f"m.t: {reason}", hint="Run this")})
    reasons: list[tuple[str, str]] = []
    going_on: list[str] = []
    monkeypatch.setattr(base, "_read_again", lambda *given: reasons.append(given))
    monkeypatch.setattr(base._log, "let_go_on", going_on.append)
    base._fold("t", 7)
    assert "public.t" in base.stopped
    # WHEN tables are read again that cannot follow
    monkeypatch.setattr(base, "_settings", replace(base._settings, reload=True))
    assert base._fold("t", 7) is None
    assert base._read("t", 7) is None
    # THEN Spark reads the table, the log goes on with the topic, and the next round folds the table
    assert (reasons, going_on) == ([("public.t", f"m.t: {reason}")], ["t"])
    assert (base.stopped, base._retried) == ({}, {"t"})
    assert facts[-1] == TableResumed("public.t")
    # AND a topic that is not there any more is not read
    let_have(base, gaps={"t": positions.DELETED}, stopped={"t": SinkError("m.t: deleted", hint="Run it")})
    base._fold("t", 7)
    assert base._unread == {}
    assert base.stopped["public.t"].message == "m.t: deleted"
    # WHEN it was made again since
    base._tables.there = {"t"}
    base._fold("t", 7)
    assert base._unread == {"t": "m.t: deleted"}


def test_a_table_is_looked_at_when_it_is_described_anew_or_its_topic_stopped(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(topic_folds, "fold", lambda *_: Folded(7))
    base._fold("t", 7)
    forms: Any = base._forms
    stopped = Appended(stopped={"t": SinkError("m.t: deleted", hint="Run it")})
    assert base._chosen(["t"], {"t": LogChanges()}, time.monotonic(), stopped) == ["t"]
    assert base._chosen(["t"], {"t": LogChanges()}, time.monotonic(), Appended()) == []
    forms.ids["t"] = "2"
    assert base._chosen(["t"], {"t": LogChanges()}, time.monotonic(), Appended()) == ["t"]


def test_a_table_that_lacks_lost_records_stops_until_it_is_read_again(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    let_have(base, gaps={"t": "partition 0 begins at offset 5, and the log has it up to 1"})
    monkeypatch.setattr(plan, "truncate_after_gap", lambda *_: None)
    assert base._fold("t", 7) is None
    (stopped,) = facts
    assert isinstance(stopped, TableStopped)
    assert "the log lacks changes of the table" in stopped.message
    assert "cdcd tables resume public.t" in stopped.hint
    # A truncate record and all rows followed at LSN 6.
    begins: list[int] = []

    def folded(_spark: Any, _format: Any, place: Place, *_: Any) -> Folded:
        begins.append(place.log_begins)
        return Folded(7)

    monkeypatch.setattr(plan, "truncate_after_gap", lambda *_: 6)
    monkeypatch.setattr(topic_folds, "fold", folded)
    base._fold("t", 7)
    assert (begins, base.stopped) == ([5], {})


def test_a_fold_knows_which_changes_the_log_has_deleted(base: BaseJob, monkeypatch: pytest.MonkeyPatch):
    begins: list[int] = []

    def folded(_spark: Any, _format: Any, place: Place, *_: Any) -> Folded:
        begins.append(place.log_begins)
        return Folded(7)

    let_have(base, deleted={"t": 5})
    monkeypatch.setattr(topic_folds, "fold", folded)
    base._fold("t", 7)
    base._fold("u", 7)
    assert begins == [5, 0]


def test_a_fold_knows_where_the_log_began_and_which_records_it_has(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    places: list[Place] = []

    def folded(_spark: Any, _format: Any, place: Place, *_: Any) -> Folded:
        places.append(place)
        return Folded(7)

    began = Began("T", {0: 5}, {0: 9})
    let_have(base, began={"t": began})
    monkeypatch.setattr(base, "_ends", {"t": {0: 9}})
    monkeypatch.setattr(topic_folds, "fold", folded)
    base._fold("t", 7)
    base._fold("u", 7)
    assert [(place.began, place.ends) for place in places] == [(began, {0: 9}), (None, {})]


def test_retention_is_told_how_far_each_table_is_folded(base: BaseJob, monkeypatch: pytest.MonkeyPatch):
    folded = {"lake.a": Position(5), "lake.b": None}

    def version(_spark: Any, name: str) -> Any:
        if name not in folded:
            raise JavaError("no metadata")
        return SimpleNamespace(position=folded[name])

    monkeypatch.setattr(base._tables._lake.format, "version", version)
    monkeypatch.setattr(base, "_described", lambda: ["a", "b", "broken", "other"])
    assert base._folded(["a", "b", "broken", "schemas"]) == {"a": 5, "b": 0, "broken": 0}


def test_a_table_that_is_set_aside_is_folded_up_to_there_and_stopped_by_name_until_it_comes_back(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    bounds = []

    def fold(*given: Any) -> Folded:
        bounds.append(given[-1])
        return Folded(given[-1], changes=2, keys=1)

    monkeypatch.setattr(topic_folds, "fold", fold)
    # "tt" has the oid 2.
    forms: Any = base._forms
    aside = Aside(2, "public.tt", 5, "size")
    forms.aside[2] = aside
    assert base._fold("tt", 4) is not None
    for bound in (5, 8):
        assert base._fold("tt", bound) is None
    assert base._fold("t", 8) is not None
    assert bounds == [4, 4, 4, 8]
    (told,) = facts
    assert (told.table, type(told)) == ("public.tt", TableStopped)
    assert "set the table aside (size)" in told.message
    assert list(base.stopped) == ["public.tt"]
    # It has come back by now, but not up to each bound.
    forms.aside.clear()
    forms.returned[2] = replace(aside, until=9)
    assert base._fold("tt", 8) is None
    assert base._fold("tt", 9) is not None
    assert base.stopped == {}
    assert isinstance(facts[-1], TableResumed)


def test_the_bound_is_what_all_topics_have(base: BaseJob, monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []

    def checkpoints(*_: Any) -> tuple[Covered, Covered]:
        seen.append("checkpoint")
        return Covered(20, 20), Covered(10, 10)

    def described() -> list[str]:
        seen.append("described")
        return ["t"]

    monkeypatch.setattr(job, "newest_checkpoints", checkpoints)
    monkeypatch.setattr(base, "_described", described)
    ends = {"t": {0: 5}, "m.schemas": {0: 1}}
    # A transaction is open, so that only the former record is known to be complete.
    for written, bound in (({**ends, "t": {0: 6}}, 10), (ends, 20)):
        both = (written, ends)
        monkeypatch.setattr(base, "_topics", SimpleNamespace(both_ends=lambda _, both=both: both))
        assert base._bound() == (bound, ends)
    # A table whose first change the checkpoint covers is described when the descriptions are read after it.
    assert seen == ["checkpoint", "described"] * 2


def test_a_point_lists_the_versions_at_its_bound_and_names_tables_that_have_none(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    done = {"t": Folded(7, version="3"), "u": Folded(9), "v": Folded(7, version="12")}
    monkeypatch.setattr(topic_folds, "fold", lambda *given: done[given[2].topic])

    def fold_changes(*_: Any, **__: Any) -> KeptFolded:
        raise SinkError("events: broken", hint="Mend it.")

    monkeypatch.setattr(topic_folds, "fold_changes", fold_changes)
    for topic in (*done, "events"):
        base._fold(topic, 7)
    facts.clear()
    listed: list[Any] = []
    points, point = Listing(listed), Point(7, datetime.now(UTC), None)
    monkeypatch.setattr(base._point, "_points", points)
    monkeypatch.setattr(base._point, "_point", point)
    tables = [f"public.{topic}" for topic in (*done, "events")]
    for _ in range(2):
        base._point.list_(0, tables)
    # Another driver has folded `u` beyond the bound, and `events` has stopped. Nothing new is listed once.
    assert listed == [(point, 0, ["public.events", "public.u"], {"t": 3, "v": 12})]
    assert facts == [SetChanged(7, ("public.events", "public.u"))]


def test_a_version_that_cannot_get_the_tag_of_a_point_is_left_out_of_the_point(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    done = {"t": Folded(7, version="3"), "v": Folded(7, version="12")}
    monkeypatch.setattr(topic_folds, "fold", lambda *given: done[given[2].topic])
    for topic in done:
        base._fold(topic, 7)
    listed: list[Any] = []
    point = Point(7, datetime.now(UTC), Tag(7, 0))
    monkeypatch.setattr(base._point, "_points", Listing(listed))
    monkeypatch.setattr(base._point, "_point", point)

    def tag_version(_: Any, name: str, version: int, tag: Tag) -> None:
        if name == "lake.t":
            raise JavaError("Cannot set lsn-0-7 to unknown snapshot: 3")

    monkeypatch.setattr("cdcd.mirror.base.points.tag_version", tag_version)
    base._point.list_(0, ["public.t", "public.v"])
    assert listed == [(point, 0, ["public.t"], {"v": 12})]
    failed, _ = facts
    assert isinstance(failed, TableFailed)
    assert (failed.table, failed.message) == (
        "public.t",
        "tag lsn-0-7: Cannot set lsn-0-7 to unknown snapshot: 3",
    )


WAITING = MirrorSettings(
    "m", KafkaSource("b:1"), "m", "m.schemas", "m.checkpoint", "", fold_interval_s=60, fold_changes=100
)


@pytest.mark.parametrize(
    ("known", "new", "now", "due"),
    [
        # Nobody has looked at the table.
        (None, LogChanges(1, 5), 0.0, True),
        (None, LogChanges(), 0.0, False),
        # The log has few new changes, which wait, or many, or none.
        (Known(5, 0.0), LogChanges(99, 6), 59.0, False),
        (Known(5, 0.0), LogChanges(99, 6), 60.0, True),
        (Known(5, 0.0), LogChanges(100, 6), 0.0, True),
        (Known(5, 0.0), LogChanges(100, 5), LOOK_S - 1, False),
        # Its owner may have rolled it back meanwhile.
        (Known(5, 0.0), LogChanges(1, 5), LOOK_S, True),
        (Known(5, 0.0, is_empty=True), LogChanges(), LOOK_S, False),
        # The first changes of a table do not wait.
        (Known(5, 0.0, is_empty=True), LogChanges(1, 6), 0.0, True),
    ],
)
def test_a_table_is_due_when_its_changes_have_waited_or_its_owner_may_have_changed_it(
    known: Known | None, new: LogChanges, now: float, due: bool
):
    assert is_due(known, new, now, WAITING, lacks=False) == due
    # A topic that lost records is looked at once, and each table that exists for a consistent point.
    assert is_due(known, new, now, WAITING, lacks=True) == (due or known is None)
    consistent = replace(WAITING, consistent=True)
    assert is_due(known, new, now, consistent, lacks=False) == (
        due or (known is not None and not known.is_empty)
    )


@pytest.mark.parametrize(
    ("least", "due", "found"),
    [
        (0, [], []),
        (2, [], ["a", "c"]),
        (9, [], ["a", "c", "b"]),
        # Tables that are due count, if they have changes or were never looked at.
        (2, ["a"], ["c"]),
        (2, ["new"], ["a"]),
        (2, ["same"], ["a", "c"]),
        (1, ["a", "b"], []),
    ],
)
def test_a_round_folds_some_tables_at_least_those_first_that_were_folded_first(
    least: int, due: list[str], found: list[str]
):
    known = {"a": Known(5, 1.0), "b": Known(5, 3.0), "c": Known(5, 2.0), "same": Known(5, 0.0)}
    new = {"a": LogChanges(1, 6), "b": LogChanges(1, 9), "c": LogChanges(2, 7), "same": LogChanges(1, 5)}
    new["new"] = LogChanges(1, 6)
    assert first_waiting(due, known, new, replace(WAITING, fold_tables_min=least)) == found


def test_the_changes_of_a_few_tables_do_not_wait_and_a_table_that_stopped_takes_no_place(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    new = {topic: {0: LogChanges(1, 8)} for topic in ("t", "u", "broken")}
    monkeypatch.setattr(job, "look_after", lambda *_: new)
    monkeypatch.setattr(positions, "at_version", lambda *_: None)
    monkeypatch.setattr(base, "_described", lambda: sorted(new))
    monkeypatch.setattr(base, "_settings", replace(base._settings, fold_tables_min=1))
    monkeypatch.setattr(base, "_known", {"t": Known(5, 2.0), "u": Known(5, 1.0)})
    monkeypatch.setattr(base, "_retried", {"broken"})
    assert sorted(base._due(9, 3.0)) == ["broken", "u"]


def test_changes_that_wait_are_folded_later_and_are_not_taken_for_folded(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    has = {"t": 3, "u": 4}
    read: list[int] = []

    def changes(_log: Any, since: int, _bound: int) -> dict[str, dict[int, LogChanges]]:
        read.append(since)
        return {topic: {0: LogChanges(1, lsn)} for topic, lsn in has.items() if lsn > since}

    monkeypatch.setattr(job, "look_after", changes)
    monkeypatch.setattr(positions, "at_version", lambda *_: None)
    monkeypatch.setattr(base, "_described", lambda: ["t", "u"])
    monkeypatch.setattr(base, "_settings", replace(base._settings, fold_tables_min=0))
    monkeypatch.setattr(base, "_known", {"t": Known(5, 0.0), "u": Known(5, 0.0)})
    # WHEN one table changes, THEN its changes wait, and the next round reads the log from them on
    has["t"] = 8
    assert base._due(9, 60.0) == []
    assert base._due(12, 299.0) == []
    assert base._due(14, 300.0) == ["u", "t"]
    assert read == [5, 5, 5]


def test_the_log_is_read_from_the_least_position_that_this_process_knows(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    read: list[tuple[int, int]] = []
    has = {"t": 3, "u": 9}

    def changes(_log: Any, since: int, bound: int) -> dict[str, dict[int, LogChanges]]:
        read.append((since, bound))
        return {
            topic: {0: LogChanges(1, lsn) if lsn <= bound else LogChanges(later=lsn)}
            for topic, lsn in has.items()
            if lsn > since
        }

    broken = {"u"}

    def fold(_: Any, __: Any, place: Place, *___: Any) -> Folded:
        if place.topic in broken:
            raise SinkError("u: broken", hint="Mend it.")
        return Folded(7)

    described = ["t", "u", "quiet"]
    monkeypatch.setattr(job, "look_after", changes)
    monkeypatch.setattr(topic_folds, "fold", fold)
    monkeypatch.setattr(positions, "at_version", lambda *_: None)
    monkeypatch.setattr(base, "_described", lambda: list(described))

    def round_(bound: int, now: float = 0.0) -> list[str]:
        due = base._due(bound, now)
        for topic in due:
            base._fold(topic, bound)
        return due

    # The first round reads the whole log.
    assert round_(9) == ["t", "u"]
    # A table that stopped is tried again, and does not make the log be read again.
    assert round_(12) == ["u"]
    broken.clear()
    assert round_(14) == ["u"]
    has["quiet"] = 15
    assert round_(16) == ["quiet"]
    # A new table has its first change wherever it is.
    described.append("new")
    has["new"] = 2
    assert round_(18) == ["new"]
    assert read == [(0, 9), (9, 12), (12, 14), (14, 16), (0, 18)]
    # A table has all records before the first change after the bound, and all that the log has if there is none.
    let_have(base, ends={"t": {0: 70, 1: 4}, "quiet": {0: 30}})
    has |= {"t": 60}
    assert round_(20) == []
    assert base._ends == {"t": {0: 60, 1: 4}, "u": {}, "quiet": {0: 30}, "new": {}}


def test_the_lag_of_a_table_grows_until_a_fold_or_a_look_shows_that_it_lacks_nothing(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0
    has = {"t": 5, "u": 5}

    def changes(_log: Any, since: int, bound: int) -> dict[str, dict[int, LogChanges]]:
        return {topic: {0: LogChanges(1, lsn)} for topic, lsn in has.items() if since < lsn <= bound}

    def fold(_: Any, __: Any, place: Place, *___: Any) -> Folded:
        if place.topic == "u":
            raise SinkError("u: broken", hint="Mend it.")
        return Folded(7)

    def round_(bound: int) -> None:
        base._lags.begin({topic: f"public.{topic}" for topic in ("t", "u", "quiet")}, now)
        for topic in base._due(bound, now):
            base._fold(topic, bound)

    monkeypatch.setattr(job, "look_after", changes)
    monkeypatch.setattr(topic_folds, "fold", fold)
    monkeypatch.setattr(positions, "at_version", lambda *_: None)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(base, "_described", lambda: ["t", "u", "quiet"])
    monkeypatch.setattr(base, "_settings", replace(base._settings, fold_tables_min=0))
    round_(5)
    now = 100.0
    # No round comes, because the job hangs.
    assert base.lags() == {"public.t": 100.0, "public.u": 100.0, "public.quiet": 100.0}
    has["t"] = 8
    round_(9)
    # The changes of a table wait, another table is stopped, and the third one has no changes.
    assert base.lags() == {"public.t": 100.0, "public.u": 100.0, "public.quiet": 0.0}
    now = 310.0
    round_(9)
    assert base.lags() == {"public.t": 0.0, "public.u": 310.0, "public.quiet": 0.0}
    # A round is skipped. The log has nothing that the table lacks.
    now = 350.0
    base._log.appended = Appended(at=340.0)
    base._retried.clear()
    base._may_be_due(now)
    assert base.lags() == {"public.t": 10.0, "public.u": 350.0, "public.quiet": 10.0}


def test_a_table_that_is_not_mirrored_any_more_has_no_lag():
    lags = Lags()
    lags.begin({"t": "public.t", "u": "public.u"}, 5.0)
    lags.begin({"t": "public.t"}, 9.0)
    lags.whole("u")
    assert lags.seconds(10.0) == {"public.t": 5.0}


def test_an_outage_is_over_when_the_log_has_what_the_round_needs(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    class Live:
        def append(self, *_: Any, **__: Any) -> Appended | None:
            return appended

    live: Any = Live()
    appended: Appended | None = Appended()
    monkeypatch.setattr(base, "_bound", lambda: (7, {}))
    monkeypatch.setattr(base, "_described", list)
    monkeypatch.setattr(base, "_forms", SimpleNamespace(refresh=lambda: None, topics=list))
    monkeypatch.setattr(base, "_due", lambda *_: [])
    monkeypatch.setattr(base, "_fold_all", lambda *_: [])
    for name in ("_look_at_policies", "_note_stops"):
        monkeypatch.setattr(base, name, lambda: None)
    monkeypatch.setattr(base, "_has_read_stops", True)
    base._append_and_fold(live, threading.Event(), once=False)
    assert [type(fact) for fact in facts] == [MirrorStarted]
    base._append_and_fold(live, threading.Event(), once=False)
    assert len(facts) == 1
    # The query of the log says that Kafka is away, and a round that waits for the log is stopped.
    base._from_log(Retrying("Kafka is away.", "", 1.0))
    appended = None
    base._append_and_fold(live, threading.Event(), once=False)
    assert [type(fact) for fact in facts[1:]] == [Retrying]
    appended = Appended()
    base._append_and_fold(live, threading.Event(), once=False)
    assert [type(fact) for fact in facts[2:]] == [MirrorStarted]


def test_a_table_that_a_former_process_stopped_goes_on_in_the_first_round(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    class Live:
        def append(self, *_: Any, **__: Any) -> Appended:
            return Appended()

    live: Any = Live()
    stop = Stop("public.t", datetime(2026, 1, 1, tzinfo=UTC), False, "t: broken", "Mend it.")
    noted: list[Any] = []
    monkeypatch.setattr(base, "_bound", lambda: (7, {}))
    monkeypatch.setattr(base, "_described", lambda: ["t"])
    monkeypatch.setattr(base, "_look_at_policies", lambda: None)
    monkeypatch.setattr(base, "_due", lambda *_: ["t"])
    monkeypatch.setattr(base, "_fold_all", lambda *_: [base._fold("t", 7)])
    monkeypatch.setattr(base._point, "begin", lambda _: None)
    monkeypatch.setattr(topic_folds, "fold", lambda *_: Folded(7, changes=1))
    monkeypatch.setattr(positions, "read", lambda *_: Positions(tables={"t": stop}))
    monkeypatch.setattr(positions, "note_tables", lambda _, __, changes: noted.append(changes))
    for _ in range(2):
        base._append_and_fold(live, threading.Event(), once=False)
    assert [fact for fact in facts if isinstance(fact, TableResumed)] == [TableResumed("public.t")]
    # The log does not name the table any more.
    assert noted == [{"t": None}]


def test_a_topic_that_stops_in_the_log_is_told_by_the_name_of_its_table_alone(
    base: BaseJob, facts: list[Any]
):
    base._lags.begin({"m.public.t": "public.t"}, 0.0)
    for told in (TableStopped("m.public.t", "deleted", ""), TableResumed("m.public.t")):
        base._from_log(told)
    assert facts == []
    # Nothing else tells of a topic that has no table.
    base._from_log(TableStopped("m.schemas", "deleted", ""))
    assert [fact.table for fact in facts] == ["m.schemas"]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (JavaError("the storage is away"), SinkUnavailableError),
        (TransientError("Kafka is away.", hint="Wait."), TransientError),
        (SinkError("There is no topic.", hint="Make it."), SinkError),
    ],
)
def test_what_formats_and_catalogues_raise_in_a_round_is_an_outage(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch, failure: Exception, raised: type[CdcdError]
):
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(base, "_append_and_fold", fail)
    with pytest.raises(raised, match=str(failure)[:10]) as shown:
        base.run(once=True, stop=threading.Event())
    assert type(shown.value) is raised


def test_how_kafka_keeps_a_topic_is_asked_once_and_what_a_mirror_may_lose_by_it_is_said(
    base: BaseJob, facts: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(base, "_described", lambda: ["t", "u"])
    for _ in range(2):
        base._look_at_policies()
    topics: Any = base._topics
    assert topics.asked == ["m.schemas", "t", "u"]
    assert [fact.topic for fact in facts] == ["t"]
    assert base._tables.place("t", {}).is_compacted
    assert not base._tables.using(base._spark, None).place("u", {}).is_compacted


@pytest.mark.parametrize(
    ("had", "has", "most"),
    [
        ({0: 5, 1: 2}, {0: 5, 1: 2}, LogChanges()),
        ({0: 5}, {0: 8, 1: 2}, LogChanges(5, sys.maxsize)),
        # The topic was made again.
        ({0: 5}, {0: 2}, LogChanges(3, sys.maxsize)),
        ({}, {}, LogChanges()),
    ],
)
def test_offsets_tell_the_most_that_the_log_can_have(
    had: dict[int, int], has: dict[int, int], most: LogChanges
):
    assert at_most(had, has) == most


def test_a_round_begins_shortly_before_a_batch_of_the_log():
    assert pause_s(600.0, 15.0) == 13.0
    assert pause_s(612.9, 15.0) == pytest.approx(0.1)
    # A round that took no time is not repeated.
    assert pause_s(613.0, 15.0) == 15.0
    assert pause_s(600.0, 1.0) == 0.5


def test_a_round_is_skipped_only_if_offsets_show_that_no_table_is_due(
    base: BaseJob, monkeypatch: pytest.MonkeyPatch
):
    looks: list[int] = []

    def changes(_log: Any, since: int, bound: int) -> dict[str, dict[int, LogChanges]]:
        looks.append(since)
        return {"t": {0: LogChanges(1, 5)}}

    monkeypatch.setattr(job, "look_after", changes)
    monkeypatch.setattr(topic_folds, "fold", lambda *_: Folded(7))
    monkeypatch.setattr(positions, "at_version", lambda *_: None)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(base, "_described", lambda: ["t", "quiet"])
    monkeypatch.setattr(base, "_settings", replace(base._settings, fold_tables_min=0))

    def has(**ends: int) -> None:
        appended = Appended(ends={topic: {0: end} for topic, end in ends.items()})
        base._log.appended = appended
        base._tables.log = appended

    # Nobody has looked at a table of which the log has records.
    has(t=7)
    assert base._may_be_due(0.0)
    assert base._due(7, 0.0) == ["t"]
    base._fold("t", 7)
    # The log has nothing new, or few new records, which wait.
    assert not base._may_be_due(LOOK_S - 1)
    has(t=9)
    assert not base._may_be_due(LOOK_S - 1)
    # A round that folds more tables than those that are due takes the table.
    monkeypatch.setattr(base, "_settings", replace(base._settings, fold_tables_min=1))
    assert base._may_be_due(1.0)
    monkeypatch.setattr(base, "_settings", replace(base._settings, fold_tables_min=0))
    # The records have waited, or the owner may have rolled the table back.
    assert base._may_be_due(LOOK_S)
    # Many records, and the first ones of another table, do not wait.
    has(t=7 + base._settings.fold_changes)
    assert base._may_be_due(1.0)
    has(t=7, quiet=1)
    assert base._may_be_due(1.0)
    # Each round tries a table that stopped, and looks at one that is set aside.
    has(t=7)
    base._retried.add("t")
    assert base._may_be_due(1.0)
    base._retried.clear()
    base._forms.aside[1] = Aside(1, "public.t", 5, "size")
    assert base._may_be_due(1.0)
    assert looks == [0]


def test_a_topic_whose_policy_lets_records_go_is_judged_by_what_it_has():
    compacted = policy_problem("shop.public.a", "compact,delete", is_table=True)
    expiring = policy_problem("shop.schemas", "delete", is_table=False)
    assert compacted is not None
    assert expiring is not None
    assert (compacted.topic, expiring.topic) == ("shop.public.a", "shop.schemas")
    assert expiring.hint.endswith("--entity-name shop.schemas --add-config cleanup.policy=compact")
    assert policy_problem("shop.schemas", "compact", is_table=False) is None
    assert policy_problem("shop.public.b", "delete", is_table=True) is None
    assert policy_problem("shop.public.c", "", is_table=True) is None
