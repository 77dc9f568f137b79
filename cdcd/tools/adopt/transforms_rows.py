"""Transforms that choose records by what is in them: Debezium's Filter, ContentBasedRouter and PartitionRouting, and
Kafka Connect's Filter.

Debezium's transforms look at one event at a time. cdcd's filters, routes and partitions look at a row, whose former
values count as well: an update by which a row goes elsewhere is a delete in one place and an insert in the other. So
what is written is never quite the same, and the verdict says so.
"""

from collections.abc import Callable
from typing import Final

from cdcd.tools.adopt.course import TOMBSTONES, TOPIC_MATCHES, Course, RefusedError, Transform
from cdcd.tools.adopt.reach import EVERYWHERE, Reach, UndecidedError
from cdcd.tools.adopt.scripts import (
    FieldPath,
    Literal,
    Operation,
    Script,
    UntranslatableError,
    as_cel,
    is_condition,
    parse,
    paths,
    truth,
)
from cdcd.tools.adopt.transforms_fields import NOWHERE, today, translated
from cdcd.tools.adopt.transforms_topics import own_topics
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, not_needed, same

_OP: Final = ("op",)
_ROWS: Final = (
    "cdcd filters rows, not events: an update that moves a row out of the filter is a delete for consumers, and an "
    "update that moves a row into the filter is an insert. The filter judges a delete by the former row. Columns that "
    "are not in the replica identity "
    "need REPLICA IDENTITY FULL or old_row: assumed; `cdcd check` names the tables."
)
_MOVES: Final = (
    "cdcd routes rows, not events: an update that moves a row to another topic is a delete in the former topic and an "
    "insert in the new topic. A delete goes to the topic of the former row. Columns that are not in the replica "
    "identity need REPLICA IDENTITY FULL or old_row: assumed; `cdcd check` names the tables."
)
_BY_HAND: Final = (
    "Write the condition in CEL into {key} of cdcd.yaml ({page}: value.after.status becomes row.status), and accept "
    "this option. Do not take over before that: {otherwise}."
)
_FILTER_BY_HAND: Final = _BY_HAND.format(
    key="filters.tables", page="docs/filters.md", otherwise="all rows would be in the topics"
)
_ROUTE_BY_HAND: Final = _BY_HAND.format(
    key="routes.tables", page="docs/routes.md", otherwise="all rows would be in the topic of their table"
)
_OPERATIONS: Final = ("c", "u", "d", "t")


def filter_rows(transform: Transform, course: Course) -> Verdict:
    """Debezium's Filter: `filters.tables`, or `topics.skipped_operations` if it asks for the operation alone."""
    reach = _scripted_reach(transform, course, _FILTER_BY_HAND)
    if not reach.patterns:
        return NOWHERE
    script = _script(transform, "condition", _FILTER_BY_HAND)
    if course.flattening is None and is_condition(script) and paths(script) == {_OP}:
        return _by_operation(script, transform, reach)
    condition = script if course.flattening else _without_guard(script)
    columns = _columns(condition, course, _FILTER_BY_HAND)
    course.refuse_missing(tuple(columns.values()), reach)
    course.claim("filters.tables", reach.patterns, transform.alias)
    keep = course.references.replace(as_cel(condition, columns))
    notes = [_ROWS, today(reach)]
    if transform.text("null.handling.mode", "keep").lower() == "drop":
        notes.append("A delete has a tombstone after it, unless topics.tombstones is false.")
    return translated(
        "filters.tables.", {"filters.tables": {pattern: {"keep": keep} for pattern in reach.patterns}}, notes
    )


def _by_operation(script: Script, transform: Transform, reach: Reach) -> Verdict:
    kept = {each for each in (*_OPERATIONS, "r", "m") if truth(script, _OP, each)}
    skipped = [each for each in _OPERATIONS if each not in kept]
    if not reach.is_all:
        raise RefusedError(
            "The transform leaves out operations of some tables, and topics.skipped_operations applies to all tables. "
            "Let the "
            "consumers leave them out, and accept this option."
        )
    notes = [
        "" if "r" in kept else "Rows of a snapshot on demand (op r) have records.",
        "" if "m" in kept else "Logical messages have records, unless postgres.messages is asked or false.",
    ]
    keys: dict[str, object] = {"topics.skipped_operations": skipped} if skipped else {}
    if "u" in skipped:
        # Also in the snapshots that a message asks for.
        keys["snapshot.signals"] = "off"
        notes.append("snapshot.signals is off, because a snapshot may need the updates.")
    if "d" in skipped and transform.text("null.handling.mode", "keep").lower() != "drop":
        notes.append("cdcd also leaves out the tombstone of the delete, which the transform keeps.")
    return translated(f"topics.skipped_operations: {', '.join(skipped) or 'none'}.", keys, notes)


def route_rows(transform: Transform, course: Course) -> Verdict:
    """ContentBasedRouter: `routes.tables`."""
    reach = _scripted_reach(transform, course, _ROUTE_BY_HAND)
    if not reach.patterns:
        return NOWHERE
    script = _script(transform, "topic.expression", _ROUTE_BY_HAND)
    rules: list[dict[str, object]] = []
    wanted: set[str] = set()
    while not (isinstance(script, Literal) and script.value is None):
        condition, topic, script = _branch(script)
        condition = condition if course.flattening else _without_guard(condition)
        columns = _columns(condition, course, _ROUTE_BY_HAND)
        wanted |= set(columns.values())
        when = as_cel(condition, columns)
        rules.append({"when": course.references.replace(when), "topic": topic})
    pattern = _only_table(reach, course)
    course.refuse_missing(tuple(sorted(wanted)), reach)
    course.claim("routes.tables", (pattern,), transform.alias)
    return translated("routes.tables.", {"routes.tables": {pattern: {"rules": rules}}}, [_MOVES])


def _branch(script: Script) -> tuple[Script, str, Script]:
    """The condition of a choice, the topic that it chooses, and what else there is to choose."""
    if not (isinstance(script, Operation) and script.operator == "?:"):
        raise RefusedError(
            f"cdcd keeps rows for which no rule is true in the table's own topic. {_ROUTE_BY_HAND}"
        )
    condition, chosen, otherwise = script.operands
    if isinstance(chosen, Literal) and isinstance(chosen.value, str):
        if isinstance(otherwise, Literal) and isinstance(otherwise.value, str):
            otherwise = Operation("?:", (Operation("!", (condition,)), otherwise, Literal(None)))
        return condition, chosen.value, otherwise
    raise RefusedError(f"The expression does not write out all its topics. {_ROUTE_BY_HAND}")


def _only_table(reach: Reach, course: Course) -> str:
    """The pattern of the one table that is meant."""
    if reach.single is not None:
        return reach.single
    known = reach.tables(course.known)
    if len(known) == 1:
        return known[0].pattern
    raise RefusedError(
        "The transform sends rows of several tables to one topic. In cdcd, a topic has the rows of one table. Write "
        "rules "
        f"with {{table}} in their topics. {_ROUTE_BY_HAND}"
    )


def _scripted_reach(transform: Transform, course: Course, by_hand: str) -> Reach:
    """The tables that a scripted transform looks at, by its predicate and its own topic.regex."""
    nulls = transform.text("null.handling.mode", "keep").lower()
    if nulls == "evaluate":
        raise RefusedError(
            f"Its script also decides about tombstones (null.handling.mode: evaluate). {by_hand}"
        )
    reach = course.reach(transform, skips_tombstones=nulls == "keep")
    regex = transform.text("topic.regex")
    if not regex:
        return reach
    if reach != EVERYWHERE:
        raise RefusedError(f"It has a predicate and a topic.regex. {by_hand}")
    return course.reached(regex)


def _script(transform: Transform, option: str, by_hand: str) -> Script:
    try:
        return parse(transform.text(option), transform.text("language"))
    except UntranslatableError as error:
        raise RefusedError(
            f"cdcd runs no scripts, and cannot translate this script: {error}. {by_hand}"
        ) from None


def _without_guard(script: Script) -> Script:
    """The condition without what spares deletes from it, because their `after` is null: cdcd asks the former row."""
    if not (isinstance(script, Operation) and script.operator == "||"):
        return script
    left = tuple([each for each in script.operands if each not in _SPARES_DELETES])
    if not left or len(left) == len(script.operands):
        return script
    return left[0] if len(left) == 1 else Operation("||", left)


_SPARES_DELETES: Final = (
    Operation("==", (FieldPath(_OP), Literal("d"))),
    Operation("==", (FieldPath(("after",)), Literal(None))),
)


def _columns(script: Script, course: Course, by_hand: str) -> dict[tuple[str, ...], str]:
    """The column of each path. RefusedError: the condition asks for something else, or has another form."""
    if not is_condition(script):
        raise RefusedError(f"cdcd runs no scripts, and translates only comparisons of columns. {by_hand}")
    found: dict[tuple[str, ...], str] = {}
    for path in paths(script):
        names = path if course.flattening else path[1:] if path[:1] == ("after",) else ()
        if len(names) != 1 or names[0] in course.inserted or names[0] in course.renamed:
            raise RefusedError(
                f"value.{'.'.join(path)} is not a column of the new row, and conditions in cdcd can use only columns "
                f"of the new row. {by_hand}"
            )
        found[path] = names[0]
    return found


def partition(transform: Transform, course: Course) -> Verdict:
    """PartitionRouting: `partitioner.columns`, with another hash."""
    if course.flattening is not None:
        return same(
            "The transform has no effect, because it expects envelopes, and records are flattened before it."
        )
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    columns: list[str] = []
    for field in transform.texts("partition.payload.fields"):
        part, _, name = field.partition(".")
        if part not in ("change", "after") or not name or "." in name:
            raise RefusedError(
                f"{field} is not a column of the row, and cdcd can choose partitions only by columns. Write other "
                f"columns into "
                f"partitioner.columns of cdcd.yaml (docs/partitions.md). {_HASH}"
            )
        columns.append(name.strip())
    chosen = _chosen(columns, reach, course)
    course.claim("partitioner.columns", tuple(chosen), transform.alias)
    if not chosen:
        return not_needed(
            "The transform changes no partition, because no table that it is applied to has one of its "
            "fields."
        )
    note = "" if list(chosen) == list(reach.patterns) else " " + today(Reach(tuple(chosen), is_exact=False))
    return Verdict(
        VerdictKind.IMPOSSIBLE,
        f"`cdcd adopt` writes partitioner.columns, which uses another hash. {_HASH} A tombstone goes to the partition "
        f"of its delete, and cdcd uses all partitions of a topic, whatever partition.topic.num says.{note}",
        {"partitioner.columns": chosen},
    )


_HASH: Final = (
    "Rows go to other partitions than before. Wait until consumers have read everything, or create new topics. Then "
    "accept "
    "this option."
)


def _chosen(columns: list[str], reach: Reach, course: Course) -> dict[str, list[str]]:
    """The columns for each pattern. A table that lacks some of them goes by the others, as with the transform."""
    tables = reach.tables(course.known)
    if all(set(columns) <= set(each.columns) for each in tables):
        return dict.fromkeys(reach.patterns, columns)
    found = {each.pattern: [name for name in columns if name in each.columns] for each in tables}
    return {pattern: names for pattern, names in found.items() if names}


def drop(transform: Transform, course: Course) -> Verdict:
    """Kafka Connect's Filter, which drops what its predicate is true for."""
    found = course.predicate(transform)
    if found is None:
        raise RefusedError(
            "The transform has no predicate, so it drops every record. Remove it from the connector, and run this "
            "again."
        )
    kind, predicate = found
    if kind == TOMBSTONES and not transform.is_negated:
        if course.flattening is None:
            return same("topics.tombstones: false.", topics__tombstones=False)
        raise RefusedError(
            "The transform drops the tombstones of flattened records. Write "
            "event_flattening.delete_tombstone_handling_mode: "
            "drop (or rewrite) into cdcd.yaml, and accept this option."
        )
    if kind != TOPIC_MATCHES:
        raise RefusedError(
            "The predicate selects single records. Write a condition into filters.tables (docs/filters.md), or let "
            "the consumers leave these records out, and accept this option."
        )
    return _drop_tables(transform, predicate, course)


def _drop_tables(transform: Transform, predicate: Transform, course: Course) -> Verdict:
    notes = _dropped_besides(course.accepts(transform), course)
    pattern = predicate.text("pattern")
    if transform.is_negated and (kept := _kept(pattern, course)) is not None:
        course.claim("tables.include", kept, transform.alias)
        return translated("tables.include has these tables.", {"tables.include": list(kept)}, notes)
    reach = course.reached(pattern, negated=transform.is_negated)
    if not reach.patterns:
        return translated("The transform drops the records of no table.", {}, notes)
    if reach.is_all:
        raise RefusedError(
            "The transform drops the records of all tables. Take it out of the connector, and run this again."
        )
    return translated(
        "tables.exclude leaves these tables out.",
        {"tables.exclude": list(reach.patterns)},
        [*notes, today(reach)],
    )


def _kept(pattern: str, course: Course) -> tuple[str, ...] | None:
    """The patterns of the tables that a negated predicate spares; None: only their names can be told, or none is."""
    try:
        spared = course.reached(pattern)
    except UndecidedError:
        return None
    return (
        spared.patterns
        if spared.is_exact and spared.patterns and "tables.include" not in course.claims
        else None
    )


def _dropped_besides(drops: Callable[[str], bool], course: Course) -> list[str]:
    """Notes for topics that are no tables' and that the transform drops."""
    return [
        f"{what} still have records in {topic}. {_TURNED_OFF[key]}"
        for key, what, topic in own_topics(course)
        if drops(course.topics.final(topic))
    ]


_TURNED_OFF: Final = {
    "topics.heartbeat": "Without heartbeat.interval_s there are no heartbeats.",
    "topics.transaction": "With topics.transaction_metadata: false there are none.",
    "topics.message": "With postgres.messages: asked there are none.",
}
