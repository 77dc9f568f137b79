"""A walsender: WAL in, frames out, by the rules of PostgreSQL's logical decoding.

What is sent, and what a restart leaves out, follows decode.c and reorderbuffer.c; when a Relation message is sent
follows `maybe_send_schema`, `cleanup_rel_sync_cache` and the invalidation callbacks in pgoutput.c. Where they do more
than a consumer can see, this does less; where versions differ, `Settings.version` decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from cdcd.core.protocol.frames import Keepalive, write_frame
from cdcd.core.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from tests.sim.catalog import Definition
from tests.sim.frames import change_frame, frame
from tests.sim.settings import Settings
from tests.sim.wal import Change, Kind, Record, Wal

TIME: Final = 1000


@dataclass(frozen=True, slots=True)
class Options:
    """What START_REPLICATION was told, and how much memory this walsender has (in changes)."""

    streaming: str
    two_phase: bool
    work_mem: int

    @property
    def abort_info(self) -> bool:
        return self.streaming == "parallel"


class _Entry:
    """pgoutput.c's RelationSyncEntry."""

    __slots__ = ("definition", "schema_sent", "streamed", "valid")

    def __init__(self, definition: Definition) -> None:
        self.valid = False
        self.definition = definition
        self.schema_sent = False
        self.streamed: set[int] = set()


class _Decoded:
    """reorderbuffer.c's ReorderBufferTXN of a top-level transaction."""

    __slots__ = (
        "changes",
        "gid",
        "has_snapshot",
        "invalidations",
        "memory",
        "origin",
        "prepare_end",
        "prepare_lsn",
        "sent_prepare",
        "streamed",
        "streamed_subs",
        "xid",
    )

    def __init__(self, xid: int) -> None:
        self.xid = xid
        self.changes: list[Change] = []
        self.memory = 0
        self.has_snapshot = False
        self.streamed = False
        self.streamed_subs: set[int] = set()
        self.invalidations: set[int] = set()
        self.gid = ""
        self.origin = ""
        self.prepare_lsn = 0
        self.prepare_end = 0
        self.sent_prepare = False


class Walsender:
    """Decodes one record at a time; `out` collects frames, `sent` is where it is in the WAL.

    Args:
        start: nothing that commits, or is prepared, before it is sent.
        at: index of the record to begin with: nothing that was open at `start` may have begun before it.
        two_phase_at: what was prepared before is sent, whole, when it commits.
    """

    def __init__(
        self,
        settings: Settings,
        rng: Random,
        wal: Wal,
        options: Options,
        *,
        start: int,
        at: int,
        two_phase_at: int,
    ) -> None:
        self.settings = settings
        self.rng = rng
        self.wal = wal
        self.options = options
        self.start = start
        self.at = at
        self.two_phase_at = two_phase_at
        self.sent = start
        self.out: list[bytes] = []
        self.p_keepalive = settings.p_keepalive if rng.random() < 0.6 else 0.0
        self._skips_empty = settings.version >= 15
        self._transactions: dict[int, _Decoded] = {}
        self._cache: dict[int, _Entry] = {}
        self._memory = 0

    @property
    def caught_up(self) -> bool:
        return self.at == len(self.wal.records)

    def step(self) -> None:
        """Decode the next record."""
        record = self.wal.records[self.at]
        handler = HANDLERS.get(record.kind)
        if handler is not None:
            handler(self, record)
        self.at += 1
        self.sent = record.end

    def keepalive(self, reply_requested: bool) -> None:
        self.out.append(write_frame(Keepalive(self.sent, 0, reply_requested)))

    def _say(self, message: Message, lsn: int = 0) -> None:
        self.out.append(frame(message, lsn))

    # Collecting.

    def _transaction(self, xid: int) -> _Decoded:
        transaction = self._transactions.get(xid)
        if transaction is None:
            transaction = self._transactions[xid] = _Decoded(xid)
        return transaction

    def _changes(self, record: Record) -> None:
        transaction = self._transaction(record.xid)
        transaction.has_snapshot = True
        transaction.origin = record.origin
        for change in record.changes:
            if change.what == "V":
                transaction.invalidations.add(change.oid)
            transaction.changes.append(change)
            transaction.memory += 1
            self._memory += 1
            if self._memory > self.options.work_mem:
                self._make_room(record)

    def _make_room(self, record: Record) -> None:
        """ReorderBufferCheckMemoryLimit: stream the largest, or write it to the server's disk."""
        streams = self.options.streaming != "off" and record.start >= self.start
        candidates = [one for one in self._transactions.values() if one.memory]
        if not candidates:
            return
        largest = max(candidates, key=_memory)
        if streams:
            self._stream(largest)
        else:
            self._memory -= largest.memory
            largest.memory = 0

    def _row_lock(self, record: Record) -> None:
        self._transaction(record.xid)

    def _forget(self, transaction: _Decoded) -> None:
        self._memory -= transaction.memory
        del self._transactions[transaction.xid]
        self._invalidate(transaction.invalidations)

    def _distribute(self, transaction: _Decoded | None) -> None:
        """SnapBuildDistributeSnapshotAndInval: others see the new catalog from here on (not before mid-2025)."""
        if transaction is None or not transaction.invalidations or not self.settings.distributes:
            return
        for other in self._transactions.values():
            if other is not transaction and other.has_snapshot and not other.prepare_lsn:
                for oid in transaction.invalidations:
                    other.changes.append(Change("V", other.xid, other.xid, oid=oid))
                other.invalidations |= transaction.invalidations

    # Sending.

    def _invalidate(self, oids: set[int]) -> None:
        if 0 in oids:
            for entry in self._cache.values():
                entry.valid = False
            return
        for oid in oids:
            if oid in self._cache:
                self._cache[oid].valid = False

    def _clean_up(self, xid: int, *, committed: bool) -> None:
        for entry in self._cache.values():
            if xid in entry.streamed:
                entry.streamed.discard(xid)
                if committed:
                    entry.schema_sent = True

    def _send_changes(
        self, transaction: _Decoded, in_stream: bool, before_first: Callable[[], None] | None
    ) -> None:
        out = self.out
        for change in transaction.changes:
            what = change.what
            if what == "V":
                self._invalidate({change.oid})
                continue
            if what == "H" or not change.published:
                continue
            if before_first is not None:
                before_first()
                before_first = None
            if what == "M":
                out.append(change_frame(change, None, transaction.xid if in_stream else None))
            elif what == "T":
                for table in change.tables:
                    self._describe(table, change, transaction, in_stream)
                out.append(change_frame(change, None, change.sub if in_stream else None))
            else:
                assert change.definition is not None
                definition = self._describe(change.definition, change, transaction, in_stream)
                out.append(change_frame(change, definition, change.sub if in_stream else None))
            if self.rng.random() < self.p_keepalive / 4:
                self.keepalive(self.rng.random() < 0.5)

    def _describe(
        self, written: Definition, change: Change, transaction: _Decoded, in_stream: bool
    ) -> Definition:
        """get_rel_sync_entry and maybe_send_schema; returns the definition that the change is sent by."""
        oid = written.oid
        entry = self._cache.get(oid)
        if entry is None:
            entry = self._cache[oid] = _Entry(written)
        if not entry.valid:
            entry.valid = True
            entry.definition = written
            entry.schema_sent = False
            entry.streamed.clear()
        if (transaction.xid in entry.streamed) if in_stream else entry.schema_sent:
            return entry.definition
        xid = change.sub if in_stream else None
        announced = entry.definition.type_message(xid)
        if announced is not None:
            self._say(announced)
        self._say(entry.definition.relation(xid))
        if in_stream:
            entry.streamed.add(transaction.xid)
        else:
            entry.schema_sent = True
        return entry.definition

    def _stream(self, transaction: _Decoded) -> None:
        """ReorderBufferStreamTXN: one block with all that is there."""
        if not transaction.changes:
            return
        self._say(StreamStart(transaction.xid, not transaction.streamed))
        if transaction.origin and not transaction.streamed:
            self._say(Origin(0, transaction.origin))
        self._send_changes(transaction, in_stream=True, before_first=None)
        self._say(StreamStop())
        transaction.streamed = True
        transaction.streamed_subs.update([change.sub for change in transaction.changes])
        transaction.changes.clear()
        self._memory -= transaction.memory
        transaction.memory = 0
        self._invalidate(transaction.invalidations)

    def _commit(self, record: Record) -> None:
        transaction = self._transactions.get(record.xid)
        self._distribute(transaction)
        if transaction is None:
            return
        if record.start >= self.start:
            self._send_commit(transaction, record)
        self._forget(transaction)

    def _send_commit(self, transaction: _Decoded, record: Record) -> None:
        if transaction.streamed:
            self._stream(transaction)
            self._say(StreamCommit(transaction.xid, record.start, record.end, TIME), record.end)
            self._clean_up(transaction.xid, committed=True)
            return
        if not transaction.has_snapshot:
            return
        begun: list[bool] = []

        def begin() -> None:
            begun.append(True)
            self._say(Begin(record.start, TIME, transaction.xid))
            if record.origin:
                self._say(Origin(77, record.origin))

        if self._skips_empty:
            self._send_changes(transaction, in_stream=False, before_first=begin)
        else:
            begin()
            self._send_changes(transaction, in_stream=False, before_first=None)
        if begun:
            self._say(Commit(record.start, record.end, TIME), record.end)

    def _abort(self, record: Record) -> None:
        transaction = self._transactions.get(record.xid)
        if transaction is None or not transaction.streamed:
            self._announce_needlessly(record)
        if transaction is None:
            return
        for sub in (*record.children, record.sub):
            if sub != transaction.xid:
                self._abort_sub(transaction, sub, record)
        if record.sub == transaction.xid:
            self._abort_all(transaction, record.end)

    def _announce_needlessly(self, record: Record) -> None:
        """PostgreSQL 18, of transactions that it had found aborted before it streamed anything of them."""
        if self.settings.version >= 18 and self.options.streaming != "off" and self.rng.random() < 0.3:
            self._say_abort(record.xid, record.sub, record.end)

    def _abort_sub(self, transaction: _Decoded, sub: int, record: Record) -> None:
        if sub in transaction.streamed_subs:
            self._say_abort(transaction.xid, sub, record.end)
            if self.settings.resends_after_abort:
                self._clean_up(transaction.xid, committed=False)
            self._invalidate(transaction.invalidations)
        kept = [change for change in transaction.changes if change.sub != sub]
        gone = len(transaction.changes) - len(kept)
        if gone:
            transaction.changes = kept
            released = min(gone, transaction.memory)
            transaction.memory -= released
            self._memory -= released

    def _abort_all(self, transaction: _Decoded, lsn: int) -> None:
        if transaction.streamed:
            self._say_abort(transaction.xid, transaction.xid, lsn)
            self._clean_up(transaction.xid, committed=False)
        self._forget(transaction)

    def _say_abort(self, xid: int, sub: int, lsn: int) -> None:
        info = self.options.abort_info
        self._say(StreamAbort(xid, sub, lsn if info else None, TIME if info else None))

    def _message(self, record: Record) -> None:
        if record.start >= self.start:
            message = record.message
            assert message is not None
            self._say(LogicalMessage(None, False, record.end, message.prefix, message.content), record.end)

    def _running(self, record: Record) -> None:
        """ReorderBufferAbortOld: what a crash of the server ended."""
        for transaction in list(self._transactions.values()):
            if transaction.xid < record.xid:
                self._abort_all(transaction, 0)

    # Two-phase commit.

    def _prepare(self, record: Record) -> None:
        transaction = self._transactions.get(record.xid)
        if transaction is None or not self.options.two_phase:
            return
        transaction.prepare_lsn = record.start
        transaction.prepare_end = record.end
        transaction.gid = record.gid
        if record.start < self.start:
            # It stays in the buffer, and may be streamed once more, though its PREPARE will not be sent.
            self._invalidate(transaction.invalidations)
            return
        self._send_prepare(transaction, record.origin)

    def _send_prepare(self, transaction: _Decoded, origin: str) -> None:
        lsn, end, xid, gid = (
            transaction.prepare_lsn,
            transaction.prepare_end,
            transaction.xid,
            transaction.gid,
        )
        transaction.sent_prepare = True
        if transaction.streamed:
            self._stream(transaction)
            self._say(StreamPrepare(lsn, end, TIME, xid, gid), end)
        elif transaction.has_snapshot:
            self._say(BeginPrepare(lsn, end, TIME, xid, gid))
            if origin:
                self._say(Origin(77, origin))
            self._send_changes(transaction, in_stream=False, before_first=None)
            self._say(Prepare(lsn, end, TIME, xid, gid), end)
        elif self.settings.version >= 18:
            self._say(Prepare(lsn, end, TIME, xid, gid), end)
        transaction.changes.clear()
        self._memory -= transaction.memory
        transaction.memory = 0
        self._invalidate(transaction.invalidations)

    def _commit_prepared(self, record: Record) -> None:
        if not self.options.two_phase:
            self._commit(record)
            return
        transaction = self._transactions.get(record.xid)
        self._distribute(transaction)
        if transaction is None:
            return
        if record.start >= self.start:
            if transaction.prepare_lsn < self.two_phase_at:
                self._send_prepare(transaction, record.origin)
            self._say(CommitPrepared(record.start, record.end, TIME, record.xid, record.gid), record.end)
        self._forget(transaction)

    def _rollback_prepared(self, record: Record) -> None:
        transaction = self._transactions.get(record.xid)
        if transaction is None:
            return
        if self.options.two_phase and record.start >= self.start:
            end = transaction.prepare_end
            self._say(RollbackPrepared(end, record.end, TIME, TIME, record.xid, record.gid), record.end)
            self._forget(transaction)
        else:
            for child in record.children:
                self._abort_sub(transaction, child, record)
            self._abort_all(transaction, record.end)


def _memory(transaction: _Decoded) -> int:
    return transaction.memory


HANDLERS: Final[dict[Kind, Callable[[Walsender, Record], None]]] = {
    Kind.CHANGES: Walsender._changes,
    Kind.MESSAGE: Walsender._message,
    Kind.ROW_LOCK: Walsender._row_lock,
    Kind.COMMIT: Walsender._commit,
    Kind.ABORT: Walsender._abort,
    Kind.PREPARE: Walsender._prepare,
    Kind.COMMIT_PREPARED: Walsender._commit_prepared,
    Kind.ROLLBACK_PREPARED: Walsender._rollback_prepared,
    Kind.RUNNING: Walsender._running,
}
