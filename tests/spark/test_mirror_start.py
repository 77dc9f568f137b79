"""What a mirror asks Kafka for when it starts, however many tables are described."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.cli.mirror_parts import lake_of, settings_of
from cdcd.config.mirror import parse_mirror
from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.errors import SinkUnavailableError
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.watching.progress import Fact, MirrorStarted
from deploy.local.kafka_broker import KafkaBroker
from tests.integration.daemon import until

TABLES = int(os.environ.get("CDCD_TEST_TOPICS", "60"))
"""Number of tables. The number of calls does not depend on it. The figure in docs/evidence.md was taken with 2,000."""

CALLS_MAX = 20


class Counted:
    """Kafka's admin client, which counts its calls to brokers."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name not in {"close", "poll"}:
            self.calls[name] += 1
        return getattr(self._client, name)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    """A broker with the topics of many tables, which are described and have no records yet."""
    with KafkaBroker(tmp_path / "kafka", heap_mb=1000) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = [NewTopic(f"shop.public.t_{number}", 1, 1) for number in range(TABLES)]
        topics += [
            NewTopic(f"shop.{name}", 1, 1, config={"cleanup.policy": "compact"})
            for name in ("schemas", "checkpoint")
        ]
        for made in admin.create_topics(topics, operation_timeout=300).values():
            made.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(TABLES):
            column = ColumnForm("id", 1, "bigint", 20, -1, "int64")
            form = TableForm("public", f"t_{number}", f"shop.public.t_{number}", ("id",), (column,))
            key, value = form.record()
            producer.produce("shop.schemas", value, key)
        assert producer.flush(60) == 0
        starts = TopicStarts({"bootstrap.servers": broker.bootstrap_servers})

        def all_lead() -> bool | None:
            """True as soon as each new partition has its leader."""
            try:
                starts.both_ends([topic.topic for topic in topics])
            except SinkUnavailableError:
                return None
            return True

        until(all_lead, "the partitions have leaders")
        yield broker.bootstrap_servers


def test_a_start_asks_kafka_as_often_for_many_tables_as_for_one(
    spark: SparkSession, servers: str, tmp_path: Path
):
    config = {
        "name": "shop",
        "kafka": {"bootstrap_servers": servers},
        "target": {"namespace": "started", "stream_checkpoint": str(tmp_path / "checkpoint")},
        "maintenance": {"interval_s": None},
    }
    parsed = parse_mirror(yaml.safe_dump(config), {})
    facts: list[tuple[float, Fact]] = []
    began, cpu = time.monotonic(), time.process_time()
    mirror = BaseJob(
        spark,
        settings_of(parsed),
        lake_of(parsed),
        parsed.kafka.librdkafka(),
        lambda fact: facts.append((time.monotonic(), fact)),
    )
    topics: Any = mirror._topics
    client = topics._client = Counted(topics._client)
    mirror.run(once=True, stop=threading.Event())
    took = time.monotonic() - began
    started = [(at - began, fact.topics) for at, fact in facts if isinstance(fact, MirrorStarted)]
    print(f"{TABLES} tables: started after {started[0][0]:.1f} s, each table looked at after {took:.1f} s")
    print(f"{time.process_time() - cpu:.1f} s of Python's CPU")
    print(dict(client.calls))
    assert [topics for _, topics in started] == [TABLES]
    assert mirror.stopped == {}
    assert client.calls.total() <= CALLS_MAX, client.calls
