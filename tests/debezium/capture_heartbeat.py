"""What a real Debezium writes as a heartbeat: `python -m tests.debezium.capture_heartbeat`, into `golden/`.

`tests/unit/core/records/debezium_json/test_heartbeats.py` compares cdcd's record with it.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from deploy.local import KafkaBroker, PostgresServer
from tests.bench.debezium import VERSION, start_connector
from tests.debezium.capture import LIMIT_S, PREFIX, settings

GOLDEN: Final = Path(__file__).parent / "golden" / "heartbeat.json"
TOPIC: Final = f"__debezium-heartbeat.{PREFIX}"
SETUP: Final = (
    "CREATE TABLE beats (id int)",
    "CREATE PUBLICATION p FOR TABLE beats",
    "SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')",
)
QUERY: Final = "INSERT INTO public.beats VALUES (1)"


def capture() -> dict[str, Any]:
    """The first heartbeat, with key and value parsed."""
    with tempfile.TemporaryDirectory(prefix="cdcd-debezium-") as name:
        folder = Path(name)
        # PostgreSQL runs as another user where this one is root.
        folder.chmod(0o711)
        with PostgresServer(18, folder / "postgres") as server, KafkaBroker(folder / "kafka") as broker:
            return _captured(folder, server, broker)


def _captured(folder: Path, server: PostgresServer, broker: KafkaBroker) -> dict[str, Any]:
    for statement in SETUP:
        server.execute(statement)
    given = {**settings(), "heartbeat.interval.ms": "500", "heartbeat.action.query": QUERY}
    connector = start_connector(folder, "debezium", server, broker, given)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "capture"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    deadline = time.monotonic() + LIMIT_S
    try:
        while True:
            if time.monotonic() > deadline or not connector.is_running():
                raise SystemExit((folder / "debezium.log").read_text()[-6000:])
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            headers: Any = message.headers() or ()
            return {
                "key": json.loads(key),
                "value": json.loads(value),
                "headers": [name for name, _ in headers],
                "topic": message.topic(),
            }
    finally:
        consumer.close()
        connector.kill()


def main() -> None:
    captured = {"debezium": VERSION, **capture()}
    GOLDEN.write_text(json.dumps(captured, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{GOLDEN}: Debezium {VERSION}\n")


if __name__ == "__main__":
    main()
