"""Stage 2, backwards: pgoutput messages as bytes, as the server writes them (proto.c).

The simulator uses it, and the tests prove with it that the reader loses nothing: a message that is read and written
again is the same, byte for byte. A message that cannot be written (a number out of range, a string with a zero
byte) is a bug of cdcd: struct.error or AssertionError.
"""

from collections.abc import Callable, Mapping
from struct import pack
from typing import Any, Final

from cdcd.core.protocol.messages import (
    MESSAGE_TRANSACTIONAL,
    TRUNCATE_CASCADE,
    TRUNCATE_RESTART_IDENTITY,
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
    Value,
)


def write_message(message: Message) -> bytes:
    """Return the bytes of `message` from the tag on; xid, and a Stream Abort's LSN and time, only if they are set."""
    return bytes((message.tag,)) + _FIELDS[type(message)](message)


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8")
    assert b"\0" not in encoded, "a string on the wire ends with its first zero byte"
    return encoded + b"\0"


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else pack("!I", xid)


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    if isinstance(value, Binary):
        return b"b" + pack("!i", len(value.data)) + value.data
    return b"t" + pack("!i", len(value)) + value


def _tuple(row: TupleData) -> bytes:
    return pack("!H", len(row)) + b"".join([_value(value) for value in row])


def _begin(message: Begin) -> bytes:
    return pack("!QqI", message.final_lsn, message.commit_time, message.xid)


def _logical_message(message: LogicalMessage) -> bytes:
    flags = MESSAGE_TRANSACTIONAL if message.transactional else 0
    head = _xid(message.xid) + pack("!BQ", flags, message.lsn) + _string(message.prefix)
    return head + pack("!i", len(message.content)) + message.content


def _commit(message: Commit) -> bytes:
    return pack("!BQQq", 0, message.commit_lsn, message.end_lsn, message.commit_time)


def _origin(message: Origin) -> bytes:
    return pack("!Q", message.commit_lsn) + _string(message.name)


def _relation(message: Relation) -> bytes:
    head = _xid(message.xid) + pack("!I", message.oid) + _string(message.namespace) + _string(message.name)
    columns = [
        pack("!B", column.flags) + _string(column.name) + pack("!Ii", column.type_oid, column.type_modifier)
        for column in message.columns
    ]
    return head + message.replica_identity.encode("ascii") + pack("!H", len(columns)) + b"".join(columns)


def _type(message: Type) -> bytes:
    return _xid(message.xid) + pack("!I", message.oid) + _string(message.namespace) + _string(message.name)


def _insert(message: Insert) -> bytes:
    return _xid(message.xid) + pack("!I", message.relation_oid) + b"N" + _tuple(message.new)


def _update(message: Update) -> bytes:
    old = b"" if message.old is None else message.old_kind.encode("ascii") + _tuple(message.old)
    return _xid(message.xid) + pack("!I", message.relation_oid) + old + b"N" + _tuple(message.new)


def _delete(message: Delete) -> bytes:
    old = message.old_kind.encode("ascii") + _tuple(message.old)
    return _xid(message.xid) + pack("!I", message.relation_oid) + old


def _truncate(message: Truncate) -> bytes:
    flags = (TRUNCATE_CASCADE if message.cascade else 0) | (
        TRUNCATE_RESTART_IDENTITY if message.restart_identity else 0
    )
    number = len(message.relation_oids)
    return _xid(message.xid) + pack(f"!iB{number}I", number, flags, *message.relation_oids)


def _stream_start(message: StreamStart) -> bytes:
    return pack("!IB", message.xid, message.first_segment)


def _stream_stop(_message: StreamStop) -> bytes:
    return b""


def _stream_commit(message: StreamCommit) -> bytes:
    return pack("!IBQQq", message.xid, 0, message.commit_lsn, message.end_lsn, message.commit_time)


def _stream_abort(message: StreamAbort) -> bytes:
    head = pack("!II", message.xid, message.subxid)
    if message.abort_lsn is None:
        assert message.abort_time is None, "abort LSN and time come together"
        return head
    return head + pack("!Qq", message.abort_lsn, message.abort_time)


def _begin_prepare(message: BeginPrepare) -> bytes:
    head = pack("!QQqI", message.prepare_lsn, message.end_lsn, message.prepare_time, message.xid)
    return head + _string(message.gid)


def _prepare(message: Prepare | StreamPrepare) -> bytes:
    head = pack("!BQQqI", 0, message.prepare_lsn, message.end_lsn, message.prepare_time, message.xid)
    return head + _string(message.gid)


def _commit_prepared(message: CommitPrepared) -> bytes:
    head = pack("!BQQqI", 0, message.commit_lsn, message.end_lsn, message.commit_time, message.xid)
    return head + _string(message.gid)


def _rollback_prepared(message: RollbackPrepared) -> bytes:
    head = pack("!BQQ", 0, message.prepare_end_lsn, message.rollback_end_lsn)
    times = pack("!qqI", message.prepare_time, message.rollback_time, message.xid)
    return head + times + _string(message.gid)


_FIELDS: Final[Mapping[type[Message], Callable[[Any], bytes]]] = {
    Begin: _begin,
    LogicalMessage: _logical_message,
    Commit: _commit,
    Origin: _origin,
    Relation: _relation,
    Type: _type,
    Insert: _insert,
    Update: _update,
    Delete: _delete,
    Truncate: _truncate,
    StreamStart: _stream_start,
    StreamStop: _stream_stop,
    StreamCommit: _stream_commit,
    StreamAbort: _stream_abort,
    BeginPrepare: _begin_prepare,
    Prepare: _prepare,
    CommitPrepared: _commit_prepared,
    RollbackPrepared: _rollback_prepared,
    StreamPrepare: _prepare,
}
