"""`cdcd handover`: from PostgreSQL 16 to 18, which follows it by native replication, with the same topics."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.config.loading import load_config
from cdcd.tools.handover.servers import published, read_columns, read_numbers
from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd, start_cdcd

pytestmark = pytest.mark.postgres(only=[18])

StartDaemon = Callable[[dict[str, Any]], Daemon]

COMMAND_S = 120
SWITCHES = 6
"""WAL files that bring the new server's LSN behind the former one's."""


class Servers:
    """A pipeline's table on 16, and on 18, which follows by a subscription."""

    def __init__(
        self, start: Callable[..., PostgresServer], broker: KafkaBroker, name: str, folder: Path
    ) -> None:
        self.name = name
        self.broker = broker
        self.former, self.new = start(16), start(18)
        for server in (self.former, self.new):
            server.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
            server.execute(f'CREATE PUBLICATION "cdcd_{name}" FOR TABLE t')
        self.former.execute("INSERT INTO t SELECT g, 'before' FROM generate_series(1, 100) g")
        self.former.execute("CREATE PUBLICATION upgrade FOR TABLE t")
        for _ in range(SWITCHES):
            self.new.execute("SELECT pg_logical_emit_message(false, 'fill', 'x'), pg_switch_wal()")
        self.new.execute(f"CREATE SUBSCRIPTION follow CONNECTION '{self.former.dsn()}' PUBLICATION upgrade")
        ready = "SELECT 1 FROM pg_subscription_rel HAVING count(*) = 1 AND bool_and(srsubstate = 'r')"
        until(lambda: self.new.execute(ready) or None, "the subscription is not ready")
        self.to = folder / "new.yaml"
        self.to.write_text(yaml.safe_dump(self.settings(self.new), sort_keys=False))

    def settings(self, server: PostgresServer) -> dict[str, Any]:
        return configuration(
            self.name, server.dsn(), self.broker.bootstrap_servers, snapshot={"mode": "initial"}
        )

    def assert_equal(self) -> None:
        await_flushed(self.new.dsn(), f"cdcd_{self.name}")
        report = compare(self.new.dsn(), self.broker.bootstrap_servers, self.name, rows_before=True)
        assert report.equal, str(report)


@pytest.fixture
def pair(
    private_postgres: Callable[..., PostgresServer], broker: KafkaBroker, unique: str, tmp_path: Path
) -> Servers:
    return Servers(private_postgres, broker, unique, tmp_path)


def handover(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cdcd("handover", *arguments, timeout_s=COMMAND_S)


def cdcd(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cdcd(*arguments, "--config", str(file), timeout_s=COMMAND_S)


@contextmanager
def writing(server: PostgresServer) -> Iterator[Callable[[int], None]]:
    """Somebody writes small transactions, until the block ends; the yielded call waits until so many are written."""
    written, stop = 0, threading.Event()
    some = threading.Condition()

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            number = 1000 + written
            server.execute(
                f"INSERT INTO t VALUES ({number}, 'new'); UPDATE t SET note = 'changed {number}' "
                f"WHERE id = {1 + number % 100}"
            )
            with some:
                written += 1
                some.notify_all()

    def wait(count: int) -> None:
        with some:
            assert some.wait_for(lambda: written >= count, COMMAND_S)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield wait
    finally:
        stop.set()
        thread.join()


def seal(pair: Servers, process: Daemon) -> None:
    """Prepare, and stop the daemon when that is asked for."""
    running = start_cdcd("handover", "prepare", "--config", str(process.config_path), "--to", str(pair.to))
    assert running.stdout is not None
    with running:
        said = []
        for line in running.stdout:
            said.append(line)
            if line.startswith("Stop all instances"):
                assert process.stop(COMMAND_S) == 0
        assert running.stderr is not None
        failed = running.stderr.read()
    assert running.returncode == 0, f"{said} {failed}"
    assert said[-2].startswith("The pipeline is sealed at ")


def test_tables_that_the_pipeline_leaves_out_are_not_handed_over(database: Database, tmp_path: Path):
    for table in ("orders", "audit"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION cdcd_shop FOR ALL TABLES")
    settings = configuration("shop", database.dsn(), "127.0.0.1:1", tables={"exclude": ["*.audit"]})
    file = tmp_path / "cdcd.yaml"
    file.write_text(yaml.safe_dump(settings))
    config = load_config(file, {})

    async def ask() -> list[str]:
        connection = await connect(parse_dsn(database.dsn()), application_name="test", connect_timeout_s=60)
        try:
            return sorted((await published(config, connection)).values())
        finally:
            await connection.close()

    assert asyncio.run(ask()) == ["public.orders"]


def test_columns_are_what_a_mirror_knows_of_them(database: Database):
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE other AS ENUM ('a')")
    database.execute('CREATE TABLE t (gone int, id bigint, "Amount" numeric(9, 2), moods mood[])')
    database.execute("ALTER TABLE t DROP gone")
    ((oid, *labels),) = database.execute(
        "SELECT 't'::regclass::oid::int8, (SELECT oid::text FROM pg_enum WHERE enumlabel = 'sad'),"
        " (SELECT oid::text FROM pg_enum WHERE enumlabel = 'ok')"
    )

    async def read() -> tuple[dict[int, str], dict[str, dict[str, int]]]:
        sql = await connect(parse_dsn(database.dsn()), application_name="test", connect_timeout_s=60)
        try:
            number = int(str(oid))
            return await read_columns(sql, [number]), await read_numbers(sql, {number: "public.t"})
        finally:
            await sql.close()

    moods = f"4 moods public.mood[] ({labels[0]} 'sad', {labels[1]} 'ok')"
    columns, numbers = asyncio.run(read())
    assert numbers == {"public.t": {"id": 2, "Amount": 3, "moods": 4}}
    assert columns == {oid: f'2 id bigint (), 3 "Amount" numeric(9,2) (), {moods}'}


def test_a_pipeline_goes_from_16_to_18_with_every_change_once(pair: Servers, daemon: StartDaemon):
    process = daemon(pair.settings(pair.former))
    with writing(pair.former) as wrote:
        process.await_event("snapshot.finished", timeout_s=COMMAND_S)
        wrote(50)
        # GIVEN a daemon that is killed while somebody writes
        process.kill()
        wrote(100)
        process.start()
        process.await_streaming(COMMAND_S)
        wrote(150)
    # WHEN the writes have stopped, and the pipeline is sealed
    seal(pair, process)
    # THEN nothing more is delivered from the former server, also not with a gap that is accepted
    for arguments in ((), ("--accept-gap",)):
        process.start(*arguments)
        assert process.wait(COMMAND_S) == 6
        assert "sealed" in process.await_event("fatal")["message"]
    again = handover("prepare", "--config", str(process.config_path), "--to", str(pair.to))
    assert again.returncode == 6, again.stderr
    # AND the new server is adopted, once
    done = handover("adopt", "--config", str(pair.to))
    assert done.returncode == 0, done.stderr
    assert "already" in handover("adopt", "--config", str(pair.to)).stdout
    # AND its changes go on in the same topics, with those from before the daemon started
    pair.new.execute("INSERT INTO t VALUES (-1, 'on the new server')")
    former = process.config_path
    process = daemon(pair.settings(pair.new))
    process.await_streaming(COMMAND_S)
    pair.new.execute("UPDATE t SET note = 'again' WHERE id <= 10")
    pair.assert_equal()
    assert not process.saw("table.replaced")
    # AND no command takes the former server for the pipeline's any more, while the new one is read
    for refused in (
        handover("cancel", "--config", str(former)),
        cdcd(former, "reset", "--yes"),
        cdcd(former, "verify"),
        cdcd(former, "snapshot", "start", "--table", "public.t", "--wait"),
    ):
        assert refused.returncode == 6, refused.args
        assert "The pipeline reads another server" in refused.stderr
    # AND what is left there goes without the pipeline's checkpoint
    dropped = cdcd(former, "drop", "--topics", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert [line for line in dropped.stdout.splitlines() if line.startswith("done")] == [
        f"done: slot cdcd_{pair.name}"
    ]
    pair.new.execute("UPDATE t SET note = 'after the drop' WHERE id <= 10")
    pair.assert_equal()
    equal = cdcd(pair.to, "verify")
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert process.stop(COMMAND_S) == 0


def test_a_write_that_slips_through_is_refused_with_its_lsn(pair: Servers, daemon: StartDaemon):
    process = daemon(pair.settings(pair.former))
    process.await_event("snapshot.finished", timeout_s=COMMAND_S)
    process.await_streaming(COMMAND_S)
    seal(pair, process)
    # GIVEN a write on the former server behind the fence, and one on the new server
    pair.former.execute("INSERT INTO t VALUES (-1, 'late')")
    until(lambda: pair.new.execute("SELECT 1 FROM t WHERE id = -1") or None, "it is not replicated")
    # Where it ended. The end of the former server's WAL may be that of another record by now.
    ((lsn,),) = pair.new.execute(
        "SELECT remote_lsn::text FROM pg_replication_origin_status JOIN pg_subscription ON external_id = 'pg_' || oid"
    )
    pair.new.execute("INSERT INTO t VALUES (-2, 'early')")
    # THEN the pipeline does not go on by itself
    refused = handover("adopt", "--config", str(pair.to))
    assert refused.returncode == 6, refused.stdout
    assert "2 transactions were written after the fence" in refused.stderr
    assert f"{lsn} of the former server" in refused.stderr
    assert "public.t" in refused.stderr
    assert "--deliver-writes" in refused.stderr
    # AND somebody may take the seal away, or have the writes delivered, because none of them is lost
    assert handover("cancel", "--config", str(process.config_path)).returncode == 0
    process.start()
    process.await_streaming(COMMAND_S)
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
    assert process.stop(COMMAND_S) == 0
    slot = f"cdcd_{pair.name}"
    pair.new.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    process.start()
    process.await_streaming(COMMAND_S)
    seal(pair, process)
    pair.new.execute("DELETE FROM t WHERE id = -2")
    assert handover("adopt", "--config", str(pair.to)).returncode == 6
    done = handover("adopt", "--config", str(pair.to), "--deliver-writes")
    assert done.returncode == 0, done.stderr
    assert "1 later transactions" in done.stdout
    process = daemon(pair.settings(pair.new))
    process.await_streaming(COMMAND_S)
    process.await_metric("cdcd_events_total", lambda count: count == 1, "d", "public.t")
    assert process.stop(COMMAND_S) == 0
