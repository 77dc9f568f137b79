"""A chunk's query: its names and keys as SQL, whether the table is still the plan's, and what an error means for it."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from psycopg import pq

from cdcd.adapters.postgres.answers import Answer, refused
from cdcd.adapters.postgres.quoting import identifier
from cdcd.adapters.postgres.snapshot_queries import unwritable
from cdcd.core.catalog.binary_compound import reader_for
from cdcd.core.catalog.binary_text import WithoutReaderError
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.errors import TransientError
from cdcd.core.snapshot.reading import (
    KeyQuery,
    PageQuery,
    SourceTable,
)
from cdcd.core.snapshot.table_task import KeyValue

CHANGED: Final = "changed"

BUSY: Final = "busy"

AGAIN: Final = "again"

REFUSED: Final = "refused"

_KINDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("42P01", "", CHANGED),  # undefined_table
    ("3F000", "", CHANGED),  # invalid_schema_name
    ("42703", "", CHANGED),  # undefined_column
    ("42704", "", CHANGED),  # undefined_object: a type
    ("42809", "", CHANGED),  # wrong_object_type: a view has the name now
    ("55000", "", CHANGED),  # object_not_in_prerequisite_state: a view or a foreign table (`SETTINGS`)
    ("XX000", "could not open relation", CHANGED),
    ("XX000", "cache lookup failed", CHANGED),
    ("55P03", "", BUSY),  # lock_not_available
    ("08", "", AGAIN),  # connection_exception
    ("40", "", AGAIN),  # deadlock_detected and its kin
    ("53", "", AGAIN),  # insufficient_resources
    ("57", "", AGAIN),  # operator_intervention
    ("58", "", AGAIN),  # system_error
    ("72000", "", AGAIN),  # snapshot_too_old, before 17
)
"""(SQLSTATE or its beginning, part of an untranslated message, meaning for the query). Any other error is
`Refused`.

The condition of a request can raise any of these errors. In the step that evaluates it, every error is `Refused`.
"""

BUILTIN_BEFORE: Final = 10000
"""FirstGenbkiObjectId (transam.h). A type with a smaller oid is not a domain. For a domain, a result names the base
type."""

WITHOUT_READER: Final = (
    "Give the table a reader (postgres.readers), or name its owner in postgres.trusted_owners; `cdcd check` prints "
    "both. Then restart the daemon."
)
"""Hint for a table that is not read because of its owner."""

EXTENSION_FROM: Final = 16384
"""FirstNormalObjectId (transam.h): types from here on were created by users or extensions."""

EQUALITIES: Final = """
WITH RECURSIVE superuser AS (
    SELECT oid FROM pg_roles WHERE rolsuper
), safe_schema AS (
    SELECT n.oid FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
     WHERE CASE WHEN r.rolname = 'pg_database_owner'
                THEN (SELECT datdba FROM pg_database WHERE datname = current_database())
                ELSE n.nspowner END IN (SELECT oid FROM superuser)
), base(wanted, oid) AS (
    SELECT oid, oid FROM unnest({oids}::oid[]) AS wanted(oid)
     UNION ALL
    SELECT base.wanted, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.oid AND t.typtype = 'd'
)
SELECT base.wanted::int8, format('%I.%I', n.nspname, t.typname), CASE WHEN t.oid < {builtin} THEN '=' ELSE (
    SELECT format('OPERATOR(%I.%s)', m.nspname, o.oprname)
      FROM pg_opclass c
      JOIN pg_am am ON am.oid = c.opcmethod AND am.amname = 'btree'
      JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amopstrategy = 3
                    AND a.amoplefttype = c.opcintype AND a.amoprighttype = c.opcintype
      JOIN pg_operator o ON o.oid = a.amopopr
      JOIN pg_proc p ON p.oid = o.oprcode
      JOIN pg_namespace m ON m.oid = o.oprnamespace
     WHERE c.opcdefault AND c.opcintype = t.oid
       AND ARRAY[t.typowner, o.oprowner, p.proowner] <@ ARRAY(SELECT oid FROM superuser)
       AND ARRAY[n.oid, m.oid] <@ ARRAY(SELECT oid FROM safe_schema)
       AND NOT EXISTS (
           SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.objid IN (t.oid, o.oid)
              AND e.extowner NOT IN (SELECT oid FROM superuser))
     LIMIT 1) END
  FROM base JOIN pg_type t ON t.oid = base.oid AND t.typtype <> 'd' JOIN pg_namespace n ON n.oid = t.typnamespace
"""
"""Comparisons of columns whose types are not built in (`Equality`).

An extension's operator is used only if no role but a superuser can replace it, move it or rename its schema, also
between this query and the next one. The owner of a trusted extension (citext) is its creator, who may move its
objects to another schema.
"""


def granted_columns(table: SourceTable) -> str:
    """Return the columns that must be granted, as SQL; empty if the table is published with all of its columns.

    Other columns stay hidden: the role needs the published columns, and ctid for reading by pages.
    """
    published = [column.name for column in table.relation.columns]
    if len(published) == len(json.loads(table.columns)):
        return ""
    return f" ({', '.join(['ctid', *map(identifier, published)])})"


def locked_oid(query: PageQuery | KeyQuery) -> int:
    """Return the oid of the relation that is locked."""
    return query.oid if isinstance(query, PageQuery) else query.table.oid


def reading_what(query: PageQuery | KeyQuery) -> str:
    return f"reading {sql_name_of(query)}"


def sql_name_of(query: PageQuery | KeyQuery) -> str:
    return query.sql_name if isinstance(query, PageQuery) else query.table.sql_name


def key_texts(query: KeyQuery, types: Mapping[int, TypeDescription]) -> list[list[str]]:
    """Return the keys as text. Raises WithoutReaderError if a value is in binary form and its type has no reader.

    The server does not convert the keys, because it would evaluate the owner's domains on their values.
    """
    oids = {column.name: column.type_oid for column in query.table.relation.columns}
    readers = {name: reader_for(oids.get(name, 0), types) for name in query.key_columns}

    def text(name: str, value: KeyValue) -> str:
        is_binary, data = value
        if not is_binary:
            return data.decode("utf-8", "surrogateescape")
        reader = readers[name]
        if reader is None:
            raise WithoutReaderError(f"the binary form of the key column {name} cannot be read")
        # Wire text (catalog/wiretext.py) has one character for each byte.
        return reader(data).encode("latin-1").decode("utf-8", "surrogateescape")

    return [
        [text(name, value) for name, value in zip(query.key_columns, key, strict=True)] for key in query.keys
    ]


def other_names(query: PageQuery | KeyQuery, found: Sequence[str | None]) -> str:
    """Return why the relations with these oids are not those of the query; empty if they are."""
    part_oid = query.oid if isinstance(query, PageQuery) else query.table.oid
    if None in found:
        return "the table was dropped or renamed"
    return "" if tuple(found) == (str(part_oid), str(query.table.oid)) else "another table has taken its name"


def unwritable_condition(query: PageQuery | KeyQuery) -> str:
    """Return why the conditions cannot be sent; empty if they can."""
    for condition in query.conditions:
        if problem := unwritable(condition):
            return problem
    return ""


def has_request(query: PageQuery | KeyQuery) -> bool:
    """Return True if the query has the condition of a request.

    PostgreSQL allows only harmless row filters in a publication.
    """
    return any(condition and condition != query.table.row_filter for condition in query.conditions)


def fits_plan(described: pq.abc.PGresult, table: SourceTable) -> bool:
    """Return True if the current columns are those of the plan.

    A column that was added since does not count, because it has no values at the snapshot.
    """
    planned = {attnum: (name, oid, modifier) for attnum, name, oid, modifier in json.loads(table.columns)}
    for place in range(described.nfields):
        name, type_oid, modifier = planned.get(described.ftablecol(place), ("", 0, 0))
        if (described.fname(place) or b"").decode() != name:
            return False
        now = described.ftype(place), described.fmod(place)
        if type_oid < BUILTIN_BEFORE and now != (type_oid, modifier):
            return False
    return True


def kind_of(answer: Answer) -> str:
    for sqlstate, fragment, kind in _KINDS:
        if answer.sqlstate.startswith(sqlstate) and fragment in answer.message:
            return kind
    return REFUSED


def untrusted(owners: str) -> str:
    """Return why a table of these owners is not read."""
    return (
        f"the owner could run code as cdcd's role, because no reader reads the table and its owner ({owners}) is not "
        "trusted (security.strict)"
    )


def words_of_condition(step: str, answer: Answer) -> str:
    """Return the reason why a condition fails.

    If the condition was evaluated for rows, the message may contain values, so it is left out.
    """
    return answer.without_message if step == "rows" else answer.text_of_rows


def as_transient(what: str, answer: Answer) -> TransientError:
    """Return the error as a transient one. If an operator must act, the next connection reports that."""
    error = refused(what, answer, {})
    return error if isinstance(error, TransientError) else TransientError(error.message, hint=error.hint)
