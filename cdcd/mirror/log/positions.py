"""What the log says of its own topics: how far it has each of them, which stopped, and which the query has now.

The log itself is the truth. Spark's checkpoint saves the reading of it, and may be lost: a query without a checkpoint
starts at the offsets after the last ones of the log. Three kinds of rows are the log's own, and no record:

- `started`, with the topics and their ids in `value`. `off` is the number of the set of topics. Each set has a
  checkpoint of its own, because a checkpoint that is older than the log would give records twice.
- `stopped`, with a topic, its id and the reason. The topic is left out until the row is deleted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.kafka.topic_facts import TopicStart
from cdcd.mirror.jars import DELTA
from cdcd.mirror.log.table import COLUMNS

EARLIEST: Final = -2
"""Offset that Spark's Kafka source takes for the beginning of a partition."""

_MARKER: Final = 1
"""Offsets after the last record that a marker of a transaction may have taken. Such an offset is no record."""


@dataclass(frozen=True, slots=True)
class Positions:
    """What the log has.

    Attributes:
        ends: by topic and partition, the offset after the last record of the topic with the id `ids[topic]`.
        ids: by topic, the id of the topic that was read last.
        stopped: topics that are left out.
        number: of the last set of topics; 0: none was started.
        topics: the last set of topics, with their ids.
    """

    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    number: int = 0
    topics: Mapping[str, str] = field(default_factory=dict)


def read(spark: SparkSession, name: str) -> Positions:
    """Read the positions from the log `name`."""
    log = spark.table(name)
    stopped = {row["topic"] for row in log.filter("kind = 'stopped'").select("topic").distinct().collect()}
    started = log.filter("kind = 'started'").orderBy(sf.desc("off")).limit(1).collect()
    topics = {} if not started else dict(json.loads(bytes(started[0]["value"])))
    found = (
        log.filter("kind NOT IN ('started', 'stopped')")
        .groupBy("topic", "topic_id", "part")
        .agg(sf.max("off").alias("last"))
        .collect()
    )
    ids = {row["topic"]: row["topic_id"] for row in found} | topics
    ends: dict[str, dict[int, int]] = {}
    for row in found:
        if row["topic_id"] == ids[row["topic"]]:
            ends.setdefault(row["topic"], {})[row["part"]] = row["last"] + 1
    return Positions(ends, ids, frozenset(stopped), started[0]["off"] if started else 0, topics)


def lost(has: Positions, found: Mapping[str, TopicStart]) -> dict[str, str]:
    """The topics whose records are gone that the log has not read, and why."""
    reasons = {}
    for topic, topic_id in has.topics.items():
        if topic in has.stopped:
            continue
        start = found.get(topic)
        if start is None:
            reasons[topic] = "the topic was deleted"
        elif start.topic_id != topic_id:
            reasons[topic] = "the topic was deleted, and made again under its name"
        else:
            ends = has.ends.get(topic, {})
            for part, first in sorted(start.first.items()):
                end = ends.get(part)
                if end is not None and first > end + _MARKER:
                    reasons[topic] = (
                        f"partition {part} begins at offset {first}, and the log has it up to {end}"
                    )
                    break
    return reasons


def starting(has: Positions, found: Mapping[str, TopicStart]) -> str:
    """The option `startingOffsets` for a query without a checkpoint: the log's own offsets."""
    offsets = {}
    for topic, start in found.items():
        ends = has.ends.get(topic, {}) if has.ids.get(topic) == start.topic_id else {}
        offsets[topic] = {
            str(part): max(ends[part], first) if part in ends else EARLIEST
            for part, first in start.first.items()
        }
    return json.dumps(offsets)


def note_started(
    spark: SparkSession, name: str, table_format: str, number: int, topics: Mapping[str, str]
) -> None:
    """Append the row that starts a set of topics."""
    value = json.dumps(dict(sorted(topics.items()))).encode()
    _append(spark, name, table_format, [{"kind": "started", "off": number, "value": bytearray(value)}])


def note_stopped(
    spark: SparkSession, name: str, table_format: str, reasons: Mapping[str, str], ids: Mapping[str, str]
) -> None:
    """Append a row for each topic that stops."""
    stops = [
        {"kind": "stopped", "topic": topic, "topic_id": ids.get(topic), "reason": reason}
        for topic, reason in reasons.items()
    ]
    _append(spark, name, table_format, stops)


def let_go_on(name: str, topic: str) -> str:
    """Return the SQL statement after which the log reads a stopped topic again, from the topic's present records."""
    return f"DELETE FROM {name} WHERE kind = 'stopped' AND topic = '{topic}'"  # noqa: S608 - a person runs it


def _append(spark: SparkSession, name: str, table_format: str, stops: Sequence[Mapping[str, object]]) -> None:
    now = datetime.now(UTC)
    values = [tuple([{"ts": now, **each}.get(column) for column in COLUMNS]) for each in stops]
    types = ", ".join(f"`{column}` {type_}" for column, type_ in COLUMNS.items())
    frame = spark.createDataFrame(values, types).coalesce(1)
    if table_format == DELTA:
        frame.write.format("delta").mode("append").insertInto(name)
    else:
        frame.writeTo(name).append()
