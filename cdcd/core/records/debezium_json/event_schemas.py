"""Kafka Connect's schemas of records that are not rows: logical messages, BEGIN and END of transactions, heartbeats."""

from typing import Final

from cdcd.core.records.debezium_json.connect_schema import (
    NUMBER,
    SOURCE,
    TEXT,
    TRANSACTION,
    Schema,
    primitive,
    struct,
)

MESSAGE_KEY: Final = struct(
    {"prefix": primitive("string")}, "io.debezium.connector.postgresql.MessageKey", optional=False, version=1
)


def message_value(content: Schema) -> Schema:
    """Return the schema of logical messages with this schema of their content."""
    return struct(
        {
            "op": TEXT,
            "ts_ms": NUMBER,
            "source": SOURCE,
            "transaction": TRANSACTION,
            "message": struct(
                {"prefix": primitive("string"), "content": content},
                "io.debezium.connector.postgresql.Message",
                optional=False,
                version=1,
            ),
        },
        "io.debezium.connector.postgresql.MessageValue",
        optional=False,
        version=1,
    )


TRANSACTION_KEY: Final = struct(
    {"id": TEXT}, "io.debezium.connector.common.TransactionMetadataKey", optional=False, version=1
)
TRANSACTION_VALUE: Final = struct(
    {
        "status": TEXT,
        "id": TEXT,
        "event_count": NUMBER,
        "data_collections": {
            "type": "array",
            "items": struct(
                {"data_collection": TEXT, "event_count": primitive("int64", optional=False)},
                "event.collection",
                optional=False,
                version=1,
            ),
            "optional": True,
        },
        "ts_ms": primitive("int64", optional=False),
    },
    "io.debezium.connector.common.TransactionMetadataValue",
    optional=False,
    version=1,
)
"""Schemas of keys and values of BEGIN and END of a transaction (`transaction_metadata.py`)."""

HEARTBEAT_KEY: Final = struct(
    {"serverName": TEXT}, "io.debezium.connector.common.ServerNameKey", optional=False, version=1
)
HEARTBEAT_VALUE: Final = struct(
    {"ts_ms": primitive("int64", optional=False)},
    "io.debezium.connector.common.Heartbeat",
    optional=False,
    version=1,
)
"""Schemas of keys and values of heartbeats."""
