"""What the log says of its own topics: how far it has each of them, which stopped, and which the query has now.

The log itself is the truth. Spark's checkpoint saves the reading of it, and may be lost: a query without a checkpoint
starts at the offsets after the last ones of the log. Seven kinds of rows are the log's own, and no record. They have no
day:

- `started`, with the mirror's name, the mark of the log's version, and the topics with their ids and offsets in
  `value`. The offset of a partition without a record is its first one at that time. So a partition that is empty, and
  loses records later, is found too. `off` is the number of the set of topics. Each set has a checkpoint of its own,
  because a checkpoint that is older than the log would give records twice.
- `stopped`, with a topic, its id and the reason. The topic is left out until the row is deleted.
- `began`, with a topic and its id, if Kafka had removed records of it before the log began to read it, as when the log
  was dropped and made again. `value` has the offsets of that time. It stays, because a table may lack these records.
- `gap`, written together with `stopped`. It stays, because a table that is folded from the log lacks the lost records.
- `read`, with a topic and an LSN in `lsn`, after Spark has read the topic's table from the database at this LSN. The
  table lacks no record that the topic lost before.
- `table_stopped`, with the topic of a table that cannot be folded, since when, the reason, and the hint in `value`. The
  row is deleted when the table goes on.
- `positions`, which sums up the records that were in the log at one moment. `off` is the number of the row. A later
  reader reads the records that were appended since, and old records can be deleted.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.kafka.topic_facts import TopicStart
from cdcd.mirror.jars import DELTA
from cdcd.mirror.log.table import COLUMNS, LogPlace
from cdcd.mirror.platform.sql import text
from cdcd.mirror.watching.stops import Stop

EARLIEST: Final = -2
"""Offset that Spark's Kafka source takes for the beginning of a partition."""

_MARKER: Final = 1
"""Offsets after the last record that a marker of a transaction may have taken. Such an offset is no record."""

OVERLAP: Final = timedelta(hours=1)
"""How far the clock of a driver may be behind the clock of the one before it. Records that a row `positions` sums up
are read again for this time."""

DELETED: Final = "the topic was deleted"
"""Why a topic stops that does not exist any more."""

Ends = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset after the last record."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of the log up to a row `positions`.

    Attributes:
        number: of the row; 0: there is none.
        until: greatest `appended` of the records; None: there was no record.
        deleted: by topic, the greatest LSN of a record that retention deleted, or that the topic had lost before its
            table was read again.
        sorted_day: the last day that compaction has sorted as a whole.
        listed_at: when files of no version were last looked for.
    """

    number: int = 0
    until: datetime | None = None
    deleted: Mapping[str, int] = field(default_factory=dict)
    sorted_day: date | None = None
    listed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Began:
    """The offsets at which the log began to read a topic. Kafka had removed earlier records of the topic.

    Attributes:
        topic_id: Kafka's id of the topic.
        first: by partition, the first offset that was there, if it was not 0.
        ends: by partition, the offset after the last record of that time.
    """

    topic_id: str
    first: Mapping[int, int]
    ends: Mapping[int, int]

    def after(self, ends: Mapping[int, int], *, are_exact: bool = False) -> dict[int, int]:
        """The first offsets of partitions that lack records at or after `ends`, by partition.

        `are_exact`: the ends count markers of transactions too. Otherwise, a marker may follow them.
        """
        if are_exact:
            return {part: first for part, first in self.first.items() if first > ends.get(part, 0)}
        return {part: first for part, _, first in passed(ends, self.first)}


@dataclass(frozen=True, slots=True)
class Positions:
    """What the log has.

    Attributes:
        ends: of the topics with the ids in `ids`.
        ids: by topic, the id of the topic that was read last.
        stopped: topics that are left out, with the reason.
        number: of the last set of topics; 0: none was started.
        topics: the last set of topics, with their ids.
        mirror: name of the mirror that started the last set; "": none was started.
        mark: of the log's version when the last set was started (`lineage.py`); "": it had none.
        summary: of the newest row `positions`, but for `until`, which counts later records too.
        has_new: there are records later than those of the newest row `positions`.
        saved_at: time of the newest row `positions`, which each maintenance writes; None: there is none.
        tables: tables that cannot be folded, by topic.
        gaps: topics that lost records which the log has not read, with the reason.
        began: topics that had lost records before the log began to read them.
        is_counted: `ends` has each partition that the topics of the last set had when it was started.
    """

    ends: Ends = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    topics: Mapping[str, str] = field(default_factory=dict)
    mirror: str = ""
    mark: str = ""
    summary: Summary = field(default_factory=Summary)
    has_new: bool = False
    saved_at: datetime | None = None
    tables: Mapping[str, Stop] = field(default_factory=dict)
    gaps: Mapping[str, str] = field(default_factory=dict)
    began: Mapping[str, Began] = field(default_factory=dict)
    is_counted: bool = False

    @property
    def deleted(self) -> Mapping[str, int]:
        """By topic, the greatest LSN of a record that retention has deleted."""
        return self.summary.deleted


def read(spark: SparkSession, name: str, version: str = "") -> Positions:
    """Read the positions from the log `name`: its own rows, and the records since the newest row `positions`.

    `version`: of the log. "": the current version.
    """
    log = at_version(spark, name, version)
    own = (
        log.filter("day IS NULL")
        .select("kind", "topic", "topic_id", "off", "lsn", "tbl", "ts", "appended", "reason", "value")
        .collect()
    )
    started = max((row for row in own if row["kind"] == "started"), key=lambda row: row["off"], default=None)
    saved = max((row for row in own if row["kind"] == "positions"), key=lambda row: row["off"], default=None)
    set_ = {} if started is None else json.loads(bytes(started["value"]))
    said = {} if saved is None else json.loads(bytes(saved["value"]))
    records = log.filter("day IS NOT NULL")
    until = _time(said.get("until"))
    if until is not None:
        since = until - OVERLAP
        records = records.filter(
            (sf.col("day") >= sf.lit(since.date())) & (sf.col("appended") >= sf.lit(since))
        )
    found = (
        records.groupBy("topic", "topic_id", "part")
        .agg(sf.max("off").alias("last"), sf.unix_micros(sf.max("appended")).alias("at"))
        .collect()
    )
    topics = dict(set_.get("topics", {}))
    ids = {
        **{topic: each["id"] for topic, each in said.get("topics", {}).items()},
        **{row["topic"]: row["topic_id"] for row in found},
        **topics,
    }
    ends: dict[str, dict[int, int]] = {}
    for topic, each in said.get("topics", {}).items():
        if each["id"] == ids[topic]:
            ends[topic] = {int(part): end for part, end in each["ends"].items()}
    for topic, each in set_.get("ends", {}).items():
        parts = ends.setdefault(topic, {})
        for part, end in each.items():
            parts[int(part)] = max(parts.get(int(part), 0), end)
    for row in found:
        if row["topic_id"] == ids[row["topic"]]:
            parts = ends.setdefault(row["topic"], {})
            parts[row["part"]] = max(parts.get(row["part"], 0), row["last"] + 1)
    times = [instant(row["at"]) for row in found] + ([] if until is None else [until])
    sorted_day = said.get("sorted_day")
    summary = Summary(
        0 if saved is None else saved["off"],
        max(times, default=None),
        _lacking(own, said.get("deleted", {})),
        None if sorted_day is None else date.fromisoformat(sorted_day),
        _time(said.get("listed_at")),
    )
    stopped = {row["topic"]: row["reason"] for row in own if row["kind"] == "stopped"}
    number = 0 if started is None else started["off"]
    has_new = bool(found) and summary.until != until
    return Positions(
        ends,
        ids,
        stopped,
        number,
        topics,
        set_.get("mirror", ""),
        set_.get("mark", ""),
        summary,
        has_new,
        None if saved is None else saved["ts"].astimezone(UTC),
        {row["topic"]: _table_stop(row) for row in own if row["kind"] == "table_stopped"},
        _gaps(own),
        _began(own),
        "ends" in set_,
    )


def _gaps(own: Sequence[Row]) -> dict[str, str]:
    """By topic, why the last row `gap` was written, unless the topic's table was read again since."""
    read = {row["topic"]: row["appended"] for row in _in_time(own, "read")}
    gaps = {row["topic"]: row for row in _in_time(own, "gap")}
    return {
        topic: row["reason"]
        for topic, row in gaps.items()
        if topic not in read or read[topic] < row["appended"]
    }


def _lacking(own: Sequence[Row], deleted: Mapping[str, int]) -> dict[str, int]:
    """By topic, the greatest LSN of a record that the log may lack."""
    found = {**deleted}
    for row in _in_time(own, "read"):
        found[row["topic"]] = max(found.get(row["topic"], 0), row["lsn"])
    return found


def _in_time(own: Sequence[Row], kind: str) -> list[Row]:
    return sorted([row for row in own if row["kind"] == kind], key=lambda row: row["appended"])


def _began(own: Sequence[Row]) -> dict[str, Began]:
    """By topic, the newest row `began`."""
    found = {}
    for row in _in_time(own, "began"):
        said = json.loads(bytes(row["value"]))
        first, ends = [
            {int(part): offset for part, offset in said[name].items()} for name in ("first", "ends")
        ]
        found[row["topic"]] = Began(row["topic_id"], first, ends)
    return found


def at_version(spark: SparkSession, name: str, version: str) -> DataFrame:
    """The log as of a version. "": as it is now."""
    if not version:
        return spark.table(name)
    return spark.sql(f"SELECT * FROM {name} VERSION AS OF {int(version)}")  # noqa: S608 - the name is quoted


def truncate_after_gap(spark: SparkSession, name: str, topic: str) -> int | None:
    """The LSN of the first truncate record that was appended after the topic lost records. None: there is none."""
    mine = spark.table(name).filter((sf.col("topic") == topic) & sf.col("kind").isin("gap", "truncate"))
    gap = mine.agg(sf.max(sf.when(sf.col("kind") == "gap", sf.col("appended"))).alias("gap"))
    later = mine.filter("kind = 'truncate'").crossJoin(gap).filter("appended > gap")
    lsn: int | None = later.agg(sf.min("lsn").alias("lsn")).collect()[0]["lsn"]
    return lsn


def _table_stop(row: Row) -> Stop:
    said = json.loads(bytes(row["value"]))
    return Stop(row["tbl"], row["ts"].astimezone(UTC), said["waits"], row["reason"], said["hint"])


def lost(has: Positions, found: Mapping[str, TopicStart]) -> dict[str, str]:
    """The topics whose records are gone that the log has not read, and why."""
    reasons = {}
    for topic, topic_id in has.topics.items():
        if topic in has.stopped:
            continue
        start = found.get(topic)
        if start is None:
            reasons[topic] = DELETED
        elif start.topic_id != topic_id:
            reasons[topic] = "the topic was deleted, and made again under its name"
        else:
            ends = has.ends.get(topic, {})
            for part, end, first in passed(ends, start.first):
                if part not in ends and not has.is_counted:
                    # A former version of cdcd has not noted where the partition began.
                    continue
                reasons[topic] = f"partition {part} begins at offset {first}, and the log has it up to {end}"
                break
    return reasons


def passed(ends: Mapping[int, int], begins: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return the partitions that begin after `ends`, each with its end and its first offset.

    Args:
        begins: by partition, the first offset that is there.

    A partition that is not in `ends` was added to the topic later, so it had no record.
    """
    return [
        (part, ends.get(part, 0), first)
        for part, first in sorted(begins.items())
        if first > ends.get(part, 0) + (_MARKER if part in ends else 0)
    ]


def next_record(spark: SparkSession, name: str, topic: str, part: int, end: int) -> int | None:
    """The offset of the first record that the log has of a partition at or after `end`. None: there is none."""
    rows = spark.table(name).filter(
        (sf.col("day").isNotNull())
        & (sf.col("topic") == topic)
        & (sf.col("part") == part)
        & (sf.col("off") >= end)
    )
    first: int | None = rows.agg(sf.min("off").alias("off")).collect()[0]["off"]
    return first


def was_read(end: int, record: int | None) -> bool:
    """True if `record`, the first record of the log at or after `end`, follows the records before `end`."""
    return record is not None and record <= end + _MARKER


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


def begin(has: Positions, topic: str, start: TopicStart) -> dict[int, int]:
    """By partition, where a query reads on: after the last record of the log, or at the first one that is there.

    The second is later only if a person let a stopped topic go on.
    """
    ends = has.ends.get(topic, {}) if has.ids.get(topic) == start.topic_id else {}
    return {part: max(first, ends.get(part, 0)) for part, first in start.first.items()}


def note_started(
    spark: SparkSession,
    place: LogPlace,
    number: int,
    mirror: str,
    topics: Mapping[str, str],
    mark: str,
    ends: Ends,
) -> None:
    """Append the row that starts a set of topics.

    Args:
        mark: of the log's version before it.
        ends: of the topics, with each of their partitions.
    """
    value = _json({"mirror": mirror, "topics": dict(sorted(topics.items())), "mark": mark, "ends": ends})
    _append(spark, place, [{"kind": "started", "off": number, "value": value}])


def note_began(spark: SparkSession, place: LogPlace, began: Mapping[str, Began]) -> None:
    """Append a row for each topic that had lost records before the log begins to read it."""
    rows = [
        {
            "kind": "began",
            "topic": topic,
            "topic_id": each.topic_id,
            "value": _json({"first": each.first, "ends": each.ends}),
        }
        for topic, each in sorted(began.items())
    ]
    _append(spark, place, rows)


def first_lsns(log: DataFrame, topic: str, topic_id: str, parts: Collection[int]) -> dict[int, int]:
    """By partition, the LSN of the first change or truncate that the log has of it."""
    rows = (
        log.filter(
            (sf.col("topic") == topic)
            & (sf.col("topic_id") == topic_id)
            & sf.col("part").isin(*parts)
            & sf.col("kind").isin("change", "truncate")
        )
        .groupBy("part")
        .agg(sf.min_by("lsn", "off").alias("lsn"))
        .collect()
    )
    return {row["part"]: row["lsn"] for row in rows}


def note_stopped(
    spark: SparkSession, place: LogPlace, reasons: Mapping[str, str], ids: Mapping[str, str]
) -> None:
    """Append the rows for each topic that stops."""
    stops = [
        {"kind": kind, "topic": topic, "topic_id": ids.get(topic), "reason": reason}
        for topic, reason in reasons.items()
        for kind in ("stopped", "gap")
    ]
    _append(spark, place, stops)


def note_read(spark: SparkSession, place: LogPlace, topic: str, lsn: int) -> None:
    """Note that the table of a topic was read from the database at `lsn`. The log then reads a stopped topic again.

    A topic that has lost no record is left as it is.
    """
    mine = spark.table(place.name).filter((sf.col("topic") == topic) & sf.col("day").isNull())
    if mine.filter("kind = 'gap'").isEmpty():
        return
    _append(spark, place, [{"kind": "read", "topic": topic, "lsn": lsn}])
    spark.sql(let_go_on(place.name, topic))


def note_tables(spark: SparkSession, place: LogPlace, changes: Mapping[str, Stop | None]) -> None:
    """Bring the rows of tables that cannot be folded up to date. None: the table goes on, and its row is deleted."""
    topics = ", ".join([f"'{text(topic)}'" for topic in changes])
    spark.sql(
        f"DELETE FROM {place.name} WHERE day IS NULL AND kind = 'table_stopped' AND topic IN ({topics})"  # noqa: S608
    )
    stops = [
        {
            "kind": "table_stopped",
            "topic": topic,
            "tbl": stop.table,
            "ts": stop.since,
            "reason": stop.message,
            "value": _json({"hint": stop.hint, "waits": stop.waits}),
        }
        for topic, stop in changes.items()
        if stop is not None
    ]
    if stops:
        _append(spark, place, stops)


def save(spark: SparkSession, place: LogPlace, has: Positions, summary: Summary) -> None:
    """Append a row `positions`, and delete the rows of the log itself that it and the newest set replace."""
    topics = {topic: {"id": id_, "ends": has.ends.get(topic, {})} for topic, id_ in has.ids.items()}
    value = {
        "until": None if summary.until is None else summary.until.isoformat(),
        "topics": topics,
        "deleted": dict(summary.deleted),
        "sorted_day": None if summary.sorted_day is None else summary.sorted_day.isoformat(),
        "listed_at": None if summary.listed_at is None else summary.listed_at.isoformat(),
    }
    _append(spark, place, [{"kind": "positions", "off": summary.number, "value": _json(value)}])
    spark.sql(
        f"DELETE FROM {place.name} WHERE day IS NULL AND ("  # noqa: S608 - the name is quoted, the rest are numbers
        f"(kind = 'positions' AND off < {summary.number}) OR (kind = 'started' AND off < {has.number}))"
    )


def let_go_on(name: str, topic: str) -> str:
    """Return the SQL statement after which the log reads a stopped topic again, from the topic's present records."""
    return f"DELETE FROM {name} WHERE day IS NULL AND kind = 'stopped' AND topic = '{topic}'"  # noqa: S608 - a person runs it


def _append(spark: SparkSession, place: LogPlace, rows: Sequence[Mapping[str, object]]) -> None:
    now = datetime.now(UTC)
    values = [
        tuple([{"ts": now, "appended": now, **each}.get(column) for column in COLUMNS]) for each in rows
    ]
    types = ", ".join(f"`{column}` {type_}" for column, type_ in COLUMNS.items())
    frame = spark.createDataFrame(values, types).coalesce(1)
    if place.table_format == DELTA:
        frame.write.format("delta").mode("append").insertInto(place.name)
    else:
        frame.writeTo(place.name).append()


def _json(value: object) -> bytearray:
    return bytearray(json.dumps(value).encode())


def _time(text: Any) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def instant(micros: int) -> datetime:
    """The time that Spark gives in microseconds since 1970."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
