import pytest

from deploy.demo.history import examine
from deploy.demo.topics import Raw
from tests.unit.deploy.synthetic import Topics

ONE, TWO = {"id": 1}, {"id": 2}


def good() -> Topics:
    topics = Topics()
    topics.begin(100).insert("t", ONE, id=1, name="a").insert("t", TWO, id=2, name="b")
    topics.begin(200).update("t", ONE, id=1, name="c").rekey("t", TWO, {"id": 3}, id=3, name="b")
    topics.begin(300).truncate("t", "other").delete("t", {"id": 3}, id=3)
    return topics


def kinds(topics: Topics, **options: bool) -> set[str]:
    return set(examine(topics.records, **options).violations.counts)


def test_a_good_history_has_no_violations() -> None:
    history = examine(good().records)
    assert not history.violations, list(history.violations.lines())
    assert (history.records, len(history.events), history.tombstones) == (10, 8, 2)
    assert [len(events) for events in history.transactions()] == [2, 3, 3]


def test_events_are_in_the_order_of_their_places_whatever_the_order_of_topics() -> None:
    topics = Topics()
    topics.begin(100).insert("late", ONE, id=1)
    topics.begin(50).insert("early", ONE, id=1)
    assert [event.table for event in examine(topics.records).events] == ["early", "late"]


def test_a_record_that_comes_again_is_a_violation_wherever_it_lies() -> None:
    assert kinds(good().again(0)) == {"an event twice", "order falls within a partition"}
    assert "an event twice" in kinds(good().again(1, partition=1))


def test_half_of_a_key_change_that_comes_again_is_a_violation() -> None:
    topics = good()
    created = next(n for n, raw in enumerate(topics.records) if dict(raw.headers).get("__debezium.oldkey"))
    assert "an event twice" in kinds(topics.again(created))


def test_a_key_change_without_its_other_half_is_a_violation() -> None:
    topics = good()
    topics.records = [raw for raw in topics.records if "__debezium.oldkey" not in dict(raw.headers)]
    assert kinds(topics) == {"half of a changed key"}


def test_at_least_once_leaves_out_what_comes_again() -> None:
    topics = good().again(0).again(1)
    history = examine(topics.records, exactly_once=False)
    assert not history.violations
    assert len(history.events) == 8


def test_two_events_with_one_number_are_a_violation() -> None:
    topics = Topics()
    topics.begin(100).insert("t", ONE, id=1)
    topics.begin(100).insert("other", TWO, id=2)
    assert kinds(topics) == {"two events with one number"}


def test_a_commit_order_that_falls_within_a_partition_is_a_violation() -> None:
    topics = Topics()
    topics.begin(200).insert("t", ONE, id=1)
    topics.begin(100).insert("t", TWO, id=2)
    assert kinds(topics) == {"order falls within a partition"}


def test_a_missing_event_leaves_a_gap() -> None:
    topics = Topics()
    topics.begin(100).insert("t", ONE, id=1).insert("t", TWO, id=2).insert("t", {"id": 3}, id=3)
    del topics.records[1]
    assert kinds(topics) == {"events missing in a transaction"}
    assert not kinds(topics, whole=False)


def test_a_delete_without_its_tombstone_is_a_violation() -> None:
    topics = Topics()
    topics.begin(100).insert("t", ONE, id=1).delete("t", ONE, tombstone=False, id=1)
    assert kinds(topics) == {"delete without its tombstone"}
    topics.insert("t", ONE, id=1)
    assert kinds(topics) == {"delete without its tombstone"}


def test_watermarks_are_passed_over() -> None:
    topics = good()
    mark = Raw(topics.records[0].topic, 0, 99, None, None, (("cdcd.watermark", b"4711"),))
    history = examine([mark, *topics.records, mark])
    assert not history.violations
    assert (history.records, history.tombstones) == (10, 2)


def test_a_tombstone_without_its_delete_is_a_violation() -> None:
    assert kinds(Topics().begin(100).insert("t", ONE, id=1).tombstone("t", ONE)) == {
        "tombstone without its delete"
    }


def test_a_key_has_one_partition() -> None:
    topics = Topics()
    topics.begin(100).insert("t", ONE, id=1)
    topics.begin(200).update("t", ONE, id=1)
    raw = topics.records.pop()
    topics.records.append(Raw(raw.topic, 1, 0, raw.key, raw.value))
    assert kinds(topics) == {"a key in two partitions"}


@pytest.mark.parametrize(
    "value",
    [
        b"no json",
        b"{}",
        b'{"op": "x", "source": {"commit_lsn": 1, "event_serial_no": 1, "schema": "", "table": "", "txId": 1}}',
    ],
)
def test_what_is_no_event_is_a_violation(value: bytes) -> None:
    history = examine([Raw("p.t", 0, 0, None, value)])
    assert set(history.violations.counts) == {"not an event"}


def test_a_key_that_is_not_the_rows_is_a_violation() -> None:
    assert kinds(Topics().begin(100).insert("t", ONE, id=2)) == {"not an event"}


def test_violations_are_counted_and_the_first_few_shown() -> None:
    topics = Topics().begin(100)
    for number in range(9):
        topics.insert("t", {"id": number}, id=number + 1)
    lines = list(examine(topics.records).violations.lines())
    assert lines[0] == "not an event: 9"
    assert lines[-1].strip() == "and 4 more"
