"""The fold: one statement that brings a part of the log into a base table.

The part is the rows of the table with `position < lsn <= bound`, reduced to the last state of each key by
(LSN, event number). The statement's commit carries the bounds and the version that was pinned (`position.py`). Rows are
parsed from the bytes of the log, because Spark writes numbers of a nested object anew.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.pasted import begin_again
from cdcd.mirror.base.columns import alterations, created, digest, present
from cdcd.mirror.base.commit import Folded, Folding, attempted
from cdcd.mirror.base.formats import BaseFormat, OtherMakerError, check_made, form_property
from cdcd.mirror.base.part import Forms, Part, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import plan_of
from cdcd.mirror.base.position import NO_VERSION, Position
from cdcd.mirror.base.takeover import take_over
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, check
from cdcd.mirror.targets.merge import merge
from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.reduction import EVENT, LSN, OP, is_after
from cdcd.mirror.targets.table_format import as_view


def fold(spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int) -> Folded:
    """Bring the table to the LSN `bound`.

    Raises:
        OvertakenError: others committed at the same time, several times.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    folding = _Folding(spark, format_, place, forms, bound)
    taken_over: int | None = None

    def attempt() -> Folded | None:
        nonlocal taken_over
        try:
            return folding.attempt()
        except OtherMakerError:
            taken_over = take_over(spark, format_, place)
            if taken_over is None:
                raise
            return None

    try:
        return replace(attempted(place, attempt), taken_over=taken_over)
    except IncompatibleSchemaError as error:
        # The hint of the error is about tables without a log.
        raise IncompatibleSchemaError(place.table, error.what, begin_again(place.table)) from error


class _Folding(Folding):
    """One fold of one table."""

    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        spark, place = self._spark, self._place
        found = plan_of(spark, self._format, place, self._forms, self._log)
        there, position, path = found.there, found.position, found.path
        if path is None:
            pin = NO_VERSION if there is None else there.pin
            is_at_bound = position.clean and position.lsn <= self._bound
            return Folded(max(position.lsn, self._bound), version=pin if is_at_bound else NO_VERSION)
        if there is None:
            check(path.schema)
            given = form_property(digest(path.schema), path.schema.to_json()) | found.topic
            self._format.create(spark, place.name, created(path.schema), given)
            check_made(spark, place.name, place.table)
            there = self._format.version(spark, place.name)
            if there.position != Position():
                # Another process made the table, and has folded meanwhile.
                return None
        elif not self._table.follow(there, position, path, found.topic, lambda: self._alterations(path)):
            return None
        return self._statement(there.pin, position, path, found.part, whole=found.whole)

    def _alterations(self, path: Path) -> Iterator[str]:
        # Rows keep their values in columns that get a wider type. If no row stays, a column may have any other type.
        has = present(self._spark.table(self._place.name).schema)
        return alterations(has, path.schema, anew=path.has is None)

    def _statement(
        self, pin: str, position: Position, path: Path, part: Part, *, whole: bool
    ) -> Folded | None:
        spark, schema = self._spark, path.schema
        changes = self._log.changes(part, path)
        rows, found = self._log.reduced(changes, schema)
        kept: DataFrame | None = None
        source = rows.filter(sf.col(OP) != "t")
        try:
            if found.moves:
                kept = changes.persist()
                now = spark.table(self._place.name)
                source = resolved(source, kept, schema, sorted(found.partial), now).persist()
            if found.truncated is not None:
                source = source.filter(is_after(sf.col(LSN), sf.col(EVENT), found.truncated))
            ends = (self._bound + 1, 0) if whole else part.cut
            carried = self._table.carried(pin, position, digest(schema))
            with as_view(source) as view:
                guarded = self._table.guarded(view, pin)

                def statement(to: str) -> str:
                    return merge(
                        to,
                        guarded,
                        schema,
                        keeps=found.partial,
                        truncated=ends,
                        key_range=found.key_range,
                        again=not position.clean,
                    )

                if not self._table.commit(pin, carried, statement):
                    return None
        finally:
            for frame in (source, kept, rows):
                if frame is not None:
                    frame.unpersist()
        return self._table.settled(pin, position, carried, changes=found.changes, keys=found.keys)
