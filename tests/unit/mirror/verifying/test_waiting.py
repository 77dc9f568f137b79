from collections.abc import Iterator
from typing import Any, cast

import pytest

from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.targets.state import Place, State
from cdcd.mirror.targets.target import Kind, Newest, Target
from cdcd.mirror.verifying import waiting
from cdcd.mirror.verifying.waiting import Waiting, unread_from
from cdcd.tools.verify.delivery import NotDeliveredError

TOPIC = "shop.public.t"
HAS = State(partitions={0: Place(90, 1, 1, 9), 1: Place(80, 1, 1, 4)})


def test_only_what_lies_after_a_place_and_is_still_there_may_be_lacking():
    assert unread_from(HAS, {0: 0, 1: 0}, {0: 10, 1: 5}) == {}
    assert unread_from(HAS, {0: 0, 1: 0}, {0: 12, 1: 5, 2: 3}) == {0: 10, 2: 0}
    # Retention has removed what lay between, and a partition is empty.
    assert unread_from(HAS, {0: 12, 1: 0, 2: 0}, {0: 12, 1: 6, 2: 0}) == {1: 5}


class FakeAdmin:
    """Each look, the committed ends are the next ones."""

    def __init__(self, *committed: int) -> None:
        self._committed = iter(committed)

    def both_ends(self, topics: list[str]) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        return {TOPIC: {0: 10}}, {TOPIC: {0: next(self._committed)}}

    def beginnings(self, topics: list[str]) -> dict[str, dict[int, int]]:
        return {TOPIC: {0: 0}}


class FakeTarget:
    """A table in one state after the other."""

    def __init__(self, *states: State) -> None:
        self._states: Iterator[State] = iter(states)
        self.asked = 0

    def newest(self, spark: object, name: str) -> Newest:
        self.asked += 1
        return Newest(cast("Any", None), Kind.MIRROR, next(self._states), cast("Any", None))

    def own_name(self, name: str) -> str:
        return name

    def has(self, spark: object, name: str) -> bool:
        return False


def waits(target: FakeTarget, admin: FakeAdmin, timeout_s: float = 60) -> Waiting:
    return Waiting(
        cast("Any", None), cast("Target", target), KafkaSource("b:1"), cast("Admin", admin), timeout_s
    )


def test_a_version_counts_when_the_topic_is_seen_whole_and_the_version_has_it(
    monkeypatch: pytest.MonkeyPatch,
):
    # GIVEN a Kafka transaction that a partition does not show yet
    monkeypatch.setattr(waiting, "LOOK_S", 0)
    target = FakeTarget(HAS)
    # WHEN it does show it, THEN the version is looked at for the first time
    found = waits(target, FakeAdmin(7, 8, 10)).reached("t", "public.t", TOPIC, 100)
    assert found is not None
    assert found.state == HAS
    assert target.asked == 1


def test_a_mirror_that_does_not_get_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "LOOK_S", 0)
    with pytest.raises(NotDeliveredError, match="brought public") as caught:
        waits(FakeTarget(), FakeAdmin(*[7] * 1000), timeout_s=0).reached("t", "public.t", TOPIC, 100)
    assert caught.value.exit_code == 9
