"""Constructs confluent_kafka's clients. No other module of cdcd does so.

A constructor of confluent_kafka reads the properties in C, and answers each exception that is raised meanwhile with a
TypeError about the properties (confluent_kafka.c, common_conf_setup). Ctrl-C in that moment would end a command with
that traceback. So the handlers of SIGINT and SIGTERM are called when the constructor has returned.
"""

import signal
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from cdcd.adapters.kafka.telling_producer import TellingProducer

_WAITING: Final = (signal.SIGINT, signal.SIGTERM)

C = TypeVar("C")


def make_consumer(properties: Mapping[str, Any]) -> Consumer:
    """A consumer. KafkaException: librdkafka refuses a property."""
    return _constructed(Consumer, properties)


def make_producer(properties: Mapping[str, Any]) -> Producer:
    """A producer. KafkaException: librdkafka refuses a property."""
    return _constructed(TellingProducer, properties)


def make_admin(properties: Mapping[str, Any]) -> AdminClient:
    """A client for topics and their settings. KafkaException: librdkafka refuses a property."""
    return _constructed(AdminClient, properties)


def _constructed(kind: Callable[[dict[str, Any]], C], properties: Mapping[str, Any]) -> C:
    with _uninterrupted():
        return kind(dict(properties))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    # Python calls handlers in the main thread only. A blocked signal would not do: another thread could take it, and
    # Python would call the handler all the same. asyncio's handlers do not raise in the middle of anything.
    if threading.current_thread() is not threading.main_thread() or _get_running_loop() is not None:
        yield
        return
    heard: list[int] = []
    handlers = {number: handler for number in _WAITING if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: heard.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for taken in heard:
            handlers[signal.Signals(taken)](taken, None)
