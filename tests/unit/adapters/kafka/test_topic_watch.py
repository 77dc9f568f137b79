"""Which leaders are asked, and what their silence means; with a Kafka made by hand.

Partitions that were added to topics of the pipeline.
"""

import time
from collections.abc import Sequence

import pytest

from cdcd.adapters.kafka.errors import Partition
from cdcd.adapters.kafka.topic_watch import TOPICS_MAX, AddedPartitions, Leaders, PartitionCounts
from cdcd.core.errors import TransientError


class Kafka:
    """Answers as it is told, and notes what it was asked."""

    where = "Kafka at here"
    is_stopping = False

    def __init__(self, leaders: dict[Partition, int]) -> None:
        self.led_by = leaders
        self.tells = True
        self.frozen: set[int] = set()
        self.looked_up: list[Sequence[str]] = []
        self.asked: list[list[Partition]] = []

    def leaders(self, topics: Sequence[str], timeout_s: float) -> dict[Partition, int]:
        self.looked_up.append(topics)
        return {each: leader for each, leader in self.led_by.items() if self.tells and each[0] in topics}

    def silent(self, partitions: Sequence[Partition], timeout_s: float) -> list[Partition]:
        self.asked.append(list(partitions))
        return [each for each in partitions if self.led_by[each] in self.frozen]


LED = {("a", 0): 1, ("a", 1): 2, ("b", 0): 2, ("b", 1): 1, ("c", 0): 3}


def ask(leaders: Leaders, *topics: str, patience_s: float = 1.0) -> None:
    leaders.ask(topics, time.monotonic() + patience_s)


def test_each_leader_is_asked_once_whatever_it_leads():
    kafka = Kafka(LED)
    ask(Leaders(kafka), "b", "a")
    assert kafka.looked_up == [["a", "b"]]
    assert sorted(kafka.asked[0]) == [("a", 0), ("a", 1)]


def test_a_silent_leader_is_named_with_what_it_leads():
    kafka = Kafka(LED)
    kafka.frozen = {3}
    ask(Leaders(kafka), "a")
    with pytest.raises(TransientError, match="broker 3, which leads partition 0 of topic c, does not answer"):
        ask(Leaders(kafka), "a", "c")


def test_leaders_that_were_named_before_are_asked_if_nobody_names_them_now():
    kafka = Kafka(LED)
    leaders = Leaders(kafka)
    ask(leaders, "c")
    kafka.tells = False
    kafka.frozen = {3}
    with pytest.raises(TransientError, match="broker 3"):
        ask(leaders, "c")
    # THEN a topic of which nobody has told anything says nothing
    ask(leaders, "a")
    assert len(kafka.asked) == 2


def test_a_partition_without_a_leader_is_waited_for_and_then_named():
    kafka = Kafka({("a", 0): -1})
    with pytest.raises(TransientError, match="partition 0 of topic a has no leader"):
        ask(Leaders(kafka), "a", patience_s=2.0)
    assert len(kafka.looked_up) > 1
    assert kafka.asked == []


def test_many_topics_are_not_all_looked_up():
    kafka = Kafka({})
    ask(Leaders(kafka), *[f"t{number}" for number in range(1000)])
    assert len(kafka.looked_up[0]) == TOPICS_MAX


def test_more_partitions_than_at_the_last_look_are_told_once():
    counts = PartitionCounts("shop")
    assert counts.look({"shop.public.t": 3, "shop.public.u": 1}) == []
    assert counts.look({"shop.public.t": 6, "shop.public.u": 1}) == [AddedPartitions("shop.public.t", 3, 6)]
    assert counts.look({"shop.public.t": 6, "shop.public.u": 1}) == []


def test_topics_of_others_and_new_topics_are_not_told():
    counts = PartitionCounts("shop", ["legacy.app.t"])
    assert counts.look({"shopping.public.t": 1, "legacy.app.t": 1}) == []
    found = counts.look({"shopping.public.t": 2, "legacy.app.t": 2, "shop.public.new": 4})
    assert found == [AddedPartitions("legacy.app.t", 1, 2)]


def test_a_topic_that_was_deleted_and_created_again_with_more_partitions_is_told():
    counts = PartitionCounts("shop")
    counts.look({"shop.public.t": 3})
    counts.look({})
    # A broker that has just come back may list a topic without its partitions.
    assert counts.look({"shop.public.t": 0}) == []
    assert counts.look({"shop.public.t": 4}) == [AddedPartitions("shop.public.t", 3, 4)]
    assert counts.look({"shop.public.t": 2}) == []
