"""`cdcd` as a process that is forked from one in which everything is imported: a second of the processor less for each.

The process runs cdcd's own main module with arguments, environment, standard streams and a session of its own. Python's
fork server makes it (`multiprocessing`, "Contexts and start methods"). There is one for each process that runs tests.
It has no threads, and ends with that process. The kernel ends what it forked then (prctl(2), PR_SET_PDEATHSIG).
"""

import ctypes
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Final, Self

from deploy.local.cache import REPOSITORY
from tests.integration.faults import told

PRELOADED: Final = [
    "tests.integration.forked",
    "cdcd.cli.run",
    "cdcd.config.loading",
    "cdcd.daemon.running",
]

PACES: Final = {
    ("cdcd.daemon.pipeline", "COUNT_S"): 0.2,
    ("cdcd.daemon.pipeline", "SURVEY_S"): 2.0,
    ("cdcd.daemon.partition_watch", "PARTITIONS_S"): 3.0,
    ("cdcd.daemon.kafka_watch", "COUNT_S"): 2.0,
}
"""Seconds between two looks of a forked daemon: at its own figures, the server, partitions, topics. The daemon's own
intervals spare the servers, and a test that waits for the next look would only wait.
"""

_PR_SET_PDEATHSIG: Final = 1

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED)


class Forked:
    """`cdcd` with these arguments, with the methods of `subprocess.Popen`.

    Args:
        streams: the descriptors of its standard input, output and error.
        environment: of the process; None: ours.
        folder: where it works.

    Attributes:
        pid: of the process.
        stdout, stderr: for the caller; `start_cdcd` opens them.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        streams: tuple[int, int, int],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path = REPOSITORY,
    ) -> None:
        # `multiprocessing` hands a descriptor over as a connection.
        handed = [Connection(os.dup(stream)) for stream in streams]
        environment = dict(os.environ if environment is None else environment)
        self._process = _CONTEXT.Process(
            target=_run, args=(list(arguments), environment, str(folder), handed)
        )
        self._process.start()
        for each in handed:
            each.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.wait()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("cdcd", timeout_s or 0.0)
        return code

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; the rest of what it wrote to standard output and error.

        Raises:
            TimeoutExpired: it did not end within so many seconds.
        """
        found = ["", ""]

        def read(at: int, stream: IO[Any]) -> None:
            found[at] = stream.read()

        readers = [
            threading.Thread(target=read, args=(at, stream), daemon=True)
            for at, stream in enumerate((self.stdout, self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found[0], found[1]

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start_cdcd(
    *arguments: str, environment: Mapping[str, str] | None = None, folder: Path = REPOSITORY
) -> Forked:
    """Start `cdcd` with these arguments. Its standard output and error are pipes that the caller reads as text."""
    (stdout, to_stdout), (stderr, to_stderr) = os.pipe(), os.pipe()
    with os.fdopen(to_stdout, "wb"), os.fdopen(to_stderr, "wb"), Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), to_stdout, to_stderr)
        process = Forked(arguments, streams, environment=environment, folder=folder)
    process.stdout = os.fdopen(stdout, encoding="utf-8")
    process.stderr = os.fdopen(stderr, encoding="utf-8")
    return process


def run_cdcd(
    *arguments: str,
    answers: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path = REPOSITORY,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """`cdcd` with these arguments, run to its end. `answers`: what it reads from its standard input.

    Raises:
        TimeoutExpired: it did not end; it was killed.
    """
    with TemporaryFile("w+") as stdin, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        stdin.write(answers)
        stdin.seek(0)
        streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
        process = Forked(arguments, streams, environment=environment, folder=folder)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        done = subprocess.CompletedProcess(["cdcd", *arguments], code, stdout.read(), stderr.read())
    told.hear(" ".join(done.args), code, done.stdout + done.stderr)
    return done


def _run(arguments: list[str], environment: Mapping[str, str], folder: str, handed: list[Connection]) -> None:
    """In the forked process: become `python -m cdcd.cli` with these arguments."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for target, connection in enumerate(handed):
        os.dup2(connection.fileno(), target)
        connection.close()
    # Standard output and error are written by their descriptors; multiprocessing gives a process no standard input.
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["cdcd", *arguments]
    for (module, name), seconds in PACES.items():
        setattr(importlib.import_module(module), name, seconds)
    runpy.run_module("cdcd.cli", run_name="__main__", alter_sys=True)
