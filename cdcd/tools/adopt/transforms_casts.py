"""Cast of Kafka Connect for values: computed fields of `fields.tables` that take the place of columns."""

import json
import re
from typing import Final

from cdcd.tools.adopt.course import Course, RefusedError, Transform
from cdcd.tools.adopt.reach import KnownTable, UndecidedError
from cdcd.tools.adopt.transforms_fields import NOWHERE, column_of, of_envelope, refuse_in_key, translated
from cdcd.tools.adopt.transforms_keys import EXTRACT_KEY
from cdcd.tools.adopt.verdicts import Verdict, same

_NUMBERS: Final = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "int"),
    **dict.fromkeys(("float32", "float64"), "double"),
}
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_NOTE: Final = (
    "A number has 64 bits, whatever the width that the transform names, and a date or time is text as RFC 3339 has it. "
    "`cdcd check` (fields.rule) names a table in which an expression does not fit a column."
)


def cast_values(transform: Transform, course: Course) -> Verdict:
    """Cast$Value of named fields: `computed` of `fields.tables`."""
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    wanted = _spec(transform)
    if course.flattening is None:
        return of_envelope(
            set(wanted), "Behind ExtractNewRecordState, computed fields of fields.tables cast columns."
        )
    if course.known is None:
        raise UndecidedError("The types of columns decide, and the database was not asked.")
    columns = {
        column: kind
        for field, kind in wanted.items()
        if (column := column_of(course, field, reach)) is not None
    }
    for column, kind in columns.items():
        if kind != "string" or not _has_text_keys(course):
            refuse_in_key(column, reach, course)
    found: dict[str, object] = {}
    for table in reach.tables(course.known):
        computed = {
            column: expression
            for column, kind in columns.items()
            if column in table.columns and (expression := _expression(column, kind, table))
        }
        if computed:
            found[table.pattern] = {"computed": computed}
    if not found:
        return same("The transform changes no value of the present tables.")
    course.claim("fields.tables", tuple(found), transform.alias, merges=True)
    return translated("fields.tables (computed) casts the columns.", {"fields.tables": found}, [_NOTE])


def _has_text_keys(course: Course) -> bool:
    """Return whether keys are bare texts, which a number and its text have in common."""
    converter = course.options.get("key.converter", "").strip().lower()
    extracts = any(each.type == EXTRACT_KEY and not each.text("predicate") for each in course.transforms)
    return extracts and converter.endswith("stringconverter")


def _spec(transform: Transform) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in transform.texts("spec"):
        field, colon, kind = each.rpartition(":")
        if not colon:
            raise RefusedError(
                "The transform casts whole values, which are rows here. Correct the connector, and run this again."
            )
        found[field] = kind.strip().lower()
    return found


def _expression(column: str, kind: str, table: KnownTable) -> str:
    """Return the expression for a column; "": its values are of the type already.

    RefusedError: no expression makes values of the type.
    """
    is_text = column in table.texts
    if kind == "string" and is_text:
        return ""
    function = "string" if kind == "string" else _NUMBERS.get(kind, "")
    if not function or is_text:
        raise RefusedError(
            f"Column {column} of {table.qualified} {'is a text' if is_text else 'has a value'} of which no expression "
            f"of cdcd makes {kind}. Let the consumers read the column as it is, and accept this option."
        )
    name = f"row.{column}" if _PLAIN.fullmatch(column) else f"row[{json.dumps(column, ensure_ascii=False)}]"
    if column in table.key:
        return f"{function}({name})"
    return f"{name} == null ? null : {function}({name})"
