"""What sessions of cdcd may ask of the simulated server beside the stream; each answer is of the moment of the call.

Whether a call would have to wait for a lock is asked before (`is_locked`), and how long an answer takes is the caller's
matter.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.reading import (
    Answer,
    Changed,
    KeyQuery,
    PageQuery,
    Refused,
    Rows,
    SourcePart,
    SourceTable,
    TooLarge,
    Visibility,
)
from cdcd.core.snapshot.table_task import Part
from tests.sim.catalog import MOOD, MOOD_TYPE, SCHEMA, Definition, Row
from tests.sim.database import Database
from tests.sim.heap import Version
from tests.sim.wal import Wal
from tests.sim.workload import Workload

TYPES: Final[Mapping[int, TypeDescription]] = {**BUILTIN_TYPES, MOOD: MOOD_TYPE}

NULL: Final = rb"\N"


class Client:
    """The catalog, the tables' rows, and who writes to them."""

    def __init__(self, wal: Wal, workload: Workload) -> None:
        self._wal = wal
        self._workload = workload
        self.database: Database = workload.database

    def published(self) -> dict[int, str]:
        return {
            oid: table.full_name
            for oid, table in sorted(self.database.definitions.items())
            if table.published
        }

    def look(self, oids: Collection[int] | None = None) -> tuple[list[SourceTable], Visibility]:
        """The published tables with these oids."""
        tables = [
            self.source_table(table)
            for oid, table in sorted(self.database.definitions.items())
            if table.published and (oids is None or oid in oids)
        ]
        return tables, self.database.transactions.snapshot()

    def source_table(self, table: Definition) -> SourceTable:
        """How a table is read that is as `table` says; the size of its file is of now."""
        heap = self.database.heap(table)
        sql_name = f'"{SCHEMA}"."{table.name}"'
        part = Part(table.oid, table.filenode, heap.pages, heap.size)
        return SourceTable(
            table.relation(),
            "",
            (SourcePart(part, sql_name),),
            sql_name,
            False,
            table.fingerprint,
            numbers=() if table.marked else tuple([column.attnum for column in table.columns]),
        )

    def describe(self, oids: Collection[int]) -> dict[int, TableDescription]:
        known, seen = self.database.definitions, self._wal.end
        return {
            oid: known[oid].description(seen) if oid in known else TableDescription(seen=seen) for oid in oids
        }

    def visibility(self) -> Visibility:
        """What a snapshot sees that is taken now."""
        return self.database.transactions.snapshot()

    def types(self, oids: Collection[int]) -> dict[int, TypeDescription]:
        return {oid: TYPES[oid] for oid in oids if oid in TYPES}

    def writers(self, oids: Collection[int]) -> tuple[frozenset[str], Visibility]:
        """Who has written to any of the tables and is not seen to have ended."""
        names = frozenset([f"3/{one.xid} {one.gid or one.xid}" for one in self._workload.writers(oids)])
        return names, self.database.transactions.snapshot()

    def is_locked(self, oids: Collection[int]) -> bool:
        """Whether somebody holds one of the tables with ACCESS EXCLUSIVE."""
        return any(self._workload.is_locked(oid) for oid in oids)

    def locks(self, query: PageQuery | KeyQuery) -> bool:
        """Whether the query would have to wait for a lock on the table that its name leads to now."""
        table = self.database.by_name(_bare(query))
        return table is not None and self._workload.is_locked(table.oid)

    def examine(self, table: SourceTable, where: str) -> str:
        """Why this is no condition on the table's rows; "" when it is one, as far as planning tells."""
        return (
            ""
            if where in _HOLDS or where in _FAILS
            else EXAMINED.get(where, f"syntax error at {where[:20]!r}")
        )

    def name_of(self, query: PageQuery | KeyQuery) -> str:
        return _bare(query)

    def changed(self, query: PageQuery | KeyQuery, table: Definition) -> str:
        """What the table with the query's name is not any more; "" if it is what the query was made for."""
        if table.oid != query.table.oid:
            return "another table has its name"
        if isinstance(query, PageQuery) and table.filenode != query.filenode:
            return "it was rewritten"
        return "" if table.fingerprint == query.table.columns else "it was altered"

    def read(self, query: PageQuery | KeyQuery, snapshot: Visibility | None, bytes_max: int) -> Answer:
        """At an exported snapshot, or at one of its own."""
        table = self.database.by_name(_bare(query))
        if table is None:
            return Changed(f"relation {_bare(query)} does not exist")
        if reason := self.changed(query, table):
            return Changed(reason)
        seen = snapshot or self.database.transactions.snapshot()
        lines: list[bytes] = []
        wanted = _wanted(query, table)
        for version in self.database.heap(table).visible(seen):
            if not wanted(version):
                continue
            for condition in query.conditions:
                if condition in _FAILS and (reason := _FAILS[condition](table, version.row)):
                    return Refused(reason)
            if all(_HOLDS.get(one, _never)(table, version.row) for one in query.conditions if one):
                lines.append(line_of(query.table.relation, table, version.row))
        size = sum(map(len, lines))
        if size > bytes_max:
            return TooLarge()
        if snapshot is not None:
            return Rows(lines, size)
        return Rows(lines, size, seen, self._wal.end)


def _bare(query: PageQuery | KeyQuery) -> str:
    name = query.sql_name if isinstance(query, PageQuery) else query.table.sql_name
    return name.rsplit(".", 1)[-1].strip('"')


def _wanted(query: PageQuery | KeyQuery, table: Definition) -> Callable[[Version], bool]:
    if isinstance(query, PageQuery):
        begin, end = query.begin, query.end
        return lambda version: begin <= version.page < end
    attnums = [table.column(name).attnum for name in query.key_columns]
    keys = {tuple([data for _, data in key]) for key in query.keys}
    return lambda version: tuple([version.row[attnum] for attnum in attnums]) in keys


def line_of(relation: Relation, table: Definition, row: Row) -> bytes:
    """A row as COPY writes it."""
    known = {column.name: column for column in table.columns}
    values = [
        table.value(row, known[column.name]) if column.name in known else column.name.encode()
        for column in relation.columns
    ]
    return b"\t".join([NULL if value is None else value for value in values]) + b"\n"


def _number(table: Definition, row: Row, name: str) -> int:
    return int(table.value(row, table.column(name)) or 0)


def _never(_table: Definition, _row: Row) -> bool:
    return False


_HOLDS: Final[Mapping[str, Callable[[Definition, Row], bool]]] = {
    "true": lambda _table, _row: True,
    "n < 50": lambda table, row: _number(table, row, "n") < 50,
    "event % 2 = 0": lambda table, row: _number(table, row, "event") % 2 == 0,
}
"""Conditions (`requests.CONDITIONS`), and what they say of a row."""

_FAILS: Final[Mapping[str, Callable[[Definition, Row], str]]] = {
    "1 / (n - 3) > 0": lambda table, row: "division by zero" if _number(table, row, "n") == 3 else "",
    "pg_sleep(3600) IS NULL": lambda _table, _row: "canceling statement due to statement timeout",
}
"""Conditions that can be planned, and how their evaluation on a row fails."""

EXAMINED: Final[Mapping[str, str]] = {
    "no_such = 1": 'column "no_such" does not exist',
    "attacker()": "cannot execute INSERT in a read-only transaction",
}
