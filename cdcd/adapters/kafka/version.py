"""Version of the Kafka client."""

from confluent_kafka import libversion


def librdkafka_version() -> str:
    return str(libversion()[0])
