"""A second producer with the same transactional id fences the first one, which has records in flight.

The next call of the first producer raises the fatal error `_FENCED`, whatever its `on_delivery` does.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.adapters.kafka.client import make_producer
from deploy.local import KafkaBroker

WAIT_S = 30
SLICE_S = 0.5
RECORDS = (1, 3, 10)
"""Where the fatal error comes among the reports of failed records depends on how many there are."""


def keep(_error: KafkaError | None, _message: object) -> None:
    """A callback that raises nothing. The SystemError then has the fatal error as its cause."""


def lose(_error: KafkaError | None, _message: object) -> None:
    """A callback that raises and catches an exception. The fatal error, which was set before, is lost by that."""
    with suppress(KeyError):
        raise KeyError


@pytest.mark.parametrize("records", RECORDS)
@pytest.mark.parametrize("on_delivery", [keep, lose])
@pytest.mark.parametrize("call", ["flush", "commit_transaction"])
def test_the_fatal_error_is_raised(
    broker: KafkaBroker, records: int, on_delivery: Callable[..., None], call: str
) -> None:
    name = f"fatal-{call}-{on_delivery.__name__}-{records}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
    properties: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": name,
        "log_level": 0,
    }
    producer = make_producer({**properties, "on_delivery": on_delivery, "delivery.report.only.error": True})
    producer.init_transactions(WAIT_S)
    Producer(properties).init_transactions(WAIT_S)
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(name, b"value", b"key")
    with pytest.raises(KafkaException) as raised:
        repeat(getattr(producer, call))
    error = raised.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)


def repeat(call: Callable[[float], object]) -> None:
    """Repeat the call until it raises, as the sink does."""
    for _ in range(int(WAIT_S / SLICE_S)):
        call(SLICE_S)
