"""What PostgreSQL's output plugin pgoutput says, one class per message, fields in the manual's order.

The source is the manual's chapter "Logical Replication Message Formats" and, where it is silent, proto.c and
pgoutput.c of PostgreSQL 13 to 18. `tag` is the first byte of the message, `since` the protocol version that
brought it: 1 came with PostgreSQL 10, 2 with 14, 3 with 15, 4 with 16.

LSNs, oids and xids are plain unsigned ints. Times are microseconds since 2000-01-01 UTC.

**In a stream**, that is between Stream Start and Stream Stop, Relation, Type, Insert, Update, Delete,
Truncate and Message have an `xid` right after the tag: that of the subtransaction which made the change, or
of the transaction itself. Outside it is None. Three things that the manual does not say (checked in
pgoutput.c 14 to 18 and in the captured streams of tests/golden):

- Origin in a stream has no xid. It comes only right after the first Stream Start of a transaction and its
  `commit_lsn` is 0, because the commit is not known yet.
- Message in a stream has the xid of the **top-level** transaction even when a subtransaction wrote it
  (pgoutput_message takes `txn->xid` where pgoutput_change takes `change->txn->xid`). A Stream Abort of that
  subtransaction therefore does not name it.
- A non-transactional Message is sent when its WAL record is decoded, and the blocks of a stream, like whole
  transactions, are sent without decoding anything in between. So it stands inside neither and never has an
  xid. One that is written within a transaction comes before it, also when that is rolled back.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Literal

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""Microseconds from the Unix epoch to 2000-01-01 UTC, where PostgreSQL's times start."""


COLUMN_IS_KEY: Final = 1
MESSAGE_TRANSACTIONAL: Final = 1
TRUNCATE_CASCADE: Final = 1
TRUNCATE_RESTART_IDENTITY: Final = 2


class Unchanged(Enum):
    """The type of `UNCHANGED`; an enum because type checkers narrow on its only member."""

    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED
"""A TOASTed value that the update did not touch and the server did not send. Not a NULL."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in the type's binary form (its send function); text values are plain bytes."""

    data: bytes


Value = bytes | Binary | Literal[Unchanged.UNCHANGED] | None
"""One column of a row: text as bytes, `Binary`, `UNCHANGED`, or None for NULL."""

TupleData = tuple[Value, ...]
"""A row's values in the order of the columns in its Relation message."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Relation message; `type_modifier` is `pg_attribute.atttypmod`, -1 for none."""

    flags: int
    name: str
    type_oid: int
    type_modifier: int

    @property
    def is_key(self) -> bool:
        """Part of the replica identity. Under REPLICA IDENTITY FULL every column is."""
        return self.flags & COLUMN_IS_KEY != 0


@dataclass(frozen=True, slots=True)
class Begin:
    """A committed transaction follows, whole. `final_lsn` equals the `commit_lsn` of its Commit."""

    tag: ClassVar[int] = ord("B")
    since: ClassVar[int] = 1

    final_lsn: int
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What `pg_logical_emit_message` wrote; "Message" in the manual. PostgreSQL 14 and up, in any version.

    `lsn` is where its record **ends** (logicalmsg_decode in decode.c), unlike the `commit_lsn` of a
    transaction: the next transaction may have it as its `commit_lsn`.
    """

    tag: ClassVar[int] = ord("M")
    since: ClassVar[int] = 1

    xid: int | None
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of what Begin opened. `commit_lsn` is where the commit record starts, `end_lsn` its end.

    `commit_time` may be that of another server, for a transaction that came in by replication.
    """

    tag: ClassVar[int] = ord("C")
    since: ClassVar[int] = 1

    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came in by replication; `commit_lsn` is its commit on the origin, 0 in a stream."""

    tag: ClassVar[int] = ord("O")
    since: ClassVar[int] = 1

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's columns, sent before its first row and again after each change of its definition.

    `replica_identity` is `pg_class.relreplident`: "d" default, "n" nothing, "f" full, "i" an index. Columns
    that are not published (generated ones, those outside a column list) are absent here and in rows.
    """

    tag: ClassVar[int] = ord("R")
    since: ClassVar[int] = 1

    xid: int | None
    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> str:
        """The schema's name: on the wire pg_catalog is an empty string."""
        return self.namespace or "pg_catalog"


@dataclass(frozen=True, slots=True)
class Type:
    """A column's user-defined type, before its Relation.

    For a domain, `oid` is the domain's, `namespace` and `name` those of its base type (logicalrep_write_typ
    in proto.c).
    """

    tag: ClassVar[int] = ord("Y")
    since: ClassVar[int] = 1

    xid: int | None
    oid: int
    namespace: str
    name: str

    @property
    def schema(self) -> str:
        """The schema's name: on the wire pg_catalog is an empty string."""
        return self.namespace or "pg_catalog"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    tag: ClassVar[int] = ord("I")
    since: ClassVar[int] = 1

    xid: int | None
    relation_oid: int
    new: TupleData


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old_kind` says what `old` is.

    "K": the replica identity before the update, other columns NULL, sent when the identity changed or is
    TOASTed. "O": the whole old row, under REPLICA IDENTITY FULL. "": there is no old row.
    """

    tag: ClassVar[int] = ord("U")
    since: ClassVar[int] = 1

    xid: int | None
    relation_oid: int
    old_kind: str
    old: TupleData | None
    new: TupleData


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row: with `old_kind` "K" its replica identity, other columns NULL; with "O" all of it."""

    tag: ClassVar[int] = ord("D")
    since: ClassVar[int] = 1

    xid: int | None
    relation_oid: int
    old_kind: str
    old: TupleData


@dataclass(frozen=True, slots=True)
class Truncate:
    """One TRUNCATE command; with CASCADE the relations include those it reached, as far as published."""

    tag: ClassVar[int] = ord("T")
    since: ClassVar[int] = 1

    xid: int | None
    cascade: bool
    restart_identity: bool
    relation_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A block of a transaction that is still open follows, up to Stream Stop."""

    tag: ClassVar[int] = ord("S")
    since: ClassVar[int] = 2

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The end of a block."""

    tag: ClassVar[int] = ord("E")
    since: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """The streamed transaction `xid` is committed."""

    tag: ClassVar[int] = ord("c")
    since: ClassVar[int] = 2

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """The subtransaction `subxid` of the streamed `xid` is rolled back; all of it when they are equal.

    Each aborted subtransaction has its own message, nested ones too. LSN and time are there in version 4 with
    `streaming=parallel`, else None; whether they are there cannot be seen in the message.
    """

    tag: ClassVar[int] = ord("A")
    since: ClassVar[int] = 2

    xid: int
    subxid: int
    abort_lsn: int | None
    abort_time: int | None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """A transaction that was prepared for two-phase commit follows, whole, up to Prepare."""

    tag: ClassVar[int] = ord("b")
    since: ClassVar[int] = 3

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """The end of what Begin Prepare opened. Whether it commits is not known yet."""

    tag: ClassVar[int] = ord("P")
    since: ClassVar[int] = 3

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """The prepared transaction is committed, at `commit_lsn`."""

    tag: ClassVar[int] = ord("K")
    since: ClassVar[int] = 3

    commit_lsn: int
    end_lsn: int
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """The prepared transaction is rolled back. `prepare_end_lsn` equals the `end_lsn` of its Prepare."""

    tag: ClassVar[int] = ord("r")
    since: ClassVar[int] = 3

    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """The streamed transaction `xid` is prepared: Prepare's counterpart after Stream Stop."""

    tag: ClassVar[int] = ord("p")
    since: ClassVar[int] = 3

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


ChangeMessage = LogicalMessage | Relation | Type | Insert | Update | Delete | Truncate
"""The messages that have an xid in a stream."""

Message = (
    ChangeMessage
    | Begin
    | Commit
    | Origin
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
