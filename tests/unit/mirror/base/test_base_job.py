"""One round of folds: a table that cannot be folded stops by name, and the others go on."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.errors import CdcdError, SinkError
from cdcd.mirror.base import job
from cdcd.mirror.base.fold import Folded, OvertakenError, Place
from cdcd.mirror.base.formats import IcebergBase
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import job as log_job
from cdcd.mirror.log.job import LogPlace
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.watching.progress import TableFailed, TableResumed, TableStopped


class Forms:
    """Descriptions of tables. Their names are those of their topics."""

    def __init__(self, keyless: str) -> None:
        self._keyless = keyless

    def table(self, topic: str) -> str:
        return f"public.{topic}"

    def newest(self, topic: str) -> Any:
        return SimpleNamespace(
            schema=SimpleNamespace(key=() if topic == self._keyless else ("id",), name=topic)
        )

    def former_name(self, schema: Any) -> None:
        return None


@pytest.fixture
def facts() -> list[Any]:
    return []


@pytest.fixture
def base(facts: list[Any], monkeypatch: pytest.MonkeyPatch) -> BaseJob:
    settings = MirrorSettings("m", KafkaSource("b:1"), "m", "m.schemas", "m.checkpoint", "")
    spark: Any = None
    for module in (job, log_job):
        monkeypatch.setattr(module, "TopicStarts", lambda _: None)
    made = BaseJob(
        spark,
        settings,
        LogPlace("lake.log", "iceberg", "/checkpoint"),
        IcebergBase(),
        lambda schema: f"lake.{schema.name}",
        {},
        facts.append,
    )
    monkeypatch.setattr(made, "_forms", Forms("events"))
    monkeypatch.setattr(job, "exists", lambda *_: True)
    return made


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

    monkeypatch.setattr(job, "fold", fold)
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


def test_a_table_without_a_key_is_refused_by_name(base: BaseJob, facts: list[Any]):
    assert base._fold("events", 7) is None
    assert "no key" in base.stopped["public.events"].message
    assert "tables.exclude" in facts[0].hint


def test_a_topic_that_stopped_in_the_log_stops_its_table(base: BaseJob, facts: list[Any]):
    base._log.stopped["t"] = SinkError("t: the topic was deleted", hint="Run a statement.")
    assert base._fold("t", 7) is None
    assert "deleted" in base.stopped["public.t"].message
