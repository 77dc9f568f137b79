import os
import time
from collections.abc import Iterator

import pytest

from cdcd.core.catalog.oids import Oids
from cdcd.core.snapshot.outcomes import CANCELLED, Outcome, Requested
from cdcd.core.snapshot.progress import EXPORTED, Progress
from cdcd.core.snapshot.table_task import Part, TableTask
from cdcd.tools.operations.snapshot_status import SnapshotStatus, as_object, lines

MB = 1 << 20
NOW = 1_700_000_000
READING = TableTask(
    "public.orders",
    1,
    request="me",
    parts=(Part(1, 1, 100, 10 * MB, ((0, 50),)),),
    rows=5000,
    askers=("me", "too"),
    asked=NOW - 120,
    began=NOW - 100,
)
WAITING = TableTask("public.items", 2, where="id > 5", request="me", askers=("me",), asked=NOW - 120)
PROGRESS = Progress(
    EXPORTED,
    (WAITING, READING),
    event_no=7000,
    outcomes=(
        Outcome("public.bad", "me", 0, "permission denied", NOW - 120, NOW - 110, NOW - 105),
        Outcome("public.old", "", 2000, "", 0, NOW - 300, NOW - 200),
    ),
    waiting=Oids((8, 9)),
    complete=281,
    failed=1,
    requests=(
        Requested("me", 3, 0, 1, 0, NOW - 120, 0, "permission denied", 3),
        Requested("done", 1, 1, 0, 9, NOW - 9, NOW - 8),
        Requested("over", 1, 0, 1, 0, NOW - 9, NOW - 8, "cancelled", CANCELLED),
    ),
)
STATUS = SnapshotStatus(PROGRESS, {8: "public.later"}, NOW)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of the day are local times."""
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    if before is None:
        monkeypatch.delenv("TZ")
    else:
        monkeypatch.setenv("TZ", before)
    time.tzset()


def test_every_table_has_a_state_a_request_and_times():
    text = [line.rstrip() for line in lines(STATUS)]
    assert [line.split()[:2] for line in text if not line.startswith((" ", "and", "4 "))] == [
        ["table", "state"],
        ["public.orders", "reading"],
        ["public.items", "waiting"],
        ["public.later", "waiting"],
        ["oid", "9"],
        ["public.bad", "failed"],
        ["public.old", "complete"],
    ]
    orders = next(line for line in text if line.startswith("public.orders"))
    assert (
        " ".join(orders.split()) == "public.orders reading 50% of 10 MB 5,000 50 22:11:40 2 min 2 min me, too"
    )
    assert "    where id > 5" in text
    assert "    permission denied" in text
    # AND what is not named is counted
    assert text[-2] == "and 280 tables that ended before, all complete"
    assert text[-1] == "4 tables to read (exported); 7,000 rows were read since the pipeline began"


def test_a_request_is_shown_with_its_tables_only():
    shown = [line.split()[0] for line in lines(STATUS, request="too")]
    assert shown == ["table", "public.orders"]


def test_what_is_paused_or_over_is_said_in_words():
    paused = SnapshotStatus(Progress(paused=True, tasks=(READING,)), now=NOW)
    text = list(lines(paused))
    assert text[1].split()[1] == "paused"
    assert text[-1].startswith("paused, with 1 table to read: `cdcd snapshot resume` goes on")
    assert next(lines(SnapshotStatus(None))) == "nothing was delivered yet"
    assert list(lines(SnapshotStatus(Progress(event_no=3))))[-1].startswith("nothing is being read; 3 rows")


def test_what_took_less_than_a_second_has_no_rate():
    over = Outcome("public.small", "", 5000, "", asked=NOW - 9, began=NOW - 5, ended=NOW - 5)
    status = SnapshotStatus(Progress(outcomes=(over,), complete=1), now=NOW)
    (table,) = status.tables()
    assert (table.elapsed_s, table.rows_per_s) == (0, None)
    assert "< 1 s" in list(lines(status))[1]


def test_an_object_has_the_same_for_programs():
    found = as_object(STATUS)
    assert found is not None
    tables = {each["name"]: each for each in found["tables"]}
    assert tables["public.orders"] == {
        "name": "public.orders",
        "state": "reading",
        "request": "me, too",
        "where": "",
        "rows": 5000,
        "share": 0.5,
        "bytes": 10 * MB,
        "asked": NOW - 120,
        "began": NOW - 100,
        "ended": None,
        "elapsed_s": 100,
        "rows_per_s": 50.0,
        "left_s": 100,
        "error": "",
    }
    assert tables["public.bad"]["error"] == "permission denied"
    assert (tables["public.later"]["began"], tables["public.later"]["elapsed_s"]) == (None, None)
    assert (found["complete"], found["failed"], found["forgotten"], found["left"]) == (281, 1, 280, 4)
    assert [(each["id"], each["state"], each["exit_code"]) for each in found["requests"]] == [
        ("me", "open", 3),
        ("done", "complete", 0),
        ("over", "cancelled", CANCELLED),
    ]
    assert as_object(SnapshotStatus(None)) is None


def test_a_failure_that_is_forgotten_is_counted():
    forgotten = Progress(complete=5, failed=3, outcomes=(Outcome("a.b", "", 0, "denied"),))
    assert "and 7 tables that ended before, of which 2 failed (see the log)" in list(
        lines(SnapshotStatus(forgotten))
    )
