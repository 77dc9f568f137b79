"""A snapshot that a job loads into a table of its own, where `apply_changes` goes on: `load_snapshot` of the library.

The rule: a snapshot is a truncate and its rows, both at one place among the changes. So what lies before it, in
whichever partition, is not new to the table any more.
"""

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import CdcdError, PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.base.formats import GIVEN, base_of
from cdcd.mirror.base.given import Applying, Given, as_it_is, one_at_a_time, reached
from cdcd.mirror.base.load import FIRST, Loading, load_rows
from cdcd.mirror.base.part import Place
from cdcd.mirror.base.takeover import take_over
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.snapshot.failures import raised_by_task
from cdcd.mirror.snapshot.reading import PARTITION_BYTES, Loaded, Snapshot, read_rows
from cdcd.mirror.targets.evolution import check
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.state import Place as ChangePlace
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import QUARANTINE, Kind, Target, kind_of


def load_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    table: str,
    target: Target,
    *,
    history: bool = False,
    variant: bool = False,
    partition_bytes: int = PARTITION_BYTES,
    layout: Callable[[int], Layout] | None = None,
) -> Loaded:
    """Make the mirror of `schema.table` what the table is at the snapshot, in one commit that records its LSN.

    What the mirror had before is replaced, and so is its form. Rows that fit no type of the mirror go into quarantine.

    Args:
        history: the table has a changelog too, which gets each row once more.
        layout: gives the layout of a new mirror for a table of so many bytes. A mirror that is there keeps its own.

    Raises:
        SourceError: it may not be read.
        TransientError: it was altered, truncated or dropped since, or PostgreSQL ended the snapshot: take a new one.
        PositionError: the mirror has changes from after the snapshot.
        IncompatibleSchemaError: no mirror can have the table's form, because of the names of its columns.
        SinkError: something else has made the table of the target.
    """
    form = snapshot.form(table, variant=variant, mirrored=True)
    kinds = [kind_of(form.schema)]
    if history and Kind.CHANGELOG not in kinds:
        kinds.append(Kind.CHANGELOG)
    changes = read_rows(
        spark, snapshot, table, variant=variant, partition_bytes=partition_bytes, mirrored=True
    ).persist()
    try:
        counts = changes.agg(sf.count("*").alias("rows"), sf.count(PROBLEM).alias("problems")).collect()[0]
        problems, sound = counts["problems"], changes.filter(sf.col(PROBLEM).isNull())
        rows = counts["rows"] - problems
        for kind in kinds:
            if kind is Kind.MIRROR:
                _load(spark, snapshot, target, form, sound, rows, layout)
            else:
                _log(spark, snapshot, target, form, sound)
        quarantined = _quarantine(target, table, changes) if problems else 0
    except CdcdError:
        raise
    except Exception as error:
        # A table format raises exceptions of Java as well as PySpark's own.
        raise raised_by_task(table, error) from error
    finally:
        changes.unpersist()
    return Loaded(rows, quarantined, snapshot.lsn)


def _load(
    spark: SparkSession,
    snapshot: Snapshot,
    target: Target,
    form: Form,
    rows: DataFrame,
    count: int,
    layout: Callable[[int], Layout] | None,
) -> None:
    table, format_ = form.schema.table, base_of(target.format, target.given)
    name = target.name_of(form.schema, Kind.MIRROR)
    place = Place(table, snapshot.topic(table), name, "", made_by=GIVEN)
    place = as_it_is(spark, place)
    if layout is not None:
        place = replace(place, layout=layout(snapshot.size(table)))
    check(form.schema, target.reserved)
    if exists(spark, name):
        take_over(spark, format_, place, GIVEN)
    after = _loaded(snapshot, table, reached(spark, target, name), name)
    with one_at_a_time(spark):
        load_rows(Loading(spark, format_, replace(place, state=after.to_json())), snapshot, form, rows, count)
    target.brought[name] = after


def _log(spark: SparkSession, snapshot: Snapshot, target: Target, form: Form, rows: DataFrame) -> None:
    """Add the rows of a snapshot to a changelog."""
    table, schema = form.schema.table, form.schema
    name = target.name_of(schema, Kind.CHANGELOG)
    after = _loaded(snapshot, table, reached(spark, target, name), name)
    at = {"commit_lsn": snapshot.commit_lsn, "event_no": FIRST}
    changes = rows.withColumns({key: sf.lit(value).cast("bigint") for key, value in at.items()})
    Applying(spark, target).apply(Given(changes.drop(PROBLEM), schema, after), Kind.CHANGELOG)


def _loaded(snapshot: Snapshot, table: str, state: State, name: str) -> State:
    """The state of a table when a snapshot is loaded into it. PositionError: it has later changes."""
    lsn, topic_id = snapshot.commit_lsn, snapshot.topic_id(table)
    if state.commit_lsn > lsn:
        raise PositionError(
            f"{name} has changes up to {Lsn(state.commit_lsn)}, after the snapshot's {Lsn(lsn)}.",
            hint="Another process mirrors into the table: stop that process first, and take a new snapshot.",
        )
    if topic_id is not None and topic_id != state.topic_id:
        # Places in the former topic say nothing.
        state = replace(state, partitions={}, topic_id=topic_id)
    at = {
        number: ChangePlace(lsn, FIRST, 1, offset - 1)
        for number, offset in snapshot.offsets(table).items()
        if offset > 0
    }
    return replace(state.advanced(at, (lsn, 0)), commit_lsn=lsn)


def _quarantine(target: Target, table: str, changes: DataFrame) -> int:
    place = ("topic", "partition", "offset")
    rows = changes.filter(sf.col(PROBLEM).isNotNull()).select(
        sf.lit(table).alias("table"),
        *place,
        sf.col("timestamp").alias("record_time"),
        sf.col("key_bytes").alias("key"),
        sf.col("value_bytes").alias("value"),
        sf.col(PROBLEM).alias("reason"),
        sf.col("schema_id"),
    )
    return target.append(target.own_name(QUARANTINE), rows, place)
