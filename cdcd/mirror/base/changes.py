"""The fold of a changelog: a row for each change, of a table without a key, or beside a table (`tables.history`).

The rule: a change has the same row whenever it is folded: its LSN, its number and its kind name it, and a row of a
snapshot is named by its place in the topic. A fold adds the rows that are not there. So a fold that comes again, and
one whose commit was overtaken, add nothing twice. Rows that a mirror without a log has added have no place, so rows of
snapshots below the offsets of the position are left out.

Rows stay as they were at the time of the change. So the changes of each form are folded by themselves, up to the
commit before the next form, and the table has the columns of the form that was folded last.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.base.columns import digest
from cdcd.mirror.base.commit import Folded, attempted
from cdcd.mirror.base.formats import CHANGES, OFFSET, PARTITION, PLACE_COLUMNS, BaseFormat
from cdcd.mirror.base.kept import KeptFolded, KeptFolding, topic_of
from cdcd.mirror.base.part import Forms, Part, PartOfForm, Place, last_truncate
from cdcd.mirror.base.path import Path, Steps
from cdcd.mirror.base.plan import form_of_rows, steps_of, with_form_of_rows
from cdcd.mirror.base.position import NO_VERSION, Position
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.platform.tables import as_view
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets import changelog
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.reduction import EVENT, LSN
from cdcd.mirror.targets.same_columns import is_other

COLUMNS: Final = {**changelog.COLUMNS, **PLACE_COLUMNS}
"""Columns that the changelog has besides those of the source: the columns of every changelog, and the partition and
offset of each record."""


def fold_changes(
    spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int, *, beside: bool = False
) -> KeptFolded:
    """Bring the changelog `place.name` to the LSN `bound`.

    Args:
        beside: another table has the rows of the source, so a new changelog may begin where the log begins.

    Raises:
        OvertakenError: others committed at the same time, several times.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    folding = ChangelogFolding(spark, format_, place, forms, bound)
    folding.beside = beside
    return folding.fold()


def next_bound(forms: Sequence[PartOfForm], lsn: int) -> int | None:
    """Return the LSN up to which a part has one form. None: the part has one form, or cannot be cut by the LSN.

    Args:
        lsn: the part is not cut at or before it.
    """
    firsts = sorted([each.first for each in forms])
    return min([first[0] - 1 for first in firsts[1:] if first[0] - 1 > lsn], default=None)


class _Path(Path):
    """As `Path`, for rows that stay as they are: they get wider types, and neither defaults nor other labels."""

    def steps(self) -> Steps:
        return Steps(types=super().steps().types)


def path_between(spark: SparkSession, has: TableSchema | None, forms: Sequence[Form]) -> Path:
    """The path of a changelog from the form of its rows through these forms. A changelog takes any form."""
    if has is not None and not is_other(has, forms[0].schema):
        path = _Path(has, forms)
        try:
            steps_of(spark, path)
        except IncompatibleSchemaError:
            # A column of another type becomes another column, and the former one stays.
            return _Path(None, forms)
        return path
    return _Path(None, forms)


class ChangelogFolding(KeptFolding):
    """One fold of one changelog. `beside`: as in `fold_changes`."""

    kind, columns, option = CHANGES, COLUMNS, "tables.history"
    beside = False

    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        while True:
            there, position, topic_id = self._read()
            pin = NO_VERSION if there is None or position.lsn > self._bound else there.pin
            nothing = Folded(self._bound, version=pin)
            if position.clean and position.lsn >= self._bound:
                return nothing
            part = self._part(position, topic_id, is_new=there is None)
            if not part.forms and position.clean:
                return nothing
            # The table may have changes up to `reached`, in the columns of the form of its rows.
            earlier = next_bound(part.forms, max(position.reached, part.lower))
            if earlier is None:
                break
            folding = ChangelogFolding(self._spark, self._format, self._place, self._forms, earlier)
            folding.beside = self.beside
            attempted(self._place, folding.attempt)
            self.missing = self.missing or folding.missing
        path = self._path(position, part)
        if path is None:
            return nothing
        topic = topic_of(part)
        self._check_names(path.schema)
        if there is None:
            there = self._create(path.schema, topic)
            if there.position != Position():
                # Another process made the table, and has folded meanwhile.
                return None
        elif not self._table.follow(there, position, path, topic, lambda: self._alterations(path)):
            return None
        return self.add(there.pin, position, part, path)

    def _part(self, position: Position, topic_id: str | None, *, is_new: bool) -> Part:
        """Return the part that the table lacks. It begins with a truncate only if the log lacks changes before it."""
        begins, may_lack = self._place.log_begins, self.beside and is_new
        part = self._log.part(position, topic_id, whole=False, from_truncate=False, may_lack=may_lack)
        if may_lack and part.forms and (begins or self._place.began is not None):
            self.missing = (0, begins or min([form.first[0] for form in part.forms]))
        ids = part.topic_ids | ({topic_id} if topic_id is not None else set())
        cut = last_truncate(part.forms)
        if part.cut is None and len(ids) > 1:
            if cut is None:
                self._log.check_topic(ids)
            else:
                part = self._log.from_cut(cut)
                self._log.check_topic(part.topic_ids)
        if part.cut is not None and not is_new:
            self.missing = (position.lsn, part.cut[0])
        return part

    def _path(self, position: Position, part: Part) -> Path | None:
        """Return the forms from the form of the table's rows to the last form of the part; None if none is known."""
        has = form_of_rows(self._spark, self._place, position)
        found = self._log.described(part.forms)
        in_order = sorted(part.forms, key=lambda one: one.last)
        forms: list[Form] = [found[each.schema_id] for each in in_order]
        if has is not None and (position.is_former or not forms):
            forms = with_form_of_rows(has, position, in_order, forms, self._forms)
        if not forms:
            return None
        return path_between(self._spark, has, forms)

    def _without_rows_read(self, source: DataFrame, position: Position) -> DataFrame:
        """Leave out the rows of snapshots that the table has by the offsets of its position.

        Records that come back from quarantine have such offsets too, and the table lacks them.
        """
        below = [(sf.col(PARTITION) == part) & (sf.col(OFFSET) < end) for part, end in position.ends.items()]
        is_there = (sf.col(changelog.CHANGE) == "r") & reduce(Column.__or__, below, sf.lit(False))
        replay = self._place.replay
        if replay is None:
            return source.filter(~is_there)
        back = replay.rows.select(sf.col("part").alias(PARTITION), sf.col("off").alias(OFFSET))
        returned = source.filter(is_there).join(back, [PARTITION, OFFSET], "left_semi")
        return source.filter(~is_there).unionByName(returned)

    def add(self, pin: str, position: Position, part: Part, path: Path) -> Folded | None:
        """Add the changes of a part. The table has the last form. None: another commit came in between."""
        schema = path.schema
        with ExitStack() as stack:
            changes = self._log.changes(part, path)
            rows = changelog.once(changelog.rows(changes, schema)).persist()
            stack.callback(rows.unpersist)
            about = rows.agg(
                sf.count("*").alias("count"), sf.count_if("_cdcd_unfit").alias("unfit")
            ).collect()[0]
            if about["unfit"]:
                raise self._log.unfit(changes)
            source = rows.select(*COLUMNS, *[quoted(column.name) for column in schema.columns])
            if not position.clean:
                source = self._without_rows_read(source, position)
            carried = self._table.carried(pin, position, digest(schema))
            guarded = self._table.guarded(stack.enter_context(as_view(source)), pin)

            def statement(to: str) -> str:
                return merge(to, guarded, schema, part.lower, self._bound)

            if not self._table.commit(pin, carried, statement):
                return None
        count = about["count"]
        return self._keep(pin, self._table.settled(pin, position, carried, changes=count, keys=count))


def merge(to: str, source: str, schema: TableSchema, lower: int, bound: int) -> str:
    """The MERGE that adds the changes of `source` that `to` lacks. They committed after `lower`, and up to `bound`."""
    place = [f"t.{name} = s.{name}" for name in (PARTITION, OFFSET)]
    on = [
        *[f"t.{name} = s.{name}" for name in (LSN, EVENT, changelog.CHANGE)],
        f"(s.{changelog.CHANGE} <> 'r' OR ({' AND '.join(place)}))",
        # Files without such changes are left out.
        f"t.{LSN} > {lower}",
        f"t.{LSN} <= {bound}",
    ]
    names = [*COLUMNS, *[quoted(column.name) for column in schema.columns]]
    return "\n".join(
        [
            f"MERGE INTO {to} t USING {source} s ON {' AND '.join(on)}",
            # Formats make an append of a MERGE that only inserts, and an append never fails because of another commit.
            f"WHEN MATCHED AND t.{OFFSET} IS NULL THEN UPDATE SET {PARTITION} = s.{PARTITION}, {OFFSET} = s.{OFFSET}",
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})",
        ]
    )
