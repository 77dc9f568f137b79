"""One table of the mirror: its topic from where the target is to where the batch ends, into the target.

The rule: a table's progress is in the target and nowhere else. What the target has of each partition says where to read
on; Spark's own checkpoint only says how far the batch goes. So a table that was stopped goes on where it stopped, one
that was killed in the middle of a commit finds out whether it was made, and one that is new begins at the beginning.

A batch is parsed in the form of the table that was current so far, and goes into the target in one pass (`_at_once`).
Where the target finds out that it does not fit (a record names another form, or is none), or where more must be known
beforehand, it is parsed and kept, and looked at first; and if need be read again, form by form (`forms.py`).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.platform.kafka_admin import Admin, TopicFacts
from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.records.descriptions import Descriptions, Form
from cdcd.mirror.stream.forms import SeveralForms
from cdcd.mirror.stream.frontier import Tip, first_change
from cdcd.mirror.stream.groups import Group, grouped, up_to
from cdcd.mirror.stream.points import Pins
from cdcd.mirror.stream.slices import Slice, reach_of
from cdcd.mirror.stream.topic_reader import TableNames, TopicReader
from cdcd.mirror.targets.evolution import UnknownLabelError, same_labels
from cdcd.mirror.targets.layout import PLAIN, Layout, check_deletes
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.targets.reduction import UNFIT
from cdcd.mirror.targets.same_columns import is_other, same_names
from cdcd.mirror.targets.state import At, Origin, State, check_origin
from cdcd.mirror.targets.target import Applied, Kind, Maintained, Maintenance, New, Target, UnfitError
from cdcd.mirror.targets.upgrading import upgrade
from cdcd.mirror.watching.progress import Progress

LABELS_S: Final = 15.0
"""How long the description of a label is waited for: the daemon looks at enums every 5 s."""
_PAUSE_S: Final = 0.5


class TableMirror:
    """Keeps the targets of one topic. One thread at a time: whoever calls a method that looks at the targets has taken
    `busy` before.

    Args:
        spark: the session until `use` gives another one. No other table may work in it meanwhile, since a target sets
            its configuration.
        facts: tells what a topic is, when the table begins with it.
        topic_id: tells the id of a topic by now; None: it is not known.
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
        topic_id: Callable[[str], str | None],
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
        self._facts = facts
        self._topic_id = topic_id
        self._target = target
        self._descriptions = descriptions
        self._slice_max = slice_max
        self._layout = layout
        self._names = TableNames(target, history=history)
        self._reader = TopicReader(spark, source, topic, target, self._names, compacted=compacted)
        self._forms = SeveralForms(
            spark,
            self._reader,
            self._names,
            admin=admin,
            target=target,
            descriptions=descriptions,
            table=lambda: self.table,
            layout=layout,
        )
        self._form: Form | None = None
        self._labels = 0
        self._next: dict[int, int] | None = None
        self._origin = Origin()
        self._changed_at = time.monotonic()
        self._maintained_at: float | None = None

    @property
    def table(self) -> str:
        """`schema.table`."""
        return self._descriptions.table(self.topic) or self.topic

    @property
    def is_there(self) -> bool:
        """Whether a target of the table exists."""
        form = self._descriptions.newest(self.topic)
        return any(self._target.schema(self._spark, name) is not None for name, _ in self._names.of(form))

    def use(self, spark: SparkSession) -> None:
        """Work in this session from now on. The caller has taken `busy`."""
        self._spark = self._reader.spark = self._forms.spark = spark

    def forget(self) -> None:
        """After an error: look at everything again."""
        self._next = self._form = None
        for name in self._names.named:
            self._target.forget(name)

    def behind(self, ends: Offsets) -> bool:
        """Whether the target lacks something that lies before `ends`."""
        start = self._start()
        return any(start.get(partition, 0) < end for partition, end in ends.items())

    def may_lack(self, ends: Offsets) -> bool:
        """As `behind`, but without a look at the target. True also if the target was not looked at yet."""
        return self._next is None or self.behind(ends)

    def advance(
        self,
        ends: Offsets,
        batch_id: int,
        cut: int | None = None,
        tip: Callable[[], Tip] | None = None,
    ) -> Progress:
        """Bring the target to `ends`, or with `cut` to that commit LSN, of which all must lie before `ends`.

        Args:
            tip: how far the topic can be read by now; needed where it has several partitions and there is no `cut`.

        Raises:
            IncompatibleSchemaError: the table changed in a way that the target cannot follow.
            OriginError: the topic was made again, or records are gone.
            ConfigError: the target treats deleted rows otherwise than it is to.
        """
        began = time.monotonic()
        self._relabel()
        total = Progress(self.table)
        size = self._slice_max
        while self.behind(ends):
            start = self._start()
            self._look_again()
            reach, is_last = reach_of(start, ends, size, cut, tip, self._first_change)
            at = None if cut is None or reach.bound is None else reach.bound[0]
            step = self._step(Slice(start, reach, batch_id, at, self._origin))
            total = replace(
                step,
                records=total.records + step.records,
                changes=total.changes + step.changes,
                quarantined=total.quarantined + step.quarantined,
                commit_lsn=max(total.commit_lsn, step.commit_lsn),
                commit_time=step.commit_time or total.commit_time,
            )
            if step.held and is_last:
                break
            # A transaction may be larger than a slice, and its first changes lie in a partition that was not read far.
            size = size * 2 if step.held and self._next == start else self._slice_max
        return replace(total, seconds=time.monotonic() - began, ahead=self._is_ahead(cut))

    def _first_change(self, start: Offsets, ends: Offsets) -> At | None:
        return first_change(self._spark, self._source, self.topic, start, ends)

    def _is_ahead(self, cut: int | None) -> bool:
        """Whether a target lacks a version as of `cut`: a later snapshot is its first one, or it went on before without
        a common LSN.
        """
        if cut is None:
            return False
        names = self._names.of(self._descriptions.newest(self.topic))
        states = [self._target.reached(self._spark, name) for name, _ in names]
        floors = [(0, 0) if state.truncated is None else state.truncated for state in states]
        return any(max(floor[0], state.commit_lsn) > cut for floor, state in zip(floors, states, strict=True))

    def pin(self, tag: Tag | None) -> dict[str, int]:
        """The version of each target that is there, by its name without catalog. `advance` was called before with the
        LSN of the point, and all targets are as of it.

        Args:
            tag: as in `Target.pin`.
        """
        names = [name for name, _ in self._names.of(self._descriptions.newest(self.topic))]
        versions = {self._target.bare_name(name): self._target.pin(self._spark, name, tag) for name in names}
        return {name: version for name, version in versions.items() if version is not None}

    def maintain(self, policy: Maintenance, pins: Pins | None = None) -> Iterator[tuple[str, Maintained]]:
        """Tidy up every target of the table, where there is something to do.

        Args:
            pins: what points of a consistent mirror need of the tables. None: there are no points.

        Raises:
            FencedError: another process writes to a target.
            RolledBackError: a target was rolled back or restored.
        """
        # A table without changes makes no commit that would find out.
        for name in sorted(self._names.named):
            self._target.check_newest(self._spark, name)
        now = time.monotonic()
        if not is_due(self._changed_at, self._maintained_at, now, policy.keep_s):
            return
        # Not those of the newest description, which a batch may be reading just now.
        for name in sorted(self._names.named):
            if self._target.schema(self._spark, name) is not None:
                pinned = None if pins is None else pins.of(self._target.bare_name(name))
                yield name, self._target.maintain(self._spark, name, policy, pinned)
        # One that failed is still due.
        self._maintained_at = now

    def _start(self) -> dict[int, int]:
        """Where to read on: after what every target of the table has."""
        if self._next is None:
            form = self._descriptions.newest(self.topic)
            names = self._names.of(form)
            for name, kind in names:
                if kind is Kind.MIRROR:
                    check_deletes(self.table, self._target.layout(self._spark, name), self._layout)
            states = [self._target.reached(self._spark, name) for name, _ in names]
            facts = self._facts(self.topic)
            beginnings = self._reader.beginnings = facts.beginnings
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

    def _look_again(self) -> None:
        """Check that the topic was not deleted and created again since `_start`.

        Raises:
            OriginError: the topic was deleted and created again.
        """
        now = replace(self._origin, topic_id=self._topic_id(self.topic) or self._origin.topic_id)
        check_origin(State(origin=self._origin), now, self.topic, self.table)

    def _step(self, step: Slice) -> Progress:
        start, reach, ends = step.start, step.reach, step.reach.until
        form = self._form or self._descriptions.newest(self.topic)
        names = self._names.of(form)
        if step.cut is None and len(names) == 1 and self._may_have(names[0][0], form):
            with suppress(UnfitError):
                return self._at_once(names[0][0], New(form.schema, names[0][1], self._layout), form, step)
        records = self._reader.records(start, ends)
        changes = self._reader.parse(records, form, start, ends).persist()
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
            step = replace(step, reach=replace(reach, until={**ends, **held}, waiting=waiting))
            if plain and not self._is_other(form):
                done = self._apply(up_to(changes, reach.bound), form, now, step) if now else []
            else:
                changes.unpersist()
                done, quarantined, self._form = self._forms.apply(records, form, now, states, step)
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

    def _relabel(self) -> None:
        """Give the rows that are there the labels that enums have by now, though no change may come with them.

        Raises:
            IncompatibleSchemaError: a value is none of them, and its description does not come.
        """
        deadline = time.monotonic() + LABELS_S
        while (version := self._descriptions.labels_version(self.topic)) != self._labels:
            form = self._form = self._descriptions.newest(self.topic)
            try:
                for name, kind in self._names.of(form):
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
        """The table has this form, or none yet, and its relation had no other name before."""
        has = self._target.schema(self._spark, name)
        if has is None:
            return self._descriptions.former_name(form.schema) is None
        same = has.schema_id == form.schema.schema_id and same_names(has, form.schema)
        return same and same_labels(has, form.schema)

    def _at_once(self, name: str, new: New, form: Form, step: Slice) -> Progress:
        """A batch that is as nearly all are. UnfitError: it is not, and nothing was done."""
        start, reach = step.start, step.reach
        changes = self._reader.parse(self._reader.records(start, reach.until), form, start, reach.until)
        known = sf.col("schema_id").eqNullSafe(sf.lit(form.schema.schema_id))
        changes = changes.withColumn(UNFIT, sf.col(PROBLEM).isNotNull() | ~known)
        applied = self._target.apply(
            name, changes, batch_id=step.batch_id, new=new, origin=step.origin, reach=reach
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

    def _apply(self, changes: DataFrame, form: Form, groups: Iterable[Group], step: Slice) -> list[Applied]:
        """Changes that are all in one form, into every target that they are new to."""
        at = max(group.last for group in groups)
        done = []
        for number, (name, kind) in enumerate(self._names.of(form)):
            if not any(group.new[number] for group in groups):
                continue
            has = self._target.prepare(self._spark, name, form.schema, kind, at, self._layout)
            same = has.schema_id == form.schema.schema_id and same_names(has, form.schema)
            fitting = changes if same else upgrade(changes, form.schema, has)
            done.append(self._target.apply(name, fitting, **step.arguments))
        self._form = form
        return done

    def _is_other(self, form: Form) -> bool:
        """Whether a target is that of another relation, which had the name before or has it by now.

        Or a target is not there yet, and its relation had another name before.
        """
        found = [self._target.schema(self._spark, name) for name, _ in self._names.of(form)]
        renamed = self._descriptions.former_name(form.schema) is not None
        return any(renamed if has is None else is_other(has, form.schema) for has in found)


def is_due(changed_at: float, maintained_at: float | None, now: float, keep_s: float) -> bool:
    """Whether a table is to be maintained: each time makes commits of its own, so not one where nothing happens.

    After the last change it is once, and once more when the versions from before it are old enough to go.
    """
    if maintained_at is None or maintained_at <= changed_at:
        return True
    return maintained_at - changed_at < keep_s <= now - changed_at
