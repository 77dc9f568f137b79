"""Reads the partitions of tables that are published as a whole; `core/catalog/partitions.py` compares them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.publication import SCHEMA_SINCE
from cdcd.adapters.postgres.quoting import TABLE_TEXT
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.core.catalog.partitions import Leaf, Partitions

# Only the catalog is read, because pg_partition_tree and pg_publication_tables wait for locks on the
# tables. The row of a system column is never updated, so its xmin is the transaction that created the table, and its
# cmin the command. A partition that another transaction put into the tree was attached, and so was one that a later
# command of the same transaction put there: CREATE TABLE ... PARTITION OF counts three commands between the two rows
# (seen on 13 and 18; ATTACH has at least two more).
_SCHEMAS: Final = """
 OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""

_TREE: Final = """
WITH RECURSIVE roots AS (
    SELECT c.oid, {name} AS name
      FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE p.pubname = %s AND p.pubviaroot AND c.relkind = 'p' AND NOT c.relispartition
       AND (p.puballtables AND NOT EXISTS (SELECT FROM pg_publication_rel r
                                            WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
            OR NOT p.puballtables AND EXISTS (SELECT FROM pg_publication_rel r
                                               WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
            {schemas})
), tree AS (
    SELECT oid, name, oid AS part, false AS attached FROM roots
     UNION ALL
    SELECT tree.oid, tree.name, i.inhrelid,
           tree.attached OR i.xmin::text <> a.xmin::text OR i.cmin::text::int8 - a.cmin::text::int8 > 3
      FROM tree JOIN pg_inherits i ON i.inhparent = tree.part
      JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1
)
SELECT tree.oid::int8, tree.name, c.oid::int8, {name}, c.relfilenode::int8,
       CASE WHEN tree.attached THEN greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)::int8 ELSE 0 END,
       c.relpages = 0,
       coalesce((SELECT hashtext(string_agg(format('%%s %%s %%s', a.attnum, a.atttypid, a.atttypmod), ' '
                                            ORDER BY a.attnum))
                   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0), 0) & x'7fffffff'::int,
       tree.attached
  FROM tree JOIN pg_class c ON c.oid = tree.part JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' OR c.oid = tree.oid
"""

_NAMES: Final = f"""
SELECT c.oid::int8, {TABLE_TEXT}
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""

# A failure also takes back the setting, because these commands are one transaction.
_SIZE: Final = "SET lock_timeout = 200; SELECT pg_relation_size({oid}); RESET lock_timeout"


async def read_partitions(connection: Connection, publication: str) -> Partitions:
    """Return the tables that the publication publishes as a whole, and their partitions that store rows.

    Raises TransientError, SourceError.
    """
    schemas = _SCHEMAS if connection.info.server_version >= SCHEMA_SINCE else ""
    with translated("reading partitions", {"publication": publication}):
        query = _TREE.format(schemas=schemas, name=TABLE_TEXT).encode()
        rows: Any = await (await connection.execute(query, (publication,))).fetchall()
    roots: dict[int, str] = {}
    leaves: dict[int, Leaf] = {}
    for root, table, oid, name, file, count, is_uncounted, columns, is_attached in rows:
        roots[root] = table
        if oid != root:
            leaves[oid] = Leaf(root, name, file, columns, count, is_uncounted, is_attached)
    return Partitions(roots, leaves)


async def read_names(connection: Connection, oids: Iterable[int]) -> dict[int, str]:
    """Return the names of tables as `schema.table`, by oid, without those that do not exist.

    Raises TransientError, SourceError.
    """
    with translated("reading names of partitions", {}):
        rows: Any = await (await connection.execute(_NAMES.encode(), (list(oids),))).fetchall()
    return dict(rows)


async def count_attached(connection: Connection, before: Partitions, now: Partitions) -> Partitions:
    """Return `now` with a number of rows for partitions that were attached before the statistics had counted them.

    A partition counts as not empty if its file is not empty, or if another session has locked it.

    Raises TransientError, SourceError.
    """
    found = dict(now.leaves)
    for oid, leaf in now.leaves.items():
        former = before.leaves.get(oid)
        is_known = leaf.root not in before.roots or (former is not None and former.root == leaf.root)
        if is_known or not leaf.is_attached or leaf.rows:
            continue
        try:
            with translated("reading the size of a partition", {}):
                cursor = await connection.execute(_SIZE.format(oid=oid).encode())
                cursor.nextset()
                row: Any = await cursor.fetchone()
                is_empty = not row[0]
        except TableBusyError:
            is_empty = False
        found[oid] = leaf if is_empty else replace(leaf, rows=1)
    return replace(now, leaves=found)
