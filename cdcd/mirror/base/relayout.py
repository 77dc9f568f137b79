"""A folded table is written again in another layout: `cdcd mirror --relayout` with `change_log: fold`.

One statement replaces the table by its own rows. Its commit carries the position of the version that was looked at, and
says that the table is not clean, because the rows may be those of a fold that another process has committed since. So
the next fold begins at this position. A process that is killed leaves the table as it was.
"""

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.base.columns import digest
from cdcd.mirror.base.formats import BaseFormat, check_made, form_property
from cdcd.mirror.base.layout import layout_of, made, own_columns, partitioned_by, properties_of
from cdcd.mirror.base.part import OvertakenError, Place
from cdcd.mirror.base.plan import form_of_rows
from cdcd.mirror.base.position import Carried
from cdcd.mirror.base.replacing import Replacing
from cdcd.mirror.platform.tables import as_view
from cdcd.mirror.targets.layout import DELETED, Deletes, Layout, laid_out
from cdcd.mirror.targets.making import BUCKETS, placed
from cdcd.mirror.targets.making import replacing as replaces
from cdcd.mirror.targets.target import LaidOut


def relayout(
    spark: SparkSession,
    format_: BaseFormat,
    replacing: Replacing,
    place: Place,
    wanted: Callable[[int], Layout],
) -> LaidOut:
    """Write the table again, if it has another layout than the wanted one.

    Args:
        replacing: of the same format as `format_`.
        wanted: gives the layout of a table with so many bytes.

    Raises:
        ConfigError: the table cannot have the layout, or the format cannot replace it.
        SinkError: no fold made the table, or its position is not known.
        OvertakenError: another process folded the table meanwhile.
    """
    name = place.name
    has = check_made(spark, name, place.table)
    there = format_.version(spark, name)
    position = there.position
    schema = None if position is None else form_of_rows(spark, place, position)
    if position is None or schema is None:
        raise SinkError(
            f"{place.table}: no commit of {name} says which rows it has, so it cannot be written again.",
            hint="Run cdcd mirror --once, which folds the table, and then the same command again.",
        )
    rows = spark.table(name)
    deletes = Deletes.MARK if DELETED in rows.columns else Deletes.REMOVE
    before = replace(layout_of(spark, place, has, schema, computed=format_.computed), deletes=deletes)
    after = made(schema, replaces(before, wanted(replacing.size(spark, name))), computed=format_.computed)
    if after == before:
        return LaidOut(before, after)
    replacing.check(spark, name, has)
    rows = placed(laid_out(rows.drop(*own_columns(before)), before, after), schema, after)
    given = form_property(digest(schema), schema.to_json()) | {BUCKETS: "1"} | properties_of(schema, after)
    carried = Carried(
        uuid4().hex,
        position.lsn,
        position.lsn,
        replacing.parent(there.pin),
        position.form,
        position.reached,
        clean=False,
        ends=position.ends,
    )
    with as_view(rows) as view, format_.carrying(spark, name, carried):
        replacing.replace(spark, name, view, has, given, partitioned_by(after))
    found = format_.version(spark, name).position
    if found is None or found.lsn != position.lsn or found.form != position.form:
        raise OvertakenError(
            f"{place.table}: another process committed to {name} while it was written again.",
            hint="Stop the other process, and run the same command again.",
        )
    return LaidOut(before, after)
