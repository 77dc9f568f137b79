"""Options of Debezium's PostgreSQL connector about records: their form, their topics, their headers.

The names and defaults are those of Debezium 3.7.0 and of its manual. A mode that cdcd learns is one changed row here.
"""

from typing import Final

from cdcd.tools.adopt.keys import key_columns
from cdcd.tools.adopt.options_heartbeat import HEARTBEAT_TOPIC
from cdcd.tools.adopt.verdicts import (
    Kind,
    Option,
    Verdict,
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
    "cdcd names topics <prefix>.<schema>.<table>. topics.name is another template below the prefix, and topics.names "
    "gives single tables a name of their own."
)
_SCHEMA: Final = "cdcd's schemas (format: json_schema) do not have these parameters."
_HASH: Final = (
    "Write the columns into columns.hash of cdcd.yaml (docs/columns.md), and accept this option. Hashes differ from "
    "Debezium's. Do not take over before that: cdcd would deliver the whole values."
)
_MASK: Final = (
    "columns.mask. NULL stays null. Columns of a key, and those that are no text, are impossible: which these are, "
    "the database says."
)
_TRUNCATE: Final = (
    "columns.truncate. Columns of a key, and those that are no text, are impossible: which these are, the database "
    "says."
)

_OPERATIONS: Final = ("c", "u", "d", "t")


def skipped_operations(value: str) -> Verdict:
    """Of the operations that have no records. ValueError: there is no such operation."""
    chosen = {each.strip().lower() for each in value.split(",")} - {"", "none"}
    if chosen - set(_OPERATIONS):
        raise ValueError("must be none, or some of c, u, d and t")
    rows = [each for each in _OPERATIONS if each in chosen and each != "t"]
    keys: dict[str, object] = {"topics.truncate": "t" not in chosen}
    said = f"topics.truncate: {str('t' not in chosen).lower()}."
    if not rows:
        return Verdict(Kind.SAME, said, keys)
    keys["topics.skipped_operations"] = rows
    if "u" in rows:
        # Also in the snapshots that a message asks for.
        keys["snapshot.signals"] = "off"
        said += " snapshot.signals is off, because a snapshot may need the updates."
    return Verdict(Kind.SAME, f"topics.skipped_operations: {', '.join(rows)}; {said}", keys)


FORM: Final = (
    Option(
        "decimal.handling.mode",
        "precise",
        by_value(
            {
                "string": same("Numbers are text, such as 12.50.", format__decimal_handling_mode="string"),
                "precise": differs(
                    "format.decimal_handling_mode: precise. Null stands for NaN and infinities, as in Debezium, and "
                    "the header cdcd.unwritable names the column. In a key, a number stands for them.",
                    format__decimal_handling_mode="precise",
                ),
                "double": same("format.decimal_handling_mode.", format__decimal_handling_mode="double"),
            }
        ),
    ),
    Option(
        "money.fraction.digits",
        "2",
        irrelevant(
            "cdcd writes all digits, with the point where the database's default of lc_monetary has it; money.digits "
            "overrides that."
        ),
    ),
    Option(
        "time.precision.mode",
        "adaptive",
        by_value(
            {
                **{
                    mode: same("format.time_precision_mode.", format__time_precision_mode=mode)
                    for mode in (
                        "adaptive",
                        "adaptive_time_microseconds",
                        "connect",
                        "isostring",
                        "microseconds",
                    )
                },
                "nanoseconds": differs(
                    "format.time_precision_mode: nanoseconds. Null stands for a timestamp that 64 bits do not hold, as "
                    "in Debezium, and the header cdcd.unwritable names the column. In a key, the first or the last one "
                    "that they hold stands for it.",
                    format__time_precision_mode="nanoseconds",
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
                mode: same("format.interval_handling_mode.", format__interval_handling_mode=mode)
                for mode in ("string", "numeric")
            }
        ),
    ),
    Option(
        "binary.handling.mode",
        "bytes",
        by_value(
            {
                mode: same("format.binary_handling_mode.", format__binary_handling_mode=mode)
                for mode in ("bytes", "base64", "base64-url-safe", "hex")
            }
        ),
    ),
    Option(
        "hstore.handling.mode",
        "json",
        by_value(
            {
                mode: same("format.hstore_handling_mode.", format__hstore_handling_mode=mode)
                for mode in ("json", "map")
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
        to("format.unavailable_value_placeholder"),
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
    Option("column.mask.hash.<algorithm>.with.salt.<salt>", None, impossible(_HASH), is_secret=True),
    Option("column.mask.hash.v2.<algorithm>.with.salt.<salt>", None, impossible(_HASH), is_secret=True),
    Option("column.mask.with.<length>.chars", None, if_given(differs(_MASK))),
    Option("column.truncate.to.<length>.chars", None, if_given(differs(_TRUNCATE))),
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
    Option(
        "schema.name.adjustment.mode",
        "none",
        by_value(
            {
                mode: same("format.schema_name_adjustment_mode.", format__schema_name_adjustment_mode=mode)
                for mode in ("none", "avro", "avro_unicode")
            }
        ),
    ),
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
                "true": differs(
                    "topics.transaction_metadata: true. The id is the same in BEGIN, END and all records of a "
                    "transaction (docs/records.md, Transaction metadata). A transaction without a record has neither "
                    "BEGIN nor END. Not with cloudevents.data: avro.",
                    topics__transaction_metadata=True,
                ),
            }
        ),
    ),
    Option("transaction.metadata.factory", None, irrelevant("It belongs to provide.transaction.metadata.")),
    Option(
        "message.key.columns",
        None,
        key_columns,
    ),
    Option("tombstones.on.delete", "true", to("topics.tombstones", boolean)),
    Option("skipped.operations", "t", skipped_operations),
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
    *HEARTBEAT_TOPIC,
    Option(
        "topic.transaction",
        "transaction",
        only(
            "transaction",
            "topics.transaction is <prefix>.transaction.",
            differs(
                "Set topics.transaction to the prefix, a point and this name, with provide.transaction.metadata."
            ),
        ),
    ),
    Option("topic.regex", None, impossible(_NAMES)),
    Option("topic.replacement", None, impossible(_NAMES)),
    Option("topic.key.*", None, impossible("cdcd adds no field to keys: each table has a topic of its own.")),
)
