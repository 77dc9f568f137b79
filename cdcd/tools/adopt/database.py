"""Tables and publication of a connector's database: the columns that transforms ask for, and the tables that cdcd gets.

Debezium leaves tables out after it received them; cdcd delivers every table of its publication. So where a publication
has more tables than the connector captures, cdcd needs one of its own. PostgreSQL sends changes by a publication only
if it existed when they were written: it must be there before the slot gets to its place in the WAL.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.publication import Publication, PublishedTable, creation
from cdcd.config.loading import Config
from cdcd.core.catalog.modes import form_under
from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.catalog.table_rules import ChosenKeys
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.pasted import quoted as identifier
from cdcd.core.protocol.messages import Relation
from cdcd.daemon.rules.tables import column_types
from cdcd.tools.adopt.reach import KnownTable
from cdcd.tools.adopt.tables import Lists


def captured(tables: Sequence[PublishedTable], lists: Lists) -> list[PublishedTable]:
    """Those of the tables that the connector captures; all, if only Java reads its lists."""
    if lists.unreadable:
        return list(tables)
    return [each for each in tables if lists.captures(each.schema, each.name)]


async def read_known(
    connection: Connection, tables: Sequence[PublishedTable], config: Config, routing: Collection[str]
) -> tuple[KnownTable, ...]:
    """The tables with their columns and keys.

    Args:
        routing: columns whose values choose the topics of events.

    Raises TransientError and SourceError.
    """
    oids = [each.oid for each in tables]
    relations = await catalog.relations(connection, oids)
    described = await catalog.describe(connection, oids)
    types = await column_types(connection, relations)
    keys, forms = ChosenKeys(config.key.rules), config.format.modes()
    return tuple(
        [
            KnownTable(
                each.schema,
                each.name,
                tuple([column.name for column in each.columns]),
                _key(each, described[each.oid], keys),
                frozenset(
                    [
                        column.name
                        for column in each.columns
                        if form_under(forms, column.type_oid, column.type_modifier, types) == "text"
                    ]
                ),
                await _values(connection, each, routing) if routing else (),
            )
            for each in relations
        ]
    )


_VALUES_MAX: Final = 100
"""Most values of a column that are read."""


async def _values(
    connection: Connection, relation: Relation, routing: Collection[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The values of columns that choose topics, as far as rows with them are there.

    A table that this role may not read, or cannot read in time, has none.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for column in [column.name for column in relation.columns if column.name in routing]:
        try:
            values = await catalog.distinct_values(connection, relation, column, _VALUES_MAX)
        except CdcdError:
            continue
        found.append((column, tuple(filter(None, values))))
    return tuple(found)


def _key(relation: Relation, table: TableDescription, keys: ChosenKeys) -> frozenset[str]:
    try:
        table = keys.applied(relation, table)
    except ConfigError:
        # `cdcd check` names the key that cannot be.
        return frozenset()
    return frozenset(key_columns(relation, table))


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A publication that must be made.

    Attributes:
        left_out: tables of the former publication that the connector does not capture, as `schema.table`.
        statement: makes it.
    """

    name: str
    tables: tuple[PublishedTable, ...]
    left_out: tuple[str, ...]
    statement: str

    def is_made_by(self, found: Publication) -> bool:
        """Whether a publication is the one that `statement` makes."""
        return {table.oid: (table.columns, table.row_filter) for table in found.tables} == {
            table.oid: (table.columns, table.row_filter) for table in self.tables
        }


def narrowing(name: str, publication: Publication, lists: Lists) -> Narrowing | None:
    """The publication that cdcd needs instead; None: the connector's own one has nothing too much.

    Args:
        name: for the new one.
        lists: all readable.
    """
    kept = tuple([table for table in publication.tables if lists.captures(table.schema, table.name)])
    left_out = tuple([table.qualified for table in publication.tables if table not in kept])
    if not left_out:
        return None
    return Narrowing(name, kept, left_out, _statement(name, kept, publication))


def own_publication(name: str, tables: Sequence[PublishedTable], lists: Lists) -> Narrowing:
    """The publication for the tables that a connector captures without a publication.

    Args:
        tables: every table that could be published, without partitioned tables, whose rows are in their partitions.

    Raises ConfigError: the connector captures no table, or updates of one would fail in a publication.
    """
    kept = tuple(captured(tables, lists))
    if not kept:
        raise ConfigError(
            "The connector captures no table of the database.",
            hint="Correct table.include.list in the connector, or create the tables first.",
        )
    if lacking := [table for table in kept if not table.has_identity]:
        table = f"{identifier(lacking[0].schema)}.{identifier(lacking[0].name)}"
        raise ConfigError(
            f"Table {lacking[0].qualified} has no primary key and no replica identity. In the publication that cdcd "
            "needs, PostgreSQL refuses updates and deletes of such a table.",
            hint=f"ALTER TABLE {table} REPLICA IDENTITY FULL; or leave the table out (table.exclude.list).",
        )
    operations = ("insert", "update", "delete", "truncate")
    target = f"TABLE {', '.join(map(_published, kept))}"
    return Narrowing(name, kept, (), creation(name, target, via_root=False, operations=operations))


def _statement(name: str, tables: Iterable[PublishedTable], publication: Publication) -> str:
    target = f"TABLE {', '.join(map(_published, tables))}"
    return creation(name, target, via_root=publication.via_root, operations=publication.operations)


def _published(table: PublishedTable) -> str:
    text = f"{identifier(table.schema)}.{identifier(table.name)}"
    if table.columns is not None:
        text += f" ({', '.join(map(identifier, table.columns))})"
    if table.row_filter is not None:
        text += f" WHERE ({table.row_filter})"
    return text
