"""Capture the streams of this directory from real servers: `python -m tests.golden.capture [VERSION …]`.

For each version a fresh server is started and gets one slot per mode; walsenders of all modes run while the
workload does, and what each sends is kept as it came.
"""

import select
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from psycopg import pq

from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.versions import Options, StreamingMode, start_options
from deploy.local.postgres_packages import POSTGRES_VERSIONS
from deploy.local.postgres_server import PostgresServer
from tests.golden.streams import Description, Golden
from tests.golden.workload import PAUSE, SCHEMA, STEPS, Step

DEADLINE_S: Final = 60
QUIET_S: Final = 0.2
SENT: Final = "SELECT min(sent_lsn)::text FROM pg_stat_replication"


@dataclass(frozen=True, slots=True)
class Mode:
    """What a walsender is asked for, on servers from version `since` on."""

    name: str
    since: int
    protocol: int
    streaming: StreamingMode = StreamingMode.OFF
    two_phase: bool = False
    binary: bool = False

    @property
    def slot(self) -> str:
        return self.name.replace("-", "_")

    def options(self, server_version_num: int) -> Options:
        return start_options(
            server_version_num,
            self.protocol,
            ["golden"],
            streaming=self.streaming,
            two_phase=self.two_phase,
            binary=self.binary,
        )


MODES: Final = (
    Mode("v1", 13, 1),
    Mode("v1-binary", 14, 1, binary=True),
    Mode("v2-streaming", 14, 2, StreamingMode.ON),
    Mode("v3-two-phase", 15, 3, two_phase=True),
    Mode("v3-two-phase-streaming", 15, 3, StreamingMode.ON, two_phase=True),
    Mode("v4-parallel", 16, 4, StreamingMode.PARALLEL),
    Mode("v4-parallel-two-phase", 16, 4, StreamingMode.PARALLEL, two_phase=True),
)


@dataclass(slots=True)
class Receiver:
    """A replication connection in COPY mode and all that came over it."""

    connection: pq.abc.PGconn
    frames: list[bytes] = field(default_factory=list)

    def receive(self) -> bool:
        """Take what is there; whether there was anything."""
        before = len(self.frames)
        self.connection.consume_input()
        while True:
            size, data = self.connection.get_copy_data(1)
            if size == 0:
                return len(self.frames) > before
            if size < 0:
                raise RuntimeError(self.connection.get_error_message())
            self.frames.append(bytes(data))


def capture(dsn: str) -> None:
    """Write the streams of the server at `dsn`, whose database must be empty.

    It needs `wal_level=logical`, `max_prepared_transactions` above 0, ten slots and senders, and a superuser.
    """
    with ExitStack() as stack:
        control = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        number = control.info.server_version
        version = number // 10000
        modes = [mode for mode in MODES if mode.since <= version]
        for statement in SCHEMA:
            control.execute(statement)
        for mode in modes:
            create_slot(control, mode)
        receivers = {
            mode: stack.enter_context(receiving(dsn, mode.slot, mode.options(number))) for mode in modes
        }
        run_workload(dsn, control, list(receivers.values()))
        server = f"PostgreSQL {control.info.parameter_status('server_version')}"
    for mode, receiver in receivers.items():
        options = mode.options(number)
        description = Description(server, number, dict(options.options), options.abort_info)
        Golden(version, mode.name).write(description, receiver.frames)


def create_slot(control: psycopg.Connection, mode: Mode) -> None:
    two_phase = ", false, true" if mode.two_phase else ""
    control.execute(f"SELECT pg_create_logical_replication_slot('{mode.slot}', 'pgoutput'{two_phase})")


@contextmanager
def receiving(dsn: str, slot: str, options: Options) -> Iterator[Receiver]:
    settings = "-c logical_decoding_work_mem=64kB -c client_encoding=UTF8"
    conninfo = psycopg.conninfo.make_conninfo(dsn, replication="database", options=settings)
    connection = pq.PGconn.connect(conninfo.encode())
    try:
        listed = ", ".join(f"{name} {psycopg.sql.quote(value)}" for name, value in options.options)
        result = connection.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({listed})".encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise RuntimeError(connection.get_error_message())
        yield Receiver(connection)
    finally:
        connection.finish()


def run_workload(dsn: str, control: psycopg.Connection, receivers: list[Receiver]) -> None:
    settings = "-c client_encoding=UTF8 -c lock_timeout=10s"
    with (
        psycopg.connect(dsn, autocommit=True, options=settings) as session_a,
        psycopg.connect(dsn, autocommit=True, options=settings) as session_b,
    ):
        sessions = {"a": session_a, "b": session_b}
        for step in [*STEPS, PAUSE]:
            if step is PAUSE:
                wait_until_sent(control, receivers)
            else:
                run_step(sessions[step.session], step)


def run_step(session: psycopg.Connection, step: Step) -> None:
    if step.copy:
        with session.cursor() as cursor, cursor.copy(step.sql.encode()) as copy:
            copy.write(step.copy)
    else:
        session.execute(step.sql.encode())


def wait_until_sent(control: psycopg.Connection, receivers: list[Receiver]) -> None:
    """Wait until all that was written so far is decoded, sent and received."""
    # A transaction's end flushes the WAL of the open ones; walsenders read only what is flushed.
    control.execute("SELECT txid_current()")
    end = position(control, "SELECT pg_current_wal_flush_lsn()::text")
    deadline = time.monotonic() + DEADLINE_S
    quiet_since = time.monotonic()
    sockets = [receiver.connection.socket for receiver in receivers]
    while True:
        select.select(sockets, [], [], QUIET_S / 4)
        received = [receiver.receive() for receiver in receivers]
        if any(received):
            quiet_since = time.monotonic()
        now = time.monotonic()
        if now - quiet_since > QUIET_S and position(control, SENT) >= end:
            return
        if now > deadline:
            raise TimeoutError(f"the walsenders have not reached {Lsn(end)}")


def position(control: psycopg.Connection, query: str) -> int:
    row = control.execute(query.encode()).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def main(versions: list[int]) -> None:
    # The server's own user must be able to reach the folder.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for version in versions:
            # Analyzing a table is a transaction of its own, which 13 and 14 would send as an empty one.
            settings = {"autovacuum": "off"}
            with PostgresServer(version, Path(folder) / str(version), settings=settings) as server:
                capture(server.dsn())
            print(f"captured PostgreSQL {version}")


if __name__ == "__main__":
    main([int(version) for version in sys.argv[1:]] or list(POSTGRES_VERSIONS))
