"""The bytes of the simulated server: what pgoutput writes of a change, by the definition that its cache holds then."""

from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Truncate,
    TupleData,
    Update,
    Value,
)
from cdcd.core.protocol.writer import write_message
from tests.sim.catalog import Definition, Row
from tests.sim.wal import Change

TOASTED = b"T"
"""What a value begins with that is out of line."""


def frame(message: Message, lsn: int = 0) -> bytes:
    """A message as the walsender sends it."""
    return write_frame(XLogData(lsn, lsn, 0, write_message(message)))


def change_frame(change: Change, definition: Definition | None, xid: int | None) -> bytes:
    """The frame of a published change; the same object each time it is sent in the same way."""
    key = (definition.version if definition is not None else 0) << 1 | (xid is not None)
    made = change.frames.get(key)
    if made is None:
        made = change.frames[key] = frame(_message(change, definition, xid), change.lsn)
    return made


def _message(change: Change, definition: Definition | None, xid: int | None) -> Message:
    what = change.what
    if what == "M":
        return LogicalMessage(xid, True, change.lsn, change.prefix, change.content)
    if what == "T":
        oids = tuple([table.oid for table in change.tables])
        return Truncate(xid, change.shape & 1 == 1, change.shape & 2 == 2, oids)
    assert definition is not None
    if what == "I":
        return Insert(xid, change.oid, values(definition, change.row))
    whole = definition.identity == "f"
    if what == "D":
        return Delete(xid, change.oid, "O" if whole else "K", _old(definition, change.row))
    new = values(definition, change.row, change.kept)
    if whole:
        return Update(xid, change.oid, "O", _old(definition, change.old), new)
    if change.moves:
        return Update(xid, change.oid, "K", _old(definition, change.old), new)
    return Update(xid, change.oid, "", None, new)


def values(definition: Definition, row: Row, kept: tuple[int, ...] = ()) -> TupleData:
    """A row's values by a definition; `kept` ones were not written to the WAL."""
    sent: list[Value] = [
        UNCHANGED if column.attnum in kept else definition.value(row, column) for column in definition.columns
    ]
    if definition.marked:
        sent.append(definition.marker.encode())
    return tuple(sent)


def _old(definition: Definition, row: Row) -> TupleData:
    """ExtractReplicaIdentity: all of the old row with what is out of line, or its key."""
    if definition.identity == "f":
        return values(definition, row)
    key: list[Value] = [
        row[column.attnum] if column.name in definition.key else None for column in definition.columns
    ]
    return (*key, None) if definition.marked else tuple(key)
