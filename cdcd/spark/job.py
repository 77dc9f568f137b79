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

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdcd.errors import CdcdError, ConfigError, FatalError, FencedError, TransientError
from cdcd.spark.consistency import Cuts, Mark, newest_checkpoints
from cdcd.spark.descriptions import Descriptions
from cdcd.spark.frontier import Tip, Tips, look_up_tips
from cdcd.spark.kafka import Admin, TopicFacts, kafka_failure, records_gone
from cdcd.spark.offsets import Ends, batch_ends, last_batch
from cdcd.spark.points import Point, Points
from cdcd.spark.progress import (
    BatchDone,
    MirrorStarted,
    Observer,
    Progress,
    Retrying,
    SetChanged,
    TableFailed,
    TableLaidOut,
    TableResumed,
    TableStopped,
    TopicUnfit,
    Unmirrored,
    first_lines,
)
from cdcd.spark.reload import read_again
from cdcd.spark.replay import replay_quarantine
from cdcd.spark.settings import MirrorSettings
from cdcd.spark.snapshot import SnapshotSource
from cdcd.spark.stops import STOPPED, Stop, Stops, read_stops, write_stops
from cdcd.spark.table import TableMirror, UnknownFormError
from cdcd.spark.targets.evolution import IncompatibleSchemaError
from cdcd.spark.targets.state import OriginError
from cdcd.spark.targets.target import Kind, Target
from cdcd.spark.upkeep import Upkeep

ATTEMPTS: Final = 3
"""How often a table is tried in one batch when it fails for a reason that may pass."""

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
POLL_S: Final = 1
STOP_S: Final = 60.0
"""How long the batch and the maintenance that are under way may take when the mirror is asked to stop, in seconds."""

SETTLE_S: Final = 30.0
"""How long transactions are waited for that are open at the start of a consistent run, or at the end of any."""

WAITS_S: Final = 60.0
"""Seconds between two reports that changes wait for a checkpoint."""

_KAFKA: Final = re.compile(r"org\.apache\.kafka\.common\.errors|KafkaException|TimeoutException: Timeout of")
_LOST: Final = re.compile(
    r"data may have been lost|data loss|OffsetOutOfRange|UnknownTopicOrPartition", re.IGNORECASE
)


class Mirror:
    """Keeps the target's tables equal to the pipeline's source. `run` it, then `close`.

    Args:
        spark: a classic session with Spark's Kafka source and the target's format (`session.session`).
        observe: gets facts, from several threads.
        source: where the tables are read that their targets cannot follow (`MirrorSettings.reloads`); None: they stop.
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
        self._source = source
        self._once = False
        self._admin = Admin(spark, settings.kafka)
        self._descriptions = Descriptions(
            spark, settings.kafka, self._admin, settings.schemas, variant=settings.variant
        )
        self._tables: dict[str, TableMirror] = {}
        self._unmirrored: set[str] = set()
        self.stopped: dict[str, CdcdError] = {}
        self._cuts = Cuts()
        self._points = Points(spark, target, settings.tag_interval_s)
        self._published = 0
        self._policies: dict[str, str] = {}
        self._facts: dict[str, TopicFacts] = {}
        self._waiting: dict[str, int] = {}
        self._waits_since: float | None = None
        self._without: tuple[str, ...] = ()
        self._working = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._stops = Stops()
        self._stops_read = False
        self._passed_over: set[str] = set()
        self._upkeep = Upkeep(spark, target, settings, observe)

    def replay(self) -> None:
        """Bring records from quarantine into their tables that are understood by now; before `run`.

        Raises:
            SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
        """
        settings = self._settings
        done = replay_quarantine(
            self._spark.newSession(), settings.kafka, self._admin, self._descriptions, self._target, settings
        )
        for replayed in done:
            self._observe(replayed)

    def relayout(self, tables: Collection[str]) -> None:
        """Write the mirrors of these tables (`schema.table`) anew, each in its layout; before `run`.

        Raises:
            SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
            ConfigError: there is no such mirror.
            FencedError: another process writes to it.
        """
        self._descriptions.refresh()
        topics = {self._name(topic): topic for topic in self._wanted(self._descriptions.topics())}
        spark, settings = self._spark.newSession(), self._settings
        for table in tables:
            name = self._mirror_of(spark, topics.get(table))
            if name is None:
                raise ConfigError(
                    f"--relayout {table}: the mirror has no such table with a key.",
                    hint="Name a table that is mirrored, as schema.table.",
                )
            began = time.monotonic()
            done = self._target.relayout(spark, name, partial(settings.layout_of, table))
            self._observe(
                TableLaidOut(
                    table,
                    done.before.buckets,
                    done.after.buckets,
                    done.before.deletes,
                    done.after.deletes,
                    time.monotonic() - began,
                )
            )

    def _mirror_of(self, spark: SparkSession, topic: str | None) -> str | None:
        """The name in SQL of a topic's mirror. None: there is none."""
        if topic is None:
            return None
        schema = self._descriptions.newest(topic).schema
        name = self._target.name_of(schema, Kind.MIRROR)
        return name if schema.key and self._target.schema(spark, name) is not None else None

    def close(self) -> None:
        self._admin.close()

    def run(self, *, once: bool, stop: threading.Event) -> None:
        """Mirror what is there (`once`), or what comes until `stop` is set.

        Raises:
            TransientError: with `once`, when Kafka or the catalog is away.
            FatalError: a person must act.
        """
        self._once = once
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
                return
            except TransientError as error:
                if once:
                    raise
                if time.monotonic() - began > RETRY_MAX_S:
                    wait_s = RETRY_FIRST_S
                self._observe(Retrying(error.message, error.hint, wait_s))
                for table in self._tables.values():
                    # One that is maintained was in no part of what failed.
                    if table.busy.acquire(blocking=False):
                        try:
                            table.forget()
                        finally:
                            table.busy.release()
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    def _run_query(self, once: bool, stop: threading.Event) -> None:
        settings = self._settings
        self._failure = None
        self._descriptions.refresh()
        self._observe(MirrorStarted(settings.name, len(self._wanted(self._descriptions.topics())), once))
        self._look_at_policies([settings.schemas])
        self._read_stops()
        if settings.consistent:
            self._take_mark(settle=once)
        self._catch_up()
        stream = (
            self._spark.readStream.format("kafka")
            .options(**settings.kafka.options())
            .option("subscribePattern", self._pattern(self._topics_before()))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", settings.batch_records_max)
            .load()
        )
        writer = (
            stream.writeStream.queryName(settings.name)
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
                self._note_stops()
        except (PySparkException, Py4JError) as error:
            raise self._reason(error) from error
        if once:
            self._upkeep.finish(self._followed(), stop)

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
            self._upkeep.look(self._followed())
            if self._working.acquire(blocking=False):
                try:
                    self._look_after_passed_over()
                    self._look_after_waiting()
                finally:
                    self._working.release()
        return True

    def _followed(self) -> list[TableMirror]:
        return [table for topic, table in list(self._tables.items()) if topic not in self.stopped]

    def _reason(self, error: Exception) -> BaseException:
        """Why the query ended: what was raised in a batch, else what Spark says."""
        if stashed := self._failure:
            return stashed
        return _classified(error, self._settings.kafka.bootstrap_servers) or error

    def _topics_before(self) -> Collection[str]:
        """The topics of the stream's last batch. Spark takes a topic for gone that is no longer subscribed to."""
        location = self._settings.checkpoint_location
        batch_id = last_batch(self._spark, location)
        return () if batch_id is None else batch_ends(self._spark, location, batch_id)

    def _pattern(self, before: Collection[str] = ()) -> str:
        """Topics of tables, `<prefix>.<schema>.<table>`, and of their descriptions, which may come alone; with
        consistent batches also the checkpoint's, which moves when nothing else does. A stream that had it keeps it.

        Args:
            before: topics that the stream had.
        """
        settings = self._settings
        has_checkpoint = settings.consistent or settings.checkpoint in before
        others = "|".join(re.escape(name) for name in sorted(self._not_tables()))
        tables = rf"(?!(?:{others})$){re.escape(settings.prefix)}\.[^.]+\..+"
        own = [settings.schemas, *([settings.checkpoint] if has_checkpoint else [])]
        return "|".join([tables, *map(re.escape, own)])

    def _not_tables(self) -> Collection[str]:
        settings = self._settings
        return {*settings.not_tables, settings.schemas, settings.checkpoint}

    def _wanted(self, topics: Collection[str]) -> list[str]:
        """Those of `topics` that are mirrored tables', in a stable order."""
        return [
            topic
            for topic in sorted(topics)
            if (table := self._descriptions.table(topic)) is not None and self._settings.wants(table)
        ]

    def _batch(self, _records: DataFrame, batch_id: int) -> None:
        """A batch of the query, in whose name nothing is read: each table reads its own topic."""
        try:
            with self._working:
                if self._stopping:
                    # Spark takes it for done; the tables know better, and catch up at the next start.
                    return
                self._descriptions.refresh()
                ends = batch_ends(self._spark, self._settings.checkpoint_location, batch_id)
                self._warn(ends)
                self._advance(ends, batch_id)
                if self._settings.consistent:
                    self._take_mark(settle=False)
        except BaseException as error:
            self._failure = error if isinstance(error, CdcdError) else None
            raise

    def _catch_up(self) -> None:
        """Tables that are behind what the last batch had: they failed, or were not there yet."""
        settings = self._settings
        batch_id = last_batch(self._spark, settings.checkpoint_location)
        if batch_id is not None:
            ends = batch_ends(self._spark, settings.checkpoint_location, batch_id)
            self._advance(ends, batch_id, quiet=True)

    def _look_after_passed_over(self) -> None:
        """Catch up the tables that a batch passed over, once their maintenance has ended. No batch may follow."""
        if any(not self._tables[topic].busy.locked() for topic in self._passed_over):
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
                self._observe(TableFailed(self._name(topic), error.message, error.hint))

    def _end_waiting(self, stop: threading.Event) -> None:
        """At the end of a run: wait for the checkpoint, and stop the tables whose changes still wait."""
        deadline = time.monotonic() + SETTLE_S
        while self._waiting and not stop.is_set() and time.monotonic() < deadline:
            time.sleep(0.1)
            self._catch_up()
        for topic, error in self._waits():
            self._stop(topic, self._name(topic), error)

    def _waits(self) -> Iterator[tuple[str, TransientError]]:
        for topic, count in self._waiting.items():
            yield (
                topic,
                TransientError(
                    f"{count} changes wait, because no checkpoint in {self._settings.checkpoint} says that all of the"
                    " topic's partitions are complete up to there.",
                    hint="Start the daemon, which writes one. If it runs: is topics.checkpoint the same as in its"
                    " configuration?",
                ),
            )

    def _name(self, topic: str) -> str:
        return self._descriptions.table(topic) or topic

    def _advance(self, ends: Ends, batch_id: int, *, quiet: bool = False) -> None:
        began = time.monotonic()
        consistent = self._settings.consistent
        # A table that is new is known by its description: that must have been read too.
        read = {**ends, self._settings.schemas: self._descriptions.read_to}
        cut = self._cuts.cut(read) if consistent else None
        if self._settings.consistent and (cut is None or cut <= self._published):
            return
        topics = [topic for topic in self._wanted(ends.keys()) if topic not in self.stopped]
        self._passed_over = set()
        self._look_up([topic for topic in topics if topic not in self._tables])
        tips = self._tips(
            [topic for topic in topics if len(ends[topic]) > 1 and self._may_lack(topic, ends[topic])]
        )
        point = None if cut is None else self._points.begin(cut)
        with ThreadPoolExecutor(self._settings.threads, thread_name_prefix="table") as pool:
            work = {
                topic: pool.submit(self._table, topic, ends[topic], batch_id, point, tips) for topic in topics
            }
            done = {topic: each.result() for topic, each in work.items()}
        tables = [progress for progress in done.values() if progress is not None]
        self._waiting = {
            topic: progress.held
            for topic, progress in done.items()
            if progress is not None
            and cut is None
            and progress.held
            and self._tables[topic].behind(ends[topic])
        }
        if point is not None:
            self._publish(point, batch_id, self._left_out(point.commit_lsn, ends, tables), tables)
        if not quiet or any(table.records for table in tables):
            self._observe(BatchDone(batch_id, tuple(tables), time.monotonic() - began, cut))
        self._note_stops()

    def _look_up(self, new: Collection[str]) -> None:
        """Ask Kafka about all topics whose tables begin now, together."""
        if new:
            self._look_at_policies(new)
            self._facts = self._admin.facts(new)

    def _facts_of(self, topic: str) -> TopicFacts:
        """What Kafka knows of a topic. The answer to `_look_up` serves each table once; later calls ask Kafka."""
        known = self._facts.pop(topic, None)
        return known or self._admin.facts([topic]).get(topic) or TopicFacts(None, {})

    def _may_lack(self, topic: str, ends: Mapping[int, int]) -> bool:
        table = self._tables.get(topic)
        return table is None or table.may_lack(ends)

    def _tips(self, topics: Sequence[str]) -> Tips:
        settings = self._settings

        def look(some: Sequence[str]) -> Mapping[str, Tip]:
            return look_up_tips(self._spark, settings.kafka, self._admin, settings.checkpoint, some)

        return Tips(look, topics)

    def _table(
        self, topic: str, ends: Mapping[int, int], batch_id: int, point: Point | None, tips: Tips
    ) -> Progress | None:
        """One table's part of a batch; None where it failed, which is then reported, or where it is maintained now."""
        table = self._tables.get(topic)
        if table is None:
            table = self._tables[topic] = self._new_table(topic)
        # A common LSN, and the end of a run, wait for all tables; else the table catches up when it is free.
        if not table.busy.acquire(blocking=point is not None or self._once):
            self._passed_over.add(topic)
            return None
        try:
            return self._attempt(topic, table, ends, batch_id, point, tips)
        finally:
            table.busy.release()

    def _attempt(  # noqa: PLR0917 - as `_table`, and the table
        self,
        topic: str,
        table: TableMirror,
        ends: Mapping[int, int],
        batch_id: int,
        point: Point | None,
        tips: Tips,
    ) -> Progress | None:
        cut = None if point is None else point.commit_lsn
        for attempt in range(1, ATTEMPTS + 1):
            try:
                progress = table.advance(ends, batch_id, cut, lambda: tips.of(topic))
                if point is not None and not progress.ahead:
                    progress = replace(progress, versions=table.pin(point.tag))
                if self._stops.went_on(topic):
                    self._observe(TableResumed(table.table))
                return progress
            except UnknownFormError as error:
                table.forget()
                self._hold(topic, table.table, error)
                return None
            except (IncompatibleSchemaError, OriginError) as error:
                table.forget()
                reloads = self._source is not None and self._settings.reloads(table.table)
                if not reloads or attempt == ATTEMPTS:
                    self._stop(topic, table.table, error)
                    return None
                if not self._reload(topic, table.table, error):
                    return None
            except (TransientError, FencedError):
                table.forget()
                raise
            except FatalError as error:
                table.forget()
                self._stop(topic, table.table, error)
                return None
            except (PySparkException, Py4JError) as error:
                table.forget()
                known = _classified(error, self._settings.kafka.bootstrap_servers)
                if isinstance(known, TransientError):
                    raise known from error
                if known is not None or attempt == ATTEMPTS:
                    self._stop(topic, table.table, known or FatalError(first_lines(error)))
                    return None
                self._observe(TableFailed(table.table, first_lines(error), ""))
        return None

    def _look_at_policies(self, topics: Collection[str]) -> None:
        """Check the `cleanup.policy` of topics, and report each topic that loses records once."""
        new = [topic for topic in topics if topic not in self._policies]
        found = self._admin.cleanup_policies(new)
        self._policies.update({topic: found.get(topic, "") for topic in new})
        for topic in new:
            problem = policy_problem(topic, self._policies[topic], is_table=topic != self._settings.schemas)
            if problem is not None:
                self._observe(problem)

    def _new_table(self, topic: str) -> TableMirror:
        settings = self._settings
        name = self._name(topic)
        return TableMirror(
            self._spark.newSession(),
            settings.kafka,
            topic,
            admin=self._admin,
            facts=self._facts_of,
            target=self._target,
            descriptions=self._descriptions,
            history=settings.keeps_history(name),
            slice_max=settings.batch_records_max,
            layout=settings.layout_of(name),
            compacted="compact" in self._policies.get(topic, ""),
        )

    def _stop(self, topic: str, table: str, error: CdcdError) -> None:
        self._observe(TableStopped(table, error.message, error.hint))
        self.stopped[topic] = error
        self._stops.failed(topic, Stop(table, datetime.now(UTC), False, error.message, error.hint))

    def _hold(self, topic: str, table: str, error: CdcdError) -> None:
        """The next batch tries the table again; a run that ends has none."""
        if self._once:
            self._stop(topic, table, error)
        else:
            self._observe(TableFailed(table, error.message, error.hint))
            self._stops.failed(topic, Stop(table, datetime.now(UTC), True, error.message, error.hint))

    def _read_stops(self) -> None:
        """Read which tables were stopped when a process before this one ended."""
        if self._stops_read:
            return
        try:
            self._stops.found(read_stops(self._spark, self._target))
        except (PySparkException, Py4JError) as error:
            raise self._reason(error) from error
        self._stops_read = True

    def _note_stops(self) -> None:
        """Record which tables are stopped, if that has changed. What cannot be written now is written later."""
        changes = self._stops.changes(datetime.now(UTC))
        if not changes:
            return
        try:
            self._write_stops(changes)
        except (PySparkException, Py4JError) as error:
            name = self._target.own_name(STOPPED)
            self._observe(TableFailed(name, f"stopped tables are not recorded: {first_lines(error)}", ""))
        else:
            self._stops.written(changes)

    def _write_stops(self, changes: Mapping[str, Stop | None]) -> None:
        write_stops(self._spark, self._target, changes)

    def _reload(self, topic: str, table: str, why: CdcdError) -> bool:
        """Read a table again that its target cannot follow. False: it was not, which is then reported."""
        assert self._source is not None, "there is a source to read from"
        spark = self._spark.newSession()
        try:
            read_again(spark, self._source, table, self._target, self._settings, self._observe, why.message)
        except FencedError:
            raise
        except TransientError as error:
            self._hold(topic, table, error)
        except CdcdError as error:
            self._stop(topic, table, error)
        else:
            return True
        return False

    def _left_out(self, cut: int, topics: Collection[str], done: Iterable[Progress]) -> tuple[str, ...]:
        """The tables that are mirrored, and not as of `cut`. It is said when they are others than before."""
        there = {progress.table for progress in done if not progress.ahead}
        wanted = [self._name(topic) for topic in self._wanted(topics)]
        without = tuple(sorted(set(wanted) - there))
        if without != self._without:
            self._observe(SetChanged(cut, without))
            self._without = without
        return without

    def _warn(self, topics: Collection[str]) -> None:
        for topic in topics:
            if topic not in self._unmirrored and self._descriptions.table(topic) is None:
                self._unmirrored.add(topic)
                if topic not in {self._settings.checkpoint, self._settings.schemas}:
                    self._observe(Unmirrored(topic, f"{self._settings.schemas} does not describe it"))
        for where, problem in self._descriptions.problems.items():
            if where not in self._unmirrored:
                self._unmirrored.add(where)
                self._observe(Unmirrored(where, problem))

    # Consistent batches.

    def _take_mark(self, *, settle: bool) -> None:
        """Look how far a later batch must go to hold all that is committed by now; `settle`: wait until one can."""
        settings = self._settings
        newest, _ = newest_checkpoints(self._spark, settings.kafka, self._admin, settings.checkpoint)
        if not newest.commit_lsn:
            return
        # Also topics that are not described yet, and the descriptions: a table's first transaction may be visible in
        # the checkpoint's topic before it is in those.
        topics = [*self._tables_topics(), settings.schemas]
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

    def _tables_topics(self) -> list[str]:
        """The topics that are read, but for tables that are known not to be mirrored."""
        pattern = re.compile(self._pattern())
        return [
            topic
            for topic in self._admin.topics()
            if pattern.fullmatch(topic)
            and topic != self._settings.checkpoint
            and ((table := self._descriptions.table(topic)) is None or self._settings.wants(table))
        ]

    def _publish(
        self, point: Point, batch_id: int, without: tuple[str, ...], tables: Sequence[Progress]
    ) -> None:
        versions = {name: version for table in tables for name, version in table.versions.items()}
        self._points.list_(point, batch_id, without, versions)
        self._published = point.commit_lsn


def policy_problem(topic: str, policy: str, *, is_table: bool) -> TopicUnfit | None:
    """Judge a topic by its `cleanup.policy`. None: it keeps what the mirror needs, or the policy is unknown ("").

    Args:
        is_table: the topic has changes of a table. Otherwise it is the topic of descriptions.
    """
    alter = f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy="
    if is_table and "compact" in policy:
        return TopicUnfit(
            topic,
            "is compacted: changes that compaction removes before they are mirrored take values along that later"
            " updates did not send (unchanged TOAST); the mirror names such columns in _cdcd_unknown",
            f"{alter}delete, or give the table REPLICA IDENTITY FULL.",
        )
    if not is_table and policy not in {"", "compact"}:
        return TopicUnfit(
            topic,
            f"has cleanup.policy={policy}: the description of a form is deleted some day, and records of it cannot be"
            " mirrored then",
            f"{alter}compact",
        )
    return None


def _classified(error: Exception, servers: str) -> CdcdError | None:
    """What Spark or Java raised, if it is about Kafka."""
    text = str(error)
    if _LOST.search(text):
        return records_gone(first_lines(error))
    if _KAFKA.search(text):
        return kafka_failure(first_lines(error), servers)
    return None
