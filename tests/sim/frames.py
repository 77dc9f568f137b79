"""The bytes of the simulated server, and what can be read back from them: which event it was, by which definition.

A row's first column is the event's number and its second the version of its table's definition, whose columns say
the same, so that a row that is read by another definition than it was written with shows.
"""

from typing import Final

from cdcd.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.protocol.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    TupleData,
    Type,
    Update,
)
from cdcd.protocol.reader import read_message
from cdcd.protocol.writer import write_message
from tests.sim.wal import Change

EVENT_OID: Final = 1 << 24
"""A Truncate has no place for the event's number but among the oids."""

TYPE_OID: Final = 50001


def frame(message: Message, lsn: int = 0) -> bytes:
    """A message as the walsender sends it."""
    return write_frame(XLogData(lsn, lsn, 0, write_message(message)))


def relation(oid: int, version: int, xid: int | None) -> Relation:
    """Version `version` of a table's definition."""
    columns = [Column(1, "id", 23, -1), Column(0, f"v{version}", TYPE_OID if version % 3 == 0 else 25, -1)]
    columns += [Column(0, f"extra{number}", 25, -1) for number in range(version % 4)]
    return Relation(xid, oid, "public", f"t{oid}", "dfin"[version % 4], tuple(columns))


def type_of(version: int, xid: int | None) -> Type | None:
    """Some definitions have a column of a type that is announced before them."""
    return Type(xid, TYPE_OID, "public", "mood") if version % 3 == 0 else None


def change_frame(change: Change, version: int, xid: int | None) -> bytes:
    """The frame of a published change; the same object each time it is sent in the same way."""
    key = version << 1 | (xid is not None)
    made = change.frames.get(key)
    if made is None:
        made = change.frames[key] = frame(_message(change, version, xid), change.lsn)
    return made


def _message(change: Change, version: int, xid: int | None) -> Message:
    what, shape = change.what, change.shape
    if what == "M":
        return LogicalMessage(xid, True, change.lsn, "p", b"%d" % change.event)
    if what == "T":
        oids = (change.oid, EVENT_OID + change.event)
        return Truncate(xid, shape & 1 == 1, shape & 2 == 2, oids)
    row = _row(change.event, version, shape)
    if what == "I":
        return Insert(xid, change.oid, row)
    if what == "D":
        return Delete(xid, change.oid, "KO"[shape & 1], row)
    kind = ("", "K", "O")[shape % 3]
    return Update(xid, change.oid, kind, row if kind else None, row)


def _row(event: int, version: int, shape: int) -> TupleData:
    extra = (None, UNCHANGED, b"text", b"")[shape & 3]
    return (b"%d" % event, b"v%d" % version, *([extra] * (version % 4)))


class Reader:
    """Reads event numbers back; remembers them by the frame's bytes, since the same ones come again and again."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, str, int, tuple[str, int] | None]] = {}

    def read(self, data: bytes, in_stream: bool) -> tuple[int, str, int, tuple[str, int] | None]:
        """The event, its tag, the relation's oid (0: none), and its definition's second name and number of columns."""
        known = self._known.get(data)
        if known is None:
            known = self._known[data] = self._read(data, in_stream)
        return known

    def _read(self, data: bytes, in_stream: bool) -> tuple[int, str, int, tuple[str, int] | None]:
        message = read_message(data, XLOG_HEADER, in_stream=in_stream)
        if isinstance(message, LogicalMessage):
            return int(message.content), "M", 0, None
        if isinstance(message, Truncate):
            oid, event = message.relation_oids
            return event - EVENT_OID, "T", oid, None
        assert isinstance(message, Insert | Update | Delete), f"{message} is no change"
        row = message.old if isinstance(message, Delete) else message.new
        event_text, version_text = row[:2]
        assert isinstance(event_text, bytes)
        assert isinstance(version_text, bytes)
        return int(event_text), chr(message.tag), message.relation_oid, (version_text.decode(), len(row))
