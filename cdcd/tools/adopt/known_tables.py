"""What the database says of the tables that a connector captures, as far as its transforms ask for it."""

from collections.abc import Sequence

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.publication import PublishedTable
from cdcd.config.loading import Config
from cdcd.core.catalog.chosen_keys import ChosenKeys
from cdcd.core.catalog.modes import form_under
from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from cdcd.daemon.rules.described import column_types
from cdcd.daemon.settings import modes
from cdcd.tools.adopt.reach import KnownTable
from cdcd.tools.adopt.tables import Lists


def captured(tables: Sequence[PublishedTable], lists: Lists) -> list[PublishedTable]:
    """Those of the tables that the connector captures; all, if only Java reads its lists."""
    if lists.unreadable:
        return list(tables)
    return [each for each in tables if lists.captures(each.schema, each.name)]


async def read_known(
    connection: Connection, tables: Sequence[PublishedTable], config: Config
) -> tuple[KnownTable, ...]:
    """The tables with their columns and keys. Raises TransientError and SourceError."""
    oids = [each.oid for each in tables]
    relations = await catalog.relations(connection, oids)
    described = await catalog.describe(connection, oids)
    types = await column_types(connection, relations)
    keys, forms = ChosenKeys(config.key.rules), modes(config.format)
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
            )
            for each in relations
        ]
    )


def _key(relation: Relation, table: TableDescription, keys: ChosenKeys) -> frozenset[str]:
    try:
        table = keys.applied(relation, table)
    except ConfigError:
        # `cdcd check` names the key that cannot be.
        return frozenset()
    return frozenset(key_columns(relation, table))
