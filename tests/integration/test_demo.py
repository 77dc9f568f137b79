"""`make demo` as a person runs it: to its end, broken off, and with a daemon that dies; and how it reads topics."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.demo.topics import Reader, TopicError
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics

REPOSITORY = Path(__file__).parents[2]
OPEN = "Ctrl-C ends it"


class Demo:
    """A demo in a process of its own, with a temporary folder by which its processes are known."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.said = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.demo", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def await_saying(self, words: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if words in line:
                return
        pytest.fail(f"the demo ended without saying {words!r}:\n{self.said}")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float = 120) -> int:
        rest, _ = self._process.communicate(timeout=timeout_s)
        self.said += rest
        return self._process.returncode

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def children(self) -> dict[int, str]:
        """Processes that run with something of this demo's folder in their command line, by pid."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"{self.folder}/" in command:
                found[int(entry.name)] = command
        return found

    def await_no_children(self, timeout_s: float = 10) -> None:
        deadline = time.monotonic() + timeout_s
        while (left := self.children()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


@pytest.fixture
def demo(scratch: Path) -> Iterator[Callable[..., Demo]]:
    with ExitStack() as stack:

        def start(*arguments: str) -> Demo:
            folder = scratch / f"demo-{time.monotonic_ns()}"
            folder.mkdir(mode=0o711)
            folder.chmod(0o711)
            started = Demo(folder, *arguments)
            stack.callback(started.close)
            return started

        yield start


def test_it_ends_by_itself_equal_and_leaves_nothing(demo: Callable[..., Demo]) -> None:
    # WHEN it runs for some seconds
    run = demo("--seconds", "10")
    code = run.wait()
    # THEN the folded topics were the tables, with every kind of transaction among them
    assert code == 0, run.said
    assert run.said.rstrip().endswith("\nequal")
    assert re.search(r"^equal: 4 tables at [0-9A-F]+/[0-9A-F]+$", run.said, re.MULTILINE), run.said
    tables = re.findall(r"^public\.(\w+): (\d+) rows, (\d+) folded .*: equal$", run.said, re.MULTILINE)
    assert [name for name, _, _ in tables] == ["customers", "order_items", "orders", "products"]
    assert all(int(rows) > 0 and rows == folded for _, rows, folded in tables)
    counts = dict(
        re.findall(r"(\w[\w ]*?) (\d+)(?:,|$)", run.said.partition("The daemon: ")[2].partition("\n")[0])
    )
    assert int(counts["streamed"]) > 0
    assert int(counts["prepared"]) > 0
    assert int(counts["subtransaction aborted"]) > 0
    # AND neither processes nor files are left
    run.await_no_children()
    assert list(run.folder.iterdir()) == []


def test_ctrl_c_ends_it_with_a_comparison(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying(OPEN)
    assert len(run.children()) >= 3
    time.sleep(2)
    run.interrupt()
    assert run.wait() == 0, run.said
    assert "The topics: " in run.said
    run.await_no_children()
    assert list(run.folder.iterdir()) == []


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_ctrl_c_twice_leaves_at_once(demo: Callable[..., Demo], pause_s: float) -> None:
    run = demo()
    run.await_saying(OPEN)
    time.sleep(1)
    run.interrupt()
    time.sleep(max(pause_s, 0.05))
    run.interrupt()
    assert run.wait(timeout_s=15) in {0, 130}, run.said
    run.await_no_children()


class OnTerminal:
    """A demo on a terminal of its own. `drawn` is every byte that it wrote there."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.drawn = b""
        self._terminal, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._before = termios.tcgetattr(side)
        self._side = side
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.demo", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(folder), "TERM": "xterm-256color"},
            stdin=side,
            stdout=side,
            stderr=side,
        )

    def read_until(self, words: bytes | None, timeout_s: float = 120) -> None:
        """Read until the words come; None: until the demo has ended and everything is read."""
        deadline = time.monotonic() + timeout_s
        while words is None or words not in self.drawn:
            ended = self.process.poll() is not None
            if select.select([self._terminal], [], [], 0 if ended else 0.1)[0]:
                self.drawn += os.read(self._terminal, 65536)
            elif ended:
                assert words is None, f"the demo ended without {words!r}"
                return
            assert time.monotonic() < deadline, self.drawn[-2000:]

    def settings_are_as_before(self) -> bool:
        return termios.tcgetattr(self._side) == self._before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)
        os.close(self._terminal)


ESCAPE = re.compile(rb"\x1b(?:\[[0-9;?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)", re.DOTALL)
DRAWING = re.compile(rb"\x1b\[(?:[0-9;]*m|2K|[0-9]*A)")
"""Colours, erase a line, a line up: what is over when it is written."""


@pytest.mark.parametrize("ending", ["by itself", "Ctrl-C", "Ctrl-C twice", "killed"])
def test_nothing_is_left_on_a_terminal_however_it_ends(scratch: Path, ending: str) -> None:
    folder = scratch / f"terminal-{time.monotonic_ns()}"
    folder.mkdir(mode=0o711)
    demo = OnTerminal(folder, *(["--seconds", "3"] if ending == "by itself" else []))
    try:
        if ending != "by itself":
            demo.read_until(b"records/s")
            demo.process.send_signal(signal.SIGKILL if ending == "killed" else signal.SIGINT)
        if ending == "Ctrl-C twice":
            demo.read_until(b"closing the shop")
            demo.process.send_signal(signal.SIGINT)
        demo.read_until(None)
        assert b"records/s" in demo.drawn, "it drew a picture"
        escapes = ESCAPE.findall(demo.drawn)
        assert {one for one in escapes if not DRAWING.fullmatch(one)} == set()
        assert [one for one in escapes if one.endswith(b"m")][-1] == b"\x1b[0m"
        assert demo.settings_are_as_before()
        if ending != "killed":
            assert demo.drawn.endswith(b"\r\n")
    finally:
        demo.close()


def test_ctrl_c_while_the_servers_start_leaves_nothing(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying("Starting")
    while not run.children():
        time.sleep(0.01)
    run.interrupt()
    assert run.wait(timeout_s=15) == 130, run.said
    run.await_no_children()
    assert list(run.folder.iterdir()) == []


def test_a_daemon_that_dies_is_reported_with_its_log(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying(OPEN)
    (daemon,) = [pid for pid, command in run.children().items() if "cdcd.cli" in command]
    os.kill(daemon, signal.SIGKILL)
    assert run.wait(timeout_s=30) == 1
    assert "The daemon ended with exit code -9 (killed by a signal)." in run.said
    assert "stream.started" in run.said
    (log,) = re.findall(r"The daemon's log: (\S+)", run.said)
    assert "stream.started" in Path(log).read_text()
    run.await_no_children()


def test_a_demo_that_is_killed_takes_its_servers_with_it(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying(OPEN)
    run.kill()
    run.wait()
    run.await_no_children()


@pytest.fixture
def topic(broker: KafkaBroker, unique: str) -> str:
    """`<unique>.t`, with two partitions."""
    name = f"{unique}.t"
    create_topics(broker.bootstrap_servers, name, partitions=2)
    return name


def producer(broker: KafkaBroker, name: str) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    made.init_transactions(30)
    return made


def test_the_reader_reads_to_the_end_of_what_is_committed(
    broker: KafkaBroker, topic: str, unique: str
) -> None:
    # GIVEN committed records, and aborted ones behind them
    writer = producer(broker, unique)
    writer.begin_transaction()
    for number in range(5):
        writer.produce(topic, str(number), "k", partition=0, headers=[("h", b"1")])
    writer.commit_transaction()
    writer.begin_transaction()
    writer.produce(topic, "aborted", "k", partition=0)
    writer.produce(topic, "aborted", "k", partition=1)
    writer.flush()
    writer.abort_transaction()
    # WHEN all is read
    with Reader(broker.bootstrap_servers, unique) as reader:
        found = list(reader.read_all(30))
    # THEN it is what was committed
    assert [(raw.partition, raw.value, raw.headers) for raw in found] == [
        (0, str(number).encode(), (("h", b"1"),)) for number in range(5)
    ]


def test_the_reader_waits_for_an_open_transaction_and_then_says_where_it_is(
    broker: KafkaBroker, topic: str, unique: str
) -> None:
    writer = producer(broker, unique)
    writer.begin_transaction()
    writer.produce(topic, "undecided", "k", partition=1)
    writer.flush()
    with (
        Reader(broker.bootstrap_servers, unique) as reader,
        pytest.raises(TopicError, match=rf"{topic}/1\. Is a transaction open"),
    ):
        list(reader.read_all(2))
    writer.commit_transaction()
    with Reader(broker.bootstrap_servers, unique) as reader:
        assert [raw.value for raw in reader.read_all(30)] == [b"undecided"]


def test_the_reader_finds_topics_that_come_later(broker: KafkaBroker, topic: str, unique: str) -> None:
    with Reader(broker.bootstrap_servers, unique) as reader:
        assert reader.discover() == 2
        create_topics(broker.bootstrap_servers, f"{unique}.checkpoint", f"{unique}.u")
        deadline = time.monotonic() + 10
        while reader.discover() < 3:
            assert time.monotonic() < deadline
        writer = producer(broker, unique)
        writer.begin_transaction()
        writer.produce(f"{unique}.u", "late", "k")
        writer.commit_transaction()
        found: list[bytes | None] = []
        while not found:
            assert time.monotonic() < deadline + 10
            found += [raw.value for raw in reader.poll()]
        assert found == [b"late"]
