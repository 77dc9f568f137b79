"""Stage 1: CopyData payloads as frames (WAL data, keepalive), and status updates as CopyData payloads.

While a walsender streams, both sides exchange CopyData messages whose first byte is their kind (manual, "Streaming
Replication Protocol"; walsender.c). From the server: `w`, a piece of the stream, which for pgoutput is exactly one
message of stage 2, and `k`, a keepalive, which may request a reply. To the server: `r`, cdcd's positions. Hot
standby feedback (`h`) has no use for logical replication and is not sent.

Row messages pass through the daemon as whole `w` frames: `XLOG_HEADER` is the offset of their pgoutput message.
Times are microseconds since 2000-01-01 UTC, as everywhere on this wire.
"""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final

from cdcd.core.protocol.cursor import Cursor

XLOG_HEADER: Final = 25
"""Bytes before the pgoutput message in a `w` frame: the tag and three 64-bit fields."""

_XLOG_DATA: Final = Struct("!BQQq")
_KEEPALIVE: Final = Struct("!BQqB")
_STATUS: Final = Struct("!BQQQqB")


@dataclass(frozen=True, slots=True)
class XLogData:
    """One pgoutput message with its position in the WAL.

    A logical walsender puts the same LSN in `wal_start` and `wal_end` (walsender.c, WalSndPrepareWrite): the LSN of
    the change; 0 for a message that is followed at once by another (Relation, Type, and Begin messages before
    Origin); the end LSN for Commit messages. It must not be confirmed, because several rows share an LSN and open
    transactions have earlier rows.
    """

    tag: ClassVar[int] = ord("w")

    wal_start: int
    wal_end: int
    server_time: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A keepalive: the server has sent everything that it had to send before `wal_end`.

    With `reply_requested` the server wants a status update at once: it asks at half of `wal_sender_timeout`, and
    closes the connection at the whole.
    """

    tag: ClassVar[int] = ord("k")

    wal_end: int
    server_time: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """cdcd's positions: `flushed` becomes the slot's `confirmed_flush_lsn`, and PostgreSQL may remove the WAL before
    it.

    `written` and `applied` only show in `pg_stat_replication`, except that a fast shutdown waits for `flushed` or,
    where that is not set, `written` (walsender.c, WalSndDone).
    """

    tag: ClassVar[int] = ord("r")

    written: int
    flushed: int
    applied: int
    client_time: int
    reply_requested: bool = False


def read_frame(data: bytes) -> XLogData | Keepalive:
    """Read one CopyData message from the server; raise ProtocolError if it is not a known, complete frame."""
    cursor = Cursor(data, "frame")
    tag = cursor.uint8("tag")
    if tag == XLogData.tag:
        cursor.message = "XLogData"
        return XLogData(
            wal_start=cursor.uint64("wal_start"),
            wal_end=cursor.uint64("wal_end"),
            server_time=cursor.int64("server_time"),
            payload=cursor.rest(),
        )
    if tag == Keepalive.tag:
        cursor.message = "Keepalive"
        keepalive = Keepalive(
            wal_end=cursor.uint64("wal_end"),
            server_time=cursor.int64("server_time"),
            reply_requested=cursor.boolean("reply_requested"),
        )
        cursor.finish()
        return keepalive
    raise cursor.error("tag", f"unknown frame {chr(tag)!r}", 0)


def read_status(data: bytes) -> StatusUpdate:
    """Read a status update as the server does, for the simulator and the tests."""
    cursor = Cursor(data, "StatusUpdate")
    tag = cursor.uint8("tag")
    if tag != StatusUpdate.tag:
        raise cursor.error("tag", f"unknown frame {chr(tag)!r}", 0)
    status = StatusUpdate(
        written=cursor.uint64("written"),
        flushed=cursor.uint64("flushed"),
        applied=cursor.uint64("applied"),
        client_time=cursor.int64("client_time"),
        reply_requested=cursor.boolean("reply_requested"),
    )
    cursor.finish()
    return status


def write_frame(frame: XLogData | Keepalive | StatusUpdate) -> bytes:
    """Return the CopyData payload of `frame`."""
    if isinstance(frame, XLogData):
        return _XLOG_DATA.pack(frame.tag, frame.wal_start, frame.wal_end, frame.server_time) + frame.payload
    if isinstance(frame, Keepalive):
        return _KEEPALIVE.pack(frame.tag, frame.wal_end, frame.server_time, frame.reply_requested)
    return _STATUS.pack(
        frame.tag, frame.written, frame.flushed, frame.applied, frame.client_time, frame.reply_requested
    )
