"""A session's work with PostgreSQL, except the stream: the lock, creation and checks of publication and slot, and the
operator's heartbeat query.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from cdcd.adapters.credentials.tokens import PROCESS_TOKEN
from cdcd.adapters.postgres.answers import Answer, translated
from cdcd.adapters.postgres.connection import Connection, Dsn
from cdcd.adapters.postgres.conversion import Conversion
from cdcd.adapters.postgres.heartbeat_query import HeartbeatQuery
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.lease import took_over
from cdcd.adapters.postgres.lock import LockHeld
from cdcd.adapters.postgres.publication import (
    ensure_publication,
    has_publication,
    rehearse_publication,
    who_holds_up,
)
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.replication import Identity, ReplicationStream
from cdcd.adapters.postgres.slot import (
    SlotState,
    create_slot,
    drop_slot,
    end_stream,
    end_two_phase,
    read_slot,
    refuse_creation,
    seen,
    set_failover,
)
from cdcd.config.loading import Config
from cdcd.core.engine.resuming import MISSING_SLOT_HINT
from cdcd.core.engine.startup_requests import SlotMade, SlotSeen
from cdcd.core.errors import CdcdError, FencedError, PositionError, SourceError, TransientError
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import (
    HeartbeatQueryFailed,
    HeartbeatQueryRuns,
    PostgresWarned,
    TableLocked,
    WalShort,
)
from cdcd.core.facts.start import (
    LockAcquired,
    LockForeign,
    PublicationCreated,
    SessionEnded,
    SlotCreated,
    SlotWaiting,
    StandbyWaiting,
)
from cdcd.core.protocol.lsn import Lsn
from cdcd.daemon.partition_watch import PartitionWatch
from cdcd.telemetry.state import ActiveElsewhere, Telemetry

T = TypeVar("T")


class PostgresSide:
    """Carries out a session's requests to PostgreSQL, except those of the stream."""

    def __init__(self, config: Config, telemetry: Telemetry, observe: Observer) -> None:
        self._config = config
        self._telemetry = telemetry
        self._observe = observe
        self._wal_warning_s = config.postgres.wal_warning_s
        self.partitions = PartitionWatch(config, observe)

    def warn_of_wal(self, within_s: float) -> None:
        """Set the time in seconds within which a possible loss of the slot is reported."""
        self._wal_warning_s = within_s

    def warned(self, answer: Answer) -> None:
        """Report a warning of the server on the stream's connection."""
        self._observe(PostgresWarned(message=answer.text, hint=answer.hint))

    async def take_raw(self, stream: ReplicationStream, dsn: Dsn) -> Conversion:
        """Switch the stream to texts in the server's encoding, and return the conversion.

        The caller owes `close` of the conversion.
        """
        conversion = await Conversion.open(
            dsn,
            stream.server_encoding,
            application_name=f"{self._config.name} encoding",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        try:
            await stream.take_raw(conversion)
        except BaseException:
            conversion.close()
            raise
        return conversion

    async def connect_lock(self, dsn: Dsn) -> KeptLock:
        """Connect for the advisory lock, without acquiring it. The caller owes `close`."""
        config, reach = self._config, self._telemetry.reach
        asked_at = time.monotonic()
        try:
            lock = await KeptLock.open(
                dsn,
                config.postgres.slot,
                application_name=f"{config.name} lock",
                connect_timeout_s=config.postgres.connect_timeout_s,
                lease_s=config.postgres.lease_s,
                token=PROCESS_TOKEN,
            )
        except TransientError as error:
            # A DSN with several hosts has a timeout for each host, so it does not show how late the failure is.
            now = time.monotonic()
            reach.failed("postgres", error, asked_at=asked_at, patience_s=now - asked_at, now=now)
            raise
        reach.answered("postgres", time.monotonic())
        return lock

    async def acquire(self, lock: KeptLock, lapsed: frozenset[int]) -> None:
        """Wait until this session holds the lock, without a time limit. Then this instance is the active one.

        Args:
            lapsed: server processes that held the lock for this process when the lease ran out, because the process
                stood still or was disconnected.

        Raises:
            FencedError: the lease ran out, and another instance holds the lock now.
        """
        slot, lease_s = self._config.postgres.slot, self._config.postgres.lease_s

        def on_wait(held: LockHeld) -> None:
            if took_over(held.pid, lapsed):
                raise FencedError(
                    f"Another instance ({held.application_name} from {held.client}, pid {held.pid}) took over while "
                    f"this instance hung or was cut off for longer than postgres.lease_s ({lease_s:g} s).",
                    hint="Nothing is lost or written twice. Start this instance again: it becomes the standby. Find "
                    "out whether its machine was suspended, without network, or so busy that the daemon stood still. "
                    "If the log has message.large before, that message took too long: raise postgres.lease_s.",
                )
            # The role becomes standby only now, because a standby is ready, but an instance that is trying to acquire
            # the lock is not.
            self._telemetry.role = "standby"
            self._telemetry.stand_by()
            self._telemetry.active_elsewhere = ActiveElsewhere(
                held.application_name, held.client, held.pid, time.time()
            )
            self._observe(
                StandbyWaiting(
                    slot=slot, holder_pid=held.pid, holder=held.application_name, client=held.client
                )
            )

        def on_ended(held: LockHeld, silent_s: float) -> None:
            self._observe(SessionEnded(held="lock", pid=held.pid, silent_s=round(silent_s, 1)))

        def on_stranger(held: LockHeld) -> None:
            end = "ROLLBACK PREPARED" if held.pid is None else f"SELECT pg_terminate_backend({held.pid})"
            self._observe(
                LockForeign(
                    slot=slot,
                    pid=held.pid,
                    role=held.role,
                    holder=held.application_name,
                    client=held.client,
                    hint=f"As a superuser, end it ({end}), and revoke CONNECT from roles that do not need this "
                    f"database.",
                )
            )

        await lock.acquire(on_wait, on_ended, on_stranger)
        self._telemetry.role = "active"
        self._observe(LockAcquired(slot=slot))

    async def is_standby(self, sql: Connection) -> bool:
        """Return True if the server is in recovery."""
        with translated("asking whether it is a standby", {}):
            row = await (await sql.execute(b"SELECT pg_is_in_recovery()")).fetchone()
        return row is not None and bool(row[0])

    async def end_former_stream(self, sql: Connection) -> None:
        """End the stream that a former instance of this pipeline left. Only the holder of the lock may do this."""
        for pid in await end_stream(sql, self._config.postgres.slot, self._config.name):
            self._observe(SessionEnded(held="stream", pid=pid, silent_s=0.0))

    async def ensure_publication(self, sql: Connection, via_root: bool | None) -> None:
        """Create the publication if it is missing. Waits until no other session has locked one of its tables.

        Args:
            via_root: as in `publication.ensure_publication`.
        """
        name, tables = self._config.postgres.publication, self._tables
        if await self._unlocked(sql, lambda: ensure_publication(sql, name, tables, via_root=via_root)):
            self._observe(PublicationCreated(publication=name))

    async def rehearse_publication(self, sql: Connection) -> dict[int, str]:
        """Return the pipeline's tables that the publication has, or would have if it were created.

        Waits like `ensure_publication`, and creates nothing.
        """
        name, tables = self._config.postgres.publication, self._tables
        found = await self._unlocked(sql, lambda: rehearse_publication(sql, name, tables))
        has = self._config.tables.selection.test()
        return {oid: table for oid, table in found.items() if has(table)}

    @property
    def _tables(self) -> Sequence[str] | None:
        """Patterns of the tables of a new publication; None: all tables."""
        postgres = self._config.postgres
        if postgres.tables is None and postgres.publication_changes != "never":
            # Later tables are added one by one, so a list will do, which needs no superuser.
            return self._config.tables.include
        return postgres.tables

    async def _unlocked(self, sql: Connection, create: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `create`, which is repeated while another session has locked one of the tables."""
        told: dict[str, str] = {}
        while True:
            try:
                return await create()
            except TableBusyError:
                for table, who in (await who_holds_up(sql, self._tables)).items():
                    if told.get(table) != who:
                        told[table] = who
                        purpose = f"the creation of publication {self._config.postgres.publication}"
                        self._observe(TableLocked(table=table, holder=who, purpose=purpose))

    async def refuse_slot(self, sql: Connection) -> None:
        """Refuse what the creation of the slot would meet. Raises ConfigError, SourceError and TransientError."""
        postgres = self._config.postgres
        await refuse_creation(sql, postgres.slot, two_phase=postgres.two_phase, failover=postgres.failover)

    async def look_at_slot(self, sql: Connection, identity: Identity) -> SlotSeen | None:
        """Return the state of the slot. None: the slot does not exist.

        SourceError: no pipeline can use it in this database.
        """
        state = await read_slot(sql, self._config.postgres.slot)
        return None if state is None else seen(state, identity.database)

    async def end_two_phase(self, stream: ReplicationStream) -> None:
        """Remove two_phase from the slot."""
        await end_two_phase(stream, self._config.postgres.slot)

    async def set_failover(self, stream: ReplicationStream) -> None:
        """Let PostgreSQL synchronize the slot to standbys."""
        await set_failover(stream, self._config.postgres.slot)

    async def drop_slot(self, sql: Connection) -> None:
        """Drop the slot."""
        await drop_slot(sql, self._config.postgres.slot)

    async def create_slot(
        self, sql: Connection, stream: ReplicationStream, identity: Identity, *, export: bool
    ) -> SlotMade:
        """Create the slot, with an exported snapshot if `export`. Waits until every open transaction has ended."""
        postgres = self._config.postgres
        created = await create_slot(
            stream,
            postgres.slot,
            two_phase=postgres.two_phase,
            failover=postgres.failover,
            export=export,
            observer=sql,
            on_wait=lambda wait: self._observe(
                SlotWaiting(
                    slot=wait.slot, message=f"open transaction: {wait.holder or 'of an unknown session'}"
                )
            ),
        )
        self._observe(SlotCreated(slot=postgres.slot, position=str(Lsn(created.consistent_point))))
        slot = await self.look_at_slot(sql, identity)
        if slot is None:
            raise PositionError(
                f"Slot {postgres.slot} was dropped as soon as it was created.",
                hint="Find out what dropped it (log_replication_commands = on), then start cdcd again.",
            )
        if slot.problem is not None:
            raise slot.problem
        return SlotMade(slot, created.snapshot if export else None)

    async def survey(self, sql: Connection) -> None:
        """Check that slot and publication still exist, and measure the WAL that the slot keeps.

        Raises:
            PositionError, SourceError: the slot or the publication was dropped.
        """
        postgres = self._config.postgres
        state = await read_slot(sql, postgres.slot)
        if state is None:
            raise PositionError(
                f"Slot {postgres.slot} is not there any more: it was dropped while it was in use, and changes since "
                f"then are lost to this pipeline.",
                hint=MISSING_SLOT_HINT,
            )
        self._telemetry.retained_wal_bytes = state.retained_bytes
        self._forecast(state)
        # Keepalives only show how far the walsender has read, which is far from the end of the WAL during a backlog.
        self._telemetry.server_wal_end = max(self._telemetry.server_wal_end, state.current_lsn)
        if not await has_publication(sql, postgres.publication):
            raise SourceError(
                f"Publication {postgres.publication} was dropped while it was in use.",
                hint="If nothing was written to its tables since, create the publication again as it was (`cdcd check` "
                "prints the command), and start cdcd. Otherwise PostgreSQL cannot decode what was written without a "
                "publication: restart the pipeline from scratch with `cdcd reset --yes`.",
            )

    def _forecast(self, state: SlotState) -> None:
        """Measure how fast WAL is written, and warn if the slot may soon be lost."""
        wal = self._telemetry.wal
        wal.observe(time.monotonic(), state.current_lsn, state.retained_bytes, state.safe_wal_size)
        left_s = wal.warning(self._wal_warning_s)
        if left_s is not None:
            self._observe(
                WalShort(
                    slot=state.name,
                    seconds_left=round(left_s),
                    safe_bytes=state.safe_wal_size or 0,
                    retained_bytes=state.retained_bytes,
                    bytes_per_s=round(wal.bytes_per_s or 0.0),
                    hint="Let Kafka and cdcd catch up, or raise max_slot_wal_keep_size (ALTER SYSTEM, then SELECT "
                    "pg_reload_conf()) if PostgreSQL's disk has room.",
                )
            )


REPORT_S: Final = 60.0
"""Seconds between two reports of a failing query."""


class HeartbeatAction:
    """Connection and state of the query; `run` it when the engine requests it. The caller owes `close`."""

    def __init__(
        self,
        config: Config,
        query: str,
        *,
        dsn: Dsn,
        lock: KeptLock,
        telemetry: Telemetry,
        observe: Observer,
    ) -> None:
        self._config = config
        self._query = query
        self._dsn = dsn
        self._lock = lock
        self._telemetry = telemetry
        self._observe = observe
        self._connected: HeartbeatQuery | None = None
        self._failures = 0
        self._report_at = 0.0

    def close(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    async def run(self) -> None:
        """Run the query once, unless the lock's lease has run out, because another instance may be active then."""
        if not self._is_active():
            return
        try:
            connected = await self._connect()
            # Connecting took time, so the lease is checked again.
            if not self._is_active():
                return
            await connected.run()
        except CdcdError as error:
            self._failed(error)
        except BaseException:
            self.close()
            raise
        else:
            self._succeeded()

    def _is_active(self) -> bool:
        return not self._lock.lapsed

    async def _connect(self) -> HeartbeatQuery:
        if self._connected is not None and not self._connected.is_lost:
            return self._connected
        self.close()
        config = self._config
        self._connected = await HeartbeatQuery.open(
            self._dsn,
            self._query,
            application_name=f"{config.name} heartbeat",
            connect_timeout_s=config.postgres.connect_timeout_s,
            timeout_s=config.heartbeat.action_timeout_s,
        )
        return self._connected

    def _failed(self, error: CdcdError) -> None:
        self._telemetry.heartbeat_queries["failed"] += 1
        self._failures += 1
        now = time.monotonic()
        if self._failures == 1 or now >= self._report_at:
            self._report_at = now + REPORT_S
            self._observe(
                HeartbeatQueryFailed(message=error.message, hint=error.hint or "", failures=self._failures)
            )

    def _succeeded(self) -> None:
        self._telemetry.heartbeat_queries["done"] += 1
        if self._failures:
            self._observe(HeartbeatQueryRuns(failures=self._failures))
        self._failures = 0
