"""Public name of `cdcd.mirror.kafka`."""

from cdcd.mirror.kafka import KafkaSource

__all__ = ["KafkaSource"]
