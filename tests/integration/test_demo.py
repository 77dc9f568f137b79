"""`make demo` as a person runs it: to its end, broken off, and with a daemon that dies; and how it reads topics."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.demo import topics
from deploy.demo.topics import Reader, TopicError
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.daemon import WAIT_S, until
from tests.integration.terminal import ESCAPE, Terminal

REPOSITORY = Path(__file__).parents[2]
OPEN = "Ctrl-C ends it"
WATCHING = "records/s"
"""From here on, the first Ctrl-C closes the shop."""
CLOSING = re.compile(r"closing the shop|the shop is closed|Comparing every row")
"""The first Ctrl-C was heard. A line about the shop comes every two seconds."""


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

    def await_saying(self, words: str | re.Pattern[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if re.search(words, line):
                return
        pytest.fail(f"the demo ended without saying {words!r}:\n{self.said}")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float = 120) -> int:
        rest, _ = self._process.communicate(timeout=timeout_s)
        self.said += rest
        return self._process.returncode

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def children(self) -> dict[int, str]:
        return processes_of(self.folder)

    def await_no_children(self) -> None:
        await_no_processes_of(self.folder)


def processes_of(folder: Path) -> dict[int, str]:
    """Processes that run with something of this demo's folder in their command line, by pid."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{folder}/" in command:
            found[int(entry.name)] = command
    return found


def await_no_processes_of(folder: Path) -> None:
    until(lambda: not processes_of(folder) or None, f"{processes_of(folder)} went on")


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
    tables = re.findall(r"^public\.(\w+) +(\d+) rows   topic: equal$", run.said, re.MULTILINE)
    assert [name for name, _ in tables] == ["customers", "order_items", "orders", "products"]
    assert all(int(rows) > 0 for _, rows in tables)
    # AND the result is one line, at the end, with the command that comes next
    *_, result, following = run.said.rstrip().splitlines()
    rows = sum(int(rows) for _, rows in tables)
    found = re.fullmatch(
        r"EQUAL: topics have exactly the rows of PostgreSQL at [0-9A-F]+/[0-9A-F]+ \((.*)\)\.", result
    )
    assert found is not None, run.said
    assert found[1] == f"4 tables, {rows} rows"
    assert run.said.lower().count("equal:") == 1
    assert (REPOSITORY / re.findall(r"Next: (\S+)", following)[0]).exists()
    counts = dict(
        re.findall(r"(\w[\w ]*?) (\d+)(?:,|$)", run.said.partition("cdcd delivered: ")[2].partition("\n")[0])
    )
    assert int(counts["streamed"]) > 0
    assert int(counts["prepared"]) > 0
    assert int(counts["subtransaction aborted"]) > 0
    # AND neither processes nor files are left
    run.await_no_children()
    assert list(run.folder.iterdir()) == []


@pytest.mark.long
def test_it_prints_the_address_of_the_page_before_the_shop_opens(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying(OPEN)
    (address,) = re.findall(r"^cdcd's page: (http://127\.0\.0\.1:\d+/)$", run.said, re.MULTILINE)
    with urllib.request.urlopen(address) as answer:
        assert "cdcd" in answer.read().decode()
    run.interrupt()
    run.wait()
    run.await_no_children()


def test_ctrl_c_twice_leaves_at_once(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying(WATCHING)
    run.interrupt()
    # Two signals that come before the first one is heard are one signal.
    run.await_saying(CLOSING)
    run.interrupt()
    assert run.wait(timeout_s=WAIT_S) in {0, 130}, run.said
    run.await_no_children()


DRAWING = re.compile(rb"\x1b\[(?:[0-9;]*m|2K|[0-9]*A)")
"""Colours, erase a line, a line up: what is over when it is written."""


@pytest.mark.parametrize(
    "ending", [pytest.param("by itself", marks=pytest.mark.long), "Ctrl-C", "Ctrl-C twice", "killed"]
)
def test_nothing_is_left_on_a_terminal_however_it_ends(scratch: Path, ending: str) -> None:
    folder = scratch / f"terminal-{time.monotonic_ns()}"
    folder.mkdir(mode=0o711)
    arguments = ["--seconds", "3"] if ending == "by itself" else []
    command = [sys.executable, "-m", "deploy.demo", *arguments]
    with Terminal(command, environment={"TMPDIR": str(folder)}) as terminal:
        if ending != "by itself":
            terminal.read_until("records/s", 2 * WAIT_S)
            assert len(processes_of(folder)) >= 3
            terminal.process.send_signal(signal.SIGKILL if ending == "killed" else signal.SIGINT)
        if ending == "Ctrl-C twice":
            # A picture is drawn now and then, and may miss the first of these.
            terminal.read_until(CLOSING, 2 * WAIT_S)
            terminal.process.send_signal(signal.SIGINT)
        code = terminal.read_to_end()
        if ending == "Ctrl-C":
            assert code == 0, terminal.plain()
            assert "EQUAL: topics have" in terminal.plain(), "it compared"
        assert "records/s" in terminal.plain(), "it drew a picture"
        escapes = ESCAPE.findall(terminal.drawn)
        assert {one for one in escapes if not DRAWING.fullmatch(one)} == set()
        assert [one for one in escapes if one.endswith(b"m")][-1] == b"\x1b[0m"
        assert terminal.is_as_before()
        if ending != "killed":
            assert terminal.drawn.endswith(b"\r\n")
        # AND no server is left either, also where the demo could do nothing about it
        await_no_processes_of(folder)
        if ending == "Ctrl-C":
            assert list(folder.iterdir()) == []


def test_ctrl_c_while_the_servers_start_leaves_nothing(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying("Starting")
    while not run.children():
        time.sleep(0.01)
    run.interrupt()
    assert run.wait(timeout_s=WAIT_S) == 130, run.said
    run.await_no_children()
    assert list(run.folder.iterdir()) == []


@pytest.mark.long
def test_a_daemon_that_dies_is_reported_with_its_log(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.await_saying(OPEN)
    (daemon,) = [pid for pid, command in run.children().items() if "cdcd.cli" in command]
    # It may be ready before the line is in its log.
    (path,) = run.folder.glob("*/cdcd.log")
    until(lambda: "stream.started" in path.read_text() or None, "it never streamed")
    os.kill(daemon, signal.SIGKILL)
    assert run.wait(timeout_s=WAIT_S) == 1
    assert "The daemon ended with exit code -9 (killed by a signal)." in run.said
    assert "stream.started" in run.said
    (log,) = re.findall(r"The daemon's log: (\S+)", run.said)
    assert "stream.started" in Path(log).read_text()
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
        found = list(reader.read_all(WAIT_S))
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
        pytest.raises(TopicError, match=rf"{topic}/1 \(end: 1\)\. Is a transaction open"),
    ):
        list(reader.read_all(2))
    writer.commit_transaction()
    with Reader(broker.bootstrap_servers, unique) as reader:
        assert [raw.value for raw in reader.read_all(WAIT_S)] == [b"undecided"]


def test_a_reader_that_hears_nothing_begins_again_where_it_was(
    broker: KafkaBroker, topic: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN records, and a transaction behind them that stays open for longer than a reader listens in vain
    monkeypatch.setattr(topics, "SILENT_S", 0.5)
    writer = producer(broker, unique)
    writer.begin_transaction()
    writer.produce(topic, "first", "k", partition=1)
    writer.commit_transaction()
    writer.begin_transaction()
    writer.produce(topic, "second", "k", partition=1)
    writer.flush()
    with Reader(broker.bootstrap_servers, unique) as reader:
        found = reader.read_all(WAIT_S)
        # WHEN it was committed at last
        assert next(found).value == b"first"
        later = threading.Timer(2.0, writer.commit_transaction)
        later.start()
        # THEN the reader has each record once
        assert [raw.value for raw in found] == [b"second"]
        later.join()


def test_the_reader_finds_topics_that_come_later(broker: KafkaBroker, topic: str, unique: str) -> None:
    with Reader(broker.bootstrap_servers, unique) as reader:
        assert reader.discover() == 2
        create_topics(broker.bootstrap_servers, f"{unique}.checkpoint", f"{unique}.u")
        deadline = time.monotonic() + WAIT_S
        while reader.discover() < 3:
            assert time.monotonic() < deadline
        writer = producer(broker, unique)
        writer.begin_transaction()
        writer.produce(f"{unique}.u", "late", "k")
        writer.commit_transaction()
        found: list[bytes | None] = []
        while not found:
            assert time.monotonic() < deadline + WAIT_S
            found += [raw.value for raw in reader.poll()]
        assert found == [b"late"]
