"""A table of a mirror without a log (`change_log: none`) becomes one that is folded from a log. No row is read again.

The former mirror's newest commit has its state: for each partition of the topic, the last change that is in the table.
The rule: the position that a fold begins with is not above any of these changes, and the offsets after them say which
records the log must have. So a fold reads some changes again, and stops by name if the log lacks one that it needs.

A changelog (`changes.py`) has each change once, because a change is known by its LSN, its number and its kind. Only
rows of snapshots are known by their offsets, which the former mirror did not keep, so a fold leaves out the rows below
the position's offsets.

One change of properties takes the table over. A process that is killed before it does the same again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pyspark.sql import SparkSession

from cdcd.mirror.base.columns import comment, digest
from cdcd.mirror.base.commit import Folded, attempted
from cdcd.mirror.base.formats import (
    CHANGES,
    GIVEN,
    GIVEN_CHANGES,
    MADE_BY,
    PLACE_COLUMNS,
    TOPIC_ID,
    BaseFormat,
    OtherMakerError,
    form_property,
    former_version,
)
from cdcd.mirror.base.layout import properties_of
from cdcd.mirror.base.part import Place
from cdcd.mirror.base.position import BASE, KEPT, Kept, Position
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.platform.tables import properties, set_properties
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.making import KIND, SCHEMA, made
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Kind

_KINDS: Final = {
    BASE: Kind.MIRROR,
    CHANGES: Kind.CHANGELOG,
    GIVEN: Kind.MIRROR,
    GIVEN_CHANGES: Kind.CHANGELOG,
}
"""The kind of table that a mirror without a log has made, by the kind of folded table that it becomes."""


def folded(
    spark: SparkSession,
    format_: BaseFormat,
    place: Place,
    attempt: Callable[[], Folded | None],
    made_by: str = BASE,
) -> Folded:
    """Fold a table until no other commit comes in between. A table of a mirror without a log is taken over first.

    Args:
        attempt: folds once, and returns None if another commit came in between.
        made_by: the value of `MADE_BY` of the folded table.

    Raises:
        OvertakenError: others committed at the same time, several times.
        OtherMakerError: neither a fold nor a mirror made the table.
    """
    taken_over: int | None = None

    def attempt_or_take() -> Folded | None:
        nonlocal taken_over
        try:
            return attempt()
        except OtherMakerError:
            taken_over = take_over(spark, format_, place, made_by)
            if taken_over is None:
                raise
            return None

    return replace(attempted(place, attempt_or_take), taken_over=taken_over)


def take_over(spark: SparkSession, format_: BaseFormat, place: Place, made_by: str = BASE) -> int | None:
    """Take a table over, and return the LSN of its position. None: a fold made the table already, or no mirror made it.

    A fold keeps the table's partitions and buckets. A changelog gets the columns for the places of records, which are
    NULL in the rows that it has.
    """
    had, kind = properties(spark, place.name), _KINDS.get(made_by)
    if had.get(MADE_BY) == made_by or kind is None or SCHEMA not in had:
        return None
    if had.get(KIND, Kind.MIRROR.value) != kind.value:
        return None
    newest = former_version(format_.version(spark, place.name))
    if newest is None:
        return None
    state = State.from_json(format_.former_state(spark, place.name, newest))
    new = made({**had, KIND: kind.value})
    schema = new.schema
    _alter(spark, format_, place, schema, kind)
    position = begin(state, digest(schema))
    pin = format_.version(spark, place.name).pin
    values = {
        **form_property(digest(schema), schema.to_json()),
        **({} if state.topic_id is None else {TOPIC_ID: state.topic_id}),
        KEPT: Kept(pin, position).to_json(),
        **format_.guarding,
        **(properties_of(schema, new.layout) if kind is Kind.MIRROR else {}),
        MADE_BY: made_by,
    }
    set_properties(spark, place.name, values)
    return position.lsn


def _alter(spark: SparkSession, format_: BaseFormat, place: Place, schema: TableSchema, kind: Kind) -> None:
    """Give the table the comments of a folded table's columns, and the columns that it lacks."""
    there = spark.table(place.name).columns
    for column in schema.columns:
        said_of = comment(column, schema.oid)
        if said_of:
            change = f"ALTER COLUMN {quoted(column.name)} COMMENT '{said_of}'"
            format_.alter(spark, place.name, change)
    for name, type_ in PLACE_COLUMNS.items() if kind is Kind.CHANGELOG else ():
        if name not in there:
            format_.alter(spark, place.name, f"ADD COLUMN {name} {type_}")


def begin(state: State, form: str) -> Position:
    """The position with which the folds of a table begin. `form`: digest of the form of its rows."""
    return Position(
        # The last change of a partition may be in the middle of a transaction.
        lsn=min([each.commit_lsn - 1 for each in state.partitions.values()], default=0),
        reached=state.commit_lsn,
        form=form,
        clean=False,
        ends={part: each.offset + 1 for part, each in state.partitions.items()},
        is_former=True,
        state=state.to_json(),
    )
