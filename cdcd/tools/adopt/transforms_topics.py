"""Transforms that send records to other topics: RegexRouter, Debezium's routers of logical tables, and its EventRouter.

Routers follow each other, so what counts is where a topic ends up: the last of them has the keys for all of them.
EventRouter becomes `outbox`, whose keys a person completes if the router has no list of topics.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from cdcd.config.sections.outbox import BEGIN
from cdcd.core.catalog.renaming import Router, compiled
from cdcd.core.catalog.routing import equivalent, may_be_of_a_table, unchecked_topic
from cdcd.tools.adopt.course import (
    CONNECT,
    DEBEZIUM,
    Course,
    RefusedError,
    Transform,
    UnnamedError,
)
from cdcd.tools.adopt.reach import Reach
from cdcd.tools.adopt.transforms_fields import translated
from cdcd.tools.adopt.transforms_keys import LOGICAL_ROUTERS, keys_of_logical_tables
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, differs

REGEX_ROUTER: Final = f"{CONNECT}regexrouter"
_ROUTERS: Final = (REGEX_ROUTER, *LOGICAL_ROUTERS)

_OPTIONS: Final = {REGEX_ROUTER: ("regex", "replacement")}
_KEYS: Final = (
    "key.forms adds the field with the former topic to keys. Add a later table to key.forms before anybody writes to "
    "it."
)
_SCHEMAS: Final = "Schemas have the names of the new topics, not of the former topics."
_TODAY: Final = (
    "The list has each present table, because no template of topics.name gives the same topics. Add a later table to "
    "topics.names before anybody writes to it."
)
_SHARED_TODAY: Final = "The keys name the present tables. Add a later one before anybody writes to it."
_SAME_KEYS: Final = (
    "Several tables are in one topic, and their keys may be the same, as they are now. So cdcd refuses the topic if it "
    "is compacted."
)


def route(transform: Transform, course: Course) -> Verdict:
    """`topics.name`, or `topics.names`; topics that are no tables' besides."""
    router = _router(transform)
    reach = course.reach(transform, skips_tombstones=False)
    topic_of = course.topics.topic_of
    course.topics = course.topics.routed(router, course.accepts(transform), is_everywhere=reach.is_all)
    forms = keys_of_logical_tables(transform, router, topic_of, course)
    if any(each.type in _ROUTERS for each in _behind(transform, course)):
        return Verdict(VerdictKind.SAME, "The router after this transform has the keys for both.", forms)
    if any(each.type == f"{DEBEZIUM}contentbasedrouter" for each in course.transforms):
        raise RefusedError(
            "The connector also has a ContentBasedRouter, and the topics of both transforms depend on each other. "
            "Write topics.name and "
            "routes.tables by hand, and accept this option."
        )
    return _verdict(transform, course, forms)


def _router(transform: Transform) -> Router:
    expression, replacement = [
        transform.text(each) for each in _OPTIONS.get(transform.type, ("topic.regex", "topic.replacement"))
    ]
    if not expression or not replacement:
        raise RefusedError(
            "The transform lacks its expression or its replacement, so Kafka Connect refuses the connector. Correct "
            "it, and run this again."
        )
    return Router(compiled(expression), replacement)


def _behind(transform: Transform, course: Course) -> tuple[Transform, ...]:
    return course.transforms[course.transforms.index(transform) + 1 :]


def _verdict(transform: Transform, course: Course, forms: Mapping[str, object]) -> Verdict:
    others, notes = _others(course)
    try:
        named = dict(course.topics.keys)
    except UnnamedError as error:
        raise RefusedError(str(error)) from None
    keys = {**named, **others, **forms}
    if forms:
        notes.append(_KEYS)
    if named and transform.type == REGEX_ROUTER and course.has_schemas:
        notes.append(_SCHEMAS)
    if "topics.shared" in named:
        notes += [_SHARED_TODAY] if forms else [_SAME_KEYS, _SHARED_TODAY]
    elif named and course.topics.is_of_today:
        notes.append(_TODAY)
    if not named and course.topics.is_of_today:
        notes.append("The transform renames no topic of the present tables.")
    why = f"{' and '.join(keys)}." if keys else "The transform renames the topic of no table."
    return translated(why, keys, notes)


def _others(course: Course) -> tuple[Mapping[str, object], list[str]]:
    """Keys for topics that are no tables', and notes for those that keep their names."""
    keys: dict[str, object] = {}
    notes: list[str] = []
    for key, what, topic in own_topics(course):
        final = course.topics.final(topic)
        if final == topic:
            continue
        if may_be_of_a_table(final, course.prefix) or not final or final in course.topics.tables_of():
            notes.append(f"{what} stay in {topic}: {final} could be the topic of a table.")
        else:
            keys[key] = final
    return keys, notes


def own_topics(course: Course) -> Iterator[tuple[str, str, str]]:
    """Topics of the connector's that are no tables': the key of cdcd's, what they hold, the name."""
    options, prefix = course.options, course.prefix
    if options.get("heartbeat.interval.ms", "0").strip() not in ("", "0"):
        begin = options.get("topic.heartbeat.prefix", "").strip() or "__debezium-heartbeat"
        named = options.get("topic.heartbeat.name", "").strip()
        yield "topics.heartbeat", "Heartbeats", named or f"{begin}.{prefix}"
    if options.get("provide.transaction.metadata", "").strip().lower() == "true":
        name = options.get("topic.transaction", "").strip() or "transaction"
        yield "topics.transaction", "BEGIN and END of transactions", f"{prefix}.{name}"
    yield "topics.message", "Logical messages", f"{prefix}.message"


OUTBOX: Final = f"{DEBEZIUM}outbox.eventrouter"


def outbox(transform: Transform, course: Course) -> Verdict:
    """EventRouter: what to write into `outbox`, as far as the options say it."""
    reach = course.reach(transform, skips_tombstones=True)
    topic, route_by = _topic(transform), transform.text("route.by.field", ROUTED_BY)
    columns: dict[str, object] = {
        "topic": topic,
        "route_by": route_by,
        "event_id": transform.text("table.field.event.id", "id"),
        "key": transform.text("table.field.event.key", "aggregateid"),
        "payload": transform.text("table.field.event.payload", "payload"),
    }
    headers, envelope = _placed(transform, "header"), _placed(transform, "envelope")
    columns |= {name: found for name, found in (("headers", headers), ("envelope", envelope)) if found}
    columns |= _forms(transform, course.options)
    tables = [each.pattern for each in reach.tables(course.known)] or [reach.single or ""]
    known = [topic] if _VALUE not in topic else _event_topics(topic, route_by, reach, course)
    topics = known if len(known) <= _TOPICS_MAX else []
    makes = len(known) <= _TOPICS_MAX and _makes_topics(topic, course.prefix)
    if makes:
        columns["topics_max"] = _MADE_MAX
    rest = _rest(transform, course.options)
    if moving := [each.alias for each in _behind(transform, course) if _moves(each, topics or [topic])]:
        raise RefusedError(
            f"Transform {moving[0]}, which comes after this one, renames the topics of events. Write `outbox` into "
            "cdcd.yaml by hand, with the final names as topics (docs/outbox.md), and accept this option."
        )
    used = [str(columns[name]) for name in ("route_by", "event_id", "key", "payload")]
    course.refuse_missing((*used, *headers.values(), *envelope.values()), reach)
    if all(tables) and (topics or makes) and not rest:
        later = _MADE if makes else _LATER if _VALUE in topic else ""
        return differs(
            f"outbox.topics and outbox.tables: rows of {' and '.join(tables)} are events in "
            f"{_listed(topics) or topic} (docs/outbox.md).{later}{_time_of(transform)}",
            outbox__topics=topics,
            outbox__tables=dict.fromkeys(tables, columns),
        )
    keys = {
        "outbox.topics": topics or ([] if makes else [topic.replace(_VALUE, _FILL_IN)]),
        "outbox.tables": dict.fromkeys([each or f"{_FILL_IN}.{_FILL_IN}" for each in tables], columns),
    }
    raise RefusedError(
        f"{_why(rest, is_named=bool(topics) or makes)} The keys of `outbox` "
        f"are at the end of the written file as comments. Write topics (and the table) in place of {_FILL_IN}, "
        "remove the `# ` (docs/outbox.md), and accept this option. Do not take over before that: events would "
        "be rows in the topic of the table.",
        keys,
    )


def _makes_topics(topic: str, prefix: str) -> bool:
    """Whether `topics_max` allows topics of this form."""
    begin, value, _ = topic.partition(_VALUE)
    of_a_table = may_be_of_a_table(topic.replace(_VALUE, "x"), prefix)
    return bool(value and BEGIN.fullmatch(begin)) and not of_a_table


def _moves(transform: Transform, topics: list[str]) -> bool:
    """Whether the transform renames one of the topics of events."""
    if transform.type not in _ROUTERS:
        return False
    router = _router(transform)
    return any(router.routed(topic) != topic for topic in topics)


def _why(rest: str, *, is_named: bool) -> str:
    if rest and is_named:
        return rest
    unnamed = "cdcd publishes events only to topics of a list, and nothing names the topics of this router."
    return " ".join([unnamed, *[rest] * bool(rest)])


ROUTED_BY: Final = "aggregatetype"
"""The column whose value is in the topic of an event, if the router names no other one."""

_LATER: Final = (
    " These are the topics that exist or that rows name. Add a later topic before its first event: cdcd refuses an "
    "event for a topic that the list does not have (outbox.refused), and its row is a record in the table's topic."
)
_MADE_MAX: Final = 100
_MADE: Final = " Further values make at most 100 topics (topics_max). Debezium's router makes any number."
_TOPICS_MAX: Final = 100
_SHOWN_MAX: Final = 5


def _event_topics(template: str, route_by: str, reach: Reach, course: Course) -> list[str]:
    """The topics of events that exist, or that rows of the outbox name.

    The template alone, `{value}`, fits every topic of the cluster. Then rows alone count.
    """
    before, _, after = template.partition(_VALUE)
    named = [
        unchecked_topic(template.replace(_VALUE, value))
        for table in reach.tables(course.known)
        for column, values in table.values
        if column == route_by
        for value in values
    ]
    if before or after:
        fitting = re.compile(f"{re.escape(before)}.+{re.escape(after)}")
        named += [topic for topic in sorted(course.existing) if fitting.fullmatch(topic)]
    found: dict[str, str] = {}
    for topic in named:
        if not may_be_of_a_table(topic, course.prefix):
            found.setdefault(equivalent(topic), topic)
    return list(found.values())


def _listed(topics: list[str]) -> str:
    shown = ", ".join(topics[:_SHOWN_MAX])
    return shown if len(topics) <= _SHOWN_MAX else f"{shown} and {len(topics) - _SHOWN_MAX} more"


def _time_of(transform: Transform) -> str:
    column = transform.text("table.field.event.timestamp")
    if not column:
        return ""
    return (
        f" Records have the time at which cdcd writes them, and not that of {column}: write the column into headers if "
        "consumers read it."
    )


AVRO_CONVERTER: Final = "io.confluent.connect.avro.avroconverter"
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


def _placed(transform: Transform, where: str) -> dict[str, str]:
    """The columns that the router places there, by the name that they have there."""
    found: dict[str, str] = {}
    for each in transform.texts("table.fields.additional.placement"):
        column, placement, alias = [*each.split(":"), "", ""][:3]
        if placement == where:
            found[alias or column] = column
    return found


def _forms(transform: Transform, options: Mapping[str, str]) -> dict[str, object]:
    """The keys of outbox.tables for keys and payloads that the connector's converters write in Avro."""
    found: dict[str, object] = {}
    if _is_avro("key", options):
        found["key_form"] = "avro"
    if not _is_avro("value", options):
        return found
    if not transform.flag("table.expand.json.payload", default=False):
        return {**found, "payload_form": "avro"}
    untyped = (
        ("table.json.payload.null.behavior", "optional_bytes", "null_fields", "bytes"),
        ("table.json.payload.empty.array.behavior", "optional_string", "empty_arrays", "strings"),
    )
    return {
        **found,
        "payload_form": "avro_record",
        **{key: ours for option, value, key, ours in untyped if transform.text(option).lower() == value},
    }


def _is_avro(part: str, options: Mapping[str, str]) -> bool:
    return options.get(f"{part}.converter", "").strip().lower() == AVRO_CONVERTER


def _rest(transform: Transform, options: Mapping[str, str]) -> str:
    """The sentence for options of the router that outbox.tables has no key for."""
    lost = [
        name
        for name in (
            "route.topic.regex",
            "table.field.event.schema.version",
        )
        if transform.text(name)
    ]
    lost += [
        each
        for each in transform.texts("table.fields.additional.placement")
        if each.split(":")[1:2] not in (["header"], ["envelope"])
    ]
    # The payload would be an object inside of the value; cdcd writes its text.
    if _placed(transform, "envelope") and transform.flag("table.expand.json.payload", default=False):
        lost.append("table.expand.json.payload beside fields in the envelope")
    elif _placed(transform, "envelope") and _is_avro("value", options):
        lost.append("fields in the envelope of events in Avro")
    if _is_avro("key", options) and not _is_avro("value", options):
        lost.append("keys in Avro beside values in another format")
    return f"cdcd has no counterpart for {', '.join(lost)}." if lost else ""
