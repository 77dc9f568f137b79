"""The job of `change_log: fold`: append to the log, and fold each table of it up to one bound.

The bound is the complete LSN: Kafka has everything that committed at or before it, and a query that starts afterwards
appends all of it. It is the same for all tables, so tables that are folded by one round are as of one LSN. A table that
cannot be folded stops by name, and the others go on. The next round tries it again.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import SparkSession

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.core.errors import CdcdError, SinkError, TransientError
from cdcd.core.records.gaps import Aside
from cdcd.mirror.base.branches import tag_version
from cdcd.mirror.base.changes import fold_changes
from cdcd.mirror.base.commit import Folded
from cdcd.mirror.base.due import Found, Known, is_due, look_after
from cdcd.mirror.base.fold import fold
from cdcd.mirror.base.formats import BaseFormat
from cdcd.mirror.base.part import Forms, LacksChangesError, Place
from cdcd.mirror.base.plan import exists, log_begins
from cdcd.mirror.base.position import NO_VERSION
from cdcd.mirror.base.states import fold_states, states_name
from cdcd.mirror.base.upkeep import BaseUpkeep
from cdcd.mirror.log import positions
from cdcd.mirror.log.job import LogJob
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.consistency import newest_checkpoints, set_aside_error
from cdcd.mirror.stream.frontier import complete
from cdcd.mirror.stream.points import Point, Points
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.targets.target import Kind, Target, kind_of
from cdcd.mirror.watching.progress import (
    BatchDone,
    ChangesMissing,
    Observer,
    Progress,
    Retrying,
    SetChanged,
    StatesMissing,
    TableFailed,
    TableResumed,
    TableStopped,
    TableTakenOver,
    first_lines,
)
from cdcd.mirror.watching.stops import Stop, Stops

_RETRY_S: Final = 10.0

_UPKEEP_SHARE: Final = 0.5
"""Share of the interval after which a round of maintenance begins no further table."""


ReadAgain = Callable[[str, str], None]
"""Reads a table (`schema.table`) again from the database. The second argument is the reason. CdcdError: it cannot be
read.
"""


@dataclass(frozen=True, slots=True)
class Lake:
    """Where a mirror keeps its log and its tables.

    Attributes:
        log: place of the log.
        format: of the base tables.
        target: names the base tables, and has the table of consistent points.
    """

    log: LogPlace
    format: BaseFormat
    target: Target


class BaseJob:
    """Keeps the base tables of one pipeline.

    Args:
        client: properties of librdkafka, for the client that looks at topics.
        observe: gets facts.
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
        self._place, self._format, self._target = lake.log, lake.format, lake.target
        self._points = Points(spark, self._target, settings.tag_interval_s)
        self._versions: dict[str, tuple[str, int]] = {}
        """By `schema.table`, name in SQL and version of each table that this round has brought to its bound."""
        self._without: tuple[str, ...] = ()
        self._observe = observe
        self._topics = TopicStarts(client)
        self._log = LogJob(spark, settings, self._place, client, observe, self._folded)
        self._forms = Descriptions(
            spark, settings.kafka, self._topics, settings.schemas, variant=settings.variant, mirrored=True
        )
        self._upkeep = BaseUpkeep(spark, settings, self._format, self._target, observe)
        self._changed: set[str] = set()
        """Names of tables with commits since they were looked at for maintenance."""
        self._round = 0
        self._stops = Stops()
        self._has_read_stops = False
        self._known: dict[str, Known] = {}
        self._retried: set[str] = set()
        """Topics whose tables stopped. Each round tries them again."""
        self._read_again = read_again
        self._unread: dict[str, str] = {}
        """Topics whose tables are read again when the others are folded, with the reasons."""
        self._ends: Mapping[str, Mapping[int, int]] = {}
        """By topic and partition, an offset below which the log has all records, and none after the round's bound."""
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
                self._append_and_fold(stop, once=once)
            except TransientError as error:
                if once:
                    raise
                self._observe(Retrying(error.message, error.hint, _RETRY_S))
                stop.wait(_RETRY_S)
                continue
            if once:
                return
            stop.wait(max(0.0, began + self._settings.interval_s - time.monotonic()))

    def _append_and_fold(self, stop: threading.Event, *, once: bool) -> None:
        began = time.monotonic()
        bound = self._bound()
        self._log.run(once=True, stop=stop)
        if stop.is_set():
            return
        self._forms.refresh()
        due = self._due(bound, time.monotonic())
        due += [
            topic
            for topic in self._described()
            if topic not in due and self._left_out(self._forms.oid(topic), bound) is not None
        ]
        point = self._points.begin(bound)
        self._versions.clear()
        tables = [done for topic in due if (done := self._fold(topic, bound)) is not None]
        tables += [done for topic in sorted(self._unread) if (done := self._read(topic, bound)) is not None]
        self._note_stops()
        if self._settings.consistent:
            self._list(point, due)
        if tables:
            self._round += 1
            self._observe(BatchDone(self._round, tuple(tables), time.monotonic() - began, bound))
        if self._upkeep.is_due():
            names = [name for topic in self._described() for name in self._names(topic)]
            limit_s = None if once else self._settings.interval_s * _UPKEEP_SHARE
            self._changed = self._upkeep.round(self._changed, names, limit_s)

    def _note_stops(self) -> None:
        """Write to the log which tables stopped or go on, so that `cdcd mirror status` can name them."""
        if not self._has_read_stops:
            self._stops.found(positions.read(self._spark, self._place.name).tables)
            self._has_read_stops = True
        changes = self._stops.changes(datetime.now(UTC))
        if changes:
            positions.note_tables(self._spark, self._place, changes)
            self._stops.written(changes)

    def _list(self, point: Point, topics: Collection[str]) -> None:
        """List the point, with the versions that the tables of the topics have at it.

        Each version was found to equal the source at the point: its commit followed the version that its fold had read.
        """
        if point.tag is not None:
            self._tag(point.tag)
        without = sorted({self._forms.table(topic) or topic for topic in topics} - self._versions.keys())
        if tuple(without) != self._without:
            self._without = tuple(without)
            self._observe(SetChanged(point.commit_lsn, self._without))
        if not self._versions:
            return
        versions = {self._target.bare_name(name): version for name, version in self._versions.values()}
        self._points.list_(point, self._round, without, versions)

    def _tag(self, tag: Tag) -> None:
        """Give the versions of this round a tag. A version that cannot get the tag is left out of the point."""
        for table, (name, version) in list(self._versions.items()):
            try:
                tag_version(self._spark, name, version, tag)
            except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
                del self._versions[table]
                hint = (
                    "The point lists the table in `without`. The next point names the table's next version."
                )
                self._observe(TableFailed(table, f"tag {tag.name}: {first_lines(error)}", hint))

    def _bound(self) -> int:
        """The complete LSN of now."""
        settings = self._settings
        last, former = newest_checkpoints(self._spark, settings.kafka, self._topics, settings.checkpoint)
        # Described after the checkpoint: a table whose first change the checkpoint covers is among them.
        topics = [*self._described(), settings.schemas]
        written, ends = self._topics.both_ends(topics)
        found = [complete(last.end_lsn, former.end_lsn, ends[topic], written[topic]) for topic in ends]
        return min(found, default=0)

    def _left_out(self, oid: int | None, bound: int) -> Aside | None:
        """Return why the topic of a relation lacks changes up to the bound. None: it has all of them.

        A table that has come back by now may have its rows only after the bound.
        """
        for found in (self._forms.aside.get(oid or 0), self._forms.returned.get(oid or 0)):
            if found is not None and found.since <= bound and (found.until is None or bound < found.until):
                return found
        return None

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
        may wait (`is_due`). A table may lack something if it stopped, if its topic lost records, or if nobody looked at
        its commits for `LOOK_S`, because its owner may have rolled it back. The log is read from the least LSN on that
        is not folded.

        Args:
            now: seconds of a clock that only rises.
        """
        topics, known = self._described(), self._known
        unknown = [topic for topic in topics if topic not in known and topic not in self._retried]
        since = 0 if unknown else min([known[topic].lsn for topic in topics if topic in known], default=bound)
        log = positions.at_version(self._spark, self._place.name, self._log.version)
        found = look_after(log, since, bound)
        new, ends = {}, {}
        for topic in topics:
            parts = found.get(topic, {})
            last = max([each.last for each in parts.values()], default=0)
            new[topic] = Found(sum([each.count for each in parts.values()]), last)
            # The table has no change after the bound, so it has all records before the first of them.
            ends[topic] = {
                part: end if (later := parts.get(part, Found()).later) is None else min(end, later)
                for part, end in self._log.ends.get(topic, {}).items()
            }
        self._ends = ends
        lacking = {*self._log.deleted, *self._log.gaps, *self._log.began}
        due = [
            topic
            for topic in topics
            if topic in self._retried
            or is_due(known.get(topic), new[topic], now, self._settings, lacks=topic in lacking)
        ]
        for topic in set(topics) - {*due}:
            had = known.get(topic, Known(bound, now, is_empty=True))
            if new[topic].last <= had.lsn:
                known[topic] = replace(had, lsn=bound)
        return sorted(due, key=lambda topic: new[topic].count)

    def _read(self, topic: str, bound: int) -> Progress | None:
        """Read a table again, and fold it from there on. None: it stopped, or the log has nothing later."""
        table, why = self._forms.table(topic) or topic, self._unread.pop(topic)
        assert self._read_again is not None, "a table is noted only if it can be read"
        try:
            self._read_again(table, why)
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            self._stop(topic, table, error)
            return None
        self._changed.update(self._names(topic))
        return self._fold(topic, bound, is_read=True)

    def _fold(self, topic: str, bound: int, *, is_read: bool = False) -> Progress | None:
        """Fold one table. None: it stopped, it must be read again, or nothing was to be done.

        A table that is set aside is folded up to the last commit before its changes were left out, and stops.

        Args:
            is_read: the table was read again in this round.
        """
        table = self._forms.table(topic) or topic
        began = time.monotonic()
        try:
            if topic in self._log.stopped:
                raise self._log.stopped[topic]
            newest = self._forms.newest(topic)
            name = self._target.name_of(newest.schema, kind_of(newest.schema))
            former = None if exists(self._spark, name) else self._forms.former_name(newest.schema)
            place = Place(
                table,
                topic,
                name,
                self._place.name,
                log_version=self._log.version,
                log_begins=log_begins(self._spark, self._place.name, table, topic, self._log),
                began=self._log.began.get(topic),
                ends=self._ends.get(topic, {}),
                former_name=former,
                layout=self._settings.layout_of(table),
            )
            left_out = self._left_out(newest.schema.oid, bound)
            upper = bound if left_out is None else left_out.since - 1
            if newest.schema.key:
                try:
                    done = fold(self._spark, self._format, place, self._forms_of(topic), upper)
                except (IncompatibleSchemaError, LacksChangesError) as error:
                    can_read = self._read_again is not None and self._settings.reloads(table)
                    if is_read or left_out is not None or not can_read:
                        raise
                    self._unread[topic] = error.message
                    return None
            else:
                done = self._fold_changes(place, upper)
            if done.taken_over is not None:
                self._observe(TableTakenOver(table, done.taken_over))
            if left_out is not None:
                raise set_aside_error(left_out)
            if done.version != NO_VERSION:
                self._versions[table] = name, int(done.version)
            if newest.schema.key and self._settings.keeps_history(table):
                changelog = self._target.name_of(newest.schema, Kind.CHANGELOG)
                self._fold_changes(replace(place, name=changelog), upper, beside=True)
            if newest.schema.key and self._settings.keeps_states(table):
                self._fold_states(place, newest.schema, upper)
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            self._stop(topic, table, error)
            return None
        self._stops.went_on(topic)
        self._retried.discard(topic)
        self._known[topic] = Known(bound, time.monotonic())
        if self.stopped.pop(table, None) is not None:
            self._observe(TableResumed(table))
        if not done.changes:
            return None
        self._changed.update(self._names(topic))
        return Progress(table, done.changes, done.keys, commit_lsn=done.lsn, seconds=time.monotonic() - began)

    def _fold_states(self, place: Place, schema: TableSchema, bound: int) -> None:
        """Fold the table of states of a table that is folded."""
        place = replace(place, name=states_name(self._target, schema))
        done = fold_states(self._spark, self._format, place, self._forms_of(place.topic), bound)
        if done.missing is not None:
            self._observe(StatesMissing(place.table, place.name, *done.missing))

    def _fold_changes(self, place: Place, bound: int, *, beside: bool = False) -> Folded:
        """Fold the changelog `place.name`."""
        forms = self._forms_of(place.topic)
        done = fold_changes(self._spark, self._format, place, forms, bound, beside=beside)
        if done.missing is not None:
            self._observe(ChangesMissing(place.table, place.name, *done.missing))
        return done.folded

    def _forms_of(self, topic: str) -> Forms:
        return lambda ids: self._forms.find(topic, list(ids))

    def _folded(self, topics: Collection[str]) -> dict[str, int]:
        """By topic, the LSN up to which its tables have folded the log, as far as a mirrored table has the topic.

        The tables' own commits say it, because an owner may have rolled a table back. It is 0 for a table that does
        not exist, or whose commits cannot be read.
        """
        found = {}
        for topic in sorted(set(self._described()) & set(topics)):
            found[topic] = min(map(self._position_lsn, self._names(topic)))
        return found

    def _names(self, topic: str) -> list[str]:
        """The names in SQL of the tables that are folded from a topic."""
        schema, table = self._forms.newest(topic).schema, self._forms.table(topic) or topic
        names = [self._target.name_of(schema, kind_of(schema))]
        if schema.key and self._settings.keeps_history(table):
            names.append(self._target.name_of(schema, Kind.CHANGELOG))
        if schema.key and self._settings.keeps_states(table):
            names.append(states_name(self._target, schema))
        return names

    def _position_lsn(self, name: str) -> int:
        try:
            version = self._format.version(self._spark, name) if exists(self._spark, name) else None
        except Exception:  # noqa: BLE001 - the fold of the table says why it cannot be read
            version = None
        position = None if version is None else version.position
        return 0 if position is None else position.lsn

    def _stop(self, topic: str, table: str, failure: Exception) -> None:
        error = failure
        if not isinstance(error, CdcdError):
            error = SinkError(
                f"{table}: Spark could not fold it: {first_lines(failure)}",
                hint="Correct the fault that the message names. The next round tries again.",
            )
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
