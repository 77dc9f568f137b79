"""`cdcd handover`: from PostgreSQL 16 to 18, which follows it by native replication, with the same topics."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import Daemon, configuration, until

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
def servers(
    private_postgres: Callable[..., PostgresServer], broker: KafkaBroker, unique: str, tmp_path: Path
) -> Servers:
    return Servers(private_postgres, broker, unique, tmp_path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cdcd.cli", "handover", *arguments]


def handover(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=COMMAND_S)


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


def seal(servers: Servers, process: Daemon) -> None:
    """Prepare, and stop the daemon when that is asked for."""
    arguments = command("prepare", "--config", str(process.config_path), "--to", str(servers.to))
    running = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    assert said[-2].startswith("Sealed at ")


def test_a_pipeline_goes_from_16_to_18_with_every_change_once(servers: Servers, daemon: StartDaemon):
    process = daemon(servers.settings(servers.former))
    with writing(servers.former) as wrote:
        process.await_event("snapshot.finished", timeout_s=COMMAND_S)
        wrote(50)
        # GIVEN a daemon that is killed while somebody writes
        process.kill()
        wrote(100)
        process.start()
        process.await_streaming(COMMAND_S)
        wrote(150)
    # WHEN the writes have stopped, and the pipeline is sealed
    seal(servers, process)
    # THEN nothing more is delivered from the former server, also not with a gap that is accepted
    for arguments in ((), ("--accept-gap",)):
        process.start(*arguments)
        assert process.wait(COMMAND_S) == 6
        assert "sealed" in process.await_event("fatal")["message"]
    again = handover("prepare", "--config", str(process.config_path), "--to", str(servers.to))
    assert again.returncode == 6, again.stderr
    # AND the new server is adopted, once
    done = handover("adopt", "--config", str(servers.to))
    assert done.returncode == 0, done.stderr
    assert "already" in handover("adopt", "--config", str(servers.to)).stdout
    # AND its changes go on in the same topics, with those from before the daemon started
    servers.new.execute("INSERT INTO t VALUES (-1, 'on the new server')")
    process = daemon(servers.settings(servers.new))
    process.await_streaming(COMMAND_S)
    servers.new.execute("UPDATE t SET note = 'again' WHERE id <= 10")
    servers.assert_equal()
    assert not process.saw("table.replaced")
    assert process.stop(COMMAND_S) == 0
    # AND the former server is none of the pipeline any more
    back = handover("cancel", "--config", str(process.config_path))
    assert back.returncode == 6


def test_a_write_that_slips_through_is_refused_with_its_lsn(servers: Servers, daemon: StartDaemon):
    process = daemon(servers.settings(servers.former))
    process.await_event("snapshot.finished", timeout_s=COMMAND_S)
    process.await_streaming(COMMAND_S)
    seal(servers, process)
    # GIVEN a write on the former server behind the fence, and one on the new server
    servers.former.execute("INSERT INTO t VALUES (-1, 'late')")
    until(lambda: servers.new.execute("SELECT 1 FROM t WHERE id = -1") or None, "it is not replicated")
    # Where it ended. The end of the former server's WAL may be that of another record by now.
    ((lsn,),) = servers.new.execute(
        "SELECT remote_lsn::text FROM pg_replication_origin_status JOIN pg_subscription ON external_id = 'pg_' || oid"
    )
    servers.new.execute("INSERT INTO t VALUES (-2, 'early')")
    # THEN the pipeline does not go on by itself
    refused = handover("adopt", "--config", str(servers.to))
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
    slot = f"cdcd_{servers.name}"
    servers.new.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    process.start()
    process.await_streaming(COMMAND_S)
    seal(servers, process)
    servers.new.execute("DELETE FROM t WHERE id = -2")
    assert handover("adopt", "--config", str(servers.to)).returncode == 6
    done = handover("adopt", "--config", str(servers.to), "--deliver-writes")
    assert done.returncode == 0, done.stderr
    assert "1 later ones" in done.stdout
    process = daemon(servers.settings(servers.new))
    process.await_streaming(COMMAND_S)
    process.await_metric("cdcd_events_total", lambda count: count == 1, "d", "public.t")
    assert process.stop(COMMAND_S) == 0
