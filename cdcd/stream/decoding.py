"""Decoding of frames of committed changes to the items of a stream.

`Decoder` is the interface. `ChangeDecoder` makes the typed changes of `import cdcd`. `cdcd tail` has a separate
decoder, which makes the daemon's records.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from cdcd.core.catalog.hints import HINT
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.catalog.relations import TableDescription, TypeDescription, key_columns
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol import messages
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Binary, LogicalMessage, Relation
from cdcd.core.protocol.peek import lsn_of
from cdcd.core.protocol.reader import read_message
from cdcd.core.transactions.commits import REPORT
from cdcd.core.transactions.steps import NonTransactionalMessage, Opened
from cdcd.stream.changes import (
    Change,
    Column,
    Delete,
    Insert,
    Message,
    ReplicaIdentity,
    Table,
    Truncate,
    Update,
    Value,
    ValueReader,
    reader_for,
)

E = TypeVar("E")


class Decoder(Protocol[E]):
    """Maker of a stream's items. Its methods are called for everything in the stream's order."""

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Decode later rows of this relation as the message and the catalog describe them."""

    def begin(self, opened: Opened) -> None:
        """Begin this transaction, whose changes follow."""

    def set_origin(self, name: str, lsn: int) -> None:
        """Set the replication origin of the later changes in the transaction."""

    def decode(self, frame: bytes, in_stream: bool) -> list[E]:
        """Decode a change or a transactional message. Raises ProtocolError if the frame is malformed."""

    def decode_message(self, step: NonTransactionalMessage) -> list[E]:
        """Decode a message that belongs to no transaction."""


_IDENTITIES: Final[dict[str, ReplicaIdentity]] = {"d": "default", "f": "full", "i": "index", "n": "nothing"}


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table with each column's name, reader, and membership in the replica identity."""

    table: Table
    columns: tuple[tuple[str, ValueReader, bool], ...]


class ChangeDecoder:
    """Decoder that makes `Insert`, `Update`, `Delete`, `Truncate` and `Message`.

    Args:
        money_digits: number of decimal digits of money.
    """

    def __init__(self, money_digits: int = DIGITS_OF_C) -> None:
        self._money_digits = money_digits
        self._layouts: dict[int, _Layout] = {}

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """See `Decoder`."""
        formatted = {(each.name, each.type_oid): each.type for each in description.columns}
        columns = tuple(
            Column(
                each.name,
                formatted.get((each.name, each.type_oid)) or _name_of(each.type_oid, types),
                each.type_oid,
                each.type_modifier,
                each.is_key,
            )
            for each in relation.columns
        )
        table = Table(
            relation.oid,
            relation.schema,
            relation.name,
            columns,
            key_columns(relation, description),
            _IDENTITIES[relation.replica_identity],
        )
        self._layouts[relation.oid] = _Layout(
            table,
            tuple(
                (each.name, reader_for(each.type_oid, types, money_digits=self._money_digits), each.is_key)
                for each in columns
            ),
        )

    def begin(self, opened: Opened) -> None:
        """See `Decoder`. Changes contain nothing about their transaction."""

    def set_origin(self, name: str, lsn: int) -> None:
        """See `Decoder`. Changes contain nothing about their origin."""

    def decode(self, frame: bytes, in_stream: bool) -> list[Change]:
        """See `Decoder`."""
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        lsn = Lsn(lsn_of(frame))
        match message:
            case messages.Insert():
                layout = self._layout(message.relation_oid, lsn)
                unwritable: list[str] = []
                row = _row(layout, message.new, unwritable)
                return [Insert(layout.table, lsn, row, tuple(unwritable))]
            case messages.Update():
                return [self._update(message, lsn)]
            case messages.Delete():
                layout = self._layout(message.relation_oid, lsn)
                unwritable = []
                row = _old(layout, message.old_kind, message.old, unwritable)
                return [Delete(layout.table, lsn, row, tuple(unwritable))]
            case messages.Truncate():
                tables = tuple(self._layout(oid, lsn).table for oid in message.relation_oids)
                return [Truncate(tables, lsn, message.cascade, message.restart_identity)]
            case LogicalMessage():
                return [_message(message)]
            case _:
                raise AssertionError(f"{type(message).__name__} is no change")

    def decode_message(self, step: NonTransactionalMessage) -> list[Change]:
        """See `Decoder`."""
        return self.decode(step.frame, step.in_stream)

    def _update(self, message: messages.Update, lsn: Lsn) -> Update:
        layout = self._layout(message.relation_oid, lsn)
        unwritable: list[str] = []
        new = _row(layout, message.new, unwritable)
        if message.old is None:
            return Update(layout.table, lsn, new, None, tuple(unwritable))
        old = _old(layout, message.old_kind, message.old, unwritable)
        # Values that the update did not touch are unchanged, so a whole old row contains them. NULL is not a large
        # value.
        filled: dict[str, Value] = {}
        for name, value in new.items():
            before = old.get(name) if value is UNCHANGED else None
            filled[name] = value if before is None else before
        return Update(layout.table, lsn, filled, old, tuple(dict.fromkeys(unwritable)))

    def _layout(self, oid: int, lsn: int) -> _Layout:
        layout = self._layouts.get(oid)
        if layout is None:
            raise ProtocolError(
                f"A change at {Lsn(lsn)} is of the relation {oid}, which was not described.", hint=REPORT
            )
        return layout


def _name_of(oid: int, types: Mapping[int, TypeDescription]) -> str:
    return types[oid].name if oid in types else ""


def _message(message: LogicalMessage) -> Message:
    return Message(Lsn(message.lsn), message.prefix, message.content, message.transactional)


def _old(layout: _Layout, kind: str, values: messages.TupleData, unwritable: list[str]) -> dict[str, Value]:
    """Return an old row; of an old key (K) only the replica identity, because the other columns are always NULL."""
    row = _row(layout, values, unwritable)
    if kind == "O":
        return row
    return {name: row[name] for name, _, is_key in layout.columns if is_key}


def _row(layout: _Layout, values: messages.TupleData, unwritable: list[str]) -> dict[str, Value]:
    """Return the values by column. The names of columns with undecodable values are added to `unwritable`."""
    columns = layout.columns
    if len(values) != len(columns):
        raise ProtocolError(
            f"A row of {layout.table} has {len(values)} values, but the table has {len(columns)} columns.",
            hint=HINT,
        )
    row: dict[str, Value] = {}
    for (name, read, _), value in zip(columns, values, strict=True):
        if value is None or value is UNCHANGED:
            row[name] = value
        else:
            row[name] = _read(layout, name, read, value, unwritable)
    return row


def _read(
    layout: _Layout, column: str, read: Callable[[str], Value], value: bytes | Binary, unwritable: list[str]
) -> Value:
    """Read a value; an error does not show the value, which may be secret."""
    assert not isinstance(value, Binary), "binary transfer is not asked for"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        unwritable.append(column)
        return None
    try:
        return read(text)
    except (ValueError, ArithmeticError, IndexError):
        raise ProtocolError(
            f"A value of {layout.table}.{column}, of {len(value)} bytes, is not of its type's form.",
            hint=HINT,
        ) from None
