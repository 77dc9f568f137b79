"""Relatives of tables, by which rules that protect columns hold for partitions and children: parents, partitions, and
the tables that a table may have been a partition or child of.
"""

from collections.abc import Collection
from typing import Any, Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.relations import Kin

# The table itself, the tables that it inherits from, and the partitions of a partitioned table.
_KIN: Final = """
WITH RECURSIVE up(root, oid, depth) AS (
    SELECT oid, oid, 0 FROM unnest(%s::oid[]) AS wanted(oid)
     UNION
    SELECT root, inhparent, depth + 1 FROM up JOIN pg_inherits ON inhrelid = up.oid
), down(root, oid) AS (
    SELECT up.root, up.oid FROM up JOIN pg_class c USING (oid) WHERE depth = 0 AND relkind = 'p'
     UNION
    SELECT root, inhrelid FROM down JOIN pg_inherits ON inhparent = down.oid
), kin(root, oid, depth) AS (
    SELECT root, oid, min(depth) FROM up GROUP BY root, oid
     UNION ALL
    SELECT root, oid, NULL FROM down WHERE root <> oid
)
SELECT root::int8, c.oid::int8, n.nspname::text, c.relname::text, depth IS NULL,
       coalesce(array_agg(a.attnum::int ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), '{}'),
       coalesce(array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), '{}')
  FROM kin JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a
    ON kin.depth IS DISTINCT FROM 0 AND a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY root, c.oid, n.nspname, c.relname, depth
 ORDER BY root, depth NULLS LAST, c.oid
"""

# Tables that have no parent now, but may have had one. Such a table does not exist, or ALTER TABLE has changed the
# rows of all its columns in pg_attribute, as DETACH PARTITION and NO INHERIT do (RemoveInheritance in tablecmds.c).
# The row of a system column keeps the transaction that created the table.
_LEFT: Final = b"""
SELECT wanted.oid::int8 FROM unnest(%s::oid[]) AS wanted(oid)
 WHERE NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = wanted.oid)
   AND NOT EXISTS (
       SELECT FROM pg_attribute s JOIN pg_attribute a ON a.attrelid = s.attrelid AND a.attnum > 0 AND a.xmin = s.xmin
        WHERE s.attrelid = wanted.oid AND s.attnum = -1)
"""
_PARENTS: Final = b"""
SELECT c.oid::int8, n.nspname::text, c.relname::text,
       array_agg(a.attnum::int ORDER BY a.attnum), array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relkind = 'p' OR c.relkind = 'r' AND c.relhassubclass
 GROUP BY c.oid, n.nspname, c.relname
 ORDER BY c.oid
"""


async def kin_of(connection: Connection, oids: Collection[int]) -> dict[int, list[Kin]]:
    """Return the relatives of each table by its oid, the table itself first if it exists."""
    found: dict[int, list[Kin]] = {}
    row: Any
    for row in await (await connection.execute(_KIN.encode(), (list(oids),))).fetchall():
        root, oid, schema, name, is_part, numbers, names = row
        columns = tuple(zip(numbers, names, strict=True))
        found.setdefault(root, []).append(Kin(oid, schema, name, columns, is_part))
    left: list[Any] = await (await connection.execute(_LEFT, (list(oids),))).fetchall()
    parents = await _parents(connection) if left else []
    for (oid,) in left:
        found.setdefault(oid, []).extend([kin for kin in parents if kin.oid != oid])
    return found


async def _parents(connection: Connection) -> list[Kin]:
    """Return all tables that have, or may have had, partitions or children."""
    rows: list[Any] = await (await connection.execute(_PARENTS)).fetchall()
    return [
        Kin(oid, schema, name, tuple(zip(numbers, names, strict=True)), is_former=True)
        for oid, schema, name, numbers, names in rows
    ]
