"""Tables of a format that is given: all that Iceberg and Delta have in common (`table_format` says what they have not).

The rule: one `apply` is one commit, and that commit carries the position. What is before it (the reduction of the
batch) changes nothing; what is after it needs nothing. So a process may be killed anywhere, and the batch comes again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from cdcd.core.facts import Observer
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.applying import Applying, Asked
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.targets.evolution import (
    IncompatibleSchemaError,
    check,
    labelled,
    rekeyed,
    same_labels,
    way_on,
)
from cdcd.mirror.targets.following import Following, name_taken
from cdcd.mirror.targets.known import KnownTables, Table, in_format, planned
from cdcd.mirror.targets.layout import PLAIN, Deletes, Layout, laid_out
from cdcd.mirror.targets.loading import in_form, loaded, logged_rows, mirrored_rows, overwrite
from cdcd.mirror.targets.making import (
    DELETES,
    PARTITION,
    SWAPPED,
    columns,
    described,
    partitioned_by,
    placed,
    replacing,
)
from cdcd.mirror.targets.own_tables import OwnTables
from cdcd.mirror.targets.partitions import check_fields
from cdcd.mirror.targets.pinned import Pinned, Tag
from cdcd.mirror.targets.reading import Reading
from cdcd.mirror.targets.reduction import fresh, prepared
from cdcd.mirror.targets.same_columns import is_other, same_names, widens
from cdcd.mirror.targets.state import At, Origin, Reach, State
from cdcd.mirror.targets.table_format import TableFormat, as_view
from cdcd.mirror.targets.target import (
    Applied,
    Inspected,
    Kind,
    LaidOut,
    Maintained,
    Maintenance,
    New,
    Newest,
    UnfitError,
)


class Lakehouse:
    """A `Target` over tables of one format, composed of what knows, follows, applies and reads them."""

    def __init__(self, format_: TableFormat) -> None:
        self.format = format_.format
        self._format = format_
        self._known = KnownTables(format_)
        self._own = OwnTables(format_)
        self._following = Following(format_, self._known)
        self._applying = Applying(format_, self._known)
        self._reading = Reading(format_, self._known)

    def tell(self, observe: Observer) -> None:
        self._known.observe = observe

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        return self._format.name_of(schema, kind)

    def own_name(self, name: str) -> str:
        return self._format.own_name(name)

    def bare_name(self, name: str) -> str:
        return self._format.bare_name(name)

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        return self._format.list_tables(spark)

    def forget(self, name: str) -> None:
        self._known.forget(name)

    def reached(self, spark: SparkSession, name: str) -> State:
        return self._known.state(spark, name)

    def schema(self, spark: SparkSession, name: str) -> TableSchema | None:
        table = self._known.look(spark, name)
        return None if table is None else table.schema

    def pin(self, spark: SparkSession, name: str, tag: Tag | None = None) -> int | None:
        table = self._known.look(spark, name)
        if table is None:
            return None
        if table.version is None:
            newest = self._known.check_newest(spark, name)
            table.version = None if newest is None else newest.version
        if tag is not None and table.version is not None:
            self._format.tag(spark, name, table.version, tag)
        return table.version

    def prepare(
        self,
        spark: SparkSession,
        name: str,
        schema: TableSchema,
        kind: Kind,
        at: tuple[int, int],
        layout: Layout = PLAIN,
    ) -> TableSchema:
        table = self._known.look(spark, name)
        if table is None:
            table = planned(New(schema, kind, layout), self._format)
            self._known.make(spark, name, table, at)
        elif at > table.schema_at and (
            table.schema.schema_id != schema.schema_id or not same_names(table.schema, schema)
        ):
            if kind is Kind.MIRROR and is_other(table.schema, schema):
                raise IncompatibleSchemaError(
                    schema.table,
                    f"its target has rows of another table that had the name (oid {table.schema.oid}, now"
                    f" {schema.oid}).",
                    way_on(schema.table),
                )
            if table.kind is not kind:
                raise rekeyed(table.schema, schema)
            self._following.follow(spark, name, table, schema, at)
        elif not same_labels(table.schema, schema):
            self._following.follow(spark, name, table, labelled(table.schema, schema), table.schema_at)
        return self._known.tables[name].schema

    def apply(
        self,
        name: str,
        changes: DataFrame,
        *,
        batch_id: int = 0,
        consistent_lsn: int | None = None,
        new: New | None = None,
        origin: Origin | None = None,
        reach: Reach | None = None,
    ) -> Applied:
        spark = changes.sparkSession
        table = self._known.look(spark, name)
        if table is None:
            assert new is not None, "prepare comes first"
            table = planned(new, self._format)
        self._following.complete(spark, name, table)
        bound = None if reach is None else reach.bound
        changes = fresh(prepared(changes, bound), table.state)
        try:
            step = Asked(batch_id, consistent_lsn, origin, reach)
            if table.kind is Kind.CHANGELOG:
                return self._applying.apply_changelog(name, table, changes, step)
            return self._applying.apply_mirror(name, table, changes, step)
        except UnfitError:
            raise
        except BaseException:
            # Whether the commit went through is not known; the table itself says so when it is looked at again.
            self._known.forget(name)
            raise

    def load(
        self,
        name: str,
        rows: DataFrame,
        commit_lsn: int,
        offsets: Mapping[int, int],
        origin: Origin | None = None,
    ) -> State:
        spark = rows.sparkSession
        table = self._known.look(spark, name)
        assert table is not None, "prepare comes first"
        self._following.complete(spark, name, table)
        after_it = loaded(name, table.state, commit_lsn, offsets, origin)
        try:
            with self._known.commit(spark, name, after_it) as state:
                if table.kind is Kind.CHANGELOG:
                    self._format.append(placed(logged_rows(rows, table.schema, commit_lsn), table.new), name)
                else:
                    former = None if table.empty else spark.table(name)
                    rows = mirrored_rows(rows, table.schema, commit_lsn, table.layout, former)
                    overwrite(placed(rows, table.new), name)
        except BaseException:
            self._known.forget(name)
            raise
        table.state, table.empty = state, False
        return state

    def swap(
        self,
        name: str,
        new: New,
        rows: DataFrame,
        commit_lsn: int,
        offsets: Mapping[int, int],
        origin: Origin | None = None,
    ) -> State:
        spark, new_one = rows.sparkSession, planned(new, self._format)
        schema = new_one.schema
        check(schema, self._format.reserved)
        check_fields(schema, new_one.layout.fields, computed=new_one.layout.computed)
        table = self._known.look(spark, name)
        assert table is not None, "there is something to replace"
        new_one.layout = replacing(table.layout, new_one.layout)
        self._check_replaces(spark, name, table, new_one)
        after_it = loaded(name, table.state, commit_lsn, offsets, origin)
        if new_one.kind is Kind.CHANGELOG:
            new_rows = logged_rows(rows, schema, commit_lsn)
        else:
            former = None
            if table.kind is Kind.MIRROR and table.layout.marks:
                former = in_form(spark.table(name), table.schema, schema)
            new_rows = mirrored_rows(rows, schema, commit_lsn, new_one.layout, former)
        return self._put(spark, name, new_one, placed(new_rows, new_one.new), (commit_lsn, 0), after_it)

    def _check_replaces(self, spark: SparkSession, name: str, table: Table, new: Table) -> None:
        """That a table can take the place of another one. Iceberg keeps the former partitions beside the new ones, and
        cannot merge into a table without their columns.

        Raises:
            IncompatibleSchemaError: it cannot.
        """
        types = {column.name: column.spark for column in new.schema.columns}
        bound = self._format.bound(spark, name)
        for column in sorted((types.keys() & set(self._format.taken(spark, name))) - set(bound)):
            raise name_taken(new.schema.table, column, name)
        had = {column.name: column.spark for column in table.schema.columns}
        for column in sorted(bound):
            now = types.get(column)
            if column in had and (now is None or not (now == had[column] or widens(had[column], now))):
                raise IncompatibleSchemaError(
                    new.schema.table,
                    f"its mirror is or was partitioned by the column {column}, which is gone or of another type by"
                    " now, and Iceberg cannot replace such a table.",
                    f"Drop the target table {name}, and then: {way_on(new.schema.table)}",
                )

    def _put(
        self, spark: SparkSession, name: str, wanted: Table, rows: DataFrame, at: At, after_it: State
    ) -> State:
        """Replace the table that is there by `wanted` with `rows`, in one commit. Returns the state of that commit."""
        self._known.forget(name)
        new = wanted.new
        with as_view(rows) as view, self._known.commit(spark, name, after_it) as state:
            # A table that is replaced keeps the properties that are not said again (Iceberg).
            cleared = {PARTITION: "{}", DELETES: Deletes.REMOVE.value}
            properties = cleared | described(new, at) | {SWAPPED: "true"}
            self._format.create(spark, name, columns(new), properties, view=view, by=partitioned_by(new))
        self._known.tables[name] = replace(
            wanted, schema_at=at, state=state, empty=False, is_there=True, partial=set()
        )
        return state

    def layout(self, spark: SparkSession, name: str) -> Layout | None:
        table = self._known.look(spark, name)
        return None if table is None else table.layout

    def relayout(self, spark: SparkSession, name: str, layout: Callable[[int], Layout]) -> LaidOut:
        table = self._known.look(spark, name)
        assert table is not None, "there is something to lay out"
        before = table.layout
        if table.kind is Kind.MIRROR:
            asked = in_format(layout(self._format.files(spark, name).size), self._format)
            after = replacing(before, asked)
            if after != before:
                check_fields(table.schema, after.fields, computed=after.computed)
                wanted = replace(table, layout=after)
                own = [column for column, _ in before.own]
                rows = placed(laid_out(spark.table(name).drop(BUCKET, *own), before, after), wanted.new)
                self._put(spark, name, wanted, rows, table.schema_at, table.state)
        return LaidOut(before, self._known.tables[name].layout)

    def read(self, spark: SparkSession, name: str, consistent_lsn: int | None = None) -> DataFrame:
        return self._reading.read(spark, name, consistent_lsn)

    def newest(self, spark: SparkSession, name: str) -> Newest | None:
        return self._reading.newest(spark, name)

    def inspect(self, spark: SparkSession, name: str) -> Inspected | None:
        return self._reading.inspect(spark, name)

    def maintain(
        self, spark: SparkSession, name: str, policy: Maintenance, pinned: Pinned | None = None
    ) -> Maintained:
        table = self._known.look(spark, name)
        buckets = 1 if table is None else table.layout.buckets
        self._known.take_back(spark, name)
        state = self._known.state(spark, name)
        self._known.check_newest(spark, name)
        self._known.version_changes(name)
        return self._format.maintain(spark, name, policy, pinned, state, buckets)

    def check_newest(self, spark: SparkSession, name: str) -> None:
        if self._known.look(spark, name) is not None:
            self._known.check_newest(spark, name)

    def maintain_own(self, spark: SparkSession, policy: Maintenance) -> Iterator[tuple[str, Maintained]]:
        return self._own.maintain_own(spark, policy)

    def has(self, spark: SparkSession, name: str) -> bool:
        return self._format.exists(spark, name)

    def append(self, name: str, rows: DataFrame, unique: Sequence[str]) -> int:
        return self._own.append(name, rows, unique)

    def put(self, name: str, rows: DataFrame, unique: str, gone: str) -> None:
        self._own.put(name, rows, unique, gone)

    def prune(self, spark: SparkSession, name: str, order: str, policy: Maintenance) -> int:
        return self._own.prune(spark, name, order, policy)
