"""Finds the columns whose old values PostgreSQL sends whenever a row is updated or deleted.

These are all columns under REPLICA IDENTITY FULL, and otherwise the columns of the replica identity. For a
partitioned table that is published as a whole, the old values depend on the replica identity of each partition,
which may differ.

The Relation message of such a table describes the partitioned table, and says which columns are in *its* replica
identity. But PostgreSQL sends old values by the replica identity of the partition that has the row
(`ExtractReplicaIdentity` in heapam.c). ALTER TABLE … REPLICA IDENTITY on a partitioned table does not change its
partitions.

The rule: an old value is known only if every partition sends it. A key that needs other columns is refused, because
a row that is deleted, or gets another key, would silently stay in the topic under its old key.
"""

from collections.abc import Iterable

from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.core.table_names import table_text


def check_former_values(
    rule: str, columns: Iterable[str], relation: Relation, table: TableDescription, consequence: str
) -> None:
    """Check that PostgreSQL sends the former values of these columns.

    Args:
        rule: configuration key that names the columns.
        consequence: sentence about what would be impossible without the former values.

    Raises:
        ConfigError: the table lacks a column, or PostgreSQL does not send its former value.
    """
    name = table_text(relation.schema, relation.name)
    there = {column.name: column.is_key for column in relation.columns}
    for column in columns:
        if column not in there:
            raise ConfigError(
                f"{rule} has column {column}, which {name} does not have, or the publication leaves out.",
                hint="Compare the name with the one in PostgreSQL, case included.",
            )
    unsent = dict(table.unsent)
    for column in columns:
        if column in unsent:
            raise ConfigError(
                f"{rule} has column {column} of {name}, of which PostgreSQL does not send the former value for rows of "
                f"partition {unsent[column]}: the replica identity of the partition lacks it. {consequence}",
                hint=f"Run ALTER TABLE {unsent[column]} REPLICA IDENTITY FULL; which writes whole former rows to the "
                "WAL, or choose among other columns.",
            )
    if relation.replica_identity == "f":
        if table.is_partitioned:
            _check_partitioned(rule, columns, table, name)
        return
    for column in columns:
        if relation.replica_identity == "n" or not there[column]:
            raise ConfigError(
                f"{rule} has column {column}. PostgreSQL does not send its former value, because the column is not in "
                f"the replica identity of {name}. {consequence}",
                hint=f'Run ALTER TABLE "{relation.schema}"."{relation.name}" REPLICA IDENTITY FULL; which writes whole '
                "former rows to the WAL, or choose among the columns of the replica identity.",
            )


def _check_partitioned(rule: str, columns: Iterable[str], table: TableDescription, name: str) -> None:
    for column in columns:
        if column not in table.primary_key:
            raise ConfigError(
                f"{rule} has column {column} of {name}, which is not in its primary key, and {name} is partitioned. "
                "PostgreSQL sends former values according to the replica identity of each partition, not of the "
                "partitioned table.",
                hint="Choose among the columns of the primary key, or publish the partitions as tables of their own "
                "(publish_via_partition_root = false).",
            )


def check_partitions(relation: Relation, table: TableDescription) -> None:
    """Raise ConfigError if a partition does not send the former values of the table's key columns."""
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
    """Return for each column True if its former value is known.

    PostgreSQL sends former values in part, or not at all because they are unchanged. With REPLICA IDENTITY FULL the
    row can be in a partition with another replica identity, which can only contain the columns of a key.
    """
    unsent = dict(table.unsent)
    keys = {*table.primary_key, *table.unique_key} if relation.replica_identity == "f" else None
    return [
        bool(column.is_key) and column.name not in unsent and (keys is None or column.name in keys)
        for column in relation.columns
    ]
