"""Queries that a snapshot sends to PostgreSQL, and the possible answers.

The rule: a query names the table that it was made for (oid, file, columns), and its answer counts only if the table
of that name is still this one in the same SQL statement. So there are four answers: `Rows`, which are correct;
`TooLarge`, after which a smaller query is sent; `Changed`, which ends the plan that the query belongs to;
`Refused`, which ends the task.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.table_task import Key, Part
from cdcd.core.snapshot.visibility import Visibility


@dataclass(frozen=True, slots=True)
class SourcePart:
    """A table or partition that has pages, and its quoted SQL name."""

    part: Part
    sql_name: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A published table as it is now: its columns, its row filter, and its parts.

    Attributes:
        row_filter: row filter of the publication as SQL; "" for none.
        sql_name: quoted SQL name of the published table itself.
        partitioned: whether the table has no pages of its own; a query for it includes its partitions.
        columns: a fingerprint of the table's columns (`attnum`, name, type, modifier), which changes with any ALTER
            TABLE that changes them.
        numbers: the attribute number of each column of the relation; () if the numbers were not asked for.
    """

    relation: Relation
    row_filter: str
    parts: tuple[SourcePart, ...]
    sql_name: str = ""
    partitioned: bool = False
    columns: str = ""
    numbers: tuple[int, ...] = ()

    @property
    def oid(self) -> int:
        return self.relation.oid

    @property
    def name(self) -> str:
        return f"{self.relation.schema}.{self.relation.name}"


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A query for the rows on the pages from `begin` up to but not including `end` of one part of a table.

    Attributes:
        sql_name, oid, filenode: the part, and the file that has these pages.
        table: the table that the query was made for, whose columns are selected.
        conditions: SQL conditions: the publication's row filter, and the condition of a request, which was checked
            before.
    """

    sql_name: str
    oid: int
    filenode: int
    begin: int
    end: int
    table: SourceTable
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A query for the rows with these keys, on whatever pages they are.

    Attributes:
        table: the table that the query was made for, whose columns are selected.
        key_columns: names of the key's columns.
        keys: one tuple per row, in the order of `key_columns`.
        conditions: as in `PageQuery`.
    """

    table: SourceTable
    key_columns: tuple[str, ...]
    keys: tuple[Key, ...]
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Answer: rows as lines in the text format of COPY.

    `seen` and `after` are None if the rows were read at an exported snapshot.

    Attributes:
        size: bytes of all lines together.
        seen: which transactions the snapshot of this query sees.
        after: an LSN that is behind the commit of every transaction that the snapshot sees.
    """

    lines: list[bytes]
    size: int
    seen: Visibility | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Answer: the rows are more bytes than may be kept in memory."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Answer: the table was altered, rewritten, swapped or dropped since the query was made; `reason` says which."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer: PostgreSQL does not allow reading the table, or the request's condition fails on a row; `reason` says
    why.

    `hint` says what the operator can do.
    """

    reason: str
    hint: str = ""


Answer = Rows | TooLarge | Changed | Refused


ROWS: Final = "{rows}"
"""Stands for the rows of a table in a query of `snapshot.queries`."""

KEYS_PER_READ: Final = 500
"""Number of rows that one query reads by their keys."""


def bytes_max(query: PageQuery | KeyQuery, chunk_bytes: int) -> int:
    """Return the maximum of bytes for the answer: twice what was planned, but no limit for a single page or row, which
    cannot be divided.
    """
    pages = query.end - query.begin if isinstance(query, PageQuery) else len(query.keys)
    return UNLIMITED if pages == 1 else 2 * chunk_bytes


UNLIMITED: Final = 1 << 62
