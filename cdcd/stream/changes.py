"""Contents of a committed transaction: changes of rows, truncates and logical messages.

A row is a mapping from the names of its columns to values (`values.py`), in the order of the table's columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cdcd.core.protocol.lsn import Lsn
from cdcd.stream.values import Value

Row: TypeAlias = Mapping[str, Value]
"""Values by the names of columns."""

ReplicaIdentity: TypeAlias = Literal["default", "full", "index", "nothing"]
"""Columns of an old row that PostgreSQL sends (`ALTER TABLE … REPLICA IDENTITY`)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A published column of a table.

    Attributes:
        name: the column's name.
        type: type as PostgreSQL writes it, such as `numeric(12,2)`; empty if the type was dropped since.
        type_oid: `pg_attribute.atttypid`.
        type_modifier: `pg_attribute.atttypmod`, -1 for none.
        is_key: True if the column is part of the replica identity. Under REPLICA IDENTITY FULL every column is part
            of it.
    """

    name: str
    type: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it was when the change was made.

    Attributes:
        oid: `pg_class.oid`, which distinguishes the table from earlier and later tables with the same name.
        schema, name: the table's names, unquoted.
        columns: the published columns in the table's order.
        key: names of the columns that identify a row: the replica identity; with REPLICA IDENTITY FULL and NOTHING
            the primary key, or else a unique key without NULLs; empty without a key.
        replica_identity: columns of an old row that PostgreSQL sends.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    replica_identity: ReplicaIdentity

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row.

    Attributes:
        table: the table.
        lsn: position of the change in the WAL. Rows of one statement may share an LSN.
        new: the row.
        unwritable: names of columns whose values are not text in the database's encoding, or have no character in
            UTF-8. The row has None in place of these values.
    """

    table: Table
    lsn: Lsn
    new: Row
    unwritable: tuple[str, ...] = ()

    @property
    def key(self) -> Row:
        """Values of the columns in `table.key`."""
        return _key(self.table, self.new)


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row.

    Attributes:
        table: the table.
        lsn: position of the change in the WAL.
        new: the row after the change. A large value that the update did not touch is `UNCHANGED`, unless `old` has
            it.
        old: the row before the change as PostgreSQL sends it: the whole row with REPLICA IDENTITY FULL; the columns
            of the replica identity if one of them changed; else None.
        unwritable: names of columns whose values are not text in the database's encoding, or have no character in
            UTF-8. Such a value is None in `new` or in `old`.
    """

    table: Table
    lsn: Lsn
    new: Row
    old: Row | None
    unwritable: tuple[str, ...] = ()

    @property
    def key(self) -> Row:
        """Values of the columns in `table.key` after the change."""
        return _key(self.table, self.new)


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row.

    Attributes:
        table: the table.
        lsn: position of the change in the WAL.
        old: the whole row with REPLICA IDENTITY FULL, else the columns of the replica identity.
        unwritable: names of columns whose values are not text in the database's encoding, or have no character in
            UTF-8. Such a value is None.
    """

    table: Table
    lsn: Lsn
    old: Row
    unwritable: tuple[str, ...] = ()

    @property
    def key(self) -> Row:
        """Values of the columns in `table.key`, as far as `old` contains them."""
        return _key(self.table, self.old)


@dataclass(frozen=True, slots=True)
class Truncate:
    """A TRUNCATE command.

    Attributes:
        tables: published tables that it emptied, including those that CASCADE reached.
        lsn: position of the change in the WAL.
        cascade: True if the command had CASCADE.
        restart_identity: True if the command had RESTART IDENTITY.
    """

    tables: tuple[Table, ...]
    lsn: Lsn
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A message that `pg_logical_emit_message` wrote.

    Attributes:
        lsn: end of the message in the WAL.
        prefix: the message's prefix.
        content: the message's bytes.
        transactional: False if the message belongs to no transaction; then the stream has it as a separate
            transaction.
    """

    lsn: Lsn
    prefix: str
    content: bytes
    transactional: bool


Change: TypeAlias = Insert | Update | Delete | Truncate | Message
"""An item of the iteration over a transaction."""


def _key(table: Table, row: Row) -> Row:
    return {name: row[name] for name in table.key if name in row}
