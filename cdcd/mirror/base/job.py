"""The job of `change_log: fold`: append to the log, and fold each table of it up to one bound.

The bound is the complete LSN: Kafka has everything that committed at or before it, and a query that starts afterwards
appends all of it. It is the same for all tables, so tables that are folded by one round are as of one LSN. A table that
cannot be folded stops by name, and the others go on. The next round tries it again.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.core.errors import CdcdError, SinkError, SourceError, TransientError
from cdcd.mirror.base.fold import Place, exists, fold
from cdcd.mirror.base.formats import BaseFormat
from cdcd.mirror.log.job import LogJob, LogPlace
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.consistency import newest_checkpoints
from cdcd.mirror.stream.frontier import complete
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.watching.progress import (
    BatchDone,
    Observer,
    Progress,
    Retrying,
    TableFailed,
    TableResumed,
    TableStopped,
    first_lines,
)

_RETRY_S: Final = 10.0


class BaseJob:
    """Keeps the base tables of one pipeline.

    Args:
        place: of the log.
        format_: of the base tables.
        name_of: gives the name of a table's base table in SQL.
        client: properties of librdkafka, for the client that looks at topics.
        observe: gets facts.

    Attributes:
        stopped: why tables and topics are left as they are, by name.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        place: LogPlace,
        format_: BaseFormat,
        name_of: Callable[[TableSchema], str],
        client: Mapping[str, Any],
        observe: Observer,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._place = place
        self._format = format_
        self._name_of = name_of
        self._observe = observe
        self._topics = TopicStarts(client)
        self._log = LogJob(spark, settings, place, client, observe)
        self._forms = Descriptions(
            spark, settings.kafka, self._topics, settings.schemas, variant=settings.variant, mirrored=True
        )
        self._round = 0
        self.stopped: dict[str, CdcdError] = {}

    def run(self, *, once: bool, stop: threading.Event) -> None:
        """Append and fold what is there now (`once`), or each interval until `stop` is set.

        Raises:
            TransientError: with `once`, when Kafka or the catalogue does not answer.
            FatalError: a person must act.
        """
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._append_and_fold(stop)
            except TransientError as error:
                if once:
                    raise
                self._observe(Retrying(error.message, error.hint, _RETRY_S))
                stop.wait(_RETRY_S)
                continue
            if once:
                return
            stop.wait(max(0.0, began + self._settings.interval_s - time.monotonic()))

    def _append_and_fold(self, stop: threading.Event) -> None:
        began = time.monotonic()
        bound = self._bound()
        self._log.run(once=True, stop=stop)
        if stop.is_set():
            return
        self._forms.refresh()
        tables = [done for topic in self._due(bound) if (done := self._fold(topic, bound)) is not None]
        if tables:
            self._round += 1
            self._observe(BatchDone(self._round, tuple(tables), time.monotonic() - began, bound))

    def _bound(self) -> int:
        """The complete LSN of now."""
        settings = self._settings
        topics = [*self._described(), settings.schemas]
        last, former = newest_checkpoints(self._spark, settings.kafka, self._topics, settings.checkpoint)
        written, ends = self._topics.both_ends(topics)
        found = [complete(last.end_lsn, former.end_lsn, ends[topic], written[topic]) for topic in ends]
        return min(found, default=0)

    def _described(self) -> list[str]:
        """The topics of the tables that are mirrored."""
        self._forms.refresh()
        return sorted(
            topic
            for topic in self._forms.topics()
            if (table := self._forms.table(topic)) is not None and self._settings.wants(table)
        )

    def _due(self, bound: int) -> list[str]:
        """The topics with changes in the log up to the bound, those with most changes last."""
        rows = (
            self._spark.table(self._place.name)
            .filter(sf.col("kind").isin("change", "truncate") & (sf.col("lsn") <= bound))
            .groupBy("topic")
            .agg(sf.count(sf.lit(1)).alias("count"))
            .collect()
        )
        counts = {row["topic"]: row["count"] for row in rows}
        return sorted(
            [topic for topic in self._described() if topic in counts], key=lambda topic: counts[topic]
        )

    def _fold(self, topic: str, bound: int) -> Progress | None:
        """Fold one table. None: it stopped, or nothing was to be done."""
        table = self._forms.table(topic) or topic
        began = time.monotonic()
        try:
            if topic in self._log.stopped:
                raise self._log.stopped[topic]
            newest = self._forms.newest(topic)
            if not newest.schema.key:
                raise SourceError(
                    f"{table}: it has no key, and change_log: fold makes no changelogs of tables without a key.",
                    hint="Leave the table out (tables.exclude). The log has its changes.",
                )
            name = self._name_of(newest.schema)
            former = None if exists(self._spark, name) else self._forms.former_name(newest.schema)
            place = Place(table, topic, name, self._place.name, former_name=former)
            done = fold(
                self._spark, self._format, place, lambda ids: self._forms.find(topic, list(ids)), bound
            )
        except CdcdError as error:
            self._stop(table, error)
            return None
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            self._stop(
                table,
                SinkError(
                    f"{table}: Spark could not fold it: {first_lines(error)}",
                    hint="Mend what the message names. The next round tries again.",
                ),
            )
            return None
        if self.stopped.pop(table, None) is not None:
            self._observe(TableResumed(table))
        if not done.changes:
            return None
        return Progress(table, done.changes, done.keys, commit_lsn=done.lsn, seconds=time.monotonic() - began)

    def _stop(self, table: str, error: CdcdError) -> None:
        had = self.stopped.get(table)
        self.stopped[table] = error
        if had is None or had.message != error.message:
            kind = TableFailed if isinstance(error, TransientError) else TableStopped
            self._observe(kind(table, error.message, error.hint))
