"""`import cdcd` in a program that is killed, and in one that reads a large transaction."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, until
from tests.integration.stream_reader import PUBLICATION

pytestmark = pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])

Start = Callable[..., "subprocess.Popen[str]"]

ROWS = 300_000
GROWN_MAX = 40 * 1024 * 1024
"""Bytes: the rows of the large transaction are 60 MB on the wire, and more than 200 MB as Python's values."""


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(*arguments: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.stream_reader", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def line(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def go_on(process: "subprocess.Popen[str]") -> None:
    """Answer a line of `acknowledge`."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def readers(database: Database) -> list[tuple[int]]:
    return database.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE database = current_database() AND active"
    )


def test_a_reader_that_is_killed_loses_nothing_and_gets_what_it_did_not_acknowledge(
    database: Database, start: Start, unique: str
):
    """Rows come twice only if their transaction was not acknowledged, or was a moment ago (0.1 s)."""
    slot = unique[:60]
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    for number in range(0, 400, 4):
        database.execute(f"INSERT INTO t SELECT g FROM generate_series({number}, {number + 3}) g")
    seen: list[int] = []
    acknowledged: set[int] = set()
    lives = 0
    while len(acknowledged) < 400:
        lives += 1
        process = start("acknowledge", database.dsn(), slot)
        mine: list[int] = []
        # Killed in the middle of a transaction, at another place each time
        for lines in range(37 * lives):
            if lines:
                go_on(process)
            words = line(process)
            if words[0] == "row":
                mine.append(int(words[1]))
            elif len(acknowledged | set(mine)) == 400:
                acknowledged |= set(mine)
                break
            else:
                acknowledged |= set(mine)
        process.kill()
        # THEN it went on in order, without a gap, at the beginning of a transaction
        assert mine == list(range(mine[0], mine[-1] + 1))
        assert mine[0] % 4 == 0
        assert mine[0] <= (seen[-1] + 1 if seen else 0)
        seen += mine
        until(lambda: True if not readers(database) else None, "the slot stayed in use")
    assert sorted(set(seen)) == list(range(400))
    assert lives > 2


@pytest.mark.parametrize("streamed", [False, True], ids=["after-commit", "streamed"])
def test_a_large_transaction_is_read_in_bounded_memory(database: Database, start: Start, streamed: bool):
    """13 sends it after its commit in either case; the others stream it, and it comes from the spool's file."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    memory = "1MB" if streamed else "1GB"
    process = start("measure", database.dsn(options=f"-c logical_decoding_work_mem={memory}"), "-")
    assert line(process) == ["ready"]
    database.execute(f"INSERT INTO t SELECT g, repeat('x', 180) FROM generate_series(1, {ROWS}) g")
    assert line(process) == ["begins"]
    done, count, total, grown = line(process)
    print(
        f"PostgreSQL {database.version}, {'streamed' if streamed else 'after commit'}: {int(grown) >> 20} MB"
    )
    assert (done, int(count), int(total)) == ("done", ROWS, ROWS * (ROWS + 1) // 2)
    assert int(grown) < GROWN_MAX
    assert process.wait(WAIT_S) == 0
