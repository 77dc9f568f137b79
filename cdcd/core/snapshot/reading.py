"""Queries that a snapshot sends to PostgreSQL, with the reader that runs each (`postgres.readers`), the possible
answers, and which transactions a PostgreSQL snapshot sees.

The rule: of the committed transactions, a snapshot sees all before `xmin`, none from `xmax` on, and between the two
all that it does not list as in progress. What one snapshot sees, every later snapshot sees too.

The function returns ids of 64 bits, while the stream has ids of 32 bits, which repeat. An id on the stream is at
most 2^31 away from any running transaction, because PostgreSQL stops before the distance becomes larger.

The rule: a table belongs to the first reader one of whose patterns matches the name under which the table is published.
A partition that is published through its root is read by the reader of the root.

The rule: a query names the table that it was made for (oid, file, columns), and its answer counts only if the table
of that name is still this one in the same SQL statement. So there are four answers: `Rows`, which are correct;
`TooLarge`, after which a smaller query is sent; `Changed`, which ends the plan that the query belongs to;
`Refused`, which ends the task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.errors import SourceError
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.table_task import Key, Part
from cdcd.core.table_names import table_text

_ROUND = 1 << 32
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class Visibility:
    """A snapshot as `xmin:xmax:in progress`, with ids of 64 bits.

    Ids of subtransactions are not listed, and are never looked up.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a pg_snapshot, such as `10:20:10,14,15`; ValueError if it is not one."""
        xmin, xmax, listed = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, listed.split(","))) if listed else frozenset())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.in_progress)))}"

    def sees(self, xid: int) -> bool:
        """Return whether the snapshot sees the committed transaction with the 32-bit id `xid`."""
        full = self.xmax - self.xmax % _ROUND + xid
        if full - self.xmax > _HALF:
            full -= _ROUND
        elif self.xmax - full > _HALF:
            full += _ROUND
        if full < self.xmin:
            return True
        return full < self.xmax and full not in self.in_progress


KEY: Final = "postgres.readers"


class ReaderChoice:
    """Finds the reader of a table by its place in `postgres.readers`.

    The rule: schema and table are compared separately. In `schema.table` without quotes, a stranger's schema `crm.x` is
    not told apart from a table of the schema `crm`, so that the stranger's code would run as the reader of `crm`.

    Args:
        patterns: the patterns of each reader, in the order of the configuration; ConfigError if a pattern is
            malformed.
    """

    def __init__(self, patterns: Sequence[Sequence[str]]) -> None:
        self._patterns = tuple(
            [
                tuple([parse_pattern(pattern, f"{KEY}[{place}].tables") for pattern in each])
                for place, each in enumerate(patterns)
            ]
        )

    def of(self, schema: str, table: str) -> int | None:
        """Return the index of the reader of a table; None if the role of postgres.dsn reads the table."""
        for place, patterns in enumerate(self._patterns):
            if any(pattern.matches(schema, table) for pattern in patterns):
                return place
        return None


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
        return table_text(self.relation.schema, self.relation.name)

    @property
    def place(self) -> tuple[str, str]:
        """Schema and name."""
        return self.relation.schema, self.relation.name

    @property
    def sql_names(self) -> dict[int, str]:
        """The quoted SQL names of the table's parts, by their oids."""
        return {each.part.oid: each.sql_name for each in self.parts}


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

    def error(self, table: str) -> SourceError:
        """Return the error that ends the session because rows that the configuration asks for cannot be read."""
        return SourceError(f"The rows of {table} cannot be read: {self.reason}", hint=self.hint)


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
"""Limit in bytes for the rows of a single page. No page reaches it, because a page cannot be divided."""
