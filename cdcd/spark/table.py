"""One table of the mirror: its topic from where the target is to where the batch ends, into the target.

The rule: a table's progress is in the target and nowhere else. What the target has of each partition says where to read
on; Spark's own checkpoint only says how far the batch goes. So a table that was stopped goes on where it stopped, one
that was killed in the middle of a commit finds out whether it was made, and one that is new begins at the beginning.

A batch is parsed in the form of the table that was current so far, and goes into the target in one pass (`_at_once`).
Where the target finds out that it does not fit (a record names another form, or is none), or where more must be known
beforehand, it is parsed and kept, and looked at first; and if need be read again, form by form: each change is brought
to the newest form, and what is no change goes to the quarantine table.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from threading import Lock
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from cdcd.errors import TransientError
from cdcd.spark.changes import PROBLEM, parse
from cdcd.spark.descriptions import Descriptions, Form
from cdcd.spark.frontier import Tip, first_change
from cdcd.spark.groups import Group, grouped, reason, up_to
from cdcd.spark.kafka import Admin, KafkaSource, Offsets, TopicFacts
from cdcd.spark.points import Pins
from cdcd.spark.progress import Progress
from cdcd.spark.replaced import Part, takeover
from cdcd.spark.schema import TableSchema
from cdcd.spark.targets.evolution import (
    IncompatibleSchemaError,
    UnknownLabelError,
    is_other,
    plan,
    same_labels,
    upgrade,
)
from cdcd.spark.targets.layout import PLAIN, Layout, check_deletes
from cdcd.spark.targets.pinned import Tag
from cdcd.spark.targets.reduction import UNFIT, is_after, is_new
from cdcd.spark.targets.state import WHOLE, Origin, Reach, State, check_origin
from cdcd.spark.targets.target import (
    Applied,
    Kind,
    Maintained,
    Maintenance,
    New,
    Target,
    UnfitError,
    kind_of,
)
from cdcd.spark.tombstones import LOOK_BACK, bare_tombstones

QUARANTINE: Final = "quarantine"
"""The table for records that are no changes, of all tables together."""

LABELS_S: Final = 15.0
"""How long the description of a label is waited for: the daemon looks at enums every 5 s."""
_PAUSE_S: Final = 0.5

PLACE: Final = ("topic", "partition", "offset")


class UnknownFormError(TransientError):
    """A table's changes name a form that is not described yet; the table waits for it, others go on."""

    def __init__(self, table: str, ids: Sequence[str]) -> None:
        super().__init__(
            f"{table}: no description of source.schema_id {', '.join(ids)} is in the topic of descriptions yet.",
            hint="The table waits for it. If it does not come, was topics.schemas emptied? Then start the daemon again,"
            " which describes its tables anew, or read the table again:"
            f" cdcd mirror --config FILE --snapshot {table} --source FILE.",
        )


class TableMirror:
    """Keeps the targets of one topic. One thread at a time: whoever calls a method that looks at the targets has taken
    `busy` before.

    Args:
        spark: a session of its own, since a target sets its configuration.
        facts: tells what a topic is, when the table begins with it.
        history: also keep a changelog beside the mirror.
        compacted: the topic is compacted, so a tombstone may be all that is left of a delete.
        layout: how a mirror keeps its rows, if it is new.
        slice_max: so many offsets are read at once; a table that is far behind takes several turns.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: KafkaSource,
        topic: str,
        *,
        admin: Admin,
        facts: Callable[[str], TopicFacts],
        target: Target,
        descriptions: Descriptions,
        history: bool = False,
        slice_max: int = 500_000,
        compacted: bool = False,
        layout: Layout = PLAIN,
    ) -> None:
        self.topic = topic
        self.busy = Lock()
        self._spark = spark
        self._source = source
        self._admin = admin
        self._facts = facts
        self._target = target
        self._descriptions = descriptions
        self._history = history
        self._slice_max = slice_max
        self._compacted = compacted
        self._layout = layout
        self._form: Form | None = None
        self._labels = 0
        self._next: dict[int, int] | None = None
        self._beginnings: Offsets = {}
        self._origin = Origin()
        self._named: set[str] = set()
        self._changed_at = time.monotonic()
        self._maintained_at: float | None = None
        self._quarantined = 0

    @property
    def table(self) -> str:
        """`schema.table`."""
        return self._descriptions.table(self.topic) or self.topic

    def forget(self) -> None:
        """After an error: look at everything anew."""
        self._next = None
        self._form = None
        for name in self._named:
            self._target.forget(name)

    def behind(self, ends: Offsets) -> bool:
        """Whether the target lacks something that lies before `ends`."""
        start = self._start()
        return any(start.get(partition, 0) < end for partition, end in ends.items())

    def may_lack(self, ends: Offsets) -> bool:
        """As `behind`, but without a look at the target. True also if the target was not looked at yet."""
        return self._next is None or self.behind(ends)

    def advance(
        self, ends: Offsets, batch_id: int, cut: int | None = None, tip: Callable[[], Tip] | None = None
    ) -> Progress:
        """Bring the target to `ends`, or with `cut` to that commit LSN, of which all must lie before `ends`.

        Args:
            tip: how far the topic can be read by now; needed where it has several partitions and there is no `cut`.

        Raises:
            IncompatibleSchemaError: the table changed in a way that the target cannot follow.
            OriginError: the topic was made anew, or records are gone.
            ConfigError: the target treats deleted rows otherwise than it is to.
        """
        began = time.monotonic()
        self._relabel()
        total = Progress(self.table)
        size = self._slice_max
        while self.behind(ends):
            start = self._start()
            self._look_again()
            reach, is_last = self._reach(start, ends, size, cut, tip)
            at = None if cut is None or reach.bound is None else reach.bound[0]
            step = self._step(start, reach, batch_id, at)
            total = Progress(
                self.table,
                total.records + step.records,
                total.changes + step.changes,
                total.quarantined + step.quarantined,
                step.held,
                max(total.commit_lsn, step.commit_lsn),
                step.commit_time or total.commit_time,
            )
            if step.held and is_last:
                break
            # A transaction may be larger than a slice, and its first changes lie in a partition that was not read far.
            size = size * 2 if step.held and self._next == start else self._slice_max
        seconds = time.monotonic() - began
        return Progress(
            total.table, total.records, total.changes, total.quarantined, total.held, total.commit_lsn,
            total.commit_time, seconds, self._is_ahead(cut),
        )  # fmt: skip

    def _reach(
        self, start: Offsets, ends: Offsets, size: int, cut: int | None, tip: Callable[[], Tip] | None
    ) -> tuple[Reach, bool]:
        """Which part of the topic the next step has, about `size` records, and whether nothing is left for now."""
        furthest = dict(ends)
        if cut is not None:
            bound = (cut, WHOLE)
        elif len(ends) == 1:
            until = _slice(start, ends, size)
            return Reach(until), until == ends
        else:
            assert tip is not None, "the topic has several partitions"
            now = tip()
            furthest = {partition: max(end, now.ends.get(partition, 0)) for partition, end in ends.items()}
            bound = (now.complete_lsn, WHOLE)
        if _distance(start, furthest) <= size:
            return Reach(furthest, bound), True
        until = _slice(start, ends, size)
        later = {partition: end for partition, end in furthest.items() if until[partition] < end}
        first = first_change(self._spark, self._source, self.topic, until, later)
        if first is not None:
            # Each commit of a consistent mirror is as of an LSN.
            bound = min(bound, first if cut is None else (first[0] - 1, WHOLE))
        return Reach(until, bound), False

    def _is_ahead(self, cut: int | None) -> bool:
        """Whether a target lacks a version as of `cut`: a later snapshot is its first one, or it went on before without
        a common LSN.
        """
        if cut is None:
            return False
        names = self._names(self._descriptions.newest(self.topic))
        states = [self._target.reached(self._spark, name) for name, _ in names]
        floors = [(0, 0) if state.truncated is None else state.truncated for state in states]
        return any(max(floor[0], state.commit_lsn) > cut for floor, state in zip(floors, states, strict=True))

    def pin(self, tag: Tag | None) -> dict[str, int]:
        """The version of each target that is there, by its name without catalog. `advance` was called before with the
        LSN of the point, and all targets are as of it.

        Args:
            tag: as in `Target.pin`.
        """
        names = [name for name, _ in self._names(self._descriptions.newest(self.topic))]
        versions = {self._target.bare_name(name): self._target.pin(self._spark, name, tag) for name in names}
        return {name: version for name, version in versions.items() if version is not None}

    def maintain(self, policy: Maintenance, pins: Pins | None = None) -> Iterator[tuple[str, Maintained]]:
        """Tidy up every target of the table, where there is something to do.

        Args:
            pins: what points of a consistent mirror need of the tables. None: there are no points.
        """
        now = time.monotonic()
        if not is_due(self._changed_at, self._maintained_at, now, policy.keep_s):
            return
        # Not those of the newest description, which a batch may be reading just now.
        for name in sorted(self._named):
            if self._target.schema(self._spark, name) is not None:
                pinned = None if pins is None else pins.of(self._target.bare_name(name))
                yield name, self._target.maintain(self._spark, name, policy, pinned)
        # One that failed is still due.
        self._maintained_at = now

    def _start(self) -> dict[int, int]:
        """Where to read on: after what every target of the table has."""
        if self._next is None:
            form = self._descriptions.newest(self.topic)
            names = self._names(form)
            for name, kind in names:
                if kind is Kind.MIRROR:
                    check_deletes(self.table, self._target.layout(self._spark, name), self._layout)
            states = [self._target.reached(self._spark, name) for name, _ in names]
            facts = self._facts(self.topic)
            beginnings = self._beginnings = facts.beginnings
            origin = Origin(facts.topic_id, beginnings)
            for state in states:
                check_origin(state, origin, self.topic, self.table)
            first = {
                partition: offset for state in states for partition, offset in state.origin.first.items()
            }
            self._origin = replace(origin, first={**beginnings, **first})
            self._next = {
                partition: min(
                    [
                        state.partitions[partition].offset + 1 if partition in state.partitions else beginning
                        for state in states
                    ]
                )
                for partition, beginning in beginnings.items()
            }
        return self._next

    def _topic_id(self) -> str | None:
        return self._admin.topic_ids([self.topic]).get(self.topic)

    def _look_again(self) -> None:
        """Check that nobody has deleted the topic and made it anew since `_start`.

        Raises:
            OriginError: somebody has.
        """
        now = replace(self._origin, topic_id=self._topic_id() or self._origin.topic_id)
        check_origin(State(origin=self._origin), now, self.topic, self.table)

    def _names(self, form: Form) -> list[tuple[str, Kind]]:
        kinds = [kind_of(form.schema)]
        if self._history and Kind.CHANGELOG not in kinds:
            kinds.append(Kind.CHANGELOG)
        names = [(self._target.name_of(form.schema, kind), kind) for kind in kinds]
        self._named.update(name for name, _ in names)
        return names

    def _step(self, start: Offsets, reach: Reach, batch_id: int, cut: int | None) -> Progress:
        ends = reach.until
        records = self._source.read(self._spark, self.topic, start, ends)
        form = self._form or self._descriptions.newest(self.topic)
        names = self._names(form)
        if cut is None and len(names) == 1 and self._may_have(names[0][0], form):
            with suppress(UnfitError):
                return self._at_once(names[0], records, form, _Step(start, reach, batch_id, cut))
        changes = self._parse(records, form, start, ends).persist()
        states = {name: self._target.reached(self._spark, name) for name, _ in names}
        try:
            groups = grouped(changes, reach.bound, list(states.values()))
            held: dict[int, int] = {}
            for group in groups:
                for partition, offset in group.first_held.items():
                    held[partition] = min(held.get(partition, offset), offset)
            # What no target needs, because it is from before a snapshot or was there already, may be of any form.
            now = [group for group in groups if not group.held and group.matters]
            quarantined = 0
            done: list[Applied] = []
            plain = all(group.sound and group.schema_id == form.schema.schema_id for group in now)
            # What lies after the bound is left out from here on.
            waiting = sum(group.count for group in groups if group.held)
            step = _Step(start, replace(reach, until={**ends, **held}, waiting=waiting), batch_id, cut)
            if plain and not self._is_other(form):
                done = self._apply(up_to(changes, reach.bound), form, now, step) if now else []
            else:
                changes.unpersist()
                done, quarantined = self._sort_out(records, form, now, states, step)
        finally:
            changes.unpersist()
        if any(applied.changes for applied in done):
            self._changed_at = time.monotonic()
        self._next = {**start, **ends, **held}
        return Progress(
            self.table,
            records=sum(group.count for group in groups),
            changes=done[0].changes if done else 0,
            quarantined=quarantined,
            held=waiting,
            commit_lsn=max([group.last[0] for group in now], default=0),
            commit_time=max([group.commit_time for group in now if group.commit_time], default=None),
        )

    def _parse(
        self, records: DataFrame, form: Form, start: Offsets, ends: Offsets, *, keep: bool = False
    ) -> DataFrame:
        """The changes in records, and the deletes of which compaction has left the tombstones only."""
        changes = parse(records, form.schema, form.rules, keep=keep)
        if not self._compacted or not form.schema.key:
            return changes
        had = {
            partition: (place.commit_lsn, place.event_no)
            for name, _ in self._names(form)
            for partition, place in self._target.reached(self._spark, name).partitions.items()
        }
        first = self._beginnings
        back = {partition: max(first.get(partition, at), at - LOOK_BACK) for partition, at in start.items()}
        wider = self._source.read(self._spark, self.topic, back, ends)
        deletes = bare_tombstones(wider, start, form.schema, form.rules, had, keep=keep)
        return changes.unionByName(deletes)

    def _relabel(self) -> None:
        """Give the rows that are there the labels that enums have by now, though no change may come with them.

        Raises:
            IncompatibleSchemaError: a value is none of them, and its description does not come.
        """
        deadline = time.monotonic() + LABELS_S
        while (version := self._descriptions.labels_version(self.topic)) != self._labels:
            form = self._form = self._descriptions.newest(self.topic)
            try:
                for name, kind in self._names(form):
                    has = self._target.schema(self._spark, name)
                    if has is not None and not is_other(has, form.schema):
                        self._target.prepare(self._spark, name, form.schema, kind, (0, 0))
                self._labels = version
            except UnknownLabelError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
                self._descriptions.wait_for_more()

    def _may_have(self, name: str, form: Form) -> bool:
        """The table has this form, or none yet."""
        has = self._target.schema(self._spark, name)
        if has is None:
            return True
        return has.schema_id == form.schema.schema_id and same_labels(has, form.schema)

    def _at_once(self, table: tuple[str, Kind], records: DataFrame, form: Form, step: "_Step") -> Progress:
        """A batch that is as nearly all are. UnfitError: it is not, and nothing was done."""
        start, reach = step.start, step.reach
        changes = self._parse(records, form, start, reach.until)
        known = sf.col("schema_id").eqNullSafe(sf.lit(form.schema.schema_id))
        unfit = sf.col(PROBLEM).isNotNull() | ~known
        name, kind = table
        changes = changes.withColumn(UNFIT, unfit)
        applied = self._target.apply(
            name,
            changes,
            batch_id=step.batch_id,
            new=New(form.schema, kind, self._layout),
            origin=self._origin,
            reach=reach,
        )
        self._form = form
        if applied.changes:
            self._changed_at = time.monotonic()
        self._next = {**start, **reach.until, **applied.held}
        return Progress(
            self.table,
            records=applied.changes + applied.waiting,
            changes=applied.changes,
            held=applied.waiting,
            commit_lsn=applied.state.commit_lsn,
            commit_time=applied.commit_time,
        )

    def _apply(self, changes: DataFrame, form: Form, groups: Iterable[Group], step: "_Step") -> list[Applied]:
        """Changes that are all in one form, into every target that they are new to."""
        at = max(group.last for group in groups)
        done = []
        for number, (name, kind) in enumerate(self._names(form)):
            if not any(group.new[number] for group in groups):
                continue
            has = self._target.prepare(self._spark, name, form.schema, kind, at, self._layout)
            fitting = (
                changes if has.schema_id == form.schema.schema_id else upgrade(changes, form.schema, has)
            )
            done.append(self._target.apply(name, fitting, **step.arguments, origin=self._origin))
        self._form = form
        return done

    def _is_other(self, form: Form) -> bool:
        """Whether a target is that of another relation, which had the name before or has it by now."""
        found = [self._target.schema(self._spark, name) for name, _ in self._names(form)]
        return any(has is not None and is_other(has, form.schema) for has in found)

    def _sort_out(
        self,
        records: DataFrame,
        guess: Form,
        groups: list[Group],
        states: Mapping[str, State],
        step: "_Step",
    ) -> tuple[list[Applied], int]:
        """The slow way, for a batch with several forms, or with records that are no changes."""
        forms = self._find({group.schema_id for group in groups if group.schema_id is not None})
        new = reduce(Column.__or__, [is_new(state) for state in states.values()])
        parts: dict[str, DataFrame] = {}
        poison: list[DataFrame] = []
        for schema_id, form in forms.items():
            mine = self._parse(records, form, step.start, step.reach.until, keep=True)
            mine = mine.filter(sf.col("schema_id") == schema_id)
            poison.append(mine.filter(sf.col(PROBLEM).isNotNull()).filter(new))
            sound = mine.filter(sf.col(PROBLEM).isNull()).drop("key_bytes", "value_bytes", "timestamp")
            parts[schema_id] = up_to(sound, step.reach.bound)
        rest = parse(records, guess.schema, guess.rules, keep=True).filter(new & sf.col("schema_id").isNull())
        poison.append(rest.withColumn(PROBLEM, reason(sf.col(PROBLEM))))
        quarantined = self._quarantine(poison)
        if not parts:
            return [], quarantined
        # Which form is the newest, the changes' own order tells.
        known = [group for group in groups if group.schema_id in forms]
        newest = forms[max(known, key=lambda group: group.last).schema_id or ""]
        done = []
        for name, kind in self._names(newest):
            number = list(states).index(name) if name in states else None
            needed = _parts([group for group in known if number is None or group.new[number]], forms, parts)
            if needed:
                done += self._bring(name, kind, needed, step)
        self._form = newest
        return done, quarantined

    def _find(self, ids: Collection[str]) -> dict[str, Form]:
        """The forms with these ids. UnknownFormError: one is not described yet."""
        forms = self._descriptions.find(self.topic, ids)
        unknown = sorted(set(ids) - forms.keys())
        if unknown:
            raise UnknownFormError(self.table, unknown)
        return forms

    def _bring(self, name: str, kind: Kind, parts: Sequence[Part], step: "_Step") -> list[Applied]:
        """Changes of several forms into one target, in one commit where they can be brought to the newest form."""
        spark, target = self._spark, self._target
        end = None
        if kind is Kind.MIRROR:
            has = target.schema(spark, name)
            reached = target.reached(spark, name)
            found = takeover(parts, has, reached, lambda forms: self._ahead(step.start, forms))
            parts, end = found.parts, found.end
        elif not _is_one_way([part.form.schema for part in parts]):
            # What cannot be brought to the newest form has columns of its own in a changelog: one run after the other.
            one_by_one = runs(parts)
            done: list[Applied] = []
            for part in one_by_one:
                done += self._bring(name, kind, [part], step if part is one_by_one[-1] else step.not_all())
            return done
        if not parts:
            return []
        newest = parts[-1]
        if end is None:
            schema = target.prepare(spark, name, newest.form.schema, kind, newest.last, self._layout)
        else:
            schema = target.replace(spark, name, newest.form.schema, kind, newest.last, end, self._layout)
        fitting = [upgrade(part.changes, part.form.schema, schema) for part in parts]
        together = reduce(DataFrame.unionByName, fitting).persist()
        try:
            return [target.apply(name, together, **step.arguments, origin=self._origin)]
        finally:
            together.unpersist()

    def _ahead(self, start: Offsets, forms: Iterable[Form]) -> DataFrame:
        """Op and place of all changes in these forms from `start` to where the topic ends now."""
        ends = self._admin.ends([self.topic])[self.topic]
        records = self._source.read(self._spark, self.topic, start, ends)
        found: DataFrame | None = None
        for form in forms:
            changes = parse(records, form.schema, form.rules).filter(
                (sf.col("schema_id") == form.schema.schema_id) & sf.col(PROBLEM).isNull()
            )
            placed = changes.select("op", "commit_lsn", "event_no")
            found = placed if found is None else found.unionByName(placed)
        assert found is not None, "no form"
        return found

    def _quarantine(self, poison: Iterable[DataFrame]) -> int:
        rows: DataFrame | None = None
        for part in poison:
            columns = part.select(
                sf.lit(self.table).alias("table"),
                *PLACE,
                sf.col("timestamp").alias("record_time"),
                sf.col("key_bytes").alias("key"),
                sf.col("value_bytes").alias("value"),
                sf.col(PROBLEM).alias("reason"),
                sf.col("schema_id"),
            )
            rows = columns if rows is None else rows.unionByName(columns)
        if rows is None:
            return 0
        rows = rows.persist()
        try:
            if rows.isEmpty():
                return 0
            return self._target.append(self._target.own_name(QUARANTINE), rows, list(PLACE))
        finally:
            rows.unpersist()


@dataclass(frozen=True, slots=True)
class _Step:
    """The part of the topic that one step applies, for the slow way.

    Attributes:
        start: by partition, the offset at which the part begins.
        reach: where the part ends.
        batch_id: number of Spark's batch.
        cut: the LSN that the target's commit is as of; None: of no particular LSN.
        all: True if one `apply` gets all changes of the part, so that its commit may record the end of the part.
    """

    start: Offsets
    reach: Reach
    batch_id: int
    cut: int | None
    all: bool = True

    def not_all(self) -> "_Step":
        """The step for an `apply` that gets only some of the changes."""
        return replace(self, cut=None, all=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """For `Target.apply`."""
        reach = Reach(self.reach.until, waiting=self.reach.waiting) if self.all else None
        return {"batch_id": self.batch_id, "consistent_lsn": self.cut, "reach": reach}


def _parts(
    groups: Iterable[Group], forms: Mapping[str, Form], changes: Mapping[str, DataFrame]
) -> list[Part]:
    """The forms of these groups with their changes, in the order of their last ones."""
    last: dict[str, tuple[int, int]] = {}
    for group in groups:
        if group.schema_id is not None:
            last[group.schema_id] = max(last.get(group.schema_id, group.last), group.last)
    return [Part(forms[each], changes[each], last[each]) for each in sorted(last, key=last.__getitem__)]


def runs(parts: Sequence[Part]) -> list[Part]:
    """The changes of a batch in their order, cut where their form changes. A form that came back has several runs.

    Each run is a commit, after which all that lies before its end counts as applied.
    """
    lsn, event = sf.col("commit_lsn"), sf.coalesce("event_no", sf.lit(0)).alias("event_no")
    placed = [
        part.changes.select(sf.lit(number).alias("part"), lsn, event) for number, part in enumerate(parts)
    ]
    order = Window.orderBy("commit_lsn", "event_no")
    after = sf.lead("part").over(order)
    ends = (
        reduce(DataFrame.unionByName, placed)
        .withColumn("after", after)
        .filter(sf.col("after").isNull() | (sf.col("after") != sf.col("part")))
        .orderBy("commit_lsn", "event_no")
        .collect()
    )
    found: list[Part] = []
    for row in ends:
        end = (row["commit_lsn"], row["event_no"])
        part = parts[row["part"]]
        changes = part.changes.filter(~is_after(lsn, event, end))
        if found:
            changes = changes.filter(is_after(lsn, event, found[-1].last))
        found.append(replace(part, changes=changes, last=end))
    return found


def _is_one_way(schemas: Sequence[TableSchema]) -> bool:
    """Whether changes of each form can be brought to the last one."""
    with suppress(IncompatibleSchemaError):
        for schema in schemas[:-1]:
            plan(schema, schemas[-1])
        return True
    return False


def is_due(changed_at: float, maintained_at: float | None, now: float, keep_s: float) -> bool:
    """Whether a table is to be maintained: each time makes commits of its own, so not one where nothing happens.

    After the last change it is once, and once more when the versions from before it are old enough to go.
    """
    if maintained_at is None or maintained_at <= changed_at:
        return True
    return maintained_at - changed_at < keep_s <= now - changed_at


def _distance(start: Offsets, ends: Offsets) -> int:
    """How many offsets lie between."""
    return sum(max(0, end - start.get(partition, 0)) for partition, end in ends.items())


def _slice(start: Offsets, ends: Offsets, most: int) -> dict[int, int]:
    """The ends, or as far as `most` offsets go, in the same proportion in each partition."""
    left = {partition: max(0, end - start.get(partition, 0)) for partition, end in ends.items()}
    total = _distance(start, ends)
    if total <= most:
        return dict(ends)
    return {
        partition: end - left[partition] + max(min(1, left[partition]), left[partition] * most // total)
        for partition, end in ends.items()
    }
