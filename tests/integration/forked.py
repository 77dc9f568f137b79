"""`cdcd` as a process that is forked from one in which everything is imported: a second of the processor less for each.

The process runs cdcd's own main module with arguments, environment, standard streams and a session of its own. Python's
fork server makes it (`multiprocessing`, "Contexts and start methods"). There is one for each process that runs tests.
It has no threads, and ends with that process. The kernel ends what it forked then (prctl(2), PR_SET_PDEATHSIG).
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from deploy.local.cache import REPOSITORY
from tests.integration.faults import told

PRELOADED: Final = [
    "tests.integration.forked",
    "cdcd.cli.run",
    "cdcd.config.loading",
    "cdcd.daemon.supervisor",
]

_PR_SET_PDEATHSIG: Final = 1

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED)


class Forked:
    """`cdcd` with these arguments, as `subprocess.Popen` would have it.

    Args:
        streams: the descriptors of its standard input, output and error.
        environment: of the process; None: ours.
        folder: where it works.

    Attributes:
        pid: of the process.
        stderr: for the caller.
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
        self.stderr: BinaryIO | None = None

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("cdcd", timeout_s or 0.0)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


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
    runpy.run_module("cdcd.cli", run_name="__main__", alter_sys=True)
