"""Transforms without a counterpart: why, and what to do instead; and the outbox router, completed by a person."""

from typing import Final

from cdcd.tools.adopt.course import CONNECT, DEBEZIUM, Course, RefusedError, Transform
from cdcd.tools.adopt.verdicts import Verdict, differs, same

OUTBOX: Final = f"{DEBEZIUM}outbox.eventrouter"

UNKNOWN_CLASS: Final = (
    "cdcd loads no Java classes, and delivers whole records to the topic of each table. Let the consumers, or a job "
    "after the topics, do what the transform does, and accept this option."
)

_AT_CONSUMERS: Final = "Let the consumers, or a job after the topics, do it, and accept this option."

OTHERS: Final = {
    f"{CONNECT}cast$value": f"cdcd casts no values: the keys of `format` have Debezium's modes. {_AT_CONSUMERS}",
    f"{CONNECT}cast$key": f"cdcd casts no values: the keys of `format` have Debezium's modes. {_AT_CONSUMERS}",
    f"{CONNECT}flatten$value": (
        "cdcd makes no fields like before.id. event_flattening makes the row the value; do so if the consumers can "
        f"take that. {_AT_CONSUMERS}"
    ),
    f"{CONNECT}flatten$key": f"cdcd's keys are flat, unless a column is a composite. {_AT_CONSUMERS}",
    f"{CONNECT}timestamprouter": (
        f"cdcd puts no time into topics: all records of a table are in one topic, in their order. {_AT_CONSUMERS}"
    ),
    f"{CONNECT}timestampconverter$value": (
        "cdcd has the forms of time of Debezium (format.time_precision_mode), for all columns alike. Choose one of "
        "them, or let the consumers convert the values, and accept this option."
    ),
    f"{CONNECT}timestampconverter$key": (
        "cdcd has the forms of time of Debezium (format.time_precision_mode), for all columns alike. Choose one of "
        "them, or let the consumers convert the values, and accept this option."
    ),
    f"{CONNECT}headerfrom$value": (
        "cdcd copies no column into headers. event_flattening.add_headers has op and the fields of `source` as "
        "headers of flattened records. Write those there, and accept this option."
    ),
    f"{CONNECT}headerfrom$key": f"cdcd copies no column of a key into headers. {_AT_CONSUMERS}",
    f"{CONNECT}insertheader": f"cdcd adds no constant headers. fields.tables has constants in rows. {_AT_CONSUMERS}",
    f"{CONNECT}dropheaders": f"cdcd's own headers (docs/records.md) are always there. {_AT_CONSUMERS}",
    f"{CONNECT}insertfield$key": f"cdcd adds no field to keys: each table has a topic of its own. {_AT_CONSUMERS}",
    f"{CONNECT}maskfield$key": (
        "cdcd masks no column of a key, because different rows would get one key. columns.hash keeps them apart "
        "(docs/columns.md). Write the column there, and accept this option. Do not take over before that: cdcd would "
        "deliver the whole values."
    ),
    f"{CONNECT}extractfield$key": (
        f"cdcd's keys are objects with all columns of the key, also if that is one column. {_AT_CONSUMERS}"
    ),
    f"{CONNECT}extractfield$value": (
        "cdcd delivers whole values. If it takes `after` out of the envelope, event_flattening does so. Write that "
        "into cdcd.yaml, and accept this option."
    ),
    f"{CONNECT}hoistfield$value": f"cdcd puts no field around values. {_AT_CONSUMERS}",
    f"{CONNECT}hoistfield$key": f"cdcd puts no field around keys. {_AT_CONSUMERS}",
    f"{CONNECT}valuetokey": (
        "Write the columns into key.columns of cdcd.yaml, which makes keys of them in the order of the table, and "
        "accept this option. `cdcd check` names tables that do not send the former values."
    ),
    f"{DEBEZIUM}extractchangedrecordstate": f"cdcd does not list the changed columns in headers. {_AT_CONSUMERS}",
    f"{DEBEZIUM}extractschematonewrecord": (
        f"cdcd puts no schema into the row; format.value: json_schema has it beside. {_AT_CONSUMERS}"
    ),
    f"{DEBEZIUM}headertovalue": f"cdcd moves no header into values. {_AT_CONSUMERS}",
    f"{DEBEZIUM}timezoneconverter": f"cdcd delivers times as PostgreSQL has them, timestamptz in UTC. {_AT_CONSUMERS}",
    f"{DEBEZIUM}enforcerecordsize": (
        "kafka.oversized says what becomes of a record that is too large (fail, dead_letter or claim_check). Choose "
        "one, and accept this option."
    ),
    f"{DEBEZIUM}tracing.activatetracingspan": f"cdcd knows no traces. {_AT_CONSUMERS}",
    "io.debezium.connector.postgresql.transforms.timescaledb.timescaledb": (
        "cdcd delivers chunks of TimescaleDB as the tables that they are. Publish hypertables by "
        f"publish_via_partition_root where that is possible. {_AT_CONSUMERS}"
    ),
    "io.debezium.connector.postgresql.transforms.decodelogicaldecodingmessagecontent": (
        f"cdcd delivers the content of logical messages as base64, as Debezium does. {_AT_CONSUMERS}"
    ),
}
"""Classes, in lower case, with the reason and what to do."""

LEAVES_NAMES: Final = frozenset(
    {
        *(
            f"{CONNECT}{each}"
            for each in ("cast$value", "cast$key", "flatten$key", "timestampconverter$value")
        ),
        *(
            f"{CONNECT}{each}"
            for each in ("timestampconverter$key", "headerfrom$key", "insertheader", "dropheaders")
        ),
        *(
            f"{CONNECT}{each}"
            for each in ("insertfield$key", "maskfield$key", "extractfield$key", "hoistfield$key")
        ),
        *(f"{CONNECT}{each}" for each in ("replacefield$key", "valuetokey", "filter", "regexrouter")),
        *(f"{CONNECT}{each}" for each in ("setschemametadata$key", "setschemametadata$value")),
        *(f"{DEBEZIUM}{each}" for each in ("filter", "contentbasedrouter", "partitions.partitionrouting")),
        *(
            f"{DEBEZIUM}{each}"
            for each in ("bylogicaltablerouter", "tologicaltopicrouter", "enforcerecordsize")
        ),
        *(f"{DEBEZIUM}{each}" for each in ("timezoneconverter", "extractchangedrecordstate")),
        OUTBOX,
    }
)
"""Classes behind which others find the same fields of rows, so that they are judged the same without them."""


def set_schema(_transform: Transform, course: Course) -> Verdict:
    """SetSchemaMetadata: it changes the names and versions of schemas alone."""
    if not course.has_schemas:
        return same("It changes schemas only, and records have none.")
    raise RefusedError(
        "cdcd names schemas after the topics, as Debezium does. Let the consumers take these names, and accept this "
        "option."
    )


def drop_schema_changes(_transform: Transform, _course: Course) -> Verdict:
    """SchemaChangeEventFilter."""
    return same("A connector of PostgreSQL has no schema change events, and neither has cdcd.")


def outbox(transform: Transform, course: Course) -> Verdict:
    """EventRouter: what to write into `outbox`, as far as the options say it."""
    reach = course.reach(transform, skips_tombstones=True)
    topic = _topic(transform)
    columns: dict[str, object] = {
        "topic": topic,
        "route_by": transform.text("route.by.field", "aggregatetype"),
        "event_id": transform.text("table.field.event.id", "id"),
        "key": transform.text("table.field.event.key", "aggregateid"),
        "payload": transform.text("table.field.event.payload", "payload"),
    }
    if headers := _headers(transform):
        columns["headers"] = headers
    topics = [topic if _VALUE not in topic else topic.replace(_VALUE, _FILL_IN)]
    keys = {"outbox.topics": topics, "outbox.tables": {reach.single or f"{_FILL_IN}.{_FILL_IN}": columns}}
    rest = _rest(transform)
    if reach.single and _VALUE not in topic and not rest:
        return differs(
            f"outbox.topics and outbox.tables: rows of {reach.single} are events in topic {topic} (docs/outbox.md).",
            **{name.replace(".", "__"): value for name, value in keys.items()},
        )
    raise RefusedError(
        "cdcd publishes events only to topics of a list, and no option of the router names them. The keys of `outbox` "
        f"are at the end of the written file as comments. Write topics (and the table) in place of {_FILL_IN}, "
        f"remove the `# ` (docs/outbox.md), and accept this option.{rest} Do not take over before that: events would "
        "be rows in the topic of the table.",
        keys,
    )


_VALUE: Final = "{value}"
_FILL_IN: Final = "FILL_IN"


def _topic(transform: Transform) -> str:
    # A regular expression of the router's own may choose parts of the value. Then a person names the topic.
    if transform.text("route.topic.regex"):
        return "outbox.event.{value}"
    replacement = (
        transform.options.get("route.topic.replacement", "").strip() or "outbox.event.${routedByValue}"
    )
    return replacement.replace("${routedByValue}", "{value}")


def _headers(transform: Transform) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in transform.texts("table.fields.additional.placement"):
        column, placement, alias = [*each.split(":"), "", ""][:3]
        if placement == "header":
            found[alias or column] = column
    return found


def _rest(transform: Transform) -> str:
    """The sentence for options of the router that outbox.tables has no key for."""
    lost = [
        name
        for name in (
            "route.topic.regex",
            "table.field.event.timestamp",
            "table.field.event.schema.version",
        )
        if transform.text(name)
    ]
    lost += [
        each
        for each in transform.texts("table.fields.additional.placement")
        if each.split(":")[1:2] != ["header"]
    ]
    return f" There is no counterpart for {', '.join(lost)}." if lost else ""
