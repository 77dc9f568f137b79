"""docs/python.md, followed literally: its programs run against a server, print what the page shows, and are typed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from mypy import api

from deploy.local import PostgresServer, client_program
from deploy.local.cache import REPOSITORY
from tests.integration.daemon import until

PAGE: Final = REPOSITORY / "docs" / "python.md"

BLOCK: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

LIMIT_S: Final = 120.0


def sql(server: PostgresServer, script: str) -> None:
    options = ["--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", "--file", "-"]
    done = subprocess.run(
        [client_program("psql"), *options, "--dbname", server.dsn("shop")],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def start(folder: Path, server: PostgresServer, program: str) -> "subprocess.Popen[str]":
    """Start a program of the page, and wait until it reads its slot."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-u", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )

    def reads() -> bool | None:
        assert process.poll() is None
        # Before, the server is still creating the slot, which begins with what is committed later.
        return bool(server.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'")) or None

    until(reads, f"{program} does not stream")
    return process


@pytest.mark.integration
def test_the_page_does_what_it_says(private_postgres: Callable[..., PostgresServer], tmp_path: Path):
    server = private_postgres(18)
    server.execute("CREATE DATABASE shop")
    running: subprocess.Popen[str] | None = None
    programs = 0
    for language, title, body in BLOCK.findall(PAGE.read_text()):
        if language == "python":
            (tmp_path / title).write_text(body.replace("localhost:5432", f"127.0.0.1:{server.port}"))
            running = start(tmp_path, server, title)
            programs += 1
        elif language == "sql":
            sql(server, body)
        else:
            assert (language, title) == ("text", "output")
            assert running is not None
            assert running.stdout is not None
            shown = [running.stdout.readline() for _ in body.splitlines()]
            assert "".join(shown) == body
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=LIMIT_S)
            until(
                lambda: None if server.execute("SELECT 1 FROM pg_stat_replication") else True,
                "the program still streams",
            )
    assert programs == 2


@pytest.mark.integration
def test_the_programs_of_the_page_are_typed(tmp_path: Path):
    for language, title, body in BLOCK.findall(PAGE.read_text()):
        if language == "python":
            (tmp_path / title).write_text(body)
    (tmp_path / "wrong.py").write_text(
        "import cdcd\n\n\n"
        "def wrong(change: cdcd.Insert, transaction: cdcd.Transaction) -> int:\n"
        "    cdcd.conect('')\n"
        "    cdcd.connect('', publicaton='p')\n"
        "    return change.new['id']\n"
    )
    programs = sorted(map(str, tmp_path.glob("*.py")))
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--no-error-summary"]
    # Of the package, only what it says of itself counts, as where it is installed.
    out, errors, _ = api.run([*options, "--follow-imports=silent", *programs])
    assert errors == ""
    lines = [re.sub(r"^.*/", "", line) for line in out.splitlines() if ": error:" in line]
    assert [line.split(": error:")[0] for line in lines] == ["wrong.py:5", "wrong.py:6", "wrong.py:7"], out
