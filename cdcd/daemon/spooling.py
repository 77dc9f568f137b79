"""A session without Kafka: the stream is written to the durable log, and synced positions are confirmed to PostgreSQL.

```
 receive ─frames─▶ LogFiles.append, sync (in a thread) ─▶ Spooling.synced ─▶ status update ─▶ PostgreSQL
 lock, survey, stop, Kafka's return ─▶ the end of the session
```

This module decides nothing. `engine/logged.py` decides if a log may begin or continue, and which position may
be confirmed to PostgreSQL; `engine/spooling.py` decides when. The session ends when Kafka answers again, and the
next session delivers the log.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from cdcd.adapters.durable.log import LogFiles, LogStoppedError
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.server_names import NEVER_CONVERTED
from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.feedback import interval_for
from cdcd.core.engine.logged import LogOwner, SpoolStart, start_spooling
from cdcd.core.engine.spooling import SPOOLING_S_MIN, Spooling
from cdcd.core.engine.startup_requests import SlotSeen
from cdcd.core.errors import TransientError, cause
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import DurableSpoolEnded, DurableSpoolStarted
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.versions import start_options
from cdcd.daemon.durable_log import log_error, open_log
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.daemon.settings import message_limits
from cdcd.daemon.wiring import start_stream
from cdcd.telemetry.state import Telemetry

READ_BYTES: Final = 1 << 20
"""Bytes of frames that are received at a time, and synced together."""

LOOK_S: Final = 0.5
"""Seconds between two checks that Kafka answers again."""

SURVEY_S: Final = 15.0
"""Seconds between two checks of the slot and the publication."""


class SpoolingSession:
    """One session without Kafka. Call `run` once, and `close` in any case.

    Args:
        delivered: newest checkpoint that this process knows to be in Kafka.
        kafka_is_away: returns True while Kafka does not answer.
        lapsed: server processes that held the lock for this process when the lease ran out.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        *,
        delivered: Checkpoint | None,
        kafka_is_away: Callable[[], bool],
        lapsed: frozenset[int],
        converts: bool = True,
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._observe = observe
        self._delivered = delivered
        self._kafka_is_away = kafka_is_away
        self._lapsed = lapsed
        self._converts = converts
        self._postgres = PostgresSide(config, telemetry, observe)
        self._stack = AsyncExitStack()
        self._lock: KeptLock | None = None
        self._stream: ReplicationStream | None = None
        self._log: LogFiles | None = None
        self._spooling: Spooling | None = None
        self._began = 0.0
        self._due = asyncio.Event()

    @property
    def lapsed(self) -> frozenset[int]:
        """Server processes as in `Startup.lapsed`."""
        if self._lock is None:
            return self._lapsed
        return frozenset({self._lock.backend_pid}) if self._lock.lapsed else frozenset()

    @property
    def flushed(self) -> int:
        """Highest position that was confirmed to PostgreSQL."""
        return 0 if self._spooling is None else self._spooling.flushed

    async def close(self) -> None:
        """Close all connections and files. The contents of the log stay."""
        if self._stream is not None:
            self._stream.close()
        log, spooling = self._log, self._spooling
        if log is not None:
            await asyncio.to_thread(log.close)
        if log is not None and spooling is not None:
            self._observe(
                DurableSpoolEnded(
                    directory=self._directory,
                    position=str(Lsn(spooling.flushed)),
                    bytes=log.size,
                    seconds=round(time.monotonic() - self._began, 1),
                )
            )
        await self._stack.aclose()

    @property
    def _directory(self) -> str:
        return str(self._config.spool.durable_directory)

    async def run(self, stop: asyncio.Event) -> None:
        """Write the stream to the log until Kafka answers again, or `stop` is set.

        Raises:
            LogStoppedError: the log cannot be written, for the reason in the error.
            TransientError: PostgreSQL does not answer, or the connection is lost.
            FatalError: an operator must act.
        """
        ends = [
            asyncio.create_task(stop.wait(), name="stop"),
            asyncio.create_task(self._until_kafka_is_back(), name="kafka"),
        ]
        work = asyncio.create_task(self._spool(), name="spool")
        try:
            await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, *ends):
                task.cancel()
            await asyncio.gather(work, *ends, return_exceptions=True)

    async def _until_kafka_is_back(self) -> None:
        began = time.monotonic()
        while True:
            if not self._kafka_is_away() and time.monotonic() - began >= SPOOLING_S_MIN:
                return
            await asyncio.sleep(LOOK_S)

    async def _spool(self) -> None:
        sql = await self._open()
        assert self._stream is not None
        spooling = self._spooling
        assert spooling is not None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive(spooling), name="receive")
                group.create_task(self._tell(spooling), name="feedback")
                group.create_task(self._watch_lock(), name="lock")
                group.create_task(self._look_around(sql), name="survey")
        except BaseExceptionGroup as failures:
            raise _worst(failures) from None

    async def _open(self) -> Connection:
        """Open everything up to a running stream, in the order of a start (`engine/startup.py`)."""
        config, postgres, observe = self._config, self._config.postgres, self._observe
        dsn = parse_dsn(*postgres.access())
        lock = await self._postgres.connect_lock(dsn)
        self._stack.callback(lock.close)
        await self._postgres.acquire(lock, self._lapsed)
        self._lock = lock
        keep = asyncio.create_task(lock.keep(), name="keep the lock")
        self._stack.push_async_callback(_ended, keep)
        sql = await connect(
            dsn,
            application_name=f"{config.name} catalog",
            connect_timeout_s=postgres.connect_timeout_s,
        )
        self._stack.push_async_callback(sql.close)
        if await self._postgres.is_standby(sql):
            raise TransientError("The server is a standby.", hint="Point postgres.dsn at the primary.")
        await self._postgres.end_former_stream(sql)
        stream = self._stream = await ReplicationStream.open(
            dsn,
            application_name=config.name,
            connect_timeout_s=postgres.connect_timeout_s,
            warned=self._postgres.warned,
        )
        if not self._converts or stream.server_encoding in NEVER_CONVERTED:
            self._stack.callback((await self._postgres.take_raw(stream, dsn)).close)
        timeout_s = await stream.wal_sender_timeout_s()
        identity = await stream.identify()
        slot = await self._postgres.look_at_slot(sql, identity)
        if slot is None or slot.two_phase or slot.problem is not None:
            raise LogStoppedError(_why_not(slot, postgres.slot))
        owner = LogOwner(
            config.name,
            postgres.slot,
            identity.system_identifier,
            identity.timeline,
            config.stream_options,
        )
        options = start_options(
            stream.server_version,
            postgres.protocol,
            [postgres.publication],
            streaming="off",
            two_phase=False,
            messages=config.hears_messages,
            origin=postgres.origin,
            binary=False,
        )
        # Whether messages without a request have records is known only when the log is delivered.
        stream.shorten = message_limits(
            config, delivers_messages=config.delivers_messages is not False
        ).shorten
        await start_stream(config, stream, options, timeout_s, observe)
        # No other client can move the slot any more.
        slot = await self._postgres.look_at_slot(sql, identity)
        start = await self._take_log(owner, None if slot is None else slot.confirmed)
        self._began = time.monotonic()
        self._spooling = Spooling(
            start.begin, interval_for(postgres.status_interval_s, timeout_s), self._began
        )
        assert self._log is not None
        observe(
            DurableSpoolStarted(
                directory=self._directory, position=str(Lsn(start.begin)), bytes=self._log.size
            )
        )
        return sql

    async def _take_log(self, owner: LogOwner, confirmed: int | None) -> SpoolStart:
        log = self._log = open_log(self._config)
        assert log is not None, "spool.durable has a directory"
        found = await asyncio.to_thread(log.look)
        start = start_spooling(found, owner, confirmed, self._delivered)
        if not isinstance(start, SpoolStart):
            raise LogStoppedError(start)
        try:
            await asyncio.to_thread(log.remove, start.remove)
        except OSError as error:
            raise log_error(self._config, error) from error
        await asyncio.to_thread(log.begin, owner, start.begin, time.time_ns() // 1000)
        if self._telemetry.durable_from is None:
            self._telemetry.durable_from = start.begin
        self._telemetry.caught_up = False
        return start

    async def _receive(self, spooling: Spooling) -> None:
        stream, log, telemetry = self._stream, self._log, self._telemetry
        assert stream is not None
        assert log is not None

        def write(frames: list[bytes]) -> int:
            log.append(frames, time.time_ns() // 1000)
            return log.sync()

        while True:
            frames = await stream.receive(READ_BYTES)
            spooling.received(frames)
            self._due.set()
            spooling.synced(await asyncio.to_thread(write, frames))
            self._due.set()
            telemetry.durable_bytes = log.size
            telemetry.flushed_lsn = telemetry.received_lsn = spooling.flushed
            telemetry.server_wal_end = max(telemetry.server_wal_end, spooling.flushed)

    async def _tell(self, spooling: Spooling) -> None:
        stream = self._stream
        assert stream is not None
        while True:
            self._due.clear()
            status = spooling.status(time.monotonic(), time.time_ns() // 1000)
            if status is not None:
                await stream.send(status)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, spooling.next_at() - time.monotonic())):
                    await self._due.wait()

    async def _watch_lock(self) -> None:
        assert self._lock is not None
        lost = await self._lock.wait_lost()
        if lost.admin_shutdown and not self._lock.lapsed:
            # PostgreSQL shuts down, and waits until everything is confirmed. It ends the stream itself then.
            await asyncio.sleep(self._config.postgres.shutdown_grace_s)
        raise TransientError(
            f"The connection with the advisory lock is lost: {lost.message}", hint="Reconnecting."
        )

    async def _look_around(self, sql: Connection) -> None:
        while True:
            await self._postgres.survey(sql)
            await asyncio.sleep(SURVEY_S)


def _why_not(slot: SlotSeen | None, name: str) -> str:
    if slot is None:
        return f"slot {name} is not there"
    if slot.problem is not None:
        return slot.problem.message
    return f"slot {name} decodes prepared transactions (two_phase)"


def _worst(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the reason why the log is stopped, if it is; else the cause by `errors.cause`."""
    for error in failures.exceptions:
        if isinstance(error, LogStoppedError):
            return error
    return cause(failures)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def stopped_hint(config: Config) -> str:
    """Return the hint for a log that cannot be written."""
    folder = config.spool.durable_directory
    return (
        f"PostgreSQL keeps the WAL from now on. Bring Kafka back, and watch the free space of PostgreSQL's disk. If "
        f"{folder} is "
        "full: make room, or raise spool.durable_bytes_max, then restart cdcd."
    )
