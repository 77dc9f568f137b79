"""Records that make rows of the topics different, written behind the daemon's back so that nothing else is wrong.

A record that comes twice or out of order stays in the topic, and no `--repair` mends it. So a planted record has a
place of its own, `(commit_lsn, event_serial_no)`, behind all others of its partition and before all that follow, and
the number of a transaction that has ended. Nobody may write to the tables between the transaction whose records are
taken as models and the planted records.
"""

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from deploy.demo.fold import await_flushed
from tests.chaos.verified_tables import Table
from tests.integration.daemon import WAIT_S
from tests.integration.visible_records import await_decided

MARK: Final = b'"note":"aside"'
_OTHER: Final = b'"note":"aslde"'
BACK: Final = 100
"""Offsets before the end of a partition that are read: those of the last transactions, and their markers."""

_PLACE: Final = re.compile(rb'"commit_lsn":\d+,"event_serial_no":\d+')
_AFTER: Final = re.compile(rb'^\{"before":null,"after":(\{.*\}),"source":\{', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Model:
    """A record of an update."""

    topic: str
    partition: int
    key: bytes
    value: bytes


def altered(value: bytes, lsn: int, serial: int) -> bytes:
    """The record of an update, as one with another place and another value of one column."""
    assert value.count(MARK) == 1, value
    return _placed(value.replace(MARK, _OTHER), lsn, serial)


def deleted(value: bytes, lsn: int, serial: int) -> bytes:
    """The record of an update, as that of a delete of the same row with another place."""
    after = _AFTER.match(value)
    assert after is not None, value
    gone = b'{"before":%b,"after":null,"source":{' % after[1] + value[after.end() :]
    assert gone.count(b'"op":"u"') == 1, value
    return _placed(gone.replace(b'"op":"u"', b'"op":"d"'), lsn, serial)


def _placed(value: bytes, lsn: int, serial: int) -> bytes:
    placed, count = _PLACE.subn(b'"commit_lsn":%d,"event_serial_no":%d' % (lsn, serial), value)
    assert count == 1, value
    return placed


def plant(dsn: str, servers: str, pipeline: str, tables: Sequence[Table]) -> dict[str, set[str]]:
    """Make the rows that no writer touches different: the first of each table is altered, the others are gone.

    Returns:
        The keys of the rows, by table.
    """
    meant = [table for table in tables if table.has_key]
    with psycopg.connect(dsn) as connection:
        for table in meant:
            connection.execute(f"UPDATE {table.name} SET note = 'aside' WHERE {table.aside()}".encode())
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint % (1::bigint << 32)").fetchone()
    assert row is not None
    await_flushed(dsn, f"cdcd_{pipeline}", WAIT_S)
    topics = {f"{pipeline}.public.{table.name}": table.name for table in meant}
    models = _models(servers, list(topics), int(row[0]))
    with psycopg.connect(dsn) as connection:
        end = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert end is not None
    producer = Producer({"bootstrap.servers": servers})
    planted: dict[str, set[str]] = {}
    for serial, model in enumerate(models, 1):
        keys = planted.setdefault(f"public.{topics[model.topic]}", set())
        if keys:
            records: list[bytes | None] = [deleted(model.value, int(end[0]), serial), None]
        else:
            records = [altered(model.value, int(end[0]), serial)]
        for value in records:
            producer.produce(model.topic, value, model.key, model.partition)
        keys.add(model.key.decode())
    assert producer.flush(WAIT_S) == 0
    return planted


def _models(servers: str, topics: list[str], xid: int) -> list[Model]:
    """The records of a transaction that is the last one in these topics."""
    await_decided(servers, *topics)
    settings = {"bootstrap.servers": servers, "group.id": uuid4().hex, "isolation.level": "read_committed"}
    mark = b'"txId":%d,' % xid
    found = []
    with closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
        listed = consumer.list_topics(timeout=WAIT_S).topics
        places = [TopicPartition(topic, each) for topic in topics for each in listed[topic].partitions]
        for place in places:
            low, high = consumer.get_watermark_offsets(place, timeout=WAIT_S)
            place.offset = max(low, high - BACK)
        consumer.assign(places)
        left = len(places)
        while left:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left -= 1
                    continue
                topic, key, value = message.topic(), message.key(), message.value()
                if isinstance(key, bytes) and isinstance(value, bytes) and mark in value:
                    found.append(Model(str(topic), message.partition() or 0, key, value))
    return found
