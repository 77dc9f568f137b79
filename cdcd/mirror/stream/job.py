"""The mirror: one Structured Streaming query over all topics of a pipeline, applied table by table.

```
 topics ─▶ query (how far?) ─▶ batch ─▶ TableMirror … TableMirror ─▶ targets (data and position in one commit)
                                  └─ Descriptions (schemas topic)      └─ quarantine
```

The query gives the rhythm, and by its write-ahead log says how far each batch goes. What a table has is in its target
(`table.py`), so a batch that is run again changes nothing, and a table that failed is behind, no more.

A failure is a table's own where it can be: then that table stops, and the others go on. What concerns all of them
(Kafka is away, the log cannot be read) ends the query; it is started again with a growing pause.
"""

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdcd.core.errors import CdcdError, TransientError
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.platform.offsets import Ends, batch_ends, last_batch
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.snapshot.reading import SnapshotSource
from cdcd.mirror.stream.commands import Commands
from cdcd.mirror.stream.consistency import Cuts, Mark, newest_checkpoints
from cdcd.mirror.stream.failures import classified
from cdcd.mirror.stream.frontier import Tip, Tips, look_up_tips
from cdcd.mirror.stream.points import Point, Points
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.stream.tables import Tables
from cdcd.mirror.stream.topics import Topics
from cdcd.mirror.stream.upkeep import Upkeep
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.progress import (
    BatchDone,
    MirrorStarted,
    Observer,
    Progress,
    Retrying,
    SetChanged,
    TableFailed,
)

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
POLL_S: Final = 1
STOP_S: Final = 60.0
"""How long the batch and the maintenance that are under way may take when the mirror is asked to stop, in seconds."""

SETTLE_S: Final = 30.0
"""How long transactions are waited for that are open at the start of a consistent run, or at the end of any."""

WAITS_S: Final = 60.0
"""Seconds between two reports that changes wait for a checkpoint."""


class Mirror:
    """Keeps the target's tables equal to the pipeline's source. `run` it, then `close`.

    Args:
        spark: a classic session with Spark's Kafka source and the target's format (`session.session`).
        observe: gets facts, from several threads.
        source: where the tables are read that their targets cannot follow (`MirrorSettings.reloads`); None: they stop.

    Attributes:
        commands: what an operator asks of it before `run`.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        target: Target,
        observe: Observer,
        source: SnapshotSource | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._target = target
        self._observe = observe
        self._admin = Admin(spark, settings.kafka)
        self._descriptions = Descriptions(
            spark,
            settings.kafka,
            self._admin,
            settings.schemas,
            variant=settings.variant,
            mirrored=True,
        )
        self._topics = Topics(settings, self._admin, self._descriptions, observe)
        self._tables = Tables(
            spark,
            settings,
            target,
            observe,
            admin=self._admin,
            descriptions=self._descriptions,
            topics=self._topics,
            source=source,
        )
        self.commands = Commands(
            spark,
            settings,
            target,
            observe,
            admin=self._admin,
            descriptions=self._descriptions,
            topics=self._topics,
        )
        self._cuts = Cuts()
        self._points = Points(spark, target, settings.tag_interval_s)
        target.tell(observe)
        self._published = 0
        self._before: Ends = {}
        self._waiting: dict[str, int] = {}
        self._waits_since: float | None = None
        self._without: tuple[str, ...] = ()
        self._working = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._upkeep = Upkeep(spark, target, settings, observe, self._tables.pass_over)

    @property
    def stopped(self) -> dict[str, CdcdError]:
        """Why tables do not go on, by topic."""
        tables = self._tables
        return {**tables.aside, **tables.stopped} if tables.aside else tables.stopped

    def close(self) -> None:
        self._admin.close()

    def run(self, *, once: bool, stop: threading.Event) -> None:
        """Mirror what is there (`once`), or what comes until `stop` is set.

        Raises:
            TransientError: with `once`, when Kafka or the catalog is away.
            FatalError: a person must act.
        """
        self._tables.once = once
        try:
            self._keep_running(once, stop)
        finally:
            self._upkeep.end(STOP_S)

    def _keep_running(self, once: bool, stop: threading.Event) -> None:
        wait_s = RETRY_FIRST_S
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._run_query(once, stop)
                if not self._topics.has_new or stop.is_set():
                    return
                continue
            except TransientError as error:
                if once:
                    raise
                if time.monotonic() - began > RETRY_MAX_S:
                    wait_s = RETRY_FIRST_S
                self._observe(Retrying(error.message, error.hint, wait_s))
                self._tables.forget()
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    def _run_query(self, once: bool, stop: threading.Event) -> None:
        settings = self._settings
        self._failure = None
        self._stopping = False
        self._descriptions.refresh()
        self._observe(
            MirrorStarted(settings.name, len(self._topics.wanted(self._descriptions.topics())), once)
        )
        self._topics.look_at_policies([settings.schemas])
        self._tables.read_stops()
        if settings.consistent:
            self._take_mark(settle=once)
        last = self._last_batch()
        self._before = {} if last is None else last[1]
        self._look_for_missing()
        self._tables.set_aside(self._descriptions.aside)
        self._catch_up()
        source = (
            self._spark.readStream.format("kafka")
            .options(**settings.kafka.options())
            .option("subscribePattern", self._topics.pattern(self._before))
            .option("startingOffsets", "earliest")
            # The query reads no records. Each table checks its own topic, so that the other tables can go on.
            .option("failOnDataLoss", "false")
        )
        if not once:
            # A table with few changes does not wait until one with many has taken all of its own.
            source = source.option("maxOffsetsPerTrigger", settings.batch_records_max)
        writer = (
            source.load()
            .writeStream.queryName(settings.name)
            .option("checkpointLocation", settings.checkpoint_location)
            .foreachBatch(self._batch)
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(settings.interval_s * 1000)} milliseconds")
        try:
            query = writer.start()
            try:
                if not self._follow(query, stop):
                    return
            finally:
                # It may still run: what waits is looked after beside it, and may fail.
                query.stop()
            if once:
                self._end_waiting(stop)
                self._tables.note_stops()
        except (PySparkException, Py4JError) as error:
            raise self._reason(error) from error
        if once:
            self._upkeep.finish(self._tables.followed(), stop)

    def _follow(self, query: StreamingQuery, stop: threading.Event) -> bool:
        """Wait for the end of the query, which raises what ended it. False: it was asked to stop before."""
        while not query.awaitTermination(POLL_S):
            if stop.is_set():
                self._stopping = True
                deadline = time.monotonic() + STOP_S
                self._upkeep.end(STOP_S)
                # A batch that is under way is let finish; it would only come again.
                if self._working.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    self._working.release()
                return False
            self._upkeep.look(self._tables.followed())
            if self._topics.has_new:
                # Spark keeps the pattern of topics of a query, and a new topic has another name.
                with self._working:
                    self._stopping = True
                    return False
            if self._working.acquire(blocking=False):
                try:
                    self._look_after_passed_over()
                    self._look_after_waiting()
                finally:
                    self._working.release()
        return True

    def _reason(self, error: Exception) -> BaseException:
        """Why the query ended: what was raised in a batch, else what Spark says."""
        if stashed := self._failure:
            return stashed
        return classified(error, self._settings.kafka.bootstrap_servers) or error

    def _last_batch(self) -> tuple[int, Ends] | None:
        """The number of the last batch that has begun, and where it ends. None: there was none."""
        location = self._settings.checkpoint_location
        batch_id = last_batch(self._spark, location)
        return None if batch_id is None else (batch_id, batch_ends(self._spark, location, batch_id))

    def _batch(self, _records: DataFrame, batch_id: int) -> None:
        """A batch of the query, in whose name nothing is read: each table reads its own topic."""
        try:
            with self._working:
                if self._stopping:
                    # Spark takes it for done; the tables know better, and catch up at the next start.
                    return
                self._descriptions.refresh()
                ends = batch_ends(self._spark, self._settings.checkpoint_location, batch_id)
                self._topics.warn(ends)
                self._look_for_deleted(ends)
                self._tables.set_aside(self._descriptions.aside)
                self._advance(ends, batch_id)
                if self._settings.consistent:
                    self._take_mark(settle=False)
        except BaseException as error:
            self._failure = error if isinstance(error, CdcdError) else None
            raise

    def _look_for_missing(self) -> None:
        """Find topics that are missing at the start, because Spark makes no batch when a topic is deleted."""
        known = self._topics.wanted({*self._before, *self._tables.held_up})
        if not known:
            return
        missing = set(known) - set(self._admin.topics())
        for topic in sorted(missing):
            self._tables.miss(topic)
        self._before = {topic: ends for topic, ends in self._before.items() if topic not in missing}

    def _look_for_deleted(self, ends: Ends) -> None:
        """Find topics that were deleted since the last batch: they are missing, or an offset of theirs is lower."""
        before, self._before = self._before, ends
        for topic in self._topics.wanted(before):
            if topic not in ends:
                self._tables.miss(topic)
            elif any(ends[topic].get(partition, 0) < end for partition, end in before[topic].items()):
                self._tables.look_anew(topic)

    def _catch_up(self) -> None:
        """Tables that are behind what the last batch had: they failed, or were not there yet."""
        last = self._last_batch()
        if last is not None:
            batch_id, ends = last
            self._advance(ends, batch_id, quiet=True)

    def _look_after_passed_over(self) -> None:
        """Catch up the tables that a batch passed over, once their maintenance has ended. No batch may follow."""
        if any(not self._tables.by_topic[topic].busy.locked() for topic in self._tables.passed_over):
            self._catch_up()

    def _look_after_waiting(self) -> None:
        """Try again the tables whose changes wait for a checkpoint. Spark starts no batch if nothing is written."""
        if not self._waiting:
            self._waits_since = None
            return
        now = time.monotonic()
        since = self._waits_since = self._waits_since or now
        self._catch_up()
        if now - since > WAITS_S:
            self._waits_since = now
            for topic, error in self._waits():
                self._observe(TableFailed(self._topics.name(topic), error.message, error.hint))

    def _end_waiting(self, stop: threading.Event) -> None:
        """At the end of a run: wait for the checkpoint, and stop the tables whose changes still wait."""
        deadline = time.monotonic() + SETTLE_S
        while self._waiting and not stop.is_set() and time.monotonic() < deadline:
            time.sleep(0.1)
            self._catch_up()
        for topic, error in self._waits():
            self._tables.stop(topic, self._topics.name(topic), error)

    def _waits(self) -> Iterator[tuple[str, TransientError]]:
        for topic, count in self._waiting.items():
            yield (
                topic,
                TransientError(
                    f"{count} changes wait, because no checkpoint in {self._settings.checkpoint} confirms that all "
                    f"partitions of the topic are complete up to their position.",
                    hint="Start the daemon, which writes one. If the daemon runs, set topics.checkpoint to what its"
                    " configuration has.",
                ),
            )

    def _advance(self, ends: Ends, batch_id: int, *, quiet: bool = False) -> None:
        began = time.monotonic()
        consistent = self._settings.consistent
        # A table that is new is known by its description: that must have been read too.
        read = {**ends, self._settings.schemas: self._descriptions.read_to}
        cut = self._cuts.cut(read) if consistent else None
        if self._settings.consistent and (cut is None or cut <= self._published):
            return
        topics = [topic for topic in self._topics.wanted(ends.keys()) if topic not in self._tables.stopped]
        self._tables.passed_over = set()
        lacking = [topic for topic in topics if self._tables.may_lack(topic, ends[topic])]
        self._topics.look_again([topic for topic in lacking if topic in self._tables.by_topic])
        self._topics.look_up([topic for topic in topics if topic not in self._tables.by_topic])
        tips = self._tips([topic for topic in lacking if len(ends[topic]) > 1])
        point = None if cut is None else self._points.begin(cut)
        with ThreadPoolExecutor(self._settings.threads, thread_name_prefix="table") as pool:
            work = {
                topic: pool.submit(self._tables.advance, topic, ends[topic], batch_id, point, tips)
                for topic in topics
            }
            done = {topic: each.result() for topic, each in work.items()}
        tables = [progress for progress in done.values() if progress is not None]
        self._waiting = {
            topic: progress.held
            for topic, progress in done.items()
            if progress is not None
            and cut is None
            and progress.held
            and self._tables.by_topic[topic].behind(ends[topic])
        }
        if point is not None:
            self._publish(point, batch_id, self._left_out(point.commit_lsn, ends, tables), tables)
        if not quiet or any(table.records for table in tables):
            self._observe(BatchDone(batch_id, tuple(tables), time.monotonic() - began, cut))
        self._tables.note_stops()

    def _tips(self, topics: Sequence[str]) -> Tips:
        settings = self._settings

        def look(some: Sequence[str]) -> Mapping[str, Tip]:
            return look_up_tips(self._spark, settings.kafka, self._admin, settings.checkpoint, some)

        return Tips(look, topics)

    def _left_out(self, cut: int, topics: Collection[str], done: Iterable[Progress]) -> tuple[str, ...]:
        """The tables that are mirrored, and not as of `cut`. It is said when they are others than before."""
        aside = {self._topics.name(topic) for topic in self._tables.aside}
        there = {progress.table for progress in done if not progress.ahead} - aside
        wanted = [self._topics.name(topic) for topic in self._topics.wanted(topics)]
        without = tuple(sorted(set(wanted) - there))
        if without != self._without:
            self._observe(SetChanged(cut, without))
            self._without = without
        return without

    # Consistent batches.

    def _take_mark(self, *, settle: bool) -> None:
        """Look how far a later batch must go to hold all that is committed by now; `settle`: wait until one can."""
        settings = self._settings
        newest, _ = newest_checkpoints(self._spark, settings.kafka, self._admin, settings.checkpoint)
        if not newest.commit_lsn:
            return
        # Also topics that are not described yet, and the descriptions: a table's first transaction may be visible in
        # the checkpoint's topic before it is in those.
        topics = [*self._topics.of_tables(), settings.schemas]
        mark = Mark(newest.commit_lsn, self._admin.ends(topics, committed=False))
        deadline = time.monotonic() + SETTLE_S
        while settle and not mark.is_before(self._admin.ends(topics)):
            if time.monotonic() > deadline:
                raise TransientError(
                    f"A transaction in the topics stays open for more than {SETTLE_S:.0f} s.",
                    hint="The broker aborts it after the daemon's kafka.transaction.timeout_s; run again then.",
                )
            time.sleep(0.1)
        self._cuts.take(mark)

    def _publish(
        self, point: Point, batch_id: int, without: tuple[str, ...], tables: Sequence[Progress]
    ) -> None:
        versions = {name: version for table in tables for name, version in table.versions.items()}
        self._points.list_(point, batch_id, without, versions)
        self._published = point.commit_lsn
