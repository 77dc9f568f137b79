"""Which publication cdcd reads by, so that it delivers the tables that the connector captures, and no others.

Debezium leaves tables out after it received them; cdcd delivers every table of its publication. So where a publication
has more tables than the connector captures, cdcd needs one of its own. PostgreSQL sends changes by a publication only
if it existed when they were written: it must be there before the slot gets to its place in the WAL.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cdcd.adapters.postgres.publication import Publication, PublishedTable, creation
from cdcd.core.pasted import quoted as identifier
from cdcd.tools.adopt.tables import Lists


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
