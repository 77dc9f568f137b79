"""Requests in a topic of Kafka, in Debezium's form, from a producer to the rows that are read."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import write
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

SNAPSHOT: Final[dict[str, Any]] = {
    "type": "execute-snapshot",
    "data": {"data-collections": ["public.orders"]},
}


def signal(broker: KafkaBroker, unique: str, value: Any, *, key: str = "") -> None:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    write(broker, f"{unique}_signals", [((key or unique).encode(), text)])


def started(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, **snapshot: Any
) -> Daemon:
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            snapshot={"signal_topic": f"{unique}_signals", "signals_from": "authorized", **snapshot},
        )
    )
    process.await_streaming()
    return process


def test_signals_are_carried_out_once_also_those_that_came_while_nothing_ran(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a topic with a signal from before the pipeline, which is not carried out
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 10)"
    )
    create_topics(broker.bootstrap_servers, f"{unique}_signals")
    signal(broker, unique, {"type": "pause-snapshot"})
    process = started(database, broker, daemon, unique)
    process.await_event("signals.read")

    # WHEN signals come: for another connector, malformed, not allowed, and right ones
    signal(broker, unique, SNAPSHOT, key="another")
    signal(broker, unique, b"nonsense")
    conditions = [{"data-collection": "public.orders", "filter": "id > 5"}]
    signal(broker, unique, {**SNAPSHOT, "data": {**SNAPSHOT["data"], "additional-conditions": conditions}})
    signal(broker, unique, {"type": "execute-snapshot", "data": {"data-collections": ["public.none"]}})
    signal(broker, unique, {**SNAPSHOT, "id": "first"})

    # THEN the right one is carried out, and each wrong one is refused with its reason
    process.await_event("table.read", table="public.orders", rows=10)
    reasons = [event["reason"] for event in process.events if event["event"] == "snapshot.refused"]
    assert len(reasons) == 3
    assert "not JSON" in reasons[0]
    assert "snapshot.signals" in reasons[1]
    assert "public.none" in reasons[2]
    assert not process.saw("signals.unread")

    # AND a signal that comes while no instance runs is carried out by the next one, and none a second time
    assert process.stop() == 0
    signal(broker, unique, {**SNAPSHOT, "id": "second"})
    mark = process.mark()
    process.start()
    process.await_streaming()
    process.await_event("table.read", table="public.orders", rows=10, after=mark)
    signal(broker, unique, {"type": "pause-snapshot"})
    process.await_event("snapshot.signalled", action="pause", after=mark)
    signalled = [event for event in process.events[mark:] if event["event"] == "snapshot.signalled"]
    assert [event["action"] for event in signalled] == ["start", "pause"]
    assert process.stop() == 0


def test_a_topic_that_is_missing_stops_nothing_and_is_read_once_it_is_there(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    process = started(database, broker, daemon, unique)
    assert process.await_event("signals.unread")["topic"] == f"{unique}_signals"
    create_topics(broker.bootstrap_servers, f"{unique}_signals")
    process.await_event("signals.read")
    signal(broker, unique, {"type": "resume-snapshot"})
    process.await_event("snapshot.signalled", action="resume")
    assert process.is_running()
