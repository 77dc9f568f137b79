"""Tables as PostgreSQL's catalog has them: each change of one makes another `Definition`, which is never changed.

A row of a table is read by some definition and was written by another, perhaps older one: values are kept by attnum,
so that a column that was dropped is not read, and one that was added since has its default (`attmissingval`).

Every definition has a column that is made up when a row is sent or read, `v<version>`, whose value is its name. A row
that cdcd reads by another definition than it was sent by shows in it. It stands for the publication's column list,
which changes without a lock on the table, and so beside transactions that are writing to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from cdcd.core.catalog.relations import CatalogColumn, Kin, TableDescription, TypeDescription
from cdcd.core.protocol.messages import COLUMN_IS_KEY, Column, Relation, Type

Row = Mapping[int, bytes | None]
"""A row's values by attnum."""

SCHEMA: Final = "public"
FIRST_OID: Final = 16401

INT4: Final = 23
INT8: Final = 20
NUMERIC: Final = 1700
TEXT: Final = 25
MOOD: Final = 50001
"""An enum, which is announced by a Type message before the Relation message that has it."""

MOOD_TYPE: Final = TypeDescription(MOOD, SCHEMA, "mood", "e", "E", 0, 0, -1)

_TYPE_NAMES: Final = {INT4: "integer", INT8: "bigint", NUMERIC: "numeric", TEXT: "text", MOOD: "mood"}

SECRET: Final = "csecret"
"""Name of the column that the rule of `protected.py` matches. With the rule, every table has the columns `SECRET` and
`PLAIN`.
"""

PLAIN: Final = "cplain"

FIRST_MARKER: Final = 1000
"""The number of the made-up column is this one and the version."""

EVENT: Final = "event"
"""The column with the number of the event that wrote the row's version."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column.

    Attributes:
        toast: True if an UPDATE may leave out the column's value.
        missing: the value in rows that are older than the column.
        stamp: the transaction that wrote the column's row of pg_attribute.
    """

    attnum: int
    name: str
    type_oid: int
    toast: bool = False
    missing: bytes | None = None
    stamp: int = 0


@dataclass(frozen=True)
class Definition:
    """One version of a table. `key` is the primary key in the index's order; `identity` is `relreplident`.

    `marked` is true if the table has the made-up column. `keyless`: PostgreSQL knows of no key, so that nobody but the
    simulation can tell which row a change is about. Its identity is "f".
    """

    version: int
    oid: int
    name: str
    filenode: int
    columns: tuple[ColumnDefinition, ...]
    key: tuple[str, ...]
    identity: str
    published: bool
    next_attnum: int
    marked: bool = True
    keyless: bool = False

    @cached_property
    def key_attnums(self) -> tuple[int, ...]:
        """Of the key's columns, in the table's order."""
        return tuple([column.attnum for column in self.columns if column.name in self.key])

    @cached_property
    def event_attnum(self) -> int:
        return self.column(EVENT).attnum

    @cached_property
    def toast_attnums(self) -> tuple[int, ...]:
        return tuple([column.attnum for column in self.columns if column.toast])

    @property
    def marker(self) -> str:
        return f"v{self.version}"

    @property
    def full_name(self) -> str:
        return f"{SCHEMA}.{self.name}"

    def column(self, name: str) -> ColumnDefinition:
        return next(column for column in self.columns if column.name == name)

    def key_of(self, row: Row) -> tuple[bytes | None, ...]:
        return tuple([row[attnum] for attnum in self.key_attnums])

    def value(self, row: Row, column: ColumnDefinition) -> bytes | None:
        """What SELECT gives for the column."""
        return row.get(column.attnum, column.missing)

    @property
    def marker_type(self) -> int:
        return MOOD if self.version % 3 == 0 else TEXT

    def relation(self, xid: int | None = None) -> Relation:
        """As pgoutput describes it."""
        whole = self.identity == "f"
        columns = [
            Column(COLUMN_IS_KEY if whole or column.name in self.key else 0, column.name, column.type_oid, -1)
            for column in self.columns
        ]
        if self.marked:
            columns.append(Column(COLUMN_IS_KEY if whole else 0, self.marker, self.marker_type, -1))
        return Relation(xid, self.oid, SCHEMA, self.name, self.identity, tuple(columns))

    def type_message(self, xid: int | None) -> Type | None:
        """What is announced before the Relation message, if anything is."""
        return Type(xid, MOOD, SCHEMA, "mood") if self.marked and self.marker_type == MOOD else None

    def description(self, seen: int = 0) -> TableDescription:
        """Return what `cdcd.adapters.postgres.catalog.describe` returns for the table. `seen` is the end of the WAL."""
        columns = [
            CatalogColumn(
                column.name,
                column.attnum,
                _TYPE_NAMES[column.type_oid],
                column.type_oid,
                0,
                None if column.missing is None else column.missing.decode(),
                stamp=column.stamp,
            )
            for column in self.columns
        ]
        last_id = self.next_attnum - 1
        if self.marked:
            last_id = FIRST_MARKER + self.version
            columns.append(CatalogColumn(self.marker, last_id, "text", self.marker_type, 0, None))
        kin = (Kin(self.oid, SCHEMA, self.name),)
        primary_key = () if self.keyless else self.key
        return TableDescription(primary_key, (), tuple(columns), last_id=last_id, kin=kin, seen=seen)

    @cached_property
    def fingerprint(self) -> str:
        """Of the real columns: a column list of the publication is no property of the table."""
        return " ".join(
            f"{column.attnum}:{column.name}:{column.type_oid}:-1:{column.missing!r}"
            for column in self.columns
        )

    # ALTER TABLE.

    def altered(self, version: int, **changes: object) -> "Definition":
        return replace(self, version=version, **changes)  # type: ignore[arg-type]

    def with_column(self, version: int, missing: bytes | None, stamp: int, *, toast: bool) -> "Definition":
        attnum = self.next_attnum
        column = ColumnDefinition(attnum, f"c{attnum}", TEXT, toast, missing, stamp)
        return self.altered(version, columns=(*self.columns, column), next_attnum=attnum + 1)

    def without_column(self, version: int, name: str) -> "Definition":
        return self.altered(
            version, columns=tuple([column for column in self.columns if column.name != name])
        )

    def with_names(self, version: int, names: Mapping[int, str], stamp: int) -> "Definition":
        """Return the table with other names for columns. `names` is by attnum."""
        columns = [
            replace(each, name=names[each.attnum], stamp=stamp) if each.attnum in names else each
            for each in self.columns
        ]
        return self.altered(version, columns=tuple(columns))

    def retyped(self, version: int, filenode: int, name: str, type_oid: int, stamp: int) -> "Definition":
        """Another type for a column, and a new file with all rows."""
        columns = [
            replace(column, type_oid=type_oid, stamp=stamp) if column.name == name else column
            for column in self.columns
        ]
        return self.altered(version, columns=tuple(columns), filenode=filenode)


def new_table(
    oid: int,
    version: int,
    name: str,
    filenode: int,
    *,
    composite: bool,
    identity: str,
    published: bool,
    protected: bool = False,
    keyless: bool = False,
    stamp: int = 0,
) -> Definition:
    """A table as the workload makes them: a key, the event, two columns that may be out of line, a number.

    If `protected` is true, the table has the columns `SECRET` and `PLAIN`, and no made-up column, because PostgreSQL
    never assigns the number of that column.
    """
    names = ["a", "b"] if composite else ["id"]
    columns = [ColumnDefinition(number, column, INT4) for number, column in enumerate(names, 1)]
    at = len(columns)
    columns += [
        ColumnDefinition(at + 1, EVENT, INT8),
        ColumnDefinition(at + 2, "t1", TEXT, toast=True),
        ColumnDefinition(at + 3, "n", INT4),
        ColumnDefinition(at + 4, "t2", TEXT, toast=True),
    ]
    if protected:
        columns += [ColumnDefinition(at + 5, SECRET, TEXT), ColumnDefinition(at + 6, PLAIN, TEXT)]
    columns = [replace(column, stamp=stamp) for column in columns]
    # The index has the columns in another order than the table.
    key = ("b", "a") if composite else ("id",)
    return Definition(
        version,
        oid,
        name,
        filenode,
        tuple(columns),
        key,
        identity,
        published,
        len(columns) + 1,
        marked=not protected,
        keyless=keyless,
    )
