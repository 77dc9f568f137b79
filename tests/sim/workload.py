"""Random sessions that write WAL the way PostgreSQL's backends do.

A transaction is a stack of savepoints; xids are given at the first write, outer ones first. What is written after a
savepoint and before its rollback is undone by it, whatever was released in between, so a rollback cuts the
list of events. A transaction's events are in the order of the WAL, and the oracle learns of them at the commit.
"""

from collections.abc import Collection
from random import Random
from typing import Final

from tests.sim import published
from tests.sim.catalog import Definition
from tests.sim.database import Database, Savepoint, Transaction
from tests.sim.ddl import Alterations
from tests.sim.dml import Writer
from tests.sim.oracle import Oracle
from tests.sim.requests import PREFIX, draw_request
from tests.sim.settings import Settings
from tests.sim.wal import Change, Kind, Record, Wal

GIDS: Final = ("one", "two", "three")
ORIGINS: Final = ("upstream", "elsewhere")


class Workload:
    """All sessions of the server, and what they have committed."""

    def __init__(self, settings: Settings, rng: Random, wal: Wal, oracle: Oracle) -> None:
        self.settings = settings
        self.rng = rng
        self.wal = wal
        self.oracle = oracle
        self.database = Database(rng, settings.page_rows, protected=settings.protected)
        self.sessions: list[Transaction | None] = [None] * settings.sessions
        self.prepared: dict[str, Transaction] = {}
        self.leaving: list[tuple[int, Transaction]] = []
        """Committed, but not yet seen by snapshots: for how many ticks."""
        self.lock: Transaction | None = None
        """Somebody who has locked tables and writes nothing."""
        self.spans: list[tuple[int, int]] = []
        """Of each ended transaction: the index of its first record, and of its last."""
        self._published = 0
        self.removed: set[int] = set()
        """Tables that left the publication once: nothing says what their topic lacks."""
        self.emptied: set[int] = set()
        """Tables that were truncated."""
        self._writer = Writer(settings, rng, self.database)
        self._alterations = Alterations(settings, rng, self.database, self._lock_exclusive, self._names)
        for number in range(settings.tables):
            name = self._alterations.name()
            table = self._alterations.new(name, published=number == 0 or rng.random() < 0.8)
            self.database.definitions[table.oid] = table
            self.database.owners[name] = {table.oid}

    def populate(self, rows: int) -> None:
        """Rows that were there before anybody asked for changes."""
        for table in list(self.database.definitions.values()):
            transaction = Transaction("")
            for _ in range(1 + int(self.rng.random() * 3)):
                sub = self._assign(transaction)
                transaction.tables.add(table.oid)
                changes = self._writer.statement(transaction, sub, table, max(2, rows // 3))
                if changes:
                    self._changes("", *changes)
            self.commit(transaction)
        self._end_leaving()

    def tick(self) -> None:
        """Snapshots see what committed some time ago."""
        if self.leaving:
            kept = [(ticks - 1, transaction) for ticks, transaction in self.leaving if ticks > 0]
            for ticks, transaction in self.leaving:
                if ticks <= 0:
                    self._leave(transaction)
            self.leaving = kept

    def _end_leaving(self) -> None:
        for _, transaction in self.leaving:
            self._leave(transaction)
        self.leaving.clear()

    def _leave(self, transaction: Transaction) -> None:
        self.database.apply(transaction.definitions)
        for oid, definition in transaction.definitions.items():
            if definition is not None:
                self.database.owners.setdefault(definition.name, set()).add(oid)
        self.database.transactions.end(transaction.xid)

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
        elif draw < 0.93 + self.settings.p_vacuum:
            self._vacuum_full()
        if self.rng.random() < self.settings.p_publication:
            self._change_publication()

    def noise(self) -> None:
        """Something else, or another database, writes WAL."""
        self._append(Record(Kind.NOISE))

    def running(self) -> None:
        """The background writer logs the oldest xid that is still running."""
        record = Record(Kind.RUNNING)
        xids = [one.xid for one in self._everybody() if one.xid]
        record.xid = min(xids, default=self.database.next_xid)
        self._append(record)

    def message(self, transaction: Transaction | None = None) -> None:
        """`pg_logical_emit_message(false, …)`, which does not wait for any commit."""
        if self.settings.messages:
            self.emit(*self._content(), transaction)

    def emit(self, prefix: str, content: bytes, transaction: Transaction | None = None) -> None:
        record = Record(Kind.MESSAGE)
        message = record.message = Change("M", 0, 0, event=self.database.event())
        message.prefix, message.content = prefix, content
        if transaction is not None:
            record.xid = transaction.xid
        self._append(record)
        self.oracle.commit(record.start, 0, [message], "")

    def emit_in_transaction(self, prefix: str, content: bytes) -> None:
        """`pg_logical_emit_message(true, …)` as a transaction of its own."""
        transaction = Transaction("")
        self._emit(transaction, self._assign(transaction), prefix, content)
        self.commit(transaction)

    def watermark(self, prefix: str) -> None:
        """A message of our own, which makes the server write out its WAL."""
        if self.settings.messages:
            self.emit_in_transaction(prefix, b"")
        else:
            # Servers before 14, and sessions without the option, write it and do not send it.
            self.noise()

    def decided_definitions(self) -> dict[int, Definition]:
        """The tables as a snapshot sees them that sees what is committed in the WAL."""
        definitions = dict(self.database.definitions)
        for _, transaction in self.leaving:
            for oid, definition in transaction.definitions.items():
                if definition is None:
                    definitions.pop(oid, None)
                else:
                    definitions[oid] = definition
        return definitions

    def _content(self) -> tuple[str, bytes]:
        """Of a message: mostly somebody's own, now and then a request to the daemon."""
        if self.rng.random() < self.settings.p_request:
            names = [table.name for table in self.database.definitions.values()]
            return PREFIX, draw_request(self.rng, names, self.settings.requests)
        if self.settings.publishes and self.rng.random() < 0.7:
            self._published += 1
            return published.PREFIX, published.draw_event(self.rng, self._published)
        return self.rng.choice(("p", "p", "cdcd", "cdcd.snapshots")), b"%d" % int(self.rng.random() * 1000)

    def _change_publication(self) -> None:
        """ALTER PUBLICATION: without a lock that writers wait for, so also beside transactions that use the tables."""
        held = {oid for one in self._everybody() for oid in one.exclusive}
        tables = [table for table in self.database.definitions.values() if table.oid not in held]
        database = self.database
        xid = database.xid()
        first = len(self.wal.records)
        if tables and self.rng.random() < self.settings.p_membership:
            self._change_membership(self.rng.choice(tables))
        else:
            # Column lists.
            for table in tables:
                database.definitions[table.oid] = table.altered(database.version())
        self._changes("", Change("V", xid, xid))
        self._append(Record(Kind.COMMIT, xid, xid))
        database.transactions.commit(xid)
        database.transactions.end(xid)
        self.oracle.commit(self.wal.records[-1].start, xid, [], "")
        self.spans.append((first, len(self.wal.records) - 1))

    def _change_membership(self, table: Definition) -> None:
        if table.published and self.rng.random() < 0.7:
            return
        if table.published:
            self.removed.add(table.oid)
        elif table.oid in self.removed:
            self.database.rejoined.add(table.name)
        altered = table.altered(self.database.version(), published=not table.published)
        self.database.definitions[table.oid] = altered
        self.database.learn(altered)

    def _vacuum_full(self) -> None:
        transaction = Transaction("")
        sub = self._assign(transaction)
        self._invalidate(transaction, sub, self._alterations.vacuum_full(transaction))
        self.commit(transaction)

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
            self.oracle.commit(record.start, transaction.xid, transaction.events, transaction.origin)
            self._committed(transaction)
        else:
            self.oracle.roll_back_prepared(transaction.xid)
            self._aborted(transaction, transaction.stack[0])
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
        self.oracle.commit(record.start, transaction.xid, transaction.events, transaction.origin)
        self._committed(transaction)
        self._ended(transaction)

    def _committed(self, transaction: Transaction) -> None:
        self.database.transactions.commit(transaction.xid)
        ticks = int(self.rng.random() * self.settings.unseen_ticks_max)
        if ticks:
            self.leaving.append((ticks, transaction))
        else:
            self._leave(transaction)

    def _aborted(self, transaction: Transaction, savepoint: Savepoint) -> None:
        if savepoint.xid:
            self.database.transactions.abort(savepoint.xid, tuple(savepoint.children))
            if savepoint.xid == transaction.xid:
                self.database.transactions.end(savepoint.xid)

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
        if self.oracle.has_records(transaction.events):
            self.oracle.prepare(record.start, transaction.xid)
        self.prepared[gid] = transaction

    def _savepoint(self, transaction: Transaction) -> None:
        draw = self.rng.random()
        if draw < 0.45 or len(transaction.stack) == 1:
            if len(transaction.stack) < 5:
                transaction.stack.append(Savepoint(len(transaction.events), dict(transaction.definitions)))
        elif draw < 0.65:
            self._release(transaction)
        else:
            depth = 1 + int(self.rng.random() * (len(transaction.stack) - 1))
            while len(transaction.stack) > depth:
                self._abort_innermost(transaction)
            transaction.stack.append(Savepoint(len(transaction.events), dict(transaction.definitions)))

    def _abort_innermost(self, transaction: Transaction) -> None:
        inner = transaction.stack.pop()
        del transaction.events[inner.at :]
        transaction.definitions = inner.definitions
        if inner.xid:
            self._append_abort(transaction, inner)

    def _append_abort(self, transaction: Transaction, aborted: Savepoint) -> None:
        record = Record(Kind.ABORT, transaction.xid, aborted.xid)
        record.children = tuple(aborted.children)
        self._append(record)
        self._aborted(transaction, aborted)

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
            self._invalidate(transaction, sub, self._alterations.alter(transaction, sub))
        elif draw < 0.16 + settings.p_ddl + settings.p_truncate:
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
            self._emit(transaction, sub, *self._content())

    def _emit(self, transaction: Transaction, sub: int, prefix: str, content: bytes) -> None:
        change = Change("M", transaction.xid, sub, event=self.database.event())
        change.prefix, change.content = prefix, content
        self._changes(transaction.origin, change)
        transaction.events.append(change)

    def _invalidate(self, transaction: Transaction, sub: int, oids: tuple[int, ...]) -> None:
        for oid in oids:
            self._changes(transaction.origin, Change("V", transaction.xid, sub, oid=oid))

    def removed_untold(self) -> set[int]:
        """Published tables of which rows are gone, and the server did not send that."""
        return self._writer.removed_untold

    def _truncate(self, transaction: Transaction, sub: int) -> None:
        tables = self._alterations.truncate(transaction)
        if not tables:
            return
        self._invalidate(transaction, sub, tuple([table.oid for table in tables]))
        self.emptied.update([table.oid for table in tables])
        published = tuple([table for table in tables if self._writer.publishes(transaction, table)])
        for table in tables:
            self._writer.note_removal(table, table in published)
        if not published:
            return
        change = Change("T", transaction.xid, sub, event=self.database.event())
        change.tables = published
        change.shape = int(self.rng.random() * 4)
        self._changes(transaction.origin, change)
        transaction.events.append(change)

    def _rows(self, transaction: Transaction, sub: int, number: int) -> None:
        table = self._table(transaction)
        if table is None:
            return
        changes = self._writer.statement(transaction, sub, table, number)
        if changes:
            self._changes(transaction.origin, *changes)
            transaction.events += [change for change in changes if change.published]

    def _table(self, transaction: Transaction) -> Definition | None:
        """Lock some table for writing; None if it would have to wait."""
        oids = self.database.oids_of(transaction)
        if not oids:
            return None
        oid = self.rng.choice(oids)
        if any(other is not transaction and oid in other.exclusive for other in self._everybody()):
            return None
        transaction.tables.add(oid)
        return self.database.of(transaction, oid)

    def _lock_exclusive(self, transaction: Transaction, oid: int) -> bool:
        """ACCESS EXCLUSIVE, until the transaction's end."""
        if any(other is not transaction and oid in other.tables for other in self._everybody()):
            return False
        transaction.tables.add(oid)
        transaction.exclusive.add(oid)
        return True

    def lock_tables(self, count: int) -> bool:
        """Somebody locks so many published tables; False: they are in use."""
        published = [table.oid for table in self.database.definitions.values() if table.published]
        lock = Transaction("")
        if not all(self._lock_exclusive(lock, oid) for oid in published[:count]):
            return False
        self.lock = lock
        return True

    def _names(self) -> set[str]:
        """Of tables, and those that they get if some transaction ends, or goes back to a savepoint."""
        names = {table.name for table in self.database.definitions.values()}
        for one in self._everybody():
            for definitions in [one.definitions, *[each.definitions for each in one.stack]]:
                names.update([table.name for table in definitions.values() if table is not None])
        return names

    def writers(self, oids: Collection[int]) -> list[Transaction]:
        """Who has one of the tables open for writing."""
        return [one for one in self._everybody() if not one.tables.isdisjoint(oids)]

    def is_locked(self, oid: int) -> bool:
        """Whether a reader of the table would have to wait."""
        return any(oid in one.exclusive for one in self._everybody())

    def _everybody(self) -> list[Transaction]:
        leaving = [one for _, one in self.leaving]
        everybody = [*self.sessions, *self.prepared.values(), *leaving, self.lock]
        return [one for one in everybody if one is not None]

    def _assign(self, transaction: Transaction) -> int:
        for savepoint in transaction.stack:
            if not savepoint.xid:
                savepoint.xid = self.database.xid(transaction.xid or None)
        if transaction.first < 0:
            transaction.first = len(self.wal.records)
        return transaction.stack[-1].xid

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
                for savepoint in transaction.stack[::-1]:
                    self._aborted(transaction, savepoint)
            self.sessions[number] = None
        self._end_leaving()

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
        self._end_leaving()
        self.running()
        self.noise()
