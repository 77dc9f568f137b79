import json
import re
from dataclasses import replace
from pathlib import Path

from pyspark.sql import Row

import cdcd.mirror.log
from cdcd.adapters.kafka.topic_facts import TopicStart
from cdcd.mirror.log.positions import (
    EARLIEST,
    Began,
    Positions,
    _gaps,
    _lacking,
    begin,
    lost,
    passed,
    starting,
    was_read,
)

HAS = Positions({"a": {0: 10, 1: 3}, "b": {0: 5}}, {"a": "A", "b": "B"}, {}, 1, {"a": "A", "b": "B"})


def test_a_topic_that_is_as_it_was_goes_on():
    # The offset after the last record may be a transaction's marker.
    assert lost(HAS, {"a": TopicStart("A", {0: 11, 1: 0, 2: 7}), "b": TopicStart("B", {0: 0})}) == {}


def test_a_topic_whose_unread_records_are_gone_is_named_with_its_reason():
    found = lost(HAS, {"a": TopicStart("A", {0: 12, 1: 0})})
    assert found == {
        "a": "partition 0 begins at offset 12, and the log has it up to 10",
        "b": "the topic was deleted",
    }
    assert "made again" in lost(HAS, {"a": TopicStart("Z", {0: 0}), "b": TopicStart("B", {0: 0})})["a"]


def test_a_topic_that_has_stopped_is_not_judged_again():
    has = Positions(HAS.ends, HAS.ids, {"b": "it was deleted"}, 1, HAS.topics)
    assert lost(has, {"a": TopicStart("A", {0: 0, 1: 0})}) == {}


def test_a_query_starts_after_the_last_record_and_a_topic_of_another_id_at_its_beginning():
    found = {
        "a": TopicStart("A", {0: 11, 1: 0, 2: 0}),
        "b": TopicStart("Z", {0: 0}),
        "c": TopicStart("C", {0: 4}),
    }
    assert json.loads(starting(HAS, found)) == {
        "a": {"0": 11, "1": 3, "2": EARLIEST},
        "b": {"0": EARLIEST},
        "c": {"0": EARLIEST},
    }


def test_a_topic_is_read_on_after_the_log_or_where_it_begins_now():
    start = TopicStart("A", {0: 4, 1: 7, 2: 5})
    # Partition 1 has lost records, and a person let the topic go on.
    assert begin(HAS, "a", start) == {0: 10, 1: 7, 2: 5}
    assert begin(HAS, "a", replace(start, topic_id="Z")) == start.first


def test_a_partition_that_begins_after_its_end_is_found_unless_a_marker_is_all_that_is_gone():
    assert passed({0: 10, 1: 3}, {0: 12, 1: 4, 2: 0}) == [(0, 10, 12)]


def test_a_partition_that_was_added_and_lost_records_before_anybody_read_it_is_found():
    found = {"a": TopicStart("A", {0: 10, 1: 3, 2: 7}), "b": TopicStart("B", {0: 0})}
    counted = replace(HAS, is_counted=True)
    assert lost(counted, found) == {"a": "partition 2 begins at offset 7, and the log has it up to 0"}
    # A former version of cdcd did not note where a partition without a record began.
    assert lost(HAS, found) == {}


def test_a_table_lacks_the_records_that_were_gone_when_the_log_began_unless_it_had_them():
    began = Began("T", {0: 5, 1: 9}, {0: 20, 1: 20})
    assert began.after({}) == {0: 5, 1: 9}
    # The offset after the last record may be a transaction's marker.
    assert began.after({0: 4, 1: 7}) == {1: 9}
    assert began.after({0: 20, 1: 9}) == {}


def test_a_batch_read_the_records_if_the_log_goes_on_at_the_end_or_after_a_marker():
    assert [was_read(10, record) for record in (10, 11, 12, None)] == [True, True, False, False]


def test_the_log_calls_nothing_but_sparks_public_api():
    (folder,) = cdcd.mirror.log.__path__
    for file in Path(folder).glob("*.py"):
        assert not re.search(r"py4j|_jvm|_jsparkSession|_jdf|mirror\.platform\.java", file.read_text()), file


def test_one_record_that_is_gone_is_found_where_the_end_counts_markers():
    began = Began("A", {0: 5, 1: 4}, {})
    assert began.after({0: 4, 1: 4}) == {}
    assert began.after({0: 4, 1: 4}, are_exact=True) == {0: 5}


def own(kind: str, topic: str, at: int, **values: object) -> Row:
    return Row(**{"kind": kind, "topic": topic, "appended": at, "reason": None, "lsn": None, **values})


def test_a_table_that_was_read_again_lacks_nothing_that_its_topic_lost_before():
    lost_a, read_a = own("gap", "a", 1, reason="it was made again"), own("read", "a", 2, lsn=70)
    other = own("gap", "b", 3, reason="partition 0 begins at offset 9")
    assert _gaps([read_a, other, lost_a]) == {"b": "partition 0 begins at offset 9"}
    assert _lacking([read_a, other, lost_a], {"a": 50, "c": 5}) == {"a": 70, "c": 5}
    # A topic that loses records once more lacks them.
    assert _gaps([read_a, lost_a, own("gap", "a", 4, reason="again")]) == {"a": "again"}
