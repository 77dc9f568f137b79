from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.verifying import waiting
from cdcd.mirror.verifying.waiting import (
    Deletes,
    Reached,
    Seen,
    StoppedTableError,
    Until,
    Waiting,
    unread_from,
)
from cdcd.mirror.watching.stops import Stop
from cdcd.tools.verify.delivery import NotDeliveredError

TOPIC = "shop.public.t"
HAS = {0: 10, 1: 5}
LACKS = Reached(lacks=True)
SEEN = Seen(cast("TableSchema", None), cast("Any", None))


def test_only_what_lies_after_a_place_and_is_still_there_may_be_lacking():
    assert unread_from(HAS, Until(TOPIC, {0: 0, 1: 0}, {0: 10, 1: 5}, 1)) == {}
    assert unread_from(HAS, Until(TOPIC, {0: 0, 1: 0}, {0: 12, 1: 5, 2: 3}, 1)) == {0: 10, 2: 0}
    # Retention has removed what lay between, and a partition is empty.
    assert unread_from(HAS, Until(TOPIC, {0: 12, 1: 0, 2: 0}, {0: 12, 1: 6, 2: 0}, 1)) == {1: 5}


class FakeStarts:
    """Each look, the committed ends are the next ones."""

    def __init__(self, *committed: int) -> None:
        self._committed = iter(committed)

    def both_ends(self, topics: list[str]) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        return {TOPIC: {0: 10}}, {TOPIC: {0: next(self._committed)}}

    def beginnings(self, topics: list[str]) -> dict[str, dict[int, int]]:
        return {TOPIC: {0: 0}}


class FakeTables:
    """A table in one version after the other."""

    def __init__(self, *versions: Reached, stop: Stop | None = None) -> None:
        self._versions: Iterator[Reached] = iter(versions)
        self._stop = stop
        self.asked: list[Until] = []

    def name_of(self, schema: TableSchema) -> str:
        raise NotImplementedError

    def stop(self, topic: str) -> Stop | None:
        return self._stop

    def newest(self, name: str, until: Until) -> Reached:
        self.asked.append(until)
        return next(self._versions)

    def deletes(self, topic: str, lsn: int) -> Deletes | None:
        raise NotImplementedError

    def quarantined(self, topic: str) -> int:
        raise NotImplementedError


def waits(tables: FakeTables, starts: FakeStarts, timeout_s: float = 60) -> Waiting:
    return Waiting(tables, cast("TopicStarts", starts), timeout_s)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_S", 0)


def test_a_version_counts_when_the_topic_is_seen_whole_and_the_version_has_it():
    # GIVEN a Kafka transaction that a partition does not show yet, and a version that lacks something
    tables = FakeTables(LACKS, Reached(lacks=False, seen=SEEN))
    # WHEN the partition shows it, THEN versions are asked for until one lacks nothing
    found = waits(tables, FakeStarts(7, 8, 10, 10)).reached("t", "public.t", TOPIC, 100)
    assert found is SEEN
    assert tables.asked == [Until(TOPIC, {0: 0}, {0: 10}, 100)] * 2


def test_a_mirror_that_does_not_get_there_is_named():
    with pytest.raises(NotDeliveredError, match="brought public") as caught:
        waits(FakeTables(), FakeStarts(*[7] * 1000), timeout_s=0).reached("t", "public.t", TOPIC, 100)
    assert caught.value.exit_code == 9


def test_tables_share_the_time_and_each_is_asked_for_once_after_it():
    # GIVEN a first table that used up the time
    tables = FakeTables(LACKS, Reached(lacks=False))
    each = waits(tables, FakeStarts(10, 10), timeout_s=0)
    with pytest.raises(NotDeliveredError):
        each.reached("t", "public.t", TOPIC, 100)
    # WHEN a second table has everything, THEN it is compared
    assert each.reached("u", "public.u", TOPIC, 100) is None


def test_a_stopped_table_is_not_waited_for():
    stop = Stop("public.t", datetime.now(UTC), waits=False, message="its key changed", hint="")
    with pytest.raises(StoppedTableError, match="its key changed"):
        waits(FakeTables(stop=stop), FakeStarts(10)).reached("t", "public.t", TOPIC, 100)
