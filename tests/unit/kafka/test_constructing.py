"""A client is constructed, and then its process hears that it was interrupted."""

import ast
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from cdcd.kafka.constructing import make_admin, make_consumer, make_producer

ROOT = Path(__file__).parents[3]
PROPERTIES: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


class Interrupting:
    """The name of a property, whose process is interrupted while a constructor reads it."""

    def __str__(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "client.id"


def test_each_kind_of_client_is_made():
    assert isinstance(make_admin(PROPERTIES), AdminClient)
    producer = make_producer(PROPERTIES)
    assert isinstance(producer, Producer)
    consumer = make_consumer({**PROPERTIES, "group.id": "g"})
    assert isinstance(consumer, Consumer)
    consumer.close()


def test_an_interrupt_is_heard_when_the_client_is_made_and_as_one():
    named: dict[Any, Any] = {**PROPERTIES, Interrupting(): "me"}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(KeyboardInterrupt):
        make_admin(named)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_bare_constructor_makes_another_error_of_an_interrupt():
    # Why the clients are constructed with signals that wait. If this fails, confluent_kafka needs no help any more.
    named: dict[Any, Any] = {**PROPERTIES, Interrupting(): "me"}
    with pytest.raises(TypeError, match="property name"):
        AdminClient(named)


def test_a_refused_property_leaves_nothing_blocked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(KafkaException):
        make_producer({"no.such.property": 1})
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_no_other_module_constructs_a_client():
    for path in sorted((ROOT / "cdcd").rglob("*.py")):
        if path.name == "constructing.py":
            continue
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"Consumer", "Producer", "AdminClient"}, path
