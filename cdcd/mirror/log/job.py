"""The query that appends a pipeline's topics to the log, without `foreachBatch`.

Each start compares Kafka's topics with those of the log (`positions`). A topic that was deleted, made again, or
shortened beyond what the log has stops by name, and the others go on. While the query runs, the same is compared after
each batch, together with the descriptions: another set of topics ends the query, and the next one has the new set.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdcd.adapters.kafka.topic_facts import TopicStart, TopicStarts
from cdcd.core.errors import CdcdError, SinkError, SinkUnavailableError, TransientError
from cdcd.core.records.schemas import read_form
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import positions
from cdcd.mirror.log.table import create, rows
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.watching.progress import MirrorStarted, Observer, Retrying, TableStopped, first_lines

TASKS: Final = 2
"""Tasks, and so files, of a batch. Spark would make one for each partition of Kafka."""

CONSUMERS: Final = {"spark.kafka.consumer.cache.capacity": "2000"}
"""Setting of Spark: the number of partitions whose clients of Kafka are kept from one batch to the next. By default, it
is 64, and a log of more partitions makes new clients in each batch.
"""

_POLL_S: Final = 1
_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the log is.

    Attributes:
        name: of the table, in SQL.
        table_format: ICEBERG or DELTA.
        checkpoint: folder or bucket for the checkpoints of Spark.
    """

    name: str
    table_format: str
    checkpoint: str


class LogJob:
    """Appends the topics of one pipeline to one log.

    Args:
        spark: a session with Spark's Kafka source and the log's format.
        client: properties of librdkafka, for the client that looks at topics.
        observe: gets facts.

    Attributes:
        stopped: why topics are left out, by topic, as far as this process found it.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        place: LogPlace,
        client: Mapping[str, Any],
        observe: Observer,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._place = place
        self._starts = TopicStarts(client)
        self._observe = observe
        self.stopped: dict[str, CdcdError] = {}

    def run(self, *, once: bool, stop: threading.Event) -> None:
        """Append the records that the topics hold now (`once`), or all records that arrive until `stop` is set.

        Raises:
            TransientError: with `once`, when Kafka or the catalogue does not answer.
            FatalError: a person must act.
        """
        create(self._spark, self._place.name, self._place.table_format)
        while not stop.is_set():
            try:
                if self._run_query(once, stop) and once:
                    return
            except TransientError as error:
                if once:
                    raise
                self._observe(Retrying(error.message, error.hint, _RETRY_S))
                stop.wait(_RETRY_S)

    def _run_query(self, once: bool, stop: threading.Event) -> bool:
        """Run a query over the topics that are there now. False: the set of topics changed, another query follows."""
        place, settings = self._place, self._settings
        found, has = self._compare()
        topics = {topic: start.topic_id for topic, start in found.items()}
        number = has.number
        if topics != has.topics:
            number += 1
            positions.note_started(self._spark, place.name, place.table_format, number, topics)
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
            .coalesce(TASKS)
            .writeStream.queryName(f"{settings.name} log {number}")
            .format(place.table_format)
            .outputMode("append")
            .option("checkpointLocation", f"{place.checkpoint.rstrip('/')}/{number}")
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(settings.interval_s * 1000)} milliseconds")
        try:
            query = self._start(writer)
            try:
                changed = self._follow(query, stop, topics)
            finally:
                query.stop()
        except PySparkException as error:
            raise SinkUnavailableError(
                f"The query of the log ended: {first_lines(error)}",
                hint="The next query goes on where the log ends. If it ends again, correct the fault that the message "
                "names.",
            ) from error
        if once:
            # A topic that was lost while the query ran stops here.
            self._compare()
        return not changed

    def _start(self, writer: Any) -> StreamingQuery:
        name = self._place.name
        if name.startswith("delta.`"):
            started: StreamingQuery = writer.start(name.removeprefix("delta.`").removesuffix("`"))
        else:
            started = writer.toTable(name)
        return started

    def _follow(self, query: StreamingQuery, stop: threading.Event, topics: Mapping[str, str]) -> bool:
        """Wait for the query's end, or `stop`. True: the set of topics changed."""
        looked, due = None, time.monotonic() + self._settings.interval_s
        while not query.awaitTermination(_POLL_S):
            if stop.is_set():
                return False
            last = query.lastProgress
            batch = None if last is None else last["batchId"]
            if (batch != looked or time.monotonic() >= due) and not query.status["isTriggerActive"]:
                looked, due = batch, time.monotonic() + max(self._settings.interval_s, _POLL_S)
                found, _ = self._compare()
                if {topic: start.topic_id for topic, start in found.items()} != topics:
                    return True
        return False

    def _compare(self) -> tuple[dict[str, TopicStart], positions.Positions]:
        """The topics that are to be read, and what the log has. Topics whose records are gone stop."""
        place, settings = self._place, self._settings
        has = positions.read(self._spark, place.name)
        own = [settings.schemas, settings.checkpoint, *sorted(settings.not_tables)]
        found = self._starts.look(sorted({*own, *has.topics, *self._tables()}))
        if settings.schemas not in found:
            raise SinkError(
                f"There is no topic {settings.schemas}, which names the topics of the tables.",
                hint="Start the daemon, which writes it. If the daemon runs, compare topics.schemas and topics.prefix "
                "in both configurations.",
            )
        lost = positions.lost(has, found)
        if lost:
            positions.note_stopped(self._spark, place.name, place.table_format, lost, has.topics)
            for topic, reason in lost.items():
                self._tell(topic, reason)
            has = positions.read(self._spark, place.name)
        return {topic: start for topic, start in found.items() if topic not in has.stopped}, has

    def _tell(self, topic: str, reason: str) -> None:
        hint = (
            f"The log keeps its records of {topic}. To continue with the present topic, run this statement in Spark: "
            f"{positions.let_go_on(self._place.name, topic)}"
        )
        self.stopped[topic] = SinkError(
            f"{topic}: {reason}, so records that the log has not read are gone.", hint=hint
        )
        self._observe(TableStopped(topic, self.stopped[topic].message, hint))

    def _tables(self) -> list[str]:
        """The topics of the tables that the pipeline describes and the mirror wants."""
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
            if self._settings.wants(f"{form.schema}.{form.table}"):
                found |= {form.topic, *form.routes}
        return sorted(found)
