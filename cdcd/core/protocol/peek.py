"""Fields of a `w` frame that are read without decoding its message: tags, offsets, heads of frequent messages.

The rule: byte offsets of pgoutput are used only here and in stage 2's reader. Stage 2 (`reader.py`) reads every
field and refuses malformed messages. On the hot path a few fields are enough, and these functions read them at the
offsets of the manual ("Logical Replication Message Formats"). They check only what their docstrings name. The
strict reader explains frames that they cannot read.

In a stream (Stream Start … Stream Stop) the xid of the transaction or subtransaction follows the tag of a message.
"""

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be

from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Binary, Unchanged, Value

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int, for mypyc one of the machine's

COMPILED: Final = not __file__.endswith(".py")
"""True if mypyc compiled this module; the fastest code differs (`setup.py`)."""

KEEPALIVE_BYTES: Final = 18
"""Size of a keepalive's frame in bytes. No other frame is as short, because `w` has 25 bytes before its message."""

FRAME_KIND_AT: Final = 0

XLOG_DATA: Final = 0x77
"""`w`: first byte of a frame with a pgoutput message, which starts at `XLOG_HEADER`."""

INSERT: Final = 0x49  # I
UPDATE: Final = 0x55  # U
DELETE: Final = 0x44  # D
"""Tags of row messages as numbers, because mypyc treats a call of `ord` as a variable."""

NEW_ROW: Final = 0x4E  # N
OLD_ROW: Final = 0x4F  # O
OLD_KEY: Final = 0x4B  # K
"""Kinds of a row in a row message."""

NULL: Final = 0x6E  # n
UNCHANGED: Final = 0x75  # u
TEXT: Final = 0x74  # t
BINARY: Final = 0x62  # b
"""Kinds of a value in a row. After TEXT and BINARY follow the size in `SIZE_BYTES` bytes, and the value's bytes."""

SIZE_BYTES: Final = 4
SIZE_24: Final = 1
SIZE_16: Final = 2
SIZE_8: Final = 3
SIZE_0: Final = 4
"""Offsets of the bytes of a value's size from its kind, by the number of bits to shift. The interpreter reads the
bytes one by one, because a call would cost as much as a column; compiled code calls `value_size`."""

VALUE_HEAD_BYTES: Final = 5
"""Size of a value's head in bytes: its kind and its size. NULL and UNCHANGED have only the kind."""

ROWS: Final = frozenset(b"IUD")
"""Tags of Insert, Update and Delete."""

CHANGES: Final = frozenset(b"IUDT")
"""Tags of the messages that change tables: row messages and Truncate."""

DESCRIPTIONS: Final = frozenset(b"RY")
"""Tags of Relation and Type."""

RELATION: Final = 0x52
"""The tag `R`."""

TRUNCATE: Final = 0x54
"""The tag `T`."""

MESSAGE: Final = 0x4D
"""The tag `M` of a logical message."""

BEGIN: Final = Struct("!26xQqI")
"""Frame of a Begin: commit LSN, commit time, xid."""

COMMIT: Final = Struct("!26xBQQq")
"""Frame of a Commit: flags, commit LSN, end LSN, commit time."""

ROW_HEAD_BYTES: Final = 3
"""Size of a row's head in bytes: its kind and its number of columns."""

HEAD_BYTES: Final = 33
STREAMED_HEAD_BYTES: Final = 37
"""Offset of the first value of a row frame: after the tag, the xid in a stream, the oid and the first row's head."""

_HEAD: Final = Struct("!xQ16xBIBH")
_STREAMED_HEAD: Final = Struct("!xQ16xB4xIBH")
_LSN_AT: Final = 1
_SENT_AT: Final = 17
_LSN_END: Final = 9
_BODY_AT: Final = XLOG_HEADER + 1
_XID_BYTES: Final = 4
_OID_BYTES: Final = 4
_MESSAGE_HEAD: Final = 9
"""Size of the flags and the LSN of a logical message, which are before its prefix."""
_WAL_END_AT: Final = 9
_WAL_END_END: Final = 17
_SHORTENED: Final = 1 << 63
"""Flag in the second LSN of the header of a frame that replaces a large logical message. The other bits are the size
of the removed content. In a frame from a server, the second LSN equals the first one, and no LSN has this bit."""
_TRUNCATE_HEAD: Final = 5
"""Size of the number of relations and the options of a Truncate, which are before the oids."""


def tag_of(frame: bytes) -> int:
    """Return the tag of the message. IndexError: the frame has no message."""
    return frame[XLOG_HEADER]


def lsn_of(frame: bytes | memoryview) -> int:
    """Return the frame's LSN (`wal_start`), which is the LSN of the change."""
    return int.from_bytes(frame[_LSN_AT:_LSN_END], "big")


def sent_at_of(frame: bytes) -> int:
    """Return the time at which the server sent the frame, in microseconds since 2000."""
    return int.from_bytes(frame[_SENT_AT:XLOG_HEADER], "big", signed=True)


def asks_for_reply(frame: bytes) -> bool:
    """Return True if the frame is a keepalive that requests a status update at once."""
    return len(frame) == KEEPALIVE_BYTES and frame[-1] != 0


def xid_of(frame: bytes) -> int:
    """Return the xid of a message in a stream: the transaction or subtransaction that wrote the change."""
    return int.from_bytes(frame[_BODY_AT : _BODY_AT + _XID_BYTES], "big")


def relation_of_row(frame: bytes, in_stream: bool) -> int:
    """Return the oid of a row message's relation. IndexError: the frame ends before."""
    at: i64 = _BODY_AT + _XID_BYTES if in_stream else _BODY_AT
    return int(read_i32_be(frame, at)) & 0xFFFFFFFF


def relation_oids(frame: bytes, in_stream: bool) -> list[int]:
    """Return the oids of the relations in a row message or a Truncate; empty for other messages."""
    tag = frame[XLOG_HEADER]
    if tag in ROWS:
        return [relation_of_row(frame, in_stream)]
    if tag == TRUNCATE:
        at = (_BODY_AT + _XID_BYTES if in_stream else _BODY_AT) + _TRUNCATE_HEAD
        return [
            int.from_bytes(frame[oid : oid + _OID_BYTES], "big") for oid in range(at, len(frame), _OID_BYTES)
        ]
    return []


def described_relations(frames: Sequence[bytes]) -> list[int]:
    """Return the oids in Relation messages outside of a stream, in their order.

    A Relation message in a stream has its xid in place of the oid. This function does not know which frames are in
    a stream, so a returned oid may belong to no relation.
    """
    return [
        int.from_bytes(frame[_BODY_AT : _BODY_AT + _OID_BYTES], "big")
        for frame in frames
        if len(frame) > HEAD_BYTES and frame[XLOG_HEADER] == RELATION
    ]


def message_prefix(frame: bytes, in_stream: bool) -> bytes:
    """Return the prefix of a logical message. If the prefix has no end, return the rest of the frame."""
    at = (_BODY_AT + _XID_BYTES if in_stream else _BODY_AT) + _MESSAGE_HEAD
    end = frame.find(0, at)
    return frame[at:] if end < 0 else frame[at:end]


def relations_of_row(frame: memoryview) -> list[int]:
    """Return oids of which one is the relation's, if the frame is a row message; empty for another message.

    Only the state of the stream tells if an xid precedes the oid.
    """
    if len(frame) <= STREAMED_HEAD_BYTES or frame[XLOG_HEADER] not in ROWS:
        return []
    places = (_BODY_AT, _BODY_AT + _XID_BYTES)
    kinds = (NEW_ROW, OLD_ROW, OLD_KEY)
    return [
        int.from_bytes(bytes(frame[at : at + _OID_BYTES]), "big")
        for at in places
        if frame[at + _OID_BYTES] in kinds
    ]


def message_prefix_at(frame: memoryview) -> int:
    """Return the offset of a logical message's prefix, in a stream or not; -1 if it is uncertain.

    The header of its frame contains the LSN of the message (`message_cb_wrapper` and `stream_message_cb_wrapper` in
    logical.c). The message contains the same LSN before its prefix, after the flags and, in a stream, the xid.
    """
    lsn = bytes(frame[_LSN_AT:_LSN_END])
    outside = _BODY_AT + _MESSAGE_HEAD
    inside = outside + _XID_BYTES
    found = [at for at in (outside, inside) if bytes(frame[at - len(lsn) : at]) == lsn]
    return found[0] if len(found) == 1 else -1


def shortened_header(frame: memoryview, left_out: int) -> bytes:
    """Return the header of the frame that replaces `frame` without `left_out` bytes of content."""
    mark = (_SHORTENED | left_out).to_bytes(_WAL_END_END - _WAL_END_AT, "big")
    return bytes(frame[:_WAL_END_AT]) + mark + bytes(frame[_WAL_END_END:XLOG_HEADER])


def shortened_bytes(frame: bytes) -> int:
    """Return the original content size of the logical message in this frame; -1 if the message is whole."""
    mark = int.from_bytes(frame[_WAL_END_AT:_WAL_END_END], "big")
    return mark & ~_SHORTENED if mark & _SHORTENED else -1


def read_head(frame: bytes, in_stream: bool) -> tuple[int, int, int, int, int]:
    """Return the first fields of a row frame: LSN, tag, relation oid, kind of the first row, number of its columns.

    The xid that follows the tag in a streamed frame is not returned. Raises `struct.error` or IndexError if the frame
    ends before.
    """
    if COMPILED:
        at: i64 = XLOG_HEADER + 5 if in_stream else XLOG_HEADER + 1
        lsn = int(read_i64_be(frame, _LSN_AT))
        oid = int(read_i32_be(frame, at))
        width = int(read_i16_be(frame, at + 5))
        # The numbers on the wire are unsigned.
        if lsn < 0:
            lsn += 1 << 64
        return lsn, frame[XLOG_HEADER], oid & 0xFFFFFFFF, frame[at + 4], width & 0xFFFF
    head: tuple[int, int, int, int, int] = (_STREAMED_HEAD if in_stream else _HEAD).unpack_from(frame)
    return head


def value_size(frame: bytes, at: "i64") -> "i64":
    """Return the size of the value of kind TEXT or BINARY at `at`. IndexError, ValueError: the frame ends before."""
    return int(read_i32_be(frame, at + SIZE_24))


def first_row(in_stream: bool) -> int:
    """Return the offset of the first row's head in a row frame."""
    return (STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES) - ROW_HEAD_BYTES


def row_width(frame: bytes, at: "i64") -> "i64":
    """Return the number of columns of the row whose head is at `at`. IndexError: the frame ends before."""
    width: i64 = frame[at + 1]
    return (width << 8) + frame[at + 2]


def key_values(frame: bytes, in_stream: bool, indexes: list[int]) -> tuple[tuple[bool, bytes], ...] | None:
    """Return values of the new row of an Insert or Update as sent, for the columns with these indexes from 0.

    Each is (True for binary form, bytes). For a value that was not sent (unchanged TOAST), the old row's value is
    returned. None: the frame has no new row, or one of the values is NULL or in neither row.

    Raises:
        ValueError, IndexError: the row is malformed, or has fewer columns.
    """
    tag = frame[XLOG_HEADER]
    if tag not in {INSERT, UPDATE}:
        return None
    at = (STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES) - ROW_HEAD_BYTES
    old: list[tuple[bool, bytes] | None] = []
    unsent: set[int] = set()
    if frame[at] != NEW_ROW:
        at = _values(frame, at, old, unsent)
        unsent.clear()
    values: list[tuple[bool, bytes] | None] = []
    _values(frame, at, values, unsent)
    found: list[tuple[bool, bytes]] = []
    for index in indexes:
        value = values[index]
        if index in unsent and old:
            value = old[index]
        if value is None:
            return None
        found.append(value)
    return tuple(found)


def picked_values(frame: bytes, start: "i64", width: "i64", wanted: list[int]) -> tuple[list[Value], int]:
    """Return the values of the columns with these ascending indexes, of the row whose head is at `start`, and the row's
    end.

    Raises:
        ValueError, IndexError: the row is malformed, or has another number of columns than `width`.
    """
    if row_width(frame, start) != width:
        raise ValueError("the row has another number of columns than the relation")
    at: i64 = start + ROW_HEAD_BYTES
    limit: i64 = len(frame)
    found: list[Value] = []
    place: i64 = 0
    following: i64 = wanted[0] if wanted else -1
    index: i64 = 0
    while index < width:
        kind = frame[at]
        at += 1
        begin: i64 = at
        if kind in (TEXT, BINARY):
            begin = at + SIZE_BYTES
            size: i64 = value_size(frame, at - 1)
            if size < 0 or size > limit - begin:
                raise ValueError("a value ends after the frame")
            at = begin + size
        elif kind not in (NULL, UNCHANGED):
            raise ValueError("unknown kind of value")
        if index == following:
            if kind == TEXT:
                found.append(frame[begin:at])
            elif kind == BINARY:
                found.append(Binary(frame[begin:at]))
            else:
                found.append(None if kind == NULL else Unchanged.UNCHANGED)
            place += 1
            following = wanted[place] if place < len(wanted) else -1
        index += 1
    return found, int(at)


def _values(frame: bytes, start: "i64", values: list[tuple[bool, bytes] | None], unsent: set[int]) -> "i64":
    """Read the values of the row whose head is at `start`, and return the row's end.

    Args:
        unsent: gets the indexes of values that were not sent, which are None in `values` as NULLs are.
    """
    width: i64 = row_width(frame, start)
    at: i64 = start + ROW_HEAD_BYTES
    limit: i64 = len(frame)
    place: i64 = 0
    while place < width:
        kind = frame[at]
        at += 1
        value: tuple[bool, bytes] | None = None
        if kind in (TEXT, BINARY):
            size: i64 = value_size(frame, at - 1)
            at += SIZE_BYTES
            if size < 0 or size > limit - at:
                raise ValueError("a value ends after the frame")
            value = (kind == BINARY, frame[at : at + size])
            at += size
        elif kind == UNCHANGED:
            unsent.add(int(place))
        elif kind != NULL:
            raise ValueError("unknown kind of value")
        values.append(value)
        place += 1
    return at


def new_row_sizes(frame: bytes, in_stream: bool) -> list[tuple[int, int]]:
    """Return the kind and size of each value of the new row of an Insert or Update; size 0 without bytes.

    Raises:
        ValueError, IndexError: the row is malformed.
    """
    at: i64 = first_row(in_stream)
    sizes: list[tuple[int, int]] = []
    if frame[at] != NEW_ROW:
        at = _sizes(frame, at, sizes)
        sizes = []
    _sizes(frame, at, sizes)
    return sizes


def _sizes(frame: bytes, start: "i64", sizes: list[tuple[int, int]]) -> "i64":
    """Append kind and size of each value of the row whose head is at `start`; return the row's end."""
    width: i64 = row_width(frame, start)
    at: i64 = start + ROW_HEAD_BYTES
    place: i64 = 0
    while place < width:
        kind = frame[at]
        size: i64 = 0
        if kind in (TEXT, BINARY):
            size = value_size(frame, at)
            if size < 0:
                raise ValueError("a value has a negative size")
            at += SIZE_BYTES + size
        elif kind not in (NULL, UNCHANGED):
            raise ValueError("unknown kind of value")
        at += 1
        sizes.append((kind, int(size)))
        place += 1
    return at
