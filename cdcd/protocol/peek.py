"""What is read of a `w` frame without decoding its message: tags, offsets, and the heads of the frequent messages.

The rule: a byte offset of pgoutput outside of stage 2's reader is here and nowhere else. Stage 2 (`reader.py`) reads
every field and refuses what is malformed; on the hot path a few fields are enough, and these functions take them where
the manual ("Logical Replication Message Formats") puts them. They check no more than their docstrings say. What they
cannot read, the strict reader then explains.

In a stream (Stream Start … Stream Stop) the xid of the transaction or subtransaction stands after the tag of a message.
"""

from struct import Struct
from typing import Final

from cdcd.protocol.frames import XLOG_HEADER

XLOG_DATA: Final = 0x77
"""`w`: the first byte of a frame that holds a pgoutput message, which starts at `XLOG_HEADER`."""

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

_LSN: Final = slice(1, 9)
_BODY_AT: Final = XLOG_HEADER + 1
_XID_BYTES: Final = 4
_OID_BYTES: Final = 4
_TRUNCATE_HEAD: Final = 5
"""The number of relations and the options of a Truncate, which stand before the oids."""


def tag_of(frame: bytes) -> int:
    """The tag of the message. IndexError: the frame holds none."""
    return frame[XLOG_HEADER]


def lsn_of(frame: bytes) -> int:
    """The frame's LSN (`wal_start`): that of the change."""
    return int.from_bytes(frame[_LSN], "big")


def xid_of(frame: bytes) -> int:
    """Of a message in a stream: the transaction or subtransaction that wrote the change."""
    return int.from_bytes(frame[_BODY_AT : _BODY_AT + _XID_BYTES], "big")


def relation_oids(frame: bytes, in_stream: bool) -> list[int]:
    """The oids of the relations that a row message or a Truncate is about; empty for other messages."""
    tag = frame[XLOG_HEADER]
    at = _BODY_AT + _XID_BYTES if in_stream else _BODY_AT
    if tag in ROWS:
        return [int.from_bytes(frame[at : at + _OID_BYTES], "big")]
    if tag == TRUNCATE:
        at += _TRUNCATE_HEAD
        return [
            int.from_bytes(frame[oid : oid + _OID_BYTES], "big") for oid in range(at, len(frame), _OID_BYTES)
        ]
    return []
