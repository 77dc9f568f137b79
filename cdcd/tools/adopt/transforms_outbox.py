"""The outbox router (EventRouter): its keys of cdcd's `outbox`, completed by a person where the router has no list."""

from typing import Final

from cdcd.tools.adopt.course import DEBEZIUM, Course, RefusedError, Transform
from cdcd.tools.adopt.verdicts import Verdict, differs

OUTBOX: Final = f"{DEBEZIUM}outbox.eventrouter"


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
