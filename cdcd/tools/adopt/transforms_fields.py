"""Transforms that change the fields of records: ReplaceField, InsertField and MaskField of Kafka Connect.

All three act on the fields at the top of a key or value. Behind ExtractNewRecordState these are columns. Before it, or
without it, they are the envelope's own fields (`before`, `after`, `source`, `op`), which cdcd does not change; a
transform that names none of them does nothing there.

cdcd's `fields.tables` and `columns` go by columns, and give a field one name wherever it is, in the key too. So a name
of today's records is traced back to its column, and a column that is in a key is a case of its own.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from cdcd.core.records.flattening import DELETED_FIELD
from cdcd.tools.adopt.course import CONNECT, DEBEZIUM, Course, RefusedError, Renamed, Transform
from cdcd.tools.adopt.reach import Reach, UndecidedError
from cdcd.tools.adopt.tables import quoted
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, not_needed, same

FLATTENING: Final = f"{DEBEZIUM}extractnewrecordstate"
REPLACE_VALUE: Final = f"{CONNECT}replacefield$value"
REPLACE_KEY: Final = f"{CONNECT}replacefield$key"

_ENVELOPE: Final = frozenset({"before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"})
_NO_ROWS: Final = frozenset({"op", "ts_ms", "ts_us", "ts_ns", "source", "transaction", "message"})
"""Fields of records that are no rows: heartbeats and logical messages."""

NOWHERE: Final = not_needed(
    "The transform changes nothing, because its predicate is true for no table's records."
)
_NO_ENVELOPE: Final = same(
    "The transform has no effect, because records are envelopes here, and envelopes have none of the fields that it "
    "names. "
    "Columns are inside of before and after, which the transform does not read."
)
_IN_ENVELOPE: Final = (
    "Records are envelopes here, and the transform changes {fields}, outside of the rows in before and after. cdcd "
    "writes the same envelopes as Debezium. Let the consumers read these fields as they are, and accept this option. "
    "{instead}"
)
_DEFAULTS: Final = (
    "NULL stays null in a column that has a default, where the transform writes the default "
    "(replace.null.with.default)."
)
_TODAY: Final = (
    "The list names the present tables, because no pattern matches exactly these tables. Add later tables to "
)
"the rule by hand."
_BY_KEY: Final = (
    "The database was not asked. If the column is in a key, the key also gets the new name, and keys have other "
    "bytes. Run this where the database can be reached."
)


def translated(why: str, keys: Mapping[str, object], notes: Iterable[str]) -> Verdict:
    """The verdict on a transform that cdcd has keys for: same without notes, different with them."""
    said = [each for each in notes if each]
    return Verdict(VerdictKind.DIFFERENT if said else VerdictKind.SAME, " ".join([why, *said]), keys)


def today(reach: Reach) -> str:
    """The note for patterns that are a list of tables."""
    return "" if reach.is_exact else _TODAY


def replace_in_values(transform: Transform, course: Course) -> Verdict:
    """ReplaceField$Value: `columns.exclude`, and `rename` of `fields.tables`."""
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    excluded, renames = transform.listed("exclude", "blacklist"), _renames(transform)
    if course.flattening is None:
        if transform.listed("include", "whitelist"):
            raise RefusedError(_IN_ENVELOPE.format(fields="leaves fields out", instead=""))
        return of_envelope(
            {*excluded, *renames}, "columns.exclude and fields.tables do the same inside of rows."
        )
    if included := transform.listed("include", "whitelist"):
        if excluded or renames:
            raise RefusedError(
                "cdcd adopt reads a list of the only fields (include) without exclude and renames. Write "
                "columns.include and fields.tables by hand, and accept this option."
            )
        return _of_only_fields(included, reach, transform, course)
    keys: dict[str, object] = {}
    if DELETED_FIELD in excluded:
        excluded = tuple([name for name in excluded if name != DELETED_FIELD])
        keys |= _without_deleted(course, reach)
    out = [column for name in excluded if (column := column_of(course, name, reach)) is not None]
    new = {
        column: name
        for field, name in renames.items()
        if field not in excluded and (column := column_of(course, field, reach)) is not None
    }
    for column in out:
        refuse_in_key(column, reach, course)
    for column, name in new.items():
        if not _has_twin(course, transform, REPLACE_KEY, column, name):
            _refuse_renamed_key(column, reach, course)
    for former in (*excluded, *renames):
        course.renamed[former] = Renamed(None, reach.patterns)
    for column, name in new.items():
        course.renamed[name] = Renamed(column, reach.patterns)
    if out:
        keys["columns.exclude"] = _of_columns(reach, out)
    if new:
        course.claim("fields.tables", reach.patterns, transform.alias, merges=True)
        keys["fields.tables"] = {pattern: {"rename": new} for pattern in reach.patterns}
    notes = [today(reach), _DEFAULTS if transform.flag("replace.null.with.default", default=True) else ""]
    notes.append(_BY_KEY if new and course.known is None else "")
    notes.append(_in_other_records({*out, *new}))
    return translated(f"{' and '.join(keys) or 'No field has these names'}.", keys, notes)


def _without_deleted(course: Course, reach: Reach) -> dict[str, object]:
    """The key that leaves `__deleted` out of records; {}: they do not have the field."""
    if DELETED_FIELD not in course.inserted:
        return {}
    if not reach.is_all:
        raise RefusedError(
            f"The transform leaves {DELETED_FIELD} out of the records of some tables, and "
            "event_flattening.deleted_field is for all tables. Let the consumers pass the field over, and accept this "
            "option."
        )
    course.inserted.discard(DELETED_FIELD)
    return {"event_flattening.deleted_field": False}


def _of_only_fields(included: tuple[str, ...], reach: Reach, transform: Transform, course: Course) -> Verdict:
    """The verdict on a list of the only fields of rows: `columns.include`."""
    if course.known is None:
        raise UndecidedError("The list must have a column of each table, and the database was not asked.")
    keys = {} if DELETED_FIELD in included else _without_deleted(course, reach)
    if lost := sorted(course.inserted - set(included)):
        raise RefusedError(
            f"Another transform adds field {lost[0]}, and this one leaves it out again. Remove the field there "
            "(add.fields, static.field), and run this again."
        )
    fields = [name for name in included if name not in course.inserted]
    columns = [column for name in fields if (column := column_of(course, name, reach)) is not None]
    tables = reach.tables(course.known)
    if empty := [table for table in tables if not set(columns) & set(table.columns)]:
        raise RefusedError(
            f"The list has no column of {empty[0].qualified}, and cdcd would deliver all of its columns. Leave the "
            "table out (tables.exclude), and accept this option."
        )
    for table in tables:
        for column in table.columns:
            if column in table.key and column not in columns:
                refuse_in_key(column, reach, course)
        for column in table.columns:
            if column not in columns:
                course.renamed[column] = Renamed(None, reach.patterns)
    return translated(
        f"{' and '.join(['columns.include', *keys])}.",
        {**keys, "columns.include": _of_columns(reach, columns)},
        [
            "A column that gets a name of the list later is left out until columns.include is changed.",
            today(reach),
            _DEFAULTS if transform.flag("replace.null.with.default", default=True) else "",
        ],
    )


def replace_in_keys(transform: Transform, course: Course) -> Verdict:
    """ReplaceField$Key: `rename` of `fields.tables`, where ReplaceField$Value has the same names."""
    reach = course.reach(transform, skips_tombstones=False)
    if not reach.patterns:
        return NOWHERE
    if transform.listed("exclude", "blacklist") or transform.listed("include", "whitelist"):
        raise RefusedError(
            "cdcd cannot leave a column out of a key. Choose the columns of keys in key.columns, and accept this "
            "option."
        )
    new = _renames(transform)
    alone = [
        column
        for column, name in new.items()
        if not _has_twin(course, transform, REPLACE_VALUE, column, name)
    ]
    if alone:
        raise RefusedError(
            f"The transform renames {alone[0]} in keys only. In cdcd, a column has the same name in rows and keys "
            f"(fields.tables, rename). Let the consumers read the former name, or rename it in both, and accept this "
            f"option."
        )
    course.claim("fields.tables", reach.patterns, transform.alias, merges=True)
    return translated(
        "fields.tables renames in rows and in keys.",
        {"fields.tables": {pattern: {"rename": new} for pattern in reach.patterns}},
        [today(reach), "The headers __debezium.newkey and __debezium.oldkey have the new names too."],
    )


def insert_in_values(transform: Transform, course: Course) -> Verdict:
    """InsertField$Value with a constant, or with the topic, which is one for each table: `constants` of
    `fields.tables`.
    """
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    facts = [each for each in ("partition", "offset", "timestamp") if transform.text(f"{each}.field")]
    static, topic = transform.text("static.field"), transform.text("topic.field")
    if facts or not (static or topic):
        raise RefusedError(
            f"cdcd adds constants only ({', '.join(facts) or 'static.field'}.field is not one). A consumer knows "
            f"topic, partition, offset and time of each record; event_flattening.add_fields adds fields of `source`. "
            "Accept this option."
        )
    names = [each.removesuffix("?").removesuffix("!") for each in (topic, static) if each]
    if course.flattening is None:
        raise RefusedError(_IN_ENVELOPE.format(fields=f"adds {' and '.join(names)}", instead=_CONSTANTS))
    constants: dict[str, object] = {}
    if static:
        constants[names[-1]] = course.references.replace(transform.options.get("static.value", "").strip())
    tables: dict[str, dict[str, object]] = dict.fromkeys(reach.patterns, constants)
    # Another such transform has a rule for each table, and a table has one rule.
    by_table = any(each.type == transform.type and each.text("topic.field") for each in course.transforms)
    if by_table and not topic and course.known is not None:
        tables = dict.fromkeys([each.pattern for each in reach.tables(course.known)], constants)
    if topic:
        if course.known is None:
            raise UndecidedError(
                "The topic of each table is a constant of its own, and the database was not asked."
            )
        tables = {
            each.pattern: {names[0]: course.topics.topic_of(each.schema, each.name), **constants}
            for each in reach.tables(course.known)
        }
    given = static or topic
    course.claim("fields.tables", tuple(tables), transform.alias, merges=True)
    course.inserted.update(names)
    return translated(
        "fields.tables has the constant.",
        {"fields.tables": {pattern: {"constants": added} for pattern, added in tables.items()}},
        [
            "The field is before the columns, not behind them. Heartbeats and logical messages do not have it.",
            _OPTIONAL if course.has_schemas and not given.endswith("!") else "",
            _DEFAULTS if transform.flag("replace.null.with.default", default=True) else "",
            _OF_TODAY if topic else _TODAY if by_table else today(reach),
        ],
    )


_OF_TODAY: Final = "Each present table has its topic as a constant. Add a later table to fields.tables."
_CONSTANTS: Final = "fields.tables (constants) adds fields inside of rows."
_OPTIONAL: Final = "In schemas, the field is never null, instead of optional."


def mask_values(transform: Transform, course: Course) -> Verdict:
    """MaskField$Value: `columns.mask`, or `columns.truncate` to nothing."""
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    names, text = transform.texts("fields"), transform.options.get("replacement", "").strip()
    if course.flattening is None:
        return of_envelope(set(names), "columns.mask masks columns inside of rows.")
    masked = [column for name in names if (column := column_of(course, name, reach)) is not None]
    for column in masked:
        refuse_in_key(column, reach, course)
        others = [
            each for each in reach.tables(course.known) if column in each.columns and column not in each.texts
        ]
        if others:
            raise RefusedError(
                f"Column {column} of {others[0].qualified} is not text. MaskField writes 0, or the replacement as a "
                f"value of the column's type. columns.mask writes a text for every type. Write columns.mask "
                "or columns.exclude into cdcd.yaml, let the consumers accept a text, and accept this option. Do not "
                "take over before that: cdcd would deliver the whole values."
            )
    patterns = _of_columns(reach, masked)
    key = "columns.mask" if text else "columns.truncate"
    value: object = course.references.replace(text) if text else 0
    return translated(
        f"{key}.",
        {key: dict.fromkeys(patterns, value)} if patterns else {},
        [
            "An unchanged TOAST value stays the placeholder, which reveals nothing of the value.",
            "" if course.known is not None else _TEXTS_ONLY,
            _DEFAULTS if transform.flag("replace.null.with.default", default=True) else "",
            today(reach),
        ],
    )


_TEXTS_ONLY: Final = (
    "The database was not asked. In a column that is not text, cdcd writes a text where the transform writes a "
    "number, or refuses to start. Run this where the database can be reached."
)


def of_envelope(names: set[str], instead: str) -> Verdict:
    """A transform whose fields are those of an envelope."""
    touched = sorted(names & _ENVELOPE)
    if touched:
        raise RefusedError(_IN_ENVELOPE.format(fields=", ".join(touched), instead=instead))
    return _NO_ENVELOPE


def _renames(transform: Transform) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in transform.texts("renames"):
        field, colon, name = each.partition(":")
        if not colon or not field or not name or ":" in name:
            raise RefusedError(
                f"Its option renames has {each}, which Kafka Connect refuses. Correct the connector, and run this "
                "again."
            )
        found[field] = name
    return found


def column_of(course: Course, field: str, reach: Reach) -> str | None:
    """The column that a field of the row is now; None: no field has this name any more.

    RefusedError: the field is no column, or is one in some of the tables only.
    """
    if field in course.inserted:
        raise RefusedError(
            f"Another transform adds field {field}. Remove the field there (add.fields, static.field), or give it its "
            f"final name there, and run this again."
        )
    found = course.renamed.get(field)
    if found is None:
        return field
    if found.patterns != reach.patterns:
        raise RefusedError(
            f"An earlier transform renames or leaves out field {field} in other tables than this one. Write the "
            "result into fields.tables and columns by hand, and accept this option."
        )
    return found.column


def _of_columns(reach: Reach, columns: Iterable[str]) -> list[str]:
    """Patterns of columns."""
    return [f"{pattern}.{quoted(column)}" for pattern in reach.patterns for column in columns]


def refuse_in_key(column: str, reach: Reach, course: Course) -> None:
    if held := course.in_keys(column, reach):
        raise RefusedError(
            f"Column {column} is in the key of {held[0].qualified}. The transform does not change the key, and cdcd "
            f"keeps each column of a key in the row, with its value. Choose another key in key.columns, or let the "
            "consumers read the column, and accept this option. Do not take over before that if nobody may see its "
            "values."
        )


def _refuse_renamed_key(column: str, reach: Reach, course: Course) -> None:
    if held := course.in_keys(column, reach):
        raise RefusedError(
            f"Column {column} is in the key of {held[0].qualified}. The transform does not change the key. In cdcd, a "
            f"column has the same name in rows and keys, so keys would have other bytes and go to other partitions. "
            f"Keep the name, or write it into fields.tables (rename) and begin with new topics. Then "
            "accept this option."
        )


def _has_twin(course: Course, transform: Transform, kind: str, column: str, name: str) -> bool:
    """Whether the other part of records, key or value, gets the same name by a transform of this class."""
    flat = next(
        (place for place, each in enumerate(course.transforms) if each.type == FLATTENING),
        len(course.transforms),
    )
    condition = ("predicate", "negate")
    return any(
        each.type == kind
        and _renames(each).get(column) == name
        and [each.options.get(one) for one in condition] == [transform.options.get(one) for one in condition]
        and (kind == REPLACE_KEY or place > flat)
        for place, each in enumerate(course.transforms)
    )


def _in_other_records(names: set[str]) -> str:
    held = sorted(names & _NO_ROWS)
    return f"Heartbeats and logical messages keep their field {held[0]}." if held else ""
