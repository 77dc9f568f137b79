"""Barriers: the rights and policies that keep a role from reading the rows of a published table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.adapters.postgres.quoting import TABLE_TEXT

# For a table with a column list, rights on the published columns and on ctid (for reading by pages) are
# enough.
BARRIERS: Final = f"""
WITH RECURSIVE tree(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION ALL
    SELECT tree.root, i.inhrelid
      FROM tree JOIN pg_class c ON c.oid = tree.oid AND c.relkind = 'p' JOIN pg_inherits i ON i.inhparent = c.oid
), rights AS (
    SELECT tree.root, quote_ident(n.nspname) AS schema, format('%%I.%%I', n.nspname, c.relname) AS part,
           NOT has_schema_privilege(n.oid, 'USAGE') AS lacks_usage,
           NOT has_table_privilege(c.oid, 'SELECT') AS lacks_select, row_security_active(c.oid) AS has_policy,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND NOT a.attisdropped AND (a.attnum > 0 OR a.attname = 'ctid')
                    AND has_column_privilege(c.oid, a.attnum, 'SELECT')) AS readable
      FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind = 'r'
)
SELECT {TABLE_TEXT}, schema, part, lacks_usage, lacks_select, has_policy, readable
  FROM rights JOIN pg_class c ON c.oid = root JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE lacks_usage OR lacks_select OR has_policy
 ORDER BY part
"""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Missing rights or policies that keep a role from reading the rows of a table or partition.

    Attributes:
        table: the published table, as `schema.table`.
        schema, part: names of the schema and of the table or partition, quoted for SQL.
        lacks_usage, lacks_select: True if the role lacks the right on the schema or on the table.
        has_policy: True if a row-level security policy applies to the role.
        readable: columns that the role may read, possibly with ctid.
        role: name of the role; "" for cdcd's own role.
        columns: columns to grant, with ctid, if the publication has a column list; () if the whole table must be
            granted.
    """

    table: str
    schema: str
    part: str
    lacks_usage: bool
    lacks_select: bool
    has_policy: bool
    readable: Sequence[str] = ()
    role: str = ""
    columns: tuple[str, ...] = ()

    def with_list(self, columns: Sequence[str] | None) -> "Barrier | None":
        """Return the barrier if these columns (None: all) are published; None if the role's rights are enough."""
        if columns is None or not self.lacks_select:
            return self
        needed = ("ctid", *columns)
        lacking = not set(needed) <= set(self.readable)
        if not (lacking or self.lacks_usage or self.has_policy):
            return None
        return replace(self, lacks_select=lacking, columns=needed)
