"""A table that is folded from a log is read again by Spark: `cdcd mirror --snapshot` with `change_log: fold`.

The rule: a snapshot is a truncate and its rows, at the LSN up to which the snapshot sees every commit. They are brought
in by one statement, whose commit carries this LSN as the position of any fold. So the next fold reads the changes after
it, and a load that comes again, or that another fold overtook, does no harm.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.postgres.slot import SlotWait
from cdcd.core.errors import CdcdError, SinkError
from cdcd.core.pasted import begin_again
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.base.columns import alterations, created, digest, kept, present
from cdcd.mirror.base.commit import Committing, Folded, attempted
from cdcd.mirror.base.fold import check_columns
from cdcd.mirror.base.formats import MADE_BY, TOPIC_ID, BaseFormat, check_made, form_property
from cdcd.mirror.base.layout import layout_of, made, partitioned_by, properties_of
from cdcd.mirror.base.part import OvertakenError, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.position import Position, is_of
from cdcd.mirror.platform.tables import as_view, exists
from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.snapshot.failures import raised_by_task
from cdcd.mirror.snapshot.reading import Loaded, Snapshot, SnapshotSource, load_all, read_rows
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, check
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.merge import merge
from cdcd.mirror.targets.name_lists import no_names
from cdcd.mirror.targets.reduction import EVENT, KEEP, LOST, LSN, OP
from cdcd.mirror.watching.progress import Observer, TableReloaded, TableReloading

FIRST: Final = 1
"""The number of every row: the truncate before it would be number 0."""


@dataclass(frozen=True, slots=True)
class Loading:
    """What is read, and where to.

    Attributes:
        place: of the table. Its `layout` is that of a new table.
        variant: json columns are VARIANT.
    """

    spark: SparkSession
    format: BaseFormat
    place: Place
    variant: bool = False


def load(loading: Loading, snapshot: Snapshot, where: str = "") -> Loaded:
    """Make the table what its source is at the snapshot, in one commit.

    Args:
        where: SQL condition of PostgreSQL. Rows that meet it are brought into the table, and all other rows of the
            table stay as they are. "": the rows of the snapshot replace all rows of the table.

    Raises:
        SinkError: the table has no key, or a row fits no type of the mirror.
        OvertakenError: another process folds the table.
        SourceError, TransientError: the source cannot be read.
        IncompatibleSchemaError: no table can have the form.
    """
    spark, place = loading.spark, loading.place
    form = snapshot.form(place.table, variant=loading.variant, mirrored=True)
    if not form.schema.key:
        raise SinkError(
            f"{place.table}: it has no key, so it has a changelog, and Spark reads only tables with a key.",
            hint=begin_again(place.table),
        )
    changes = read_rows(
        spark, snapshot, place.table, variant=loading.variant, mirrored=True, where=where
    ).persist()
    try:
        counts = changes.agg(sf.count("*").alias("rows"), sf.count(PROBLEM).alias("problems")).collect()[0]
        if counts["problems"]:
            raise SinkError(
                f"{place.table}: {counts['problems']} rows of the source fit no type of the mirror.",
                hint=f"Let the daemon read the table: its records of these rows become unreadable rows of the log. "
                f"{begin_again(place.table)}",
            )
        if where:
            attempted(place, lambda: _add(loading, snapshot, form, changes))
        else:
            load_rows(loading, snapshot, form, changes, counts["rows"])
    except CdcdError:
        raise
    except Exception as error:
        # A table format raises exceptions of Java as well as PySpark's own.
        raise raised_by_task(place.table, error) from error
    finally:
        changes.unpersist()
    return Loaded(counts["rows"], 0, snapshot.lsn)


def load_rows(loading: Loading, snapshot: Snapshot, form: Form, changes: DataFrame, count: int) -> Folded:
    """Make the table what its source is at the snapshot: these rows (`read_rows`), which all fit the form.

    Raises:
        OvertakenError, IncompatibleSchemaError, SinkError: as `load`.
    """
    return attempted(loading.place, lambda: _attempt(loading, snapshot, form, changes, count))


def _attempt(
    loading: Loading, snapshot: Snapshot, form: Form, changes: DataFrame, count: int
) -> Folded | None:
    """Load once. None: another commit came in between, or the table needs one more statement."""
    spark, format_, schema = loading.spark, loading.format, form.schema
    place = replace(loading.place, ends=dict(snapshot.offsets(loading.place.table)))
    named = snapshot.topic_id(place.table)
    topic = {} if named is None else {TOPIC_ID: named}
    check(schema)
    is_new = not exists(spark, place.name)
    if is_new:
        new = made(schema, place.layout, computed=format_.computed)
        given = form_property(digest(schema), schema.to_json()) | topic | properties_of(schema, new)
        given |= {MADE_BY: place.made_by}
        format_.create(spark, place.name, created(schema, new), given, partitioned_by(new))
    has = check_made(spark, place.name, place.table, place.made_by)
    there = format_.version(spark, place.name)
    _check_before(place, there.position or Position(), snapshot)
    check_columns(place, spark.table(place.name).columns)
    layout = layout_of(spark, place, has, schema, computed=format_.computed)
    committing = Committing(spark, format_, place, snapshot.commit_lsn)
    path, position = Path(None, [form]), there.position or Position(clean=False)
    now = present(spark.table(place.name).schema)
    if layout.marks and kept(now, schema) != kept(now, schema, anew=True):
        raise IncompatibleSchemaError(
            place.table,
            "a column has another type now, and marked rows cannot get it.",
            f"Rename {place.name}, which then keeps its marked rows under the other name, and run the command again.",
        )

    def columns() -> list[str]:
        # No row stays but with a mark, so a column may have any other type.
        return list(alterations(now, schema, anew=True))

    if not is_new and not committing.follow(there, position, path, topic, columns):
        return None
    carried = committing.carried(there.pin, position, digest(schema))
    with as_view(_rows(changes, schema, snapshot.commit_lsn)) as view:
        guarded = committing.guarded(view, there.pin)

        def statement(to: str) -> str:
            return _merge(to, guarded, schema, snapshot.commit_lsn, layout)

        if not committing.commit(there.pin, carried, statement):
            return None
    return committing.settled(there.pin, position, carried, changes=count, keys=count)


def _check_before(place: Place, position: Position, snapshot: Snapshot) -> None:
    """OvertakenError: the table has changes from after the snapshot."""
    if position.reached > snapshot.commit_lsn:
        raise OvertakenError(
            f"{place.table}: {place.name} is folded beyond the snapshot's {Lsn(snapshot.commit_lsn)}.",
            hint="Stop the other process that folds the table, and run the command again.",
        )


def _add(loading: Loading, snapshot: Snapshot, form: Form, changes: DataFrame) -> Folded | None:
    """Bring rows of the source into the table once. None: another commit came in between.

    The position of the table stays, and its commit says that the table is not clean, because these rows are later than
    the others. So the next fold goes on from the same position, and changes a row only if its own change is later.
    """
    spark, format_, place, schema = loading.spark, loading.format, loading.place, form.schema
    has = check_made(spark, place.name, place.table) if exists(spark, place.name) else None
    there = None if has is None else format_.version(spark, place.name)
    if has is None or there is None or there.position is None or there.position.form != digest(schema):
        raise SinkError(
            f"{place.table}: rows can be added only to a table that is folded, and has the columns of its source now.",
            hint="Run cdcd mirror --once, which folds the table, and then the same command again. Or leave out --where "
            "to read the whole table.",
        )
    position = there.position
    _check_before(place, position, snapshot)
    check_columns(place, spark.table(place.name).columns)
    layout = layout_of(spark, place, has, schema, computed=format_.computed)
    committing = Committing(spark, format_, place, position.lsn)
    carried = replace(
        committing.carried(there.pin, position, position.form),
        reached=max(position.reached, snapshot.commit_lsn),
        clean=False,
        ends=position.ends,
    )
    with as_view(_rows(changes, schema, snapshot.commit_lsn)) as view:
        guarded = committing.guarded(view, there.pin)
        if not committing.commit(
            there.pin, carried, lambda to: merge(to, guarded, schema, layout=layout, again=True)
        ):
            return None
    after = format_.version(spark, place.name)
    # Delta makes no commit of a statement that changes no row.
    is_there = after.pin == there.pin or is_of(carried.fold, after.nodes)
    return Folded(position.lsn) if is_there else None


def _rows(changes: DataFrame, schema: TableSchema, lsn: int) -> DataFrame:
    """The rows of the source as a reduced part of a log."""
    return changes.select(
        sf.lit("r").alias(OP),
        sf.lit(lsn).cast("bigint").alias(LSN),
        sf.lit(FIRST).cast("bigint").alias(EVENT),
        no_names().alias(KEEP),
        no_names().alias(LOST),
        *[sf.col("after")[column.name].alias(column.name) for column in schema.columns],
    )


def _merge(to: str, source: str, schema: TableSchema, lsn: int, layout: Layout) -> str:
    cut = (lsn, 0)
    return merge(
        to,
        source,
        schema,
        truncated=cut if layout.marks else None,
        removed=None if layout.marks else cut,
        layout=layout,
        again=True,
    )


def read_again(
    spark: SparkSession,
    source: SnapshotSource,
    load_one: Callable[[Snapshot, str], Loaded],
    observe: Observer,
    table: str,
    why: str,
) -> None:
    """Read `table` (`schema.table`) whole, and let its changes go on from there.

    Args:
        load_one: reads one table at a snapshot.
        why: the reason, for the events.

    Raises:
        SourceError: it may not be read.
        TransientError: the database does not answer, or no snapshot lasted.
        IncompatibleSchemaError: no target can have its form.
    """

    def wait(held: SlotWait) -> None:
        who = held.gid if held.pid is None else f"the session with PID {held.pid} at the source"
        observe(TableReloading(table, why, f"{who or 'open transactions'} to end"))

    def locked(name: str, who: str, _seconds: float) -> None:
        observe(TableReloading(table, why, f"the lock on {name} ({who}) to end"))

    began = time.monotonic()
    observe(TableReloading(table, why))

    def load(snapshot: Snapshot, name: str) -> None:
        done = load_one(snapshot, name)
        seconds = time.monotonic() - began
        observe(TableReloaded(name, done.rows, done.quarantined, int(done.lsn), seconds))

    load_all(spark, source, [table], load, on_wait=wait, on_locked=locked)
