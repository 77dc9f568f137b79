"""Which former values PostgreSQL sends of rows of a partitioned table that is published as a whole.

A Relation message describes the partitioned table, and says which columns are in *its* replica identity. PostgreSQL
sends former values by the replica identity of the partition that has the row (`ExtractReplicaIdentity` in heapam.c).
ALTER TABLE … REPLICA IDENTITY on a partitioned table leaves the one of its partitions as it is.

The rule: a former value is known only if every partition sends it. A key that needs others is refused, because a row
that is deleted, or gets another key, would stay in the topic under its former key. Nothing would tell.
"""

from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation


def check_partitions(relation: Relation, table: TableDescription) -> None:
    """ConfigError: a partition does not send the former values of the columns that make the table's key."""
    unsent = dict(table.unsent)
    for column in key_columns(relation, table):
        if column in unsent:
            raise ConfigError(
                f"The key of {relation.schema}.{relation.name} has column {column}, of which PostgreSQL does not send "
                f"the former value for rows of partition {unsent[column]}: the replica identity of the partition lacks "
                "it. A row whose key changes, or that is deleted, would stay in the topic under its former key.",
                hint=f"Run ALTER TABLE {unsent[column]} REPLICA IDENTITY FULL; or give the partition a replica identity"
                f" with {column}. Rows that are deleted before that have no key in their records.",
            )


def known_before(relation: Relation, table: TableDescription) -> list[bool]:
    """For each column, whether its former value is known of a row whose former values PostgreSQL sends in part, or not
    at all because they are as before.

    Of a table with REPLICA IDENTITY FULL this can be a row of a partition with another replica identity. Then only the
    columns of a key can be in that one.
    """
    unsent = dict(table.unsent)
    keys = {*table.primary_key, *table.unique_key} if relation.replica_identity == "f" else None
    return [
        bool(column.is_key) and column.name not in unsent and (keys is None or column.name in keys)
        for column in relation.columns
    ]
