"""One PostgreSQL server in a folder: start, stop in each of its three ways, kill, restart.

A new data folder is a copy of one that initdb made once for each version, so servers start within moments. All
copies have the same `system_identifier`; `own_identity=True` runs initdb again where that matters.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from deploy.local.cache import LocalServerError, cached, run
from deploy.local.postgres_packages import postgres_installation
from deploy.local.process import UNPRIVILEGED, Child, can_reach, free_port

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: Final[Mapping[str, signal.Signals]] = MappingProxyType(
    {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
)

DEFAULT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "wal_level": "logical",
        "max_connections": "200",
        "max_wal_senders": "50",
        "max_replication_slots": "50",
        "max_prepared_transactions": "20",
        # The smallest there is, so that a transaction of some hundred rows is streamed.
        "logical_decoding_work_mem": "64kB",
        # The tests kill processes, not the machine: the page cache survives, and so does what was not synced.
        "fsync": "off",
        "full_page_writes": "off",
        "shared_buffers": "64MB",
        "max_wal_size": "512MB",
        "jit": "off",
        "huge_pages": "off",
        # In the data folder, so that a killed server leaves nothing in /dev/shm.
        "dynamic_shared_memory_type": "mmap",
        "unix_socket_directories": "",
        "password_encryption": "scram-sha-256",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %a %d ",
        "log_replication_commands": "on",
    }
)

TRUST: Final = (
    "host all all 127.0.0.1/32 trust",
    "host replication all 127.0.0.1/32 trust",
)
"""pg_hba.conf by default: whoever reaches the loopback is who they say. For passwords: `host all all 127.0.0.1/32
scram-sha-256`, after a line that trusts postgres."""


class PostgresServer:
    """A server of one major version on 127.0.0.1; its superuser is postgres.

    The data folder keeps its content between `stop` or `kill` and `start`. Run as root, the server is another user
    (`postgres` or `nobody`), so the folder must be one that this user can reach; its last part is created.
    """

    def __init__(
        self,
        version: int,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str | None] | None = None,
        hba: Sequence[str] = TRUST,
        own_identity: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` go over DEFAULT_SETTINGS; both are written at each start, so `self.settings` may be changed.

        None: what PostgreSQL has by itself. `environment`: further variables of the server's environment.
        """
        self.version = version
        self.data_dir = data_dir.resolve()
        self.port = port or free_port()
        self.settings: dict[str, str | None] = {**DEFAULT_SETTINGS, **(settings or {})}
        self.hba = list(hba)
        self.log_path = self.data_dir.with_name(f"{self.data_dir.name}.log")
        self._own_identity = own_identity
        self._environment = dict(environment or {})
        self._installation: Path | None = None
        self._child: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop("immediate")

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        assert self._child is not None, "the server was never started"
        return self._child.pid

    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def dsn(self, dbname: str = "postgres", *, user: str = "postgres", **parameters: str) -> str:
        """A libpq connection string, e.g. `dsn("shop", user="cdcd", password="…")`."""
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415  fetching the server needs no psycopg

        return make_conninfo(host="127.0.0.1", port=self.port, dbname=dbname, user=user, **parameters)

    def execute(self, sql: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run `sql` (one statement, or several without a result) outside a transaction block, as superuser."""
        import psycopg  # noqa: PLC0415  fetching the server needs no psycopg

        with psycopg.connect(self.dsn(dbname), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def start(self, timeout_s: float = 60) -> None:
        """Returns when the server accepts connections; LocalServerError with its log's end when it does not."""
        assert not self.is_running(), "the server is running"
        if not (self.data_dir / "PG_VERSION").exists():
            self._create()
        self._configure()
        self._child = Child(
            [self._program("postgres"), "-D", self.data_dir],
            log=self.log_path,
            # An immediate shutdown removes the shared memory that SIGKILL would leave.
            last_signal=signal.SIGQUIT,
            cwd=self.data_dir,
            account=UNPRIVILEGED,
            environment=self._environment,
        )
        deadline = time.monotonic() + timeout_s
        while not self._accepts():
            if not self.is_running() or time.monotonic() > deadline:
                self.kill()
                raise LocalServerError(f"PostgreSQL {self.version} did not start:\n{self.log()[-2000:]}")
            time.sleep(0.01)

    def stop(self, mode: StopMode = "fast", timeout_s: float = 60) -> None:
        """Shut down and wait; `subprocess.TimeoutExpired` when it still runs after `timeout_s`, which it then does.

        A fast shutdown waits for walsenders whose clients have not confirmed everything.
        """
        if self.is_running():
            self.ask_to_stop(mode)
            self.wait_stopped(timeout_s)

    def ask_to_stop(self, mode: StopMode = "fast") -> None:
        """Send the signal of that shutdown and return at once."""
        assert self._child is not None, "the server was never started"
        self._child.signal(_STOP_SIGNALS[mode])

    def wait_stopped(self, timeout_s: float = 60) -> int:
        """The postmaster's exit status; `subprocess.TimeoutExpired` when it still runs after `timeout_s`."""
        assert self._child is not None, "the server was never started"
        return self._child.wait(timeout_s)

    def pause(self) -> None:
        """Freeze all its processes (SIGSTOP): connections stay open and nothing answers, until `resume`."""
        assert self._child is not None, "the server was never started"
        self._child.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._child is not None, "the server was never started"
        self._child.signal_all(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every process of the server at once."""
        if self._child is not None:
            self._child.kill()

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Stop at once and remove the data folder and the log."""
        try:
            self.stop("immediate", 10)
        except subprocess.TimeoutExpired:
            self.kill()
        # Only a killed server leaves the file, and with it the 56 bytes of shared memory that its line 7 names.
        if (lines := self._pid_file()) and len(lines) > 6:
            subprocess.run(["ipcrm", "--shmem-id", lines[6].split()[1]], capture_output=True, check=False)
        shutil.rmtree(self.data_dir, ignore_errors=True)
        self.log_path.unlink(missing_ok=True)

    def make_standby(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> "PostgresServer":
        """A copy of this server, which must be stopped, that follows it by the physical slot `standby` once started.

        The slot is the caller's to create here. `settings` go over those of this server.
        """
        assert not self.is_running(), "the server is running"
        source = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres application_name=standby"
        follow = {"primary_conninfo": source, "primary_slot_name": "standby", "hot_standby_feedback": "on"}
        copy = PostgresServer(
            self.version, data_dir, settings={**self.settings, **follow, **(settings or {})}, hba=self.hba
        )
        shutil.copytree(self.data_dir, copy.data_dir, symlinks=True)
        (copy.data_dir / "standby.signal").touch()
        self._give_away(copy.data_dir)
        return copy

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def _program(self, name: str) -> Path:
        if self._installation is None:
            self._installation = postgres_installation(self.version)
        return self._installation / "bin" / name

    def _accepts(self) -> bool:
        """What pg_ctl looks at too: the last line of postmaster.pid, when it is this postmaster's."""
        lines = self._pid_file()
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() in {"ready", "standby"}

    def _pid_file(self) -> list[str]:
        try:
            return (self.data_dir / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _create(self) -> None:
        if not can_reach(self.data_dir.parent, UNPRIVILEGED):
            raise LocalServerError(
                f"PostgreSQL runs as user {UNPRIVILEGED.name}, who may not look into {self.data_dir.parent}. "
                "Take a folder below /tmp or /var/tmp, and chmod o+x the ones in between."
            )
        if self._own_identity:
            self._initdb(self.data_dir)
        else:
            template = cached(
                f"postgres/template-{self.version}-{UNPRIVILEGED.uid}-{self._program('postgres').parents[1].name}",
                lambda folder: self._initdb(folder / "data"),
            )
            shutil.copytree(template / "data", self.data_dir, copy_function=shutil.copyfile)
        self._give_away(self.data_dir)

    def _initdb(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._give_away(folder)
        command: list[str | Path] = [self._program("initdb"), "--pgdata", folder, "--username", "postgres"]
        command += [
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--auth",
            "trust",
            "--no-sync",
            "--no-instructions",
        ]
        if self.version < 14:
            command.remove("--no-instructions")
        if UNPRIVILEGED.uid != os.geteuid():
            user = ["--reuid", str(UNPRIVILEGED.uid), "--regid", str(UNPRIVILEGED.gid), "--clear-groups"]
            command = ["setpriv", *user, "--", *command]
        run(command, cwd=folder)

    def _give_away(self, folder: Path) -> None:
        if UNPRIVILEGED.uid == os.geteuid():
            return
        run(["chown", "-R", f"{UNPRIVILEGED.uid}:{UNPRIVILEGED.gid}", folder])

    def _configure(self) -> None:
        own = {"listen_addresses": "127.0.0.1", "port": str(self.port), **self.settings}
        lines = [
            f"{name} = '{value.replace(chr(39), chr(39) * 2)}'"
            for name, value in own.items()
            if value is not None
        ]
        self._write("postgresql.conf", lines)
        self._write("pg_hba.conf", self.hba)

    def _write(self, name: str, lines: Sequence[str]) -> None:
        # Written over, not replaced: the file keeps its owner.
        (self.data_dir / name).write_text("\n".join(lines) + "\n")
