import re

import pytest

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.platform.kafka_admin import TopicFacts
from cdcd.mirror.stream.policies import policy_problem
from cdcd.mirror.watching.progress import (
    TopicUnfit,
    Unmirrored,
)
from tests.unit.mirror.stream.mirror_of_fakes import FakeTable, Harness


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


def described(harness: Harness, name: str, topic: str) -> None:
    """The schemas topic gets the description of a table whose topic has another name."""
    form = TableForm("public", name, topic, (), (ColumnForm("x", 1, "text", 25, -1, "text"),), oid=900)
    descriptions = harness.mirror._descriptions
    descriptions._take(form.record()[1], f"shop.schemas[0]@{len(descriptions._next)}")
    descriptions._next[0] = descriptions._next.get(0, 0) + 1


def test_topics_without_the_prefix_are_read_by_their_descriptions(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, FakeTable("public.a"), exclude=("public.left",))
    topics = harness.mirror._topics

    def has_new() -> bool:
        return topics.has_new

    described(harness, "orders", "orders.v1")
    described(harness, "left", "left-out")
    pattern = re.compile(topics.pattern())
    assert pattern.fullmatch("orders.v1")
    assert pattern.fullmatch("shop.public.a")
    for other in ("orders-v1", "left-out", "other.public.a"):
        assert not pattern.fullmatch(other)
    assert not has_new()
    # A table that is described later needs another query, and one that is left out does not.
    described(harness, "left", "left-out-2")
    assert not has_new()
    described(harness, "lines", "lines")
    assert has_new()
    assert re.fullmatch(topics.pattern(), "lines")
    assert not has_new()


def test_with_consistent_batches_the_checkpoint_moves_the_stream(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(monkeypatch, consistent=True)
    assert re.fullmatch(harness.mirror._topics.pattern(), "shop.checkpoint")


def test_a_stream_that_began_with_the_checkpoint_keeps_it_without_consistent_batches(
    monkeypatch: pytest.MonkeyPatch,
):
    pattern = Harness(monkeypatch).mirror._topics.pattern(["shop.checkpoint", "shop.public.a"])
    assert re.fullmatch(pattern, "shop.checkpoint")
    assert re.fullmatch(pattern, "shop.public.b")


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


def test_whether_topics_were_made_anew_is_asked_for_all_that_have_records_together(
    monkeypatch: pytest.MonkeyPatch,
):
    idle = FakeTable("public.c")
    monkeypatch.setattr(idle, "may_lack", lambda _: False)
    harness = Harness(monkeypatch, FakeTable("public.a"), FakeTable("public.b"), idle)
    a, b = "shop.public.a", "shop.public.b"
    harness.advance()
    # What was looked up with the facts is known.
    assert harness.mirror._topics.id_of(a) == f"id of {a}"
    assert harness.admin.asked_ids == []
    harness.advance()
    assert [harness.mirror._topics.id_of(topic) for topic in (a, b, "shop.gone")] == [
        f"id of {a}", f"id of {b}", None,
    ]  # fmt: skip
    assert harness.admin.asked_ids == [[a, b], ["shop.gone"]]
    # A second question is about another moment.
    harness.mirror._topics.id_of(a)
    assert harness.admin.asked_ids[2:] == [[a]]


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
