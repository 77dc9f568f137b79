"""The slow way of a batch: it has several forms of its table, or records that are no changes.

Each change is read in its own form and brought to the newest one. What is no change goes to quarantine.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from cdcd.core.errors import TransientError
from cdcd.core.pasted import on_table
from cdcd.mirror.kafka import Offsets
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Descriptions, Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.groups import Group, reason, up_to
from cdcd.mirror.stream.older_rows import newest_form
from cdcd.mirror.stream.replaced import Part, takeover
from cdcd.mirror.stream.slices import Slice
from cdcd.mirror.stream.topic_reader import TableNames, TopicReader
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, plan
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.quarantine import set_aside
from cdcd.mirror.targets.reduction import is_after, is_new
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Applied, Kind, Target
from cdcd.mirror.targets.upgrading import upgrade


class UnknownFormError(TransientError):
    """A table's changes name a form that is not described yet; the table waits for it, others go on."""

    def __init__(self, table: str, ids: Sequence[str]) -> None:
        super().__init__(
            f"{table}: no description of source.schema_id {', '.join(ids)} is in the topic of descriptions yet.",
            hint="The table waits for the description. If no description comes because topics.schemas was emptied, "
            "restart the"
            " daemon, which then describes its tables again, or read the table again:"
            f" cdcd mirror --config FILE {on_table('--snapshot', table)} --source FILE.",
        )


class SeveralForms:
    """Applies batches of one topic that `TableMirror` cannot apply in one pass.

    Args:
        table: gives the table's name, `schema.table`.
        layout: as in `TableMirror`.

    Attributes:
        spark: the session in which it works.
    """

    def __init__(
        self,
        spark: SparkSession,
        reader: TopicReader,
        names: TableNames,
        *,
        admin: Admin,
        target: Target,
        descriptions: Descriptions,
        table: Callable[[], str],
        layout: Layout,
    ) -> None:
        self.spark = spark
        self._reader = reader
        self._names = names
        self._admin = admin
        self._target = target
        self._descriptions = descriptions
        self._table = table
        self._layout = layout

    def apply(
        self,
        records: DataFrame,
        guess: Form,
        groups: list[Group],
        states: Mapping[str, State],
        step: Slice,
    ) -> tuple[list[Applied], int, Form]:
        """Apply a batch form by form.

        Args:
            guess: a form of the table, for records that name none.
            groups: what the batch has, and what of it matters.
            states: what each target has, by its name.

        Returns:
            What was done in each target, how many records went to quarantine, and the newest form.

        Raises:
            UnknownFormError: a form is not described yet. Nothing was changed.
        """
        forms = self._find({group.schema_id for group in groups if group.schema_id is not None})
        new = reduce(Column.__or__, [is_new(state) for state in states.values()])
        parts: dict[str, DataFrame] = {}
        poison: list[DataFrame] = []
        for schema_id, form in forms.items():
            mine = self._reader.parse(records, form, step.start, step.reach.until, keep=True)
            mine = mine.filter(sf.col("schema_id") == schema_id)
            poison.append(mine.filter(sf.col(PROBLEM).isNotNull()).filter(new))
            sound = mine.filter(sf.col(PROBLEM).isNull()).drop("key_bytes", "value_bytes", "timestamp")
            parts[schema_id] = up_to(sound, step.reach.bound)
        rest = parse(records, guess.schema, guess.rules, keep=True).filter(new & sf.col("schema_id").isNull())
        poison.append(rest.withColumn(PROBLEM, reason(sf.col(PROBLEM))))
        quarantined = set_aside(self._target, self._table(), poison)
        if not parts:
            return [], quarantined, guess
        # Which form is the newest, the changes' own order tells.
        known = [group for group in groups if group.schema_id in forms]
        newest = forms[max(known, key=lambda group: group.last).schema_id or ""]
        done = []
        for name, kind in self._names.of(newest):
            number = list(states).index(name) if name in states else None
            needed = _parts([group for group in known if number is None or group.new[number]], forms, parts)
            if needed:
                done += self._bring(name, kind, needed, step)
        return done, quarantined, newest

    def _find(self, ids: Collection[str]) -> dict[str, Form]:
        """The forms with these ids. UnknownFormError: one is not described yet."""
        forms = self._descriptions.find(self._reader.topic, ids)
        unknown = sorted(set(ids) - forms.keys())
        if unknown:
            raise UnknownFormError(self._table(), unknown)
        return forms

    def _bring(self, name: str, kind: Kind, parts: Sequence[Part], step: Slice) -> list[Applied]:
        """Changes of several forms into one target, in one commit where they can be brought to the newest form."""
        spark, target = self.spark, self._target
        end = None
        has, reached = target.schema(spark, name), target.reached(spark, name)
        if kind is Kind.MIRROR:
            found = takeover(
                parts,
                has,
                reached,
                lambda forms: self._ahead(step.start, forms),
                self._descriptions.former_name,
            )
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
            form = newest.form.schema
            if kind is Kind.MIRROR and not self._layout.marks:
                form = newest_form(parts, has, reached)
            schema = target.prepare(spark, name, form, kind, newest.last, self._layout)
        else:
            schema = target.replace(spark, name, newest.form.schema, kind, newest.last, end, self._layout)
        fitting = [upgrade(part.changes, part.form.schema, schema) for part in parts]
        together = reduce(DataFrame.unionByName, fitting).persist()
        try:
            return [target.apply(name, together, **step.arguments)]
        finally:
            together.unpersist()

    def _ahead(self, start: Offsets, forms: Iterable[Form]) -> DataFrame:
        """Op and place of all changes in these forms from `start` to where the topic ends now."""
        ends = self._admin.ends([self._reader.topic])[self._reader.topic]
        records = self._reader.records(start, ends)
        found: DataFrame | None = None
        for form in forms:
            changes = parse(records, form.schema, form.rules).filter(
                (sf.col("schema_id") == form.schema.schema_id) & sf.col(PROBLEM).isNull()
            )
            placed = changes.select("op", "commit_lsn", "event_no")
            found = placed if found is None else found.unionByName(placed)
        assert found is not None, "no form"
        return found


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
