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
