"""Every key of a mirror's configuration (`cdcd mirror`), described here and nowhere else.

`config/mirror/reference.yaml` is made from it. A file is read as the daemon's is: strictly, with `${NAME}` filled in
and every problem named at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdcd.config.defaults import with_derived_defaults
from cdcd.config.java_client import librdkafka_properties
from cdcd.config.loading import read_file, validated
from cdcd.config.reference import reference_yaml
from cdcd.config.sections.process import ListenConfig, LogConfig
from cdcd.config.sources import read_secret, read_secret_files, read_yaml
from cdcd.config.types import (
    GIB,
    KIB,
    MIB,
    FilePath,
    Name,
    Properties,
    PropertyName,
    PropertyValue,
    Section,
    Servers,
    TablePattern,
    TablePatterns,
    Text,
    TopicName,
)
from cdcd.core.errors import ConfigError

START: Final = "`cdcd config --examples DIR` writes config/mirror/reference.yaml, a file to start from."
HINT: Final = "`cdcd mirror --reference` shows every key with its default and meaning."

HEAD: Final = """\
Every key of a mirror's configuration with its default. Made from the models by `cdcd mirror --reference`.

In the file, ${NAME} and ${NAME:-default} are filled in from the environment; $${ stands for ${."""


def _revealed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties with their secrets."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in properties.items()
    }


class SourceConfig(Section):
    """Where the changes are."""

    bootstrap_servers: Servers = Field(
        description="Brokers to begin with, as host:port with commas between.",
        json_schema_extra={"example": "localhost:9092"},
    )
    properties: Properties = Field(
        default_factory=dict,
        description="Names of Kafka's Java client, passed through: security.protocol, sasl.jaas.config and so on. The "
        "mirror refuses properties that would break its guarantees: it always reads topics with read_committed.",
    )
    properties_files: dict[PropertyName, FilePath] = Field(
        default_factory=dict,
        description="Property name to file that holds its value, for secrets such as sasl.jaas.config.",
    )

    client_properties: Properties = Field(
        default_factory=dict,
        description="Properties of librdkafka, the client that looks at topics, in its own names. If no property is a "
        "login (security.protocol, sasl.*, ssl.*), the client gets the login of `properties`: PLAIN or SCRAM in "
        "sasl.jaas.config, and certificates in PEM. Another login must be given here too.",
    )

    def librdkafka(self) -> dict[str, Any]:
        """The properties of the client that looks at topics. Holds secrets: never to be printed.

        ConfigError: the login of `properties` cannot be given to librdkafka, and `client_properties` has none.
        """
        return librdkafka_properties(self.bootstrap_servers, self.java_client(), self.own_client())

    def own_client(self) -> dict[str, Any]:
        """The properties that are given in librdkafka's names. Holds secrets: never to be printed."""
        return _revealed(self.client_properties)

    def java_client(self) -> dict[str, str]:
        """The properties. Holds secrets: never to be printed."""
        given = _revealed(self.properties)
        for name, file in self.properties_files.items():
            given[name], wrong = read_secret(str(file))
            if wrong:
                raise ConfigError(f"kafka.properties_files.{name}: {wrong}", hint=HINT)
        return given


class PipelineTopics(Section):
    """The topics of the pipeline, as the daemon's configuration has them under the same names."""

    prefix: TopicName = Field(
        description="Beginning of the names of the pipeline's topics.",
        json_schema_extra={"default_from": "{name}"},
    )
    schemas: TopicName = Field(
        description="Topic with the descriptions of tables.",
        json_schema_extra={"default_from": "{prefix}.schemas"},
    )
    checkpoint: TopicName = Field(
        description="Topic with the daemon's checkpoints, which give the ends of consistent batches.",
        json_schema_extra={"default_from": "{prefix}.checkpoint"},
    )
    message: TopicName = Field(
        description="Topic for logical decoding messages, which are not mirrored.",
        json_schema_extra={"default_from": "{prefix}.message"},
    )
    dead_letter: TopicName = Field(
        description="Topic for oversized records, which are not mirrored.",
        json_schema_extra={"default_from": "{prefix}.dead_letter"},
    )


class TargetConfig(Section):
    """Where the tables are kept."""

    format: Literal["iceberg", "delta"] = Field("iceberg", description="Format of the tables.")
    location: Text | None = Field(
        None,
        description="Folder or bucket below which the tables are, as a path or URL that Spark can reach. null: they "
        "are in the catalog, which spark.* configures.",
        json_schema_extra={"example": "/var/lib/cdcd/lake"},
    )
    catalog: Text = Field(
        "lake",
        description="Name of the catalog in Spark. With a location, Iceberg's tables get one of this name there; "
        "Delta's tables with a location are in none.",
    )
    namespace: Text | None = Field(
        None,
        description="Namespace of all tables, whose names are then <schema>_<table>. null: the source's schema.",
    )
    properties: dict[str, PropertyValue] = Field(
        default_factory=dict,
        description="Properties of the tables and of the log when they are created, in the format's own names.",
    )
    log_table: Text = Field(
        "log",
        description="Name of the log's table, in the namespace `cdcd` or in `namespace`. Each mirror "
        "needs a log of its own.",
    )
    stream_checkpoint: Text | None = Field(
        None,
        description="Folder or bucket for the stream's own position, for this mirror alone. null: "
        "<location>/_cdcd/<name>. Losing it costs time, and nothing else: each table knows what it has.",
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> "TargetConfig":
        if self.location is None and self.stream_checkpoint is None:
            raise ValueError(
                "without a location, stream_checkpoint must say where the stream's position is kept"
            )
        return self


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("must be a power of two: 1, 2, 4, 8, …")
    return number


Buckets = Annotated[int, Field(ge=1, le=4096), AfterValidator(_power_of_two)]


class TablesConfig(Section):
    """Choice of tables, and their form."""

    include: TablePatterns | None = Field(
        None,
        description="Tables to mirror: <schema>.<table> with * for any characters and ? for one; a part in double "
        "quotes is taken literally. null: all.",
    )
    exclude: TablePatterns | None = Field(None, description="Patterns of tables that are left out.")
    history: TablePatterns | None = Field(
        None,
        description="Tables that get a changelog beside the mirror: a table with one row for each change.",
    )
    scd2: TablePatterns | None = Field(
        None,
        description="Tables that get a table <table>_scd2 too: a row for each state that a row had, with the times at "
        "which the state began and ended.",
    )
    json_as: Literal["string", "variant"] = Field(
        "string",
        description="Type of columns json and jsonb. With variant, Iceberg tables that have one are of format 3.",
    )

    on_incompatible: Literal["reload", "stop"] | None = Field(
        None,
        description="Treatment of a table that changes so that its target cannot follow (another type or key). "
        "reload: it is read again from the database, and replaces its target in one commit. stop: it stops, and the "
        "others go on. null: reload where `source` or --source is given, else stop.",
    )
    on_incompatible_for: dict[TablePattern, Literal["reload", "stop"]] = Field(
        default_factory=dict,
        description="The same for some tables: pattern to reload or stop. The first matching pattern applies.",
    )
    buckets: Buckets | None = Field(
        None,
        description="Number of buckets into which the rows of a new mirror are divided by a hash of the key, a power "
        "of two. 1: the table has no buckets. A batch reads and writes only the buckets of its keys. null: about "
        "one for each file of "
        "maintenance.target_file_bytes where the size of the table is known (--snapshot, --relayout), else 1. An "
        "existing table keeps its number until `cdcd mirror --relayout`.",
    )
    buckets_for: dict[TablePattern, Buckets] = Field(
        default_factory=dict,
        description="The same for some tables: pattern to number. The first matching pattern applies.",
    )
    partition_by: dict[TablePattern, list[Text]] = Field(
        default_factory=dict,
        description="Partition fields of new mirrors: pattern to fields. A "
        "field is a column, or a transform of a column: years(c), months(c), days(c), hours(c), bucket(16, c), "
        "truncate(4, c). The first matching pattern applies. An existing table keeps its fields until `cdcd mirror "
        "--relayout`.",
    )
    deletes: Literal["remove", "mark"] = Field(
        "remove",
        description="Treatment of a mirror's row that the source deletes. remove: the row is removed. mark: the row "
        "stays with its last values, and its column _cdcd_deleted is true (false in all other rows). Truncates and "
        "changes of the key "
        "are deletes too. A mirror that was created with the other value stops until `cdcd mirror --relayout`, or "
        "until the SQL statements of the hint were run.",
    )
    deletes_for: dict[TablePattern, Literal["remove", "mark"]] = Field(
        default_factory=dict,
        description="The same for some tables: pattern to remove or mark. The first matching pattern applies.",
    )


class BatchesConfig(Section):
    """Size and interval of batches."""

    interval_s: float = Field(
        60,
        ge=0,
        le=86_400,
        description="Least time from one batch to the next, in seconds. It determines the delay of the mirror, and "
        "the number of versions and small files of its tables. Below 30, the metadata of a table that changes all the "
        "time grows too large "
        "within days.",
    )
    fold_interval_s: float = Field(
        300,
        ge=0,
        le=86_400,
        description="Longest time for which changes of a table wait in the log until a batch "
        "folds them, in seconds. 0: each batch folds all tables that have changed. With `consistent` and with --once, "
        "changes do not wait.",
    )
    fold_changes: int = Field(
        10_000,
        ge=1,
        le=1_000_000_000,
        description="Number of waiting changes of a table at which the next batch folds the "
        "table, even if fold_interval_s has not passed.",
    )
    fold_tables_min: int = Field(
        10,
        ge=0,
        le=10_000,
        description="Minimum number of tables that a batch folds, if so many tables have changes. So the changes of a "
        "few tables do not wait for fold_interval_s. The table that was folded longest ago comes first. 0: a batch "
        "folds only tables whose changes have waited.",
    )
    records_max: int = Field(
        500_000,
        ge=1000,
        le=1_000_000_000,
        description="Without --once, maximum number of records that one batch appends to the log. A larger number "
        "costs less CPU for each record, and takes more memory.",
    )
    threads: int = Field(2, ge=1, le=64, description="Number of tables that are processed at the same time.")
    consistent: bool = Field(
        False,
        description="Whether all tables move together from one commit LSN to the next, so that joins are consistent.",
    )
    tag_interval_s: float | None = Field(
        None,
        ge=0,
        le=31_536_000,
        description="With consistent, in Iceberg: least time from one common LSN at which each table gets a tag "
        "(lsn-0-16B3748) to the next, in seconds. 0: each common LSN. null: none. A tag is one more commit of "
        "metadata in each table, also in tables without changes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_former_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and "driver_writes" in data:
            raise ValueError(
                "driver_writes has no effect any more, because Spark writes all files of a mirror. Remove the key"
            )
        return data


class MaintenanceConfig(Section):
    """Small files and former versions."""

    interval_s: Annotated[float, Field(ge=1, le=2_592_000)] | None = Field(
        600,
        description="Interval of maintenance (small files, former versions), in seconds. null: the mirror does no "
        "maintenance.",
    )
    keep_s: int = Field(86_400, ge=0, le=315_360_000, description="How long former versions can be read.")
    keep_versions: int = Field(
        10, ge=1, le=1_000_000, description="Number of former versions that are kept whatever their age."
    )
    versions_max: Annotated[int, Field(ge=10, le=1_000_000)] | None = Field(
        500,
        description="Number of former versions above which the oldest go whatever their age, in Iceberg, whose "
        "metadata grows with each version. Versions that a consistent point names stay. null: no limit.",
    )
    small_files_min: int = Field(
        8, ge=2, le=100_000, description="Number of small files at which maintenance joins them."
    )
    target_file_bytes: int = Field(
        128 * MIB, ge=64 * KIB, le=16 * GIB, description="Size of files after maintenance, in bytes."
    )
    log_keep_days: int = Field(
        7,
        ge=1,
        le=36_500,
        description="Number of days after which a record is deleted from the log, counted from the "
        "day on which it was appended.",
    )
    log_held_days: int = Field(
        30,
        ge=1,
        le=36_500,
        description="Number of days for which the log keeps a record that a stopped table needs. "
        "After that, the table must be read again.",
    )


class MirrorHttpConfig(ListenConfig):
    """/metrics and /healthz."""

    enabled: bool = Field(True, description="Whether the HTTP server runs; with --once it never does.")
    port: int = Field(
        9465, ge=0, le=65535, description="Port to listen on. 0: any free one, which is printed."
    )


class MirrorLogConfig(LogConfig):
    """The log of the mirror, on standard output."""

    format: Literal["json", "console"] = Field(
        "console",
        description="json: one object per line, with the events of docs/events.md; console: lines for people.",
    )


class MirrorConfig(Section):
    """One mirror: the topics of one pipeline to tables in one place."""

    name: Name = Field(
        description="Name of the mirror; the pipeline's, unless topics.prefix says otherwise.",
        json_schema_extra={"example": "shop"},
    )
    source: FilePath | None = Field(
        None,
        description="File with the configuration of the daemon, which has the address of the database. The mirror "
        "needs it to read tables again. The option --source sets the same.",
    )
    kafka: SourceConfig = Field(description="Where the changes are.")
    topics: PipelineTopics = Field(
        description="The topics of the pipeline, as the daemon's configuration has them under the same names."
    )
    target: TargetConfig = Field(description="Where the tables are kept.")
    change_log: Literal["fold", "only"] = Field(
        "fold",
        description="fold: all records of the pipeline's topics are appended to one table, the log, and tables are "
        "folded from the log. only: the log without tables.",
    )
    tables: TablesConfig = Field(description="Choice of tables, and their form.")
    batches: BatchesConfig = Field(description="Size and interval of batches.")
    maintenance: MaintenanceConfig = Field(description="Small files and former versions.")
    http: MirrorHttpConfig = Field(description="/metrics and /healthz, which fails while a table is stopped.")
    log: MirrorLogConfig = Field(
        description="The log of the mirror, on standard output. Lines of Spark and Java go to standard error."
    )
    spark: dict[str, PropertyValue] = Field(
        default_factory=dict,
        description="Settings of Spark, such as spark.driver.memory and spark.sql.catalog.*. They override cdcd's "
        "settings.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_without_log(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("change_log") == "none":
            raise ValueError(
                "change_log: none is gone, because this version keeps tables by folds from a log. Remove the line: the "
                "mirror then takes its tables over without reading them again"
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        return with_derived_defaults(cls, data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _can_have_tags(self) -> "MirrorConfig":
        if self.batches.tag_interval_s is not None and self.target.format != "iceberg":
            raise ValueError(
                "batches.tag_interval_s is for Iceberg: Delta has no tags. The column `versions` of cdcd.consistent has"
                " the version of each table"
            )
        return self

    def stream_checkpoint(self) -> str:
        """Where the stream's own position is kept."""
        given = self.target.stream_checkpoint
        return given or f"{str(self.target.location).rstrip('/')}/_cdcd/{self.name}"


def load_mirror(path: str | Path, environ: Mapping[str, str]) -> MirrorConfig:
    """The configuration in the file at `path`.

    Raises:
        ConfigError: names every problem.
    """
    return parse_mirror(read_file(path, START, HINT), environ, str(path))


def parse_mirror(text: str, environ: Mapping[str, str], file: str = "configuration") -> MirrorConfig:
    """Like `load_mirror`, from text; `file` is what errors call it."""
    layers = read_yaml(text, environ, file, MirrorConfig)
    if "postgres" in layers.data and "target" not in layers.data:
        raise ConfigError(
            f"{file} is the configuration of a pipeline, not of a mirror: it has `postgres` and no `target`.",
            hint="Give `cdcd mirror --config` the mirror's own file. Its key source names the pipeline's file. "
            + START,
        )
    read_secret_files(layers)
    return validated(layers, MirrorConfig, file, HINT)


def mirror_reference() -> str:
    """`config/mirror/reference.yaml`: a file that loads, with a comment above every key."""
    return reference_yaml(MirrorConfig, HEAD)
