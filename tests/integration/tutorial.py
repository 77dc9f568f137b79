"""A reader who follows docs/tutorial.md literally runs its blocks in order, and compares the output with the page.

A block is a fence with a language and perhaps a title:

- `sql` is run in psql; `yaml` is written into the file that the title names.
- `sh` is run in a shell. With the title "in another terminal" the command keeps running; with the title "Ctrl-C" the
  running command with the same words is interrupted. Blocks whose titles begin with "in the clone" are skipped, because
  tests have the servers and tools that these blocks install.
- `text` with the title "output" equals the output of the last shell, except for times and LSNs. With the title "such
  as", the last shell printed each of its lines, except for numbers.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.local import KafkaBroker, PostgresServer, client_program, free_port
from deploy.local.cache import REPOSITORY
from tests.integration.daemon import await_released, until

PAGE: Final = REPOSITORY / "docs" / "tutorial.md"
BLOCK: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LIMIT_S: Final = 400.0
STARTED: Final = {"run": "stream.started", "mirror": "has /metrics"}
"""Text by which a command that keeps running shows that the next block may run, by the command's second word."""


def sections() -> list[str]:
    """Return the page's sections, without the text before the first heading."""
    return re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]


def moved(text: str) -> str:
    """Return the text with placeholders for times and LSNs, which differ from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME", text)
    return re.sub(r"\b[0-9A-F]+/[0-9A-F]+\b", "LSN", text)


def shape(line: str) -> str:
    """Return the line with placeholders for numbers with their units, and with single spaces."""
    line = re.sub(r"\d[\d.,]*( [kMG]?B\b)?", "N", moved(line))
    # The singular and the plural are the same: 1 warning, 2 warnings.
    return " ".join(re.sub(r"\bwarnings\b", "warning", line).split())


@dataclass
class Reader:
    """Somebody who follows the page, in a folder of their own."""

    folder: Path
    server: PostgresServer
    broker: KafkaBroker
    port: int = field(default_factory=free_port)
    running: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    printed: str | None = None

    def here(self, text: str) -> str:
        """A block with the addresses of the test's servers."""
        found = text.replace("localhost:5432", f"127.0.0.1:{self.server.port}")
        return found.replace("localhost:9092", self.broker.bootstrap_servers)

    def environment(self) -> dict[str, str]:
        programs = [Path(sys.executable).parent, client_program("psql").parent]
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), **self.exported}

    def follow(self, some: Sequence[str]) -> None:
        """Run the blocks of these sections."""
        for section in some:
            for language, title, body in BLOCK.findall(section):
                self.do(language, title, self.here(body))

    def do(self, language: str, title: str, text: str) -> None:
        if title.startswith("in the clone"):
            return
        if language == "sql":
            self.sql(text)
        elif language == "yaml":
            (self.folder / title).write_text(text + "http: {port: 0}\n")
        elif title == "in another terminal":
            self.start(text.strip())
        elif title == "Ctrl-C":
            self.interrupt(text.strip())
        elif language == "sh" and text.startswith("export "):
            self.exported |= dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
        elif language == "sh":
            self.printed = self.shell(text)
        elif title == "output":
            assert self.printed is not None
            assert moved(self.printed) == moved(text)
        else:
            assert (language, title) == ("text", "such as")
            assert self.printed is not None
            lines = {shape(line) for line in self.printed.splitlines()}
            assert [line for line in text.splitlines() if shape(line) not in lines] == [], self.printed

    def sql(self, script: str) -> None:
        options = ["--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", "--file", "-"]
        done = subprocess.run(
            [client_program("psql"), *options, "--dbname", self.server.dsn("shop")],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr

    def shell(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if "cdcd init" in script:
            # The page uses the default HTTP port, which a daemon of another test may use at the same time.
            with (self.folder / "cdcd.yaml").open("a") as file:
                file.write(f"http: {{port: {self.port}}}\n")
        return done.stdout

    def start(self, script: str) -> None:
        """Start a command in another terminal, and wait until it streams."""
        log = self.folder / f"{len(self.running)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *script.split()],
                cwd=self.folder,
                env=self.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.running[script] = process
        words = STARTED[script.split()[1]]
        until(lambda: words in log.read_text() or process.poll() is not None or None, script, LIMIT_S)
        assert process.poll() is None, log.read_text()

    def interrupt(self, script: str) -> None:
        """Ctrl-C in the terminal of a command."""
        process = self.running.pop(script)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        if script.startswith("cdcd run"):
            # A person needs longer for the next block than the server needs to release the slot.
            await_released(self.server.dsn("shop"), "cdcd_shop")

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
