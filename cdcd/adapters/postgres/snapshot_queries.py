"""The SQL of a snapshot's queries: it selects rows, and checks that the table is still the table of the plan.

Each condition stands in brackets and ends with a newline. Nothing in it can close the bracket, because
`SnapshotCatalog.examine` accepts single expressions only. A `--` in it ends at the newline.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from cdcd.adapters.postgres.quoting import identifier, literal
from cdcd.core.snapshot.reading import ROWS, KeyQuery, PageQuery, SourceTable

TID_RANGE_SINCE: Final = 140000
"""First server version with TID range scans. For older servers, the query lists every item of the pages."""

_PAGE_HEADER: Final = 24
"""Bytes of a page's header."""

_ITEM: Final = 24 + 4
"""Bytes of a tuple's header, aligned, and of its line pointer."""

COLUMNS: Final = (
    "coalesce(jsonb_agg(jsonb_build_array(attnum, attname, atttypid::int8, atttypmod) ORDER BY attnum), "
    "'[]')::text"
)
"""An aggregate over rows of pg_attribute, which gives `SourceTable.columns`."""

SETTINGS: Final = """\
SET search_path = pg_catalog, pg_temp; SET row_security = off; SET default_transaction_read_only = on;
SET constraint_exclusion = off; SET array_nulls = on; SET transform_null_equals = off;
SELECT set_config(name, 'view, foreign-table', false)
  FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'"""
"""Settings of a session that reads tables of other owners, whatever the role or the database is set to.

search_path: without pg_temp in the path, tables and types of pg_temp would be found before those of pg_catalog.
row_security: rows that a policy hides would be missing in silence; so reading such a table is an error, and the
functions of its policies are not called.
constraint_exclusion: with `on`, the planner evaluates CHECK constraints of the owner.
restrict_nonsystem_relation_kind: a view or a foreign table that takes the name of a table is an error before anything
of it runs. Minor versions from August 2024 on have the setting (13.16, 14.13, 15.8, 16.4, 17).
"""

_CHECK: Final = """\
SELECT pg_current_snapshot(), pg_current_wal_insert_lsn(),
       to_regclass({part})::oid, pg_relation_filenode({part_oid}), to_regclass({table})::oid,
       (SELECT {columns} FROM pg_attribute WHERE attrelid = {table_oid} AND attnum > 0 AND NOT attisdropped),
       pg_relation_is_publishable({part_oid}), pg_relation_size({part_oid}) / current_setting('block_size')::int8,
       EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = {part_oid} AND attgenerated <> '' AND attname = ANY({names}::name[])),
       {leaves}, {untrusted}"""

_UNTRUSTED: Final = """\
(SELECT string_agg(DISTINCT r.rolname, ', ') FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
  WHERE c.oid IN ({oids}) AND NOT r.rolsuper AND r.rolname <> current_user AND r.rolname <> ALL({trusted}))"""

_LEAVES: Final = """\
(SELECT CASE WHEN bool_or(c.relkind = 'f') THEN coalesce(
            jsonb_agg(format('%I.%I', n.nspname, c.relname)) FILTER (WHERE c.relkind = 'r'), '[]') END
   FROM pg_partition_tree({table_oid}) t
   JOIN pg_class c ON c.oid = t.relid
   JOIN pg_namespace n ON n.oid = c.relnamespace)"""


@dataclass(frozen=True, slots=True)
class Checked:
    """The server's facts about a locked table, read before its rows.

    Attributes:
        snapshot, after: visibility of the query's snapshot, and an LSN after the commit of everything that it sees.
        part, table: oids of the relations with the names of the part and of the table; None: no such relation.
        filenode: file number of the part.
        columns: columns as in `SourceTable.columns`.
        is_table: True if the part is a table now (relkind r or p), also in a transaction with an old snapshot.
        pages: current number of pages of the part.
        generated: True if a column to be read is generated, so that COPY of the table refuses it.
        leaves: names of the partitions that are tables, if the table has foreign tables as partitions, else None.
        untrusted: owners of what is read that are not trusted, as text; "": none, or the reader trusts everybody.
    """

    snapshot: str
    after: str
    part: str | None
    filenode: str | None
    table: str | None
    columns: str
    is_table: bool
    pages: int
    generated: bool
    leaves: tuple[str, ...] | None
    untrusted: str

    @classmethod
    def of(cls, row: Sequence[str | None]) -> Self:
        """Create the object from the row that the query of `check` returns."""
        snapshot, after, part, filenode, table, columns, is_table, pages, generated, leaves, untrusted = row
        return cls(
            snapshot or "",
            after or "",
            part,
            filenode,
            table,
            columns or "",
            is_table == "t",
            int(pages or 0),
            generated == "t",
            None if leaves is None else tuple(json.loads(leaves)),
            untrusted or "",
        )


@dataclass(frozen=True, slots=True)
class Equality:
    """Comparison of a key column with literals that runs no code of an owner.

    Attributes:
        base: type to which the column and the literals are cast, as SQL; "" for no cast. For a domain it is the
            base type: a literal is not cast to the domain, because that evaluates the domain's CHECK. The cast from
            a domain never calls a function: PostgreSQL ignores casts that somebody created for a domain.
        operator: operator in SQL. An operator of an extension is written with its schema.
        by_text: True if the texts that COPY writes are compared. `format('%s', column)` calls the output function
            of the type, as COPY does, and no cast, whichever casts exist. The output functions of enums,
            composites, ranges, arrays and domains are PostgreSQL's own (enum_out, record_out, range_out, array_out,
            and that of the base type); only a superuser can create a type with another one. No index helps to find
            such a row.
    """

    base: str = ""
    operator: str = "="
    by_text: bool = False

    def left(self, column: str) -> str:
        """Return the column's side of the comparison."""
        name = identifier(column)
        if self.by_text:
            return f"format('%s', {name})"
        return f"{name}::{self.base}" if self.base else name

    def right(self, value: str) -> str:
        """Return the value's side of the comparison."""
        return f"{literal(value)}::{self.base}" if self.base else literal(value)


def items_per_page(block_size: int) -> int:
    """Return the maximum of rows on a page: MaxHeapTuplesPerPage (htup_details.h), 291 for 8 KiB."""
    return (block_size - _PAGE_HEADER) // _ITEM


def relation_of(query: PageQuery | KeyQuery) -> str:
    """Return the relation that the query reads, as written after LOCK TABLE and FROM."""
    if isinstance(query, PageQuery):
        return f"ONLY {query.sql_name}"
    return query.table.sql_name if query.table.partitioned else f"ONLY {query.table.sql_name}"


def lock(query: PageQuery | KeyQuery, *, by_parsing: bool) -> list[str]:
    """Return commands that lock the relation (ACCESS SHARE) until the transaction or its savepoint ends.

    Nothing is planned.

    LOCK TABLE needs SELECT on the whole table, whatever the server's version. If only columns are granted, a query
    is parsed instead, because PostgreSQL locks its relation then. The query is never run, so PostgreSQL checks no
    rights. Parsing takes the snapshot of the transaction before it waits for the lock. So the query of `rewritten`
    must run after it.

    Args:
        by_parsing: True if the role lacks SELECT on the whole table.
    """
    if not by_parsing:
        return [f"LOCK TABLE {relation_of(query)} IN ACCESS SHARE MODE"]
    # A rollback keeps prepared statements. A function of the table's owner may have left one with the same name.
    return ["DEALLOCATE ALL", f"PREPARE cdcd_lock AS SELECT FROM {relation_of(query)}"]


def rewritten(query: PageQuery | KeyQuery) -> str:
    """Return a query for the number of the table's files that differ from those in the transaction's snapshot.

    Rows of such a file may be missing at the snapshot (TRUNCATE and ALTER TABLE are not MVCC-safe).
    """
    oid = query.oid if isinstance(query, PageQuery) else query.table.oid
    return (
        "SELECT count(*) FROM pg_class c "
        f"WHERE c.oid IN (SELECT relid FROM pg_partition_tree({oid}) UNION SELECT {oid}) "
        "AND c.relkind = 'r' AND c.relfilenode <> pg_relation_filenode(c.oid)"
    )


def untrusted_owners(oids: str, trusted: Sequence[str]) -> str:
    """Return an expression for the owners of relations who are no superusers and not among `trusted`, as text.

    `oids`: list of oids, or a query for them.
    """
    return _UNTRUSTED.format(oids=oids, trusted=f"ARRAY[{', '.join(map(literal, trusted))}]::name[]")


def check(query: PageQuery | KeyQuery, trusted: Sequence[str] | None = None) -> str:
    """Return a query for one row, which `Checked.of` reads. `trusted`: as in `readers.Access`."""
    table = query.table
    by_key = isinstance(query, KeyQuery) and table.partitioned
    name, oid = (query.sql_name, query.oid) if isinstance(query, PageQuery) else (table.sql_name, table.oid)
    # A query by key plans all partitions.
    oids = f"SELECT relid FROM pg_partition_tree({table.oid})" if by_key else f"{oid}, {table.oid}"
    return _CHECK.format(
        part=literal(name),
        part_oid=oid,
        table=literal(table.sql_name),
        table_oid=table.oid,
        columns=COLUMNS,
        names=f"ARRAY[{', '.join(literal(column.name) for column in table.relation.columns)}]",
        leaves=_LEAVES.format(table_oid=table.oid) if by_key else "NULL",
        untrusted="NULL" if trusted is None else untrusted_owners(oids, trusted),
    )


def description(table: SourceTable) -> str:
    """Return a query that is only described, not run.

    Its result describes the current columns, even in a transaction with an old snapshot.
    """
    return f"SELECT {_columns(table)} FROM ONLY {table.sql_name}"


def is_whole(query: PageQuery) -> bool:
    """Return True if COPY of the table gives the rows of the query.

    The query must cover all pages that the part had when it was planned, and at least one column, because COPY
    accepts no empty list.
    """
    planned = [each.part.pages for each in query.table.parts if each.part.oid == query.oid]
    covers_all = query.begin == 0 and len(planned) == 1 and planned[0] <= query.end
    return covers_all and bool(query.table.relation.columns) and not any(query.conditions)


def copy_table(query: PageQuery) -> str:
    """Return the COPY command for the whole part.

    PostgreSQL does not plan this command, so it evaluates no expression of the table's owner.
    """
    return f"COPY {query.sql_name} ({_columns(query.table)}) TO STDOUT"


def names(query: PageQuery | KeyQuery) -> str:
    """Return a query for one row with the oids of the tables that have these names now."""
    part = query.sql_name if isinstance(query, PageQuery) else query.table.sql_name
    return f"SELECT to_regclass({literal(part)})::oid, to_regclass({literal(query.table.sql_name)})::oid"


def copy_pages(query: PageQuery, server_version: int, block_size: int, chosen: str = "") -> str:
    """Return the COPY command for the rows on these pages.

    Args:
        chosen: the table's query in `snapshot.queries`; "": it has none.
    """
    if server_version >= TID_RANGE_SINCE:
        pages = f"ctid >= '({query.begin},0)'::tid AND ctid < '({query.end},0)'::tid"
    else:
        pages = (
            "ctid = ANY (ARRAY(SELECT format('(%s,%s)', page, item)::tid "
            f"FROM generate_series({query.begin}, {query.end - 1}) page, "
            f"generate_series(1, {items_per_page(block_size)}) item))"
        )
    return _copy(query, pages, chosen=chosen)


def copy_keys(
    query: KeyQuery,
    keys: Sequence[Sequence[str]],
    equalities: Mapping[str, Equality],
    leaves: Sequence[str] | None = None,
    chosen: str = "",
) -> str:
    """Return the COPY command for the rows with these keys.

    Args:
        keys: values as text, in the order of `key_columns`.
        equalities: comparisons of key columns whose types are not built in. A column without an entry is compared
            by `=` with literals without a type, so that the column's type decides what is equal.
        leaves: partitions to read instead of the table; None: the table itself.
        chosen: as for `copy_pages`.
    """
    condition = _has_key(query, keys, equalities)
    if leaves is None:
        return _copy(query, condition, chosen=chosen)
    if not leaves:
        return _copy(query, "false", f"ONLY {query.table.sql_name}")
    selects = " UNION ALL ".join(_select(query, condition, f"ONLY {leaf}") for leaf in leaves)
    return f"COPY ({by_query(selects, query.table, chosen)}) TO STDOUT"


def by_query(select: str, table: SourceTable, chosen: str) -> str:
    """Return the SELECT for the rows that the table's query makes of the rows of `select`; "": these rows."""
    if not chosen:
        return select
    # A comment at the end of the query ends with the line.
    return f"SELECT {_columns(table)} FROM ({chosen.replace(ROWS, f'({select})')}\n) AS cdcd_rows"


def without_rows(chosen: str) -> str:
    """Return a query of `snapshot.queries` that the server plans and starts, but for which it reads no row."""
    return f"SELECT * FROM ({chosen}\n) AS cdcd_checked LIMIT 0"


def all_columns(table: SourceTable, chosen: str) -> str:
    """Return a query that is only described, not run. Its columns are those that the table's query returns."""
    return f"SELECT * FROM ({chosen.replace(ROWS, f'({description(table)})')}\n) AS cdcd_rows"


def _has_key(query: KeyQuery, keys: Sequence[Sequence[str]], equalities: Mapping[str, Equality]) -> str:
    """Return a condition that is true for the rows with these keys."""
    how = [equalities.get(column, Equality()) for column in query.key_columns]
    if not keys:
        # The planner would leave out the other tables of a query if it knew that there are no rows.
        return "(SELECT false)"
    if len(how) == 1 and how[0].operator == "=":
        # One index scan finds all of these rows.
        listed = ", ".join(how[0].right(value) for (value,) in keys)
        return f"{how[0].left(query.key_columns[0])} IN ({listed})"
    rows = (
        " AND ".join(
            f"{each.left(column)} {each.operator} {each.right(value)}"
            for each, column, value in zip(how, query.key_columns, key, strict=True)
        )
        for key in keys
    )
    return f"({' OR '.join(f'({row})' for row in rows)})"


def _copy(query: PageQuery | KeyQuery, rows: str, relation: str = "", chosen: str = "") -> str:
    select = by_query(_select(query, rows, relation or relation_of(query)), query.table, chosen)
    return f"COPY ({select}) TO STDOUT"


def _select(query: PageQuery | KeyQuery, rows: str, relation: str) -> str:
    where = " AND ".join([rows, *(f"({condition}\n)" for condition in query.conditions if condition)])
    return f"SELECT {_columns(query.table)} FROM {relation} WHERE {where}"


def _columns(table: SourceTable) -> str:
    return ", ".join(identifier(column.name) for column in table.relation.columns)


def unwritable(condition: str) -> str:
    """Return the reason why a condition cannot be sent; empty if it can. libpq ends a command at a NUL character."""
    if "\0" in condition:
        return "the condition contains a NUL character"
    try:
        condition.encode()
    except UnicodeEncodeError:
        return "the condition contains half of a surrogate pair"
    return ""
