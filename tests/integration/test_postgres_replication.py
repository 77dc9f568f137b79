"""The replication stream against real servers: every frame once, no blocking, typed ends."""

import asyncio
import random
import resource
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdcd.adapters.postgres.answers import Answer
from cdcd.adapters.postgres.connection import Dsn, parse_dsn
from cdcd.adapters.postgres.replication import ReplicationStream, StreamEndedError
from cdcd.adapters.postgres.slot import create_slot
from cdcd.core.errors import CdcdError, ConfigError, PositionError, SourceError, TransientError
from cdcd.core.protocol.frames import StatusUpdate, XLogData, read_frame, write_frame
from cdcd.core.protocol.messages import Begin, Commit, Insert
from cdcd.core.protocol.reader import read_message
from deploy.local import PostgresServer
from deploy.local.process import UNPRIVILEGED
from tests.integration.conftest import FIRST_AND_LAST, Database
from tests.integration.daemon import WAIT_S

OPTIONS = [("proto_version", "1"), ("publication_names", '"p"')]


def prepare(execute: "psycopg.Connection | PostgresServer | Database") -> None:
    execute.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    execute.execute("CREATE PUBLICATION p FOR TABLE t")


@asynccontextmanager
async def streaming(
    dsn: str | Dsn, slot: str, *, create: bool = True, **options: Any
) -> AsyncIterator[ReplicationStream]:
    parsed = parse_dsn(dsn) if isinstance(dsn, str) else dsn
    stream = await ReplicationStream.open(parsed, application_name="test", **options)
    try:
        if create:
            await create_slot(stream, slot)
        await stream.start(slot, 0, OPTIONS, publication="p")
        yield stream
    finally:
        stream.close()


def inserted(frames: list[bytes]) -> list[int]:
    """The ids of the rows among `frames`."""
    ids = []
    for frame in frames:
        if frame[:1] == b"w":
            message = read_message(frame, 25)
            if isinstance(message, Insert):
                (value, *_) = message.new
                assert isinstance(value, bytes)
                ids.append(int(value))
    return ids


async def until(stream: ReplicationStream, count: int, bytes_max: int = 1 << 20) -> list[int]:
    ids: list[int] = []
    while len(ids) < count:
        ids += inserted(await stream.receive(bytes_max))
    return ids


async def ending(stream: ReplicationStream, timeout_s: float = WAIT_S) -> CdcdError:
    """Receive until it fails."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                await stream.receive(1 << 20)
    except CdcdError as error:
        return error


def status(lsn: int) -> bytes:
    return write_frame(StatusUpdate(lsn, lsn, lsn, 0, False))


def test_a_server_tells_who_it_is_and_when_it_gives_us_up(database: Database):
    async def run() -> None:
        stream = await ReplicationStream.open(parse_dsn(database.dsn()), application_name="test")
        try:
            identity = await stream.identify()
            ((system,),) = database.execute("SELECT system_identifier::text FROM pg_control_system()")
            assert (identity.system_identifier, identity.timeline, identity.database) == (
                system,
                1,
                database.name,
            )
            assert identity.flushed > 0
            assert await stream.wal_sender_timeout_s() == 60
            await stream.query("SET wal_sender_timeout = '90s'", "setting")
            assert await stream.wal_sender_timeout_s() == 90
            await stream.query("SET wal_sender_timeout = 0", "setting")
            assert await stream.wal_sender_timeout_s() == 0
            assert stream.server_version // 10000 == database.version
        finally:
            stream.close()

    asyncio.run(run())


def test_a_transaction_is_streamed_from_8_mb_on_unless_somebody_set_how_much_is_decoded_in_memory(
    private_postgres,
):
    # GIVEN a server as it comes, which would keep 64 MB to itself until the commit
    server = private_postgres(settings={"logical_decoding_work_mem": None})
    prepare(server)

    async def session(dsn: str) -> ReplicationStream:
        stream = await ReplicationStream.open(parse_dsn(dsn), application_name="test")
        await stream.stream_early()
        return stream

    async def run() -> None:
        stream = await session(server.dsn())
        await create_slot(stream, "s")
        await stream.start(
            "s", 0, [("proto_version", "2"), ("publication_names", '"p"'), ("streaming", "on")]
        )
        # WHEN a transaction has written 10 MB, and is open
        with psycopg.connect(server.dsn()) as writer:
            writer.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) AS i")
            # THEN it is on its way
            async with asyncio.timeout(WAIT_S):
                while not any(frame[25:26] == b"S" for frame in await stream.receive(1 << 20)):
                    pass
        stream.close()
        # AND what a role or a DSN says is left as it is
        server.execute("ALTER ROLE postgres SET logical_decoding_work_mem = '32MB'")
        asked = server.dsn(options="-c logical_decoding_work_mem=4MB")
        for dsn, expected in ((server.dsn(), "32MB"), (asked, "4MB")):
            stream = await session(dsn)
            assert await stream.show("logical_decoding_work_mem") == expected
            stream.close()

    asyncio.run(run())


def test_frames_are_the_messages_of_the_protocol_in_order(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t VALUES (1, 'one')")
            messages: list[object] = []
            while not any(isinstance(message, Commit) for message in messages):
                for frame in await stream.receive(1 << 20):
                    assert type(frame) is bytes
                    if isinstance(read := read_frame(frame), XLogData):
                        messages.append(read_message(read.payload))
            assert [type(message).__name__ for message in messages] == [
                "Begin",
                "Relation",
                "Insert",
                "Commit",
            ]
            assert isinstance(messages[0], Begin)

    asyncio.run(run())


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_a_receive_that_is_cancelled_at_any_moment_loses_and_repeats_nothing(
    database: Database, unique: str, pause_s: float
):
    prepare(database)
    count = 20_000

    async def run() -> None:
        random.seed(7)
        got: list[int] = []
        async with streaming(database.dsn(), unique, pause_s=pause_s) as stream:
            with database.connect() as writer:
                for first in range(0, count, 2000):
                    writer.execute(
                        "INSERT INTO t SELECT i, repeat('x', i %% 300) FROM generate_series(%s::int, %s::int) i",
                        (first, first + 1999),
                    )
            while len(got) < count:
                receiving = asyncio.create_task(stream.receive(random.choice([1, 1000, 100_000])))
                for _ in range(random.choice([0, 1, 2, 5])):
                    await asyncio.sleep(0)
                if random.random() < 0.3:
                    receiving.cancel()
                with suppress(asyncio.CancelledError):
                    got += inserted(await receiving)
        assert got == list(range(count))

    asyncio.run(run())


@pytest.mark.postgres(only=18)
def test_the_event_loop_is_never_held_for_long_and_the_byte_limit_is_kept(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        held: list[float] = []
        worked: list[float] = []

        def given_up() -> int:
            """How often this thread has waited, so that it gave up the processor by itself (getrusage(2))."""
            return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

        async def watch() -> None:
            while True:
                before, done, waits = time.perf_counter(), time.thread_time(), given_up()
                await asyncio.sleep(0)
                took = time.perf_counter() - before
                worked.append(time.thread_time() - done)
                # A busy machine takes the processor away now and then, which is no wait of ours.
                held.append(took if given_up() > waits else 0.0)

        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 60000) i")
            watching = asyncio.create_task(watch())
            seen = 0
            while seen < 60_000:
                frames = await stream.receive(50_000)
                assert sum(map(len, frames)) < 50_000 + 1000
                seen += len(frames)
                await asyncio.sleep(0)
            watching.cancel()
        # The budget is 4 ms.
        assert max(worked) < 0.05
        assert sorted(held)[-3] < 0.1

    asyncio.run(run())


def make_certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout server.key -out server.crt"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    for name in ("server.key", "server.crt"):
        path = folder / name
        path.chmod(0o600)
        if UNPRIVILEGED.uid != path.stat().st_uid:
            subprocess.run(["chown", f"{UNPRIVILEGED.uid}:{UNPRIVILEGED.gid}", path], check=True)


def test_encrypted_streams_deliver_everything(private_postgres):
    server = private_postgres()
    make_certificate(server.data_dir)
    server.settings |= {"ssl": "on"}
    server.restart()
    prepare(server)

    async def run() -> None:
        dsn = f"{server.dsn()} sslmode=require"
        for pause_s in (0.0, 0.002):
            async with streaming(dsn, f"s_{int(pause_s * 1000)}", pause_s=pause_s) as stream:
                pid = stream.backend_pid
                assert server.execute(f"SELECT ssl FROM pg_stat_ssl WHERE pid = {pid}") == [(True,)]
                server.execute("TRUNCATE t")
                # Rows of every size around a TLS record's 16 KiB.
                server.execute(
                    "INSERT INTO t SELECT i, repeat(md5(i::text), (i * 37) % 1300) FROM generate_series(1, 3000) i"
                )
                assert await asyncio.wait_for(until(stream, 3000), WAIT_S) == list(range(1, 3001))
                await stream.send(status(1))
                assert await stream.finish(WAIT_S)

    asyncio.run(run())


@pytest.mark.postgres(only=18)
def test_a_large_row_comes_whole(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t VALUES (1, repeat('0123456789', 3000000))")
            while True:
                for frame in await stream.receive(1000):
                    if frame[25:26] == b"I":
                        assert len(frame) > 30_000_000
                        assert frame.endswith(b"0123456789" * 1000)
                        return

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_finished_stream_has_told_the_server_its_last_position(database: Database, unique: str):
    prepare(database)

    async def run() -> int:
        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t VALUES (1)")
            while True:
                for frame in await stream.receive(1 << 20):
                    if frame[25:26] == b"C":
                        commit = read_message(frame, 25)
                        assert isinstance(commit, Commit)
                        await stream.send(status(commit.end_lsn))
                        assert await stream.finish(WAIT_S)
                        with pytest.raises(TransientError):
                            await stream.receive(1)
                        return commit.end_lsn

    end_lsn = asyncio.run(run())
    ((confirmed,),) = database.execute(
        f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{unique}'"
    )
    assert confirmed == end_lsn


def test_a_terminated_or_killed_walsender_is_a_passing_failure(database: Database, unique: str):
    prepare(database)

    async def run() -> CdcdError:
        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t VALUES (1)")
            assert await until(stream, 1) == [1]
            database.execute(f"SELECT pg_terminate_backend({stream.backend_pid})")
            return await ending(stream)

    error = asyncio.run(run())
    assert type(error) is TransientError
    assert "57P01" in error.message


@pytest.mark.parametrize("version", FIRST_AND_LAST)
def test_a_fast_shutdown_ends_the_stream_when_everything_is_confirmed(version: int, private_postgres):
    server = private_postgres(version)
    prepare(server)

    async def run() -> CdcdError:
        async with streaming(server.dsn(), "s") as stream:
            server.execute("INSERT INTO t VALUES (1)")
            assert await until(stream, 1) == [1]
            server.ask_to_stop("fast")
            try:
                async with asyncio.timeout(WAIT_S):
                    while True:
                        for frame in await stream.receive(1 << 20):
                            if frame[:1] == b"k":
                                await stream.send(status(int.from_bytes(frame[1:9], "big")))
            except CdcdError as error:
                return error

    error = asyncio.run(run())
    assert type(error) is StreamEndedError
    server.wait_stopped()


@pytest.mark.parametrize("version", FIRST_AND_LAST)
@pytest.mark.parametrize("how", ["immediate", "kill"])
def test_a_crash_of_the_server_is_a_passing_failure(version: int, how: str, private_postgres):
    server = private_postgres(version)
    prepare(server)

    async def run() -> CdcdError:
        async with streaming(server.dsn(), "s") as stream:
            server.execute("INSERT INTO t SELECT generate_series(1, 1000)")
            if how == "kill":
                server.kill()
            else:
                server.ask_to_stop("immediate")
            return await ending(stream)

    assert isinstance(asyncio.run(run()), TransientError)


def test_a_publication_dropped_underneath_stops_the_stream_before_any_frame_without_its_rows(
    database: Database, unique: str
):
    prepare(database)

    async def run() -> tuple[list[int], CdcdError]:
        ids: list[int] = []
        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t VALUES (1)")
            ids += await until(stream, 1)
            database.execute("DROP PUBLICATION p")
            database.execute("INSERT INTO t VALUES (2)")
            database.execute("INSERT INTO t VALUES (3)")
            database.execute("CREATE PUBLICATION p FOR TABLE t")
            database.execute("INSERT INTO t VALUES (4)")
            try:
                async with asyncio.timeout(WAIT_S):
                    while True:
                        ids += inserted(await stream.receive(1 << 20))
            except CdcdError as error:
                return ids, error

    ids, error = asyncio.run(run())
    assert ids == [1]
    assert type(error) is SourceError
    assert "publication" in error.message
    assert "CREATE PUBLICATION" in error.hint


STANDBY = "ALTER SYSTEM SET synchronized_standby_slots = '{}'"


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize(
    ("slot", "said"), [("standby", "does not have active_pid"), ("nobody", "does not exist")]
)
def test_a_server_that_waits_for_a_standby_warns_and_sends_the_rest_afterwards(
    version: int, slot: str, said: str, private_postgres: Callable[..., PostgresServer]
):
    # GIVEN a stream of a slot for failover, and a standby that nobody started
    server = private_postgres(version)
    prepare(server)
    server.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    server.execute(STANDBY.format(slot))
    warnings: list[Answer] = []

    async def run() -> tuple[list[int], CdcdError]:
        async with asyncio.timeout(WAIT_S):
            stream = await ReplicationStream.open(
                parse_dsn(server.dsn()), application_name="test", warned=warnings.append
            )
            try:
                await create_slot(stream, "s", failover=True)
                await stream.start("s", 0, OPTIONS, publication="p")
                server.execute("SELECT pg_reload_conf()")
                # WHEN a row comes, which waits for the standby
                server.execute("INSERT INTO t VALUES (1)")
                waiting = asyncio.create_task(until(stream, 1))
                while not warnings:
                    assert not waiting.done()
                    await asyncio.sleep(0.02)
                # THEN it is sent when the standby is not waited for any more
                server.execute(STANDBY.format(""))
                server.execute("SELECT pg_reload_conf()")
                ids = await waiting
                # AND a server that shuts down while it waits is a passing failure
                server.execute(STANDBY.format(slot))
                server.execute("SELECT pg_reload_conf()")
                server.execute("INSERT INTO t VALUES (2)")
                server.ask_to_stop("fast")
                return ids, await ending(stream)
            finally:
                stream.close()

    ids, error = asyncio.run(run())
    assert ids == [1]
    assert said in warnings[0].text
    assert "synchronized_standby_slots" in warnings[0].hint
    assert len({warning.message for warning in warnings}) == len(warnings)
    assert isinstance(error, TransientError), error
    server.wait_stopped()


def test_a_slot_dropped_or_missing_is_a_gap(database: Database, unique: str):
    prepare(database)

    async def run() -> CdcdError:
        try:
            async with streaming(database.dsn(), unique, create=False):
                raise AssertionError("a missing slot was streamed from")
        except CdcdError as error:
            return error

    error = asyncio.run(run())
    assert type(error) is PositionError
    assert unique in error.message


def test_an_option_the_server_does_not_know_is_an_error_of_the_configuration(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        stream = await ReplicationStream.open(parse_dsn(database.dsn()), application_name="test")
        try:
            await create_slot(stream, unique)
            with pytest.raises(ConfigError):
                await stream.start(unique, 0, [("proto_version", "99"), ("publication_names", '"p"')])
        finally:
            stream.close()

    asyncio.run(run())


def test_a_slot_in_use_is_waited_for_and_then_names_its_holder(database: Database, unique: str):
    prepare(database)
    waited: list[str] = []

    async def run() -> None:
        async with streaming(database.dsn(), unique) as first:
            second = await ReplicationStream.open(parse_dsn(database.dsn()), application_name="test")
            try:
                with pytest.raises(SourceError, match=f"active for PID {first.backend_pid}"):
                    await second.start(unique, 0, OPTIONS, slot_wait_s=0.3, on_slot_active=waited.append)
                assert len(waited) == 1
                starting = asyncio.create_task(second.start(unique, 0, OPTIONS, slot_wait_s=WAIT_S))
                await asyncio.sleep(0.1)
                first.close()
                await asyncio.wait_for(starting, WAIT_S)
                database.execute("INSERT INTO t VALUES (1)")
                assert await until(second, 1) == [1]
            finally:
                second.close()

    asyncio.run(run())


class Wire:
    """A TCP proxy that can be cut without a word: nothing passes, nothing closes."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.cut = False
        self.sent_up = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        for source, sink, up in ((reader, up_writer, True), (up_reader, writer, False)):
            task = asyncio.create_task(self._pump(source, sink, up))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65536):
                    if not self.cut:
                        self.sent_up += len(data) if up else 0
                        sink.write(data)
                        await sink.drain()
        finally:
            sink.close()


@pytest.mark.postgres(only=18)
def test_a_silent_death_is_noticed_and_a_quiet_server_is_not_mistaken_for_one(
    database: Database, unique: str
):
    prepare(database)

    async def run() -> CdcdError:
        wire = Wire(database.server.port)
        async with wire.open() as port:
            dsn = parse_dsn(
                f"host=127.0.0.1 port={port} dbname={database.name} user=postgres sslmode=disable "
                # With a timeout of its own the server would ask as well, and hang up when nobody answers here.
                "options='-c wal_sender_timeout=0'"
            )
            async with streaming(dsn, unique, silence_s_max=2) as stream:
                await stream.send(status(0))
                receiving = asyncio.create_task(ending(stream))
                before = wire.sent_up
                # Longer than the limit: the idle server is asked, and answers.
                await asyncio.sleep(5)
                while wire.sent_up < before + 2 * 34:
                    assert not receiving.done()
                    await asyncio.sleep(0.05)
                assert not receiving.done()
                wire.cut = True
                return await asyncio.wait_for(receiving, WAIT_S)

    error = asyncio.run(run())
    assert type(error) is TransientError
    assert "silent" in error.message


@pytest.mark.postgres(only=[13, 18])
def test_time_in_which_nobody_receives_does_not_count_as_silence(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        dsn = database.dsn(options="-c wal_sender_timeout=0")
        async with streaming(dsn, unique, silence_s_max=1.5) as stream:
            await asyncio.sleep(2)
            receiving = asyncio.create_task(until(stream, 1))
            await asyncio.sleep(0.1)
            assert not receiving.done()
            database.execute("INSERT INTO t VALUES (1)")
            assert await receiving == [1]

    asyncio.run(run())


@pytest.mark.postgres(only=[13, 18])
def test_a_machine_that_stood_still_does_not_take_the_server_for_dead(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        dsn = database.dsn(options="-c wal_sender_timeout=0")
        async with streaming(dsn, unique, silence_s_max=2) as stream:
            await stream.send(status(0))
            receiving = asyncio.create_task(until(stream, 1))
            await asyncio.sleep(0.1)
            # Nothing of this process runs meanwhile.
            time.sleep(2.5)  # noqa: ASYNC251  the whole process is to stand still
            await asyncio.sleep(0.1)
            assert not receiving.done()
            database.execute("INSERT INTO t VALUES (1)")
            assert await receiving == [1]

    asyncio.run(run())


@pytest.mark.postgres(only=[13, 18])
def test_an_answer_that_is_there_before_anybody_waits_for_it_is_an_answer(
    database: Database, unique: str, monkeypatch: pytest.MonkeyPatch
):
    prepare(database)

    async def run() -> None:
        dsn = database.dsn(options="-c wal_sender_timeout=0")
        async with streaming(dsn, unique, silence_s_max=1) as stream:
            await stream.send(status(0))
            put = stream._put

            async def slow_put(data: bytes) -> None:
                await put(data)
                # Nothing of this process runs until the server has answered.
                time.sleep(0.2)  # noqa: ASYNC251  the whole process is to stand still

            monkeypatch.setattr(stream, "_put", slow_put)
            receiving = asyncio.create_task(until(stream, 1))
            await asyncio.sleep(3)
            assert not receiving.done()
            database.execute("INSERT INTO t VALUES (1)")
            assert await receiving == [1]

    asyncio.run(run())


@pytest.mark.postgres(only=[13, 18])
def test_status_updates_pass_while_nobody_receives(database: Database, unique: str):
    prepare(database)

    async def run() -> None:
        async with streaming(database.dsn(), unique) as stream:
            database.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 50000) i")
            # The server is blocked sending: the socket is full of rows that nobody reads.
            await asyncio.sleep(0.5)
            ((lsn,),) = database.execute("SELECT pg_current_wal_lsn() - '0/0'")
            ((start,),) = database.execute(
                f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{unique}'"
            )
            assert start < lsn
            await stream.send(status(int(start) + 1))
            for _ in range(2400):
                ((written,),) = database.execute(
                    f"SELECT write_lsn - '0/0' FROM pg_stat_replication WHERE pid = {stream.backend_pid}"
                )
                if written == int(start) + 1:
                    break
                await asyncio.sleep(0.05)
            assert written == int(start) + 1
            assert await until(stream, 50_000) == list(range(1, 50_001))

    asyncio.run(run())


@pytest.mark.postgres(only=[13, 18])
def test_a_lost_connection_is_told_to_the_sender_and_to_the_receiver_whoever_comes_first(
    database: Database, unique: str
):
    prepare(database)

    async def run(receiving_first: bool) -> list[CdcdError]:
        errors: list[CdcdError] = []
        async with streaming(database.dsn(), f"{unique[-8:]}_{int(receiving_first)}") as stream:
            receiving = asyncio.create_task(ending(stream)) if receiving_first else None
            await asyncio.sleep(0.05)
            database.execute(f"SELECT pg_terminate_backend({stream.backend_pid})")
            await asyncio.sleep(0.2)
            for _ in range(3):
                try:
                    await stream.send(status(1))
                except CdcdError as error:
                    errors.append(error)
                await asyncio.sleep(0.05)
            return [*errors, await (receiving or ending(stream))]

    for receiving_first in (True, False):
        errors = asyncio.run(run(receiving_first))
        assert [error for error in errors if type(error) is not TransientError] == []
        assert "57P01" in errors[-1].message
