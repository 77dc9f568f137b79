"""A table of a mirror without a log (`change_log: none`) becomes one that is folded from a log. No row is read again.

The former mirror's newest commit has its state: for each partition of the topic, the last change that is in the table.
The rule: the position that a fold begins with is not above any of these changes, and the offsets after them say which
records the log must have. So a fold reads some changes again, and stops by name if the log lacks one that it needs.

One change of properties takes the table over. A process that is killed before it does the same again.
"""

from pyspark.sql import SparkSession

from cdcd.mirror.base.columns import comment, digest
from cdcd.mirror.base.formats import (
    BASE,
    MADE_BY,
    TOPIC_ID,
    BaseFormat,
    form_property,
    former_version,
    properties,
    set_properties,
)
from cdcd.mirror.base.layout import properties_of
from cdcd.mirror.base.part import Place
from cdcd.mirror.base.position import KEPT, Kept, Position
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.targets.making import KIND, SCHEMA, made
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Kind


def take_over(spark: SparkSession, format_: BaseFormat, place: Place) -> int | None:
    """Take a table over, and return the LSN of its position. None: a fold made the table already, or no mirror made it.

    A fold keeps the table's partitions and buckets.
    """
    had = properties(spark, place.name)
    if had.get(MADE_BY) == BASE or SCHEMA not in had or had.get(KIND, Kind.MIRROR.value) != Kind.MIRROR.value:
        return None
    newest = former_version(format_.version(spark, place.name))
    if newest is None:
        return None
    state = State.from_json(format_.former_state(spark, place.name, newest))
    new = made({KIND: Kind.MIRROR.value, **had})
    schema = new.schema
    for column in schema.columns:
        said_of = comment(column, schema.oid)
        if said_of:
            change = f"ALTER COLUMN {quoted(column.name)} COMMENT '{said_of}'"
            format_.alter(spark, place.name, change)
    position = begin(state, digest(schema))
    pin = format_.version(spark, place.name).pin
    values = {
        **form_property(digest(schema), schema.to_json()),
        **({} if state.origin.topic_id is None else {TOPIC_ID: topic_id(state.origin.topic_id)}),
        KEPT: Kept(pin, position).to_json(),
        **format_.guarding,
        **properties_of(schema, new.layout),
        MADE_BY: BASE,
    }
    set_properties(spark, place.name, values)
    return position.lsn


def begin(state: State, form: str) -> Position:
    """The position with which the folds of a table begin. `form`: digest of the form of its rows."""
    return Position(
        # The last change of a partition may be in the middle of a transaction.
        lsn=min([each.commit_lsn - 1 for each in state.partitions.values()], default=0),
        reached=state.commit_lsn,
        form=form,
        clean=False,
        # The former mirror counts the marker of a transaction after the last record, and a log does not.
        ends={part: each.offset for part, each in state.partitions.items()},
    )


def topic_id(id_: str) -> str:
    """Kafka's id of a topic as librdkafka writes it, from the text of Kafka's Java client.

    Both are base64 without padding. Java's client (`Uuid.toString`) has the alphabet that is safe in URLs.
    """
    return id_.replace("-", "+").replace("_", "/")
