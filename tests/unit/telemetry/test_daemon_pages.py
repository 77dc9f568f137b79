import json
import re
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.snapshot.outcomes import Outcome
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask
from cdcd.telemetry.daemon_pages import READING_MAX, TABLES_MAX, daemon_routes, daemon_status, serve_http
from cdcd.telemetry.http import HttpRequest, HttpRoute
from cdcd.telemetry.state import ActiveElsewhere, AsideStatus, Telemetry
from cdcd.telemetry.throughput import Throughput
from tests.unit.telemetry.status_examples import busy, keys, status_of

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "page.md"


def test_a_pipeline_of_which_nothing_is_known_has_every_key():
    status = status_of(Telemetry("shop", "cdcd_shop"))
    full = status_of(busy())
    assert list(status) == list(full)
    assert status["snapshot"] is None
    assert (status["role"], status["ready"], status["lag_bytes"]) == ("starting", False, None)
    assert json.loads(json.dumps(full, allow_nan=False)) == full


def test_the_numbers_are_those_of_the_telemetry():
    status = status_of(busy())
    assert status["lag_bytes"] == 0x1000
    assert 29 < status["lag_s"] < 32
    assert status["position"]["server_lsn"] == "0/2000"
    assert (status["streamed_open"], status["prepared_open"]) == (2, 1)
    assert 74 < status["prepared_oldest_s"] < 77
    assert status["slot"]["retained_bytes"] == 18_000_000
    assert 990 < status["slot"]["seconds_left"] < 1010
    assert status["kafka"] == {**status["kafka"], "up": False, "message": "connection refused"}
    assert status["postgres"] == {"up": True, "away_s": None, "message": "", "hint": ""}
    assert status["summary"] == "waits for Kafka; nothing is lost"
    assert status["totals"]["rows"] == 17
    (reading, later) = status["snapshot"]["reading"]
    assert (reading["share"], reading["rows"], reading["bytes"]) == (0.4, 40, 81920)
    assert later["bytes"] is None
    assert datetime.fromisoformat(status["at"]).utcoffset() is not None


def test_tables_that_are_set_aside_are_named_with_reason_and_command():
    status = status_of(busy())
    assert status["set_aside_total"] == 2
    first, second = status["set_aside"]
    assert first == {
        "table": "public.orders2",
        "fault": "topic",
        "since_lsn": "0/1800",
        "reason": "connection refused",
        "hint": "Hint: connection refused",
        "command": "cdcd tables resume public.orders2",
        "tries": 2,
    }
    assert (second["table"], second["reason"]) == ("public.aside", "")
    telemetry = busy()
    telemetry.events = {("public.orders2", "c"): 1}
    assert [each["state"] for each in status_of(telemetry)["tables"]] == ["set aside"]
    telemetry.aside = tuple(AsideStatus(f"public.t{number}", "registry", 1) for number in range(5000))
    status = status_of(telemetry)
    assert (len(status["set_aside"]), status["set_aside_total"]) == (READING_MAX, 5000)
    telemetry.stand_by()
    assert status_of(telemetry)["set_aside"] == []


def test_tables_come_by_rate_and_then_by_rows():
    telemetry = busy()
    telemetry.throughput._looks.clear()
    telemetry.events = {("public.much", "c"): 1000, ("public.little", "c"): 1, ("public.now", "u"): 2}
    # Of these there is no record.
    telemetry.events |= {("public.much", "filtered"): 70, ("public.none", "filter_failed"): 7}
    telemetry.throughput.look(status_time := 0.0, status_time + 1, telemetry.totals(), telemetry.events)
    telemetry.events = {**telemetry.events, ("public.now", "u"): 20_000_000_000}
    status = status_of(telemetry)
    assert [each["table"] for each in status["tables"]] == ["public.now", "public.much", "public.little"]
    assert status["tables"][1] == {
        "table": "public.much",
        "inserts": 1000,
        "updates": 0,
        "deletes": 0,
        "truncates": 0,
        "rows_read": 0,
        "rows": 1000,
        "rows_per_s": 0.0,
        "state": "published",
    }


def test_each_table_has_its_state():
    telemetry = busy()
    telemetry.events = {
        (name, "c"): 1 for name in ("public.orders", "public.later", "public.done", "public.legacy")
    }
    assert {each["table"]: each["state"] for each in status_of(telemetry)["tables"]} == {
        "public.orders": "reading",
        "public.later": "waiting",
        "public.done": "published",
        "public.legacy": "failed",
    }


def test_the_last_reading_of_a_table_says_whether_it_failed():
    telemetry = busy()
    outcomes = (
        Outcome("public.done", "", 12),
        Outcome("public.legacy", "", 3, "permission denied"),
        Outcome("public.done", "", 3, "permission denied"),
        Outcome("public.legacy", "", 12),
    )
    telemetry.snapshot = Progress(outcomes=outcomes)
    telemetry.events = {("public.done", "c"): 1, ("public.legacy", "c"): 1}
    assert {each["table"]: each["state"] for each in status_of(telemetry)["tables"]} == {
        "public.done": "failed",
        "public.legacy": "published",
    }


def test_a_standby_names_the_active_instance_until_it_is_active_itself():
    telemetry = Telemetry("shop", "cdcd_shop")
    telemetry.role = "standby"
    telemetry.active_elsewhere = ActiveElsewhere("shop lock", "10.0.0.5", 77, 1_790_000_000.0)
    status = status_of(telemetry)
    assert (
        status["summary"] == "stands by for the instance at 10.0.0.5, and takes over when that instance ends"
    )
    assert status["active_elsewhere"] == {
        "application_name": "shop lock",
        "client": "10.0.0.5",
        "pid": 77,
        "seen_at": "2026-09-21T14:13:20+00:00",
    }
    telemetry.role = "active"
    assert status_of(telemetry)["active_elsewhere"] is None


def test_the_day_has_the_largest_lag_and_the_mean_delay_of_the_active_instance():
    telemetry = busy()
    telemetry.throughput = Throughput()
    telemetry.look(0.0, 900.0)
    telemetry.delays.observe(0.5)
    telemetry.delays.observe(1.5)
    telemetry.role = "standby"
    telemetry.look(1.0, 901.0)
    (*before, now) = telemetry.throughput.day(902.0, telemetry.totals(), telemetry.all_delays())
    assert (now.at, now.delay_s, now.lag_s) == (900, 1.0, 0.0)
    assert {(each.lag_s, each.delay_s) for each in before} == {(None, None)}


def test_the_object_stays_small_with_thousands_of_tables():
    telemetry = busy()
    telemetry.events = {(f"public.t{number}", "c"): number for number in range(9000)}
    telemetry.snapshot = Progress(tasks=tuple(TableTask(f"public.t{number}") for number in range(9000)))
    status = status_of(telemetry)
    assert (len(status["tables"]), status["tables_total"]) == (TABLES_MAX, 9000)
    assert (len(status["snapshot"]["reading"]), status["snapshot"]["tables_left"]) == (READING_MAX, 9000)
    assert len(json.dumps(status)) < 70_000
    assert len(status_of(telemetry, 10_000)["tables"]) == 9000


def test_what_says_how_the_pipeline_is():
    telemetry = Telemetry("shop", "cdcd_shop")
    said = [status_of(telemetry)["summary"]]
    telemetry.role = "standby"
    said.append(status_of(telemetry)["summary"])
    telemetry.role = "active"
    said.append(status_of(telemetry)["summary"])
    telemetry.streaming, telemetry.reading = True, True
    said.append(status_of(telemetry)["summary"])
    telemetry.reading, telemetry.server_wal_end, telemetry.caught_up = False, 5000, True
    said.append(status_of(telemetry)["summary"])
    assert said == [
        "is starting: it connects to PostgreSQL and Kafka",
        "standby: another instance is active, and this instance takes over when that instance ends",
        "is active and does not stream: it connects again",
        "reads the initial snapshot; changes follow after it",
        "streaming, no lag",
    ]


def test_every_key_is_documented_and_every_documented_key_is_there():
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert documented == set(keys(status_of(busy())))


CONFIG = parse_config(
    "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {port: 0}\n", {}
)


def asked(route: HttpRoute, query: str = "") -> bytes:
    assert route.get is not None
    return route.get(HttpRequest(query, {})).body


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """How many tables each status had that was made."""
    found: list[int] = []

    def counted(*arguments):
        found.append(arguments[-1])
        return daemon_status(*arguments)

    monkeypatch.setattr("cdcd.telemetry.daemon_pages.daemon_status", counted)
    # A busy machine may need longer than usual for a hundred answers.
    monkeypatch.setattr("cdcd.telemetry.daemon_pages.FRESH_S", 600.0)
    return found


def test_the_page_and_the_status_are_one_object_and_many_readers_make_it_once(made):
    routes = daemon_routes(lambda: CONFIG, busy())
    for _ in range(50):
        asked(routes["/"])
        asked(routes["/v1/status"])
    assert made == [50]
    # The query asks for all tables, and any other query for nothing else.
    asked(routes["/"], "tables=all")
    asked(routes["/"], "tables=100000")
    assert made == [50, 10_000]


def test_readers_of_a_page_see_a_whole_object_while_the_pipeline_works():
    telemetry = Telemetry("shop", "cdcd_shop")
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            telemetry.events[f"public.t{number % 3000}", "c"] = number
            telemetry.throughput.look(time.monotonic(), number * 30.0, telemetry.totals(), telemetry.events)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with serve_http(CONFIG, telemetry) as address:
            for path in ("/", "/v1/status", "/?tables=all", "/metrics") * 3:
                with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
                    assert answer.status == 200
    finally:
        stop.set()
        thread.join()
