"""Transforms that change keys: ExtractField, and the field that Debezium's routers of logical tables add to keys.

`key.forms` goes by tables: the keys of a table are bare values, or have constant fields, or neither.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cdcd.core.catalog.renaming import Router, compiled
from cdcd.tools.adopt.course import CONNECT, DEBEZIUM, Course, RefusedError, Transform
from cdcd.tools.adopt.reach import UndecidedError
from cdcd.tools.adopt.transforms_fields import NOWHERE, today, translated
from cdcd.tools.adopt.verdicts import Verdict

EXTRACT_KEY: Final = f"{CONNECT}extractfield$key"

LOGICAL_ROUTERS: Final = (
    f"{DEBEZIUM}bylogicaltablerouter",
    f"{DEBEZIUM}tologicaltopicrouter",
)
_KEY_FIELDS: Final = dict(
    zip(LOGICAL_ROUTERS, ("__dbz__physicalTableIdentifier", "__dbz__sourceIdentifier"), strict=True)
)
_TEXTS: Final = "stringconverter"


def extract_from_keys(transform: Transform, course: Course) -> Verdict:
    """ExtractField$Key: bare keys by `key.forms`."""
    reach = course.reach(transform, skips_tombstones=False)
    if not reach.patterns:
        return NOWHERE
    if course.known is None:
        raise UndecidedError(
            "A bare key has one column, and the database was not asked for the keys of tables."
        )
    field = transform.text("field")
    renamed = course.renamed.get(field)
    column = field if renamed is None else renamed.column
    for table in reach.tables(course.known):
        if table.key and column not in table.key:
            raise RefusedError(
                f"The key of {table.qualified} has no field {field}, so the connector stops at its first record. "
                "Correct the field or the predicate in the connector, and run this again."
            )
        if len(table.key) > 1:
            raise RefusedError(
                f"The key of {table.qualified} has {len(table.key)} columns, and the transform keeps one of them, so "
                "several rows may share a key. Write this column into key.columns and the table into key.forms with "
                "bare: true, and accept this option."
            )
    course.claim("key.forms", reach.patterns, transform.alias)
    keys: dict[str, object] = {"key.forms": {pattern: {"bare": True} for pattern in reach.patterns}}
    is_text = course.options.get("key.converter", "").strip().lower().endswith(_TEXTS)
    if is_text:
        keys["format.key"] = "text"
    return translated(f"{' and '.join(keys)}.", keys, [today(reach), _KEYS_OF_MIRRORS])


def key_of_values(transform: Transform, course: Course) -> Verdict:
    """ValueToKey: keys of columns by `key.columns`."""
    reach = course.reach(transform, skips_tombstones=True)
    if not reach.patterns:
        return NOWHERE
    fields = transform.texts("fields")
    if course.flattening is None:
        raise RefusedError(
            f"Records are envelopes here, so the key would be made of {' and '.join(fields)} of the envelope. Write "
            "the columns into key.columns, and accept this option."
        )
    renamed = [course.renamed.get(each) for each in fields]
    columns = tuple(
        [field if name is None else name.column or "" for field, name in zip(fields, renamed, strict=True)]
    )
    if not columns or not all(columns) or course.inserted.intersection(columns):
        raise RefusedError(
            f"The key would be made of {' and '.join(fields) or 'no field'}, which are not all columns of the table. "
            "Write columns that identify the rows into key.columns, and accept this option."
        )
    course.refuse_missing(columns, reach)
    course.claim("key.columns", reach.patterns, transform.alias)
    if course.known is not None:
        # A later transform finds the new keys.
        meant = {table.qualified for table in reach.tables(course.known)}
        course.known = tuple(
            [
                replace(table, key=frozenset(columns)) if table.qualified in meant else table
                for table in course.known
            ]
        )
    keys = {"key.columns": {pattern: list(columns) for pattern in reach.patterns}}
    return translated("key.columns.", keys, [today(reach), _KEYS_OF_COLUMNS])


_KEYS_OF_COLUMNS: Final = (
    "The key has the columns in the order of the table. cdcd refuses a key of which PostgreSQL does not send the "
    "former values: set REPLICA IDENTITY FULL for tables that `cdcd check` names."
)
_KEYS_OF_MIRRORS: Final = "cdcd mirror and cdcd verify leave these tables out."


def key_field(transform: Transform) -> str:
    """The field that Debezium's routers add to keys; "": none."""
    if transform.type not in _KEY_FIELDS or not transform.flag("key.enforce.uniqueness", default=True):
        return ""
    return transform.text("key.field.name", _KEY_FIELDS[transform.type])


def keys_of_logical_tables(
    transform: Transform, router: Router, topic_of: Callable[[str, str], str], course: Course
) -> dict[str, object]:
    """`key.forms` with the field that a router adds to the keys of the tables whose topics it renames.

    Args:
        topic_of: the topic of a table in front of the router.

    Raises:
        UndecidedError: the database was not asked for its tables.
        RefusedError: a later transform makes a key of the added field.
    """
    field = key_field(transform)
    if not field:
        return {}
    if course.known is None:
        raise UndecidedError(
            f"The transform adds the field {field} with the former topic to the keys of each table, and the database "
            "was not asked."
        )
    behind = course.transforms[course.transforms.index(transform) + 1 :]
    extracting = next((each for each in behind if each.type == EXTRACT_KEY), None)
    if extracting is not None and extracting.text("field") == field:
        raise RefusedError(
            f"Transform {extracting.alias} makes a key of the field {field}, which is one text for all rows of a "
            "table. Write key.columns with a column that identifies rows, and accept this option."
        )
    regex, replacement = transform.text("key.field.regex"), transform.text("key.field.replacement")
    naming = Router(compiled(regex), replacement) if regex and replacement else None
    accepts = course.accepts(transform)
    is_bare = extracting is not None and not extracting.text("predicate")
    forms: dict[str, object] = {}
    for table in () if is_bare else course.known:
        topic = topic_of(table.schema, table.name)
        if table.key and accepts(topic) and router.expression.fullmatch(topic) is not None:
            text = topic if naming is None else naming.routed(topic)
            forms[table.pattern] = {"constants": {field: text}}
    course.claim("key.forms", tuple(forms), transform.alias)
    return {"key.forms": forms} if forms else {}
