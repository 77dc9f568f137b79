"""That each action is carried out and reported. The engine and the two servers are stood in for."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.engine.actions import (
    Action,
    Ask,
    BeginStream,
    Describe,
    End,
    EnsureSchemas,
    EnsureTopics,
    ListPublished,
    Published,
    RunHeartbeatQuery,
    Ship,
    Status,
    Turn,
    Wait,
)
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.fates import REQUEST, Fates
from cdcd.core.errors import CdcdError, FatalError, TransientError
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.position import Position
from cdcd.daemon.pipeline import Pipeline
from cdcd.daemon.session_calls import CatalogCalls, OpenSession, TopicCalls
from cdcd.daemon.tables import NewTables
from cdcd.telemetry.state import AsideStatus, Telemetry
from tests.unit.core.engine.tables import relation


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test in an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def body() -> None:
            await test(*arguments, **named)

        asyncio.run(body())

    return run


START = Position(50, 60)
CHECKPOINT = Checkpoint("1", 1, "", START, 60)
RELATION = relation(1, "t")


@dataclass
class Engine:
    """Gives the actions that the test puts in, and notes what is reported. Without one, it waits."""

    actions: list[Action] = field(default_factory=list)
    reported: list[tuple[Any, ...]] = field(default_factory=list)
    wants_frames: bool = False
    is_reading: bool = False
    has_large: bool = False
    status_interval_s: float = 0.01
    ends_when: Callable[[], bool] = lambda: False
    caught_up: bool | None = None
    cuts: int = 0
    requests_refused: int = 0
    contexts_refused: int = 0
    fates: Fates = field(default_factory=lambda: Fates((), {}, observe=lambda fact: None))
    server_wal_end: int = 0
    delivered_rows: int = 0
    delivered_transactions: int = 0

    def __post_init__(self) -> None:
        self.ledger = SimpleNamespace(received=1, sent=2, acked=3, flushed=4)
        self.assembler = SimpleNamespace(
            counts={}, streamed_open=0, prepared_open=0, oldest_prepared=lambda: None
        )
        self.encoder = self.rows = SimpleNamespace(counts={}, unwritable={})
        self.incremental = SimpleNamespace(progress=Progress())
        self.delivered_progress = Progress()
        self.queue = SimpleNamespace(size=0, waiting=0)

    def next_action(self, now: float, unix_us: int) -> Action:
        if self.actions:
            return self.actions.pop(0)
        return End() if self.ends_when() else Wait(None)

    def __getattr__(self, verb: str) -> Callable[..., None]:
        def report(*arguments: Any, **named: Any) -> None:
            self.reported.append(
                (verb, *arguments[:-1], *(value for key, value in named.items() if key != "now"))
            )
            if verb == "frames_received":
                self.wants_frames = False

        return report

    def said(self, verb: str) -> list[tuple[Any, ...]]:
        return [each for each in self.reported if each[0] == verb]


class LookUp:
    """A catalog that knows every relation."""

    def __init__(self, asked: Callable[..., Awaitable[None]]) -> None:
        self._asked = asked

    def received(self, frames: Sequence[bytes]) -> None:
        pass

    async def __call__(self, relation: Any, *, tentative: bool = False) -> Any:
        await self._asked(relation)
        return "description", {}, None


class Stream:
    """The replication connection: what it receives is put in by the test."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.frames: asyncio.Queue[list[bytes] | CdcdError] = asyncio.Queue()
        self.finished = False

    async def receive(self, _most: int) -> list[bytes]:
        found = await self.frames.get()
        if isinstance(found, CdcdError):
            raise found
        return found

    async def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def finish(self, *, timeout_s: float) -> None:
        self.finished = True


class Session:
    """A pipeline with stand-ins. A part of it that a test names raises what the test gives."""

    def __init__(self, engine: Engine, **fails: CdcdError) -> None:
        self.engine = engine
        self.stream = Stream()
        self.fails = fails
        self.done: list[Any] = []
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()
        self.lock = SimpleNamespace(wait_lost=self._wait_lost, lapsed=False)
        self.thread = ThreadPoolExecutor(1)
        self.pipeline = Pipeline(
            engine,  # type: ignore[arg-type]
            OpenSession(
                stream=self.stream,  # type: ignore[arg-type]
                lock=self.lock,  # type: ignore[arg-type]
                sink=SimpleNamespace(deliver=self._deliver),  # type: ignore[arg-type]
                snapshots=SimpleNamespace(answer=self._answer, close_export=lambda: None),  # type: ignore[arg-type]
                spool=SimpleNamespace(disk_bytes=0, memory_bytes=0),  # type: ignore[arg-type]
            ),
            CatalogCalls(
                begin=self._did("begin"),
                look_up=LookUp(self._did("look up")),
                survey=self._did("survey"),
                heartbeat=SimpleNamespace(run=self._did("query")),  # type: ignore[arg-type]
                large=SimpleNamespace(confirmed=lambda lsn: None, received=lambda lsn: None),  # type: ignore[arg-type]
            ),
            TopicCalls(
                kafka=SimpleNamespace(  # type: ignore[arg-type]
                    calls=SimpleNamespace(in_thread=self._in_thread),
                    topics=SimpleNamespace(await_topics=self._did("topics"), has_topics=lambda _: True),
                ),
                new_tables=NewTables(self._published, str, ()),
                registrar=SimpleNamespace(ensure=self._did("schemas")),  # type: ignore[arg-type]
            ),
            Telemetry(),
            observe=lambda fact: None,
        )

    async def _published(self) -> dict[int, str]:
        return {}

    def _in_thread(self, call: Callable[[], None]) -> Awaitable[None]:
        return asyncio.get_running_loop().run_in_executor(self.thread, call)

    def _did(self, what: str) -> Callable[..., Awaitable[Any]]:
        async def do(*arguments: Any, **options: Any) -> dict[str, CdcdError]:
            if what in self.fails:
                raise self.fails[what]
            self.done.append((what, *arguments))
            return {}

        return do

    async def _wait_lost(self) -> Any:
        return await self.lost

    def _deliver(self, batch: Batch, checkpoint: Checkpoint) -> None:
        if "sink" in self.fails:
            raise self.fails["sink"]
        self.done.append(("sink", batch, checkpoint))

    async def _answer(self, question: Any) -> Any:
        await self._did("answer")(question)
        return Published({}, 0, {})

    async def run(self) -> None:
        try:
            async with asyncio.timeout(60):
                await self.pipeline.run(self.stop)
        finally:
            self.thread.shutdown()


BATCH = Batch(START, START)
USE = SchemaUse("p.public.t-value", "{}")

ACTIONS = [
    pytest.param(Ship(BATCH, CHECKPOINT), ("sink", BATCH, CHECKPOINT), ("delivered", BATCH), id="Ship"),
    pytest.param(
        Describe(RELATION, False),
        ("look up", RELATION),
        ("described", RELATION, "description", {}, None),
        id="Describe",
    ),
    pytest.param(
        EnsureTopics(("a", "b")), ("topics", ("a", "b")), ("topics_ready", ("a", "b")), id="EnsureTopics"
    ),
    pytest.param(EnsureSchemas((USE,)), ("schemas", (USE,)), ("schemas_ready", (USE,)), id="EnsureSchemas"),
    pytest.param(RunHeartbeatQuery(), ("query",), ("heartbeat_query_ended",), id="RunHeartbeatQuery"),
    pytest.param(BeginStream(), ("begin",), ("stream_begun",), id="BeginStream"),
    pytest.param(
        Ask(7, ListPublished(frozenset())),
        ("answer", ListPublished(frozenset())),
        ("answered", 7, Published({}, 0, {})),
        id="Ask",
    ),
]


def ends_after(engine: Engine, verb: str) -> None:
    engine.ends_when = lambda: bool(engine.said(verb))


@pytest.mark.parametrize(("action", "done", "reported"), ACTIONS)
@in_a_loop
async def test_each_action_is_carried_out_and_reported(action: Action, done: Any, reported: Any):
    engine = Engine([action])
    ends_after(engine, reported[0])
    session = Session(engine)
    await session.run()
    assert done in session.done
    assert reported in engine.reported
    # THEN the end in good order is everybody's
    assert session.stop.is_set()
    assert session.stream.finished


@in_a_loop
async def test_heartbeats_and_watermarks_that_kafka_has_are_counted():
    engine = Engine(
        [
            Ship(Batch(START, START, size=40, heartbeat_bytes=40, marks=3), CHECKPOINT),
            Ship(BATCH, CHECKPOINT),
        ]
    )
    engine.ends_when = lambda: len(engine.said("delivered")) == 2
    session = Session(engine)
    await session.run()
    telemetry = session.pipeline._telemetry
    assert telemetry.watermarks == 3
    assert (telemetry.heartbeats, telemetry.kafka_bytes, telemetry.totals().bytes) == (1, 40, 0)


class OneByOne(Engine):
    """Gives the next action when the batch of the one before is delivered, as the queue does."""

    given = 0

    def next_action(self, now: float, unix_us: int) -> Action:
        if self.actions and len(self.said("delivered")) < self.given:
            return Wait(None)
        self.given += 1
        return Engine.next_action(self, now, unix_us)


@in_a_loop
async def test_the_topics_of_a_kafka_transaction_are_written_until_its_last_part_is_delivered():
    parts = [Batch(START, START, topics={name}, closes=name == "c") for name in "abc"]
    engine = OneByOne([*[Ship(part, CHECKPOINT) for part in parts], Ship(BATCH, CHECKPOINT)])
    engine.ends_when = lambda: len(engine.said("delivered")) == len(parts) + 1
    session = Session(engine)
    written: list[set[str]] = []

    def deliver(batch: Batch, checkpoint: Checkpoint) -> None:
        written.append(set[str]().union(*session.pipeline._telemetry.writing))

    session.pipeline._sink.deliver = deliver  # type: ignore[method-assign]
    await session.run()
    assert written == [{"a"}, {"a", "b"}, {"a", "b", "c"}, set()]
    assert session.pipeline._telemetry.writing == ()


@in_a_loop
async def test_nothing_is_written_any_more_when_a_part_fails():
    engine = Engine([Ship(Batch(START, START, topics={"a"}, closes=False), CHECKPOINT)])
    session = Session(engine, sink=TransientError("the sink failed"))
    with pytest.raises(TransientError):
        await session.run()
    assert session.pipeline._telemetry.writing == ()


@in_a_loop
async def test_a_status_is_sent_before_the_next_action_is_asked_for():
    session = Session(Engine([Status(b"one"), Turn(), Status(b"two"), End()]))
    await session.run()
    assert session.stream.sent == [b"one", b"two"]


class Converting(Engine):
    """Converts a large value in its last action, until the test lets it end."""

    def __init__(self, *actions: Action) -> None:
        Engine.__init__(self, list(actions))
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.converted = False

    def has_converted(self) -> bool:
        return self.converted

    def next_action(self, now: float, unix_us: int) -> Action:
        action = Engine.next_action(self, now, unix_us)
        self.has_large = len(self.actions) == 1 and not self.converted
        if isinstance(action, Turn) and not self.actions:
            self.begun.set()
            assert self.may_end.wait(10)
            self.converted = True
            self.has_large = False
        return action


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not look():  # noqa: ASYNC110  what is awaited is no event
            await asyncio.sleep(0.001)


@in_a_loop
async def test_the_last_status_is_sent_again_while_a_large_value_is_converted():
    engine = Converting(Status(b"one"), Status(b"two"), Turn())
    engine.has_large = True
    session = Session(engine)
    running = asyncio.create_task(session.run())
    await until(lambda: len(session.stream.sent) >= 6)
    assert engine.begun.is_set()
    assert not engine.has_converted()
    # WHEN it is asked to stop, THEN the engine hears of this after the conversion
    session.stop.set()
    await until(lambda: len(session.stream.sent) >= 9)
    assert not engine.said("stop")
    engine.ends_when = lambda: bool(engine.said("stop"))
    engine.may_end.set()
    await running
    assert engine.has_converted()
    assert set(session.stream.sent[2:]) == {b"two"}


@in_a_loop
async def test_every_report_waits_while_a_large_value_is_converted():
    engine = Converting(Ask(1, ListPublished(frozenset())), Describe(RELATION, False), Turn())
    engine.wants_frames = True
    session = Session(engine)
    session.stream.frames.put_nowait([b"w" + bytes(30)])
    running = asyncio.create_task(session.run())
    await until(engine.begun.is_set)
    await asyncio.sleep(0.05)
    assert engine.reported == [] or {each[0] for each in engine.reported} <= {"tick", "frames_received"}
    before = len(engine.reported)
    await asyncio.sleep(0.05)
    assert len(engine.reported) == before
    engine.ends_when = lambda: bool(engine.said("answered") and engine.said("described"))
    engine.may_end.set()
    await running


@in_a_loop
async def test_a_session_that_fails_waits_until_the_thread_has_converted_the_value():
    engine = Converting(Turn(), Turn())
    engine.wants_frames = True
    session = Session(engine)
    running = asyncio.create_task(session.run())
    await until(engine.begun.is_set)
    session.stream.frames.put_nowait(TransientError("the connection is lost"))
    await asyncio.sleep(0.05)
    assert not running.done()
    engine.may_end.set()
    with pytest.raises(TransientError, match="the connection is lost"):
        await running
    assert engine.has_converted()


@in_a_loop
async def test_an_error_of_a_conversion_in_the_thread_ends_the_session():
    class Failing(Engine):
        def next_action(self, now: float, unix_us: int) -> Action:
            raise FatalError("a value is malformed")

    engine = Failing(has_large=True)
    with pytest.raises(FatalError, match="a value is malformed"):
        await Session(engine).run()


@in_a_loop
async def test_an_action_that_takes_time_does_not_stop_the_others():
    # GIVEN a delivery that waits for what a later action brings about
    engine = Engine([Ship(BATCH, CHECKPOINT), Ask(1, ListPublished(frozenset()))])
    ends_after(engine, "delivered")
    session = Session(engine)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def deliver(batch: Batch, checkpoint: Checkpoint) -> None:
        asyncio.run_coroutine_threadsafe(asked.wait(), loop).result(timeout=10)

    async def answer(question: Any) -> Any:
        asked.set()
        return Published({}, 0, {})

    session.pipeline._sink.deliver = deliver  # type: ignore[method-assign]
    session.pipeline._snapshots.answer = answer  # type: ignore[method-assign]
    await session.run()
    assert [each[0] for each in engine.reported if each[0] != "tick"] == ["answered", "delivered"]


@in_a_loop
async def test_frames_are_read_while_they_are_wanted_and_not_otherwise():
    engine = Engine(wants_frames=True)
    ends_after(engine, "frames_received")
    session = Session(engine)
    session.stream.frames.put_nowait([b"one"])
    session.stream.frames.put_nowait([b"two"])
    await session.run()
    assert engine.said("frames_received") == [("frames_received", [b"one"])]
    assert session.stream.frames.qsize() == 1


@in_a_loop
async def test_frames_are_read_again_when_the_engine_comes_to_want_them():
    engine = Engine([Ask(1, ListPublished(frozenset()))])
    ends_after(engine, "frames_received")
    session = Session(engine)
    session.stream.frames.put_nowait([b"one"])

    async def answer(question: Any) -> Any:
        engine.wants_frames = True
        return Published({}, 0, {})

    session.pipeline._snapshots.answer = answer  # type: ignore[method-assign]
    await session.run()
    assert engine.said("frames_received") == [("frames_received", [b"one"])]


@pytest.mark.parametrize(
    ("part", "action"),
    [
        ("sink", Ship(BATCH, CHECKPOINT)),
        ("look up", Describe(RELATION, False)),
        ("topics", EnsureTopics(("a",))),
        ("schemas", EnsureSchemas((USE,))),
        ("begin", BeginStream()),
        ("answer", Ask(1, ListPublished(frozenset()))),
        ("survey", Turn()),
    ],
)
@in_a_loop
async def test_an_error_in_any_task_ends_the_session_with_that_error(part: str, action: Action):
    error = TransientError(f"{part} failed")
    session = Session(Engine([action]), **{part: error})
    with pytest.raises(TransientError) as raised:
        await session.run()
    assert raised.value is error
    assert not session.stop.is_set()


@in_a_loop
async def test_a_lost_connection_ends_the_session_with_its_error():
    session = Session(Engine(wants_frames=True))
    session.stream.frames.put_nowait(TransientError("the server is gone"))
    with pytest.raises(TransientError, match="the server is gone"):
        await session.run()


@in_a_loop
async def test_the_engines_own_error_ends_the_session():
    error = FatalError("it cannot go on")
    session = Session(Engine([End(error)]))
    with pytest.raises(FatalError) as raised:
        await session.run()
    assert raised.value is error
    assert not session.stop.is_set()


@in_a_loop
async def test_a_stop_is_reported_and_the_engine_says_when_it_is_over():
    engine = Engine()
    ends_after(engine, "stop")
    session = Session(engine)
    session.stop.set()
    await session.run()
    assert len(engine.said("stop")) == 1


@pytest.mark.parametrize(
    ("admin", "lapsed", "shutting_down"), [(True, False, True), (True, True, False), (False, False, False)]
)
@in_a_loop
async def test_a_lost_lock_is_reported_with_what_it_means(admin: bool, lapsed: bool, shutting_down: bool):
    engine = Engine()
    ends_after(engine, "lock_lost")
    session = Session(engine)
    session.lock.lapsed = lapsed
    session.lost.set_result(SimpleNamespace(message="gone", sqlstate="57P01", admin_shutdown=admin))
    await session.run()
    # The stand-in leaves out the last positional argument, which elsewhere is the time.
    (said,) = engine.said("lock_lost")
    assert said[-1] is shutting_down
    assert "advisory lock is lost: gone" in said[1].message


@pytest.mark.parametrize(("sqlstate", "unreachable"), [("", True), ("57P01", False)])
@in_a_loop
async def test_a_lock_that_is_lost_without_a_word_of_the_server_is_an_outage(
    sqlstate: str, unreachable: bool
):
    engine = Engine()
    ends_after(engine, "lock_lost")
    session = Session(engine)
    session.lost.set_result(SimpleNamespace(message="gone", sqlstate=sqlstate, admin_shutdown=False))
    await session.run()
    assert ("postgres" in session.pipeline._telemetry.reach.outages) is unreachable


@in_a_loop
async def test_a_delivery_counts_its_bytes_and_the_delay_of_each_of_its_commits():
    now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
    commits = [now_us - 20_000_000, now_us - 3_000_000]
    batch = Batch(START, START, size=77, commit_time=commits[-1], commit_times=commits)
    engine = Engine([Ship(batch, CHECKPOINT)])
    ends_after(engine, "delivered")
    session = Session(engine)
    await session.run()
    telemetry = session.pipeline._telemetry
    assert telemetry.kafka_bytes == 77
    counts = dict(zip(telemetry.delays.bounds, telemetry.delays.counts, strict=False))
    assert (counts[5.0], counts[30.0]) == (1, 1)
    assert 23 <= telemetry.delays.sum < 60


@in_a_loop
async def test_a_stream_that_never_began_is_not_finished():
    session = Session(Engine([End()], is_reading=True))
    await session.run()
    assert not session.stream.finished


@in_a_loop
async def test_the_telemetry_has_the_tables_that_are_set_aside():
    engine = Engine([Ship(BATCH, CHECKPOINT)])
    ends_after(engine, "delivered")
    aside = (AsideTable(7, 0x400, REQUEST), AsideTable(8, 0x500, "topic"))
    engine.fates = Fates(aside, {7: "public.t"}, observe=lambda fact: None)
    session = Session(engine)
    await session.run()
    telemetry = session.pipeline._telemetry
    assert telemetry.aside == (
        AsideStatus("public.t", "request", 0x400),
        AsideStatus("oid 8", "topic", 0x500),
    )
    engine.fates = Fates((), {}, observe=lambda fact: None)
    session.pipeline._count()
    assert not telemetry.aside


@in_a_loop
async def test_the_telemetry_has_the_engines_positions():
    engine = Engine([Ship(BATCH, CHECKPOINT)], server_wal_end=9, caught_up=True)
    ends_after(engine, "delivered")
    session = Session(engine)
    await session.run()
    telemetry = session.pipeline._telemetry
    assert (telemetry.received_lsn, telemetry.sent_lsn, telemetry.acked_lsn, telemetry.flushed_lsn) == (
        1,
        2,
        3,
        4,
    )
    assert (telemetry.server_wal_end, telemetry.caught_up) == (9, True)
