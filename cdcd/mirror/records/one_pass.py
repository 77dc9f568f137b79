"""Records of several forms of a table in one pass, for a stream: the plan of a query that runs cannot change.

A batch reads each form's records by themselves and puts them together. A streaming query would then read the topic
once for each form, and could not be started again from its checkpoint when there is a form more. So each record is
parsed by the form that it names, all in one row of expressions, and brought to the form of the query.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.records.changes import PROBLEM, envelope, fields, once, payload, unchanged
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
from cdcd.mirror.targets.upgrading import upgraded

UNKNOWN_FORM: Final = "it is in a form of the table that this query does not know"
OTHER_TYPES: Final = "it is in a form of the table that cannot be brought to the one of this query"

_ID: Final = "_cdcd_schema_id"

_COLUMNS: Final = (
    "op",
    "before",
    "after",
    "unchanged",
    "key",
    "old_key",
    "new_key",
    "commit_lsn",
    "event_no",
    "commit_time",
    "topic",
    "partition",
    "offset",
    "schema_id",
    PROBLEM,
)
"""Of a change, in the order of `fields`."""


def parse_forms(
    records: DataFrame,
    forms: Mapping[str, Form | None],
    newest: Form,
    *,
    stop: Mapping[str, str] | None,
) -> DataFrame:
    """Changes of one table, whatever their form, in the form `newest`, with the columns of `changes.parse`.

    Args:
        records: of its topic, as Spark's Kafka source gives them with headers.
        forms: all that are known, by their ids. None: one whose values cannot be read any more.
        stop: the errors by which a record ends the query whose form is not known (`UNKNOWN_FORM`), or cannot be brought
            to `newest` (`OTHER_TYPES`). None: these are what `problem` says of such a record.
    """
    able: dict[str, tuple[Form, list[Column] | None]] = {newest.schema.schema_id: (newest, None)}
    for schema_id, form in forms.items():
        if form is not None and schema_id not in able:
            with suppress(IncompatibleSchemaError):
                found = upgraded(_COLUMNS, form.schema, newest.schema, _of(len(able)))
                able[schema_id] = form, found
    unable = sorted(forms.keys() - able.keys())
    named = records.filter(sf.col("value").isNotNull()).select(
        # Once for all forms.
        sf.when(
            once(), sf.get_json_object(payload(sf.col("value").cast("string")), "$.source.schema_id")
        ).alias(_ID),
        "value",
        "headers",
        "topic",
        "partition",
        "offset",
    )
    other = _other_form(list(able), unable)
    if stop is not None:
        ends = other
        for problem, error in stop.items():
            ends = sf.when(other == problem, sf.raise_error(error).cast("string")).otherwise(ends)
        # In a filter, because a column that is not selected is not computed.
        named = named.filter(sf.when(other.isNull(), True).otherwise(ends.isNotNull()))
    rest = list(able)[1:]
    # The first form also says what is wrong with a record that names none.
    is_first = ~sf.coalesce(sf.col(_ID).isin(rest), sf.lit(False)) if rest else sf.lit(True)
    has = [is_first, *[sf.col(_ID) == schema_id for schema_id in rest]]
    parsed = named.select(
        *[
            sf.when(once() & mine, envelope(form.schema, form.rules)).alias(f"e{number}")
            for number, (mine, (form, _)) in enumerate(zip(has, able.values(), strict=True))
        ],
        _ID,
        "headers",
        "topic",
        "partition",
        "offset",
    )
    lefts = parsed.select(
        "*",
        *[
            unchanged(f"e{number}", form.schema).alias(f"u{number}")
            for number, (form, _) in enumerate(able.values())
        ],
    )
    each = lefts.select(
        _ID,
        *[
            sf.when(mine, sf.struct(*fields(f"e{number}", f"u{number}", form.schema, form.rules))).alias(
                _of(number)
            )
            for number, (mine, (form, _)) in enumerate(zip(has, able.values(), strict=True))
        ],
    )
    brought = [
        sf.col(_of(number)) if found is None else sf.when(sf.col(_of(number)).isNotNull(), sf.struct(*found))
        for number, (_, found) in enumerate(able.values())
    ]
    changes = each.select(sf.coalesce(*brought).alias("change"), other.alias("other")).select(
        "change.*", "other"
    )
    return changes.withColumn(PROBLEM, sf.coalesce("other", PROBLEM)).drop("other")


def _of(number: int) -> str:
    return f"c{number}"


def _other_form(able: Sequence[str], unable: Sequence[str]) -> Column:
    """What is wrong with the form that a record names; null if nothing is, or it names none."""
    wrong = sf.lit(UNKNOWN_FORM)
    if unable:
        wrong = sf.when(sf.col(_ID).isin(list(unable)), sf.lit(OTHER_TYPES)).otherwise(wrong)
    return sf.when(sf.col(_ID).isNotNull() & ~sf.col(_ID).isin(list(able)), wrong)
