"""Stage 2: strict reading of bytes as pgoutput messages.

A table has for each tag the class, the function that reads its fields, and the allowed place. An unknown tag, a
wrong place, an unknown flag, kind or replica identity, a missing end or extra bytes raise a `ProtocolError` that
names message, field and offset. The reader never guesses.

The reader's caller knows from Stream Start and Stream Stop if a message is in a stream, and passes `in_stream`; the
message itself does not show this. In the same way it passes `abort_info`, which follows from the options that
replication was started with (`versions.Options.abort_info`).

Row messages on the hot path are not read here: they stay bytes, and stage 4 splits them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cdcd.core.protocol.cursor import Cursor
from cdcd.core.protocol.messages import (
    COLUMN_IS_KEY,
    MESSAGE_TRANSACTIONAL,
    TRUNCATE_CASCADE,
    TRUNCATE_RESTART_IDENTITY,
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Column,
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

REPLICA_IDENTITIES: Final = "dnfi"


class MessagePlace(Enum):
    """Allowed place of a message, relative to the blocks of streamed transactions."""

    OUTSIDE = "outside a stream"
    INSIDE = "inside a stream"
    BOTH = "anywhere, without xid"
    BOTH_WITH_XID = "anywhere, with xid in a stream"


Fields = Callable[[Cursor, int | None], Message]
"""Function that reads the fields of a message after the tag and, if it has one, the xid."""


@dataclass(frozen=True, slots=True)
class MessageRule:
    """Rule for reading the messages of one tag."""

    message: type[Message]
    fields: Fields
    place: MessagePlace


def read_message(data: bytes, at: int = 0, *, in_stream: bool = False, abort_info: bool = False) -> Message:
    """Read the message that starts with the tag at `data[at]` and ends with `data`.

    `in_stream`: True between Stream Start and Stream Stop. `abort_info`: True if Stream Abort has LSN and time.
    Raises only ProtocolError, whatever the bytes are.
    """
    cursor = Cursor(data, "message", at)
    tag = cursor.uint8("tag")
    rule = (_RULES_WITH_ABORT_INFO if abort_info else RULES).get(tag)
    if rule is None:
        raise cursor.error("tag", f"unknown tag {chr(tag)!r}", at)
    cursor.message = rule.message.__name__
    xid = None
    if in_stream:
        if rule.place is MessagePlace.OUTSIDE:
            raise cursor.error("tag", "not allowed inside a stream", at)
        if rule.place is MessagePlace.BOTH_WITH_XID:
            xid = cursor.xid("xid")
    elif rule.place is MessagePlace.INSIDE:
        raise cursor.error("tag", "not allowed outside a stream", at)
    message = rule.fields(cursor, xid)
    cursor.finish()
    return message


def read_message_head(
    data: bytes, at: int = 0, *, in_stream: bool = False
) -> tuple[LogicalMessage, memoryview]:
    """Read a logical message as strictly as `read_message`, without copying its content.

    Returns:
        The message with an empty content, and the content as a part of `data`.
    """
    cursor = Cursor(data, LogicalMessage.__name__, at)
    tag = cursor.uint8("tag")
    if tag != LogicalMessage.tag:
        raise cursor.error("tag", f"unknown tag {chr(tag)!r}", at)
    message = LogicalMessage(*_message_fields(cursor, cursor.xid("xid") if in_stream else None), content=b"")
    begin = cursor.pass_sized("content")
    cursor.finish()
    return message, memoryview(data)[begin:]


def _begin(cursor: Cursor, _xid: int | None) -> Message:
    return Begin(
        final_lsn=cursor.set_lsn("final_lsn"),
        commit_time=cursor.int64("commit_time"),
        xid=cursor.xid("xid"),
    )


def _logical_message(cursor: Cursor, xid: int | None) -> Message:
    return LogicalMessage(*_message_fields(cursor, xid), content=cursor.sized("content"))


def _message_fields(cursor: Cursor, xid: int | None) -> tuple[int | None, bool, int, str]:
    """Read the fields of a logical message before its content."""
    transactional = cursor.flags("flags", MESSAGE_TRANSACTIONAL) == MESSAGE_TRANSACTIONAL
    if xid is not None and not transactional:
        # The server never writes this (see messages.py); accepting it would put the message into a transaction.
        raise cursor.error("flags", "a non-transactional message inside a stream", cursor.offset - 1)
    return xid, transactional, cursor.uint64("lsn"), cursor.string("prefix")


def _commit(cursor: Cursor, _xid: int | None) -> Message:
    cursor.flags("flags", 0)
    return Commit(
        commit_lsn=cursor.uint64("commit_lsn"),
        end_lsn=cursor.uint64("end_lsn"),
        commit_time=cursor.int64("commit_time"),
    )


def _origin(cursor: Cursor, _xid: int | None) -> Message:
    return Origin(commit_lsn=cursor.uint64("commit_lsn"), name=cursor.string("name"))


def _relation(cursor: Cursor, xid: int | None) -> Message:
    oid = cursor.uint32("oid")
    namespace = cursor.string("namespace")
    name = cursor.string("name")
    replica_identity = chr(cursor.uint8("replica_identity"))
    if replica_identity not in REPLICA_IDENTITIES:
        problem = f"unknown replica identity {replica_identity!r}"
        raise cursor.error("replica_identity", problem, cursor.offset - 1)
    columns = tuple([_column(cursor, index) for index in range(cursor.uint16("number of columns"))])
    return Relation(xid, oid, namespace, name, replica_identity, columns)


def _column(cursor: Cursor, index: int) -> Column:
    prefix = f"columns[{index}]"
    return Column(
        flags=cursor.flags(f"{prefix}.flags", COLUMN_IS_KEY),
        name=cursor.string(f"{prefix}.name"),
        type_oid=cursor.uint32(f"{prefix}.type_oid"),
        type_modifier=cursor.int32(f"{prefix}.type_modifier"),
    )


def _type(cursor: Cursor, xid: int | None) -> Message:
    return Type(
        xid=xid,
        oid=cursor.uint32("oid"),
        namespace=cursor.string("namespace"),
        name=cursor.string("name"),
    )


def _insert(cursor: Cursor, xid: int | None) -> Message:
    relation_oid = cursor.uint32("relation_oid")
    _tuple_kind(cursor, "N")
    return Insert(xid, relation_oid, _tuple(cursor, "new"))


def _update(cursor: Cursor, xid: int | None) -> Message:
    relation_oid = cursor.uint32("relation_oid")
    kind = _tuple_kind(cursor, "KON")
    if kind == "N":
        return Update(xid, relation_oid, "", None, _tuple(cursor, "new"))
    old = _tuple(cursor, "old")
    _tuple_kind(cursor, "N")
    return Update(xid, relation_oid, kind, old, _tuple(cursor, "new"))


def _delete(cursor: Cursor, xid: int | None) -> Message:
    relation_oid = cursor.uint32("relation_oid")
    kind = _tuple_kind(cursor, "KO")
    return Delete(xid, relation_oid, kind, _tuple(cursor, "old"))


def _tuple_kind(cursor: Cursor, allowed: str) -> str:
    kind = chr(cursor.uint8("tuple kind"))
    if kind not in allowed:
        wanted = " or ".join(repr(one) for one in allowed)
        raise cursor.error("tuple kind", f"{wanted} expected, not {kind!r}", cursor.offset - 1)
    return kind


def _tuple(cursor: Cursor, field: str) -> TupleData:
    number = cursor.uint16(f"{field}: number of columns")
    return tuple([_value(cursor, f"{field}[{index}]") for index in range(number)])


def _value(cursor: Cursor, field: str) -> Value:
    kind = chr(cursor.uint8(field))
    if kind == "t":
        return cursor.sized(field)
    if kind == "n":
        return None
    if kind == "u":
        return UNCHANGED
    if kind == "b":
        return Binary(cursor.sized(field))
    raise cursor.error(field, f"unknown kind of value {kind!r}", cursor.offset - 1)


def _truncate(cursor: Cursor, xid: int | None) -> Message:
    number = cursor.uint32("number of relations")
    flags = cursor.flags("flags", TRUNCATE_CASCADE | TRUNCATE_RESTART_IDENTITY)
    return Truncate(
        xid=xid,
        cascade=flags & TRUNCATE_CASCADE != 0,
        restart_identity=flags & TRUNCATE_RESTART_IDENTITY != 0,
        relation_oids=tuple([cursor.uint32("relation_oids") for _ in range(number)]),
    )


def _stream_start(cursor: Cursor, _xid: int | None) -> Message:
    return StreamStart(xid=cursor.xid("xid"), first_segment=cursor.boolean("first_segment"))


def _stream_stop(_cursor: Cursor, _xid: int | None) -> Message:
    return StreamStop()


def _stream_commit(cursor: Cursor, _xid: int | None) -> Message:
    xid = cursor.xid("xid")
    cursor.flags("flags", 0)
    return StreamCommit(
        xid=xid,
        commit_lsn=cursor.uint64("commit_lsn"),
        end_lsn=cursor.uint64("end_lsn"),
        commit_time=cursor.int64("commit_time"),
    )


def _stream_abort(cursor: Cursor, _xid: int | None) -> Message:
    return StreamAbort(cursor.xid("xid"), cursor.xid("subxid"), None, None)


def _stream_abort_with_info(cursor: Cursor, _xid: int | None) -> Message:
    return StreamAbort(
        xid=cursor.xid("xid"),
        subxid=cursor.xid("subxid"),
        abort_lsn=cursor.uint64("abort_lsn"),
        abort_time=cursor.int64("abort_time"),
    )


def _begin_prepare(cursor: Cursor, _xid: int | None) -> Message:
    return BeginPrepare(
        prepare_lsn=cursor.set_lsn("prepare_lsn"),
        end_lsn=cursor.set_lsn("end_lsn"),
        prepare_time=cursor.int64("prepare_time"),
        xid=cursor.xid("xid"),
        gid=cursor.string("gid"),
    )


def _prepare(cursor: Cursor, _xid: int | None) -> Message:
    cursor.flags("flags", 0)
    return Prepare(
        prepare_lsn=cursor.set_lsn("prepare_lsn"),
        end_lsn=cursor.set_lsn("end_lsn"),
        prepare_time=cursor.int64("prepare_time"),
        xid=cursor.xid("xid"),
        gid=cursor.string("gid"),
    )


def _commit_prepared(cursor: Cursor, _xid: int | None) -> Message:
    cursor.flags("flags", 0)
    return CommitPrepared(
        commit_lsn=cursor.set_lsn("commit_lsn"),
        end_lsn=cursor.set_lsn("end_lsn"),
        commit_time=cursor.int64("commit_time"),
        xid=cursor.xid("xid"),
        gid=cursor.string("gid"),
    )


def _rollback_prepared(cursor: Cursor, _xid: int | None) -> Message:
    cursor.flags("flags", 0)
    return RollbackPrepared(
        prepare_end_lsn=cursor.set_lsn("prepare_end_lsn"),
        rollback_end_lsn=cursor.set_lsn("rollback_end_lsn"),
        prepare_time=cursor.int64("prepare_time"),
        rollback_time=cursor.int64("rollback_time"),
        xid=cursor.xid("xid"),
        gid=cursor.string("gid"),
    )


def _stream_prepare(cursor: Cursor, _xid: int | None) -> Message:
    cursor.flags("flags", 0)
    return StreamPrepare(
        prepare_lsn=cursor.set_lsn("prepare_lsn"),
        end_lsn=cursor.set_lsn("end_lsn"),
        prepare_time=cursor.int64("prepare_time"),
        xid=cursor.xid("xid"),
        gid=cursor.string("gid"),
    )


RULES: Final[Mapping[int, MessageRule]] = {
    rule.message.tag: rule
    for rule in (
        MessageRule(Begin, _begin, MessagePlace.OUTSIDE),
        MessageRule(LogicalMessage, _logical_message, MessagePlace.BOTH_WITH_XID),
        MessageRule(Commit, _commit, MessagePlace.OUTSIDE),
        MessageRule(Origin, _origin, MessagePlace.BOTH),
        MessageRule(Relation, _relation, MessagePlace.BOTH_WITH_XID),
        MessageRule(Type, _type, MessagePlace.BOTH_WITH_XID),
        MessageRule(Insert, _insert, MessagePlace.BOTH_WITH_XID),
        MessageRule(Update, _update, MessagePlace.BOTH_WITH_XID),
        MessageRule(Delete, _delete, MessagePlace.BOTH_WITH_XID),
        MessageRule(Truncate, _truncate, MessagePlace.BOTH_WITH_XID),
        MessageRule(StreamStart, _stream_start, MessagePlace.OUTSIDE),
        MessageRule(StreamStop, _stream_stop, MessagePlace.INSIDE),
        MessageRule(StreamCommit, _stream_commit, MessagePlace.OUTSIDE),
        MessageRule(StreamAbort, _stream_abort, MessagePlace.OUTSIDE),
        MessageRule(BeginPrepare, _begin_prepare, MessagePlace.OUTSIDE),
        MessageRule(Prepare, _prepare, MessagePlace.OUTSIDE),
        MessageRule(CommitPrepared, _commit_prepared, MessagePlace.OUTSIDE),
        MessageRule(RollbackPrepared, _rollback_prepared, MessagePlace.OUTSIDE),
        MessageRule(StreamPrepare, _stream_prepare, MessagePlace.OUTSIDE),
    )
}

_RULES_WITH_ABORT_INFO: Final[Mapping[int, MessageRule]] = {
    **RULES,
    StreamAbort.tag: MessageRule(StreamAbort, _stream_abort_with_info, MessagePlace.OUTSIDE),
}
