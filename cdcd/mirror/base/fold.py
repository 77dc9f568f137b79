"""The fold: one statement that brings a part of the log into a base table.

The part is the rows of the table with `position < lsn <= bound`, reduced to the last state of each key by
(LSN, event number). The statement's commit carries the bounds and the version that was pinned (`position.py`). Rows are
parsed from the bytes of the log, because Spark writes numbers of a nested object anew.
"""

from collections.abc import Collection, Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError
from cdcd.core.pasted import begin_again
from cdcd.mirror.base.columns import OWN_COLUMNS, alterations, created, digest, present
from cdcd.mirror.base.commit import Folded, Folding
from cdcd.mirror.base.formats import MADE_BY, BaseFormat, check_made, form_property
from cdcd.mirror.base.layout import conditions, layout_of, made, partitioned_by, properties_of
from cdcd.mirror.base.part import Forms, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import Plan, plan_of
from cdcd.mirror.base.position import NO_VERSION, Position
from cdcd.mirror.base.takeover import folded
from cdcd.mirror.platform.tables import as_view
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, check
from cdcd.mirror.targets.layout import DELETED, Layout
from cdcd.mirror.targets.merge import merge
from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.reduction import EVENT, LSN, OP, is_after


def fold(spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int) -> Folded:
    """Bring the table to the LSN `bound`.

    Raises:
        OvertakenError: others committed at the same time, several times.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    folding = TableFolding(spark, format_, place, forms, bound)
    try:
        return folded(spark, format_, place, folding.attempt)
    except IncompatibleSchemaError as error:
        # The hint of the error is about tables without a log.
        hint = begin_again(place.table)
        if place.layout.marks:
            hint = f"Rename {place.name}, which then keeps its marked rows under the other name. {hint}"
        raise IncompatibleSchemaError(place.table, error.what, hint) from error


def check_columns(place: Place, columns: Collection[str]) -> None:
    """SinkError: the table lacks columns of each folded table, or treats deleted rows otherwise than configured."""
    lacks = OWN_COLUMNS.keys() - set(columns)
    if lacks:
        raise SinkError(
            f"{place.table}: {place.name} lacks {', '.join(sorted(lacks))}, which each folded table has.",
            hint=f"Rename {place.name}, or run in Spark: DROP TABLE {place.name}. The next fold makes the table again "
            "from the log.",
        )
    if (DELETED in columns) is place.layout.marks:
        return
    if place.layout.marks:
        raise SinkError(
            f"{place.table}: {place.name} removes deleted rows, and the configuration says tables.deletes: mark.",
            hint=f"Run in Spark: ALTER TABLE {place.name} ADD COLUMN {DELETED} boolean; UPDATE {place.name} SET "
            f"{DELETED} = false. Deletes are marked from then on.",
        )
    raise SinkError(
        f"{place.table}: {place.name} marks deleted rows, and the configuration says tables.deletes: remove.",
        hint=f"To remove the marked rows, run in Spark: DELETE FROM {place.name} WHERE {DELETED}; ALTER TABLE "
        f"{place.name} DROP COLUMN {DELETED}. To keep them, set tables.deletes_for: {{{place.table}: mark}}.",
    )


class TableFolding(Folding):
    """One fold of one table."""

    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        return self.carry_out(plan_of(self._spark, self._format, self._place, self._forms, self._log))

    def carry_out(self, found: Plan) -> Folded | None:
        """As `attempt`, by a plan that is given."""
        spark, place = self._spark, self._place
        there, position, path, has = found.there, found.position, found.path, found.has
        if path is None:
            pin = NO_VERSION if there is None else there.pin
            is_at_bound = position.clean and position.lsn <= self._bound
            return Folded(max(position.lsn, self._bound), version=pin if is_at_bound else NO_VERSION)
        if there is None:
            check(path.schema)
            new = made(path.schema, place.layout, computed=self._format.computed)
            given = form_property(digest(path.schema), path.schema.to_json()) | found.topic
            given |= properties_of(path.schema, new) | {MADE_BY: place.made_by}
            self._format.create(spark, place.name, created(path.schema, new), given, partitioned_by(new))
            has = check_made(spark, place.name, place.table, place.made_by)
            there = self._format.version(spark, place.name)
            if there.position != Position():
                # Another process made the table, and has folded meanwhile.
                return None
        check_columns(place, spark.table(place.name).columns)
        layout = layout_of(spark, place, has, path.schema, computed=self._format.computed)
        is_new, topic = found.there is None, found.topic
        if not is_new and not self._table.follow(
            there, position, path, topic, lambda: self._alterations(path), layout=layout
        ):
            return None
        return self._statement(there.pin, position, found, layout)

    def _alterations(self, path: Path) -> Iterator[str]:
        # Rows keep their values in columns that get a wider type. If no row stays, a column may have any other type.
        has = present(self._spark.table(self._place.name).schema)
        return alterations(has, path.schema, anew=path.has is None)

    def _statement(self, pin: str, position: Position, plan: Plan, layout: Layout) -> Folded | None:
        assert plan.path is not None, "there is something to fold"
        spark, path, schema = self._spark, plan.path, plan.path.schema
        changes = self._log.changes(plan.part, path)
        rows, found = self._log.reduced(changes, schema)
        kept: DataFrame | None = None
        source = rows.filter(sf.col(OP) != "t")
        try:
            if found.moves:
                kept = changes.persist()
                now = spark.table(self._place.name)
                source = resolved(source, kept, schema, sorted(found.partial), now).persist()
            truncated = found.truncated
            if truncated is not None and not layout.marks:
                source = source.filter(is_after(sf.col(LSN), sf.col(EVENT), truncated))
            removed = (self._bound + 1, 0) if plan.whole else plan.removed
            carried = self._table.carried(pin, position, digest(schema))
            with as_view(source) as view:
                guarded = self._table.guarded(view, pin)
                # A statement that removes rows of other keys reads all of them.
                reads_all = removed is not None or truncated is not None
                within = [] if reads_all else conditions(spark, self._place.name, view, schema, layout)

                def statement(to: str) -> str:
                    return merge(
                        to,
                        guarded,
                        schema,
                        keeps=found.partial,
                        truncated=truncated if layout.marks else None,
                        removed=removed,
                        key_range=found.key_range,
                        hashes=found.hashes if layout.buckets > 1 else (),
                        within=within,
                        layout=layout,
                        again=not position.clean,
                    )

                if not self._table.commit(pin, carried, statement):
                    return None
        finally:
            for frame in (source, kept, rows):
                if frame is not None:
                    frame.unpersist()
        return self._table.settled(pin, position, carried, changes=found.changes, keys=found.keys)
