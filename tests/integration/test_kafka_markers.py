"""Topics whose settings make Kafka refuse the markers that end transactions.

If the second test fails because the new producer gets an answer at once, this version of Kafka repeats such a marker,
and `marker_problem` (`kafka/topics.py`) is no longer needed for it.
"""

import threading
from collections.abc import Callable

import pytest

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.kafka.topics import marker_problems
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.transactions.position import Position
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics, set_topic
from tests.integration.test_kafka_sink import sink_of
from tests.integration.visible_records import visible


def test_topics_that_may_refuse_markers_are_found_by_their_settings(broker: KafkaBroker, unique: str):
    names = [f"{unique}.{name}" for name in ("usual", "early", "tiny", "stamped")]
    settings: list[dict[str, str]] = [
        {},
        {"message.timestamp.before.max.ms": "1"},
        {"max.message.bytes": "60"},
        {"message.timestamp.before.max.ms": "1", "message.timestamp.type": "LogAppendTime"},
    ]
    for name, config in zip(names, settings, strict=True):
        create_topics(broker.bootstrap_servers, name, config=config)
    admin = Admin({"bootstrap.servers": broker.bootstrap_servers})
    # A topic that is gone meanwhile hides no other one.
    assert marker_problems(admin, [f"{unique}.gone", *names], []).keys() == {names[1], names[2]}
    # Topics that were created with the same settings are judged by one of them.
    assert marker_problems(admin, [], [names[1], f"{unique}.other"]).keys() == {names[1], f"{unique}.other"}
    assert marker_problems(admin, [], []) == {}


@pytest.mark.long
def test_a_transaction_that_a_refused_marker_keeps_open_is_told_and_ends_as_documented(
    private_broker: Callable[..., KafkaBroker], unique: str
):
    # GIVEN a topic whose settings were changed after cdcd had checked them
    broker = private_broker()
    topic, position, stopping = f"{unique}.records", Position(1, 2), threading.Event()
    create_topics(broker.bootstrap_servers, topic, config={"max.message.bytes": "60"})

    def deliver(sink: Sink) -> None:
        batch = Batch(position, position, items=[(topic, b"1", b"a record", None)])
        sink.deliver(batch, Checkpoint("1", 1, "", position, 0))

    # WHEN the topic refuses a record, and then the marker that aborts the transaction
    told: list[CdcdError] = []

    def stop_at_first_retry(error: CdcdError, _wait_s: float) -> None:
        told.append(error)
        stopping.set()

    sink = sink_of(broker, unique, on_retry=stop_at_first_retry, stopping=stopping, timeout_s=3)
    sink.open()
    with pytest.raises(TransientError, match="CONCURRENT_TRANSACTIONS"):
        deliver(sink)

    # THEN the wait for the end of the transaction is reported with the topic
    (retry,) = told
    assert "CONCURRENT_TRANSACTIONS" in retry.message
    assert f"Topic {topic} has max.message.bytes=60" in retry.message
    assert f"--entity-name {topic} --add-config max.message.bytes=128" in retry.hint
    assert "restart the broker that is the transaction's coordinator" in retry.hint

    # AND with other settings and a restart of the coordinator, the transaction ends
    set_topic(broker.bootstrap_servers, topic, {"max.message.bytes": "1048588"})
    broker.restart()
    sink = sink_of(broker, unique, topic=unique)
    sink.open()
    deliver(sink)
    sink.close()
    assert visible(broker.bootstrap_servers, topic) > 0
