"""The table of Kafka's refusals."""

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.adapters.kafka.errors import (
    _TABLE,
    RETRIABLE,
    fill_names,
    filled,
    map_kafka_error,
    passes,
    property_error,
    rights_hint,
)
from cdcd.core.errors import CdcdError, ConfigError, FencedError, LimitError, SinkError, TransientError


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._FENCED, FencedError),
        (KafkaError.PRODUCER_FENCED, FencedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkError),
        (KafkaError._AUTHENTICATION, SinkError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, SinkError),
        (KafkaError.MSG_SIZE_TOO_LARGE, SinkError),
        (KafkaError._TRANSPORT, TransientError),
        (KafkaError._DESTROY_BROKER, TransientError),
        (KafkaError._ALL_BROKERS_DOWN, TransientError),
        (KafkaError.NOT_ENOUGH_REPLICAS, TransientError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, TransientError),
        (KafkaError.NOT_COORDINATOR, TransientError),
        (KafkaError.INVALID_PRODUCER_EPOCH, TransientError),
        (KafkaError.TRANSACTION_ABORTABLE, TransientError),
    ],
)
def test_an_error_of_kafka_has_the_kind_that_decides_what_the_daemon_does(
    code: int, kind: type[CdcdError]
) -> None:
    error = map_kafka_error(KafkaError(code), "writing to shop.public.orders")
    assert type(error) is kind
    assert error.message.startswith("writing to shop.public.orders: ")
    assert error.hint


def test_every_name_of_the_table_is_one_that_librdkafka_knows_and_stands_there_once() -> None:
    names = [name for row in _TABLE for name in row.names.split()]
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(KafkaError, name)] == []


def test_an_unknown_refusal_of_the_broker_is_fatal_and_one_of_librdkafka_itself_is_not() -> None:
    assert type(map_kafka_error(KafkaError(KafkaError.INVALID_GROUP_ID), "x")) is SinkError
    assert type(map_kafka_error(KafkaError(KafkaError._BAD_MSG), "x")) is TransientError


@pytest.mark.parametrize("code", sorted(RETRIABLE))
def test_what_kafka_calls_retriable_passes_although_an_error_made_from_a_code_does_not_say_so(
    code: int,
) -> None:
    error = KafkaError(code)
    assert not error.retriable(), "confluent_kafka says so now: `passes` may ask it alone"
    assert passes(error)
    assert type(map_kafka_error(error, "x")) is TransientError


def test_a_transactional_call_says_itself_that_its_error_passes() -> None:
    logger = logging.getLogger("cdcd.tests.librdkafka")
    logger.setLevel(logging.CRITICAL + 1)
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "transactional.id": "x", "logger": logger})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(0.1)
    assert caught.value.args[0].retriable()


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._PARTITION_EOF,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.INVALID_MSG,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ],
)
def test_a_refusal_the_end_of_a_partition_and_what_stays_do_not_pass(code: int) -> None:
    assert not passes(KafkaError(code))


def test_every_code_of_librdkafka_is_mapped() -> None:
    codes = [getattr(KafkaError, name) for name in dir(KafkaError) if name.isupper() and name != "NO_ERROR"]
    for code in codes:
        assert map_kafka_error(KafkaError(code), "x").message.startswith("x: ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SSL handshake failed: error:0A000086:SSL routines::certificate verify failed", "ssl.ca.location"),
        ("Receive failed: ssl/tls alert bad certificate: SSL alert number 42", "ssl.certificate.location"),
    ],
)
def test_what_tls_refuses_is_no_outage(text: str, hint: str) -> None:
    found = map_kafka_error(KafkaError(KafkaError._TRANSPORT, text), "Kafka")
    assert isinstance(found, SinkError)
    assert hint in found.hint


def test_names_are_filled_in_where_they_are_known():
    error = map_kafka_error(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), "x")
    fill_names(error, {"bootstrap": "b:1", "user": "cdcd", "transactional.id": "cdcd-shop"})
    assert error.hint == (
        "kafka-acls --bootstrap-server b:1 --add --allow-principal User:cdcd --operation Write "
        "--transactional-id cdcd-shop"
    )
    assert filled(rights_hint(), {}) == rights_hint()


def test_a_hint_about_rights_names_topics_without_the_prefix() -> None:
    assert rights_hint(["shop.public.a"], "shop") == rights_hint() == rights_hint(["orders"])
    hint = rights_hint(["orders", "shop.public.a", *[f"t{number}" for number in range(6)]], "shop")
    assert "--operation Write --operation Create --topic orders --topic t0" in hint
    assert "(and 2 more topics)" in hint
    assert "shop.public.a" not in hint
    assert hint.endswith(rights_hint())


def test_a_property_that_librdkafka_refuses_is_the_configurations_fault():
    error = property_error(
        KafkaError(KafkaError._INVALID_ARG, 'No such configuration property: "x"'), "Kafka at b"
    )
    assert isinstance(error, ConfigError)
    assert 'No such configuration property: "x"' in error.message


def test_a_file_of_tls_may_be_there_at_the_next_start():
    said = "Failed to create admin client: ssl.ca.location failed: error:05880020:x509 certificate routines::BIO lib"
    assert type(property_error(KafkaError(KafkaError._INVALID_ARG, said), "x")) is SinkError


@pytest.mark.parametrize(
    ("code", "text", "kind", "hint"),
    [
        # As librdkafka 2.16 says them: the length is the first four bytes of the answer.
        (
            KafkaError._BAD_MSG,
            (
                "10.0.0.1:5432/bootstrap: Receive failed: Invalid response size 1157627904 (0..100000000): increase "
                "receive.message.max.bytes (after 7ms in state APIVERSION_QUERY)"
            ),
            SinkError,
            "PostgreSQL listens there",
        ),
        (
            KafkaError._BAD_MSG,
            "b:8083/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000)",
            SinkError,
            "An HTTP server listens there",
        ),
        (
            KafkaError._BAD_MSG,
            "b:9093/bootstrap: Receive failed: Invalid response size 352518912 (0..100000000)",
            SinkError,
            "speaks TLS",
        ),
        (
            KafkaError._TRANSPORT,
            (
                "kafka.internal:29092/1: Connect to ipv4#10.0.0.7:29092 failed: Connection refused (after 0ms in state "
                "CONNECT)"
            ),
            TransientError,
            "gave kafka.internal:29092 as the address of broker 1 (its advertised.listeners)",
        ),
        (
            KafkaError._RESOLVE,
            "kafka.internal:29092/3: Failed to resolve 'kafka.internal:29092': Name or service not known",
            TransientError,
            "gave kafka.internal:29092 as the address of broker 3",
        ),
        (
            KafkaError._TRANSPORT,
            "b:9092/bootstrap: Connect to ipv4#10.0.0.7:9092 failed: Connection refused",
            TransientError,
            "Check that the broker runs, that kafka.bootstrap_servers names an address",
        ),
    ],
)
def test_what_listens_at_an_address_and_who_gave_the_address_are_told(
    code: int, text: str, kind: type[CdcdError], hint: str
) -> None:
    found = map_kafka_error(KafkaError(code, text), "Kafka")
    assert (type(found), hint in found.hint) == (kind, True), found


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_a_socket_that_this_process_may_not_open_is_no_broker_that_is_away(code: int):
    said = "b:1/bootstrap: Failed to create socket: Too many open files (after 0ms in state CONNECT)"
    error = map_kafka_error(KafkaError(code, said), "Kafka at b:1")
    assert type(error) is LimitError
    assert "ulimit -n" in error.hint
