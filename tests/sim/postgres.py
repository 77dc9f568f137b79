"""The server around the walsender: the slot, the advisory lock, one replication connection, and the ways to go down."""

from bisect import bisect_left
from collections import deque
from dataclasses import replace
from random import Random
from typing import Final

from cdcd.core.engine.resuming import Source
from cdcd.core.protocol.frames import read_status
from cdcd.core.snapshot.reading import SourceTable, Visibility
from tests.sim.catalog import Definition
from tests.sim.client import Client
from tests.sim.expected import PromiseBrokenError
from tests.sim.oracle import Oracle
from tests.sim.settings import Settings
from tests.sim.wal import FIRST_LSN, Record, Wal
from tests.sim.walsender import Options, Walsender
from tests.sim.workload import Workload

NEVER: Final = 1 << 63
SYSTEM_IDENTIFIER: Final = "7000000000000000001"
STREAM: Final = "simulated"

OUT_MAX: Final = 200
"""Frames that a connection holds before the walsender waits."""

SHUTDOWN_TICKS_MAX: Final = 4000
"""A fast shutdown waits for the client; a daemon that lets it wait longer than this is broken."""


class ConnectionLostError(Exception):
    """A connection is gone, or could not be made."""


class Connection:
    """The replication connection: frames to the client, status updates to the server, each with some delay."""

    def __init__(self, owner: object, walsender: Walsender) -> None:
        self.owner = owner
        self.walsender = walsender
        self.inbox: deque[bytes] = deque()
        self.alive = True

    def receive(self, most: int) -> list[bytes]:
        """Frames that have arrived; raises ConnectionLostError."""
        if not self.alive:
            raise ConnectionLostError
        out = self.walsender.out
        if not out:
            return out
        frames = out[:most]
        del out[:most]
        return frames

    def send(self, status: bytes) -> None:
        if not self.alive:
            raise ConnectionLostError
        self.inbox.append(status)


class Postgres:
    """One server with one slot."""

    def __init__(self, settings: Settings, rng: Random, oracle: Oracle) -> None:
        self.settings = settings
        self.rng = rng
        self.oracle = oracle
        self.wal = Wal()
        self.workload = Workload(settings, rng, self.wal, oracle)
        self.up = True
        self.stopping_since = -1
        self.slot = False
        self.maker: object | None = None
        """The session that made the slot; None: it was there before."""
        self.confirmed = FIRST_LSN
        self.persisted = FIRST_LSN
        self.two_phase_at = NEVER
        self.connection: Connection | None = None
        self.lock_holder: object | None = None
        self._late: deque[bytes] = deque()
        """Status updates that a walsender takes in although its connection is gone."""
        self._was_late = False
        """One of them moved the slot, which the next session did not see when it looked at the slot."""
        self.client = Client(self.wal, self.workload)
        self._creating: tuple[object, set[int]] | None = None
        self._holder: object | None = None
        self._exported: dict[int, Definition] = {}

    # What a client does.

    def lock(self, who: object) -> bool:
        """Take the advisory lock if it is free."""
        self.must_be_up()
        if self.lock_holder is None:
            self.lock_holder = who
        return self.lock_holder is who

    def make_slot(self, *, two_phase: bool) -> Visibility:
        """The slot at its consistent point; what it exports sees what committed before in the WAL."""
        self.slot = True
        self._creating = None
        self.confirmed = self.persisted = self.wal.end
        self.two_phase_at = self.wal.end if two_phase else NEVER
        self.oracle.begun = True
        database = self.workload.database
        return database.transactions.historic(database.next_xid)

    def request_slot(self, who: object) -> None:
        """CREATE_REPLICATION_SLOT: it waits for whoever is running now (snapbuild.c)."""
        self.must_be_up()
        if self.slot:
            # SQLSTATE 42710: somebody else created it; the session ends and looks at it again.
            raise ConnectionLostError
        self._creating = (who, set(self.workload.database.transactions.running))

    def slot_is_made(self, who: object, *, two_phase: bool) -> bool:
        """Whether it has come to its end; then the snapshot is held until `release`."""
        self.must_be_up()
        if self._creating is None or self._creating[0] is not who:
            raise ConnectionLostError
        if self.slot:
            raise ConnectionLostError
        database = self.workload.database
        self._creating[1].intersection_update(database.transactions.running)
        if self._creating[1]:
            return False
        database.held = self.make_slot(two_phase=two_phase)
        self._holder = who
        self._exported = self.workload.decided_definitions()
        return True

    def drop_slot(self, who: object) -> None:
        """pg_drop_replication_slot. G7: only the session that made the slot takes it back."""
        self.must_be_up()
        if not self.slot or self.maker is not who:
            raise PromiseBrokenError("G7: a session drops a slot that it did not make")
        self.slot = False
        self.oracle.slot_dropped()

    def exported_tables(self) -> list[SourceTable]:
        """The tables that are published now, as they are at the exported snapshot."""
        self.must_be_up()
        if self.workload.database.held is None:
            raise ConnectionLostError
        return [
            self.client.source_table(self._exported[oid])
            for oid in self.client.published()
            if oid in self._exported
        ]

    def release(self, who: object) -> None:
        """Nobody needs the exported snapshot any more."""
        if self._holder is who:
            self._holder = None
            self.workload.database.held = None

    def source(self) -> Source:
        """IDENTIFY_SYSTEM and the slot."""
        self.must_be_up()
        return Source(SYSTEM_IDENTIFIER, 1, self.wal.end, self.confirmed if self.slot else None, STREAM)

    def start_replication(self, who: object, options: Options) -> Connection:
        """START_REPLICATION from where the slot stands; raises ConnectionLostError while another walsender has it."""
        self.must_be_up()
        if self.connection is not None:
            raise ConnectionLostError
        if options.two_phase and self.two_phase_at == NEVER:
            self.two_phase_at = self.persisted = self.confirmed
        # It stays on once it was asked for (pgoutput_startup).
        self._late.clear()
        options = replace(options, two_phase=self.two_phase_at != NEVER)
        walsender = Walsender(
            self.settings,
            self.rng,
            self.wal,
            options,
            start=self.confirmed,
            at=self._first_needed(),
            two_phase_at=self.two_phase_at,
        )
        self.connection = Connection(who, walsender)
        return self.connection

    def must_be_up(self) -> None:
        if not self.up or self.stopping_since >= 0:
            raise ConnectionLostError

    def _first_needed(self) -> int:
        """restart_lsn: the first record of what was not ended at `confirmed`."""
        records, workload = self.wal.records, self.workload
        firsts = [bisect_left(records, self.confirmed, key=_start)]
        firsts += [one.first for one in workload.sessions if one is not None and one.first >= 0]
        firsts += [one.first for one in workload.prepared.values()]
        for first, last in workload.spans:
            if last >= len(records) or records[last].start >= self.confirmed:
                firsts.append(first)
        return min(firsts)

    def drop(self, who: object) -> None:
        """A client's connections end."""
        if self.connection is not None and self.connection.owner is who:
            self.disconnect()
        if self.lock_holder is who:
            self.lock_holder = None
        if self._creating is not None and self._creating[0] is who:
            self._creating = None
        self.release(who)

    # What the server does.

    def disconnect(self) -> None:
        """The replication connection breaks; what was under way is lost."""
        if self.connection is not None:
            if self.settings.durable and self.up and self.rng.random() < 0.5:
                self._late.extend(self.connection.inbox)
            self.connection.alive = False
            self.connection = None

    def step(self, now: int) -> bool:
        """Read a status update, decode a record, perhaps send a keepalive; whether a shutdown came to its end."""
        connection = self.connection
        self.workload.tick()
        if self._late and self.rng.random() < 0.1:
            before = self.confirmed
            self._confirm(self._late.popleft())
            self._was_late |= self.confirmed > before
        if connection is not None:
            if connection.inbox and self.rng.random() < 0.7:
                self._confirm(connection.inbox.popleft())
            walsender = connection.walsender
            if not walsender.caught_up:
                if self.rng.random() < self.settings.p_decode and len(walsender.out) < OUT_MAX:
                    walsender.step()
                if self.rng.random() < walsender.p_keepalive:
                    walsender.keepalive(self.rng.random() < 0.3)
            elif self.confirmed < walsender.sent and self.rng.random() < self.settings.p_keepalive:
                walsender.keepalive(self.stopping_since >= 0 or self.rng.random() < 0.2)
        return self.stopping_since >= 0 and self._stop(now)

    def _confirm(self, data: bytes) -> None:
        status = read_status(data)
        # An instance may stand still between its look at the slot and its stream, and another one shuts it out then.
        # What it tells afterwards is old, and the slot stays where it is (LogicalConfirmReceivedLocation).
        shut_out = self.connection is not None and self.connection.owner is not self.lock_holder
        if (self._was_late or shut_out) and status.flushed < self.confirmed:
            return
        self.oracle.tell(status.flushed, self.confirmed, self.wal.end, self.two_phase_at)
        if status.flushed > self.confirmed:
            self.confirmed = status.flushed

    def move_slot(self, lsn: int) -> None:
        """Somebody calls pg_replication_slot_advance, which needs a slot that nobody streams from."""
        self.disconnect()
        self.confirmed = self.persisted = max(self.confirmed, lsn)

    def lose_slot(self) -> None:
        """Drop the slot, after its connection is closed."""
        self.disconnect()
        self.slot = False
        self.maker = None

    def persist(self) -> None:
        """A checkpoint writes the slot's position to disk."""
        self.persisted = self.confirmed

    def _end_sessions(self) -> None:
        self.disconnect()
        self.lock_holder = None
        self._creating = None
        self._holder = None
        self.workload.database.held = None

    def crash(self) -> None:
        """Back to what is on disk; the WAL is all there, the slot's position may be older."""
        self._end_sessions()
        self._late.clear()
        self.up = False
        self.stopping_since = -1
        self.confirmed = self.persisted
        self.workload.crash()

    def start(self) -> None:
        self.up = True
        self.workload.running()

    def shut_down(self, now: int) -> None:
        """A fast shutdown: sessions end at once, the walsender when its client has confirmed everything."""
        self.stopping_since = now
        self._creating = None
        self._holder = None
        self.workload.database.held = None
        self.workload.disconnect_all()

    def _stop(self, now: int) -> bool:
        connection = self.connection
        if connection is not None:
            if now - self.stopping_since > SHUTDOWN_TICKS_MAX:
                raise AssertionError("a fast shutdown waits for ever")
            walsender = connection.walsender
            if not (walsender.caught_up and walsender.sent == self.confirmed and not walsender.out):
                return False
        self._end_sessions()
        self.stopping_since = -1
        self.workload.noise()
        self.persist()
        self.up = False
        return True


def _start(record: Record) -> int:
    return record.start
