"""The published tables as the stream would describe them now, for what is held against their columns."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Relation


@dataclass(frozen=True, slots=True)
class DescribedTables:
    """Tables, what the catalog says of each by its oid, and the types of their columns."""

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
    found = await catalog.describe(connection, oids, with_kin=True)
    descriptions = {relation.oid: numbered(relation, found[relation.oid]) for relation in relations}
    return DescribedTables(relations, descriptions, types)


def numbered(relation: Relation, table: TableDescription) -> TableDescription:
    """The description with the attribute numbers of the relation's columns, both of which the catalog has now."""
    ids = {column.name: column.id for column in table.columns}
    names = [column.name for column in relation.columns]
    numbers = tuple([ids[name] for name in names]) if ids.keys() >= set(names) else ()
    return replace(table, numbers=numbers)
