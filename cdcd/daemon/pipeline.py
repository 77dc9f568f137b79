"""Carries out the engine's actions: one session of the stream, and all tasks beside it.

```
 read ─frames─▶ Engine ─┬─ Ship ─▶ the Kafka thread ─▶ delivered
   ▲  wants_frames ─────┤  Describe, EnsureTopics, Ask ─▶ described, topics_ready, answered
   │                    │  EnsureSchemas ─▶ schemas_ready, RunHeartbeatQuery ─▶ heartbeat_query_ended
   │                    └─ Status ─▶ PostgreSQL
 lock, survey, stop ─▶ lock_lost, tick, stop
```

This module decides nothing. A few lines carry out each action, in a separate task if it takes time, and report the
result by a method of the engine. A session ends by an exception, or returns when it was stopped. After a
`TransientError` the supervisor starts a new session, which resumes from the checkpoint. After a `FatalError` the
process ends.

All tasks run in one event loop. The blocking calls of the sink run in the Kafka thread. While the engine may convert a
large value (`Engine.has_large`), `next_action` runs in a thread, so that status updates are sent meanwhile. Every other
call of the engine waits for the thread (`_engine_free`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.actions import (
    Action,
    Ask,
    BeginStream,
    Describe,
    End,
    EnsureSchemas,
    EnsureTopics,
    RunHeartbeatQuery,
    Ship,
    Status,
    Turn,
    Wait,
)
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.spooling import may_begin
from cdcd.core.errors import SinkError, TopicRefusedError, TransientError, cause
from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import SpoolSpilled
from cdcd.core.protocol import peek
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.daemon import process
from cdcd.daemon.durable_log import LoggedStream
from cdcd.daemon.session_calls import CatalogCalls, OpenSession, TopicCalls
from cdcd.telemetry.state import AsideStatus, Telemetry

if TYPE_CHECKING:
    from cdcd.adapters.recording.tap import Tap

READ_BYTES: Final = 262_144
"""Bytes of frames that are received from libpq at a time. Encoding them takes a few milliseconds; then other tasks
run."""

SURVEY_S: Final = 15.0
"""Seconds between two checks of the slot and the publication."""

COUNT_S: Final = 1.0
"""Seconds between two updates of the running totals."""

K = TypeVar("K")


class Pipeline:
    """One session of the stream. Call `run` once.

    Args:
        tap: records each call of the engine's methods, and passes it on; None: nothing is recorded.
    """

    def __init__(
        self,
        engine: Engine,
        opened: OpenSession,
        catalog: CatalogCalls,
        topics: TopicCalls,
        telemetry: Telemetry,
        observe: Observer,
        tap: "Tap | None" = None,
    ) -> None:
        self._engine = engine
        self._tap = tap
        self._verbs: Engine | Tap = engine if tap is None else tap
        self._engine_free = asyncio.Lock()
        """Held while the engine works in a thread, and for each call of the engine from another task than `_drive`."""
        self._status = b""
        """The last status update, which is sent again while the engine works in a thread."""
        self._written: tuple[frozenset[str], ...] = ()
        """Topics of the parts of an incomplete Kafka transaction."""
        self._stream = opened.stream
        self._lock = opened.lock
        self._sink = opened.sink
        self._kafka = topics.kafka
        self._snapshots = opened.snapshots
        self._spool = opened.spool
        self._begin = catalog.begin
        self._look_up = catalog.look_up
        self._survey = catalog.survey
        self._new_tables = topics.new_tables
        self._telemetry = telemetry
        self._observe = observe
        self._large = catalog.large
        self._registrar = topics.registrar
        self._heartbeat = catalog.heartbeat
        self._reported = asyncio.Event()
        """Set when a result was reported to the engine, which may have new actions then."""
        self._wanted = asyncio.Event()
        """Set when the engine may want frames."""
        self._refused_before = (telemetry.requests_refused, telemetry.contexts_refused)
        self._totals_before = (telemetry.events, telemetry.transactions, telemetry.transactions_cut)
        self._unwritable_before = telemetry.unwritable
        self._delivered_before = (telemetry.delivered_rows, telemetry.delivered_transactions)
        telemetry.reading = engine.is_reading

    async def run(self, stop: asyncio.Event) -> None:
        """Stream until `stop` is set or the engine has read everything, then finish in good order.

        Raises:
            TransientError: a new session can continue.
            FatalError: an operator must act.
        """
        try:
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(self._watch_lock(), name="lock"),
                    group.create_task(self._look_around(), name="survey"),
                    group.create_task(self._read(), name="read"),
                    group.create_task(self._await_stop(stop), name="stop"),
                ]
                await self._drive(group, beside)
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise cause(failures) from None
        self._count()
        stop.set()
        if not self._engine.is_reading:
            await self._stream.finish(timeout_s=1.0)

    @property
    def is_reading(self) -> bool:
        """See `Engine.is_reading`."""
        return self._engine.is_reading

    @property
    def is_logged(self) -> bool:
        """True if the frames come from the durable log."""
        return isinstance(self._stream, LoggedStream)

    @property
    def spool_behind(self) -> Checkpoint | None:
        """The checkpoint in Kafka if a durable log may begin after it; None while tables are being read."""
        engine = self._engine
        all_is_read = engine.incremental.progress.is_done and not engine.is_reading
        return engine.checkpoint if may_begin(engine.checkpoint, all_is_read=all_is_read) else None

    @property
    def has_shipped(self) -> bool:
        """See `Engine.has_shipped`."""
        return self._engine.has_shipped

    def warn_of_prepared(self, age_s: float) -> None:
        """See `Engine.warn_of_prepared`."""
        self._engine.warn_of_prepared(age_s)

    async def _drive(self, group: asyncio.TaskGroup, beside: list[asyncio.Task[None]]) -> None:
        """Carry out the engine's actions until the session ends.

        Tasks for actions that take time are added to `beside`.
        """
        verbs, engine = self._verbs, self._engine
        while True:
            if engine.has_large:
                action = await self._next_in_thread()
            else:
                action = verbs.next_action(time.monotonic(), time.time_ns() // 1000)
            kind = type(action)
            if kind is Turn:
                await asyncio.sleep(0)
            elif isinstance(action, Wait):
                self._update_telemetry()
                await self._pause(action.until)
            elif isinstance(action, Status):
                self._status = action.data
                await self._stream.send(action.data)
            elif isinstance(action, End):
                if action.error is not None:
                    raise action.error
                return
            else:
                beside[:] = [task for task in beside if not task.done()]
                beside.append(group.create_task(self._carry_out(action), name=kind.__name__))

    async def _next_in_thread(self) -> Action:
        """Ask for the next action in a thread, because the engine may convert a large value."""
        action: Action | None = None
        async with self._engine_free:
            now, unix_us = time.monotonic(), time.time_ns() // 1000
            try:
                action = await self._in_thread(lambda: self._engine.next_action(now, unix_us))
            finally:
                if self._tap is not None:
                    self._tap.asked(action, now, unix_us)
        return action

    async def _in_thread(self, call: Callable[[], Action]) -> Action:
        """Make the call in a thread, and send the last status update again at each interval until the call ends.

        A session that ends meanwhile waits for the thread, because the thread uses the session's spool.
        """
        working = asyncio.get_running_loop().run_in_executor(None, call)
        try:
            while not (await asyncio.wait({working}, timeout=self._engine.status_interval_s))[0]:
                if self._status:
                    await self._stream.send(self._status)
        finally:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({working})
            working.exception()
        return working.result()

    async def _pause(self, until: float | None) -> None:
        """Wait for a report to the engine, at most until this time (monotonic seconds; None: no limit)."""
        self._reported.clear()
        self._wanted.set()
        if until is None:
            await self._reported.wait()
            return
        timer = asyncio.get_running_loop().call_later(max(0.0, until - time.monotonic()), self._reported.set)
        try:
            await self._reported.wait()
        finally:
            timer.cancel()

    async def _carry_out(self, action: Action) -> None:
        await _CARRIED_OUT[type(action)](self, action)
        self._reported.set()

    async def _ship(self, action: Ship) -> None:
        batch = action.batch
        began, shipped_ns = time.monotonic(), time.time_ns()
        # A Kafka transaction stays open between its parts.
        self._telemetry.writing = (*self._written, batch.topics)
        parts, self._written = self._written, ()
        try:
            try:
                await self._kafka.calls.in_thread(lambda: self._sink.deliver(batch, action.checkpoint))
            except TopicRefusedError as error:
                if not await self._refuse(action, error, is_lost=bool(parts)):
                    return
            if not batch.closes:
                self._written = (frozenset[str]().union(*self._telemetry.writing),)
        finally:
            self._telemetry.writing = self._written
        now = time.monotonic()
        async with self._engine_free:
            self._verbs.delivered(batch, now)
            self._update_telemetry()
        make_spans = self._telemetry.delivered_traces
        if batch.traces and make_spans is not None:
            make_spans(batch.traces, shipped_ns, time.time_ns())
        self._telemetry.kafka_bytes += batch.size
        if batch.heartbeat_bytes:
            self._telemetry.heartbeats += 1
            self._telemetry.heartbeat_bytes += batch.heartbeat_bytes
        self._telemetry.watermarks += batch.marks
        if batch.closes:
            self._telemetry.observe_commit(now - began)
        if batch.commit_time is not None:
            self._telemetry.delays.observe_ages(
                batch.commit_times, time.time_ns() // 1000 - POSTGRES_EPOCH_US
            )
            self._telemetry.last_commit_time = (batch.commit_time + POSTGRES_EPOCH_US) / 1e6

    async def _refuse(self, action: Ship, error: TopicRefusedError, *, is_lost: bool) -> bool:
        """Kafka refused records of a batch. False: the batch goes out again without them. True: Kafka holds the batch.

        Args:
            is_lost: former parts of the batch's transaction are lost.
        """
        refused = await self._kafka.topics.refusals(error.topics)
        if len(set(map(whole_topic, error.topics))) == 1:
            refused = dict.fromkeys(error.topics, error)
        if not refused:
            raise SinkError(error.message, hint=error.hint)
        told = self._engine.ledger.flushed
        found = await self._kafka.calls.in_thread(lambda: self._sink.open(told))
        if found is not None and action.batch.closes and found.is_same(action.checkpoint):
            return True
        before = self._engine.checkpoint
        if found is None or not found.is_same(before):
            raise TransientError(
                "The checkpoint changed while records were refused.", hint="cdcd starts over."
            )
        async with self._engine_free:
            self._verbs.refused(action.batch, refused, time.monotonic(), is_lost=is_lost)
        return False

    async def _describe(self, action: Describe) -> None:
        description, types, seen = await self._look_up(action.relation, tentative=action.tentative)
        async with self._engine_free:
            self._verbs.described(action.relation, description, types, time.monotonic(), seen=seen)

    async def _ensure_topics(self, action: EnsureTopics) -> None:
        ahead = action.ahead
        if not ahead and not self._kafka.topics.has_topics(action.topics):
            ahead = tuple(await self._new_tables.topics())
        refused = await self._kafka.topics.await_topics(
            action.topics, keyless=action.keyless, ahead=ahead, again=action.again
        )
        ready = tuple([topic for topic in action.topics if topic not in refused])
        async with self._engine_free:
            if refused:
                self._verbs.topics_refused(refused, time.monotonic())
            self._verbs.topics_ready(ready, time.monotonic())

    async def _ensure_schemas(self, action: EnsureSchemas) -> None:
        assert self._registrar is not None, "only a format with a registry has schemas"
        refused = await self._registrar.ensure(action.schemas)
        # Sessions with schema ids are not recorded (`Config`), so the tap is skipped.
        ready = tuple([use for use in action.schemas if use not in refused])
        async with self._engine_free:
            if refused:
                self._engine.schemas_refused(refused, time.monotonic())
            self._engine.schemas_ready(ready, time.monotonic())

    async def _run_heartbeat_query(self, _action: RunHeartbeatQuery) -> None:
        assert self._heartbeat is not None, "only a configuration with a query has it run"
        await self._heartbeat.run()
        async with self._engine_free:
            self._verbs.heartbeat_query_ended(time.monotonic())

    async def _begin_stream(self, _action: BeginStream) -> None:
        self._snapshots.close_export()
        await self._begin()
        async with self._engine_free:
            self._verbs.stream_begun(time.monotonic())
        self._telemetry.reading = False

    async def _ask(self, action: Ask) -> None:
        answer = await self._snapshots.answer(action.question)
        async with self._engine_free:
            self._verbs.answered(action.ticket, answer, time.monotonic())

    # Events from outside.

    async def _read(self) -> None:
        while True:
            while not await self._wants_frames():
                self._wanted.clear()
                await self._wanted.wait()
            frames = await self._stream.receive(READ_BYTES)
            async with self._engine_free:
                self._look_up.received(frames)
                self._verbs.frames_received(frames, time.monotonic())
            self._large.received(peek.lsn_of(frames[-1]))
            self._reported.set()

    async def _wants_frames(self) -> bool:
        async with self._engine_free:
            return self._engine.wants_frames

    async def _await_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        async with self._engine_free:
            self._verbs.stop()
        self._reported.set()

    async def _watch_lock(self) -> None:
        lost = await self._lock.wait_lost()
        now = time.monotonic()
        failure = TransientError(
            f"The connection with the advisory lock is lost: {lost.message}", hint="Reconnecting."
        )
        if not lost.sqlstate:
            # The server sent no last message. If it did, it is alive, and the next connection attempt shows more.
            self._telemetry.reach.failed("postgres", failure, asked_at=now, patience_s=0.0, now=now)
        async with self._engine_free:
            self._verbs.lock_lost(
                failure,
                lost.sqlstate,
                shutting_down=lost.admin_shutdown and not self._lock.lapsed,
                now=now,
            )
        self._reported.set()

    async def _look_around(self) -> None:
        survey_at = 0.0
        while True:
            if time.monotonic() >= survey_at:
                await self._survey()
                process.collect()
                survey_at = time.monotonic() + SURVEY_S
            async with self._engine_free:
                self._engine.tick(time.monotonic(), time.time_ns() // 1000)
                self._count()
            await asyncio.sleep(COUNT_S)

    # Figures.

    def _count(self) -> None:
        """Set the totals of all sessions: the totals before this session, plus the counts of its encoders and
        assembler.
        """
        telemetry, engine = self._telemetry, self._engine
        events, transactions, cut = self._totals_before
        telemetry.events = _sum(_sum(events, engine.encoder.counts), engine.rows.counts)
        unwritable = _sum(self._unwritable_before, engine.encoder.unwritable)
        telemetry.unwritable = _sum(unwritable, engine.rows.unwritable)
        telemetry.transactions = _sum(transactions, engine.assembler.counts)
        telemetry.transactions_cut = cut + engine.cuts
        requests, contexts = self._refused_before
        telemetry.requests_refused = requests + engine.requests_refused
        telemetry.contexts_refused = contexts + engine.contexts_refused
        aside = engine.fates.aside
        if aside or telemetry.aside:
            telemetry.aside = tuple(
                [
                    AsideStatus(
                        each.name or f"oid {oid}",
                        each.fault,
                        each.since_lsn,
                        each.reason,
                        each.hint,
                        each.tries,
                    )
                    for oid, each in aside.items()
                ]
            )
        if self._spool.disk_bytes and not telemetry.spool_disk_bytes:
            self._observe(
                SpoolSpilled(memory_bytes=self._spool.memory_bytes, disk_bytes=self._spool.disk_bytes)
            )
        telemetry.spool_memory_bytes = self._spool.memory_bytes
        telemetry.spool_disk_bytes = self._spool.disk_bytes

    def _update_telemetry(self) -> None:
        telemetry, engine = self._telemetry, self._engine
        ledger, assembler = engine.ledger, engine.assembler
        rows, transactions = self._delivered_before
        telemetry.delivered_rows = rows + engine.delivered_rows
        telemetry.delivered_transactions = transactions + engine.delivered_transactions
        telemetry.received_lsn = ledger.received
        telemetry.sent_lsn = ledger.sent
        telemetry.acked_lsn = ledger.acked
        telemetry.flushed_lsn = ledger.flushed
        self._large.confirmed(ledger.flushed)
        telemetry.server_wal_end = max(telemetry.server_wal_end, ledger.received, engine.server_wal_end)
        if engine.caught_up is not None:
            telemetry.caught_up = engine.caught_up
        if telemetry.durable_from is not None:
            telemetry.durable_from = engine.checkpoint.position.end_lsn
        telemetry.snapshot = engine.delivered_progress
        telemetry.queue_bytes = engine.queue.size
        telemetry.queue_records = engine.queue.waiting
        telemetry.streamed_open = assembler.streamed_open
        telemetry.prepared_open = assembler.prepared_open
        oldest = assembler.oldest_prepared()
        telemetry.prepared_oldest_time = None if oldest is None else (oldest[1] + POSTGRES_EPOCH_US) / 1e6


def _sum(before: dict[K, int], now: dict[K, int]) -> dict[K, int]:
    return {key: before.get(key, 0) + now.get(key, 0) for key in {**before, **now}}


_CARRIED_OUT: Final[dict[type[Any], Callable[[Pipeline, Any], Awaitable[None]]]] = {
    Ship: Pipeline._ship,
    Describe: Pipeline._describe,
    EnsureTopics: Pipeline._ensure_topics,
    EnsureSchemas: Pipeline._ensure_schemas,
    RunHeartbeatQuery: Pipeline._run_heartbeat_query,
    BeginStream: Pipeline._begin_stream,
    Ask: Pipeline._ask,
}
"""Methods for the actions that take time."""
