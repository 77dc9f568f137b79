"""Which values of different sections exclude each other.

The rule: what a section can judge alone, its model judges. Here are the rules between sections. They run in this order
after the sections are valid, and the first one that is broken is the error.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cdcd.config.sections.format import CloudEventsConfig
from cdcd.config.sections.registry import REGISTERED
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.routing import collisions, equivalent, may_be_of_a_table, parse_table, table_named
from cdcd.core.records.cloud_events import CLOUDEVENTS

if TYPE_CHECKING:
    from cdcd.config.models import Config


def _topics_apart(config: "Config") -> None:
    topics = config.topics
    others = (topics.message, topics.checkpoint, topics.schemas, *topics.names.values())
    transaction = topics.transaction_topic
    if transaction is not None:
        if equivalent(config.kafka.dead_letter_topic) == equivalent(transaction):
            raise ValueError(
                "kafka.dead_letter_topic must differ from topics.transaction, and the difference must be more "
                "than '.' and '_'"
            )
        if may_be_of_a_table(transaction, topics.prefix):
            raise ValueError(
                f"topics.transaction: {transaction} could be the topic of a table, {topics.prefix}.<schema>."
                "<table>, and the mirror would take its records for rows; choose a name that does not begin so"
            )
    if equivalent(config.kafka.dead_letter_topic) in {equivalent(topic) for topic in others}:
        raise ValueError(
            "kafka.dead_letter_topic must differ from topics.message, topics.checkpoint, topics.schemas and "
            "topics.names, and the difference must be more than '.' and '_'"
        )


def _heartbeat_apart(config: "Config") -> None:
    topics, heartbeat = config.topics, config.heartbeat_topic
    if heartbeat is None:
        return
    others = [topics.message, topics.checkpoint, topics.schemas, config.kafka.dead_letter_topic]
    others += [topics.transaction_topic or "", *topics.names.values()]
    if equivalent(heartbeat) in {equivalent(topic) for topic in others if topic}:
        raise ValueError(
            f"topics.heartbeat: {heartbeat} is already another topic of the pipeline (Kafka does not distinguish "
            f"'.' and '_' in names)"
        )
    if may_be_of_a_table(heartbeat, topics.prefix):
        raise ValueError(
            f"topics.heartbeat: {heartbeat} could be the topic of a table, {topics.prefix}.<schema>.<table>, and "
            "the mirror would take its records for rows; choose a name that does not begin so"
        )


def _watermarks_fit(config: "Config") -> None:
    create = config.topics.create
    policy = str(create.config.get("cleanup.policy", ""))
    if config.heartbeat.watermark_interval_s and create.enabled and "compact" in policy:
        raise ValueError(
            "heartbeat.watermark_interval_s needs topics that are not compacted, because a compacted topic refuses "
            f"records without a key; topics.create.config has cleanup.policy: {policy}"
        )


def _outbox_fits(config: "Config") -> None:
    topics, outbox = config.topics, config.outbox
    own = [topics.message, topics.checkpoint, topics.schemas, config.kafka.dead_letter_topic]
    own += [each for each in (topics.transaction_topic, config.heartbeat_topic) if each is not None]
    taken = {equivalent(topic) for topic in (*own, *topics.names.values())}
    for topic in outbox.topics:
        if equivalent(topic) in taken:
            raise ValueError(f"outbox.topics: {topic} is already another topic of the pipeline")
        if may_be_of_a_table(topic, topics.prefix):
            raise ValueError(
                f"outbox.topics: {topic} could be the topic of a table, {topics.prefix}.<schema>.<table>, and the "
                "mirror would take its events for rows; choose a name that does not begin so"
            )
    has = config.tables.selection.test()
    for table in outbox.tables:
        if not has(table_named(table)):
            raise ValueError(f"outbox.tables: {table} is left out by tables.include or tables.exclude")
    for (schema, name), given in outbox.by_table.items():
        if given.topics_max and may_be_of_a_table(given.topic.replace("{value}", "x"), topics.prefix):
            raise ValueError(
                f"outbox.tables: {schema}.{name}: topics_max: {given.topic} could be the topic of a table, "
                f"{topics.prefix}.<schema>.<table>; choose a topic that does not begin so"
            )
        if given.has_schemas and config.format.value != "avro":
            raise ValueError(
                f"outbox.tables: {schema}.{name}: key_form and payload_form other than text need "
                "format.value: avro"
            )
    if outbox.messages and config.postgres.messages is False:
        raise ValueError("outbox.messages needs another postgres.messages than false")
    if config.context.enabled and config.postgres.messages is False:
        raise ValueError("context.enabled needs another postgres.messages than false")
    if outbox.tables and config.postgres.binary:
        raise ValueError("outbox.tables needs postgres.binary: false, because payloads are delivered as text")


def _rows_are_no_events(config: "Config") -> None:
    patterns = [("filters.tables", text) for text in config.filters.tables]
    patterns += [("partitioner.columns", text) for text in config.partitioner.columns]
    patterns += [("fields.tables", text) for text in config.fields.tables]
    for key, text in patterns:
        pattern = parse_pattern(text, key)
        for table in config.outbox.by_table:
            if pattern.matches(*table):
                raise ValueError(
                    f"{key}: {text} matches {'.'.join(table)}, whose rows are events (outbox.tables); "
                    "narrow the pattern"
                )


def _routes_fit(config: "Config") -> None:
    for text in config.routes.tables:
        pattern = parse_pattern(text, "routes.tables")
        for table in config.outbox.by_table:
            if pattern.matches(*table):
                raise ValueError(
                    f"routes.tables: {text} matches {'.'.join(table)}, whose rows are events (outbox.tables); "
                    "narrow the pattern"
                )
    # Only patterns without * and ? name tables: of the others, the start and `cdcd check` know the tables.
    literal = [text for text in config.routes.tables if parse_pattern(text, "routes.tables").is_literal]
    if literal and (errors := collisions([parse_table(text) for text in literal], config.topic_names())):
        raise ValueError(f"routes.tables: {errors[0].message}")


def _routes_have_a_form(config: "Config") -> None:
    if config.routes.tables and config.format.value == CLOUDEVENTS and config.cloudevents.data == "avro":
        raise ValueError(
            "routes.tables needs another cloudevents.data than avro, because an event names the schema of its data "
            "in the registry, and each topic has schemas of its own there"
        )
    if config.routes.tables and config.partitioner.columns:
        raise ValueError(
            "routes.tables and partitioner.columns cannot be in one pipeline: a row that goes to another topic and "
            "another partition at once has no defined order yet. Use one of them, or two pipelines"
        )


def _nothing_in_clear(config: "Config") -> None:
    if config.record.directory is not None and config.columns.patterns:
        raise ValueError(
            "record.directory: a recording holds all values in clear, also those that columns protects; remove "
            "one of the two"
        )


def _records_all_tables(config: "Config") -> None:
    if config.record.directory is not None and not config.tables.selection.is_all:
        raise ValueError(
            "record.directory: a recording begins again in each of its files, and the files do not say which "
            "tables "
            "are left out; remove tables.include and tables.exclude"
        )


def _records_all_rules(config: "Config") -> None:
    if config.record.directory is not None and (config.topics.rename or config.topics.shared):
        raise ValueError(
            "record.directory: a recording holds no rules with regular expressions; remove topics.rename and "
            "topics.shared, or record.directory"
        )


def _logs_what_it_can(config: "Config") -> None:
    if not config.spool.durable:
        return
    if config.postgres.two_phase:
        raise ValueError(
            "spool.durable needs postgres.two_phase: false, because the log holds committed transactions only"
        )
    if config.postgres.binary:
        raise ValueError(
            "spool.durable needs postgres.binary: false, because cdcd cannot request a value again in text form "
            "after its position was confirmed"
        )
    if config.kafka.delivery != "exactly_once":
        raise ValueError(
            "spool.durable needs kafka.delivery: exactly_once, because only then the checkpoint shows exactly "
            "which part of the log is delivered"
        )
    if config.columns.patterns:
        raise ValueError(
            "spool.durable: the log holds all values in clear, also those that columns protects; remove one of "
            "the two"
        )


def _follows_patterns(config: "Config") -> None:
    changes = config.postgres.publication_changes
    if changes != "never" and config.postgres.tables is None and config.tables.include is None:
        raise ValueError(
            f"postgres.publication_changes: {changes} needs postgres.tables or tables.include, which say which "
            "tables are to be published"
        )


def _hears_of_partitions(config: "Config") -> None:
    if config.snapshot.changed_partitions == "read" and (
        not config.hears_messages or config.snapshot.signals == "off"
    ):
        raise ValueError(
            "snapshot.changed_partitions: read needs snapshot.signals other than off, and postgres.messages other "
            "than false, because tables are read again by requests in the stream"
        )


def _signals_are_heard(config: "Config") -> None:
    signal_topic = config.snapshot.signal_topic
    if signal_topic is None:
        return
    if not config.hears_messages or config.snapshot.signals == "off":
        raise ValueError(
            "snapshot.signal_topic needs snapshot.signals other than off, and postgres.messages other than false"
        )
    names = config.topic_names()
    own = (
        *[topic for topic, _ in names.own()],
        *names.names.values(),
        *[topic for each in names.routes for topic in each.topics],
        config.kafka.dead_letter_topic,
        config.topics.claims,
        *config.outbox.topics,
    )
    if equivalent(signal_topic) in {equivalent(topic) for topic in own}:
        raise ValueError(f"snapshot.signal_topic: {signal_topic} is already another topic of the pipeline")


def _updates_for_snapshots(config: "Config") -> None:
    snapshot = config.snapshot
    reads = snapshot.mode != "never" or config.reads_added or snapshot.signals != "off"
    if reads and "u" in config.topics.skipped_operations:
        raise ValueError(
            "topics.skipped_operations: u needs snapshot.mode: never, snapshot.added_tables: false and "
            "snapshot.signals: off, because an update may have a row that a snapshot misses"
        )


def _flattens_without_metadata(config: "Config") -> None:
    if config.event_flattening.enabled and config.topics.transaction_metadata:
        raise ValueError(
            "event_flattening.enabled needs topics.transaction_metadata: false, because a flattened record does "
            "not contain its place in the transaction"
        )


def _changes_are_told(config: "Config") -> None:
    if not config.format.change_header:
        return
    if config.format.value == CLOUDEVENTS:
        raise ValueError(
            "format.change_header needs another format.value than cloudevents, because `cdcd mirror` does not read "
            "events"
        )
    if not config.topics.schemas:
        raise ValueError(
            "format.change_header needs topics.schemas, because the header names the description of the table"
        )
    flattening = config.event_flattening.settings
    if flattening and not (flattening.rewrites or flattening.has_tombstones(config.topics.tombstones)):
        raise ValueError(
            "format.change_header needs records of deletes: set event_flattening.delete_tombstone_handling_mode to "
            "another value than drop, or topics.tombstones to true"
        )


def _keys_have_a_form(config: "Config") -> None:
    if config.key.forms and config.format.key == "protobuf":
        raise ValueError("key.forms needs another format.key than protobuf, whose keys are messages")
    bare = [pattern for pattern, form in config.key.forms.items() if form.bare]
    if bare and config.format.key in REGISTERED and config.registry.subjects != "topic":
        raise ValueError(
            f"key.forms: {bare[0]}: bare needs registry.subjects: topic, because the schema of a bare key has no "
            "name of its own"
        )
    if config.format.key == "text" and not bare:
        raise ValueError(
            "format.key: text needs key.forms with bare: true, because only bare keys are texts; choose "
            "format.key: json"
        )


def _has_registry(config: "Config") -> None:
    data = config.cloudevents.data if config.format.value == CLOUDEVENTS else config.format.value
    if config.format.key == "avro" and data != "avro":
        raise ValueError(
            "format.key: avro needs format.value: avro, or cloudevents with cloudevents.data: avro"
        )
    for each in ("protobuf", "json_registry"):
        if config.format.key == each != config.format.value:
            raise ValueError(f"format.key: {each} needs format.value: {each}")
    if not config.needs_registry:
        return
    is_event = config.format.value == CLOUDEVENTS
    chosen = "cloudevents.data: avro" if is_event else f"format.value: {config.format.value}"
    config.registry.require(chosen)
    if is_event and config.topics.transaction_metadata:
        raise ValueError("topics.transaction_metadata needs another cloudevents.data than avro")
    if config.record.directory is not None:
        raise ValueError(
            "record.directory: a recording does not hold the ids that a schema registry gave, so it cannot be "
            f"replayed with {chosen}; remove one of the two"
        )


def _events_are_told_apart(config: "Config") -> None:
    if config.format.value != CLOUDEVENTS:
        if config.cloudevents != CloudEventsConfig.model_construct():
            raise ValueError("the keys of cloudevents need format.value: cloudevents")
        return
    if config.cloudevents.data == "avro" and config.registry.subjects == "record":
        raise ValueError(
            "registry.subjects: record needs another cloudevents.data than avro, because the data of all tables "
            "have one name, io.debezium.connector.postgresql.Data; choose topic or topic_record"
        )
    if config.cloudevents.mode == "binary" and config.format.key == "avro":
        raise ValueError(
            "format.key: avro needs cloudevents.mode: structured, because the headers of an event must be text, "
            "and an update of the key has the other key in a header; choose format.key: json"
        )
    if config.topics.transaction_metadata and not config.cloudevents.extension_attributes:
        raise ValueError(
            "topics.transaction_metadata needs cloudevents.extension_attributes: true, because an event names its "
            "transaction in them"
        )


COMBINATIONS: Final[tuple[Callable[["Config"], None], ...]] = (
    _topics_apart,
    _heartbeat_apart,
    _watermarks_fit,
    _outbox_fits,
    _rows_are_no_events,
    _routes_fit,
    _routes_have_a_form,
    _nothing_in_clear,
    _records_all_tables,
    _records_all_rules,
    _logs_what_it_can,
    _follows_patterns,
    _hears_of_partitions,
    _signals_are_heard,
    _updates_for_snapshots,
    _flattens_without_metadata,
    _changes_are_told,
    _keys_have_a_form,
    _has_registry,
    _events_are_told_apart,
)
"""Rules between sections of the configuration. They are checked in this order, and the first broken one is reported."""
