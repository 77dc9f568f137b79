"""Random sessions that write WAL the way PostgreSQL's backends do.

A transaction is a stack of savepoints; xids are given at the first write, outer ones first. What is written after a
savepoint and before its rollback is undone by it, whatever was released in between, so a rollback cuts the
list of events. A transaction's events are in the order of the WAL, and the oracle learns of them at the commit.
"""

from random import Random
from typing import Final

from tests.sim.oracle import Oracle
from tests.sim.settings import Settings
from tests.sim.wal import Change, Kind, Record, Wal

TABLES: Final = (16401, 16402, 16403, 16404)
GIDS: Final = ("one", "two", "three")
ORIGINS: Final = ("upstream", "elsewhere")
FIRST_XID: Final = 700


class Savepoint:
    """Where in its transaction it was set; `xid` is 0 until something is written after it."""

    __slots__ = ("at", "children", "versions", "xid")

    def __init__(self, at: int, versions: dict[int, int]) -> None:
        self.at = at
        self.versions = versions
        self.xid = 0
        self.children: list[int] = []


class Transaction:
    """An open or prepared transaction; the bottom of `stack` is the top-level transaction itself."""

    __slots__ = ("events", "exclusive", "first", "gid", "origin", "stack", "tables", "versions")

    def __init__(self, origin: str) -> None:
        self.stack = [Savepoint(0, {})]
        self.events: list[tuple[int, int]] = []
        self.versions: dict[int, int] = {}
        self.tables: set[int] = set()
        self.exclusive: set[int] = set()
        self.origin = origin
        self.gid = ""
        self.first = -1

    @property
    def xid(self) -> int:
        return self.stack[0].xid


class Workload:
    """All sessions of the server, and what they have committed."""

    def __init__(self, settings: Settings, rng: Random, wal: Wal, oracle: Oracle) -> None:
        self.settings = settings
        self.rng = rng
        self.wal = wal
        self.oracle = oracle
        self.next_xid = FIRST_XID
        self.next_event = 1
        self.next_version = len(TABLES) + 1
        self.versions = {oid: index + 1 for index, oid in enumerate(TABLES)}
        self.sessions: list[Transaction | None] = [None] * settings.sessions
        self.prepared: dict[str, Transaction] = {}
        self.spans: list[tuple[int, int]] = []
        """Of each ended transaction: the index of its first record, and of its last."""

    def step(self) -> None:
        """One statement of one session."""
        number = int(self.rng.random() * len(self.sessions))
        transaction = self.sessions[number]
        draw = self.rng.random()
        if transaction is None:
            self._idle_session(number, draw)
        elif draw < self.settings.p_end:
            self._end(number, transaction)
        elif draw < self.settings.p_end + self.settings.p_savepoint:
            self._savepoint(transaction)
        else:
            self._write(transaction)

    # Between transactions.

    def _idle_session(self, number: int, draw: float) -> None:
        if draw < 0.6:
            origin = ORIGINS[0] if self.rng.random() < self.settings.p_origin else ""
            self.sessions[number] = Transaction(origin)
        elif draw < 0.75:
            self._decide_prepared()
        elif draw < 0.85:
            self.message()
        elif draw < 0.9:
            self.noise()
        elif draw < 0.93:
            self.running()
        if self.rng.random() < self.settings.p_publication:
            self._change_publication()

    def noise(self) -> None:
        """Something else, or another database, writes WAL."""
        self._append(Record(Kind.NOISE))

    def running(self) -> None:
        """The background writer logs the oldest xid that is still running."""
        record = Record(Kind.RUNNING)
        xids = [one.xid for one in [*self.sessions, *self.prepared.values()] if one is not None and one.xid]
        record.xid = min(xids, default=self.next_xid)
        self._append(record)

    def message(self, transaction: Transaction | None = None) -> None:
        """`pg_logical_emit_message(false, …)`, which does not wait for any commit."""
        if not self.settings.messages:
            return
        record = Record(Kind.MESSAGE)
        record.event = self._event()
        if transaction is not None:
            record.xid = transaction.xid
        self._append(record)
        self.oracle.commit(record.start, 0, [(record.event, self.settings.records_of(record.event, "M"))], "")

    def _change_publication(self) -> None:
        """Column lists change: without a lock on the tables, also for transactions that are using them."""
        held = {oid for one in self._everybody() for oid in one.exclusive}
        xid = self._xid()
        first = len(self.wal.records)
        for oid in TABLES:
            if oid not in held:
                self.next_version += 1
                self.versions[oid] = self.next_version
        self._changes("", Change("V", xid, xid))
        self._append(Record(Kind.COMMIT, xid, xid))
        self.oracle.commit(self.wal.records[-1].start, xid, [], "")
        self.spans.append((first, len(self.wal.records) - 1))

    def _decide_prepared(self) -> None:
        if not self.prepared or self.rng.random() < self.settings.p_keep_prepared:
            return
        self.decide(self.rng.choice(list(self.prepared)), self.rng.random() < 0.65)

    def decide(self, gid: str, commit: bool) -> None:
        transaction = self.prepared.pop(gid)
        kind = Kind.COMMIT_PREPARED if commit else Kind.ROLLBACK_PREPARED
        record = Record(kind, transaction.xid, transaction.xid)
        record.gid = gid
        record.origin = transaction.origin
        record.children = tuple(transaction.stack[0].children)
        self._append(record)
        if commit:
            self.versions.update(transaction.versions)
            self.oracle.commit(record.start, transaction.xid, transaction.events, transaction.origin)
        else:
            self.oracle.roll_back_prepared(transaction.xid)
        self._ended(transaction)

    # Inside of transactions.

    def _end(self, number: int, transaction: Transaction) -> None:
        self.sessions[number] = None
        draw = self.rng.random()
        if draw < self.settings.p_abort:
            self.abort(transaction)
            return
        free = [gid for gid in GIDS if gid not in self.prepared]
        if draw < self.settings.p_abort + self.settings.p_prepare and free and transaction.xid:
            self._prepare(transaction, free[0])
        else:
            self.commit(transaction)

    def _release_all(self, transaction: Transaction) -> None:
        while len(transaction.stack) > 1:
            self._release(transaction)

    def _release(self, transaction: Transaction) -> None:
        inner = transaction.stack.pop()
        outer = transaction.stack[-1]
        outer.children += inner.children
        if inner.xid:
            outer.children.append(inner.xid)

    def commit(self, transaction: Transaction) -> None:
        self._release_all(transaction)
        if not transaction.xid:
            return
        record = Record(Kind.COMMIT, transaction.xid, transaction.xid)
        record.children = tuple(transaction.stack[0].children)
        record.origin = transaction.origin
        self._append(record)
        self.versions.update(transaction.versions)
        self.oracle.commit(record.start, transaction.xid, transaction.events, transaction.origin)
        self._ended(transaction)

    def abort(self, transaction: Transaction) -> None:
        while len(transaction.stack) > 1:
            self._abort_innermost(transaction)
        if transaction.xid:
            self._append_abort(transaction, transaction.stack[0])
            self._ended(transaction)

    def _prepare(self, transaction: Transaction, gid: str) -> None:
        self._release_all(transaction)
        record = Record(Kind.PREPARE, transaction.xid, transaction.xid)
        record.children = tuple(transaction.stack[0].children)
        record.gid = transaction.gid = gid
        record.origin = transaction.origin
        self._append(record)
        if any(records for _, records in transaction.events):
            self.oracle.prepare(record.start, transaction.xid)
        self.prepared[gid] = transaction

    def _savepoint(self, transaction: Transaction) -> None:
        draw = self.rng.random()
        if draw < 0.45 or len(transaction.stack) == 1:
            if len(transaction.stack) < 5:
                transaction.stack.append(Savepoint(len(transaction.events), dict(transaction.versions)))
        elif draw < 0.65:
            self._release(transaction)
        else:
            depth = 1 + int(self.rng.random() * (len(transaction.stack) - 1))
            while len(transaction.stack) > depth:
                self._abort_innermost(transaction)
            transaction.stack.append(Savepoint(len(transaction.events), dict(transaction.versions)))

    def _abort_innermost(self, transaction: Transaction) -> None:
        inner = transaction.stack.pop()
        del transaction.events[inner.at :]
        transaction.versions = inner.versions
        if inner.xid:
            self._append_abort(transaction, inner)

    def _append_abort(self, transaction: Transaction, aborted: Savepoint) -> None:
        record = Record(Kind.ABORT, transaction.xid, aborted.xid)
        record.children = tuple(aborted.children)
        self._append(record)

    def _ended(self, transaction: Transaction) -> None:
        self.spans.append((transaction.first, len(self.wal.records) - 1))

    # Writing.

    def _write(self, transaction: Transaction) -> None:
        settings, rng = self.settings, self.rng
        draw = rng.random()
        sub = self._assign(transaction)
        if draw < settings.p_message:
            self._emit_message(transaction, sub)
        elif draw < 0.12:
            self._changes(transaction.origin, Change("H", transaction.xid, sub))
        elif draw < 0.16:
            self._append(Record(Kind.ROW_LOCK, transaction.xid, sub))
        elif draw < 0.16 + settings.p_ddl:
            self._alter(transaction, sub)
        elif draw < 0.24:
            self._truncate(transaction, sub)
        else:
            self._rows(
                transaction, sub, 1 if draw < 0.85 else 2 + int(rng.random() * settings.multi_insert_max)
            )

    def _emit_message(self, transaction: Transaction, sub: int) -> None:
        if self.rng.random() < 0.4:
            self.message(transaction)
            if self.rng.random() < 0.4:
                # The commit record starts where the message ended.
                self.sessions[self.sessions.index(transaction)] = None
                self.commit(transaction)
        elif self.settings.messages:
            change = Change("M", transaction.xid, sub, event=self._event())
            self._changes(transaction.origin, change)
            self._add(transaction, change)

    def _alter(self, transaction: Transaction, sub: int) -> None:
        oid = self._table(transaction, exclusive=True)
        if oid:
            self.next_version += 1
            transaction.versions[oid] = self.next_version
            self._changes(transaction.origin, Change("V", transaction.xid, sub, oid=oid))

    def _truncate(self, transaction: Transaction, sub: int) -> None:
        oid = self._table(transaction, exclusive=True)
        if oid:
            change = self._change("T", transaction, sub, oid)
            self._changes(transaction.origin, Change("V", transaction.xid, sub, oid=oid))
            self._changes(transaction.origin, change)
            self._add(transaction, change)

    def _rows(self, transaction: Transaction, sub: int, number: int) -> None:
        oid = self._table(transaction, exclusive=False)
        if not oid:
            return
        what = "I" if number > 1 else self.rng.choice("IIUUD")
        changes = [self._change(what, transaction, sub, oid) for _ in range(number)]
        self._changes(transaction.origin, *changes)
        for change in changes:
            self._add(transaction, change)

    def _change(self, what: str, transaction: Transaction, sub: int, oid: int) -> Change:
        version = transaction.versions.get(oid) or self.versions[oid]
        shape = int(self.rng.random() * 8)
        return Change(what, transaction.xid, sub, oid=oid, version=version, event=self._event(), shape=shape)

    def _add(self, transaction: Transaction, change: Change) -> None:
        transaction.events.append((change.event, self.settings.records_of(change.event, change.what)))

    def _table(self, transaction: Transaction, *, exclusive: bool) -> int:
        """Lock a table until the transaction's end; 0 if it would have to wait."""
        oid = self.rng.choice(TABLES)
        for other in self._everybody():
            if other is not transaction and oid in (other.tables if exclusive else other.exclusive):
                return 0
        transaction.tables.add(oid)
        if exclusive:
            transaction.exclusive.add(oid)
        return oid

    def _everybody(self) -> list[Transaction]:
        return [one for one in [*self.sessions, *self.prepared.values()] if one is not None]

    def _assign(self, transaction: Transaction) -> int:
        for savepoint in transaction.stack:
            if not savepoint.xid:
                savepoint.xid = self._xid()
        if transaction.first < 0:
            transaction.first = len(self.wal.records)
        return transaction.stack[-1].xid

    def _xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1

    def _event(self) -> int:
        self.next_event += 1
        return self.next_event - 1

    def _changes(self, origin: str, *changes: Change) -> None:
        record = Record(Kind.CHANGES, changes[0].xid, changes[0].sub)
        record.origin = origin
        record.changes = changes
        self._append(record)

    def _append(self, record: Record) -> None:
        draw = self.rng.random()
        self.wal.append(record, 1 + int(draw * 8), page=draw < 0.05)

    # What happens to the server.

    def crash(self) -> None:
        """Open transactions are gone without a word in the WAL; prepared ones stay."""
        for number, transaction in enumerate(self.sessions):
            if transaction is not None and transaction.first >= 0:
                self.spans.append((transaction.first, len(self.wal.records)))
            self.sessions[number] = None

    def disconnect_all(self) -> None:
        """A fast shutdown rolls everything back that is open."""
        for number, transaction in enumerate(self.sessions):
            if transaction is not None:
                self.abort(transaction)
            self.sessions[number] = None

    def finish(self) -> None:
        """Commit or roll back everything, so that nothing holds the flushed position."""
        for number, transaction in enumerate(self.sessions):
            if transaction is not None:
                (self.commit if self.rng.random() < 0.7 else self.abort)(transaction)
            self.sessions[number] = None
        for gid in list(self.prepared):
            self.decide(gid, self.rng.random() < 0.7)
        self.running()
        self.noise()
