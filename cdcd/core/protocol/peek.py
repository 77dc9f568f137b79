"""What is read of a `w` frame without decoding its message: tags, offsets, and the heads of the frequent messages.

The rule: a byte offset of pgoutput outside of stage 2's reader is here and nowhere else. Stage 2 (`reader.py`) reads
every field and refuses what is malformed; on the hot path a few fields are enough, and these functions take them where
the manual ("Logical Replication Message Formats") puts them. They check no more than their docstrings say. What they
cannot read, the strict reader then explains.

In a stream (Stream Start … Stream Stop) the xid of the transaction or subtransaction stands after the tag of a message.
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
"""Whether mypyc compiled this: the quickest way is not the same in both (`setup.py`)."""

KEEPALIVE_BYTES: Final = 18
"""Size of a keepalive's frame. No other frame is so short: `w` has 25 bytes before its message."""

FRAME_KIND_AT: Final = 0

XLOG_DATA: Final = 0x77
"""`w`: the first byte of a frame that holds a pgoutput message, which starts at `XLOG_HEADER`."""

INSERT: Final = 0x49  # I
UPDATE: Final = 0x55  # U
DELETE: Final = 0x44  # D
"""Tags of row messages, by number: of a call of `ord` mypyc makes a variable."""

NEW_ROW: Final = 0x4E  # N
OLD_ROW: Final = 0x4F  # O
OLD_KEY: Final = 0x4B  # K
"""Kinds of a row in a row message."""

NULL: Final = 0x6E  # n
UNCHANGED: Final = 0x75  # u
TEXT: Final = 0x74  # t
BINARY: Final = 0x62  # b
"""Kinds of a value in a row. After TEXT and BINARY come its size in `SIZE_BYTES` bytes, and its bytes."""

SIZE_BYTES: Final = 4
SIZE_24: Final = 1
SIZE_16: Final = 2
SIZE_8: Final = 3
SIZE_0: Final = 4
"""Where the bytes of a value's size are, seen from its kind, by how many bits they are shifted. The interpreter reads
them one by one, since a call would cost it as much as a column; compiled code calls `value_size`."""

VALUE_HEAD_BYTES: Final = 5
"""The kind of a value and its size, before its bytes. NULL and UNCHANGED have only the kind."""

ROWS: Final = frozenset(b"IUD")
"""Tags of Insert, Update and Delete."""

CHANGES: Final = frozenset(b"IUDT")
"""Tags of the messages that change tables: those of rows, and Truncate."""

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
"""The kind of a row and its number of columns, before its values."""

HEAD_BYTES: Final = 33
STREAMED_HEAD_BYTES: Final = 37
"""Where the first value of a row frame is: after the tag, the xid in a stream, the oid and the first row's head."""

_HEAD: Final = Struct("!xQ16xBIBH")
_STREAMED_HEAD: Final = Struct("!xQ16xB4xIBH")
_LSN_AT: Final = 1
_SENT_AT: Final = 17
_LSN_END: Final = 9
_BODY_AT: Final = XLOG_HEADER + 1
_XID_BYTES: Final = 4
_OID_BYTES: Final = 4
_MESSAGE_HEAD: Final = 9
"""The flags and the LSN of a logical message, which stand before its prefix."""
_WAL_END_AT: Final = 9
_WAL_END_END: Final = 17
_SHORTENED: Final = 1 << 63
"""Set in the second LSN of the header of a frame that takes the place of a large logical message. The other bits are
the size of the content that was left out. A server sends the first LSN there once more, which is never so high."""
_TRUNCATE_HEAD: Final = 5
"""The number of relations and the options of a Truncate, which stand before the oids."""


def tag_of(frame: bytes) -> int:
    """The tag of the message. IndexError: the frame holds none."""
    return frame[XLOG_HEADER]


def lsn_of(frame: bytes | memoryview) -> int:
    """The frame's LSN (`wal_start`): that of the change."""
    return int.from_bytes(frame[_LSN_AT:_LSN_END], "big")


def sent_at_of(frame: bytes) -> int:
    """When the server sent the frame, in microseconds since 2000."""
    return int.from_bytes(frame[_SENT_AT:XLOG_HEADER], "big", signed=True)


def asks_for_reply(frame: bytes) -> bool:
    """Whether the frame is a keepalive that asks for a status update at once."""
    return len(frame) == KEEPALIVE_BYTES and frame[-1] != 0


def xid_of(frame: bytes) -> int:
    """Of a message in a stream: the transaction or subtransaction that wrote the change."""
    return int.from_bytes(frame[_BODY_AT : _BODY_AT + _XID_BYTES], "big")


def relation_of_row(frame: bytes, in_stream: bool) -> int:
    """The oid of the relation that a row message is about. IndexError: the frame ends before."""
    at: i64 = _BODY_AT + _XID_BYTES if in_stream else _BODY_AT
    return int(read_i32_be(frame, at)) & 0xFFFFFFFF


def relation_oids(frame: bytes, in_stream: bool) -> list[int]:
    """The oids of the relations that a row message or a Truncate is about; empty for other messages."""
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
    """Oids of the relations that Relation messages outside of a stream describe, in their order.

    A Relation message in a stream has its xid in the place of the oid. Whether a frame is in a stream is not known
    here, so that an oid may belong to no relation.
    """
    return [
        int.from_bytes(frame[_BODY_AT : _BODY_AT + _OID_BYTES], "big")
        for frame in frames
        if len(frame) > HEAD_BYTES and frame[XLOG_HEADER] == RELATION
    ]


def message_prefix(frame: bytes, in_stream: bool) -> bytes:
    """The prefix of a logical message. Without its end, what is left of the frame."""
    at = (_BODY_AT + _XID_BYTES if in_stream else _BODY_AT) + _MESSAGE_HEAD
    end = frame.find(0, at)
    return frame[at:] if end < 0 else frame[at:end]


def relations_of_row(frame: memoryview) -> list[int]:
    """Oids of which one is that of the relation, if the frame is a row message; empty if it is another message.

    Whether an xid stands before the oid is the state of the stream.
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
    """Where the prefix of a logical message begins, in a stream or not; -1: it is not certain.

    The header of its frame has the LSN of the message (`message_cb_wrapper` and `stream_message_cb_wrapper` in
    logical.c), which the message has too: before its prefix, behind the flags and, in a stream, the xid.
    """
    lsn = bytes(frame[_LSN_AT:_LSN_END])
    outside = _BODY_AT + _MESSAGE_HEAD
    inside = outside + _XID_BYTES
    found = [at for at in (outside, inside) if bytes(frame[at - len(lsn) : at]) == lsn]
    return found[0] if len(found) == 1 else -1


def shortened_header(frame: memoryview, left_out: int) -> bytes:
    """The header of a frame that takes the place of `frame`, without `left_out` bytes of content."""
    mark = (_SHORTENED | left_out).to_bytes(_WAL_END_END - _WAL_END_AT, "big")
    return bytes(frame[:_WAL_END_AT]) + mark + bytes(frame[_WAL_END_END:XLOG_HEADER])


def shortened_bytes(frame: bytes) -> int:
    """The size of the content that the logical message in this frame had; -1: the message is whole."""
    mark = int.from_bytes(frame[_WAL_END_AT:_WAL_END_END], "big")
    return mark & ~_SHORTENED if mark & _SHORTENED else -1


def read_head(frame: bytes, in_stream: bool) -> tuple[int, int, int, int, int]:
    """The first fields of a row frame: LSN, message tag, relation oid, kind of the first row, its number of columns.

    The xid that follows the tag in a stream is left out. Raises `struct.error` or IndexError: it ends before.
    """
    if COMPILED:
        at: i64 = XLOG_HEADER + 5 if in_stream else XLOG_HEADER + 1
        lsn = int(read_i64_be(frame, _LSN_AT))
        oid = int(read_i32_be(frame, at))
        width = int(read_i16_be(frame, at + 5))
        # The wire's are without a sign.
        if lsn < 0:
            lsn += 1 << 64
        return lsn, frame[XLOG_HEADER], oid & 0xFFFFFFFF, frame[at + 4], width & 0xFFFF
    head: tuple[int, int, int, int, int] = (_STREAMED_HEAD if in_stream else _HEAD).unpack_from(frame)
    return head


def value_size(frame: bytes, at: "i64") -> "i64":
    """The size of the value of kind TEXT or BINARY at `at`. IndexError, ValueError: the frame ends before."""
    return int(read_i32_be(frame, at + SIZE_24))


def first_row(in_stream: bool) -> int:
    """Where the head of the first row of a row frame is."""
    return (STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES) - ROW_HEAD_BYTES


def row_width(frame: bytes, at: "i64") -> "i64":
    """The number of columns of the row whose head is at `at`. IndexError: the frame ends before."""
    width: i64 = frame[at + 1]
    return (width << 8) + frame[at + 2]


def key_values(frame: bytes, in_stream: bool, indexes: list[int]) -> tuple[tuple[bool, bytes], ...] | None:
    """Values of the new row of an Insert or Update, as they were sent, for the columns with these indexes from 0.

    Each is (whether it is in binary form, its bytes). A value that was not sent (unchanged TOAST) is that of the old
    row. None: the frame has no new row, or one of the values is NULL or in neither row.

    Raises:
        ValueError, IndexError: the row is malformed, or has not so many columns.
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
    """Of the row whose head is at `start`: the values of the columns with these indexes, which rise; and where it ends.

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
    """Walk over the row whose head is at `start`, take its values, and return where it ends.

    Args:
        unsent: gets the places of values that were not sent, which are None in `values` as NULL is.
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
    """Of the new row of an Insert or Update, the kind and the size of each value, which is 0 without bytes.

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
    """Append kind and size of each value of the row whose head is at `start`; where the row ends."""
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
