"""`TellingProducer` raises the fatal error of a producer although confluent_kafka has lost the error.

In `tests/integration/test_kafka_fatal_errors.py`, confluent_kafka itself loses the error.
"""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.adapters.kafka.telling_producer import TellingProducer

FENCED = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", True))
BUSY = KafkaException(KafkaError(KafkaError._STATE, "a transaction is open"))
CALLS = ("poll", "flush", "init_transactions", "commit_transaction", "abort_transaction")


class Ending(Producer):
    """A producer that behaves as confluent_kafka does after a fatal error: each call raises a SystemError."""

    cause: Exception | None = None
    told: KafkaException | None = FENCED

    def poll(self, timeout: float = -1) -> int:
        raise SystemError("returned NULL without setting an exception") from self.cause

    def flush(self, timeout: float = -1) -> int:
        return self.poll(timeout)

    def init_transactions(self, timeout: float = -1) -> None:
        self.poll(timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        self.poll(timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        self.poll(timeout)

    def begin_transaction(self) -> None:
        if self.told is not None:
            raise self.told


class Telling(TellingProducer, Ending):
    """A `TellingProducer` whose base class is `Ending`."""


def ended(call: str, cause: Exception | None, told: KafkaException | None) -> KafkaError:
    """The error that `call` raises. `cause` is the SystemError's, `told` is what `begin_transaction` raises."""
    properties: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = Telling(properties)
    producer.cause, producer.told = cause, told
    with pytest.raises(KafkaException) as raised:
        getattr(producer, call)(0.1)
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return error


@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_python_kept_as_the_cause_is_raised(call: str) -> None:
    assert ended(call, FENCED, None).code() == KafkaError._FENCED


@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_was_lost_is_asked_for(call: str) -> None:
    assert ended(call, None, FENCED).code() == KafkaError._FENCED


@pytest.mark.parametrize("told", [BUSY, None])
def test_a_producer_that_does_not_tell_its_error_has_ended_all_the_same(told: KafkaException | None) -> None:
    error = ended("flush", None, told)
    assert (error.code(), error.fatal()) == (KafkaError._FATAL, True)


def test_another_cause_is_not_taken_for_the_error() -> None:
    assert ended("poll", ValueError("of somebody else"), FENCED).code() == KafkaError._FENCED
