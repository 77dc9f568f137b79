import json
import threading
import time

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.core.errors import SinkUnavailableError
from cdcd.telemetry.daemon_pages import daemon_routes
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.html_look_ups import LastRecord, ShownLookUp
from cdcd.telemetry.http import HttpRequest, Reply
from cdcd.telemetry.look_ups import CHECK_S, KEPT_MAX, SHARE_MAX, PageLookUp, Tools
from tests.unit.telemetry.status_examples import HOSTILE, busy

CONFIG = parse_config("name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n", {})

FINDINGS = (
    Finding("ok", "server.version", "PostgreSQL", "18.4"),
    Finding("warning", "topic.replicas", f"topic {HOSTILE}", f"one {HOSTILE}", f"Do {HOSTILE}."),
)
RECORD = LastRecord(f"shop.{HOSTILE}", 2, 1234, "UPDATE", 0x16B3748, 1_790_000_000_250, 2_048)


def ended(look_up: PageLookUp[str, str], kind: str = "") -> ShownLookUp[str]:
    """What the look-up that runs now finds."""
    look_up(kind)
    assert look_up._thread is not None
    look_up._thread.join(10.0)
    return look_up.last(kind)


def fresh(look_up: PageLookUp[str, str]) -> None:
    """As if the rest of the work had been over for long."""
    look_up._free_at = 0.0


def test_a_request_does_not_wait_and_many_requests_make_one_look_up():
    go, made = threading.Event(), []

    def make(kind: str) -> str:
        made.append(kind)
        assert go.wait(10.0)
        return "found"

    look_up = PageLookUp(make, 600.0)
    assert [look_up("") for _ in range(50)] == [ShownLookUp()] * 50
    go.set()
    assert ended(look_up).answer == "found"
    fresh(look_up)
    assert look_up("").answer == "found"
    assert made == [""]


def test_one_kind_is_looked_up_at_a_time_and_the_thread_rests_for_the_rest_of_its_share():
    made = []

    def make(kind: str) -> str:
        made.append(kind)
        time.sleep(0.05)
        return kind

    look_up = PageLookUp(make, 600.0)
    assert ended(look_up, "a").answer == "a"
    assert look_up("b") == ShownLookUp()
    assert made == ["a"]
    assert look_up._free_at - time.monotonic() > 0.04 * (1 / SHARE_MAX - 1)
    fresh(look_up)
    assert ended(look_up, "b").answer == "b"


def test_an_answer_that_is_old_is_shown_until_the_next_one_is_there():
    go, answers = threading.Event(), iter(("first", "second"))

    def make(_: str) -> str:
        found = next(answers)
        assert found == "first" or go.wait(10.0)
        return found

    look_up = PageLookUp(make, 0.0)
    assert ended(look_up).answer == "first"
    fresh(look_up)
    assert look_up("").answer == "first"
    go.set()
    assert look_up._thread is not None
    look_up._thread.join(10.0)
    assert look_up.last("").answer == "second"


def test_an_error_is_told_with_its_hint_and_a_defect_without_its_text():
    def refused(_: str) -> str:
        raise SinkUnavailableError("Kafka at b:1 does not answer.", hint="Check that the broker runs.")

    found = ended(PageLookUp(refused, 600.0))
    assert (found.answer, found.error, found.hint) == (
        None,
        "Kafka at b:1 does not answer.",
        "Check that the broker runs.",
    )

    def broken(_: str) -> str:
        raise KeyError("a value of a row")

    found = ended(PageLookUp(broken, 600.0))
    assert found.error == "cdcd could not look this up, because of a bug in cdcd (KeyError)."
    assert "value of a row" not in found.error + found.hint


def test_a_few_answers_are_kept():
    look_up: PageLookUp[str, str] = PageLookUp(lambda kind: kind, 600.0)
    for number in range(2 * KEPT_MAX):
        fresh(look_up)
        assert ended(look_up, str(number)).answer == str(number)
    assert len(look_up._answers) == len(look_up._made_at) == KEPT_MAX
    assert look_up.last("0") == ShownLookUp()


def served(path: str, query: str = "") -> Reply:
    telemetry = busy("shop", f"public.{HOSTILE}", HOSTILE)
    tools = Tools(lambda _: FINDINGS, lambda _config, _table: [RECORD])
    route = daemon_routes(lambda: CONFIG, telemetry, tools=tools)[path]
    assert route.get is not None
    deadline = time.monotonic() + 10.0
    while True:
        reply = route.get(HttpRequest(query, {}))
        waits = b"run now" in reply.body or b"being looked up" in reply.body or b'"at": null' in reply.body
        if not waits or time.monotonic() > deadline:
            return reply


def test_the_page_of_the_checks_has_all_findings_as_text_with_errors_and_warnings_first():
    page = served("/check").body.decode()
    assert "0 errors, 1 warning, 1 in order" in page
    assert page.index("topic.replicas") < page.index("server.version")
    assert "<script>alert" not in page
    assert "Fix: Do &lt;script&gt;alert" in page
    found = json.loads(served("/v1/check").body)
    assert [each["code"] for each in found["findings"]] == ["server.version", "topic.replicas"]
    assert (found["error"], found["at"] is None) == (None, False)


def test_the_records_of_a_table_have_their_places_and_neither_keys_nor_values():
    table = f"public.{HOSTILE}"
    query = "table=" + "".join(f"%{byte:02X}" for byte in table.encode())
    page = served("/records", query).body.decode()
    assert "<script>alert" not in page
    assert "0/16B3748" in page
    assert "2026-09-21 14:13:20.250" in page
    found = json.loads(served("/v1/records", query).body)
    assert found["table"] == table
    assert found["records"] == [
        {
            "topic": RECORD.topic,
            "partition": 2,
            "offset": 1234,
            "operation": "UPDATE",
            "lsn": "0/16B3748",
            "written_at": "2026-09-21T14:13:20.250+00:00",
            "bytes": 2048,
        }
    ]


@pytest.mark.parametrize(
    "query", ["", "table=", "table=public.secrets", "table=pg_catalog.pg_authid", "&" * 9]
)
def test_only_tables_of_the_list_are_looked_up(query: str):
    looked: list[str] = []

    def records(_config: Config, table: str) -> list[LastRecord]:
        looked.append(table)
        return []

    tools = Tools(lambda _: FINDINGS, records)
    route = daemon_routes(lambda: CONFIG, busy(), tools=tools)["/records"]
    assert route.get is not None
    assert route.get(HttpRequest(query, {})).status == 404
    assert not looked


def test_the_pipelines_page_shows_checks_only_while_the_instance_streams_and_links_each_table():
    telemetry = busy()
    checks: list[str] = []

    def check(config: Config) -> tuple[Finding, ...]:
        checks.append(config.name)
        return FINDINGS

    tools = Tools(check, lambda _config, _table: [])
    telemetry.streaming = False
    route = daemon_routes(lambda: CONFIG, telemetry, tools=tools)["/"]
    assert route.get is not None
    page = route.get(HttpRequest("", {})).body.decode()
    assert "The checks have not run yet." in page
    assert '<a href="/records?table=public.orders">' in page
    assert not checks
    assert CHECK_S == 600.0


def test_without_tools_nothing_is_served_and_no_link_leads_to_it():
    routes = daemon_routes(lambda: CONFIG, busy())
    assert not {"/check", "/records", "/v1/check", "/v1/records"} & routes.keys()
    assert routes["/"].get is not None
    page = routes["/"].get(HttpRequest("", {})).body.decode()
    assert "/records" not in page
    assert "/check" not in page
