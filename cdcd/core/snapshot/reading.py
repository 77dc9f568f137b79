"""What a snapshot asks of PostgreSQL, and the answers: queries for rows, and how their reading ended.

The rule: a query names the table that it was made for (oid, file, columns), and counts only if the table that the
name leads to is still that one in the same statement. So every answer is one of four: `Rows`, which are true;
`TooLarge`, after which a smaller query is asked; `Changed`, which ends the plan that the query belongs to; `Refused`,
which ends the task.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.table_task import Key, Part
from cdcd.core.snapshot.visibility import Visibility


@dataclass(frozen=True, slots=True)
class SourcePart:
    """A table with pages, and how SQL calls it."""

    part: Part
    sql_name: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A published table as it is now: how its rows are described and filtered, and its parts.

    Attributes:
        row_filter: the publication's, as SQL; "" for none.
        sql_name: how SQL calls the published table itself, quoted.
        partitioned: it has no pages of its own; a query for it takes its partitions in.
        columns: a fingerprint of the columns of the published table (`attnum`, name, type, modifier): it differs after
            any ALTER TABLE that changes them.
        numbers: the attribute number of each column of the relation; () if that was not asked.
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
    """The rows on the pages `begin` to before `end` of one part of a table.

    Attributes:
        sql_name, oid, filenode: of the part, and the file in which these pages are.
        table: what the query was made for; its relation's columns are selected.
        conditions: SQL; the publication's row filter, and a request's, which was examined.
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
    """The rows with these keys, wherever in the table they are.

    Attributes:
        table: what the query was made for; its relation's columns are selected.
        key_columns: names of the columns that make the key.
        keys: one tuple for each row, in the order of `key_columns`.
        conditions: as in `PageQuery`.
    """

    table: SourceTable
    key_columns: tuple[str, ...]
    keys: tuple[Key, ...]
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as lines of COPY's text format. `seen` and `after` are None at an exported snapshot.

    Attributes:
        size: bytes of all lines.
        seen: what the snapshot of this query sees.
        after: an LSN behind the commit of every transaction that the snapshot sees.
    """

    lines: list[bytes]
    size: int
    seen: Visibility | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The rows are more bytes than may be kept in memory."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The table is not what the query was made for: altered, rewritten, swapped or dropped. `reason` says how."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """PostgreSQL does not let us read the table, or the request's condition fails on a row. `reason` says why.

    `hint` says what the operator can do.
    """

    reason: str
    hint: str = ""


Answer = Rows | TooLarge | Changed | Refused


KEYS_PER_READ: Final = 500
"""How many rows are read by key at a time."""


def bytes_max(query: PageQuery | KeyQuery, chunk_bytes: int) -> int:
    """How many bytes the answer may have: some more than was planned; one page or row cannot be divided."""
    pages = query.end - query.begin if isinstance(query, PageQuery) else len(query.keys)
    return UNLIMITED if pages == 1 else 2 * chunk_bytes


UNLIMITED: Final = 1 << 62
