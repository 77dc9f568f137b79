"""`cdcd record`: records the stream of a temporary slot. Kafka is not used, and no daemon is needed.

The engine runs as in the daemon, so the recording contains the calls of an engine. Shipped batches count as
delivered at once, and are dropped.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from cdcd.adapters.postgres.answers import Answer
from cdcd.adapters.postgres.slot import SlotWait
from cdcd.adapters.recording.tap import Tap
from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter
from cdcd.config.loading import Config
from cdcd.core.engine.actions import Action, Ask, Describe, End, EnsureTopics, Lost, Ship, Status, Wait
from cdcd.core.engine.building import build_engine
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.errors import ConfigError, LimitError, TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.daemon.settings import encoder_settings, engine_settings
from cdcd.scratch import scratch_folder
from cdcd.stream.settings import StreamSettings
from cdcd.stream.source import StreamSource, open_source

READ_BYTES: Final = 262_144

Say = Callable[[str], None]


def record(config: Config, folder: Path, seconds: float | None, *, notice: Say) -> None:
    """Record commits from now on, until SIGINT or SIGTERM, or for `seconds`.

    Raises:
        LimitError: the folder cannot be written, or the disk is full.
        SourceError, TransientError: PostgreSQL refuses, or the connection is lost.
        ConfigError: the configuration protects columns, whose values a recording would contain in clear text, or
            leaves tables out.
    """
    if config.columns.patterns:
        raise ConfigError(
            "A recording holds all values in clear, also those that `columns` protects.",
            hint="Record with a configuration without `columns`, into a folder that only its readers may open, and "
            "redact the recording (cdcd replay --redact) before you hand it on.",
        )
    if not config.tables.selection.is_all:
        raise ConfigError(
            "A recording holds the changes of all published tables, also of those that tables.include and "
            "tables.exclude leave out.",
            hint="Record with a configuration without `tables`.",
        )
    asyncio.run(_record(config, folder, seconds, notice))


async def _record(config: Config, folder: Path, seconds: float | None, notice: Say) -> None:
    failures: list[str] = []
    limits = RecordingLimits(config.record.bytes_max, config.record.age_s_max, config.record.segment_bytes)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        try:
            writer = RecordingWriter(folder, limits)
        except BlockingIOError:
            raise _unwritten(folder, "another process records into it") from None
        except OSError as error:
            raise _unwritten(folder, error.strerror or "unknown error") from None
        stack.callback(writer.close)
        source = await open_source(_settings(config), _tell_wait(notice), _tell_warning(notice))
        stack.push_async_callback(source.close)
        start = _start(config, source)
        spool = Spool(stack.enter_context(scratch_folder("cdcd-record-")), start.spool_bytes)
        now = time.monotonic()
        engine = build_engine(start, spool, Ledger(source.start_lsn), lambda _: None, now)
        stack.callback(engine.assembler.close)
        tap = Tap(
            engine,
            start,
            source.start_lsn,
            writer,
            later=loop.call_later,
            wrote=lambda _: None,
            failed=failures.append,
        )
        stack.callback(tap.close)
        tap.begin(now, time.time_ns() // 1000)
        tap.stream_begun(time.monotonic())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, tap.stop)
        if seconds is not None:
            loop.call_later(seconds, tap.stop)
        notice(f"Records what is committed from {Lsn(source.start_lsn)} on into {folder}. Ctrl-C ends it.")
        await _run(_Recorder(tap, source), failures)
    if failures:
        raise _unwritten(folder, failures[0])


def _unwritten(folder: Path, reason: str) -> LimitError:
    return LimitError(
        f"The recording {folder} cannot be written: {reason}.",
        hint="Free disk space, or give another folder (--directory). cdcd can replay the part from before.",
    )


def _tell_wait(notice: Say) -> Callable[[SlotWait], None]:
    def on_wait(wait: SlotWait) -> None:
        holder = f"prepared transaction {wait.gid}" if wait.gid else f"server process {wait.pid}"
        notice(f"The temporary slot waits for an open transaction to end ({holder}).")

    return on_wait


def _tell_warning(notice: Say) -> Callable[[Answer], None]:
    return lambda answer: notice(f"PostgreSQL warns: {answer.text} {answer.hint}")


def _settings(config: Config) -> StreamSettings:
    postgres = config.postgres
    dsn, password_command = postgres.access()
    return StreamSettings(
        dsn=dsn,
        password_command=password_command,
        publication=postgres.publication,
        messages=config.hears_messages,
        streaming="off" if config.hears_messages else postgres.streaming,
        connect_timeout_s=postgres.connect_timeout_s,
        application_name=f"{config.name} record",
        money_digits=config.money.digits,
    )


def _start(config: Config, source: StreamSource) -> SessionStart:
    settings = engine_settings(config, source.wal_sender_timeout_s)
    settings = replace(settings, snapshot=replace(settings.snapshot, mode="never"))
    begin = source.start_lsn
    return SessionStart(
        settings=settings,
        checkpoint=Checkpoint("0", 0, "record", Position(end_lsn=begin), begin),
        # A recording contains frames. The records that the engine makes are dropped.
        encoding=replace(
            encoder_settings(config, source.database, money_digits=source.money_digits),
            key_format="json",
            value_format="json",
        ),
        published={},
        abort_info=source.abort_info,
        spool_bytes=config.spool.memory_bytes_max,
        outbox=config.outbox.settings,
        filters=config.filters.settings,
        routes=config.routes.settings,
    )


class _Recorder:
    """Carries out the engine's actions without Kafka."""

    def __init__(self, tap: Tap, source: StreamSource) -> None:
        self.tap = tap
        self._source = source

    async def carry_out(self, action: Action) -> None:
        """Carry out the action, and report the result to the engine."""
        tap, now = self.tap, time.monotonic()
        if isinstance(action, Ship):
            tap.delivered(action.batch, now)
        elif isinstance(action, Status):
            await self._source.replication.send(action.data)
        elif isinstance(action, Describe):
            description, types, seen = await self._source.look_up(action.relation)
            tap.described(action.relation, description, types, time.monotonic(), seen=seen)
        elif isinstance(action, EnsureTopics):
            tap.topics_ready(action.topics, now)
        elif isinstance(action, Ask):
            # Rows of tables are not recorded, so questions about tables are not answered.
            tap.answered(action.ticket, Lost(TransientError("Tables are not read.")), now)
        elif isinstance(action, Wait):
            await self._receive(action.until)
        else:
            await asyncio.sleep(0)

    async def _receive(self, until: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(
                0.2 if until is None else min(0.2, max(0.0, until - time.monotonic()))
            ):
                frames = await self._source.replication.receive(READ_BYTES)
                self.tap.frames_received(frames, time.monotonic())


async def _run(recorder: _Recorder, failures: list[str]) -> None:
    while not failures:
        action = recorder.tap.next_action(time.monotonic(), time.time_ns() // 1000)
        if isinstance(action, End):
            if action.error is not None:
                raise action.error
            return
        await recorder.carry_out(action)
