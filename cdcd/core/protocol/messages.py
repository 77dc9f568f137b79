"""Messages of PostgreSQL's output plugin pgoutput, one class for each message, with fields in the manual's order.

The source is the manual's chapter "Logical Replication Message Formats" and, where it is silent, proto.c and
pgoutput.c of PostgreSQL 13 to 18. `tag` is the first byte of the message, `since` the first protocol version with
the message: 1 came with PostgreSQL 10, 2 with 14, 3 with 15, 4 with 16.

LSNs, oids and xids are plain unsigned ints. Times are microseconds since 2000-01-01 UTC.

**In a stream**, which means between Stream Start and Stream Stop, the messages Relation, Type, Insert, Update,
Delete, Truncate and Message have an `xid` right after the tag: the id of the subtransaction that made the change,
or of the transaction itself. Outside of a stream `xid` is None. Three facts are not in the manual (verified in
pgoutput.c 14 to 18 and in the captured streams of tests/golden):

- Origin in a stream has no xid. It is sent only right after the first Stream Start of a transaction, and its
  `commit_lsn` is 0, because the commit is not known yet.
- Message in a stream has the xid of the **top-level** transaction even when a subtransaction wrote it
  (pgoutput_message takes `txn->xid` where pgoutput_change takes `change->txn->xid`). So a Stream Abort of that
  subtransaction does not name this xid.
- A non-transactional Message is sent when its WAL record is decoded. The blocks of a stream, like whole
  transactions, are sent without decoding in between. So the message is inside neither, and never has an xid. If it
  was written within a transaction, it is sent before the transaction, also if the transaction is rolled back.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Literal

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""Microseconds from the Unix epoch to 2000-01-01 UTC, the epoch of PostgreSQL's times."""


COLUMN_IS_KEY: Final = 1
MESSAGE_TRANSACTIONAL: Final = 1
TRUNCATE_CASCADE: Final = 1
TRUNCATE_RESTART_IDENTITY: Final = 2


class Unchanged(Enum):
    """Type of `UNCHANGED`; an enum because type checkers can narrow on its only member."""

    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED
"""A TOASTed value that the update did not change and the server did not send. It is not NULL."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in the binary form of its type (its send function); text values are plain bytes."""

    data: bytes


Value = bytes | Binary | Literal[Unchanged.UNCHANGED] | None
"""A column's value in a row: text as bytes, `Binary`, `UNCHANGED`, or None for NULL."""

TupleData = tuple[Value, ...]
"""Values of a row in the order of the columns in its Relation message."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Relation message; `type_modifier` is `pg_attribute.atttypmod`, -1 for none."""

    flags: int
    name: str
    type_oid: int
    type_modifier: int

    @property
    def is_key(self) -> bool:
        """True if the column is part of the replica identity.

        Under REPLICA IDENTITY FULL every column is part of it.
        """
        return self.flags & COLUMN_IS_KEY != 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Beginning of a whole committed transaction. `final_lsn` equals the `commit_lsn` of its Commit."""

    tag: ClassVar[int] = ord("B")
    since: ClassVar[int] = 1

    final_lsn: int
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that `pg_logical_emit_message` wrote; "Message" in the manual.

    PostgreSQL 14 and up send it in any protocol version.

    `lsn` is the **end** of its WAL record (logicalmsg_decode in decode.c), unlike the `commit_lsn` of a
    transaction: the next transaction may have the same LSN as its `commit_lsn`.
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
    """End of the transaction that Begin opened. `commit_lsn` is the start of the commit record, `end_lsn` its end.

    For a replicated transaction, `commit_time` may come from another server.
    """

    tag: ClassVar[int] = ord("C")
    since: ClassVar[int] = 1

    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a replicated transaction; `commit_lsn` is its commit on the origin, 0 in a stream."""

    tag: ClassVar[int] = ord("O")
    since: ClassVar[int] = 1

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's columns, sent before its first row and again after each change of its definition.

    `replica_identity` is `pg_class.relreplident`: "d" default, "n" nothing, "f" full, "i" an index. Columns that
    are not published (generated columns, columns outside of a column list) are absent here and in rows.
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
        """Name of the schema; on the wire, pg_catalog is an empty string."""
        return self.namespace or "pg_catalog"


@dataclass(frozen=True, slots=True)
class Type:
    """A column's user-defined type, sent before its Relation.

    For a domain, `oid` is the domain's oid, and `namespace` and `name` are those of its base type
    (logicalrep_write_typ in proto.c).
    """

    tag: ClassVar[int] = ord("Y")
    since: ClassVar[int] = 1

    xid: int | None
    oid: int
    namespace: str
    name: str

    @property
    def schema(self) -> str:
        """Name of the schema; on the wire, pg_catalog is an empty string."""
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
    """A changed row. `old_kind` is the kind of `old`.

    "K": the replica identity before the update, other columns NULL, sent when the identity changed or is TOASTed.
    "O": the whole old row, with REPLICA IDENTITY FULL. "": no old row.
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
    """A deleted row: with `old_kind` "K" its replica identity and NULL in other columns; with "O" the whole row."""

    tag: ClassVar[int] = ord("D")
    since: ClassVar[int] = 1

    xid: int | None
    relation_oid: int
    old_kind: str
    old: TupleData


@dataclass(frozen=True, slots=True)
class Truncate:
    """A TRUNCATE command; the relations include published ones that CASCADE reached."""

    tag: ClassVar[int] = ord("T")
    since: ClassVar[int] = 1

    xid: int | None
    cascade: bool
    restart_identity: bool
    relation_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Beginning of a block of an open transaction; the block ends with Stream Stop."""

    tag: ClassVar[int] = ord("S")
    since: ClassVar[int] = 2

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """End of a block."""

    tag: ClassVar[int] = ord("E")
    since: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """Commit of the streamed transaction `xid`."""

    tag: ClassVar[int] = ord("c")
    since: ClassVar[int] = 2

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """Rollback of the subtransaction `subxid` of the streamed `xid`; of the whole transaction if both are equal.

    Each aborted subtransaction has its own message, including nested ones. LSN and time are sent in version 4 with
    `streaming=parallel`, else they are None; the message itself does not show if they are present.
    """

    tag: ClassVar[int] = ord("A")
    since: ClassVar[int] = 2

    xid: int
    subxid: int
    abort_lsn: int | None
    abort_time: int | None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """Beginning of a whole transaction that was prepared for two-phase commit; Prepare ends it."""

    tag: ClassVar[int] = ord("b")
    since: ClassVar[int] = 3

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """End of the transaction that Begin Prepare opened. Its outcome is not known yet."""

    tag: ClassVar[int] = ord("P")
    since: ClassVar[int] = 3

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """Commit of a prepared transaction, at `commit_lsn`."""

    tag: ClassVar[int] = ord("K")
    since: ClassVar[int] = 3

    commit_lsn: int
    end_lsn: int
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """Rollback of a prepared transaction. `prepare_end_lsn` equals the `end_lsn` of its Prepare."""

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
    """PREPARE of the streamed transaction `xid`; the counterpart of Prepare after Stream Stop."""

    tag: ClassVar[int] = ord("p")
    since: ClassVar[int] = 3

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


ChangeMessage = LogicalMessage | Relation | Type | Insert | Update | Delete | Truncate
"""Messages that have an xid in a stream."""

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
