"""The published tables as the stream would describe them now, for what is held against their columns."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cdcd.postgres import catalog
from cdcd.postgres.connection import Connection
from cdcd.protocol.messages import Relation
from cdcd.rows.relations import TableDescription, TypeDescription
from cdcd.rows.types import BUILTIN_TYPES


@dataclass(frozen=True, slots=True)
class DescribedTables:
    """Tables, what the catalog says of each that is partitioned by its oid, and the types of their columns."""

    relations: list[Relation]
    descriptions: Mapping[int, TableDescription]
    types: Mapping[int, TypeDescription]


async def column_types(connection: Connection, relations: Iterable[Relation]) -> dict[int, TypeDescription]:
    """The types of all columns, and those that are built in. Raises TransientError and SourceError."""
    wanted = {column.type_oid for relation in relations for column in relation.columns}
    return {**BUILTIN_TYPES, **await catalog.types(connection, wanted - BUILTIN_TYPES.keys())}


async def described_tables(connection: Connection, oids: Collection[int]) -> DescribedTables:
    """The tables with these oids. Raises TransientError and SourceError."""
    relations = await catalog.relations(connection, oids)
    types = await column_types(connection, relations)
    partitioned = await catalog.describe(connection, await catalog.partitioned(connection, oids))
    descriptions = {relation.oid: partitioned.get(relation.oid, TableDescription()) for relation in relations}
    return DescribedTables(relations, descriptions, types)
