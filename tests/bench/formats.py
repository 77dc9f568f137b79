"""Each format, and rules for rows and columns, beside plain JSON on the same content of the WAL."""

from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from deploy.local.kafka_broker import KafkaBroker
from tests.bench.drain import Drained

PLAIN: Final = "json"
LOOKED_AT: Final = 5000
"""Records of which the size is taken."""


def variants(registry: str) -> dict[str, dict[str, Any]]:
    """The settings of each daemon beside those that are the same for all."""
    in_registry = {"registry": {"url": registry}}
    return {
        PLAIN: {},
        "json_schema": {"format": {"key": "json_schema", "value": "json_schema"}},
        "avro": {"format": {"key": "avro", "value": "avro"}, **in_registry},
        "protobuf": {"format": {"key": "protobuf", "value": "protobuf"}, **in_registry},
        "cloudevents": {"format": {"value": "cloudevents"}},
        "json, one column masked, one hashed": {
            "columns": {
                "mask": {"public.item.note": "***"},
                "hash": ["public.item.reference"],
                "hash_key": "a key for measuring",
            }
        },
        "json, filtered": {
            "filters": {
                "tables": {
                    "public.item": {"keep": "row.amount >= 0 && row.status != 'draft'", "old_row": "assumed"}
                }
            }
        },
    }


def record_bytes(broker: KafkaBroker, topic: str) -> float:
    """The mean size of a record's key and value."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        sizes: list[int] = []
        while len(sizes) < LOOKED_AT:
            messages = consumer.consume(1000, 10)
            assert messages, f"{topic} has {len(sizes)} records"
            sizes += [
                len(each.key() or b"") + len(each.value() or b"") for each in messages if each.error() is None
            ]
        return sum(sizes) / len(sizes)
    finally:
        consumer.close()


def report(runs: Mapping[str, list[Drained]], sizes: Mapping[str, float]) -> list[str]:
    """A line for each variant. Ratios are of medians, to plain JSON."""
    lines = [
        "| | rows/s | of JSON's | CPU a row, µs | of JSON's | bytes a record | of JSON's |",
        f"|{'---|' * 7}",
    ]
    plain_rate, plain_cpu = (median(each) for each in _figures(runs[PLAIN]))
    for name, drained in runs.items():
        rates, costs = _figures(drained)
        rate, cost = median(rates), median(costs)
        lines.append(
            f"| {name} | {rate:,.0f} ({min(rates):,.0f} … {max(rates):,.0f}) | {rate / plain_rate:.2f} | {cost:.2f} "
            f"({min(costs):.2f} … {max(costs):.2f}) | {cost / plain_cpu:.2f} | {sizes[name]:.0f} | "
            f"{sizes[name] / sizes[PLAIN]:.2f} |"
        )
    return lines


def _figures(drained: list[Drained]) -> tuple[list[float], list[float]]:
    """Rows a second while it streams, and microseconds of CPU a row."""
    return [each.rows / each.streaming_s for each in drained], [each.cpu_us for each in drained]
