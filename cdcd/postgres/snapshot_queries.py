"""The SQL of a snapshot's queries: which rows, and whether the table is still the one that the query was made for.

A condition keeps brackets and a line of its own: nothing in it can close the bracket (`SnapshotCatalog.examine` lets
through what is one expression), and a `--` in it ends with its line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.postgres.replication import identifier, literal
from cdcd.snapshots.reading import KeyQuery, PageQuery, SourceTable

TID_RANGE_SINCE: Final = 140000
"""The server version that can go to a range of pages; before it, each item on them is named one by one."""

_PAGE_HEADER: Final = 24
_ITEM: Final = 24 + 4
"""A tuple's header, aligned, and its line pointer."""

COLUMNS: Final = (
    "coalesce(jsonb_agg(jsonb_build_array(attnum, attname, atttypid::int8, atttypmod) ORDER BY attnum), "
    "'[]')::text"
)
"""`SourceTable.columns`, of rows of pg_attribute."""

_CHECK: Final = """\
SELECT pg_current_snapshot(), pg_current_wal_insert_lsn(),
       to_regclass({part})::oid, pg_relation_filenode({part_oid}), to_regclass({table})::oid,
       (SELECT {columns} FROM pg_attribute WHERE attrelid = {table_oid} AND attnum > 0 AND NOT attisdropped)"""


@dataclass(frozen=True, slots=True)
class Equality:
    """How values of a type are compared with a literal.

    Attributes:
        operator: of SQL; one of an extension is not on our search path, and has its schema in front.
        cast: what the literal needs behind it.
    """

    operator: str = "="
    cast: str = ""


def items_per_page(block_size: int) -> int:
    """The most rows on a page: MaxHeapTuplesPerPage (htup_details.h), 291 for 8 KiB."""
    return (block_size - _PAGE_HEADER) // _ITEM


def relation_of(query: PageQuery | KeyQuery) -> str:
    """What the query reads, as it stands behind LOCK TABLE and FROM."""
    if isinstance(query, PageQuery):
        return f"ONLY {query.sql_name}"
    return query.table.sql_name if query.table.partitioned else f"ONLY {query.table.sql_name}"


def check(query: PageQuery | KeyQuery) -> str:
    """One row: what is seen, where in the WAL, oids that the names lead to, file of the part, columns of the table."""
    table = query.table
    name, oid = (query.sql_name, query.oid) if isinstance(query, PageQuery) else (table.sql_name, table.oid)
    return _CHECK.format(
        part=literal(name), part_oid=oid, table=literal(table.sql_name), table_oid=table.oid, columns=COLUMNS
    )


def description(table: SourceTable) -> str:
    """No row, of the table's columns: its description is as of now, also where the snapshot is of long ago."""
    return f"SELECT {_columns(table)} FROM ONLY {table.sql_name} LIMIT 0"


def names(query: PageQuery | KeyQuery) -> str:
    """One row: the oids that the names lead to."""
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

    The literals have no type of their own, so that the column's decides what is equal.

    Args:
        keys: values as text, in the order of `key_columns`.
        equalities: by column; those that are not there compare by `=`.
    """

    def is_key(column: str, value: str) -> str:
        equality = equalities.get(column, Equality())
        return f"{identifier(column)} {equality.operator} {literal(value)}{equality.cast}"

    (first, *others) = query.key_columns
    if not keys:
        return _copy(query, "false")
    if not others and first not in equalities:
        # One index scan for all of them.
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
    """Why a condition cannot be sent at all; empty when it can. libpq takes a NUL for the end of the command."""
    if "\0" in condition:
        return "the condition holds a NUL character"
    try:
        condition.encode()
    except UnicodeEncodeError:
        return "the condition holds half of a surrogate pair"
    return ""
