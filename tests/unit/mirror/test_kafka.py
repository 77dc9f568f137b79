import pytest

from cdcd.core.errors import ConfigError
from cdcd.mirror.kafka import TASK_RECORDS, KafkaSource, tasks


def test_what_the_guarantees_rest_on_is_not_left_to_the_properties():
    source = KafkaSource(
        "b:1", {"isolation.level": "read_uncommitted", "bootstrap.servers": "c:1", "ssl.x": "y"}
    )
    options = source.options()
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafka.bootstrap.servers"] == "b:1"
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.ssl.x"] == "y"


def test_secrets_are_not_shown():
    shown = repr(
        KafkaSource("b:1", {"sasl.jaas.config": "s3cret", "ssl.key.password": "s3cret", "acks": "1"})
    )
    assert "s3cret" not in shown
    assert "'acks': '1'" in shown


SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="cdcd" password="s3cret";'
LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM}


def test_the_login_of_spark_is_that_of_the_client_which_looks_at_topics():
    assert KafkaSource("b:1", LOGIN, {"client.id": "job"}).librdkafka() == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "cdcd",
        "sasl.password": "s3cret",
        "client.id": "job",
    }


def test_a_login_that_only_java_can_have_is_given_to_the_other_client_too():
    kerberos = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(ConfigError, match="mechanism is GSSAPI") as refused:
        KafkaSource("b:1", kerberos).librdkafka()
    assert "KafkaSource" in refused.value.hint
    own = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI", "sasl.kerberos.keytab": "/keytab"}
    assert KafkaSource("b:1", kerberos, own).librdkafka() == {**own, "bootstrap.servers": "b:1"}


def test_secrets_of_the_other_client_are_not_shown():
    own = {"sasl.password": "s3cret", "ssl.key.pem": "s3cret", "client.id": "job"}
    shown = repr(KafkaSource("b:1", {"ssl.keystore.key": "s3cret"}, own))
    assert "s3cret" not in shown
    assert "'client.id': 'job'" in shown


def test_a_large_slice_of_few_partitions_is_read_by_several_tasks():
    assert tasks({0: 0}, {0: 2_000_000}, 4) == {"minPartitions": "8"}
    assert tasks({0: 0}, {0: 3 * TASK_RECORDS}, 4) == {"minPartitions": "3"}
    # Where each partition is little work, or there are enough of them, Spark has one task for each.
    assert tasks({0: 10}, {0: 10 + TASK_RECORDS}, 4) == {}
    assert tasks({0: 0, 1: 0, 2: 0}, {0: 2_000_000, 1: 5, 2: 5}, 1) == {}


def test_a_broker_does_not_wait_for_records_after_those_that_are_there():
    assert KafkaSource("b:9092").options()["kafka.fetch.max.wait.ms"] == "10"
    asked = KafkaSource("b:9092", {"fetch.max.wait.ms": "500"})
    assert asked.options()["kafka.fetch.max.wait.ms"] == "500"


def test_clients_have_no_metrics_unless_somebody_asks_for_them():
    assert KafkaSource("b:9092").options()["kafka.enable.metrics.push"] == "false"
    asked = {"enable.metrics.push": "true", "metric.reporters": "org.example.Reporter"}
    options = KafkaSource("b:9092", asked).options()
    assert options["kafka.enable.metrics.push"] == "true"
    assert options["kafka.metric.reporters"] == "org.example.Reporter"
