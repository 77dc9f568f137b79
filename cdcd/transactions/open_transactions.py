"""Stage 3, second part: transactions whose fate is open, until it is known.

The rule: what was rolled back, wholly or in part, never leaves.

A streamed transaction arrives in blocks (Stream Start … Stream Stop), interleaved with others, before anybody knows
its fate: it is kept in the spool until Stream Commit replays it or Stream Abort drops it, as frames or as what the
caller makes of them meanwhile (`Undecided`). Stream Abort names a subtransaction; only when that is the transaction
itself is everything dropped. A prepared one (Begin Prepare … Prepare, or Stream Prepare after blocks) is kept likewise
until Commit Prepared or Rollback Prepared.

A kept transaction carries its own descriptions of relations and uses them when it is replayed, and of two descriptions
of a relation the one that was received last stays in force afterwards. Those of an aborted subtransaction count: they
are not sent again.

A transactional Message in a stream names the transaction, whichever subtransaction wrote it (`pgoutput_message`), so
after the abort of a subtransaction nobody can tell which of the Messages before it went with it. The server can, once
the transaction is committed: `UndecidableMessageError` asks for it to be sent again, not streamed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from cdcd.errors import PositionError, ProtocolError, WithoutStreamingError
from cdcd.protocol.frames import XLOG_HEADER
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    LogicalMessage,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    Type,
)
from cdcd.protocol.reader import read_message
from cdcd.transactions.commits import REPORT, Commits
from cdcd.transactions.drafts import EVENTS, PARTS, Kept, without_first, xid_of
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import COVERED, Position
from cdcd.transactions.spool import Spool
from cdcd.transactions.steps import (
    Changes,
    Described,
    Foretold,
    Originated,
    RolledBack,
    Step,
    Undecided,
)

ROWS: Final = frozenset(b"IUD")
_RELATION: Final = 0x52  # R
_DESCRIPTIONS: Final = frozenset(b"RY")
_TRUNCATE: Final = 0x54  # T
_MESSAGE: Final = 0x4D  # M
_BODY_AT: Final = XLOG_HEADER + 1
_TRUNCATE_OIDS: Final = 5
"""In a Truncate: the relation count and the options stand before the OIDs."""


class _Kept:
    """A transaction in the spool: streamed (with an xid in each message) or prepared in one piece."""

    def __init__(self, xid: int, in_stream: bool) -> None:
        self.xid = xid
        self.in_stream = in_stream
        self.aborted: set[int] = set()
        self.relations: dict[int, tuple[int, Relation]] = {}
        self.brought: list[Relation] = []
        self.has_message = False
        self.doubtful = False
        self.gid = ""
        self.prepare_time = 0
        self.ticket = -1


class UndecidableMessageError(WithoutStreamingError):
    """A committed transaction has Messages of which only the server knows whether they were rolled back."""

    def __init__(self, xid: int, commit_lsn: int) -> None:
        super().__init__(
            f"The streamed transaction {xid} (commit {Lsn(commit_lsn)}) has logical messages and an aborted savepoint.",
            hint="It is received once more, not streamed: then PostgreSQL itself leaves out what was rolled back.",
            commit_lsn=commit_lsn,
        )


class OpenTransactions(Commits):
    """Streamed and prepared transactions, from their first message to what decides them.

    Args:
        ledger: gets an entry for each undecided prepare too.
        spool: keeps what is not decided; emptied by `close`.
        position: as `Commits`.
        abort_info: Stream Abort carries LSN and time (protocol 4 with `streaming=parallel`).
    """

    def __init__(self, ledger: Ledger, spool: Spool, position: Position, abort_info: bool) -> None:
        super().__init__(ledger, position)
        self._spool = spool
        self._abort_info = abort_info
        self._current: _Kept | None = None
        self._streamed: dict[int, _Kept] = {}
        self._prepared: dict[int, _Kept] = {}

    @property
    def streamed_open(self) -> int:
        """Streamed transactions whose end is not known."""
        return len(self._streamed)

    @property
    def prepared_open(self) -> int:
        """Prepared transactions that are neither committed nor rolled back."""
        return len(self._prepared)

    def oldest_prepared(self) -> tuple[str, int] | None:
        """The gid and the prepare time (wire microseconds) of the oldest undecided prepared transaction."""
        if not self._prepared:
            return None
        oldest = min(self._prepared.values(), key=_prepare_time)
        return oldest.gid, oldest.prepare_time

    def close(self) -> None:
        """Forget what is kept, with the connection that it came by."""
        self._streamed.clear()
        self._prepared.clear()
        self._spool.close()

    # Streamed transactions.

    def _stream_start(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, StreamStart)
        kept = self._streamed.get(message.xid)
        if message.first_segment == (kept is not None):
            raise ProtocolError(
                f"Stream Start says {'first' if message.first_segment else 'further'} segment of the transaction "
                f"{message.xid}, which is {'open already' if kept else 'not known'}.",
                hint=REPORT,
            )
        if kept is None:
            kept = _Kept(message.xid, in_stream=True)
            self._spool.open(message.xid)
            self._streamed[message.xid] = kept
        self._current = kept
        return _nothing()

    def _keep(self, rows: list[Kept]) -> Iterator[Step]:
        """Rows of the block that is open."""
        current = self._current
        assert current is not None
        undecided = Undecided(rows, current.relations)
        yield undecided
        self._spool.extend(current.xid, undecided.kept)

    def _stream_keep(self, frame: bytes) -> Iterator[Step]:
        assert self._current is not None
        tag = frame[XLOG_HEADER]
        if tag == _MESSAGE:
            self._read(frame, LogicalMessage, in_stream=True)
            self._current.has_message = True
        elif tag == _RELATION:
            self._arrivals += 1
            relation = replace(self._read(frame, Relation, in_stream=True), xid=None)
            self._current.relations[relation.oid] = (self._arrivals, relation)
            self._spool.append(self._current.xid, frame)
            return iter((Foretold(relation),))
        self._spool.append(self._current.xid, frame)
        return _nothing()

    def _stream_stop(self, frame: bytes) -> Iterator[Step]:
        read_message(frame, XLOG_HEADER, in_stream=True)
        self._current = None
        return _nothing()

    def _stream_commit(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, StreamCommit)
        kept = self._streamed.pop(message.xid, None)
        if kept is None:
            raise ProtocolError(f"Stream Commit of the unknown transaction {message.xid}.", hint=REPORT)
        self._check_messages(kept, message.commit_lsn)
        yield from self._open("streamed", kept.xid, message.commit_lsn, message.commit_time)
        yield from self._replay(kept)
        yield from self._close(message.commit_lsn, message.commit_time, message.end_lsn, ())

    def _stream_abort(self, frame: bytes) -> Iterator[Step]:
        message = self._read_abort(frame)
        kept = self._streamed.get(message.xid)
        if kept is None:
            # PostgreSQL 18 announces the abort of transactions of which it had streamed nothing.
            return _nothing()
        if message.subxid != message.xid:
            kept.aborted.add(message.subxid)
            kept.doubtful |= kept.has_message
            self.counts["subtransaction_aborted"] += 1
            return _nothing()
        del self._streamed[message.xid]
        self._spool.drop(message.xid)
        self.counts["aborted"] += 1
        return _nothing()

    # Prepared transactions.

    def _begin_prepare(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, BeginPrepare)
        if message.xid in self._prepared or message.xid in self._streamed:
            raise ProtocolError(
                f"Begin Prepare of the transaction {message.xid}, which is open already.", hint=REPORT
            )
        self._spool.open(message.xid)
        self._current = _Kept(message.xid, in_stream=False)
        return _nothing()

    def _prepare_keep(self, frame: bytes) -> Iterator[Step]:
        kept = self._current
        assert kept is not None
        tag = frame[XLOG_HEADER]
        if tag in _DESCRIPTIONS:
            yield from self._describe(frame)
            if tag == _RELATION:
                relation = self._read(frame, Relation)
                kept.relations[relation.oid] = self._relations[relation.oid]
        else:
            for oid in _relation_oids(frame):
                known = self._relations.get(oid)
                if known is not None and oid not in kept.relations:
                    kept.relations[oid] = known
                    kept.brought.append(known[1])
        self._spool.append(kept.xid, frame)

    def _prepare(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, Prepare)
        kept = self._current
        assert kept is not None
        if message.xid != kept.xid:
            raise ProtocolError(f"Prepare of {message.xid} inside the transaction {kept.xid}.", hint=REPORT)
        self._current = None
        self._hold(kept, message)
        return _nothing()

    def _prepare_alone(self, frame: bytes) -> Iterator[Step]:
        """PostgreSQL 18 says no Begin Prepare for a transaction that changed nothing, only took row locks."""
        message = self._read(frame, Prepare)
        if message.xid in self._prepared or message.xid in self._streamed:
            raise ProtocolError(
                f"Prepare of the transaction {message.xid}, which is open already.", hint=REPORT
            )
        self._spool.open(message.xid)
        self._hold(_Kept(message.xid, in_stream=False), message)
        return _nothing()

    def _stream_prepare(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, StreamPrepare)
        kept = self._streamed.pop(message.xid, None)
        if kept is None:
            raise ProtocolError(f"Stream Prepare of the unknown transaction {message.xid}.", hint=REPORT)
        self._hold(kept, message)
        return _nothing()

    def _hold(self, kept: _Kept, message: Prepare | StreamPrepare) -> None:
        kept.gid = message.gid
        kept.prepare_time = message.prepare_time
        kept.ticket = self._ledger.hold(message.prepare_lsn)
        self._prepared[kept.xid] = kept

    def _commit_prepared(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, CommitPrepared)
        kept = self._decide(message.xid, message.gid)
        if kept is None:
            has_changes = self._forget_streamed(message.xid)
            if self._position.skip(message.commit_lsn) == COVERED:
                return
            if has_changes:
                raise PositionError(
                    f"COMMIT PREPARED {message.gid!r} at {Lsn(message.commit_lsn)}, but its PREPARE was never "
                    "received: the slot was confirmed past it by somebody else; the server does not send it again.",
                    hint="The changes of this transaction are missing in Kafka. Read its tables again, or accept it "
                    "with `cdcd run --accept-gap` after moving the slot past this position.",
                )
            # Every PREPARE that has something to send was received, or `resume` had refused to start. PostgreSQL 15
            # to 17 send none for a transaction that only locked rows (reorderbuffer.c, ReorderBufferReplay).
            yield from self._open("prepared", message.xid, message.commit_lsn, message.commit_time)
            yield from self._close(message.commit_lsn, message.commit_time, message.end_lsn, ())
            return
        self._check_messages(kept, message.commit_lsn)
        yield from self._open("prepared", kept.xid, message.commit_lsn, message.commit_time)
        yield from self._replay(kept)
        yield from self._close(message.commit_lsn, message.commit_time, message.end_lsn, (kept.ticket,))

    def _rollback_prepared(self, frame: bytes) -> Iterator[Step]:
        message = self._read(frame, RollbackPrepared)
        kept = self._decide(message.xid, message.gid)
        # Unknown: prepared before the slot was consistent, or confirmed already; PostgreSQL's own
        # subscriber ignores it likewise (worker.c, apply_handle_rollback_prepared).
        if kept is None:
            self._forget_streamed(message.xid)
            return
        self._spool.drop(kept.xid)
        self.counts["rolled_back"] += 1
        ticket = self._ledger.open()
        self._ledger.seal(ticket, message.rollback_end_lsn)
        if message.rollback_end_lsn > self._position.end_lsn:
            yield RolledBack(message.rollback_end_lsn, (kept.ticket, ticket))
        else:
            self._ledger.ack(kept.ticket)
            self._ledger.ack(ticket)

    def _forget_streamed(self, xid: int) -> bool:
        """A PREPARE that the slot is past is not sent again, but what precedes it may be streamed once more."""
        if self._streamed.pop(xid, None) is None:
            return False
        self._spool.drop(xid)
        return True

    def _decide(self, xid: int, gid: str) -> _Kept | None:
        """Take out the prepared transaction; a gid alone is not enough, as gids are used again."""
        kept = self._prepared.get(xid)
        if kept is None or kept.gid != gid:
            return None
        return self._prepared.pop(xid)

    # What both share.

    def _check_messages(self, kept: _Kept, commit_lsn: int) -> None:
        if kept.doubtful and self._position.skip(commit_lsn) != COVERED:
            raise UndecidableMessageError(kept.xid, commit_lsn)

    def _replay(self, kept: _Kept) -> Iterator[Step]:
        """What is kept, without what aborted subtransactions wrote and without what the checkpoint covers."""
        for relation in kept.brought:
            yield Described(relation)
        for items in self._spool.replay(kept.xid):
            run: list[Kept] = []
            for frame in items:
                if not isinstance(frame, bytes):
                    draft = frame
                    if self._skip == COVERED or draft[0] in kept.aborted:
                        continue
                    count = len(draft[5]) // PARTS
                    skipped = min(self._skip, count)
                    self._skip -= skipped
                    if skipped < count:
                        run.append(without_first(draft, skipped) if skipped else draft)
                    continue
                if frame[XLOG_HEADER] in EVENTS:
                    if self._skip == COVERED or (kept.aborted and xid_of(frame) in kept.aborted):
                        continue
                    if self._skip > 0:
                        self._skip -= 1
                        continue
                    run.append(frame)
                    continue
                if run:
                    yield Changes(run, kept.in_stream)
                    run = []
                yield from self._replay_other(frame, kept.in_stream)
            if run:
                yield Changes(run, kept.in_stream)
        self._spool.drop(kept.xid)
        for oid, own in kept.relations.items():
            current = self._relations.get(oid)
            if current is None or current[0] < own[0]:
                self._relations[oid] = own
            elif current[1] != own[1]:
                yield Described(current[1])

    def _replay_other(self, frame: bytes, in_stream: bool) -> Iterator[Step]:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        if isinstance(message, Relation | Type):
            yield Described(replace(message, xid=None))
        elif isinstance(message, Origin) and self._skip != COVERED:
            yield Originated(message.name, message.commit_lsn)

    def _read_abort(self, frame: bytes) -> StreamAbort:
        message = read_message(frame, XLOG_HEADER, abort_info=self._abort_info)
        assert isinstance(message, StreamAbort)
        return message


def _nothing() -> Iterator[Step]:
    return iter(())


def _prepare_time(kept: _Kept) -> int:
    return kept.prepare_time


def _relation_oids(frame: bytes) -> list[int]:
    """The relations that a row message or Truncate outside of a stream is about; none for other messages."""
    tag = frame[XLOG_HEADER]
    if tag in ROWS:
        return [int.from_bytes(frame[_BODY_AT : _BODY_AT + 4], "big")]
    if tag == _TRUNCATE:
        start = _BODY_AT + _TRUNCATE_OIDS
        return [int.from_bytes(frame[at : at + 4], "big") for at in range(start, len(frame), 4)]
    return []
