from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.core.errors import FencedError
from cdcd.mirror.stream import replay
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.watching.progress import Replayed, TableFailed


class FakeQuarantine:
    """A table of quarantine with records of these topics, and the session that has it."""

    def __init__(self, *topics: str) -> None:
        self._topics = topics

    def table(self, _name: str) -> "FakeQuarantine":
        return self

    def filter(self, _condition: str) -> "FakeQuarantine":
        return self

    def select(self, *_columns: str) -> "FakeQuarantine":
        return self

    def distinct(self) -> "FakeQuarantine":
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [{"topic": topic, "partition": 0, "offset": 7} for topic in self._topics]


def replayed(
    monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...], failures: dict[str, Exception]
) -> list[Replayed | TableFailed]:
    """What is said of topics in quarantine, of which some fail so."""

    def one(*given: Any) -> Replayed:
        topic, waiting = given[-2:]
        assert waiting == {0: [7]}
        if topic in failures:
            raise failures[topic]
        return Replayed(topic, 1, 0, 0)

    monkeypatch.setattr(replay, "_replay", one)
    target = SimpleNamespace(own_name=lambda name: name, has=lambda *_: True)
    known = {"a": "public.a", "b": "public.b"}
    descriptions = SimpleNamespace(refresh=lambda: None, table=known.get)
    given = (FakeQuarantine(*topics), None, None, descriptions, target, None)
    return list(replay.replay_quarantine(*cast("Any", given)))


def test_a_table_whose_records_cannot_be_brought_to_its_form_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
):
    failure = IncompatibleSchemaError("public.a", "n changed", "do this")
    assert replayed(monkeypatch, ("a", "b"), {"a": failure}) == [
        TableFailed("public.a", "quarantine is not replayed: public.a: n changed", "do this"),
        Replayed("b", 1, 0, 0),
    ]


def test_a_topic_that_is_not_described_stays_in_quarantine(monkeypatch: pytest.MonkeyPatch):
    assert replayed(monkeypatch, ("gone", "b"), {}) == [Replayed("b", 1, 0, 0)]


def test_another_writer_ends_the_replay(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FencedError):
        replayed(monkeypatch, ("a", "b"), {"a": FencedError("Another process mirrors into it.")})
