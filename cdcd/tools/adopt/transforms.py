"""What becomes of a connector's transforms, one after the other.

Each class has a row: who judges it, and what a person reads of it in docs/debezium-options.md. A transform without a
counterpart does not end the judging: a person may accept it, and then the others hold. Those behind it say that they
were judged as if it were not there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.records.flattening import DELETED_FIELD, REWRITE, REWRITE_WITH_TOMBSTONE, read_added
from cdcd.tools.adopt.course import CONNECT, DEBEZIUM, Course, OpenError, RefusedError, Transform
from cdcd.tools.adopt.java_regex import UnreadableError
from cdcd.tools.adopt.options_flattening import FLATTENING, mode_of, of_former
from cdcd.tools.adopt.reach import Known, Reach, UndecidedError
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.topic_course import TopicCourse
from cdcd.tools.adopt.transforms_fields import (
    NOWHERE,
    REPLACE_KEY,
    REPLACE_VALUE,
    insert_in_values,
    mask_values,
    replace_in_keys,
    replace_in_values,
    translated,
)
from cdcd.tools.adopt.transforms_others import (
    LEAVES_NAMES,
    OTHERS,
    OUTBOX,
    UNKNOWN_CLASS,
    drop_schema_changes,
    outbox,
    set_schema,
)
from cdcd.tools.adopt.transforms_rows import drop, filter_rows, partition, route_rows
from cdcd.tools.adopt.transforms_topics import LOGICAL_ROUTERS, REGEX_ROUTER, route
from cdcd.tools.adopt.verdicts import Kind, Verdict, differs, lacks, same

_REACHABLE: Final = "Run this where the database can be reached."
_JSON: Final = "org.apache.kafka.connect.json.jsonconverter"


def flatten(transform: Transform, course: Course) -> Verdict:
    """ExtractNewRecordState: `event_flattening`, whose other keys have rows of their own (`options_flattening.py`)."""
    if course.flattening is not None:
        return same("It does nothing: records are flattened before it.")
    reach = course.reach(transform, skips_tombstones=False)
    if not reach.patterns:
        return NOWHERE
    course.flattening = transform
    course.inserted |= _added(transform)
    if not reach.is_all and not _is_every_row(reach, course):
        raise RefusedError(
            "cdcd flattens the records of all tables, or of none. Accept this option if you want it for all, and set "
            "event_flattening.enabled in cdcd.yaml; or use two pipelines."
        )
    later = (
        ""
        if reach.is_all
        else "Records of every table are flattened, also of later ones that its predicate spares."
    )
    return translated("event_flattening.enabled: true.", {"event_flattening.enabled": True}, [later])


def _is_every_row(reach: Reach, course: Course) -> bool:
    """Whether only tables of an outbox are left out, whose rows are events that cdcd does not flatten."""
    if course.known is None:
        return False
    events = [
        table
        for each in course.transforms
        if each.type == OUTBOX
        for table in course.reach(each, skips_tombstones=True).tables(course.known)
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


@dataclass(frozen=True, slots=True)
class Row:
    """A class of transforms.

    Attributes:
        judge: raises RefusedError and its like for what has no counterpart.
        said: what becomes of it in general, for the page.
    """

    judge: Callable[[Transform, Course], Verdict]
    said: Verdict


_FIELDS: Final = (
    "Without ExtractNewRecordState before it, it changes the envelope: that is impossible, unless the envelope has "
    "none of the fields."
)

CLASSES: Final[Mapping[str, Row]] = {
    FLATTENING: Row(flatten, same("event_flattening.enabled: true.")),
    REGEX_ROUTER: Row(
        route,
        differs(
            "topics.name, if it says the same of every table, else topics.names for the tables of today; "
            "topics.heartbeat, topics.transaction and topics.message likewise. Topics that do not begin with the "
            "prefix, have no second point, or are those of several tables, are impossible."
        ),
    ),
    **dict.fromkeys(
        LOGICAL_ROUTERS,
        Row(
            route,
            differs(
                "topics.name or topics.names, as for RegexRouter, with key.enforce.uniqueness: false. Without that "
                "it adds a field to keys, which is impossible."
            ),
        ),
    ),
    REPLACE_VALUE: Row(
        replace_in_values,
        differs(
            "columns.exclude (exclude) and fields.tables (renames). A column of a key is renamed only if "
            f"ReplaceField$Key does the same. include is impossible. {_FIELDS}"
        ),
    ),
    REPLACE_KEY: Row(
        replace_in_keys,
        differs("fields.tables (renames), if ReplaceField$Value does the same. Others are impossible."),
    ),
    f"{CONNECT}insertfield$value": Row(
        insert_in_values,
        differs(
            "fields.tables (static.field), behind ExtractNewRecordState. Others are impossible, and so is a "
            "field beside before and after."
        ),
    ),
    f"{CONNECT}maskfield$value": Row(
        mask_values,
        differs(
            "columns.mask (replacement), columns.truncate to 0 characters without one, in columns of text. Others "
            f"are impossible. {_FIELDS}"
        ),
    ),
    f"{CONNECT}filter": Row(
        drop,
        differs(
            "topics.tombstones: false (RecordIsTombstone), tables.exclude or tables.include (TopicNameMatches). "
            "Others are impossible."
        ),
    ),
    f"{DEBEZIUM}filter": Row(
        filter_rows,
        differs(
            "filters.tables, or topics.skipped_operations for value.op, if the condition is made of ==, !=, &&, ||, "
            "! and parentheses over columns, texts, whole numbers, true, false and null. Others are impossible: cdcd "
            "runs no scripts."
        ),
    ),
    f"{DEBEZIUM}contentbasedrouter": Row(
        route_rows,
        differs(
            "routes.tables, if topic.expression chooses topics that are written out, for one table, by conditions "
            "like those of Filter. Others are impossible: cdcd runs no scripts."
        ),
    ),
    f"{DEBEZIUM}partitions.partitionrouting": Row(
        partition,
        lacks(
            "partitioner.columns is written, with another hash: rows go to other partitions. Accept it when "
            "consumers have read all, or with new topics."
        ),
    ),
    OUTBOX: Row(
        outbox,
        lacks(
            "The keys of `outbox` (docs/outbox.md) are in the file as comments: complete them, and accept it. If the "
            "router has only one topic, the keys are written out, and the verdict is different."
        ),
    ),
    f"{CONNECT}setschemametadata$value": Row(
        set_schema, same("Records without schemas are the same. With schemas, it is impossible.")
    ),
    f"{CONNECT}setschemametadata$key": Row(
        set_schema, same("Records without schemas are the same. With schemas, it is impossible.")
    ),
    f"{DEBEZIUM}schemachangeeventfilter": Row(
        drop_schema_changes, same("A connector of PostgreSQL has no schema change events.")
    ),
}
"""The classes with a counterpart, in lower case."""

_SHORT: Final = {
    name.rpartition(".")[2]: name for name in (*OTHERS, *CLASSES) if not name.endswith(".filter")
}
"""Kafka Connect takes the last part of a class's name too. There are two transforms Filter."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of the transforms.

    Attributes:
        whole: the verdict on the option `transforms`.
        by_alias: the verdict on each transform, which is that of its option `type`.
        flattening: the alias of the transform whose options `event_flattening` has; "": none.
        flattening_options: the options of that transform.
    """

    whole: Verdict
    by_alias: Mapping[str, Verdict]
    flattening: str
    flattening_options: Mapping[str, str]


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
    return Transform(alias, _SHORT.get(kind, kind), own)


def judge_transforms(options: Mapping[str, str], references: References, known: Known) -> Judged:
    """What becomes of each transform.

    Args:
        references: gets the variables that constants refer to.
        known: the captured tables; None: the database was not asked.
    """
    transforms = read(options)
    prefix = options.get("topic.prefix", options.get("database.server.name", "")).strip()
    course = Course(options, transforms, TopicCourse(prefix, known), known, references, _has_schemas(options))
    found: dict[str, Verdict] = {}
    flattening = ""
    for each in transforms:
        stages = len(course.topics.stages)
        verdict = _judged(each, course)
        if _reroutes(each, is_followed=len(course.topics.stages) > stages):
            course.rerouted = each.alias
        if "event_flattening.enabled" in verdict.keys:
            flattening = each.alias
        found[each.alias] = verdict
        is_lost = verdict.kind in (Kind.IMPOSSIBLE, Kind.UNKNOWN) and not verdict.keys
        if is_lost and each.type not in LEAVES_NAMES:
            course.passed_over.append(each.alias)
    of_flattening = next((each.options for each in transforms if each.alias == flattening), {})
    return Judged(_whole(transforms), found, flattening, of_flattening)


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
    why = f"{verdict.why} It is judged as if transform {before[0]}, which comes before it, were not there."
    return Verdict(Kind.DIFFERENT if verdict.kind is Kind.SAME else verdict.kind, why, verdict.keys)


def _alone(transform: Transform, course: Course) -> Verdict:
    if not transform.type:
        return lacks(
            "It has no type, so Kafka Connect refuses the connector. Correct it, and run this again."
        )
    row = CLASSES.get(transform.type)
    if row is None:
        return lacks(OTHERS.get(transform.type, UNKNOWN_CLASS))
    try:
        return row.judge(transform, course)
    except RefusedError as error:
        return Verdict(Kind.IMPOSSIBLE, str(error), draft=error.draft)
    except UnreadableError as error:
        return lacks(f"{error} Write what it does into cdcd.yaml by hand, and accept this option.")
    except UndecidedError as error:
        return Verdict(Kind.UNKNOWN, f"{error} {_REACHABLE}")
    except OpenError as error:
        return Verdict(Kind.UNKNOWN, f"{error} Write the value, and run this again.")


def of_option(name: str, judged: Judged, found: Verdict) -> Verdict:
    """What becomes of an option that begins with `transforms`, whose row says `found`."""
    _, alias, option = [*name.split(".", 2), "", ""][:3]
    if not alias:
        return judged.whole if judged.by_alias else found
    if alias not in judged.by_alias:
        return Verdict(Kind.IRRELEVANT, "It belongs to a transform that `transforms` does not name.")
    if option == "type":
        return judged.by_alias[alias]
    if alias != judged.flattening:
        return Verdict(Kind.IRRELEVANT, "It belongs to its transform.")
    return of_former(option, judged.flattening_options, found)


def _whole(transforms: tuple[Transform, ...]) -> Verdict:
    if untyped := [each.alias for each in transforms if not each.type]:
        return lacks(
            f"There is no transforms.{untyped[0]}.type, so Kafka Connect refuses the connector. Correct it, and run "
            "this again."
        )
    return same("Each transform is judged at its type.")


def _has_schemas(options: Mapping[str, str]) -> bool:
    """Whether keys or values have Connect's schemas."""
    for part in ("key", "value"):
        converter = options.get(f"{part}.converter", "").strip().lower()
        enabled = options.get(f"{part}.converter.schemas.enable", "true").strip().lower() != "false"
        if converter and (converter != _JSON or enabled):
            return True
    return False
