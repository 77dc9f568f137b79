"""Records of a topic -> changes with types, and what is wrong with those that are none.

`parse` is for one form of a table; a record that was written in another one is told by its `schema_id`. All of it are
expressions of the engine: one `from_json` over the envelope, with the table's own columns in it, then the conversions
of `types.py`. Nothing is decided by the time or the order of arrival.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from cdcd.core.records.encoder import (
    HEADER_CHANGE,
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEADER_UNCHANGED,
    HEADER_UNWRITABLE,
)
from cdcd.mirror.records.rule import Rule
from cdcd.mirror.records.schema import TableSchema

PROBLEM: Final = "problem"
"""The column of `parse` that says what is wrong with a record; null for a change."""

WITH_ROW: Final = ("c", "u", "r")
OPERATIONS: Final = (*WITH_ROW, "d", "t")

_SCHEMA: Final = '{"schema":{"type":"struct",'
_PAYLOAD: Final = ',"payload":'

_CORRUPT: Final = "_cdcd_corrupt"
_SOURCE: Final = StructType(
    [
        StructField("ts_us", LongType()),
        StructField("commit_lsn", LongType()),
        StructField("event_serial_no", LongType()),
        StructField("schema_id", StringType()),
    ]
)
_HEAD: Final = StructType([StructField("op", StringType()), StructField("source", _SOURCE)])


def parse(
    records: DataFrame, schema: TableSchema, rules: Mapping[str, Rule], *, keep: bool = False
) -> DataFrame:
    """Changes of one table.

    Args:
        records: of its topic, as Spark's Kafka source gives them with headers.
        schema: the form in which they were written.
        rules: of its columns (`types.rules`).
        keep: also the record's `key_bytes`, `value_bytes` and `timestamp`.

    Returns:
        A row for each record but tombstones:

        | column | |
        |---|---|
        | op STRING | c insert, u update, d delete, r read by a snapshot, t truncate |
        | before, after STRUCT | the row, as far as the record has it; null where there is none |
        | unchanged ARRAY<STRING> | columns of `after` that the source did not send: what was there before still holds |
        | key STRUCT | of the row; null for a table without one, and for t |
        | old_key STRUCT | of a row that got its key by an update: the key that it had |
        | new_key STRUCT | of a key that was deleted by such an update: the key that its row has now |
        | commit_lsn, event_no BIGINT | the order of all changes: of the commit; in the transaction, from 1 |
        | commit_time TIMESTAMP | of the commit, by the source's clock |
        | topic, partition, offset | where the record lies |
        | schema_id STRING | the form in which it says that it was written |
        | problem STRING | why it is no change of this form; null for one that is |
    """
    return Parser(schema, rules).parse(records, keep=keep)


class Parser:
    """`parse` for one form. Its expressions are made once, because that takes a few hundred calls of the JVM."""

    def __init__(self, schema: TableSchema, rules: Mapping[str, Rule]) -> None:
        self._envelope = sf.when(once(), envelope(schema, rules)).alias("e")
        self._unchanged = unchanged("e", schema)
        self._fields = fields("e", "unchanged", schema, rules)

    def parse(self, records: DataFrame, *, keep: bool = False) -> DataFrame:
        """Changes of the table. Takes and returns what the function `parse` does."""
        kept = [sf.col("key").alias("key_bytes"), sf.col("value").alias("value_bytes"), sf.col("timestamp")]
        parsed = records.filter(sf.col("value").isNotNull()).select(
            self._envelope,
            "headers",
            "topic",
            "partition",
            "offset",
            *(kept if keep else []),
        )
        return parsed.withColumn("unchanged", self._unchanged).select(
            *self._fields,
            *(["key_bytes", "value_bytes", "timestamp"] if keep else []),
        )


def once() -> Column:
    """Always true, and not deterministic.

    Else Spark would take a filter on what was parsed to before the parsing, and parse once more in it for each part of
    the condition.
    """
    return sf.spark_partition_id() >= 0


def envelope(schema: TableSchema, rules: Mapping[str, Rule]) -> Column:
    """What the JSON of a record's `value` says, in the wire types of a form."""
    row = StructType([StructField(column.sent_as, rules[column.name].wire) for column in schema.columns])
    type_ = StructType(
        [
            StructField("before", row),
            StructField("after", row),
            StructField("source", _SOURCE),
            StructField("op", StringType()),
            StructField(_CORRUPT, StringType()),
        ]
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return sf.from_json(payload(sf.col("value").cast("string")), type_, options)


def unchanged(e: str, schema: TableSchema) -> Column:
    """The column `unchanged`, of the envelope in the column `e`."""
    sent = sf.from_json(header(HEADER_UNCHANGED), ArrayType(StringType()))
    for column in schema.columns:
        if column.source is not None:
            source, name = column.source, column.name
            sent = _renamed(sent, source, name)
    return sf.when(sf.col(f"{e}.op").isin("c", "u"), sent)


def _renamed(names: Column, source: str, name: str) -> Column:
    """An array of names with `name` in the place of `source`."""
    return sf.transform(names, lambda each: sf.when(each == source, sf.lit(name)).otherwise(each))


def fields(e: str, left: str, schema: TableSchema, rules: Mapping[str, Rule]) -> list[Column]:
    """The columns of `parse`.

    Args:
        e: the column with the `envelope`.
        left: the column with what `unchanged` gives of it.
    """
    return [
        sf.col(f"{e}.op").alias("op"),
        _row(f"{e}.before", schema, rules).alias("before"),
        _row(f"{e}.after", schema, rules).alias("after"),
        sf.col(left).alias("unchanged"),
        _key(e, schema, rules).alias("key"),
        _other_key(HEADER_OLD_KEY, schema, rules).alias("old_key"),
        _other_key(HEADER_NEW_KEY, schema, rules).alias("new_key"),
        sf.col(f"{e}.source.commit_lsn").alias("commit_lsn"),
        sf.col(f"{e}.source.event_serial_no").alias("event_no"),
        sf.timestamp_micros(sf.col(f"{e}.source.ts_us")).alias("commit_time"),
        sf.col("topic"),
        sf.col("partition"),
        sf.col("offset"),
        sf.col(f"{e}.source.schema_id").alias("schema_id"),
        _problem(e, left, schema, rules).alias(PROBLEM),
    ]


def head() -> Column:
    """Op and source of a record, without its row. All fields are null in a record that is no change."""
    return sf.from_json(told(), _HEAD)


def told() -> Column:
    """The JSON that has op and source of a record: its header `cdcd.change`, or else its value."""
    return sf.coalesce(header(HEADER_CHANGE), payload(sf.col("value").cast("string")))


def payload(text: Column) -> Column:
    """The JSON that a key or value is, without the schema that a daemon with `format: json_schema` puts before it.

    The keys of the schema's own JSON are fixed, and in its strings quotes are escaped, so that the first `_PAYLOAD` is
    where the payload begins. It goes on to the last character but one.
    """
    begin = sf.instr(text, _PAYLOAD) + sf.lit(len(_PAYLOAD))
    inner = sf.substr(text, begin, sf.length(text) - begin)
    return sf.when(text.startswith(_SCHEMA), inner).otherwise(text)


def key_of(text: Column, schema: TableSchema, rules: Mapping[str, Rule]) -> Column:
    """The key of a row, from the JSON of a record's key or header. A column that the JSON lacks is null."""
    sent = {column.name: column.sent_as for column in schema.columns}
    wire = sf.from_json(
        payload(text), StructType([StructField(sent[name], rules[name].wire) for name in schema.key])
    )
    # Spark takes a struct of the fields of `from_json` for the result of `from_json`, and assumes that it is not NULL
    # (OptimizeCsvJsonExprs). It is NULL for a text such as `null`.
    wire = sf.when(text.isNotNull(), wire)
    return sf.struct(*[rules[name].value(wire[sent[name]]).alias(name) for name in schema.key])


def header(name: str) -> Column:
    """The text of a header, null without it."""
    return header_bytes(name).cast("string")


def header_bytes(name: str) -> Column:
    """The bytes of a header, null without it."""
    found = sf.filter("headers", lambda each: each["key"] == name)
    return sf.when(sf.col("headers").isNotNull(), sf.get(found, sf.lit(0))["value"])


def _row(image: str, schema: TableSchema, rules: Mapping[str, Rule]) -> Column:
    wire = sf.col(image)
    values = [rules[column.name].value(wire[column.sent_as]).alias(column.name) for column in schema.columns]
    return sf.when(wire.isNotNull(), sf.struct(*values) if values else wire)


def _key(e: str, schema: TableSchema, rules: Mapping[str, Rule]) -> Column:
    """From the row itself: a record's key says the same in other words."""
    if not schema.key:
        return sf.lit(None).cast(schema.key_type)
    deleted = sf.col(f"{e}.op") == "d"
    values = []
    for name in schema.key:
        sent = schema.column(name).sent_as
        wire = sf.when(deleted, sf.col(f"{e}.before")[sent]).otherwise(sf.col(f"{e}.after")[sent])
        values.append(rules[name].value(wire).alias(name))
    return sf.when(sf.col(f"{e}.op").isin(*WITH_ROW, "d"), sf.struct(*values))


def _other_key(which: str, schema: TableSchema, rules: Mapping[str, Rule]) -> Column:
    if not schema.key:
        return sf.lit(None).cast(schema.key_type)
    return sf.when(header(which).isNotNull(), key_of(header(which), schema, rules))


def _problem(e: str, left: str, schema: TableSchema, rules: Mapping[str, Rule]) -> Column:
    op = sf.col(f"{e}.op")
    cases = [
        (
            sf.col(e).isNull() | sf.col(f"{e}.{_CORRUPT}").isNotNull(),
            sf.lit("its JSON is not that of a change"),
        ),
        (
            op.isNull() | ~op.isin(*OPERATIONS),
            sf.concat(sf.lit("its op is no change of a row: "), sf.coalesce(op, sf.lit("none"))),
        ),
        (sf.col(f"{e}.source.commit_lsn").isNull(), sf.lit("it has no source.commit_lsn")),
        (
            op.isin(*WITH_ROW) & sf.col(f"{e}.after").isNull(),
            sf.lit("it has no row in after"),
        ),
    ]
    lacking = sf.from_json(header(HEADER_UNWRITABLE), ArrayType(StringType()))
    of_key = sf.arrays_overlap(
        lacking, sf.array(*[sf.lit(schema.column(name).sent_as) for name in schema.key]).cast("array<string>")
    )
    cases.append(
        (
            lacking.isNotNull() & (op.isin(*WITH_ROW) | of_key),
            sf.concat(sf.lit("its format has no form for a value of "), sf.array_join(lacking, ", ")),
        )
    )
    if schema.key:
        cases.append(((op == "d") & sf.col(f"{e}.before").isNull(), sf.lit("it has no row in before")))
    for column in schema.columns:
        rule, name = rules[column.name], column.name
        sent = ~sf.coalesce(sf.array_contains(left, name), sf.lit(False))
        for image in ("after", "before"):
            failed = rule.fails(sf.col(f"{e}.{image}")[column.sent_as])
            if failed is not None:
                failed = failed & sent if image == "after" else failed & (op == "d")
                cases.append((failed, sf.lit(f"its {name} is not the JSON of a {column.type}")))
    problem = sf.lit(None).cast("string")
    for failed, words in reversed(cases):
        problem = sf.when(failed, words).otherwise(problem)
    return problem
