"""A folded table as of now: its rows, and what the log has since, without a commit.

The rows come from the plan of the next fold (`plan.py`) and its reduction, so a view of now and the next fold cannot
disagree. The bound is the last record of the log. So, unlike a fold, a view may show a source transaction in part, as
long as the log has only a part of the transaction.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SourceError
from cdcd.mirror.base.columns import OWN_COLUMNS, kept, present
from cdcd.mirror.base.formats import BaseFormat
from cdcd.mirror.base.part import Forms, LogReader, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.plan import Plan, plan_of, steps_of
from cdcd.mirror.log.positions import at_version
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.defaults import default_of
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.targets.evolution import value_of
from cdcd.mirror.targets.layout import DELETED
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.name_lists import no_names
from cdcd.mirror.targets.partitions import OWN
from cdcd.mirror.targets.reduction import EVENT, KEEP, LOST, LSN, OP, is_after

LAST: Final = 2**63 - 1
"""The bound of a view, above every LSN of the log."""


def now(spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms) -> DataFrame:
    """Return the rows of a table as of the last record of the log, with the columns of the table.

    The DataFrame reads one version of the table and of the log. A later call returns later rows.

    Raises:
        SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
    """
    log = LogReader(spark, place, forms, LAST)
    found = plan_of(spark, format_, place, forms, log)
    if found.path is None:
        if found.there is None:
            raise SourceError(
                f"{place.table}: neither the log nor the lakehouse has a row or a change of it.",
                hint="Wait until the mirror has appended the first changes of the table.",
            )
        return live(at_version(spark, place.name, found.there.pin))
    schema = found.path.schema
    before = _before(spark, place.name, found, found.path)
    changes = log.changes(found.part, found.path)
    rows, summary = log.reduced(changes, schema)
    try:
        source = rows.filter(sf.col(OP) != "t")
        if summary.moves:
            source = resolved(source, changes, schema, sorted(summary.partial), before)
        if summary.truncated is not None:
            source = source.filter(is_after(sf.col(LSN), sf.col(EVENT), summary.truncated))
        return _merged(before, source, schema)
    finally:
        rows.unpersist()


def live(rows: DataFrame) -> DataFrame:
    """Return the rows that the source has, without columns of the layout. A table that marks deletes has other rows."""
    own = [name for name in rows.columns if name in {DELETED, BUCKET} or name.startswith(OWN)]
    return (rows.filter(~sf.col(DELETED)) if DELETED in own else rows).drop(*own)


def _before(spark: SparkSession, name: str, plan: Plan, path: Path) -> DataFrame:
    """Return the rows of the table that the part of the log does not replace, in the columns of the last form."""
    schema = path.schema
    if plan.there is None or plan.part.cut is not None or plan.whole:
        types = [f"{quoted(column.name)} {column.spark.simpleString()}" for column in schema.columns]
        types += [f"{quoted(own)} {type_}" for own, type_ in OWN_COLUMNS.items()]
        return spark.createDataFrame([], ", ".join(types))
    rows = live(at_version(spark, name, plan.there.pin))
    steps = steps_of(spark, path)
    names = {new: old for old, new in kept(present(rows.schema), schema).items()}
    columns = []
    for column in schema.columns:
        if column.name in steps.defaults:
            value = default_of(steps.defaults[column.name])
        elif column.name not in names:
            value = sf.lit(None)
        elif column.name in steps.labels:
            value = sf.expr(value_of(steps.labels[column.name], column.spark, quoted(names[column.name])))
        else:
            value = sf.col(quoted(names[column.name]))
        columns.append(value.cast(column.spark).alias(column.name))
    return rows.select(*columns, *OWN_COLUMNS)


def _merged(before: DataFrame, source: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows that a MERGE of the changes in `source` (`targets.merge`) would leave."""
    old, new = before.alias("t"), source.alias("s")
    on = [sf.col(f"t.{quoted(name)}") == sf.col(f"s.{quoted(name)}") for name in schema.key]
    joined = old.join(new, on, "full_outer")
    was, comes = _at("t"), _at("s")
    wins = sf.coalesce(comes >= was, was.isNull())

    def value(name: str) -> Column:
        own, other = sf.col(f"t.{quoted(name)}"), sf.col(f"s.{quoted(name)}")
        keeps = sf.array_contains(f"s.{KEEP}", name)
        return sf.when(~wins | (keeps & was.isNotNull()), own).otherwise(other).alias(name)

    still = sf.col(f"s.{KEEP}")
    still = sf.when(
        was.isNotNull(), sf.array_intersect(sf.coalesce(f"t.{UNKNOWN}", no_names()), still)
    ).otherwise(still)
    unknown = sf.nullif(sf.array_union(still, f"s.{LOST}"), no_names())
    return joined.filter(~(wins & (sf.col(f"s.{OP}") == "d"))).select(
        *[value(column.name) for column in schema.columns],
        *[sf.when(wins, sf.col(f"s.{own}")).otherwise(sf.col(f"t.{own}")).alias(own) for own in (LSN, EVENT)],
        sf.when(wins, unknown).otherwise(sf.col(f"t.{UNKNOWN}")).alias(UNKNOWN),
    )


def _at(alias: str) -> Column:
    """Return the LSN and the event of a row's last change. NULL: there is no row."""
    lsn = sf.col(f"{alias}.{LSN}")
    return sf.when(lsn.isNotNull(), sf.struct(lsn.alias("lsn"), sf.col(f"{alias}.{EVENT}").alias("event")))
