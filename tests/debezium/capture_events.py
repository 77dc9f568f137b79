"""What a real Debezium writes as CloudEvents: `python -m tests.debezium.capture_events`, into `golden/`.

One worker of Kafka Connect runs a connector for each way to use CloudEventsConverter (`VARIANTS`), all of them on the
changes of `capture.py`. `unit/core/records/cloudevents/test_debezium_events.py` makes the same events and compares.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from deploy.local import KafkaBroker, PostgresServer
from tests.bench.debezium import VERSION, start_connectors
from tests.debezium.capture import CHANGES, LIMIT_S, SETUP, settings

GOLDEN: Final = Path(__file__).parent / "golden" / "cloudevents.json"
_CONVERTER: Final = {
    "value.converter": "io.debezium.converters.CloudEventsConverter",
    "key.converter.schemas.enable": "false",
    "table.include.list": "public.orders,public.log",
}
VARIANTS: Final[dict[str, dict[str, str]]] = {
    "plain": {**_CONVERTER, "value.converter.json.schemas.enable": "false"},
    "schemas": {**_CONVERTER, "value.converter.json.schemas.enable": "true"},
    "counted": {
        **_CONVERTER,
        "value.converter.json.schemas.enable": "false",
        "provide.transaction.metadata": "true",
    },
    "bare": {
        **_CONVERTER,
        "value.converter.json.schemas.enable": "false",
        "value.converter.extension.attributes.enable": "false",
    },
}
"""The connectors' settings beside those of `capture.py`, by their topic prefix."""

RECORDS: Final = {"public.orders": 7, "public.log": 3, "message": 1}


def capture() -> dict[str, Any]:
    """The records by variant and topic: key, value and headers, parsed."""
    with tempfile.TemporaryDirectory(prefix="cdcd-debezium-") as name:
        folder = Path(name)
        # PostgreSQL runs as another user where this one is root.
        folder.chmod(0o711)
        with PostgresServer(18, folder / "postgres") as server, KafkaBroker(folder / "kafka") as broker:
            return _captured(folder, server, broker)


def _captured(folder: Path, server: PostgresServer, broker: KafkaBroker) -> dict[str, Any]:
    for statement in SETUP:
        server.execute(statement)
    for prefix in VARIANTS:
        server.execute(f"SELECT pg_create_logical_replication_slot('{prefix}', 'pgoutput')")
    for statement in CHANGES:
        server.execute(statement)
    connectors = {
        prefix: {**settings(), "topic.prefix": prefix, "slot.name": prefix, **variant}
        for prefix, variant in VARIANTS.items()
    }
    worker = start_connectors(folder, "worker", server, broker, connectors)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "capture"})
    wanted = {f"{prefix}.{topic}": count for prefix in VARIANTS for topic, count in RECORDS.items()}
    found: dict[str, list[Any]] = {topic: [] for topic in wanted}
    consumer.assign([TopicPartition(topic, 0, 0) for topic in wanted])
    deadline = time.monotonic() + LIMIT_S
    try:
        while any(len(found[topic]) < count for topic, count in wanted.items()):
            if time.monotonic() > deadline or not worker.is_running():
                log = (folder / "worker.log").read_text()
                raise SystemExit(f"{ {t: len(r) for t, r in found.items()} }\n{log[-6000:]}")
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            headers: Any = message.headers() or ()
            topic, key, value = message.topic(), message.key(), message.value()
            assert topic is not None
            found[topic].append(
                {
                    "key": None if key is None else json.loads(key),
                    "value": None if value is None else json.loads(value),
                    "headers": [name for name, _ in headers if not name.startswith("__debezium.context")],
                }
            )
    finally:
        consumer.close()
        worker.kill()
    return {"debezium": VERSION, "records": found}


def main() -> None:
    GOLDEN.parent.mkdir(exist_ok=True)
    captured = capture()
    GOLDEN.write_text(json.dumps(captured, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{GOLDEN}: Debezium {captured['debezium']}\n")


if __name__ == "__main__":
    main()
