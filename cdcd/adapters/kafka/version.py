"""Which Kafka client is in use."""

from confluent_kafka import libversion


def librdkafka_version() -> str:
    return str(libversion()[0])
