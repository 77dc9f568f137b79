"""Constructs confluent_kafka's clients. No other module of cdcd does so.

A constructor of confluent_kafka reads the properties in C, and answers each exception that is raised meanwhile with a
TypeError about the properties (confluent_kafka.c, common_conf_setup). Ctrl-C in that moment would end a command with
that traceback. So SIGINT and SIGTERM wait until the constructor has returned.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

_WAITING: Final = (signal.SIGINT, signal.SIGTERM)

C = TypeVar("C")


def make_consumer(properties: Mapping[str, Any]) -> Consumer:
    """A consumer. KafkaException: librdkafka refuses a property."""
    return _constructed(Consumer, properties)


def make_producer(properties: Mapping[str, Any]) -> Producer:
    """A producer. KafkaException: librdkafka refuses a property."""
    return _constructed(Producer, properties)


def make_admin(properties: Mapping[str, Any]) -> AdminClient:
    """A client for topics and their settings. KafkaException: librdkafka refuses a property."""
    return _constructed(AdminClient, properties)


def _constructed(kind: Callable[[dict[str, Any]], C], properties: Mapping[str, Any]) -> C:
    with _uninterrupted():
        return kind(dict(properties))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    # Asked first: whoever blocks a signal may hear of one that came before, and the mask would stay.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
