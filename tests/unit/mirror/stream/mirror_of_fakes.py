"""A mirror in a process without Spark and Kafka, and tables that do as they are told."""

import threading
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.facts import Observer
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.kafka_admin import TopicFacts
from cdcd.mirror.stream.job import Mirror
from cdcd.mirror.stream.points import Point
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.watching.progress import (
    BatchDone,
    Fact,
    Progress,
)
from cdcd.mirror.watching.stops import Stop


class FakeTable:
    """A table that fails so many times with an error, and then goes on."""

    def __init__(self, name: str, error: Exception | None = None, times: int = 1) -> None:
        self.table = name
        self.busy = threading.Lock()
        self.is_there = True
        self.advanced: list[int | None] = []
        self.tags: list[Tag | None] = []
        self.forgotten = 0
        self.sessions: list[Any] = []
        self._error = error
        self._times = times

    def goes_on(self) -> None:
        """It fails no more."""
        self._times = 0

    def use(self, spark: Any) -> None:
        self.sessions.append(spark)

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


class FakeSpark:
    def newSession(self) -> object:  # noqa: N802 - Spark's name
        return object()


class FakeAdmin:
    """Knows two topics; `policies` are those that somebody may see."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.asked_ids: list[list[str]] = []
        self.policies: dict[str, str] = {}
        self.there: list[str] = []

    def topics(self) -> list[str]:
        return self.there

    def ends(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        return {}

    def facts(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        self.asked.append(list(topics))
        return {topic: TopicFacts(f"id of {topic}", {0: 0}) for topic in topics if topic != "shop.gone"}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        self.asked_ids.append(list(topics))
        return {topic: f"id of {topic}" for topic in topics if topic != "shop.gone"}

    def cleanup_policies(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: self.policies[topic] for topic in topics if topic in self.policies}


class FakeTarget:
    """A target whose tables have no facts to tell."""

    def tell(self, observe: Observer) -> None:
        """See `Target.tell`."""


class Harness:
    """A mirror of tables that are fakes, `public.a` and `public.b`. Their oids are 100 and 101."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tables: FakeTable, **settings: Any) -> None:
        self.admin = FakeAdmin()
        monkeypatch.setattr("cdcd.mirror.stream.job.Admin", lambda *_: self.admin)
        self.facts: list[Fact] = []
        self.fails_to_note = False
        self.tag: Tag | None = None
        self.published: list[tuple[int, tuple[str, ...]]] = []
        self.versions: list[dict[str, int]] = []
        given = MirrorSettings(
            "shop", KafkaSource("b:1"), "shop", "shop.schemas", "shop.checkpoint", "/c", **settings
        )
        self.mirror = Mirror(cast("Any", FakeSpark()), given, cast("Any", FakeTarget()), self.facts.append)
        fakes = {f"shop.{table.table}": table for table in tables}
        for number, table in enumerate(tables):
            schema, _, name = table.table.partition(".")
            form = TableForm(
                schema,
                name,
                f"shop.{table.table}",
                (),
                (ColumnForm("x", 1, "text", 25, -1, "text"),),
                oid=100 + number,
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
