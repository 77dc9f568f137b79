"""The keys of `topics`: what the topics are called and what goes into them."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, field_serializer, model_validator

from cdcd.config.masking import MASK
from cdcd.config.types import (
    FieldName,
    FilePath,
    PropertyValue,
    Section,
    TableName,
    TablePattern,
    Text,
    TopicKey,
    TopicName,
    TopicOrNone,
    TopicTemplate,
)
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import Router, check_expression, check_replacement, compiled
from cdcd.core.catalog.routing import DEFAULT, TopicNames, collisions, equivalent, parse_table
from cdcd.core.catalog.sharing import DEFAULT_KEY_FIELD, SharedTopic
from cdcd.core.table_names import Table

KEY_LENGTH_MIN: Final = 32
"""Characters: a tag can be tried against any number of keys, without asking anybody."""


def _check_key(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < KEY_LENGTH_MIN:
        raise ValueError(
            f"must have at least {KEY_LENGTH_MIN} characters, as `openssl rand -base64 32` prints them"
        )
    return key


class TopicCreationConfig(Section):
    """How missing topics come to be."""

    enabled: bool = Field(
        True,
        description="Whether cdcd creates missing topics. false: a missing topic is an error that names it.",
    )
    partitions: int = Field(
        1,
        ge=1,
        le=100_000,
        description="Partitions of a created topic. All changes of a key go to one of them.",
    )
    replication_factor: int = Field(
        1,
        ge=1,
        le=100,
        description="Replicas of a created topic. 1 loses data with its broker; 3 in production.",
    )
    config: dict[str, PropertyValue] = Field(
        default_factory=dict, description="Configuration of a created topic, in Kafka's own names."
    )


SHARED_PATTERNS_MAX: Final = 1000
"""Patterns of a shared topic. Each of them is compared with each new table."""

RENAMES_MAX: Final = 20
"""Rules of a pipeline. All of them are applied to the topic of each table."""


class RenameConfig(Section):
    """A rule that renames topics."""

    regex: Text = Field(
        description="Regular expression that the whole topic must match, in Java's language, as far as Python reads it "
        "the same way. At most 4 repetitions (*, +, {}), and none inside of another one."
    )
    replacement: Text = Field(
        description="Replacement of the first place that the expression finds. $1 is the first group, ${name} a named "
        "one."
    )

    @model_validator(mode="after")
    def _readable(self) -> "RenameConfig":
        check_expression(self.regex)
        check_replacement(self.replacement, self.regex)
        return self


class SharedTopicConfig(Section):
    """A topic for several tables."""

    tables: list[TablePattern] = Field(
        min_length=1,
        max_length=SHARED_PATTERNS_MAX,
        description="Patterns <schema>.<table> of the tables whose records go to the topic, in place of the topic that "
        "name and rename would give them. An entry in names has precedence. The owner of a schema can bring further "
        "tables into the topic by names that a pattern matches, so write patterns without * where owners are not "
        "trusted.",
    )
    key_field: FieldName | None = Field(
        DEFAULT_KEY_FIELD,
        description="Field that is added to each key, so that rows of two tables never have the same key. The name is "
        "that of Debezium's ByLogicalTableRouter. null: keys get no field. Without constants in key.forms, cdcd then "
        "refuses a compacted topic, because compaction would remove rows of one table for those of another.",
    )
    key_regex: Text | None = Field(
        None,
        description="Regular expression for the value of key_field, in the dialect of rename. The value is the topic "
        "that the table would have alone, such as shop.public.orders_eu. If the whole topic matches, key_replacement "
        "takes the place of the first match. Two tables must not get the same value.",
    )
    key_replacement: Text | None = Field(None, description="Replacement for key_regex.")

    @model_validator(mode="after")
    def _readable(self) -> "SharedTopicConfig":
        if (self.key_regex is None) != (self.key_replacement is None):
            raise ValueError("key_regex and key_replacement belong together")
        if self.key_regex is not None and self.key_replacement is not None:
            check_expression(self.key_regex)
            check_replacement(self.key_replacement, self.key_regex)
        return self

    @property
    def key_value(self) -> Router | None:
        """`key_regex` and `key_replacement` for the core."""
        if self.key_regex is None or self.key_replacement is None:
            return None
        return Router(compiled(self.key_regex), self.key_replacement)


class TopicsConfig(Section):
    """Names and contents of topics."""

    prefix: TopicName = Field(
        description="Prefix of the names of topics, and value of `source.name` in records.",
        json_schema_extra={"default_from": "{name}"},
    )
    name: TopicTemplate = Field(
        DEFAULT,
        description="Topic of a table, with {prefix}, {schema} and {table}, such as {schema}.{table}. Two tables with "
        "one topic are refused, at the start and by `cdcd check`. A topic that does not begin with {prefix}. is "
        "claimed (see claims). Choose it before the first start, because records in topics of other names stay there.",
    )
    rename: list[RenameConfig] = Field(
        default_factory=list,
        max_length=RENAMES_MAX,
        description="Rules that rename the topic that name gives a table, in their order, each applied to the result "
        "of the rule before it. They are the options of Kafka Connect's RegexRouter. Topics in names are not renamed.",
    )
    claims: TopicName = Field(
        "cdcd.claims",
        description="Compacted topic in which the pipelines of a Kafka cluster claim topics, so that two of them never "
        "write to one topic. All pipelines of a cluster need the same name here. A pipeline claims each topic of a "
        "table that does not begin with the prefix; without such a topic, it writes no claim (docs/topics.md).",
    )
    names: dict[TableName, TopicName] = Field(
        default_factory=dict,
        description="Topics of single tables: <schema>.<table> to topic, with a part that holds a point in double "
        "quotes. For tables whose topics would be too long, or one to Kafka: characters that it does not allow become "
        "_, and names that differ only in . and _ are the same. A topic that does not begin with <prefix>. is claimed "
        "(see claims). A table that has records in one topic begins again in another.",
    )
    shared: dict[TopicKey, SharedTopicConfig] = Field(
        default_factory=dict,
        description="Topics that several tables share (docs/topics.md): topic to the patterns of its tables. `cdcd "
        "mirror` and `cdcd verify` leave such tables out, by name.",
    )
    create: TopicCreationConfig = Field(description="Creation of missing topics.")
    on_added_partitions: Literal["warn", "stop"] = Field(
        "warn",
        description="Reaction if somebody adds partitions to a topic while cdcd runs. Kafka's producers then send "
        "most keys to other partitions, so the records of one row are in two partitions, without an order between "
        "them. warn: cdcd logs the event topic.partitions. stop: cdcd also ends with exit code 4; the next start "
        "continues.",
    )
    truncate: bool = Field(
        True, description="Whether TRUNCATE is written to the topic of each table, as op t."
    )
    skipped_operations: list[Literal["c", "u", "d", "t"]] = Field(
        default_factory=list,
        description="Operations that have no records: c (insert), u (update), d (delete), t (truncate). An update "
        "that changes the key counts as d and c. Skipped operations do not affect LSNs and the checkpoint. Without c, "
        "u or d, the "
        "topics do not have all changes of the tables, so `cdcd mirror` and `cdcd verify` refuse them. u needs "
        "snapshot.mode: never, snapshot.added_tables: false and snapshot.signals: off, because a snapshot may miss a "
        "row that only an update has. Needs format.value: json or json_schema.",
    )
    tombstones: bool = Field(
        True,
        description="Whether a delete is followed by a record without a value, which compaction needs to remove the "
        "key.",
    )
    transaction_metadata: bool = Field(
        False,
        description="Debezium's provide.transaction.metadata: each record of a change has its transaction and its "
        "number in it (field transaction), and topics.transaction has a BEGIN and an END record for each transaction, "
        "with counts. Needs format.value: json or json_schema.",
    )
    transaction: TopicName = Field(
        description="Topic for BEGIN and END of transactions, with transaction_metadata: true.",
        json_schema_extra={"default_from": "{prefix}.transaction"},
    )
    heartbeat: TopicName = Field(
        description="Topic for heartbeats, with heartbeat.interval_s. The name is Debezium's.",
        json_schema_extra={"default_from": "__debezium-heartbeat.{prefix}"},
    )
    message: TopicName = Field(
        description="Topic for logical decoding messages.",
        json_schema_extra={"default_from": "{prefix}.message"},
    )
    checkpoint: TopicName = Field(
        description="Compacted topic for the position up to which everything is delivered. If you delete this topic, "
        "the position is lost. Two pipelines must not share it.",
        json_schema_extra={"default_from": "{prefix}.checkpoint"},
    )
    checkpoint_key: Annotated[SecretStr, AfterValidator(_check_key)] | None = Field(
        None,
        description="Secret text of at least 32 characters, with which each checkpoint gets a tag (HMAC-SHA-256). "
        "Records that somebody else writes to the topic are then ignored, and requests with a condition survive a "
        "restart. "
        "Without it, cdcd derives the key from columns.hash_key or columns.encryption_key, if there is one. All "
        "instances of "
        "the pipeline, and the commands, need the same key.",
    )
    checkpoint_key_file: FilePath | None = Field(
        None, description="File that holds checkpoint_key, instead of checkpoint_key."
    )
    schemas: TopicOrNone = Field(
        description="Compacted topic for the descriptions of tables, which `cdcd mirror` needs: the types of columns, "
        "and renamed columns. false: no descriptions, and no source.schema_id in records.",
        json_schema_extra={"default_from": "{prefix}.schemas"},
    )

    @field_serializer("checkpoint_key")
    def _show_key(self, key: SecretStr | None) -> str | None:
        return None if key is None else MASK

    @model_validator(mode="after")
    def _distinct(self) -> "TopicsConfig":
        own = (self.message, self.checkpoint, self.schemas)
        if len({equivalent(topic) for topic in own}) < len(own):
            raise ValueError(
                "message, checkpoint and schemas must be three topics, and their names must differ in more than '.' "
                "and '_'"
            )
        if self.transaction_metadata and equivalent(self.transaction) in {equivalent(topic) for topic in own}:
            raise ValueError(
                "transaction must differ from message, checkpoint and schemas, and the difference must be more than "
                "'.' and '_'"
            )
        if len(self.by_table) < len(self.names):
            raise ValueError("names must have each table once")
        names = TopicNames(
            self.prefix,
            self.by_table,
            self.message,
            self.schemas or None,
            self.checkpoint,
            transaction=self.transaction_topic,
            template=self.name,
            claims=self.claims,
            shared=self.shared_topics,
        )
        if errors := collisions((), names):
            raise ValueError(f"shared: {errors[0].message}")
        if errors := collisions(self.by_table, names):
            raise ValueError(f"names: {errors[0].message}")
        return self

    @property
    def renames(self) -> tuple[Router, ...]:
        """`rename` for the core."""
        return tuple([Router(compiled(each.regex), each.replacement) for each in self.rename])

    @property
    def shared_topics(self) -> tuple[SharedTopic, ...]:
        """`shared` for the core."""
        return tuple(
            [
                SharedTopic(
                    topic,
                    tuple([parse_pattern(text, "topics.shared") for text in each.tables]),
                    each.key_field or "",
                    each.key_value,
                )
                for topic, each in self.shared.items()
            ]
        )

    @property
    def writes_truncates(self) -> bool:
        """Whether TRUNCATE has records."""
        return self.truncate and "t" not in self.skipped_operations

    @property
    def transaction_topic(self) -> str | None:
        """The topic for BEGIN and END of transactions; None: they have no records."""
        return self.transaction if self.transaction_metadata else None

    @property
    def by_table(self) -> dict[Table, str]:
        """`names` by schema and name."""
        return {parse_table(table): topic for table, topic in self.names.items()}
