"""What the slot confirmed and what the partitions held then, and all records in the end: by readers of their own."""

import json
import threading
import time
from typing import Final

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from deploy.demo.topics import Raw, Reader
from tests.trial.history import TABLES, Record, Row, Sample, Write

PAUSE_S: Final = 0.04
ANSWER_S: Final = 1.0
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

CONFIRMED: Final = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"


class Sampler:
    """Samples until it is closed. A moment in which a side does not answer has no sample."""

    def __init__(self, dsn: str, slot: str, bootstrap_servers: str, prefix: str) -> None:
        self.samples: list[Sample] = []
        self._dsn, self._slot, self._prefix = dsn, slot, prefix
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._partitions: list[TopicPartition] = []
        self._topics = 0
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _work(self) -> None:
        connection: psycopg.Connection[tuple[int]] | None = None
        while not self._stop.wait(PAUSE_S):
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self._dsn, autocommit=True)
                row = connection.execute(CONFIRMED, (self._slot,)).fetchone()
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                continue
            # The ends are asked for after the slot, so that they have at least what was there when it was told.
            ends = self._ends()
            if row is not None and ends:
                self.samples.append(Sample(time.monotonic() - self._began, int(row[0]), ends))
        if connection is not None:
            connection.close()

    def _ends(self) -> dict[tuple[str, int], int]:
        if self._topics < len(TABLES):
            self._discover()
        if not self._partitions:
            return {}
        futures = self._admin.list_offsets(
            dict.fromkeys(self._partitions, LATEST),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=ANSWER_S,
        )
        ends = {}
        for partition, future in futures.items():
            try:
                offset = int(future.result().offset)
            except KafkaException:
                continue
            # A leader that was asked and did not answer in time is no error of the request, but has no offset.
            if offset >= 0:
                ends[str(partition.topic), int(partition.partition)] = offset
        return ends

    def _discover(self) -> None:
        names = {f"{self._prefix}.public.{table}" for table in TABLES}
        try:
            topics = self._admin.list_topics(timeout=ANSWER_S).topics
        except KafkaException:
            return
        found = {name: topic for name, topic in topics.items() if name in names}
        self._topics = len(found)
        self._partitions = [
            TopicPartition(name, number) for name, topic in found.items() for number in topic.partitions
        ]


def read_records(bootstrap_servers: str, prefix: str) -> list[Record]:
    """All changes that a `read_committed` reader finds, of each partition in the order of its offsets."""
    with Reader(bootstrap_servers, prefix) as reader:
        return [_record(raw) for raw in reader.read_all() if raw.value is not None]


def _record(raw: Raw) -> Record:
    assert raw.key is not None
    assert raw.value is not None
    change, key = json.loads(raw.value), json.loads(raw.key)
    source, after = change["source"], change["after"]
    row = None if after is None else Row(after["version"], after["value"], after["op"])
    return Record(
        raw.topic,
        raw.partition,
        raw.offset,
        Write(source["table"], key["key"], change["op"], row),
        source["commit_lsn"],
        source["event_serial_no"],
    )
