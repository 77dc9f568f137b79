"""The watch of Kafka: which client asks, and when another one takes its place."""

from types import SimpleNamespace

import pytest

from cdcd.adapters.kafka.errors import Partition
from cdcd.adapters.kafka.outage import HANGS_S, SETTLE_S, EndOffsets
from cdcd.core.errors import TransientError
from cdcd.daemon import kafka_watch
from cdcd.daemon.kafka_watch import RENEW_S, KafkaWatch
from tests.unit.config.test_loading import parse

CONFIG = parse("")


class Clients:
    """Makes clients in place of librdkafka's, on a clock that the test moves. Those of `deaf` never get an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.deaf: set[int] = set()
        self.now = 1000.0
        monkeypatch.setattr(kafka_watch, "Admin", self._make)
        monkeypatch.setattr(kafka_watch, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.written: list[frozenset[str]] = []
        self.ends: dict[Partition, EndOffsets] = {}
        self.told: list[tuple[list[Partition], dict[Partition, int]]] = []
        self.watch = KafkaWatch(
            CONFIG,
            lambda asked_at, failure: None,
            lambda: self.written,
            hanging=lambda found, every: self.told.append((found, dict(every))),
        )

    def _make(self, *_: object) -> SimpleNamespace:
        self.made += 1
        number = self.made

        def ask(topic: str) -> None:
            if number in self.deaf:
                raise TransientError("Kafka does not answer.")

        def ends(topics: list[str]) -> dict[Partition, EndOffsets]:
            return {place: found for place, found in self.ends.items() if place[0] in topics}

        return SimpleNamespace(ask=ask, ends=ends, leaders=lambda *_: {}, where="Kafka", is_stopping=False)

    def answers_after(self, seconds: float) -> bool:
        """Whether the question gets an answer that is asked so much later."""
        self.now += seconds
        failure = self.watch._attempt()
        if failure is None:
            self.watch._look_for_hanging()
        return failure is None


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    return Clients(monkeypatch)


def test_a_client_that_hears_nothing_for_long_gives_way_to_another_one(clients: Clients):
    # GIVEN an outage, after which the client of before goes on without answers
    assert clients.answers_after(1)
    clients.deaf = {1}
    assert not clients.answers_after(1)
    assert not clients.answers_after(RENEW_S - 2)
    assert clients.made == 1
    # WHEN it has heard nothing for long, THEN another client asks
    assert not clients.answers_after(2)
    assert clients.answers_after(1)
    assert clients.made == 2


def test_a_client_that_gets_answers_stays(clients: Clients):
    for _ in range(10):
        assert clients.answers_after(RENEW_S)
    assert clients.made == 1


def test_in_a_long_outage_clients_are_made_now_and_then(clients: Clients):
    clients.deaf = set(range(100))
    for _ in range(100):
        assert not clients.answers_after(4)
    assert clients.made == pytest.approx(400 / RENEW_S, abs=5)


def test_after_an_outage_transactions_that_hang_are_told_of_once_and_their_end_too(clients: Clients):
    place = ("shop.public.orders", 2)
    clients.ends = {place: EndOffsets(7, 900)}
    # GIVEN a transaction that is open while Kafka is away
    assert clients.answers_after(1)
    clients.written = [frozenset({place[0]}), frozenset({"shop.public.items"})]
    clients.deaf = {1}
    assert not clients.answers_after(4)
    clients.deaf.clear()
    # WHEN Kafka is back, the transaction ends, and readers still stop before it
    assert clients.answers_after(1)
    clients.written = []
    for _ in range(int(HANGS_S) - 1):
        assert clients.answers_after(1)
        assert clients.told == []
    # THEN it is told
    for _ in range(3):
        assert clients.answers_after(1)
    assert clients.told == [([place], {place: 7})]
    # AND its end
    clients.ends = {place: EndOffsets(902, 902)}
    assert clients.answers_after(1)
    assert clients.told[1:] == [([], {})]


def test_without_an_outage_nobody_asks_where_partitions_end(clients: Clients):
    clients.written = [frozenset({"shop.public.orders"})]
    clients.ends = {("shop.public.orders", 0): EndOffsets(7, 900)}
    for _ in range(30):
        assert clients.answers_after(1)
    assert clients.told == []


def test_transactions_wait_after_an_outage(clients: Clients):
    assert clients.answers_after(1)
    assert clients.watch.settling.wait_s(clients.now, clients.now) == 0
    clients.deaf = {1}
    assert not clients.answers_after(4)
    assert clients.watch.settling.wait_s(clients.now, clients.now) == SETTLE_S
    clients.deaf.clear()
    assert clients.answers_after(1)
    assert clients.watch.settling.wait_s(clients.now, clients.now + 1) == SETTLE_S - 1
