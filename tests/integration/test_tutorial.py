"""docs/tutorial.md, followed literally: its blocks are run in their order, and print what the page shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deploy.local import KafkaBroker, PostgresServer, client_program
from deploy.local.cache import REPOSITORY
from tests.integration.daemon import await_released

PAGE: Final = REPOSITORY / "docs" / "tutorial.md"

BLOCK: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

LIMIT_S: Final = 120.0


@dataclass
class Reader:
    """Somebody who follows the page, in a folder of their own."""

    folder: Path
    server: PostgresServer
    broker: KafkaBroker
    running: subprocess.Popen[str] | None = None

    def here(self, text: str) -> str:
        """A block with the addresses of the test's servers."""
        found = text.replace("localhost:5432", f"127.0.0.1:{self.server.port}")
        return found.replace("localhost:9092", self.broker.bootstrap_servers)

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}

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
        return done.stdout

    def start(self, script: str) -> None:
        """Start what is to run in another terminal, and wait until it streams."""
        self.running = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *script.split()],
            cwd=self.folder,
            env=self.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.running.stderr is not None
        seen = []
        for line in self.running.stderr:
            seen.append(line)
            if "stream.started" in line:
                return
        pytest.fail("cdcd ended:\n" + "".join(seen))

    def interrupt(self) -> None:
        """Ctrl-C in the other terminal."""
        assert self.running is not None
        self.running.send_signal(signal.SIGINT)
        _, rest = self.running.communicate(timeout=LIMIT_S)
        assert self.running.returncode == 0, rest


@pytest.mark.integration
def test_the_tutorial_does_what_it_says(
    private_postgres: Callable[..., PostgresServer],
    private_broker: Callable[..., KafkaBroker],
    tmp_path: Path,
) -> None:
    server = private_postgres(18)
    server.execute("CREATE DATABASE shop")
    reader = Reader(tmp_path, server, private_broker())
    printed: str | None = None
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    try:
        for section in sections:
            if section.startswith(("7.", "8.")):
                reader.interrupt()
                # Nobody follows the page as fast as a test.
                await_released(server.dsn("shop"), "cdcd_shop")
            for language, title, body in BLOCK.findall(section):
                text = reader.here(body)
                if language == "sql":
                    reader.sql(text)
                elif language in ("yaml", "python"):
                    (tmp_path / title).write_text(text)
                elif title == "in another terminal":
                    reader.start(text.strip())
                elif language == "sh":
                    printed = reader.shell(text)
                else:
                    assert (language, title, printed) == ("text", "output", body)
                    printed = None
    finally:
        if reader.running is not None:
            reader.running.kill()
            reader.running.wait()
    assert server.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
