"""How long a reader waits: when the workload's transactions are seen by a `read_committed` consumer."""

import json
import threading
import time
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from deploy.demo.events_log import TABLE

POLL_S: Final = 0.1


class Watch:
    """Watches the topic of the workload's log, of which every transaction writes a row."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self._servers = bootstrap_servers
        self._topic = f"{prefix}.public.{TABLE}"
        self._seen: list[tuple[float, float]] = []
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def wait_s(self, since: float, timeout_s: float = 120) -> float:
        """Seconds from `since` (Unix time) until the first transaction that was committed after it was seen."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                found = [seen for committed, seen in self._seen if committed > since]
                if found:
                    return min(found) - since
                left = deadline - time.monotonic()
                assert left > 0, f"no new record in {timeout_s:g} s"
                self._news.wait(left)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "watch",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            while self._topic not in consumer.list_topics(timeout=10).topics:
                if self._stop.wait(POLL_S):
                    return
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            while not self._stop.is_set():
                message = consumer.poll(POLL_S)
                if message is None:
                    continue
                if error := message.error():
                    raise KafkaException(error)
                committed = json.loads(message.value() or b"")["source"]["ts_ms"] / 1000
                with self._news:
                    self._seen.append((committed, time.time()))
                    self._news.notify_all()
        finally:
            consumer.close()
