"""Tables with faults of their own, beside a table `other` without a fault: what the tests of such tables share."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from deploy.local.cache import REPOSITORY
from tests.integration import created_topics
from tests.integration.daemon import until
from tests.integration.faults.trial import Trial
from tests.integration.forked import run_cdcd

LARGE = random.Random(3).randbytes(50_000).hex()
"""Compression does not make it small."""

OTHERS_S = 10.0
"""How long the row of another table may take on a loaded machine. Alone, it takes less than two seconds."""


WRITES_S = 200
"""Transactions a second of the writer beside a fault."""

RESULTS = REPOSITORY / "build" / "results" / "table_faults.md"
"""Has the delay of another table by each kind of fault under load, in seconds."""

LOADS = pytest.mark.parametrize(
    "loaded", [False, pytest.param(True, marks=pytest.mark.chaos)], ids=["at once", "one by one under load"]
)


@dataclass(frozen=True)
class TableFault:
    """A table with a fault.

    Attributes:
        table: its name in the schema public.
        fault: the kind of fault that is expected.
        columns: of the table; `id` is the key unless said otherwise.
        before: SQL before the daemon starts.
        breaks: SQL that makes the fault, while the daemon runs.
        mends: SQL that removes the cause.
    """

    table: str
    fault: str
    columns: str = "id int PRIMARY KEY, note text"
    before: str = ""
    breaks: str = "INSERT INTO {t} VALUES (2, 'at fault')"
    mends: str = ""

    @property
    def name(self) -> str:
        return f"public.{self.table}"


def envelopes(one: Trial, topic: str) -> list[dict[str, Any]]:
    """The envelopes of a topic, as a reader with `read_committed` sees them."""
    return [json.loads(value) for _, value, _ in one.records(topic) if value is not None]


def folded(changes: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The rows of a table by the changes of its topic: `note` by `id`."""
    rows: dict[int, str] = {}
    for each in changes:
        if each["op"] == "t":
            rows.clear()
        elif each["op"] == "d":
            rows.pop(each["before"]["id"], None)
        else:
            rows[each["after"]["id"]] = each["after"]["note"]
    return rows


def insert_other(one: Trial, number: int, topic: str, timeout_s: float) -> float:
    """Insert a row into the table `other`, and return the seconds until its topic has a record of it."""
    one.execute("INSERT INTO other VALUES (%s)", number)
    began = time.monotonic()
    until(
        lambda: number in [json.loads(key)["id"] for key, _, _ in one.records(topic)] or None,
        f"the row {number}: {one.daemon.last_words()}",
        timeout_s,
    )
    return time.monotonic() - began


def told_aside(one: Trial) -> dict[str, str]:
    """The fault of each table that the daemon has told as set aside, by the table's name."""
    lines = [line for line in one.daemon.output(all_lives=True).splitlines() if '"table.aside"' in line]
    return {event["table"]: event["fault"] for event in map(json.loads, lines)}


@contextmanager
def writing(one: Trial) -> Iterator[list[int]]:
    """Write rows into the table `busy` all the time. Gives the numbers of the rows that are committed."""
    done = threading.Event()
    committed: list[int] = []

    def write() -> None:
        with psycopg.connect(one.dsn, autocommit=True) as connection:
            while not done.wait(1 / WRITES_S):
                connection.execute("INSERT INTO busy VALUES (%s)", (len(committed) + 1,))
                committed.append(len(committed) + 1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield committed
    finally:
        done.set()
        thread.join()


def create_busy(one: Trial, topic: str) -> None:
    """Create the table `busy` and its topic. A broker of several pipelines creates topics slowly."""
    one.execute("CREATE TABLE busy (id int PRIMARY KEY)")
    created_topics.create_topics(one.reader_servers, topic)


@contextmanager
def under_load(one: Trial, topic: str, delivery: str, *, loaded: bool) -> Iterator[None]:
    """Write into `busy` meanwhile, if `loaded`. Then its topic has each row, and with exactly_once each row once."""
    with ExitStack() as stack:
        committed = stack.enter_context(writing(one)) if loaded else []
        yield
    if loaded:
        assert len(committed) > 100
        found = [json.loads(key)["id"] for key, _, _ in one.records(topic, len(committed))]
        if delivery == "exactly_once":
            assert found == committed
        else:
            assert sorted({json.loads(key)["id"] for key, _, _ in one.records(topic)}) == committed


def break_tables(
    one: Trial,
    breaks: Sequence[tuple[TableFault, Callable[[], object]]],
    delay: Callable[[], float],
    how: str,
    *,
    loaded: bool,
) -> None:
    """Break the tables: all at once, or under load one after the other, with a kill of the daemon in each second fault.

    Args:
        delay: returns the seconds until another table's row was delivered.
        how: of the pipeline, for the results.
    """
    for number, (each, make) in enumerate(breaks):
        make()
        if not loaded:
            continue
        killed = number % 2 == 1
        if killed:
            one.daemon.kill()
            one.daemon.start()
            one.daemon.await_streaming()
        seconds = delay()
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with RESULTS.open("a") as results:
            ended = "after a kill and a start" if killed else ""
            results.write(f"| {each.table}: {each.fault} | {how} | {seconds:.2f} | {ended} |\n")


def assert_shown(one: Trial, faults: Mapping[str, str]) -> None:
    """Every place that shows tables shows that these tables are set aside, each with its fault.

    Args:
        faults: kinds of faults by table. Tables that come back by themselves may be back for a moment.
    """
    own = json.loads(one.daemon.page("/v1/status"))
    listed = {each["table"] for each in own["set_aside"]}
    page = one.daemon.page("/")
    config = ("--config", str(one.daemon.config_path))
    tables, status = run_cdcd("tables", *config), run_cdcd("status", *config)
    assert tables.returncode == status.returncode == 13, (tables.stdout, status.stdout)
    by_fault = one.daemon.metrics()["cdcd_tables_set_aside"]
    for table, fault in faults.items():
        assert table in listed, own["set_aside"]
        assert table in page
        assert table in tables.stdout, tables.stdout
        assert any(fault in labels and value >= 1 for labels, value in by_fault.items()), by_fault
