"""The query for a chunk of a table, and the error when PostgreSQL refuses it: alike before and beside the stream."""

from cdcd.core.errors import SourceError
from cdcd.core.snapshot.chunks import Chunk
from cdcd.core.snapshot.reading import PageQuery, Refused, SourceTable


def page_query(table: SourceTable, sql_name: str, chunk: Chunk, where: str = "") -> PageQuery:
    """The query for the chunk's rows.

    Args:
        sql_name: how SQL calls the part of the table that has the chunk's pages.
        where: the request's condition beside the publication's row filter; "" for none.
    """
    conditions = (table.row_filter, where)
    return PageQuery(sql_name, chunk.part, chunk.filenode, chunk.begin, chunk.end, table, conditions)


def sql_names(table: SourceTable) -> dict[int, str]:
    """How SQL calls the parts of the table, by their oids."""
    return {each.part.oid: each.sql_name for each in table.parts}


def unreadable(table: str, answer: Refused) -> SourceError:
    """Rows that the configuration asks for cannot be read, so the session cannot go on."""
    return SourceError(f"The rows of {table} cannot be read: {answer.reason}", hint=answer.hint)
