"""For jobs of one's own: changes as a DataFrame, a batch of them into a table, tables as of one LSN.

    source = KafkaSource("localhost:9092")
    spark = session(("iceberg",), conf=catalog_conf("iceberg", "lake", "/lake"))
    orders = read_changes(spark, source, "shop", "public.orders")
    orders.changes.groupBy("op").count().show()
    apply_changes(IcebergTarget("lake"), orders.changes, orders.schema)

`changes.parse` says which columns changes have.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.errors import ConfigError, SourceError
from cdcd.spark.kafka import EARLIEST, KafkaSource, Offsets
from cdcd.spark.platform.kafka_admin import Admin, ReadEnds
from cdcd.spark.records.changes import PROBLEM, parse
from cdcd.spark.records.descriptions import Descriptions, Form
from cdcd.spark.records.schema import TableSchema
from cdcd.spark.session import check_classic, check_time_zone, is_connect
from cdcd.spark.targets import dimension
from cdcd.spark.targets.evolution import upgrade
from cdcd.spark.targets.pinned import CONTROL
from cdcd.spark.targets.target import Applied, Kind, Target, kind_of

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


def read_changes(
    spark: SparkSession,
    source: KafkaSource,
    prefix: str,
    table: str,
    *,
    schemas_topic: str | None = None,
    start: Offsets | None = None,
    end: Offsets | None = None,
    variant: bool = False,
) -> Changes:
    """The changes of a table that are in its topic, as of committed transactions.

    The session may be one of Spark Connect. There the topics' ends are found by reading the topics once more, unless
    `end` is given.

    Args:
        prefix: of the pipeline's topics.
        table: `schema.table`.
        schemas_topic: with the descriptions; None is `<prefix>.schemas`.
        start, end: offsets by partition; None: from the beginning, up to what is committed now.
        variant: json columns are VARIANT.

    Raises:
        ConfigError: the session's time zone is not UTC.
        SourceError: no description of the table is known.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
        IncompatibleSchemaError: the table changed in a way that older changes cannot be brought to.
    """
    topic, forms = _described(spark, source, prefix, table, schemas_topic, variant=variant)
    newest = forms.newest(topic)
    if end is None:
        with _asking(spark, source) as admin:
            end = admin.ends([topic]).get(topic, {})
    begin = start or dict.fromkeys(end, EARLIEST)
    records = source.read(spark, topic, begin, end)
    named = records.select(
        sf.get_json_object(sf.col("value").cast("string"), "$.source.schema_id").alias("id")
    )
    ids = [row["id"] for row in named.filter("id IS NOT NULL").distinct().collect()]
    found = forms.find(topic, ids)
    parts = {
        schema_id: parse(records, form.schema, form.rules, keep=True).filter(sf.col("schema_id") == schema_id)
        for schema_id, form in found.items()
    }
    rest = parse(records, newest.schema, newest.rules, keep=True)
    if parts:
        rest = rest.filter(~sf.coalesce(sf.col("schema_id").isin(list(parts)), sf.lit(False)))
    unknown = sf.coalesce(PROBLEM, sf.lit("no description is known of its source.schema_id"))
    rejected = [part.filter(sf.col(PROBLEM).isNotNull()) for part in parts.values()]
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


def stream_changes(
    spark: SparkSession,
    source: KafkaSource,
    prefix: str,
    table: str,
    *,
    schemas_topic: str | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[TableSchema, DataFrame]:
    """The form that a table has now, and a streaming DataFrame of the table's changes in that form.

    The DataFrame keeps the column `problem`: if it is not null, the row is no change, or is in another form.

    Args:
        prefix: of the pipeline's topics.
        table: `schema.table`.
        schemas_topic: with the descriptions; None is `<prefix>.schemas`.
        options: of Spark's Kafka source, such as `startingOffsets` and `maxOffsetsPerTrigger`.

    Raises:
        SourceError: no description of the table is known.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    topic, forms = _described(spark, source, prefix, table, schemas_topic, variant=False)
    form = forms.newest(topic)
    records = (
        spark.readStream.format("kafka")
        .options(**{"startingOffsets": "earliest", **(options or {}), **source.options()})
        .option("subscribe", topic)
        .load()
    )
    changes = parse(records, form.schema, form.rules)
    other = sf.when(
        sf.col("schema_id") != form.schema.schema_id, sf.lit("it is in another form of the table")
    )
    return form.schema, changes.withColumn(PROBLEM, sf.coalesce(PROBLEM, other))


def apply_changes(
    target: Target,
    changes: DataFrame,
    schema: TableSchema,
    *,
    kind: Kind | None = None,
    batch_id: int = 0,
) -> Applied:
    """Bring a batch of one table's changes into its target: created or brought to the form `schema` as needed.

    What the target has already is left out, so that a batch may come any number of times.

    Args:
        changes: in the form `schema`, as `read_changes` gives them; read more than once.
        kind: MIRROR or CHANGELOG; None: a mirror if the table has a key.

    Raises:
        IncompatibleSchemaError: the target cannot take the form `schema`.
        ConfigError: the session is one of Spark Connect.
    """
    spark = changes.sparkSession
    check_classic(spark, "apply_changes")
    kind = kind or kind_of(schema)
    name = target.name_of(schema, kind)
    place = sf.struct(sf.col("commit_lsn").alias("lsn"), sf.coalesce("event_no", sf.lit(0)).alias("event"))
    last = changes.agg(sf.max(place).alias("last")).collect()[0]["last"]
    at = (0, 0) if last is None else (int(last["lsn"]), int(last["event"]))
    has = target.prepare(spark, name, schema, kind, at)
    return target.apply(name, upgrade(changes, schema, has), batch_id=batch_id)


def consistent_points(spark: SparkSession, target: Target) -> DataFrame:
    """The LSNs at which all tables of a consistent mirror agree, newest first; `pinned.CONTROL` says which columns.

    `target.read(spark, name, commit_lsn)` is a table as of such a point.
    """
    return spark.table(target.own_name(CONTROL)).orderBy(sf.desc("commit_lsn"))


def scd2(spark: SparkSession, target: Target, table: str) -> DataFrame:
    """The changelog of a table (`history`) as slowly changing dimension of type 2; `dimension.scd2` says what is in it.

    Args:
        table: `schema.table`, of the source.

    Raises:
        ConfigError: the target has no changelog of it, or it has no key.
    """
    return spark.sql(_scd2(spark, target, table))


def create_scd2_view(spark: SparkSession, target: Target, table: str, view: str) -> None:
    """Create a view with the rows of `scd2`, in a catalog that has views.

    Create it again when the table has another form.

    Args:
        table: `schema.table`, of the source.
        view: the view's name in SQL.

    Raises:
        ConfigError: the target has no changelog of the table, or the table has no key.
    """
    spark.sql(f"CREATE OR REPLACE VIEW {view} AS {_scd2(spark, target, table)}")


def _scd2(spark: SparkSession, target: Target, table: str) -> str:
    namespace, _, name = table.partition(".")
    log = target.name_of(TableSchema("", namespace, name, "", ("",), ()), Kind.CHANGELOG)
    schema = target.schema(spark, log)
    if schema is None or not schema.key:
        raise ConfigError(
            f"There is no changelog of {table} as {log}.",
            hint="Name the table in tables.history of the mirror's configuration; it must have a key.",
        )
    return dimension.scd2(log, schema)


def _described(
    spark: SparkSession,
    source: KafkaSource,
    prefix: str,
    table: str,
    schemas_topic: str | None,
    *,
    variant: bool,
) -> tuple[str, "_Forms"]:
    check_time_zone(spark)
    with _asking(spark, source) as admin:
        forms = Descriptions(spark, source, admin, schemas_topic or f"{prefix}.schemas", variant=variant)
        forms.refresh()
        topic = forms.topic(table)
        if topic is None:
            raise SourceError(
                f"No description of {table} is known in {schemas_topic or f'{prefix}.schemas'}.",
                hint="The daemon describes a table before its first change; the name is schema.table.",
            )
        return topic, _Forms(forms)


@contextmanager
def _asking(spark: SparkSession, source: KafkaSource) -> Iterator[Admin | ReadEnds]:
    """Who knows where topics end."""
    if is_connect(spark):
        yield ReadEnds(spark, source)
    else:
        with Admin(spark, source) as admin:
            yield admin


class _Forms:
    """Descriptions as they were read: they are not read on."""

    def __init__(self, descriptions: Descriptions) -> None:
        self._descriptions = descriptions

    def newest(self, topic: str) -> Form:
        return self._descriptions.newest(topic)

    def find(self, topic: str, ids: list[str]) -> dict[str, Form]:
        found = {schema_id: self._descriptions.get(topic, schema_id) for schema_id in ids}
        return {schema_id: form for schema_id, form in found.items() if form is not None}
