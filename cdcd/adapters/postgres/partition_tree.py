"""Partitions of tables that are published as a whole: detects attached, detached and truncated partitions.

PostgreSQL publishes rows only. ATTACH, DETACH and DROP of a partition, and TRUNCATE of a partition instead of its
partitioned table, change the rows of the table and send nothing (pgoutput.c, pgoutput_truncate). So the topic no
longer matches the table afterwards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.publication import SCHEMA_SINCE
from cdcd.adapters.postgres.refusals import translated
from cdcd.core.facts import Fact, PartitionAttached, PartitionDetached, PartitionTruncated
from cdcd.core.pasted import read_table

# Only the catalog is read, because pg_partition_tree and pg_publication_tables wait for locks on the
# tables.
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
    SELECT oid, name, oid AS part FROM roots
     UNION ALL
    SELECT tree.oid, tree.name, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.part
)
SELECT c.oid::int8, tree.name, n.nspname || '.' || c.relname, c.relfilenode::int8,
       greatest(c.reltuples, 0)::int8, c.relpages = 0,
       (SELECT md5(string_agg(format('%%s %%s %%s', a.attnum, a.atttypid, a.atttypmod), ' ' ORDER BY a.attnum))
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
  FROM tree JOIN pg_class c ON c.oid = tree.part JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r'
"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that stores rows itself.

    Attributes:
        root: the partitioned table, as `schema.table`.
        file: the file that holds the rows (pg_class.relfilenode), which TRUNCATE replaces.
        rows: estimated number of rows, by the server's statistics.
        is_uncounted: True if the server has not counted the pages of that file yet.
        columns: digest of the types of the columns.
    """

    root: str
    name: str
    file: int
    rows: int
    is_uncounted: bool
    columns: str

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
