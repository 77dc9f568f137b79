"""Frames as a server sends them, in few words, and what the assembler makes of them in as few.

A transaction committed at LSN n ends at n + 10, unless a test says otherwise; row contents are free text, by which
a test knows its rows again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cdcd.core.protocol.frames import XLOG_HEADER, Keepalive, XLogData, write_frame
from cdcd.core.protocol.messages import (
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
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
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.drafts import MakeDrafts, SpoolItem
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import (
    Changes,
    Closed,
    CommitWithoutPrepare,
    Described,
    KeepaliveReceived,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    RelationPreview,
    RolledBack,
    Step,
    TransactionalMessage,
    TurnEnd,
)

TABLE = 16400
SIZE = 10
TIME = 5_000_000


def frame(message: Message, lsn: int = 0) -> bytes:
    return write_frame(XLogData(lsn, lsn, TIME, write_message(message)))


def begin(xid: int, lsn: int) -> bytes:
    return frame(Begin(lsn, TIME, xid))


def commit(lsn: int, end: int = 0) -> bytes:
    return frame(Commit(lsn, end or lsn + SIZE, TIME), lsn)


def insert(text: str, xid: int | None = None, *, oid: int = TABLE) -> bytes:
    return frame(Insert(xid, oid, (text.encode(),)))


def truncate(*oids: int, xid: int | None = None) -> bytes:
    return frame(Truncate(xid, True, True, oids))


def emitted(text: str, xid: int | None = None) -> bytes:
    """A transactional logical message."""
    return frame(LogicalMessage(xid, True, 1, "prefix", text.encode()))


def alone(text: str, lsn: int) -> bytes:
    """A non-transactional logical message; its LSN is the end of its record."""
    return frame(LogicalMessage(None, False, lsn, "prefix", text.encode()), lsn)


def relation(*columns: str, xid: int | None = None, oid: int = TABLE) -> Relation:
    return Relation(xid, oid, "public", "t", "d", tuple(Column(0, name, 25, -1) for name in columns))


def described(*columns: str, xid: int | None = None, oid: int = TABLE) -> bytes:
    return frame(relation(*columns, xid=xid, oid=oid))


def typed(xid: int | None = None) -> bytes:
    return frame(Type(xid, 50001, "public", "mood"))


def origin(name: str, lsn: int = 77) -> bytes:
    return frame(Origin(lsn, name))


def start(xid: int, *, first: bool = True) -> bytes:
    return frame(StreamStart(xid, first))


def stop() -> bytes:
    return frame(StreamStop())


def block(xid: int, *frames: bytes, first: bool = True) -> list[bytes]:
    return [start(xid, first=first), *frames, stop()]


def stream_commit(xid: int, lsn: int) -> bytes:
    return frame(StreamCommit(xid, lsn, lsn + SIZE, TIME), lsn)


def stream_abort(xid: int, sub: int | None = None, lsn: int | None = None) -> bytes:
    return frame(StreamAbort(xid, xid if sub is None else sub, lsn, None if lsn is None else TIME))


def stream_prepare(xid: int, gid: str, lsn: int) -> bytes:
    return frame(StreamPrepare(lsn, lsn + SIZE, TIME, xid, gid), lsn)


def begin_prepare(xid: int, gid: str, lsn: int) -> bytes:
    return frame(BeginPrepare(lsn, lsn + SIZE, TIME, xid, gid))


def prepare(xid: int, gid: str, lsn: int, time: int = TIME) -> bytes:
    return frame(Prepare(lsn, lsn + SIZE, time, xid, gid), lsn)


def prepared(xid: int, gid: str, lsn: int, *frames: bytes) -> list[bytes]:
    return [begin_prepare(xid, gid, lsn), *frames, prepare(xid, gid, lsn)]


def commit_prepared(xid: int, gid: str, lsn: int) -> bytes:
    return frame(CommitPrepared(lsn, lsn + SIZE, TIME, xid, gid), lsn)


def rollback_prepared(xid: int, gid: str, lsn: int) -> bytes:
    return frame(RollbackPrepared(lsn - SIZE, lsn + SIZE, TIME, TIME, xid, gid), lsn)


def keepalive(lsn: int, *, asked: bool = False) -> bytes:
    return write_frame(Keepalive(lsn, TIME, asked))


def text_of(data: bytes, *, in_stream: bool) -> str:
    message: Any = read_message(data, XLOG_HEADER, in_stream=in_stream)
    if isinstance(message, Truncate):
        return f"truncate {message.relation_oids}"
    if isinstance(message, LogicalMessage):
        return message.content.decode()
    row = message.new if hasattr(message, "new") else message.old
    text: bytes = row[0]
    return text.decode()


def frames_of(step: Changes) -> list[bytes]:
    """The events of a step of which nothing was drafted."""
    return [one for one in step.items if isinstance(one, bytes)]


def undrafted(items: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]) -> list[SpoolItem]:
    """Keeps every frame as it is."""
    return items


class Receiver:
    """An assembler with its ledger and spool; `take` gives frames to it and says briefly what came out."""

    def __init__(
        self,
        directory: Any,
        position: Position | None = None,
        *,
        abort_info: bool = False,
        memory_bytes_max: int = 1_000_000,
        draft: MakeDrafts = undrafted,
        flushed: int | None = None,
    ) -> None:
        start = position or Position()
        self.ledger = Ledger(start.end_lsn if flushed is None else flushed)
        self.spool = Spool(str(directory), memory_bytes_max)
        self.assembler = Assembler(self.ledger, self.spool, start, draft, abort_info=abort_info)

    def steps(self, *frames: bytes | Iterable[bytes]) -> list[Step]:
        """What is said of committed transactions."""
        flat: list[bytes] = []
        for one in frames:
            flat += [one] if isinstance(one, bytes) else one
        return [
            step for step in self.assembler.assemble(flat) if not isinstance(step, TurnEnd | RelationPreview)
        ]

    def take(self, *frames: bytes | Iterable[bytes]) -> list[str]:
        """One word per step, and the texts of changes; tickets are acknowledged at once."""
        said: list[str] = []
        for step in self.steps(*frames):
            said += self._say(step)
            if isinstance(step, Closed | RolledBack):
                for ticket in step.tickets:
                    self.ledger.ack(ticket)
            elif isinstance(step, NonTransactionalMessage):
                self.ledger.ack(step.ticket)
        return said

    @staticmethod
    def _say(step: Step) -> list[str]:
        match step:
            case Opened():
                return [f"open {step.xid}"]
            case Changes():
                return [text_of(one, in_stream=step.in_stream) for one in frames_of(step)]
            case TransactionalMessage():
                delivered = "delivered " if step.is_delivered else ""
                return [delivered + text_of(step.frame, in_stream=step.in_stream)]
            case TurnEnd() | RelationPreview():
                return []
            case Described(message=Relation() as message):
                return [f"relation {' '.join(column.name for column in message.columns)}"]
            case Described(message=message):
                return [f"type {message.name}"]
            case OriginChanged():
                return [f"origin {step.name}"]
            case Closed():
                return [f"close {step.end_lsn}"]
            case CommitWithoutPrepare():
                return [f"no prepare of {step.gid}"]
            case RolledBack():
                return [f"rolled back {step.end_lsn}"]
            case NonTransactionalMessage():
                return [f"alone {text_of(step.frame, in_stream=step.in_stream)}"]
            case KeepaliveReceived():
                return [f"heard {step.wal_end}{'' if step.idle else ' within'}"]
