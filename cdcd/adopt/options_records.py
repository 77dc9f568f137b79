"""Options of Debezium's PostgreSQL connector about records: their form, their topics, their headers.

The names and defaults are those of Debezium 3.7.0 and of its manual. A mode that cdcd learns is one changed row here.
"""

from typing import Final

from cdcd.adopt.verdicts import (
    Option,
    boolean,
    by_value,
    differs,
    if_given,
    impossible,
    irrelevant,
    lacks,
    only,
    same,
    to,
)

_NAMES: Final = (
    "cdcd names topics <prefix>.<schema>.<table>. topics.names gives single tables another name below "
    "the prefix."
)
_SCHEMA: Final = "cdcd's schemas (format: json_schema) do not have these parameters."
_MASK: Final = (
    "Write the columns into `columns` of cdcd.yaml (hash, mask, truncate; docs/columns.md), and accept this option. "
    "Hashes differ from Debezium's. Do not take over before that: cdcd would deliver the whole values."
)

FORM: Final = (
    Option(
        "decimal.handling.mode",
        "precise",
        by_value(
            {
                "string": same("Numbers are text, such as 12.50."),
                "precise": differs(
                    "numeric and money: text (12.50) instead of the bytes of an integer in base64."
                ),
                "double": differs("numeric and money: text (12.50) instead of a number (12.5)."),
            }
        ),
    ),
    Option("money.fraction.digits", "2", irrelevant("cdcd delivers money as its text with all digits.")),
    Option(
        "time.precision.mode",
        "adaptive",
        by_value(
            {
                "adaptive": same("Times by the precision of their column."),
                "adaptive_time_microseconds": differs(
                    "time(0) to time(3): milliseconds instead of microseconds. All others are the same."
                ),
                "connect": differs(
                    "time and timestamp by the precision of their column (micro- or milliseconds) instead of "
                    "milliseconds always."
                ),
                "isostring": differs("date, time and timestamp: numbers instead of text in ISO 8601."),
                "microseconds": differs(
                    "time(0) to time(3), timestamp(0) to timestamp(3): milliseconds instead of microseconds."
                ),
                "nanoseconds": differs(
                    "date, time and timestamp: days, micro- or milliseconds instead of nanoseconds."
                ),
                "structured": differs("date, time and timestamp: numbers instead of objects."),
            }
        ),
    ),
    Option(
        "interval.handling.mode",
        "numeric",
        by_value(
            {
                "string": same("Intervals are text in ISO 8601."),
                "numeric": differs("interval: text (P1Y2M3DT4H5M6.7S) instead of microseconds."),
            }
        ),
    ),
    Option(
        "binary.handling.mode",
        "bytes",
        by_value(
            {
                "bytes": same("bytea is base64."),
                "base64": same("bytea is base64."),
                "base64-url-safe": differs("bytea: base64 with + and / instead of - and _."),
                "hex": differs("bytea: base64 instead of hexadecimal digits."),
            }
        ),
    ),
    Option(
        "hstore.handling.mode",
        "json",
        by_value(
            {
                "json": same("hstore is JSON in a text."),
                "map": differs("hstore: JSON in a text instead of an object."),
            }
        ),
    ),
    Option(
        "include.unknown.datatypes",
        "false",
        by_value(
            {
                "true": differs(
                    "Composite types, pg_lsn, xid and tsquery: text instead of base64 of the text."
                ),
                "false": differs(
                    "Columns of composite types, pg_lsn, xid and tsquery are there, as text. Debezium leaves them "
                    "out."
                ),
            }
        ),
    ),
    Option(
        "unavailable.value.placeholder",
        "__debezium_unavailable_value",
        only(
            "__debezium_unavailable_value",
            "Unchanged TOAST has this placeholder.",
            differs(
                "Unchanged TOAST: __debezium_unavailable_value instead of your text; the header cdcd.unchanged "
                "names the columns."
            ),
        ),
    ),
    Option(
        "converters", None, impossible("cdcd loads no Java classes: let the consumers convert the values.")
    ),
    Option(
        "post.processors",
        None,
        impossible(
            "cdcd fetches no values again: REPLICA IDENTITY FULL has unchanged TOAST values in the WAL."
        ),
    ),
    Option("column.mask.hash.<algorithm>.with.salt.<salt>", None, impossible(_MASK), is_secret=True),
    Option("column.mask.hash.v2.<algorithm>.with.salt.<salt>", None, impossible(_MASK), is_secret=True),
    Option("column.mask.with.<length>.chars", None, impossible(_MASK)),
    Option("column.truncate.to.<length>.chars", None, impossible(_MASK)),
    Option(
        "column.propagate.source.type",
        None,
        if_given(differs(_SCHEMA + " The topic of topics.schemas describes all columns.")),
    ),
    Option(
        "datatype.propagate.source.type",
        None,
        if_given(differs(_SCHEMA + " The topic of topics.schemas describes all columns.")),
    ),
    Option("include.schema.comments", "false", irrelevant(_SCHEMA)),
    Option("schema.name.adjustment.mode", "none", irrelevant(_SCHEMA)),
    Option(
        "field.name.adjustment.mode",
        "none",
        only(
            "none",
            "Fields have the names of the columns.",
            differs(
                "Fields have the names of the columns, also those with characters that Avro does not take."
            ),
        ),
    ),
    Option(
        "sourceinfo.struct.maker",
        "io.debezium.connector.postgresql.PostgresSourceInfoStructMaker",
        only(
            "io.debezium.connector.postgresql.postgressourceinfostructmaker",
            "`source` is Debezium's own, with additions.",
            lacks("cdcd loads no Java classes: `source` is Debezium's own, with additions."),
        ),
    ),
    Option(
        "extended.headers.enabled",
        "true",
        by_value(
            {
                "true": differs("The headers __debezium.context.* are not there."),
                "false": same("There are no headers __debezium.context.*."),
            }
        ),
    ),
    Option(
        "provide.transaction.metadata",
        "false",
        by_value(
            {
                "false": same("`transaction` is null."),
                "true": lacks(
                    "There is no topic of transactions, and `transaction` is null. source.commit_lsn is the same "
                    "for all events of a transaction, and a read_committed reader sees it as a whole."
                ),
            }
        ),
    ),
    Option("transaction.metadata.factory", None, irrelevant("It belongs to provide.transaction.metadata.")),
    Option(
        "message.key.columns",
        None,
        impossible("Keys are the columns of the primary key, or of REPLICA IDENTITY USING INDEX."),
    ),
    Option("tombstones.on.delete", "true", to("topics.tombstones", boolean)),
    Option(
        "skipped.operations",
        "t",
        by_value(
            {
                "none": same("topics.truncate: true.", topics__truncate=True),
                "": same("topics.truncate: true.", topics__truncate=True),
                "t": same("topics.truncate: false.", topics__truncate=False),
            },
            lacks(
                "Let the publication leave operations out: ALTER PUBLICATION ... SET (publish = 'insert, update');"
            ),
        ),
    ),
)

TOPICS: Final = (
    Option("topic.prefix", None, to("topics.prefix")),
    Option("database.server.name", None, to("topics.prefix")),
    Option(
        "topic.naming.strategy",
        "io.debezium.schema.SchemaTopicNamingStrategy",
        only(
            "io.debezium.schema.schematopicnamingstrategy",
            "Topics are <prefix>.<schema>.<table>.",
            lacks(_NAMES),
        ),
    ),
    Option("topic.delimiter", ".", only(".", "Topics are <prefix>.<schema>.<table>.", lacks(_NAMES))),
    Option("topic.cache.size", "10000", irrelevant("It is about the memory of the Java process.")),
    Option("topic.heartbeat.prefix", "__debezium-heartbeat", irrelevant("cdcd writes no heartbeat records.")),
    Option("topic.heartbeat.name", None, irrelevant("cdcd writes no heartbeat records.")),
    Option("topic.transaction", "transaction", irrelevant("It belongs to provide.transaction.metadata.")),
    Option("topic.regex", None, impossible(_NAMES)),
    Option("topic.replacement", None, impossible(_NAMES)),
    Option("topic.key.*", None, impossible("cdcd adds no field to keys: each table has a topic of its own.")),
)
