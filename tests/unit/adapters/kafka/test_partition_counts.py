"""Partitions that were added to topics of the pipeline."""

from cdcd.adapters.kafka.partition_counts import AddedPartitions, PartitionCounts


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
