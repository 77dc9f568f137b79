"""What of librdkafka's log gets through."""

import ast
import asyncio
import ctypes
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from cdcd.adapters.kafka.client import LOGGER, TellingProducer, make_admin, make_consumer, make_producer


def test_without_a_configured_log_it_says_nothing():
    assert any(isinstance(handler, logging.NullHandler) for handler in LOGGER.handlers)


ROOT = Path(__file__).parents[4]
PROPERTIES: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


class Interrupting:
    """The name of a property. Its process gets a signal while a constructor reads it."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send

    def __str__(self) -> str:
        self._send()
        return "client.id"


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def named(send: Callable[[], None]) -> dict[Any, Any]:
    return {**PROPERTIES, Interrupting(send): "me"}


INTERRUPTED = named(lambda: signal.raise_signal(signal.SIGINT))


def test_each_kind_of_client_is_made():
    assert isinstance(make_admin(PROPERTIES), AdminClient)
    producer = make_producer(PROPERTIES)
    assert isinstance(producer, Producer)
    consumer = make_consumer({**PROPERTIES, "group.id": "g"})
    assert isinstance(consumer, Consumer)
    consumer.close()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[Any]]:
    # Whoever runs the tests in the background has them ignore SIGINT.
    former = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    yield before
    after = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    signal.signal(signal.SIGINT, former[0])
    assert after == before


def test_an_interrupt_is_heard_when_the_client_is_made_and_as_one():
    with pytest.raises(KeyboardInterrupt):
        make_admin(INTERRUPTED)


def test_another_thread_that_takes_the_signal_changes_nothing():
    # Python notes the signal in whatever thread takes it, and calls the handler in the main one.
    ours, its = socket.socketpair()
    its.setblocking(False)
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()

    def send() -> None:
        assert other.ident is not None
        signal.pthread_kill(other.ident, signal.SIGINT)
        assert ours.recv(1) == bytes([signal.SIGINT])

    with ours, its:
        signal.set_wakeup_fd(its.fileno())
        try:
            with pytest.raises(KeyboardInterrupt):
                make_producer(named(send))
        finally:
            signal.set_wakeup_fd(-1)
            over.set()
            other.join()


def test_every_handler_is_called_after_the_constructor_also_of_one_that_fails():
    heard: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        with pytest.raises(KafkaException):
            make_producer({**named(terminate), "no.such.property": 1})
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == [signal.SIGTERM]


def test_clients_are_made_in_other_threads_and_beside_an_event_loop():
    async def beside() -> tuple[AdminClient, AdminClient]:
        before = signal.getsignal(signal.SIGINT)
        made = make_admin(PROPERTIES), await asyncio.to_thread(make_admin, PROPERTIES)
        assert signal.getsignal(signal.SIGINT) == before
        return made

    assert all(isinstance(each, AdminClient) for each in asyncio.run(beside()))


def test_an_ignored_signal_stays_ignored():
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        make_producer(named(terminate))
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_bare_constructor_makes_another_error_of_an_interrupt():
    # Why the handlers are called later. If this fails, confluent_kafka needs no help any more.
    with pytest.raises(TypeError, match="property name"):
        AdminClient(INTERRUPTED)


def test_no_other_module_constructs_a_client():
    for path in sorted((ROOT / "cdcd").rglob("*.py")):
        text = path.read_text()
        if path.name == "client.py" or "confluent_kafka" not in text:
            continue
        called = {
            node.func.id
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"Consumer", "Producer", "AdminClient"}, path


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


def raise_no_exception(value: object) -> None:
    """Raise a value that is no exception, as only code in C can."""
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes, restore.restype = [ctypes.py_object, ctypes.py_object, ctypes.c_void_p], None
    # The call takes over a reference to each.
    for each in (type(value), value):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    restore(type(value), value, None)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python raises a SystemError instead")
def test_an_error_that_is_raised_and_is_no_exception_becomes_one():
    fenced = KafkaError(KafkaError._FENCED, "another producer has the transactional id", True)
    producer = TellingProducer(PROPERTIES)
    with pytest.raises(KafkaException) as raised:
        producer._telling(lambda _: raise_no_exception(fenced), 0.0)
    assert raised.value.args[0].code() == KafkaError._FENCED
