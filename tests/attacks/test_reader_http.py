"""Who reaches the HTTP port, or has a browser reach it, wants to read, to act, or to keep others from it."""

import base64
import json
import socket
import time
from contextlib import suppress

import pytest

from cdcd.config.mirror import MirrorHttpConfig
from cdcd.config.sections.process import HttpConfig, ListenConfig
from cdcd.core.engine.reachability import Outage
from cdcd.telemetry import access, look_ups
from cdcd.telemetry.http import CONNECTIONS_MAX, HttpServer
from cdcd.telemetry.mirror import MirrorTelemetry, mirror_routes
from cdcd.telemetry.state import Telemetry
from cdcd.telemetry.verify import VerifyTelemetry, verify_routes
from tests.http_served import ACT, DATA, EVIL, LOOKED_UP, READ, TABLE, Served, serving


@pytest.mark.worst
@pytest.mark.attack(
    gains="names of tables and numbers, by DNS rebinding in the browser of an employee", before="failed"
)
@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize(
    "host",
    [
        EVIL,
        f"{EVIL}:9464",
        f"{EVIL}.",
        "127.0.0.1.evil.example.com",
        "localhost.evil.example.com",
        "0x7f.1",
        "[::1].evil.example.com",
        "evil",
        "127.0.0.1:80evil",
    ],
)
def test_a_page_of_a_stranger_asks_under_its_own_name(host: str, path: str):
    with serving() as served:
        status, body = served.ask(path, Host=host)
        assert status == access.MISDIRECTED
        assert b"shop" not in body


@pytest.mark.attack(
    gains="names of tables and numbers, by a name that is read in two ways", before="withstood"
)
@pytest.mark.parametrize(
    "host", ["127.0.0.1@evil.example.com", "evil.example.com, 127.0.0.1", "127.0.0.1 evil"]
)
def test_a_name_that_is_no_name_is_refused(host: str):
    with serving() as served:
        status, body = served.ask("/v1/status", Host=host)
        assert status in {400, access.MISDIRECTED}
        assert b"shop" not in body


@pytest.mark.attack(
    gains="names of hosts, roles and tables in the reasons of a probe, by DNS rebinding or without the token",
    before="failed",
)
@pytest.mark.parametrize(
    ("keys", "host"), [("", EVIL), (f", read_token: {READ}", "127.0.0.1")], ids=["rebinding", "no token"]
)
def test_a_probe_answers_a_stranger_without_its_reasons(keys: str, host: str):
    with serving(keys) as served:
        served.telemetry.reach.outages["postgres"] = Outage(0.0, "no answer from db.internal for user cdcd")
        status, body = served.ask("/readyz", Host=host)
        assert (status, json.loads(body)["ready"]) == (503, False)
        assert b"db.internal" not in body
        assert b"db.internal" in served.ask("/readyz", Authorization=f"Bearer {READ}")[1]


@pytest.mark.attack(gains="names and errors of mirrored tables, by DNS rebinding", before="failed")
def test_the_probe_of_a_mirror_answers_a_page_of_a_stranger_without_names():
    numbers = MirrorTelemetry()
    numbers.failed("crm.people", "no answer from jdbc:postgresql://c/db?user=a&password=s3same", stopped=True)
    http = MirrorHttpConfig.model_validate({"port": 0})
    with HttpServer(http, mirror_routes(numbers, http)) as server:
        served = Served(server, Telemetry("shop"))
        status, body = served.ask("/healthz", Host=EVIL)
        assert (status, json.loads(body)["well"]) == (503, False)
        assert b"people" not in body
        told = served.ask("/healthz")[1]
        assert b"people" in told
        assert b"s3same" not in told
        assert served.ask("/metrics", Host=EVIL)[0] == access.MISDIRECTED


@pytest.mark.attack(
    gains="names of tables and errors, from any address that reaches the port", before="failed"
)
@pytest.mark.parametrize("command", ["mirror", "verify"])
@pytest.mark.parametrize("authorization", ["", f"Bearer {READ}x", f"Bearer {READ[:-1]}", f"Digest {READ}"])
def test_who_has_no_token_reads_the_metrics_of_a_mirror_or_of_a_verification(
    command: str, authorization: str
):
    if command == "mirror":
        mirror = MirrorTelemetry()
        mirror.failed("crm.people", "no column ssn", stopped=True)
        http: ListenConfig = MirrorHttpConfig.model_validate({"port": 0, "read_token": READ})
        routes = mirror_routes(mirror, http)
    else:
        verification = VerifyTelemetry()
        verification.compared("crm.people", 1.0, 3, 1, is_partial=False)
        http = HttpConfig.model_validate({"port": 0, "read_token": READ})
        routes = verify_routes(verification, http)
    with HttpServer(http, routes) as server:
        served = Served(server, Telemetry("shop"))
        headers = {"Authorization": authorization} if authorization else {}
        status, body = served.ask("/metrics", "GET", b"", **headers)
        assert status == 401
        assert b"people" not in body
        assert b"people" not in served.ask("/healthz", "GET", b"", **headers)[1]
        status, body = served.ask("/metrics", Authorization=f"Bearer {READ}")
        assert status == 200
        assert b"crm.people" in body


@pytest.mark.attack(gains="a snapshot of any table, by DNS rebinding", before="failed")
@pytest.mark.parametrize(
    "path", ["/v1/snapshots", "/v1/pause", "/v1/resume", "/v1/tables/stop", "/v1/tables/resume"]
)
def test_a_page_of_a_stranger_acts_under_its_own_name(path: str):
    with serving(f", token: {ACT}") as served:
        assert (
            served.ask(path, "POST", b"", Host=EVIL, Authorization=f"Bearer {ACT}")[0] == access.MISDIRECTED
        )
        assert not served.signals


@pytest.mark.attack(
    gains="a snapshot of any table, from the page of a stranger in the browser of an operator",
    before="failed",
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": f"https://{EVIL}"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_request_for_an_action_comes_across_sites(headers: dict[str, str]):
    with serving(f", token: {ACT}") as served:
        status, _ = served.ask("/v1/pause", "POST", b"", Authorization=f"Bearer {ACT}", **headers)
        assert (status, served.signals) == (403, [])


@pytest.mark.worst
@pytest.mark.attack(
    gains="names of tables and numbers, from any address that reaches the port", before="failed"
)
@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {READ}x",
        f"Bearer {READ[:-1]}",
        f"Digest {READ}",
        READ,
        "Basic !!!",
        f"Basic {base64.b64encode(READ.encode()).decode()}",
        f"Basic {base64.b64encode(f'{READ}:'.encode()).decode()}",
    ],
)
def test_who_has_no_token_for_reading_reads(authorization: str, path: str):
    with serving(f", read_token: {READ}") as served:
        headers = {"Authorization": authorization} if authorization else {}
        status, body = served.ask(path, "GET", b"", **headers)
        assert status == 401
        assert b"shop" not in body
        assert READ.encode() not in body


@pytest.mark.attack(gains="an action that nobody can attribute", before="failed")
def test_who_asked_for_an_action_stands_in_the_log():
    with serving(f", token: {ACT}") as served:
        body = json.dumps({"tables": ["public.orders"], "id": "nightly"}).encode()
        assert served.ask("/v1/snapshots", "POST", body, Authorization=f"Bearer {ACT}")[0] == 202
        assert served.ask("/v1/pause", "POST", b"", Authorization="Bearer wrong")[0] == 401
        events = [fact.logged() | {"event": fact.event} for fact in served.facts]
        assert events[0]["event"] == "http.action"
        assert (events[0]["peer"], events[0]["tables"]) == ("127.0.0.1", ["public.orders"])
        assert (events[1]["event"], events[1]["status"]) == ("http.refused", 401)
        assert ACT not in str(events)


NAMED = {"anna": "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "airflow": "a1b2c3d4e5f60718293a4b5c6d7e8f90"}


@pytest.mark.attack(gains="an action in the name of somebody else", before="failed")
def test_who_has_a_token_with_a_name_asks_under_that_name():
    lines = "\\n".join(f"{name} {token}" for name, token in NAMED.items())
    with serving(f', token: {ACT}, tokens: "{lines}"') as served:
        for name, token in {**NAMED, "": ACT}.items():
            given = f"Bearer {token}"
            assert served.ask("/v1/pause", "POST", b"", Authorization=given)[0] == 202
            assert served.facts[-1].logged()["name"] == name
        told = len(served.facts)
        for wrong in ("anna", f"anna {NAMED['anna']}", NAMED["anna"][:-1]):
            assert served.ask("/v1/pause", "POST", b"", Authorization=f"Bearer {wrong}")[0] == 401
        assert {fact.event for fact in served.facts[told:]} == {"http.refused"}
        assert not any(token in str(served.facts) for token in NAMED.values())


@pytest.mark.attack(gains="a log that has no room for anything else", before="withstood")
def test_requests_that_are_refused_do_not_fill_the_log():
    with serving(f", token: {ACT}") as served:
        for _ in range(200):
            assert served.ask("/v1/pause", "POST", b"", Authorization="Bearer wrong")[0] == 401
        assert len(served.facts) <= 2


@pytest.mark.attack(gains="the token, letter by letter, from the time of answers", before="withstood")
def test_tokens_are_compared_whole(monkeypatch: pytest.MonkeyPatch):
    compared = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return given == expected

    monkeypatch.setattr("cdcd.telemetry.access.hmac.compare_digest", compare)
    with serving(f", read_token: {READ}, token: {ACT}") as served:
        served.ask("/", Authorization=f"Bearer {READ}")
        served.ask("/", Authorization="Bearer r")
    # Each token is compared in each request, whatever the others gave.
    assert [expected for _, expected in compared] == [READ.encode(), ACT.encode()] * 2


@pytest.mark.attack(gains="a file of the machine", before="withstood")
@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/v1/../../etc/passwd",
        "//etc/passwd",
        "/static/../../etc/passwd",
        "/\\..\\x",
    ],
)
def test_a_path_leads_out(path: str):
    with serving() as served:
        status, body = served.ask(path)
        assert status == 404
        assert b"root:" not in body


@pytest.mark.attack(gains="headers of the attacker's in an answer", before="withstood")
@pytest.mark.parametrize(
    "path", ["/%0d%0aX-Evil:%201", "/?tables=all%0d%0aX-Evil:%201", "/v1/status?%0d%0aX-Evil:1"]
)
def test_a_path_becomes_a_header(path: str):
    with serving() as served:
        answer = served.raw(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b"\nX-Evil" not in answer


@pytest.mark.attack(gains="another request behind the first one, past a proxy", before="withstood")
@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 50\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: +5\r\n",
    ],
)
def test_a_request_is_smuggled(headers: bytes):
    with serving(f", token: {ACT}") as served:
        smuggled = (
            b"0\r\n\r\nPOST /v1/resume HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + ACT.encode()
        )
        answer = served.raw(
            b"POST /v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n" + smuggled + b"\r\n\r\n"
        )
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert not served.signals


@pytest.mark.attack(gains="memory of the daemon", before="withstood")
def test_headers_and_bodies_are_huge():
    with serving(f", token: {ACT}") as served:
        served.raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n")
        status, _ = served.ask("/v1/snapshots", "POST", b" " * 100_000, Authorization=f"Bearer {ACT}")
        assert status == 413
        assert served.ask("/healthz")[0] in {200, 503}


@pytest.mark.attack(gains="that no probe gets an answer, so that the daemon is restarted", before="withstood")
def test_slow_connections_do_not_lock_out_a_probe():
    with serving() as served:
        slow = [
            socket.create_connection(("127.0.0.1", served.server.port)) for _ in range(3 * CONNECTIONS_MAX)
        ]
        for connection in slow:
            with suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        began = time.monotonic()
        assert served.ask("/healthz")[0] in {200, 503}
        assert time.monotonic() - began < 10
        for connection in slow:
            connection.close()


@pytest.mark.attack(gains="data, by a method that nobody thought of", before="withstood")
@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PROPFIND"]
)
def test_other_methods_do_nothing(method: str):
    with serving() as served:
        status, body = served.ask("/v1/status", method)
        assert status in {400, 405, 501, 404}
        assert b"pipeline" not in body


@pytest.mark.attack(
    gains="the time of the daemon, by pages that ask PostgreSQL and Kafka", before="withstood"
)
def test_many_requests_for_pages_that_take_long_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch):
    # GIVEN answers that do not become old while the requests are made, also on a busy machine
    monkeypatch.setattr(look_ups, "RECORDS_S", look_ups.CHECK_S)
    with serving() as served:
        for path in (
            *DATA,
            *LOOKED_UP,
            "/records?table=public.secrets",
            "/records?table=x.y&table=public.orders",
        ) * 20:
            assert served.ask(path)[0] in {200, 404}
        # One look-up of each kind. The next one comes after its answer is old.
        assert sorted(served.looked_up) == ["", TABLE]


@pytest.mark.attack(
    gains="a connection of cdcd to PostgreSQL and Kafka, without the token", before="withstood"
)
def test_nothing_is_looked_up_for_a_reader_who_may_not_read():
    with serving(f", read_token: {READ}") as served:
        for path in (*DATA, *LOOKED_UP):
            assert served.ask(path)[0] == 401
            assert served.ask(path, Host=EVIL)[0] == access.MISDIRECTED
        assert not served.looked_up
