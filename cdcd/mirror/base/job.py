"""The job of `change_log: fold`: append to the log, and fold each table of it up to one bound.

The bound is the complete LSN: Kafka has everything that committed at or before it. A round looks up the bound, then
where the topics end, and waits until the log has all records before these ends. The bound is the same for all tables,
so tables that are folded by one round are as of one LSN. A table that cannot be folded stops by name, and the others go
on. The next round tries it again.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.core.errors import CdcdError, ConfigError, TransientError
from cdcd.mirror.base.checkpoints import complete, newest_checkpoints
from cdcd.mirror.base.due import Known, Lags, LogChanges, at_most, first_waiting, is_due, look_after, pause_s
from cdcd.mirror.base.part import LacksChangesError
from cdcd.mirror.base.points import Points, RoundPoint
from cdcd.mirror.base.position import NO_VERSION
from cdcd.mirror.base.relayout import relayout
from cdcd.mirror.base.replacing import replacing_of
from cdcd.mirror.base.replay import release, topics_waiting, waiting
from cdcd.mirror.base.sessions import Sessions
from cdcd.mirror.base.shared import shared
from cdcd.mirror.base.topic_folds import Lake, TopicFolds, policy_problem
from cdcd.mirror.base.upkeep import BaseUpkeep
from cdcd.mirror.log import positions
from cdcd.mirror.log.job import Appended, LogJob, interval_of
from cdcd.mirror.log.live import FollowedLog, LiveLog
from cdcd.mirror.log.positions import Ends
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.watching.progress import (
    BatchDone,
    Fact,
    MirrorStarted,
    Observer,
    Progress,
    Replayed,
    Retrying,
    TableFailed,
    TableResumed,
    TableStopped,
    first_lines,
)
from cdcd.mirror.watching.stops import Stop, Stops, round_error, table_error

_RETRY_S: Final = 10.0

_UPKEEP_SHARE: Final = 0.5
"""Share of the interval after which a round of maintenance begins no further table."""


ReadAgain = Callable[[str, str], None]
"""Reads a table (`schema.table`) again from the database. The second argument is the reason. CdcdError: it cannot be
read.
"""


class BaseJob:
    """Keeps the base tables of one pipeline.

    Args:
        client: properties of librdkafka, for the client that looks at topics.
        observe: gets facts, from several threads.
        read_again: reads tables that cannot follow their source, if the settings say so. None: they stop.

    Attributes:
        stopped: why tables and topics are left as they are, by name.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        lake: Lake,
        client: Mapping[str, Any],
        observe: Observer,
        read_again: ReadAgain | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._lake, self._place, self._target = lake, lake.log, lake.target
        self._point = RoundPoint(
            spark, self._target, Points(spark, self._target, settings.tag_interval_s), observe
        )
        self._observe = observe
        self._topics = TopicStarts(client)
        self._log = LogJob(spark, settings, self._place, client, self._from_log, self._folded)
        self._forms = Descriptions(
            spark,
            settings.kafka,
            self._topics,
            settings.schemas,
            variant=settings.variant,
            mirrored=True,
            by_header=True,
        )
        self._sessions = Sessions(spark)
        self._tables = TopicFolds(spark, settings, lake, self._forms, observe)
        self._upkeep = BaseUpkeep(spark, settings, lake.format, lake.target, observe)
        self._changed: set[str] = set()
        """Names of tables with commits since they were looked at for maintenance."""
        self._round = 0
        self._told = -1
        """Number of tables of the last `MirrorStarted`."""
        self._stops = Stops()
        self._has_read_stops = False
        self._known: dict[str, Known] = {}
        self._lags = Lags()
        self._is_away = False
        """True after Kafka or the catalogue did not answer, until a round has found all that it needs."""
        self._retried: set[str] = set()
        """Topics whose tables stopped. Each round tries them again."""
        self._replays = False
        self._read_again = read_again
        self._unread: dict[str, str] = {}
        """Topics whose tables are read again when the others are folded, with the reasons."""
        self._ends: Ends = {}
        """By topic and partition, an offset below which the log has all records, and none after the round's bound."""
        self._since, self._counts = 0, dict[str, int]()
        """By topic, the number of changes after this LSN that the log has in this round."""
        self.stopped: dict[str, CdcdError] = {}

    def lags(self) -> dict[str, float]:
        """Return the seconds since each table was last known to have all changes that the log has."""
        return self._lags.seconds(time.monotonic())

    def run(
        self,
        *,
        once: bool,
        stop: threading.Event,
        replays: bool = False,
        followed: FollowedLog | None = None,
    ) -> None:
        """Append and fold what is there now (`once`), or each interval until `stop` is set.

        Args:
            replays: the first round begins with the records in quarantine.
            followed: the log, to which another process appends. That process also maintains the tables.

        Raises:
            TransientError: with `once`, when Kafka or the catalogue does not answer.
            FatalError: a person must act.
        """
        self._replays = replays
        with followed or LiveLog(self._log) as live:
            while not stop.is_set():
                try:
                    if once or not live.runs() or self._is_away or self._may_be_due(time.monotonic()):
                        self._append_and_fold(live, stop, once=once)
                    if followed is None and self._upkeep.is_due() and not stop.is_set():
                        self._maintain(once=once)
                except Exception as failure:
                    if isinstance(failure, CdcdError) and not isinstance(failure, TransientError):
                        raise
                    error = round_error(failure)
                    if once:
                        raise error from failure
                    self._is_away = True
                    self._observe(Retrying(error.message, error.hint, _RETRY_S))
                    stop.wait(_RETRY_S)
                    continue
                if once:
                    return
                stop.wait(pause_s(time.time(), interval_of(self._settings)))

    def relayout(self, tables: Collection[str]) -> None:
        """Write these tables (`schema.table`) again, each in the layout of the settings; before `run`.

        Raises:
            ConfigError: there is no such table with a key, or it cannot have the layout.
            SinkError: the table is not one that can be written again.
        """
        topics = {self._forms.table(topic): topic for topic in self._described()}
        for table in tables:
            topic = topics.get(table)
            place = None if topic is None else self._tables.where(topic)
            if place is None:
                raise ConfigError(
                    f"--relayout {table}: the mirror has no such table with a key.",
                    hint="Name a table that is mirrored, as schema.table.",
                )
            began = time.monotonic()
            replacing, layout = replacing_of(self._target.format), partial(self._settings.layout_of, table)
            try:
                done = relayout(self._spark, self._lake.format, replacing, place, layout)
            except Exception as failure:
                raise table_error(table, failure) from failure
            self._observe(done.told(table, time.monotonic() - began))

    def _may_be_due(self, now: float) -> bool:
        """False if this round would fold no table. It is known from offsets alone, so such a round costs little.

        Args:
            now: seconds of a clock that only rises.
        """
        topics, has, known = self._described(), self._log.appended, self._known
        if self._replays or self._retried or self._forms.aside:
            return True
        most = {
            topic: at_most(known[topic].ends if topic in known else {}, has.ends.get(topic, {}))
            for topic in topics
        }
        for topic in topics:
            if topic in known and not most[topic].count:
                self._lags.whole(topic, has.at)
        return bool(self._chosen(topics, most, now, has))

    def _chosen(
        self, topics: Collection[str], new: Mapping[str, LogChanges], now: float, log: Appended
    ) -> list[str]:
        """The topics whose tables a round folds: those that are due, and some that wait.

        Args:
            new: by topic, the changes that the log has, or the most that it can have.
            now: seconds of a clock that only rises.
        """
        lacking = {*log.deleted, *log.gaps, *log.began}
        due = [
            topic
            for topic in topics
            if topic in self._retried
            or topic in log.stopped
            or self._is_described_anew(topic)
            or is_due(self._known.get(topic), new[topic], now, self._settings, lacks=topic in lacking)
        ]
        return due + first_waiting(set(due) - self._retried, self._known, new, self._settings)

    def _is_described_anew(self, topic: str) -> bool:
        """True if the table's newest description came after the last fold, because labels of enums may be others."""
        known = self._known.get(topic)
        return known is not None and known.form not in {"", self._forms.newest(topic).schema.schema_id}

    def _append_and_fold(self, live: LiveLog | FollowedLog, stop: threading.Event, *, once: bool) -> None:
        asked = time.monotonic()
        bound, ends = self._bound()
        self._tables.there = ends.keys()
        tables = {topic: self._forms.table(topic) or topic for topic in self._described()}
        self._lags.begin(tables, asked)
        if len(tables) != self._told:
            self._told = len(tables)
            self._observe(MirrorStarted(self._settings.name, len(tables), once))
        has = live.append(ends, stop, once=once)
        if has is None:
            return
        if self._is_away:
            self._is_away = False
            self._observe(MirrorStarted(self._settings.name, len(tables), once))
        if not self._has_read_stops:
            # Before the folds, because a table that a process before this one stopped may go on.
            self._stops.found(positions.read(self._spark, self._place.name).tables)
            self._has_read_stops = True
        began = time.monotonic()
        self._tables.log = has
        self._forms.refresh()
        self._look_at_policies()
        if self._replays:
            self._replay(bound)
            self._replays = False
        due = self._due(bound, time.monotonic())
        due += [
            topic
            for topic in self._described()
            if topic not in due and self._tables.left_out(topic, bound) is not None
        ]
        self._point.begin(bound)
        done = self._fold_all(due, bound)
        done += [read for topic in sorted(self._unread) if (read := self._read(topic, bound)) is not None]
        self._note_stops()
        if self._settings.consistent:
            self._point.list_(self._round, {self._forms.table(topic) or topic for topic in due})
        if done:
            self._round += 1
            # Without `consistent`, changes of some tables wait, so the tables have no common LSN.
            cut = bound if self._settings.consistent else None
            self._observe(BatchDone(self._round, tuple(done), time.monotonic() - began, cut))

    def _maintain(self, *, once: bool) -> None:
        names = [name for topic in self._described() for name in self._tables.names(topic)]
        limit_s = None if once else self._settings.interval_s * _UPKEEP_SHARE
        self._changed = self._upkeep.round(self._changed, names, limit_s)

    def _look_at_policies(self) -> None:
        """Look up how Kafka keeps the topics, once for each, and say what a mirror may lose by it."""
        known, schemas = self._tables.policies, self._settings.schemas
        new = [topic for topic in (schemas, *self._described()) if topic not in known]
        found = self._topics.cleanup_policies(new)
        for topic in new:
            known[topic] = found.get(topic, "")
            problem = policy_problem(topic, known[topic], is_table=topic != schemas)
            if problem is not None:
                self._observe(problem)

    def _from_log(self, fact: Fact) -> None:
        """Pass on facts of the log's job, except those that this job tells itself.

        These are starts, and the stop of a table, which this job tells by the name of the table.
        """
        self._is_away |= isinstance(fact, Retrying)
        is_tables = isinstance(fact, (TableResumed, TableStopped)) and self._lags.has(fact.table)
        if not isinstance(fact, MirrorStarted) and not is_tables:
            self._observe(fact)

    def _note_stops(self) -> None:
        """Write to the log which tables stopped or go on, so that `cdcd mirror status` can name them."""
        changes = self._stops.changes(datetime.now(UTC))
        if not changes:
            return
        try:
            positions.note_tables(self._spark, self._place, changes)
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            # The maintenance of the log runs beside, and may have changed the same files.
            hint = "Nothing is to be done, unless this comes again: the next round writes them."
            message = f"The log does not say which tables stopped: {first_lines(error)}"
            self._observe(TableFailed(self._place.name, message, hint))
            return
        self._stops.written(changes)

    def _bound(self) -> tuple[int, Ends]:
        """The complete LSN of now, and offsets before which the topics have everything up to it."""
        settings = self._settings
        last, former = newest_checkpoints(self._spark, settings.kafka, self._topics, settings.checkpoint)
        # Described after the checkpoint: a table whose first change the checkpoint covers is among them.
        topics = [*self._described(), settings.schemas]
        written, ends = self._topics.both_ends(topics)
        found = [complete(last.end_lsn, former.end_lsn, ends[topic], written[topic]) for topic in ends]
        return min(found, default=0), ends

    def _described(self) -> list[str]:
        """The topics of the tables that are mirrored."""
        self._forms.refresh()
        return sorted(
            topic
            for topic in self._forms.topics()
            if (table := self._forms.table(topic)) is not None and self._settings.wants(table)
        )

    def _due(self, bound: int, now: float) -> list[str]:
        """Return the topics whose tables are folded now, in the order of their number of changes.

        A table lacks something if the log has changes up to the bound that this process has not folded. Such changes
        may wait (`is_due`, `first_waiting`). A table may lack something if it stopped, if its topic lost records, or if
        nobody looked at its commits for `LOOK_S`, because its owner may have rolled it back. The log is read from the
        least LSN on that is not folded.

        Args:
            now: seconds of a clock that only rises.
        """
        topics, known = self._described(), self._known
        unknown = [topic for topic in topics if topic not in known and topic not in self._retried]
        since = 0 if unknown else min([known[topic].lsn for topic in topics if topic in known], default=bound)
        log = self._tables.log
        rows = positions.at_version(self._spark, self._place.name, log.version)
        found = look_after(rows, since, bound)
        new, ends = {}, {}
        for topic in topics:
            parts = found.get(topic, {})
            last = max([each.last for each in parts.values()], default=0)
            new[topic] = LogChanges(sum([each.count for each in parts.values()]), last)
            # The table has no change after the bound, so it has all records before the first of them.
            ends[topic] = {
                part: end if (later := parts.get(part, LogChanges()).later) is None else min(end, later)
                for part, end in log.ends.get(topic, {}).items()
            }
        self._ends = ends
        self._since, self._counts = since, {topic: new[topic].count for topic in topics}
        due = self._chosen(topics, new, now, log)
        for topic in set(topics) - {*due}:
            had = known.get(topic, Known(bound, now, is_empty=True))
            if new[topic].last <= had.lsn:
                self._lags.whole(topic)
                known[topic] = replace(had, lsn=bound, ends=ends[topic])
        return sorted(due, key=lambda topic: new[topic].count)

    def _fold_all(self, topics: Collection[str], bound: int) -> list[Progress]:
        """Fold the tables of these topics, `settings.threads` of them side by side."""
        log = positions.at_version(self._spark, self._place.name, self._tables.log.version)
        count = sum([self._counts.get(topic, 0) for topic in topics])
        with shared(log, topics, self._since, bound, count) as rows:

            def one(spark: SparkSession, topic: str) -> Progress | None:
                return self._fold(topic, bound, self._tables.using(spark, rows))

            found = self._sessions.each(self._settings.threads, one, topics)
        return [done for done in found if done is not None]

    def _read(self, topic: str, bound: int) -> Progress | None:
        """Read a table again, and fold it from there on. None: it stopped, or the log has nothing later."""
        table, why = self._forms.table(topic) or topic, self._unread.pop(topic)
        assert self._read_again is not None, "a table is noted only if it can be read"
        try:
            self._read_again(table, why)
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            self._stop(topic, table, error)
            return None
        self._changed.update(self._tables.names(topic))
        if topic not in self._tables.log.gaps:
            return self._fold(topic, bound, is_read=True)
        # The log reads the topic from now on, and the next round folds the records that the log has by then.
        self._log.let_go_on(topic)
        self._goes_on(topic, table)
        self._retried.add(topic)
        return None

    def _goes_on(self, topic: str, table: str) -> None:
        had_stopped = self._stops.went_on(topic)
        if self.stopped.pop(table, None) is not None or had_stopped:
            self._observe(TableResumed(table))

    def _fold(
        self, topic: str, bound: int, tables: TopicFolds | None = None, *, is_read: bool = False
    ) -> Progress | None:
        """Fold the tables of a topic. None: they stopped, must be read again, or nothing was to be done.

        Args:
            tables: folds them. None: `self._tables`.
            is_read: the table was read again in this round.
        """
        tables, table = tables or self._tables, self._forms.table(topic) or topic
        began = time.monotonic()
        try:
            try:
                place = tables.place(topic, self._ends.get(topic, {}))
                done = tables.fold(place, bound)
            except (IncompatibleSchemaError, LacksChangesError) as error:
                can_read = self._read_again is not None and self._settings.reloads(table)
                if is_read or not can_read or tables.left_out(topic, bound) is not None:
                    raise
                self._unread[topic] = error.message
                return None
            if done.version != NO_VERSION:
                self._point.versions[table] = place.name, int(done.version)
            tables.fold_beside(place, bound)
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            self._stop(topic, table, error)
            return None
        self._goes_on(topic, table)
        self._retried.discard(topic)
        self._lags.whole(topic)
        form = self._forms.newest(topic).schema.schema_id
        self._known[topic] = Known(bound, time.monotonic(), ends=self._ends.get(topic, {}), form=form)
        if not done.changes:
            return None
        self._changed.update(tables.names(topic))
        return Progress(table, done.changes, done.keys, commit_lsn=done.lsn, seconds=time.monotonic() - began)

    def _replay(self, bound: int) -> None:
        """Fold the records in quarantine that can be read by now.

        A table whose records cannot come back is told, and goes on.
        """
        described = self._described()
        for topic, topic_id in topics_waiting(
            self._spark, self._place.name, self._tables.log.version
        ).items():
            if topic not in described:
                continue
            table = self._forms.table(topic) or topic
            try:
                self._observe(self._replay_topic(topic, topic_id, bound))
            except Exception as failure:  # noqa: BLE001  formats raise classes of Java
                error = table_error(table, failure)
                self._observe(TableFailed(table, f"quarantine is not replayed: {error.message}", error.hint))

    def _replay_topic(self, topic: str, topic_id: str, bound: int) -> Replayed:
        place = self._tables.place(topic, self._ends.get(topic, {}))
        found = waiting(self._spark, place, topic_id, self._tables.forms_of(topic))
        if found.replay is not None:
            place = replace(place, replay=found.replay)
            self._tables.fold(place, bound)
            self._tables.fold_beside(place, bound)
            release(self._spark, place, found.replay)
        return Replayed(place.table, found.count, found.left, found.gone)

    def _folded(self, topics: Collection[str]) -> dict[str, int]:
        """By topic, the LSN up to which its tables have folded the log, as far as a mirrored table has the topic."""
        mine = sorted(set(self._described()) & set(topics))
        return {topic: self._tables.position_lsn(topic) for topic in mine}

    def _stop(self, topic: str, table: str, failure: Exception) -> None:
        error = table_error(table, failure)
        # Each round tries the table again, so a transient failure is one that waits.
        waits = isinstance(error, TransientError)
        self._known.pop(topic, None)
        self._retried.add(topic)
        self._stops.failed(topic, Stop(table, datetime.now(UTC), waits, error.message, error.hint))
        had = self.stopped.get(table)
        self.stopped[table] = error
        if had is None or had.message != error.message:
            kind = TableFailed if waits else TableStopped
            self._observe(kind(table, error.message, error.hint))
