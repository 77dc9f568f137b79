"""Which topics events may go to, and what whoever inserts rows cannot do with the names of topics."""

import pytest

from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.shaping.event_forms import REFUSED_S
from cdcd.core.records.shaping.event_topics import EventTopics
from cdcd.core.records.shaping.settings import Outbox, OutboxTable

SETTINGS = EncoderSettings(
    "1", "shop", "db", checkpoint_topic="events.checkpoint", claims_topic="events.claims"
)
MAKES = OutboxTable("events.{value}", "to", "", "key", "payload", topics_max=2)
LISTED = OutboxTable("events.{value}", "to", "", "key", "payload")


def topics(*made: str, table: OutboxTable = MAKES) -> EventTopics:
    return EventTopics(Outbox(("events.listed",), tables={("public", "outbox"): table}), SETTINGS, made)


def test_rows_make_topics_of_the_form_up_to_the_limit():
    found = topics()
    assert not found.admit(MAKES, "events.listed", 0)
    assert [found.admit(MAKES, topic, 0) for topic in ("events.a", "events.b", "events.a")] == [True] * 3
    with pytest.raises(ValueError, match="topics_max, 2"):
        found.admit(MAKES, "events.c", 0)
    assert found.made == ("events.a", "events.b")


def test_the_topics_of_the_checkpoint_count_if_they_still_have_the_form():
    found = topics("events.a", "former.b")
    assert found.made == ("events.a",)
    found.admit(MAKES, "events.b", 0)
    with pytest.raises(ValueError, match="topics_max"):
        found.admit(MAKES, "events.c", 0)
    assert topics("events.a", table=LISTED).made == ()


@pytest.mark.parametrize(
    ("table", "topic", "says"),
    [
        (LISTED, "events.a", "outbox.topics does not have the topic events.a"),
        (MAKES, "events.", "outbox.topics does not have the topic events."),
        (MAKES, "other.a", "outbox.topics does not have the topic other.a"),
        (MAKES, "events.checkpoint", "another topic of the pipeline"),
        (MAKES, "events_claims", "outbox.topics does not have"),
        (MAKES, "events.claims", "another topic of the pipeline"),
        (MAKES, "events." + "x" * 243, "more than 249 characters"),
        (
            OutboxTable("shop.{value}", "to", "", "k", "p", topics_max=9),
            "shop.public.orders",
            "another topic of the",
        ),
    ],
    ids=str,
)
def test_no_other_topic_is_made(table: OutboxTable, topic: str, says: str):
    found = topics(table=table)
    with pytest.raises(ValueError, match=says):
        found.admit(table, topic, 0)
    assert found.made == ()


def test_a_refused_topic_counts_is_not_in_the_checkpoint_and_is_requested_again_later():
    found = topics()
    found.admit(MAKES, "events.a", 0)
    assert found.refuse("events.a", "not authorized", 0)
    assert not found.refuse("events.z", "unknown", 0)
    assert not found.refuse("events.listed", "for its table", 0)
    assert not found.made
    with pytest.raises(ValueError, match=r"the topic events.a is refused: not authorized"):
        found.admit(MAKES, "events.a", REFUSED_S * 1_000_000 - 1)
    found.admit(MAKES, "events.b", 0)
    with pytest.raises(ValueError, match="topics_max"):
        found.admit(MAKES, "events.c", 0)
    assert found.admit(MAKES, "events.a", REFUSED_S * 1_000_000)
    assert set(found.made) == {"events.a", "events.b"}
