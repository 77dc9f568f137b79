"""What jobs of one's own read of a log and of the tables folded from it: a table as of now, its changes, its history.

The log has the records, and the topic of descriptions in Kafka says how to read them. So a reader needs both.
"""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from cdcd.core.errors import SourceError
from cdcd.mirror.base.formats import base_of
from cdcd.mirror.base.now import LAST, now
from cdcd.mirror.base.part import LogReader, Part, Place
from cdcd.mirror.base.plan import log_begins
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import lineage, positions
from cdcd.mirror.platform.read_ends import ReadEnds
from cdcd.mirror.platform.tables import as_view, exists
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.table_changes import Changes, brought
from cdcd.mirror.session import check_time_zone
from cdcd.mirror.targets import changelog, dimension
from cdcd.mirror.targets.reduction import prepared
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.watching.stops import set_aside_error


@dataclass(frozen=True, slots=True)
class LogTables:
    """Tables of a mirror with `change_log: fold`, as DataFrames. With `change_log: only`, there are no rows of now.

        tables = LogTables(spark, KafkaSource("localhost:9092"), IcebergTarget("lake"), "shop")
        tables.now("public.orders").createOrReplaceTempView("orders_now")

    Each DataFrame reads the versions of the log and of the table that are current when it is made. Make it again to
    read later changes.

    Attributes:
        spark: a session with the format of the tables and Spark's Kafka source. Its time zone is UTC.
        source: where the descriptions of tables are.
        target: where the tables and the log are.
        prefix: of the pipeline's topics.
        schemas_topic: with the descriptions; None is `<prefix>.schemas`.
        log_table: as `target.log_table` in the mirror's configuration.
        variant: json columns are VARIANT, as with `tables.json_as: variant`.
    """

    spark: SparkSession
    source: KafkaSource
    target: Target
    prefix: str
    schemas_topic: str | None = None
    log_table: str = "log"
    variant: bool = False

    def now(self, table: str) -> DataFrame:
        """Return the rows of a table as of the last record of the log, with the columns of the folded table.

        A transaction of the source may be there in part, while the log has only a part of it. Use consistent points
        where that matters.

        Args:
            table: `schema.table`, of the source.

        Raises:
            ConfigError: the session's time zone is not UTC.
            SourceError: the table is not described, or the log has nothing of it, or the daemon has set it aside.
            SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
        """
        place, forms = self.located(table)
        schema = forms.newest(place.topic).schema
        if not schema.key:
            raise SourceError(
                f"{table} has no key, so its rows of now are not known.",
                hint=f"Read its changelog {place.name}, or its changes in the log: LogTables.changes.",
            )
        oid = schema.oid
        if (aside := forms.aside.get(oid or 0)) is not None:
            raise set_aside_error(aside)
        has = positions.read(self.spark, place.log, place.log_version)
        place = replace(
            place,
            log_begins=log_begins(self.spark, place.log, table, place.topic, has),
            began=has.began.get(place.topic),
            former_name=None
            if exists(self.spark, place.name)
            else forms.former_name(forms.newest(place.topic).schema),
        )
        return now(
            self.spark, base_of(self.target.format), place, lambda ids: forms.find(place.topic, list(ids))
        )

    def changes(self, table: str) -> Changes:
        """Return the changes of a table that the log has, all in the newest form, and the records that are no changes.

        Maintenance deletes old changes from the log (`maintenance.log_keep_days`).

        Args:
            table: `schema.table`, of the source.

        Raises:
            ConfigError: the session's time zone is not UTC.
            SourceError: no description of the table is known.
            IncompatibleSchemaError: older changes cannot be brought to the newest form.
        """
        place, forms = self.located(table)
        log = LogReader(self.spark, place, lambda ids: forms.find(place.topic, list(ids)), LAST)
        records = log.records(Part(0))
        ids = [row["form"] for row in records.select("form").distinct().collect() if row["form"] is not None]
        ends = positions.read(self.spark, place.log, place.log_version).ends
        newest = forms.newest(place.topic)
        return brought(records, forms.find(place.topic, ids), newest, ends.get(place.topic, {}))

    def history(self, table: str) -> DataFrame:
        """Return a row for each state that a row of the table had between two commits.

        The columns are those of the table, and those of `scd2`. The history begins where the log begins. A value that
        the source did not send is null if the log lacks the change that set it.

        Args:
            table: `schema.table`, of the source, with a key.

        Raises:
            The errors of `changes`. SourceError: the table has no key.
        """
        found = self.changes(table)
        if not found.schema.key:
            raise SourceError(
                f"{table} has no key, so it is not known which changes are of one row.",
                hint="Read the changes of the table instead: LogTables.changes.",
            )
        rows = changelog.once(changelog.rows(prepared(found.changes), found.schema))
        with as_view(rows) as view:
            return self.spark.sql(dimension.scd2(view, found.schema))

    def located(self, table: str) -> tuple[Place, Descriptions]:
        """Return where a table and the log are, and the forms of the table."""
        check_time_zone(self.spark)
        schemas = self.schemas_topic or f"{self.prefix}.schemas"
        ends = ReadEnds(self.spark, self.source)
        forms = Descriptions(
            self.spark, self.source, ends, schemas, variant=self.variant, mirrored=True, by_header=True
        )
        topic = forms.topic_of(table)
        log = self.target.own_name(self.log_table)
        name = self.target.name_of(forms.newest(topic).schema, Kind.MIRROR)
        version = lineage.read(self.spark, log, self.target.format, lineage.NO_VERSION).current
        return Place(table, topic, name, log, version), forms
