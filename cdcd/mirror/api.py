"""For jobs of one's own: changes as a DataFrame, a batch of them into a table, tables as of one LSN.

    source = KafkaSource("localhost:9092")
    spark = session(("iceberg",), conf=catalog_conf("iceberg", "lake", "/lake"))
    orders = read_changes(spark, source, "shop", "public.orders")
    orders.changes.groupBy("op").count().show()
    apply_changes(IcebergTarget("lake"), orders.changes, orders.schema)

`changes.parse` says which columns changes have.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.core.errors import ConfigError
from cdcd.core.table_names import split_table
from cdcd.mirror.base.given import Applied, Applying, Given, form_of
from cdcd.mirror.kafka import EARLIEST, KafkaSource, LooksUpEnds, Offsets
from cdcd.mirror.platform.read_ends import ReadEnds
from cdcd.mirror.records.descriptions import Descriptions, Form
from cdcd.mirror.records.one_pass import OTHER_TYPES, UNKNOWN_FORM, parse_forms
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.table_changes import Changes, batch_changes, brought
from cdcd.mirror.session import check_classic, check_time_zone, is_connect
from cdcd.mirror.targets import dimension
from cdcd.mirror.targets.pinned import CONTROL
from cdcd.mirror.targets.target import Kind, Target, kind_of

NEW_FORM: Final = "has changes in a form that was not described when this query began"
"""What the error says by which a query of `stream_changes` ends when its table was altered (`has_new_form`)."""


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
        end = dict(_asking(spark, source).ends([topic]).get(topic, {}))
    begin = start or dict.fromkeys(end, EARLIEST)
    records = source.read(spark, topic, begin, end)
    named = records.select(
        sf.get_json_object(sf.col("value").cast("string"), "$.source.schema_id").alias("id")
    )
    ids = [row["id"] for row in named.filter("id IS NOT NULL").distinct().collect()]
    return brought(records, forms.find(topic, ids), newest, end)


def stream_changes(
    spark: SparkSession,
    source: KafkaSource,
    prefix: str,
    table: str,
    *,
    schemas_topic: str | None = None,
    options: Mapping[str, str] | None = None,
    other_forms: Literal["stop", "mark"] = "stop",
) -> tuple[TableSchema, DataFrame]:
    """The form that a table has now, and a streaming DataFrame of the table's changes, all in that form.

    A streaming query has one form for as long as it runs. Changes of all forms that are described now are brought to
    the newest. When the table was altered, the first change in the new form ends the query with an error for which
    `has_new_form` is true, before its batch is committed. Call this function again then, and start the query with the
    same checkpoint: it goes on with that batch, in the form that the table has by now. `follow_changes` goes on without
    an end.

    The DataFrame keeps the column `problem`: if it is not null, the row is no change.

    Args:
        prefix: of the pipeline's topics.
        table: `schema.table`.
        schemas_topic: with the descriptions; None is `<prefix>.schemas`.
        options: of Spark's Kafka source, such as `startingOffsets` and `maxOffsetsPerTrigger`.
        other_forms: "stop": a change whose form was not known, or cannot be brought to the newest (another type), ends
            the query. "mark": `problem` says so of it, and the query goes on without its values.

    Raises:
        SourceError: no description of the table is known.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    topic, forms = _described(spark, source, prefix, table, schemas_topic, variant=False)
    newest = forms.newest(topic)
    stop = {
        UNKNOWN_FORM: f"{table} {NEW_FORM}. Call stream_changes again, and start the query with the same checkpoint.",
        OTHER_TYPES: f"{table} has changes in a form that cannot be brought to the newest one. Read them by"
        ' follow_changes, begin behind them (startingOffsets), or let them be marked (other_forms="mark").',
    }
    records = _stream(spark, source, topic, options)
    changes = parse_forms(records, forms.all(topic), newest, stop=stop if other_forms == "stop" else None)
    return newest.schema, changes


def has_new_form(error: BaseException) -> bool:
    """Whether a query of `stream_changes` ended with this error because its table was altered."""
    return NEW_FORM in str(error)


def follow_changes(
    spark: SparkSession,
    source: KafkaSource,
    prefix: str,
    table: str,
    each: Callable[[Changes, int], None],
    *,
    schemas_topic: str | None = None,
    options: Mapping[str, str] | None = None,
    variant: bool = False,
) -> DataStreamWriter:
    """A streaming query that hands over a table's changes batch by batch, and goes on when the table is altered.

    `each` gets the changes of a batch in the newest form that is described when the batch is read, and the number that
    Spark gives to the batch. Set a checkpoint and a trigger on what this function returns, and start it. The query ends
    if `each` raises. Started again with the same checkpoint, it hands over the same records with the same number.

    If a batch has forms that cannot be brought to one (a column of another type, another key), `each` is called once
    for each run of forms that can, one after the other, with the same number of the batch.

    Args:
        prefix: of the pipeline's topics.
        table: `schema.table`.
        each: reads `Changes.changes` before it returns. The records of the batch are kept meanwhile.
        schemas_topic: with the descriptions; None is `<prefix>.schemas`.
        options: of Spark's Kafka source, such as `startingOffsets` and `maxOffsetsPerTrigger`.
        variant: json columns are VARIANT.

    Raises:
        SourceError: no description of the table is known. In the query: none is known of a form that a change has.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer; in the query as well.
        ConfigError: the session is one of Spark Connect.
    """
    check_classic(spark, "follow_changes", "Spark runs its function on the server")
    check_time_zone(spark)
    place = schemas_topic or f"{prefix}.schemas"
    forms = Descriptions(spark, source, TopicStarts(source.librdkafka()), place, variant=variant)
    topic = forms.topic_of(table)

    def hand_over(batch: DataFrame, number: int) -> None:
        batch.persist()
        try:
            forms.refresh()
            for changes in batch_changes(batch, forms, topic, table):
                each(changes, number)
        finally:
            batch.unpersist()

    return _stream(spark, source, topic, options).writeStream.foreachBatch(hand_over)


def _stream(
    spark: SparkSession, source: KafkaSource, topic: str, options: Mapping[str, str] | None
) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .options(**{"startingOffsets": "earliest", **(options or {}), **source.options()})
        .option("subscribe", topic)
        .load()
    )


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
        batch_id: a number for people. The commit has it.

    Raises:
        IncompatibleSchemaError: the target cannot take the form `schema`.
        PositionError: the table was rolled back since this process brought changes in, or it is not known which changes
            it has.
        OvertakenError: others committed to the table at the same time, several times.
        SinkError: something else has made the table.
    """
    given = Given(changes, schema, batch_id=batch_id)
    return Applying(changes.sparkSession, target).apply(given, kind or kind_of(schema))


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
    namespace, name = split_table(table)
    log = target.name_of(TableSchema("", namespace, name, "", ("",), ()), Kind.CHANGELOG)
    schema = form_of(spark, target, log)
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
    place = schemas_topic or f"{prefix}.schemas"
    forms = Descriptions(spark, source, _asking(spark, source), place, variant=variant)
    return forms.topic_of(table), _Forms(forms)


def _asking(spark: SparkSession, source: KafkaSource) -> LooksUpEnds:
    """Return the client that knows where topics end."""
    # A client of Spark Connect may be where no broker can be reached. Only its server reads topics.
    return ReadEnds(spark, source) if is_connect(spark) else TopicStarts(source.librdkafka())


class _Forms:
    """Descriptions as they were read: they are not read on."""

    def __init__(self, descriptions: Descriptions) -> None:
        self._descriptions = descriptions

    def newest(self, topic: str) -> Form:
        return self._descriptions.newest(topic)

    def all(self, topic: str) -> dict[str, Form | None]:
        return self._descriptions.all(topic)

    def find(self, topic: str, ids: list[str]) -> dict[str, Form]:
        found = {schema_id: self._descriptions.get(topic, schema_id) for schema_id in ids}
        return {schema_id: form for schema_id, form in found.items() if form is not None}
