"""Queries for chunks of a table, and the error when PostgreSQL refuses one; used for reading before and beside the
stream.
"""

from cdcd.core.errors import SourceError
from cdcd.core.snapshot.chunks import Chunk
from cdcd.core.snapshot.reading import PageQuery, Refused, SourceTable


def page_query(table: SourceTable, sql_name: str, chunk: Chunk, where: str = "") -> PageQuery:
    """Return the query for the rows of the chunk.

    Args:
        sql_name: the quoted SQL name of the table or partition that has the chunk's pages.
        where: the request's condition, which is added to the publication's row filter; "" for none.
    """
    conditions = (table.row_filter, where)
    return PageQuery(sql_name, chunk.part, chunk.filenode, chunk.begin, chunk.end, table, conditions)


def sql_names(table: SourceTable) -> dict[int, str]:
    """Return the quoted SQL names of the table's parts, by their oids."""
    return {each.part.oid: each.sql_name for each in table.parts}


def unreadable(table: str, answer: Refused) -> SourceError:
    """Return the error that ends the session because rows that the configuration asks for cannot be read."""
    return SourceError(f"The rows of {table} cannot be read: {answer.reason}", hint=answer.hint)
