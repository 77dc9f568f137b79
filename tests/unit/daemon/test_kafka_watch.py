"""The watch of Kafka: which client asks, and when another one takes its place."""

from types import SimpleNamespace

import pytest

from cdcd.daemon import kafka_watch
from cdcd.daemon.kafka_watch import RENEW_S, KafkaWatch
from cdcd.errors import CdcdError, TransientError
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
        self.watch = KafkaWatch(CONFIG, lambda asked_at, failure: None, frozenset)

    def _make(self, *_: object) -> SimpleNamespace:
        self.made += 1
        number = self.made

        def ask(topic: str) -> None:
            if number in self.deaf:
                raise TransientError("Kafka does not answer.")

        return SimpleNamespace(ask=ask)

    def answers_after(self, seconds: float) -> bool:
        """Whether the question gets an answer that is asked so much later."""
        self.now += seconds
        try:
            self.watch._ask()
        except CdcdError:
            return False
        return True


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
