"""Partitions of tables that are published as a whole: detects attached, detached and truncated partitions.

PostgreSQL publishes rows only. ATTACH, DETACH and DROP of a partition, and TRUNCATE of a partition instead of its
partitioned table, change the rows of the table and send nothing (pgoutput.c, pgoutput_truncate). So the topic no
longer matches the table afterwards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.publication import SCHEMA_SINCE
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.core.facts import Fact
from cdcd.core.facts.tables import PartitionAttached, PartitionDetached, PartitionTruncated
from cdcd.core.pasted import read_table

# Only the catalog is read, because pg_partition_tree and pg_publication_tables wait for locks on the
# tables. The row of a system column is never updated, so its xmin is the transaction that created the table, and its
# cmin the command. A partition that another transaction put into the tree was attached, and so was one that a later
# command of the same transaction put there: CREATE TABLE ... PARTITION OF counts three commands between the two rows
# (seen on 13 and 18; ATTACH has at least two more).
_SCHEMAS: Final = """
 OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""

_TREE: Final = """
WITH RECURSIVE roots AS (
    SELECT c.oid, n.nspname || '.' || c.relname AS name
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
SELECT c.oid::int8, tree.name, n.nspname || '.' || c.relname, c.relfilenode::int8,
       CASE WHEN tree.attached THEN greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)::int8 ELSE 0 END,
       c.relpages = 0,
       (SELECT md5(string_agg(format('%%s %%s %%s', a.attnum, a.atttypid, a.atttypmod), ' ' ORDER BY a.attnum))
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       tree.attached
  FROM tree JOIN pg_class c ON c.oid = tree.part JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r'
"""

# A failure also takes back the setting, because these commands are one transaction.
_SIZE: Final = "SET lock_timeout = 200; SELECT pg_relation_size({oid}); RESET lock_timeout"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that stores rows itself.

    Attributes:
        root: the partitioned table, as `schema.table`.
        file: the file that holds the rows (pg_class.relfilenode), which TRUNCATE replaces.
        rows: estimated number of rows by the server's statistics, if the partition was attached. The rows of a table
            that was created as a partition are in the stream.
        is_uncounted: True if the server has not counted the pages of that file yet.
        columns: digest of the types of the columns.
        is_attached: True if the table, or one that it is a partition of, was created before it became a partition.
    """

    root: str
    name: str
    file: int
    rows: int
    is_uncounted: bool
    columns: str
    is_attached: bool = False

    def is_truncated(self, former: "Leaf") -> bool:
        """Return True if the partition has lost all rows since `former` was read.

        VACUUM FULL and CLUSTER also write a new file but count its pages, and ALTER TABLE writes a new file only
        with other column types.
        """
        return self.file != former.file and self.is_uncounted and self.columns == former.columns


async def read_leaves(connection: Connection, publication: str) -> dict[int, Leaf]:
    """Return the partitions of all tables that the publication publishes as a whole, by oid.

    Raises TransientError, SourceError.
    """
    schemas = _SCHEMAS if connection.info.server_version >= SCHEMA_SINCE else ""
    with translated("reading partitions", {"publication": publication}):
        query = _TREE.format(schemas=schemas).encode()
        rows: Any = await (await connection.execute(query, (publication,))).fetchall()
    return {oid: Leaf(*leaf) for oid, *leaf in rows}


async def count_attached(
    connection: Connection, before: Mapping[int, Leaf], now: Mapping[int, Leaf]
) -> dict[int, Leaf]:
    """Return `now` with a number of rows for partitions that were attached before the statistics had counted them.

    A partition counts as not empty if its file is not empty, or if another session has locked it.

    Raises TransientError, SourceError.
    """
    found = dict(now)
    for oid, leaf in now.items():
        if oid in before or not leaf.is_attached or leaf.rows:
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
    return found


def to_read_again(facts: Iterable[Fact]) -> list[str]:
    """Return the partitioned tables whose topics have other rows than the table, each once."""
    tables: dict[str, None] = {}
    for fact in facts:
        if isinstance(fact, PartitionDetached | PartitionTruncated) or (
            isinstance(fact, PartitionAttached) and fact.rows
        ):
            tables[fact.table] = None
    return list(tables)


def happened(before: Mapping[int, Leaf], now: Mapping[int, Leaf]) -> list[Fact]:
    """Return the facts about partitions that changed between two reads. Partitions of a new table give no facts."""
    roots = {leaf.root for leaf in before.values()}
    facts: list[Fact] = []
    for oid, leaf in now.items():
        former = before.get(oid)
        if former is None:
            if leaf.root in roots:
                command = read_table(leaf.root) if leaf.rows else ""
                facts.append(
                    PartitionAttached(table=leaf.root, partition=leaf.name, rows=leaf.rows, command=command)
                )
        elif leaf.is_truncated(former):
            facts.append(PartitionTruncated(table=leaf.root, partition=leaf.name))
    facts += [
        PartitionDetached(table=leaf.root, partition=leaf.name)
        for oid, leaf in before.items()
        if oid not in now
    ]
    return facts
