"""Runs `cdcd verify` in a process of its own for `tests/chaos/verified.py`, and measures its time, CPU and memory."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deploy.local.cache import REPOSITORY

TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Done:
    """One comparison.

    Attributes:
        code: how the process ended, None if it goes on.
        peak_bytes: the largest resident set of the process so far.
    """

    code: int | None
    report: dict[str, Any]
    said: str
    seconds: float
    cpu_s: float
    peak_bytes: int
    kills: int = field(default=0)

    @property
    def verdict(self) -> str:
        """The report's, or the exit code where there is no report."""
        return str(self.report.get("verdict", f"exit code {self.code}"))

    def count(self, of: str) -> int:
        """A number of all tables together."""
        return sum(table[of] for table in self.report.get("tables", ()))

    def named(self) -> dict[str, set[str]]:
        """The keys of the rows that differ, by table."""
        return {
            table["table"]: {difference["key"] for difference in table["differences"]}
            for table in self.report.get("tables", ())
            if table["differences"]
        }


class Command(AbstractContextManager["Command"]):
    """The command, from its start on. It ends with the block at the latest.

    Args:
        options: with `--continuous` among them, it gives one report after the other.
    """

    def __init__(
        self, config: Path, folder: Path, environment: Mapping[str, str], options: Sequence[str]
    ) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "cdcd.cli", "verify"]
        command += ["--config", str(config), "--format", "json", *options]
        self._errors = folder / "verify.log"
        with self._errors.open("w") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=environment, cwd=REPOSITORY
            )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        self._said = b""
        self._goes_on = "--continuous" in options
        self._began = time.monotonic()
        self._cpu_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def has_reported(self, within_s: float) -> bool:
        """Wait for a report or the end of the process, at most so long; whether it came."""
        deadline = time.monotonic() + max(0.0, within_s)
        while b"\n" not in self._said:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._out], [], [], left)[0]:
                return False
            data = os.read(self._out, 1 << 20)
            if not data:
                return True
            self._said += data
        return True

    def report(self, *, is_last: bool) -> Done:
        """The report that came. With the last one, the process ends: by itself, or by SIGTERM where it would go on."""
        line, _, self._said = self._said.partition(b"\n")
        seconds, self._began = time.monotonic() - self._began, time.monotonic()
        if is_last or not line:
            code, cpu_s, peak = self._end()
        else:
            code, cpu_s, peak = None, *_used(self._process.pid)
        used, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        report = json.loads(line) if line else {}
        return Done(code, report, self._errors.read_text(), seconds, used, peak)

    def kill(self) -> None:
        """It takes too long."""
        self._process.kill()

    def _end(self) -> tuple[int, float, int]:
        if self._goes_on:
            self._process.terminate()
        # `wait4` also tells the CPU time and the memory that the process used, and `Popen.wait` does not.
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def _used(pid: int) -> tuple[float, int]:
    """The seconds of CPU that a process has used, and its largest resident set in bytes (proc(5))."""
    # The name may have blanks and brackets in it. Fields 14 and 15 are utime and stime.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return (int(fields[11]) + int(fields[12])) / TICKS, int(peak.split()[1]) << 10
