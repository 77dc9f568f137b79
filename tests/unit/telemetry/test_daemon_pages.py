import threading
import time
import urllib.request

import pytest

from cdcd.config.loading import parse_config
from cdcd.telemetry.daemon_pages import daemon_routes, serve_http
from cdcd.telemetry.daemon_status import daemon_status
from cdcd.telemetry.http import Request, Route
from cdcd.telemetry.state import Telemetry
from tests.unit.telemetry.status_examples import busy

CONFIG = parse_config(
    "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {port: 0}\n", {}
)


def asked(route: Route, query: str = "") -> bytes:
    assert route.get is not None
    return route.get(Request(query, {})).body


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """How many tables each status had that was made."""
    found: list[int] = []

    def counted(*arguments):
        found.append(arguments[-1])
        return daemon_status(*arguments)

    monkeypatch.setattr("cdcd.telemetry.daemon_pages.daemon_status", counted)
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
