"""The query that appends a pipeline's topics to the log, without `foreachBatch`.

Each start compares Kafka's topics with those of the log (`positions`). A topic that was deleted, made again, or
shortened beyond what the log has stops by name, and the others go on. While the query runs, the same is compared after
each batch, together with the descriptions: another set of topics ends the query, and the next one has the new set.
"""

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdcd.adapters.kafka.topic_facts import TopicStart, TopicStarts
from cdcd.core.errors import CdcdError, ConfigError, SinkError, SinkUnavailableError, TransientError
from cdcd.core.records.schemas import read_form
from cdcd.core.table_names import table_text
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import batches, lineage, positions
from cdcd.mirror.log.lineage import NO_VERSION
from cdcd.mirror.log.positions import Began, Ends, Positions
from cdcd.mirror.log.table import LogPlace, create, rows, use_own_folder
from cdcd.mirror.log.upkeep import LogUpkeep, Needs, no_needs
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.watching.progress import (
    MirrorStarted,
    Observer,
    Retrying,
    TableResumed,
    TableRolledBack,
    TableStopped,
    first_lines,
)

TASKS: Final = 2
"""Tasks, and so files, of a batch. Spark would make one for each partition of Kafka."""

CONSUMERS: Final = {"spark.kafka.consumer.cache.capacity": "2000"}
"""Setting of Spark: the number of partitions whose clients of Kafka are kept from one batch to the next. By default, it
is 64, and a log of more partitions makes new clients in each batch.
"""

_POLL_S: Final = 1
_BUSY: Final = 3
"""Intervals after which the topics are compared although one batch follows the other without a pause."""
_RETRY_S: Final = 10.0
_END_S: Final = 10.0
"""Seconds for which the end of a run waits for maintenance."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What the log has, as one comparison found it.

    Attributes:
        version: of the log. It has all that the query appended before it. NO_VERSION: none was looked at.
        ends: by topic and partition, an offset below which this version has all records.
        stopped: why topics are left out, by topic.
        gaps: topics that lost records which the log has not read, with the reason.
        began: topics that had lost records before the log began to read them.
        deleted: by topic, the greatest LSN of a record that retention has deleted.
        at: when the comparison began, in seconds of a clock that only rises.
    """

    version: str = NO_VERSION
    ends: Ends = field(default_factory=dict)
    stopped: Mapping[str, CdcdError] = field(default_factory=dict)
    gaps: Mapping[str, str] = field(default_factory=dict)
    began: Mapping[str, Began] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0

    def has(self, wanted: Ends) -> bool:
        """True if the log has all records before these offsets, except for those of topics that stopped."""
        return all(
            self.ends.get(topic, {}).get(part, 0) >= end
            for topic, parts in wanted.items()
            if topic not in self.stopped
            for part, end in parts.items()
        )


class LogJob:
    """Appends the topics of one pipeline to one log.

    Args:
        spark: a session with Spark's Kafka source and the log's format.
        client: properties of librdkafka, for the client that looks at topics.
        observe: gets facts.
        needs: what the tables of the topics still need.

    Attributes:
        stopped: why topics are left out, by topic, as the last run found it.
        appended: what the log has. A comparison replaces it, while a query runs too.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        place: LogPlace,
        client: Mapping[str, Any],
        observe: Observer,
        needs: Needs = no_needs,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._place = place
        self._starts = TopicStarts(client)
        self._observe = observe
        self._upkeep = LogUpkeep(
            spark, place, settings.maintenance, settings.maintenance_interval_s, needs, observe
        )
        self._has_own_folder = False
        self._described: tuple[object, list[str]] | None = None
        self._version = self._mark = NO_VERSION
        self._gaps: Mapping[str, str] = {}
        self._began: Mapping[str, Began] = {}
        self._ends: Ends = {}
        self._compared_at = 0.0
        self._comparison = threading.Condition()
        self._is_outdated = threading.Event()
        """Set if a topic that stopped may go on. The query ends then, because its topics were chosen before."""
        self.stopped: dict[str, CdcdError] = {}
        self.appended = Appended()

    def wait(self, wanted: Ends, since: float, limit_s: float) -> Appended | None:
        """Wait until the log has all records before these offsets, for `limit_s` seconds at most. None: it lacks some.

        Args:
            since: the comparison that found them began after this time. It is in seconds of a clock that only rises.
        """

        def found() -> bool:
            return self.appended.at >= since and self.appended.has(wanted)

        with self._comparison:
            return self.appended if self._comparison.wait_for(found, limit_s) else None

    def let_go_on(self, topic: str) -> None:
        """Read the topic again, whose row `stopped` is deleted. A query that runs is followed by one with the topic."""
        with self._comparison:
            self.stopped.pop(topic, None)
            self._is_outdated.set()

    def run(self, *, once: bool, stop: threading.Event) -> None:
        """Append the records that the topics hold now (`once`), or all records that arrive until `stop` is set.

        Raises:
            TransientError: with `once`, when Kafka or the catalogue does not answer.
            FatalError: a person must act.
        """
        create(self._spark, self._place, self._settings.maintenance.keep_s)
        if not self._has_own_folder:
            use_own_folder(self._spark, self._place)
            self._has_own_folder = True
        try:
            while not stop.is_set():
                try:
                    if self._run_query(once, stop) and once:
                        if not stop.is_set():
                            self._upkeep.finish()
                        if self._has_all_rows():
                            return
                except TransientError as error:
                    if once:
                        raise
                    self._observe(Retrying(error.message, error.hint, _RETRY_S))
                    stop.wait(_RETRY_S)
        finally:
            self._upkeep.end(_END_S)

    def _run_query(self, once: bool, stop: threading.Event) -> bool:
        """Run a query over the topics that are there now. False: the set of topics changed, another query follows."""
        place, settings = self._place, self._settings
        self._described = None
        self._is_outdated.clear()
        has = positions.read(self._spark, place.name)
        self._upkeep.deleted, self._gaps, self._began = has.deleted, has.gaps, has.began
        for topic in sorted(self.stopped.keys() - has.stopped.keys()):
            del self.stopped[topic]
            self._observe(TableResumed(topic))
        for topic in sorted(has.stopped.keys() - self.stopped.keys()):
            # A process before this one found it.
            self._tell(topic, has.stopped[topic])
        if has.mirror not in {"", settings.name}:
            raise ConfigError(
                f"The mirror {has.mirror} appends to the log {place.name}, so {settings.name} must not.",
                hint="Give each mirror a log of its own: target.log_table.",
            )
        has, rolled_back = self._since_rollback(has)
        found, has = self._compare(has, None)
        topics = {topic: start.topic_id for topic, start in found.items()}
        begins = {topic: positions.begin(has, topic, start) for topic, start in found.items()}
        number = has.number
        if topics != has.topics or rolled_back or not has.is_counted:
            self._note_began(has, found)
            # The log may have forgotten sets with higher numbers, whose checkpoints are still there, because it was
            # rolled back, or dropped and made again.
            number = max(number + 1, int(time.time() * 1000) if rolled_back or not number else 0)
            positions.note_started(self._spark, place, number, settings.name, topics, self._mark, begins)
            # A log without a commit has no version.
            self._version = (
                self._version or lineage.read(self._spark, place.name, place.table_format, "").current
            )
        self._observe(MirrorStarted(settings.name, len(topics), once))
        records = (
            self._spark.readStream.format("kafka")
            .options(**settings.kafka.options())
            .option("subscribe", ",".join(sorted(topics)))
            .option("startingOffsets", positions.starting(has, found))
            # A topic whose records are gone stops by itself, and must not end the query of the others.
            .option("failOnDataLoss", "false")
        )
        if not once:
            records = records.option("maxOffsetsPerTrigger", settings.batch_records_max)
        own = {settings.schemas: "schema", settings.checkpoint: "checkpoint"}
        own |= dict.fromkeys(settings.not_tables, "message")
        writer = (
            rows(records.load(), topics, own)
            .observe(batches.OBSERVED, *batches.figures())
            .coalesce(TASKS)
            .writeStream.queryName(f"{settings.name} log {number}")
            .format(place.table_format)
            .outputMode("append")
            .option("checkpointLocation", f"{place.checkpoint.rstrip('/')}/{number}")
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(interval_of(settings) * 1000)} milliseconds")
        has = replace(has, number=number, topics=topics, ends=begins, is_counted=True)
        try:
            query = self._start(writer)
            try:
                changed = self._follow(query, stop, has)
            finally:
                query.stop()
        except CdcdError:
            raise
        except Exception as error:
            # Spark raises classes of Java, of which PySpark knows a part.
            raise SinkUnavailableError(
                f"The query of the log ended: {first_lines(error)}",
                hint="The next query goes on where the log ends. If it ends again, correct the fault that the message "
                "names. Run one mirror for each log.",
            ) from error
        return not changed

    def _note_began(self, has: Positions, found: Mapping[str, TopicStart]) -> None:
        """Note the topics that join and have lost records."""
        late = [
            topic
            for topic, start in found.items()
            if has.ids.get(topic) != start.topic_id and any(start.first.values())
        ]
        if not late:
            return
        written, _ = self._starts.both_ends(sorted(late))
        began = {
            topic: Began(
                found[topic].topic_id,
                {part: first for part, first in found[topic].first.items() if first},
                written.get(topic, {}),
            )
            for topic in late
        }
        positions.note_began(self._spark, self._place, began)
        self._began = {**self._began, **began}

    def _since_rollback(self, has: Positions) -> tuple[Positions, bool]:
        """The positions from which a query reads on, and whether it must not use the checkpoint of the last set.

        If an owner rolled the log back, the positions are those of the version that the owner chose, because later rows
        may have been appended behind it. Such rows come twice.
        """
        place = self._place
        since = self._mark or has.mark
        versions = lineage.read(self._spark, place.name, place.table_format, since)
        fork = versions.fork(since) if has.number else None
        if fork is None:
            self._mark = versions.mark
            return has, False
        if versions.remembers(since):
            self._observe(
                TableRolledBack(
                    place.name,
                    "An owner rolled the log back or restored it, so it lacks records that were appended.",
                    "Nothing is to be done: the log reads these records from the topics again. If the topics have lost "
                    "them, the topics stop by name.",
                )
            )
        then = positions.read(self._spark, place.name, fork)
        self._mark = versions.mark
        return replace(has, ends=then.ends, ids=then.ids), True

    def _has_all_rows(self) -> bool:
        """False if an owner rolled the log back since the last look. Otherwise `appended` has the current version."""
        place = self._place
        versions = lineage.read(self._spark, place.name, place.table_format, self._mark)
        if versions.fork(self._mark) is not None:
            return False
        self._version, self._mark = versions.current, versions.mark
        with self._comparison:
            # Retention says what it will delete before it does. So this version lacks no other records.
            self.appended = Appended(
                self._version,
                self._ends,
                dict(self.stopped),
                self._gaps,
                self._began,
                self._upkeep.deleted,
                self._compared_at,
            )
            self._comparison.notify_all()
        return True

    def _start(self, writer: Any) -> StreamingQuery:
        # By default, Spark stops a run of the query that another driver of this application has begun. That driver
        # would take the query's end for the end of the topics, and fold a log that lacks records.
        self._spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
        name = self._place.name
        if name.startswith("delta.`"):
            started: StreamingQuery = writer.start(name.removeprefix("delta.`").removesuffix("`"))
        else:
            started = writer.toTable(name)
        return started

    def _follow(self, query: StreamingQuery, stop: threading.Event, has: Positions) -> bool:
        """Wait for the query's end, or `stop`. True: the set of topics changed.

        After each batch, the topics are compared with the positions before the batch.
        """
        told, due = -1, time.monotonic() + self._settings.interval_s
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(_POLL_S))
            if stop.is_set():
                return False
            if self._is_outdated.is_set():
                return True
            read = batches.after(query, told)
            for each in read:
                told = each["batchId"]
                self._observe(batches.done(self._place.name, each, time.time()))
            now, interval_s = time.monotonic(), interval_of(self._settings)
            is_idle = ended or not query.status["isTriggerActive"] or now >= due + _BUSY * interval_s
            if (read or ended or now >= due) and is_idle:
                due = now + interval_s
                self._compared_at = now
                after = batches.ends(query) or has.ends
                found, has = self._compare(has, after)
                self._ends = has.ends
                topics = {topic: start.topic_id for topic, start in found.items()}
                # The end of a run with `once` is followed by the maintenance, after which `run` checks the rows.
                if not ended and (topics != has.topics or not self._has_all_rows()):
                    return True
            if not ended:
                self._upkeep.look()
        return False

    def _compare(self, has: Positions, after: Ends | None) -> tuple[dict[str, TopicStart], Positions]:
        """The topics that are to be read, and what the log has. Topics whose records are gone stop.

        Args:
            has: the positions before the last batch.
            after: the offsets at which the next batch begins. None: no batch ran since `has`.
        """
        place, settings = self._place, self._settings
        own = [settings.schemas, settings.checkpoint, *sorted(settings.not_tables)]
        described = self._tables(None if after is None else after.get(settings.schemas))
        found = self._starts.look(sorted({*own, *has.topics, *described}))
        if settings.schemas not in found:
            raise SinkError(
                f"There is no topic {settings.schemas}, which names the topics of the tables.",
                hint="Start the daemon, which writes it. If the daemon runs, compare topics.schemas and topics.prefix "
                "in both configurations.",
            )
        lost = positions.lost(has, found)
        if after is not None:
            lost = {topic: reason for topic, reason in lost.items() if not self._has_all(topic, has, found)}
        if lost:
            positions.note_stopped(self._spark, place, lost, has.topics)
            for topic, reason in lost.items():
                self._tell(topic, reason)
            has = replace(has, stopped={**has.stopped, **lost})
            self._gaps = {**self._gaps, **lost}
        has = has if after is None else replace(has, ends={**has.ends, **after})
        return {topic: start for topic, start in found.items() if topic not in has.stopped}, has

    def _has_all(self, topic: str, has: Positions, found: Mapping[str, TopicStart]) -> bool:
        """True if the last batch read the records of the topic before Kafka removed them."""
        start = found.get(topic)
        if start is None or start.topic_id != has.topics[topic]:
            return False
        return all(
            positions.was_read(end, positions.next_record(self._spark, self._place.name, topic, part, end))
            for part, end, _ in positions.passed(has.ends.get(topic, {}), start.first)
        )

    def _tell(self, topic: str, reason: str) -> None:
        error = self.stopped[topic] = stopped_error(self._place.name, topic, reason)
        self._observe(TableStopped(topic, error.message, error.hint))

    def _tables(self, ends: Mapping[int, int] | None) -> list[str]:
        """The topics of the tables that the pipeline describes and the mirror wants.

        `ends`: of the topic with the descriptions, which is read again if they have changed. None: they are unknown.
        """
        if self._described is not None and ends is not None and self._described[0] == ends:
            return self._described[1]
        source: KafkaSource = self._settings.kafka
        described = (
            self._spark.read.format("kafka")
            .options(**source.options())
            .option("failOnDataLoss", "false")
            .option("subscribe", self._settings.schemas)
            .load()
            .select("value")
        )
        found = set()
        try:
            values = [bytes(row["value"] or b"") for row in described.distinct().collect()]
        except PySparkException as error:
            raise SinkUnavailableError(
                f"The topic {self._settings.schemas} could not be read: {first_lines(error)}",
                hint="Check that the brokers run, that the daemon has made the topic, and that the user may read it.",
            ) from error
        for value in values:
            try:
                _, form = read_form(value)
            except ValueError:
                # The record is a row of the log all the same.
                continue
            if self._settings.wants(table_text(form.schema, form.table)):
                found |= {form.topic, *form.routes}
        self._described = (ends, sorted(found))
        return self._described[1]


def stopped_error(log: str, topic: str, reason: str) -> SinkError:
    """Return the error of a topic that stopped in the log. `log`: name of the log in SQL."""
    makes = "Start the daemon, which makes the topic again. " if reason == positions.DELETED else ""
    return SinkError(
        f"{topic}: {reason}, so records that the log has not read are gone.",
        hint=f"The log keeps its records of {topic}. {makes}To continue with the present topic, run this statement in "
        f"Spark: {positions.let_go_on(log, topic)}",
    )


def interval_of(settings: MirrorSettings) -> float:
    """Return the time from one batch of the query to the next, in seconds. A query without a pause is never idle."""
    return max(settings.interval_s, float(_POLL_S))


def ends_in_kafka(client: Mapping[str, Any], topics: Collection[str]) -> Ends:
    """Return where the committed records of these topics end.

    Raises:
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    _, ends = TopicStarts(client).both_ends(sorted(topics))
    return ends
