"""Records of a table's topic, in whatever forms, as changes in one form."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.core.errors import SourceError
from cdcd.mirror.kafka import Offsets
from cdcd.mirror.records.changes import PROBLEM, head, parse
from cdcd.mirror.records.descriptions import Descriptions, Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.values import as_json
from cdcd.mirror.targets.upgrading import together, upgrade

_RAW: Final = ("key_bytes", "value_bytes", "timestamp")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one table.

    Attributes:
        changes: all in the form `schema`, older ones brought to it.
        rejected: records that are no changes: topic, partition, offset, timestamp, key_bytes, value_bytes, problem.
        end: by partition, the offset to go on from.
    """

    schema: TableSchema
    changes: DataFrame
    rejected: DataFrame
    end: Offsets


def brought(
    records: DataFrame,
    found: Mapping[str, Form],
    newest: Form,
    end: Offsets,
    *,
    beside: Collection[str] | None = (),
) -> Changes:
    """The changes that are in one of the forms `found`, in the form `newest`.

    Args:
        beside: the ids of forms whose changes are handed over by themselves. None: so are records that name no form.
    """
    parts = {
        schema_id: parse(as_json(records, form.values), form.schema, form.rules, keep=True).filter(
            sf.col("schema_id") == schema_id
        )
        for schema_id, form in found.items()
    }
    rejected = [part.filter(sf.col(PROBLEM).isNotNull()) for part in parts.values()]
    if beside is not None:
        rest = parse(records, newest.schema, newest.rules, keep=True)
        known = [*parts, *beside]
        if known:
            rest = rest.filter(~sf.coalesce(sf.col("schema_id").isin(known), sf.lit(False)))
        unknown = sf.coalesce(PROBLEM, sf.lit("no description is known of its source.schema_id"))
        rejected.append(rest.withColumn(PROBLEM, unknown))
    shown = ("topic", "partition", "offset", "timestamp", "key_bytes", "value_bytes", PROBLEM)
    sound = [
        upgrade(
            part.filter(sf.col(PROBLEM).isNull()).drop(PROBLEM, *_RAW), found[schema_id].schema, newest.schema
        )
        for schema_id, part in parts.items()
    ]
    nothing = parse(records, newest.schema, newest.rules).filter("false").drop(PROBLEM)
    return Changes(
        newest.schema,
        reduce(DataFrame.unionByName, sound) if sound else nothing,
        reduce(DataFrame.unionByName, [part.select(*shown) for part in rejected]),
        end,
    )


def batch_changes(records: DataFrame, forms: Descriptions, topic: str, table: str) -> Iterator[Changes]:
    """The changes of a batch: in one form, or in one after the other where they cannot be brought to one.

    Raises:
        SourceError: a form is not described.
    """
    newest = forms.newest(topic)
    place = sf.struct("head.source.commit_lsn", "head.source.event_serial_no")
    groups = (
        records.select(head().alias("head"), "partition", "offset")
        .groupBy("partition", sf.col("head.source.schema_id").alias("id"))
        .agg(sf.max("offset").alias("offset"), sf.max(place).alias("last"))
        .collect()
    )
    end: dict[int, int] = {}
    last: dict[str, tuple[int, int]] = {}
    for group in groups:
        end[group["partition"]] = max(end.get(group["partition"], 0), group["offset"] + 1)
        if group["id"] is not None:
            lsn, event = group["last"]
            last[group["id"]] = max(last.get(group["id"], (0, 0)), (lsn or 0, event or 0))
    found = forms.find(topic, list(last))
    unknown = sorted(last.keys() - found.keys())
    if unknown:
        raise SourceError(
            f"{table}: no description of source.schema_id {', '.join(unknown)} is known.",
            hint="The daemon describes a form before its first change. Start the query again when topics.schemas has"
            " it; if it was emptied, start the daemon again before, which describes its tables again.",
        )
    in_order = [found[schema_id] for schema_id in sorted(last, key=last.__getitem__)]
    runs = together([form.schema for form in in_order], newest.schema)
    for number, run in enumerate(runs):
        aim = newest if run[-1] is newest.schema else found[run[-1].schema_id]
        mine = {schema.schema_id: found[schema.schema_id] for schema in run if schema.schema_id in last}
        yield brought(records, mine, aim, end, beside=last.keys() - mine.keys() if number == 0 else None)
