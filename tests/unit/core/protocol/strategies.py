"""Hypothesis strategies for everything that the wire can carry."""

from functools import cache

from hypothesis import strategies as st

from cdcd.core.protocol.frames import Keepalive, StatusUpdate, XLogData
from cdcd.core.protocol.messages import (
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
    Type,
    Update,
)

lsns = st.integers(0, 2**64 - 1)
set_lsns = st.integers(1, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
xids = st.integers(1, 2**32 - 1)
oids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
contents = st.binary(max_size=40)

values = st.one_of(st.none(), st.just(UNCHANGED), contents, contents.map(Binary))
tuples = st.lists(values, max_size=8).map(tuple)
columns = st.builds(
    Column,
    flags=st.integers(0, 1),
    name=names,
    type_oid=oids,
    type_modifier=st.integers(-(2**31), 2**31 - 1),
)

_prepared = {"prepare_lsn": set_lsns, "end_lsn": set_lsns, "prepare_time": times, "xid": xids, "gid": names}

OUTSIDE: dict[type[Message], st.SearchStrategy[Message]] = {
    Begin: st.builds(Begin, final_lsn=set_lsns, commit_time=times, xid=xids),
    Commit: st.builds(Commit, commit_lsn=lsns, end_lsn=lsns, commit_time=times),
    StreamStart: st.builds(StreamStart, xid=xids, first_segment=st.booleans()),
    StreamCommit: st.builds(StreamCommit, xid=xids, commit_lsn=lsns, end_lsn=lsns, commit_time=times),
    BeginPrepare: st.builds(BeginPrepare, **_prepared),
    Prepare: st.builds(Prepare, **_prepared),
    CommitPrepared: st.builds(
        CommitPrepared, commit_lsn=set_lsns, end_lsn=set_lsns, commit_time=times, xid=xids, gid=names
    ),
    RollbackPrepared: st.builds(
        RollbackPrepared,
        prepare_end_lsn=set_lsns,
        rollback_end_lsn=set_lsns,
        prepare_time=times,
        rollback_time=times,
        xid=xids,
        gid=names,
    ),
    StreamPrepare: st.builds(StreamPrepare, **_prepared),
}
"""Messages that may only stand outside a stream, except Stream Abort."""

INSIDE: dict[type[Message], st.SearchStrategy[Message]] = {StreamStop: st.builds(StreamStop)}

ORIGIN: dict[type[Message], st.SearchStrategy[Message]] = {
    Origin: st.builds(Origin, commit_lsn=lsns, name=names)
}


def changes(xid: st.SearchStrategy[int | None]) -> dict[type[Message], st.SearchStrategy[Message]]:
    """Messages that may stand anywhere, with the xid that they have there."""
    return {
        LogicalMessage: st.builds(
            LogicalMessage,
            xid=xid,
            transactional=st.booleans(),
            lsn=lsns,
            prefix=names,
            content=contents,
        ).filter(lambda message: message.xid is None or message.transactional),
        Relation: st.builds(
            Relation,
            xid=xid,
            oid=oids,
            namespace=names,
            name=names,
            replica_identity=st.sampled_from("dnfi"),
            columns=st.lists(columns, max_size=5).map(tuple),
        ),
        Type: st.builds(Type, xid=xid, oid=oids, namespace=names, name=names),
        Insert: st.builds(Insert, xid=xid, relation_oid=oids, new=tuples),
        Update: st.one_of(
            st.builds(Update, xid=xid, relation_oid=oids, old_kind=st.just(""), old=st.none(), new=tuples),
            st.builds(
                Update, xid=xid, relation_oid=oids, old_kind=st.sampled_from("KO"), old=tuples, new=tuples
            ),
        ),
        Delete: st.builds(Delete, xid=xid, relation_oid=oids, old_kind=st.sampled_from("KO"), old=tuples),
        Truncate: st.builds(
            Truncate,
            xid=xid,
            cascade=st.booleans(),
            restart_identity=st.booleans(),
            relation_oids=st.lists(oids, max_size=5).map(tuple),
        ),
    }


def stream_abort(*, abort_info: bool) -> dict[type[Message], st.SearchStrategy[Message]]:
    return {
        StreamAbort: st.builds(
            StreamAbort,
            xid=xids,
            subxid=xids,
            abort_lsn=lsns if abort_info else st.none(),
            abort_time=times if abort_info else st.none(),
        )
    }


# To make a strategy takes much longer than to draw from it, and a test asks for these for each example.
@cache
def by_class(*, in_stream: bool, abort_info: bool) -> dict[type[Message], st.SearchStrategy[Message]]:
    """Every message that the reader takes in this mode."""
    if in_stream:
        return {**INSIDE, **ORIGIN, **changes(xids)}
    return {**OUTSIDE, **ORIGIN, **changes(st.none()), **stream_abort(abort_info=abort_info)}


@cache
def messages(*, in_stream: bool, abort_info: bool) -> st.SearchStrategy[Message]:
    return st.one_of(*by_class(in_stream=in_stream, abort_info=abort_info).values())


frames = st.one_of(
    st.builds(XLogData, wal_start=lsns, wal_end=lsns, server_time=times, payload=contents),
    st.builds(Keepalive, wal_end=lsns, server_time=times, reply_requested=st.booleans()),
)
statuses = st.builds(
    StatusUpdate, written=lsns, flushed=lsns, applied=lsns, client_time=times, reply_requested=st.booleans()
)
