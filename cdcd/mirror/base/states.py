"""The fold of a table of states (SCD2): a row for each state that a row of the source had between two commits.

The part of the log is that of every fold: `position < lsn <= bound`. The rule that makes it safe to fold twice: the
table as of an LSN follows from the table as of any later one. States that began after it go, and states that ended
after it are the current ones again. So a fold whose commit was overtaken, and one that comes again, begins with the
states as of its lower bound, and gives the same rows.

States are never removed otherwise. Columns that the source has dropped stay under another name.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError, SourceError
from cdcd.mirror.base.columns import digest
from cdcd.mirror.base.commit import Folded, attempted
from cdcd.mirror.base.formats import STATES, BaseFormat
from cdcd.mirror.base.kept import KeptFolded, KeptFolding, topic_of
from cdcd.mirror.base.part import Forms, Part, Place, last_truncate
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import check_relation, form_of_rows, steps_of
from cdcd.mirror.base.position import Position
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.platform.tables import as_view
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets import changelog
from cdcd.mirror.targets.dimension import scd2
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import EVENT, LSN
from cdcd.mirror.targets.same_columns import is_other
from cdcd.mirror.targets.target import Kind, Target

SUFFIX: Final = "_scd2"
"""What the name of the table ends with."""

_FROM: Final = "valid_from_lsn"
_TO: Final = "valid_to_lsn"

COLUMNS: Final = {
    "valid_from": "timestamp",
    "valid_to": "timestamp",
    _FROM: "bigint",
    _TO: "bigint",
    "is_current": "boolean",
    UNKNOWN: "array<string>",
}
"""The table's own columns, with their types: times and LSNs of the commits that began and ended the state (null: it is
the current state), and the columns whose value the source did not send."""

_CHANGE: Final = [changelog.CHANGE, LSN, EVENT, changelog.TIME, changelog.UNCHANGED]


def states_name(target: Target, schema: TableSchema) -> str:
    """The name of the table of states in SQL."""
    return target.name_of(replace(schema, name=f"{schema.name}{SUFFIX}"), Kind.MIRROR)


def fold_states(
    spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int
) -> KeptFolded:
    """Bring the table of states `place.name` to the LSN `bound`.

    Raises:
        OvertakenError: others committed at the same time, several times.
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    return _Folding(spark, format_, place, forms, bound).fold()


@dataclass(frozen=True, slots=True)
class _Found:
    """The changes of a part, in the last form.

    Attributes:
        begins_anew: the part begins with a truncate, and the table's rows have other columns or another key.
    """

    part: Part
    path: Path
    changes: DataFrame
    begins_anew: bool


class _Folding(KeptFolding):
    """One fold of one table of states."""

    kind, columns, option = STATES, COLUMNS, "tables.scd2"

    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""
        spark, place = self._spark, self._place
        there, position, topic_id = self._read()
        if position.clean and position.lsn >= self._bound:
            return Folded(self._bound)
        found = self._find(position, topic_id, is_new=there is None)
        if found is None:
            return Folded(self._bound)
        if (
            found.begins_anew
            and there is not None
            and self._format.version(spark, place.name).pin != there.pin
        ):
            # What committed before the truncate was folded first.
            return None
        schema, topic = found.path.schema, topic_of(found.part)
        self._check_names(schema)
        if there is None:
            there = self._create(schema, topic)
            if there.position != Position():
                # Another process made the table, and has folded meanwhile.
                return None
        elif not self._table.follow(
            there, position, found.path, topic, lambda: self._alterations(found.path), "t.is_current"
        ):
            return None
        return self._statement(there.pin, position, found)

    def _find(self, position: Position, topic_id: str | None, *, is_new: bool) -> _Found | None:
        """Return the changes that the table lacks. None: there are none.

        If not all of them can be brought to the last form, those before the last truncate are folded first.
        """
        part = self._log.part(position, topic_id, whole=False, from_truncate=False)
        if part.cut is not None and not is_new:
            self.missing = (position.lsn, part.cut[0])
        cut = last_truncate(part.forms)
        if part.cut is None:
            if not part.forms and position.clean:
                return None
            try:
                return self._in_last_form(position, part, topic_id)
            except (IncompatibleSchemaError, SinkError):
                if cut is None:
                    raise
            if cut[0] - 1 > position.lsn:
                self._fold_before(position, cut[0])
            part = self._log.from_cut(cut)
        return self._in_last_form(position, part, topic_id)

    def _fold_before(self, position: Position, lsn: int) -> None:
        """Fold what committed before this LSN, as far as it can be folded."""
        earlier = _Folding(self._spark, self._format, self._place, self._forms, lsn - 1)
        try:
            attempted(self._place, earlier.attempt)
        except (IncompatibleSchemaError, SinkError, SourceError):
            self.missing = (position.lsn, lsn)

    def _in_last_form(self, position: Position, part: Part, topic_id: str | None) -> _Found | None:
        anew = part.cut is not None
        has = None if anew else form_of_rows(self._spark, self._place, position)
        self._log.check_topic(part.topic_ids | ({topic_id} if topic_id is not None and not anew else set()))
        found = self._log.described(part.forms)
        last = max(part.forms, key=lambda each: each.last, default=None)
        newest = found[last.schema_id] if last is not None else None
        if newest is None and has is not None:
            newest = self._forms([has.schema_id]).get(has.schema_id)
        if newest is None:
            # The log has nothing that could be folded.
            return None
        mine = [each for each in part.forms if not is_other(found[each.schema_id].schema, newest.schema)]
        check_relation(self._place, part.forms, mine, has, newest)
        if not anew and (len(mine) < len(part.forms) or (has is not None and is_other(has, newest.schema))):
            raise IncompatibleSchemaError(newest.schema.table, "another table has this name now.", "")
        mine.sort(key=lambda each: each.last)
        # The form of the truncate does not matter: no row is current after it.
        later = [found[each.schema_id] for each in mine if (each.first, each.last) != (part.cut, part.cut)]
        path = Path(has, later or [newest])
        steps_of(self._spark, path)
        return _Found(part, path, self._log.changes(part, path), anew)

    def _statement(self, pin: str, position: Position, found: _Found) -> Folded | None:
        spark, schema = self._spark, found.path.schema
        with ExitStack() as stack:
            changes = changelog.once(changelog.rows(found.changes, schema)).persist()
            stack.callback(changes.unpersist)
            is_truncate = sf.col(changelog.CHANGE) == "t"
            place = sf.struct(LSN, EVENT, sf.unix_micros(changelog.TIME).alias("at"))
            about = changes.agg(
                sf.count_if(~is_truncate).alias("count"),
                sf.count_if("_cdcd_unfit").alias("unfit"),
                sf.min(sf.when(is_truncate, place)).alias("truncate"),
            ).collect()[0]
            if about["unfit"]:
                raise self._log.unfit(found.changes)
            columns = [*_CHANGE, *[quoted(column.name) for column in schema.columns]]
            rows = changes.select(*columns)
            if not found.begins_anew:
                rows = self._open(rows, schema, position.lsn).unionByName(rows)
            view = stack.enter_context(as_view(rows))
            states = spark.sql(scd2(view, schema, unknown=UNKNOWN))
            source = states.filter(
                (sf.col(_FROM) > position.lsn) | sf.col(_TO).isNotNull() | sf.lit(not position.clean)
            )
            source = source.persist()
            stack.callback(source.unpersist)
            keys = source.count()
            carried = self._table.carried(pin, position, digest(schema))
            guarded = self._table.guarded(stack.enter_context(as_view(source)), pin)

            def statement(to: str) -> str:
                return self._merge(to, guarded, schema, position, about["truncate"])

            if not self._table.commit(pin, carried, statement):
                return None
        count = about["count"]
        return self._keep(pin, self._table.settled(pin, position, carried, changes=count, keys=keys))

    def _open(self, rows: DataFrame, schema: TableSchema, lsn: int) -> DataFrame:
        """The states that were current at the LSN, of keys that change, as changes that made them."""
        keys = [quoted(name) for name in schema.key]
        changed = rows.filter(sf.col(changelog.CHANGE) != "t").select(*keys).distinct().alias("c")
        there = self._spark.table(self._place.name).filter(_was_current("", lsn)).alias("t")
        same = [sf.col(f"t.{name}") == sf.col(f"c.{name}") for name in keys]
        return there.join(changed, same, "left_semi").select(
            sf.lit("c").alias(changelog.CHANGE),
            sf.col(_FROM).alias(LSN),
            sf.lit(0).cast("bigint").alias(EVENT),
            sf.col("valid_from").alias(changelog.TIME),
            sf.col(UNKNOWN).alias(changelog.UNCHANGED),
            *[sf.col(quoted(column.name)).cast(column.spark).alias(column.name) for column in schema.columns],
        )

    def _merge(
        self, to: str, source: str, schema: TableSchema, position: Position, truncate: Row | None
    ) -> str:
        names = [*[quoted(column.name) for column in schema.columns], *COLUMNS]
        others = [
            quoted(field.name)
            for field in self._spark.table(self._place.name).schema
            if quoted(field.name) not in names and field.name not in COLUMNS
        ]
        on = [f"t.{quoted(name)} = s.{quoted(name)}" for name in schema.key]
        values = [*[f"s.{name}" for name in names], *["NULL"] * len(others)]
        lines = [
            f"MERGE INTO {to} t USING {source} s ON {' AND '.join([*on, f't.{_FROM} = s.{_FROM}'])}",
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)}",
            f"WHEN NOT MATCHED THEN INSERT ({', '.join([*names, *others])}) VALUES ({', '.join(values)})",
        ]
        if not position.clean:
            lines.append(f"WHEN NOT MATCHED BY SOURCE AND t.{_FROM} > {position.lsn} THEN DELETE")
        if truncate is not None:
            time = "NULL" if truncate["at"] is None else f"timestamp_micros({truncate['at']})"
            lines.append(
                f"WHEN NOT MATCHED BY SOURCE AND {_was_current('t.', position.lsn)} THEN UPDATE SET "
                f"valid_to = {time}, {_TO} = {truncate[LSN]}, is_current = false"
            )
        return "\n".join(lines)


def _was_current(alias: str, lsn: int) -> str:
    """The condition that a state was the current one at the LSN."""
    return f"{alias}{_FROM} <= {lsn} AND ({alias}{_TO} IS NULL OR {alias}{_TO} > {lsn})"
