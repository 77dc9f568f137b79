"""Runs sessions one after the other, handles signals, and ends the process.

The rule: a transient failure ends a session, not the process. The next session begins after a back-off
(`engine/sessions.py`), and finds everything it needs in PostgreSQL's slot and Kafka's checkpoint. A fatal failure
ends the process with its exit code, because a retry would not help or would do harm.

The first SIGTERM or SIGINT ends the session in good order. The process then ends within `shutdown_timeout_s`,
whatever is stuck; undelivered changes are delivered after the next start. A second signal ends the process at once.

SIGHUP reads the configuration again. Settings that may change in a running daemon change, and the log names those
that need a restart (`config/reloading.py`).
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, NoReturn

from cdcd.adapters.credentials.weaknesses import refuse_weaknesses
from cdcd.adapters.durable.log import LogStoppedError
from cdcd.adapters.kafka.sink_inputs import KnownOfBrokers
from cdcd.config.loading import Config
from cdcd.config.reloading import Reloaded, reloaded, reread
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.ending import SpoolingBeginsError, TablesRefusedError
from cdcd.core.engine.leavings import KEPT
from cdcd.core.engine.sessions import Sessions
from cdcd.core.engine.spooling import spools_at
from cdcd.core.engine.startup_rules import FormerSessions, GapChoice
from cdcd.core.errors import (
    CdcdError,
    ConfigError,
    FatalError,
    PositionError,
    TransientError,
    out_of_files,
)
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import DurableSpoolStopped
from cdcd.core.facts.process import (
    ConfigRefused,
    ConfigReloaded,
    Failed,
    ShutdownFinished,
    ShutdownForced,
    ShutdownRequested,
)
from cdcd.core.facts.start import SlotKept
from cdcd.daemon.durable_log import has_log
from cdcd.daemon.kafka_reports import KafkaReports
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.pipeline import Pipeline
from cdcd.daemon.process import exhausted
from cdcd.daemon.snapshot_driver import MakeComparer
from cdcd.daemon.spooling import SpoolingSession, stopped_hint
from cdcd.daemon.startup import Startup
from cdcd.telemetry.logs import configure_logging, is_json
from cdcd.telemetry.state import ProgressReport, Telemetry
from cdcd.telemetry.terminal_text import Terminal

HEARTBEAT_S: Final = 0.5

SPOOLING: Final = "Kafka is away; the stream goes to the durable log."

OUT_OF_FILES_S: Final = 5.0
"""Seconds after which a process without a free descriptor ends. A call of cdcd that fails for this reason ends the
process at once; librdkafka and the HTTP server only retry."""

LEAVING_S: Final = 1.0
"""Seconds before the end of `shutdown_timeout_s` at which calls to Kafka are stopped. They check for the stop every
half second."""


def failed(error: CdcdError) -> Failed:
    """Return the last event of a process that this error ends."""
    return Failed(
        error=type(error).__name__, message=error.message, hint=error.hint, exit_code=error.exit_code
    )


class Supervisor:
    """Runs sessions until it is stopped, or until one fails for good."""

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        *,
        gap: GapChoice,
        screen: Terminal | None = None,
        reread_file: Callable[[], Config] | None = None,
        make_comparer: MakeComparer | None = None,
    ) -> None:
        self._make_comparer = make_comparer
        self.config = config
        """The configuration in effect. SIGHUP may change it."""
        self._reread_file = (lambda: config) if reread_file is None else reread_file
        self._reload = asyncio.Event()
        self._pipeline: Pipeline | None = None
        self._screen = screen
        self._telemetry = telemetry
        self._observe = observe
        self._gap = gap
        self._aside: tuple[AsideTable, ...] = ()
        """Tables that the last session has set aside, without a checkpoint that says so."""
        self._stop = asyncio.Event()
        self._kafka_thread = ThreadPoolExecutor(1, thread_name_prefix="kafka")
        self._startup: Startup | None = None
        self._flushed = 0
        self._lapsed: frozenset[int] = frozenset()
        self._known = KnownOfBrokers()
        self._delivered: Checkpoint | None = None
        """Newest checkpoint that this process knows in Kafka, if a durable log may begin after it."""
        self._has_spooled = False
        self._spool_stopped = False
        """True if the durable log cannot be written, so that nothing is logged before Kafka has answered."""
        self._log_goes_on = config.spool.durable and has_log(config)
        """True if a former process has begun the durable log, and Kafka has not answered since."""
        self._kafka = KafkaReports(
            lambda: self.config,
            telemetry,
            observe,
            self._known,
            answered=self._kafka_answered,
            end_by=self._end_by,
        )
        self._ended: FatalError | None = None
        """Error with which the process ends in good order without a signal."""
        self._thread_failure: FatalError | None = None
        """Error that ended a thread that the daemon needs; None: no thread has failed."""
        self._kept = ""
        """Reason why the slot stays that this process created; "": it created none, or dropped it."""
        self._sessions = Sessions(
            binary=config.postgres.binary,
            startup_timeout_s=config.startup_timeout_s,
            backoffs={
                "postgres": config.postgres.retry.delays.backoff(),
                "kafka": config.kafka.retry.delays.backoff(),
            },
            reconnects=telemetry.reconnects,
            observe=observe,
            now=time.monotonic(),
        )

    async def run(self) -> int:
        """Run until stopped, and return 0.

        Raises:
            FatalError: an operator must act.
            TransientError: no session had streamed before `startup_timeout_s` was over.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        beside = [asyncio.create_task(self._beat()), asyncio.create_task(self._reload_when_asked())]
        self._kafka.start()
        try:
            await self._run_sessions()
        finally:
            for task in beside:
                task.cancel()
            self._kafka.stop()
            self._kafka_thread.shutdown(wait=False)
        self.kept_slot()
        if self._ended is not None:
            raise self._ended
        self._observe(ShutdownFinished(flushed_lsn=self._telemetry.flushed_lsn))
        return 0

    def _kafka_answered(self) -> None:
        self._spool_stopped = self._log_goes_on = False

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._exit(128 + number)
        self._observe(ShutdownRequested(signal=signal.Signals(number).name))
        self._end()

    def _end_by(self, error: FatalError) -> None:
        """Stop in good order, and let the process end with this error."""
        if not self._stop.is_set():
            self._ended = error
            self._end()

    def _end(self) -> None:
        """Stop in good order, but within `shutdown_timeout_s`."""
        self._stop.set()
        timeout_s = self.config.shutdown_timeout_s
        asyncio.get_running_loop().call_later(max(timeout_s / 2, timeout_s - LEAVING_S), self._give_up)
        # A thread is used, because the event loop itself may be stuck or have ended.
        end = threading.Timer(timeout_s, self._force)
        end.daemon = True
        end.start()

    @property
    def logs_json(self) -> bool:
        """True if the log is JSON."""
        return is_json(self.config.log, sys.stderr if self._screen is None else self._screen)

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            try:
                read = await asyncio.to_thread(self._reread_file)
                refuse_weaknesses(read)
            except ConfigError as error:
                self._observe(ConfigRefused(message=error.message, hint=error.hint))
            else:
                self._apply(reloaded(self.config, read))

    def _apply(self, changed: Reloaded) -> None:
        config = self.config = changed.config
        configure_logging(config.log, self._screen)
        if self._startup is not None:
            self._startup.postgres.warn_of_wal(config.postgres.wal_warning_s)
        if self._pipeline is not None:
            self._pipeline.warn_of_prepared(config.postgres.prepared_warning_age_s)
        self._observe(
            ConfigReloaded(
                at_once=changed.at_once,
                next_session=changed.next_session,
                needs_restart=changed.needs_restart,
            )
        )

    def _give_up(self) -> None:
        if self._startup is not None:
            self._startup.give_up()

    def _force(self) -> None:
        self._observe(
            ShutdownForced(timeout_s=self.config.shutdown_timeout_s, flushed_lsn=self._telemetry.flushed_lsn)
        )
        if self._ended is None:
            self._exit(0)
        self._observe(failed(self._ended))
        self._exit(self._ended.exit_code)

    def thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Keep the error of a thread that has no descriptors left. `threading.excepthook` calls this in the thread."""
        full = None if failure.exc_value is None else out_of_files(failure.exc_value)
        if full is None:
            threading.__excepthook__(failure)
        else:
            self._thread_failure = full

    def _exit(self, code: int) -> NoReturn:
        """End the process at once. The terminal is closed first, because progress bars hide its cursor."""
        if self._screen is not None:
            self._screen.close()
        os._exit(code)

    async def _beat(self) -> None:
        telemetry = self._telemetry
        report = ProgressReport(telemetry, time.monotonic())
        has_files_at = time.monotonic()
        while True:
            now, unix_now = time.monotonic(), time.time()
            telemetry.loop_heartbeat = now
            full = exhausted()
            if full is None:
                has_files_at = now
            failure = self._thread_failure or (full if now - has_files_at >= OUT_OF_FILES_S else None)
            if failure is not None:
                self._end_by(failure)
            telemetry.look(now, unix_now)
            progress = report.due(now, unix_now)
            if progress is not None:
                self._observe(progress)
            if self._screen is not None:
                self._screen.tick()
            await asyncio.sleep(HEARTBEAT_S)

    async def _run_sessions(self) -> None:
        while not self._stop.is_set():
            try:
                await (self._spool() if self._is_to_spool() else self._session())
            except TransientError as error:
                if self._stop.is_set():
                    return
                if isinstance(error, TablesRefusedError):
                    self._aside = error.tables
                wait_s = self._sessions.failed(
                    error,
                    streamed=self._telemetry.streaming or self._has_spooled,
                    draw=random.random(),  # noqa: S311  spreads reconnects, guards nothing
                    now=time.monotonic(),
                    spools_at=self._spools_at(),
                )
                if wait_s:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._stop.wait()
            finally:
                self._telemetry.streaming = False
                # Data in memory is lost, but is received again.
                self._telemetry.queue_bytes = self._telemetry.queue_records = 0

    async def _session(self) -> None:
        async with AsyncExitStack() as stack:
            config = reread(self.config)
            self._startup = Startup(
                config,
                self._telemetry,
                self._observe,
                KafkaSide(config, self._observe, self._kafka_thread, self._known),
                FormerSessions(
                    flushed=self._flushed,
                    unstreamed_until=self._sessions.unstreamed_until,
                    binary=self._sessions.binary,
                    converts=self._sessions.converts,
                    lapsed=self._lapsed,
                    aside=self._aside,
                ),
                self._gap,
                self._make_comparer,
            )
            stack.push_async_callback(self._startup.close)
            stack.callback(self._note_lapse, self._startup)
            stack.push_async_exit(self._leave)
            pipeline = await self._opened(self._startup)
            if pipeline is None:
                return
            self._gap = replace(self._gap, is_accepted=False)
            self._aside = ()
            self._telemetry.streaming = True
            self._pipeline = pipeline
            try:
                await self._run_pipeline(pipeline)
            finally:
                self._pipeline = None
                self._delivered = pipeline.spool_behind or self._delivered
                if not pipeline.is_reading:
                    self._kept = ""
                self._flushed = max(self._flushed, self._startup.flushed)

    async def _opened(self, startup: Startup) -> Pipeline | None:
        """Return the pipeline of the opened session; None if the process is to stop.

        Raises:
            SpoolingBeginsError: Kafka does not answer, and the stream must go to the durable log. An attempt to
                connect to Kafka takes up to 15 seconds, in which PostgreSQL would keep more and more WAL.
        """
        opening = asyncio.create_task(startup.open(), name="start")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        # An instance that waits for the lock has nothing to write to the log.
        away = asyncio.create_task(self._await_spooling(lambda: startup.has_lock), name="durable log")
        try:
            await asyncio.wait({opening, stopped, away}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                return opening.result()
            startup.give_up()
            if stopped.done():
                return None
            raise SpoolingBeginsError(SPOOLING)
        finally:
            for task in (opening, stopped, away):
                task.cancel()
            await asyncio.gather(opening, stopped, away, return_exceptions=True)

    async def _run_pipeline(self, pipeline: Pipeline) -> None:
        """Run the pipeline, at most until the stream must go to the durable log."""
        if not self.config.spool.durable:
            await pipeline.run(self._stop)
            return
        running = asyncio.create_task(pipeline.run(self._stop), name="pipeline")
        away = asyncio.create_task(
            self._await_spooling(lambda: pipeline.is_logged or pipeline.spool_behind is not None),
            name="durable log",
        )
        try:
            await asyncio.wait({running, away}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                return
            raise SpoolingBeginsError(SPOOLING)
        finally:
            for task in (running, away):
                task.cancel()
            await asyncio.gather(running, away, return_exceptions=True)

    async def _await_spooling(self, can_end: Callable[[], bool]) -> None:
        """Wait until the stream must go to the durable log and the session can end for this."""
        while True:
            if self._is_to_spool() and can_end():
                return
            await asyncio.sleep(HEARTBEAT_S)

    def _is_to_spool(self) -> bool:
        """Return True if the stream should go to the durable log now."""
        at = self._spools_at()
        return at is not None and "kafka" in self._telemetry.reach.outages and time.monotonic() >= at

    def _spools_at(self) -> float | None:
        """Return the time (monotonic seconds) at which the stream goes to the durable log if Kafka stays unreachable.

        None: Kafka answers, or there is no log.
        """
        spool, reach = self.config.spool, self._telemetry.reach
        if not spool.durable or self._spool_stopped or reach.up.get("kafka", False):
            return None
        outage = reach.outages.get("kafka")
        # If Kafka has not been asked yet, an outage begins now at the earliest.
        since = time.monotonic() if outage is None else outage.since
        return spools_at(since, spool.durable_after_s, log_goes_on=self._log_goes_on)

    async def _spool(self) -> None:
        """Run one session without Kafka. If the log cannot be written, this is reported once for each outage."""
        session = SpoolingSession(
            reread(self.config),
            self._telemetry,
            self._observe,
            delivered=self._delivered,
            kafka_is_away=lambda: "kafka" in self._telemetry.reach.outages,
            converts=self._sessions.converts,
            lapsed=self._lapsed,
        )
        try:
            await session.run(self._stop)
        except LogStoppedError as stopped:
            self._spool_stopped = True
            self._observe(
                DurableSpoolStopped(
                    directory=str(self.config.spool.durable_directory),
                    reason=stopped.reason,
                    hint=stopped_hint(self.config),
                )
            )
        finally:
            await session.close()
            self._lapsed = session.lapsed
            self._has_spooled = self._has_spooled or session.flushed > 0
            self._flushed = max(self._flushed, session.flushed)

    async def _leave(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End a session. A slot that it leaves is reported when the process ends."""
        assert self._startup is not None
        kept = await self._startup.leave(error)
        if kept or isinstance(error, PositionError):
            # An earlier session's reason does not apply to a slot that is lost.
            self._kept = kept

    def kept_slot(self) -> str:
        """Return the final message about a slot that the process created and that stays; empty if there is none.

        An event reports it, too.
        """
        if not self._kept:
            return ""
        slot = self.config.postgres.slot
        hint = KEPT.format(slot=slot)
        self._observe(SlotKept(slot=slot, reason=self._kept, hint=hint))
        return hint

    def _note_lapse(self, startup: Startup) -> None:
        self._lapsed = startup.lapsed
