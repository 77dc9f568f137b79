"""Who can write into the topic of signals: what they ask for is bounded, and nothing they write stops the daemon."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cdcd.core.engine.refusals import REFUSALS_MAX
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import bomb, write
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration

pytestmark = pytest.mark.postgres(only=18)


@pytest.mark.attack(
    gains="a daemon that ends, a log that is full, or SQL of the writer's choice", before="withstood"
)
def test_signals_of_a_stranger_are_refused_in_few_lines_and_the_next_one_is_carried_out(
    database: Database, broker: KafkaBroker, daemon: Callable[[dict[str, Any]], Daemon], unique: str
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    topic = f"{unique}_signals"
    create_topics(broker.bootstrap_servers, topic)
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"signal_topic": topic, "signals_from": "authorized"},
        )
    )
    process.await_streaming()
    process.await_event("signals.read")

    def start(*tables: str, **more: Any) -> bytes:
        return json.dumps({"type": "execute-snapshot", "data": {"data-collections": tables, **more}}).encode()

    dropped = [{"data-collection": "public.orders", "filter": "true; DROP TABLE orders"}]
    hostile = [
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b"\xff" * 900_000,
        start("public.orders'; DROP TABLE orders; --"),
        start("public.orders", **{"additional-conditions": dropped}),
        start(*["public.orders"] * 5000),
        *[b"nonsense"] * 3000,
    ]
    write(broker, topic, [(unique.encode(), each) for each in hostile])
    assert None not in bomb(broker, topic, "zstd", 2)
    write(broker, topic, [(unique.encode(), start("public.orders"))])
    process.await_event("table.read", table="public.orders", rows=1)
    assert database.execute("SELECT count(*) FROM orders") == [(1,)]
    lines = [event for event in process.events if event["event"] == "snapshot.refused"]
    assert len(lines) < REFUSALS_MAX + 60
    assert all(len(event["reason"]) <= 210 for event in lines)
    assert process.stop() == 0
