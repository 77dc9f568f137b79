"""What becomes of a connector's transforms, one after the other.

options.yaml has a row for each class, with what a person reads of it in docs/debezium-options.md. CLASSES names the
functions for those with a counterpart. A transform without a
counterpart does not end the judging: a person may accept it, and then the others hold. Those behind it say that they
were judged as if it were not there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.renaming import UnreadableError
from cdcd.core.records.flattening import (
    DELETE_TO_TOMBSTONE,
    DELETED_FIELD,
    DROP,
    REWRITE,
    REWRITE_WITH_TOMBSTONE,
    TOMBSTONE,
    read_added,
)
from cdcd.tools.adopt.course import CONNECT, DEBEZIUM, Course, OpenError, RefusedError, TopicCourse, Transform
from cdcd.tools.adopt.options import TRANSFORMS
from cdcd.tools.adopt.reach import Known, Reach, UndecidedError
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.tables import named_tables, read_lists
from cdcd.tools.adopt.transforms_casts import cast_values
from cdcd.tools.adopt.transforms_fields import (
    FLATTENING,
    NOWHERE,
    REPLACE_KEY,
    REPLACE_VALUE,
    insert_in_values,
    mask_values,
    replace_in_keys,
    replace_in_values,
    translated,
)
from cdcd.tools.adopt.transforms_keys import EXTRACT_KEY, LOGICAL_ROUTERS, extract_from_keys, key_of_values
from cdcd.tools.adopt.transforms_rows import drop, filter_rows, partition, route_rows
from cdcd.tools.adopt.transforms_topics import OUTBOX, REGEX_ROUTER, ROUTED_BY, outbox, route
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, differs, lacks, same

_REACHABLE: Final = "Run the command where the database can be reached."
_JSON: Final = "org.apache.kafka.connect.json.jsonconverter"


_MODES: Final = (DROP, TOMBSTONE, REWRITE, REWRITE_WITH_TOMBSTONE, DELETE_TO_TOMBSTONE)
_MODE: Final = "delete.tombstone.handling.mode"
_FORMER_MODE: Final = "delete.handling.mode"
_FORMER_DROP: Final = "drop.tombstones"

_OF_FORMER: Final = {
    ("drop", "true"): DROP,
    ("drop", "false"): TOMBSTONE,
    ("rewrite", "true"): REWRITE,
    ("rewrite", "false"): REWRITE_WITH_TOMBSTONE,
    ("none", "true"): DELETE_TO_TOMBSTONE,
    ("none", "false"): TOMBSTONE,
}
"""The present mode for each pair of delete.handling.mode and drop.tombstones, which it replaced together."""


def mode_of(options: Mapping[str, str]) -> str | None:
    """The mode for deletes in the options of one transform; None: no option sets it, or its value is not known."""
    given = options.get(_MODE, "").strip().lower()
    if given:
        return given if given in _MODES else None
    former = options.get(_FORMER_MODE, "").strip().lower(), options.get(_FORMER_DROP, "").strip().lower()
    return _OF_FORMER.get((former[0] or "drop", former[1] or "true")) if any(former) else None


def of_former(option: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on one option of the transform. `found`: the verdict of the option's row in the table."""
    if option not in (_FORMER_MODE, _FORMER_DROP):
        return found
    if options.get(_MODE, "").strip():
        return Verdict(VerdictKind.IRRELEVANT, f"The connector also has {_MODE}, which replaces this option.")
    mode = mode_of(options)
    if mode is None:
        return Verdict(
            VerdictKind.UNKNOWN,
            f"{_FORMER_MODE} is drop, rewrite or none, and {_FORMER_DROP} is true or false. Write "
            "event_flattening.delete_tombstone_handling_mode into cdcd.yaml, and accept this option.",
        )
    return differs(
        f"event_flattening.delete_tombstone_handling_mode: {mode}, from {_FORMER_MODE} and {_FORMER_DROP} together. "
        f"Since Debezium 2.5, {_MODE} replaces both options, and later versions may ignore them.",
        event_flattening__delete_tombstone_handling_mode=mode,
    )


def flatten(transform: Transform, course: Course) -> Verdict:
    """ExtractNewRecordState: `event_flattening`, whose other keys have rows of their own."""
    if course.flattening is not None and course.flattening.type == FLATTENING:
        return same("The transform has no effect, because records are flattened before it.")
    reach = course.reach(transform, skips_tombstones=False)
    if not reach.patterns:
        return NOWHERE
    course.flattening = transform
    course.inserted |= _added(transform)
    if not reach.is_all and not _is_every_row(reach, course):
        raise RefusedError(_NOT_EVERY_ROW)
    later = (
        ""
        if reach.is_all
        else "cdcd flattens the records of every table, also of later tables that the predicate leaves out."
    )
    return translated("event_flattening.enabled: true.", {"event_flattening.enabled": True}, [later])


def extract_from_values(transform: Transform, course: Course) -> Verdict:
    """ExtractField$Value that takes `after` out of the envelope: `event_flattening`."""
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    flat = course.flattening
    former = set() if flat is None else set(course.reach(flat, skips_tombstones=False).tables(course.known))
    is_behind = flat is not None and (course.known is None or bool(former & set(reach.tables(course.known))))
    if transform.text("field") != "after" or is_behind:
        raise RefusedError(
            "cdcd delivers whole rows, and the transform takes one field out of them. Leave the other columns out "
            "(columns.include), let the consumers read an object, and accept this option."
        )
    if not reach.is_all and not _is_every_row(reach, course):
        raise RefusedError(_NOT_EVERY_ROW)
    if flat is None:
        course.flattening = transform
    alone = not any(each.type == FLATTENING for each in course.transforms)
    keys: dict[str, object] = {"event_flattening.enabled": True}
    if alone:
        keys["event_flattening.delete_tombstone_handling_mode"] = DELETE_TO_TOMBSTONE
    return translated(
        f"{' and '.join(keys)}.",
        keys,
        [
            "A delete has one record without a value, where the transform and the tombstone make two.",
            ""
            if alone
            else "Added fields, headers and the form of deletes are those of ExtractNewRecordState.",
        ],
    )


_NOT_EVERY_ROW: Final = (
    "cdcd flattens the records of all tables, or of none. Accept this option if you want all records "
    "flattened, and set event_flattening.enabled in cdcd.yaml. Otherwise use two pipelines."
)


def _is_every_row(reach: Reach, course: Course) -> bool:
    """Whether only tables are left out whose rows are events of an outbox, which cdcd does not flatten, or whose rows
    another transform takes out of the envelope.
    """
    if course.known is None:
        return False
    events = [
        table
        for each in course.transforms
        if each.type in (OUTBOX, FLATTENING) or (each.type == EXTRACT_VALUE and each.text("field") == "after")
        for table in course.reach(each, skips_tombstones=each.type != FLATTENING).tables(course.known)
    ]
    return set(course.known) <= {*reach.tables(course.known), *events}


def _added(transform: Transform) -> set[str]:
    """Names of fields that rows get besides their columns."""
    found: set[str] = set()
    prefix = transform.options.get("add.fields.prefix", "__").strip()
    for each in transform.texts("add.fields"):
        try:
            found.add(read_added(each, prefix).name)
        except ValueError:
            # Its own option says so.
            continue
    if mode_of(transform.options) in (REWRITE, REWRITE_WITH_TOMBSTONE):
        found.add(DELETED_FIELD)
    return found


EXTRACT_VALUE: Final = f"{CONNECT}extractfield$value"
_FORMER_FLATTENING: Final = f"{DEBEZIUM}unwrapfromenvelope"


UNKNOWN_CLASS: Final = (
    "cdcd loads no Java classes, and delivers whole records to the topic of each table. Let the consumers or a job "
    "that reads the topics do the work of the transform, and accept this option."
)


def set_schema(_transform: Transform, course: Course) -> Verdict:
    """SetSchemaMetadata: it changes the names and versions of schemas alone."""
    if not course.has_schemas:
        return same("The transform changes only schemas, and records have no schema.")
    raise RefusedError(
        "cdcd names schemas after the topics, as Debezium does. Let the consumers accept these names, and accept this "
        "option."
    )


def drop_schema_changes(_transform: Transform, _course: Course) -> Verdict:
    """SchemaChangeEventFilter."""
    return same("A connector of PostgreSQL has no schema change events, and neither has cdcd.")


def report_lineage(_transform: Transform, _course: Course) -> Verdict:
    """OpenLineage, which changes no record."""
    return differs(
        "Records are the same. cdcd does not report to OpenLineage: declare the lineage by other means."
    )


CLASSES: Final[Mapping[str, Callable[[Transform, Course], Verdict]]] = {
    FLATTENING: flatten,
    _FORMER_FLATTENING: flatten,
    REGEX_ROUTER: route,
    **dict.fromkeys(LOGICAL_ROUTERS, route),
    REPLACE_VALUE: replace_in_values,
    REPLACE_KEY: replace_in_keys,
    EXTRACT_KEY: extract_from_keys,
    f"{CONNECT}valuetokey": key_of_values,
    f"{CONNECT}cast$value": cast_values,
    EXTRACT_VALUE: extract_from_values,
    f"{CONNECT}insertfield$value": insert_in_values,
    f"{CONNECT}maskfield$value": mask_values,
    f"{CONNECT}filter": drop,
    f"{DEBEZIUM}filter": filter_rows,
    f"{DEBEZIUM}contentbasedrouter": route_rows,
    f"{DEBEZIUM}partitions.partitionrouting": partition,
    OUTBOX: outbox,
    f"{CONNECT}setschemametadata$value": set_schema,
    f"{CONNECT}setschemametadata$key": set_schema,
    f"{DEBEZIUM}schemachangeeventfilter": drop_schema_changes,
    f"{DEBEZIUM}openlineage.openlineage": report_lineage,
}
"""The classes with a counterpart, in lower case, with what judges them.

A function raises RefusedError and its like for what has no counterpart.
"""

_SHORT: Final = {name.rpartition(".")[2]: name for name in TRANSFORMS if not name.endswith(".filter")}
"""Kafka Connect takes the last part of a class's name too. There are two transforms Filter."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of the transforms.

    Attributes:
        whole: the verdict on the option `transforms`.
        by_alias: the verdict on each transform, which is that of its option `type`.
        flattening: the alias of the transform whose options `event_flattening` has; "": none.
        flattening_options: the options of that transform.
        has_events_only: an event router gets all records, so that no record is a change of a table.
    """

    whole: Verdict
    by_alias: Mapping[str, Verdict]
    flattening: str
    flattening_options: Mapping[str, str]
    has_events_only: bool = False


def read(options: Mapping[str, str]) -> tuple[Transform, ...]:
    """The transforms, in their order."""
    return tuple(
        [
            _transform(alias, options)
            for alias in dict.fromkeys(map(str.strip, options.get("transforms", "").split(",")))
            if alias
        ]
    )


def _transform(alias: str, options: Mapping[str, str]) -> Transform:
    begin = f"transforms.{alias}."
    own = {name.removeprefix(begin): value for name, value in options.items() if name.startswith(begin)}
    kind = own.get("type", "").strip().lower()
    kind = _SHORT.get(kind, kind)
    return Transform(alias, FLATTENING if kind == _FORMER_FLATTENING else kind, own)


def routing_columns(options: Mapping[str, str]) -> frozenset[str]:
    """The columns whose values choose the topics of events, by the event routers among the transforms."""
    return frozenset(
        [
            each.options.get("route.by.field", "").strip() or ROUTED_BY
            for each in read(options)
            if each.type == OUTBOX
        ]
    )


def judge_transforms(
    options: Mapping[str, str],
    references: References,
    known: Known,
    existing: frozenset[str] = frozenset(),
) -> Judged:
    """What becomes of each transform.

    Args:
        references: gets the variables that constants refer to.
        known: the captured tables; None: the database was not asked.
        existing: the topics that are there; empty if Kafka was not asked.
    """
    transforms = read(options)
    prefix = options.get("topic.prefix", "").strip()
    topics = TopicCourse(prefix, known, listed=named_tables(read_lists(options)))
    course = Course(options, transforms, topics, known, references, _has_schemas(options), existing)
    found: dict[str, Verdict] = {}
    flattening = ""
    for each in transforms:
        stages = len(course.topics.stages)
        verdict = _judged(each, course)
        if _reroutes(each, is_followed=len(course.topics.stages) > stages):
            course.rerouted = each.alias
        if each.type == FLATTENING and "event_flattening.enabled" in verdict.keys:
            flattening = each.alias
        found[each.alias] = verdict
        is_lost = verdict.kind in (VerdictKind.IMPOSSIBLE, VerdictKind.UNKNOWN) and not verdict.keys
        if is_lost and not (each.type in TRANSFORMS and TRANSFORMS[each.type].keeps_names):
            course.passed_over.append(each.alias)
    of_flattening = next((each.options for each in transforms if each.alias == flattening), {})
    has_events_only = any(each.type == OUTBOX and not each.options.get("predicate") for each in transforms)
    return Judged(_whole(transforms), found, flattening, of_flattening, has_events_only)


def _reroutes(transform: Transform, *, is_followed: bool) -> bool:
    """Whether records are in other topics behind the transform than its verdict could follow."""
    if transform.type in (REGEX_ROUTER, *LOGICAL_ROUTERS):
        return not is_followed
    return transform.type in _BY_RECORD or (
        transform.type == FLATTENING and bool(transform.options.get("route.by.field", "").strip())
    )


_BY_RECORD: Final = (f"{DEBEZIUM}contentbasedrouter", f"{CONNECT}timestamprouter")


def _judged(transform: Transform, course: Course) -> Verdict:
    before = list(course.passed_over)
    verdict = _alone(transform, course)
    if not before or not verdict.keys:
        return verdict
    why = f"{verdict.why} cdcd judges this transform as if transform {before[0]}, which comes before it, did not exist."
    return Verdict(
        VerdictKind.DIFFERENT if verdict.kind is VerdictKind.SAME else verdict.kind, why, verdict.keys
    )


def _alone(transform: Transform, course: Course) -> Verdict:
    if not transform.type:
        return lacks(
            "The transform has no type, so Kafka Connect refuses the connector. Correct it, and run this again."
        )
    judge = CLASSES.get(transform.type)
    if judge is None:
        if _is_without_tables(transform, course):
            return NOWHERE
        return TRANSFORMS[transform.type].said if transform.type in TRANSFORMS else lacks(UNKNOWN_CLASS)
    try:
        return judge(transform, course)
    except RefusedError as error:
        return Verdict(VerdictKind.IMPOSSIBLE, str(error), draft=error.draft)
    except UnreadableError as error:
        return lacks(
            f"{error} Write the effect of the transform into cdcd.yaml by hand, and accept this option."
        )
    except UndecidedError as error:
        return Verdict(VerdictKind.UNKNOWN, f"{error} {_REACHABLE}")
    except OpenError as error:
        return Verdict(VerdictKind.UNKNOWN, f"{error} Write the value, and run this again.")


def _is_without_tables(transform: Transform, course: Course) -> bool:
    """Whether the predicate selects topics, none of which is a table's, so that the transform has no effect on rows."""
    try:
        return (
            bool(transform.text("predicate")) and not course.reach(transform, skips_tombstones=False).patterns
        )
    except (RefusedError, UnreadableError, UndecidedError, OpenError):
        return False


def of_option(name: str, judged: Judged, found: Verdict) -> Verdict:
    """What becomes of an option that begins with `transforms`, whose row says `found`."""
    _, alias, option = [*name.split(".", 2), "", ""][:3]
    if not alias:
        return judged.whole if judged.by_alias else found
    if alias not in judged.by_alias:
        return Verdict(
            VerdictKind.IRRELEVANT, "The option belongs to a transform that `transforms` does not name."
        )
    if option == "type":
        return judged.by_alias[alias]
    if alias != judged.flattening:
        return Verdict(VerdictKind.IRRELEVANT, "The option belongs to its transform.")
    return of_former(option, judged.flattening_options, found)


def _whole(transforms: tuple[Transform, ...]) -> Verdict:
    if untyped := [each.alias for each in transforms if not each.type]:
        return lacks(
            f"There is no transforms.{untyped[0]}.type, so Kafka Connect refuses the connector. Correct it, and run "
            "this again."
        )
    return same("`cdcd adopt` reports on each transform at the option with its type.")


def _has_schemas(options: Mapping[str, str]) -> bool:
    """Whether keys or values have Connect's schemas."""
    for part in ("key", "value"):
        converter = options.get(f"{part}.converter", "").strip().lower()
        enabled = options.get(f"{part}.converter.schemas.enable", "true").strip().lower() != "false"
        if converter and (converter != _JSON or enabled):
            return True
    return False
