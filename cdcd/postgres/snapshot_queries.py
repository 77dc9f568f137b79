"""The SQL of a snapshot's queries: it selects rows, and checks that the table is still the table of the plan.

Each condition stands in brackets and ends with a newline. Nothing in it can close the bracket, because
`SnapshotCatalog.examine` accepts single expressions only. A `--` in it ends at the newline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.postgres.replication import identifier, literal
from cdcd.snapshots.reading import KeyQuery, PageQuery, SourceTable

TID_RANGE_SINCE: Final = 140000
"""The server version that brought TID range scans. For older servers, the query lists every item of the pages."""

_PAGE_HEADER: Final = 24
"""Bytes of a page's header."""

_ITEM: Final = 24 + 4
"""Bytes of a tuple's header, aligned, and of its line pointer."""

COLUMNS: Final = (
    "coalesce(jsonb_agg(jsonb_build_array(attnum, attname, atttypid::int8, atttypmod) ORDER BY attnum), "
    "'[]')::text"
)
"""An aggregate over rows of pg_attribute, which gives `SourceTable.columns`."""

_CHECK: Final = """\
SELECT pg_current_snapshot(), pg_current_wal_insert_lsn(),
       to_regclass({part})::oid, pg_relation_filenode({part_oid}), to_regclass({table})::oid,
       (SELECT {columns} FROM pg_attribute WHERE attrelid = {table_oid} AND attnum > 0 AND NOT attisdropped)"""


@dataclass(frozen=True, slots=True)
class Equality:
    """How a value of a type is compared with a literal.

    Attributes:
        operator: SQL's operator. An operator of an extension is written with its schema, because our search path lacks
            that schema.
        cast: the text that must follow the literal, "" if none must.
    """

    operator: str = "="
    cast: str = ""


def items_per_page(block_size: int) -> int:
    """The most rows on a page: MaxHeapTuplesPerPage (htup_details.h), 291 for 8 KiB."""
    return (block_size - _PAGE_HEADER) // _ITEM


def relation_of(query: PageQuery | KeyQuery) -> str:
    """The relation that the query reads, as it is written after LOCK TABLE and FROM."""
    if isinstance(query, PageQuery):
        return f"ONLY {query.sql_name}"
    return query.table.sql_name if query.table.partitioned else f"ONLY {query.table.sql_name}"


def check(query: PageQuery | KeyQuery) -> str:
    """A query for one row: visibility, end of the WAL, file of the part, oids of both names, columns of the table."""
    table = query.table
    name, oid = (query.sql_name, query.oid) if isinstance(query, PageQuery) else (table.sql_name, table.oid)
    return _CHECK.format(
        part=literal(name), part_oid=oid, table=literal(table.sql_name), table_oid=table.oid, columns=COLUMNS
    )


def description(table: SourceTable) -> str:
    """A query for no rows. The result describes the columns as of now, even in a transaction with an old snapshot."""
    return f"SELECT {_columns(table)} FROM ONLY {table.sql_name} LIMIT 0"


def names(query: PageQuery | KeyQuery) -> str:
    """A query for one row: the oids of the tables that have these names now."""
    part = query.sql_name if isinstance(query, PageQuery) else query.table.sql_name
    return f"SELECT to_regclass({literal(part)})::oid, to_regclass({literal(query.table.sql_name)})::oid"


def copy_pages(query: PageQuery, server_version: int, block_size: int) -> str:
    """COPY of the rows on these pages."""
    if server_version >= TID_RANGE_SINCE:
        pages = f"ctid >= '({query.begin},0)'::tid AND ctid < '({query.end},0)'::tid"
    else:
        pages = (
            "ctid = ANY (ARRAY(SELECT format('(%s,%s)', page, item)::tid "
            f"FROM generate_series({query.begin}, {query.end - 1}) page, "
            f"generate_series(1, {items_per_page(block_size)}) item))"
        )
    return _copy(query, pages)


def copy_keys(query: KeyQuery, keys: Sequence[Sequence[str]], equalities: Mapping[str, Equality]) -> str:
    """COPY of the rows with these keys.

    The literals have no type, so that the type of the column decides what is equal.

    Args:
        keys: values as text, in the order of `key_columns`.
        equalities: how columns are compared; a column without an entry is compared by `=`.
    """

    def is_key(column: str, value: str) -> str:
        equality = equalities.get(column, Equality())
        return f"{identifier(column)} {equality.operator} {literal(value)}{equality.cast}"

    (first, *others) = query.key_columns
    if not keys:
        return _copy(query, "false")
    if not others and first not in equalities:
        # One index scan finds all of them.
        listed = ", ".join(literal(value) for (value,) in keys)
        return _copy(query, f"{identifier(first)} IN ({listed})")
    rows = " OR ".join("(" + " AND ".join(map(is_key, query.key_columns, key)) + ")" for key in keys)
    return _copy(query, f"({rows})")


def _copy(query: PageQuery | KeyQuery, rows: str) -> str:
    where = " AND ".join([rows, *(f"({condition}\n)" for condition in query.conditions if condition)])
    return f"COPY (SELECT {_columns(query.table)} FROM {relation_of(query)} WHERE {where}) TO STDOUT"


def _columns(table: SourceTable) -> str:
    return ", ".join(identifier(column.name) for column in table.relation.columns)


def unwritable(condition: str) -> str:
    """Why a condition cannot be sent at all; empty if it can. libpq ends a command at a NUL character."""
    if "\0" in condition:
        return "the condition contains a NUL character"
    try:
        condition.encode()
    except UnicodeEncodeError:
        return "the condition contains half of a surrogate pair"
    return ""
