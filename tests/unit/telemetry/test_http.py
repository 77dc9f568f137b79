import http.client
import json
import os
import resource
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdcd.config.loading import Config, HttpConfig, parse_config
from cdcd.core.errors import ConfigError
from cdcd.telemetry.daemon_pages import daemon_routes, serve_http
from cdcd.telemetry.http import (
    ACCEPT_AGAIN_S,
    BODY_BYTES_MAX,
    CONNECTIONS_MAX,
    KINDS_MAX,
    LOOK_S,
    AnswerCache,
    HttpRoute,
    HttpServer,
    Reply,
    Routes,
    Tls,
)
from cdcd.telemetry.http_client import fetch, status_of
from cdcd.telemetry.state import Telemetry
from cdcd.telemetry.tornado_server import CONNECTION_S_MAX


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    crt, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key),
         "-out", str(crt)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return crt, key


def config(crt: Path, key: Path, port: int = 0) -> Config:
    return parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"
        f"http: {{port: {port}, certificate_file: '{crt}', key_file: '{key}'}}\n",
        {},
    )


def test_the_daemon_is_asked_by_https_and_its_own_certificate_is_trusted(tmp_path: Path):
    given = config(*certificate(tmp_path))
    with serve_http(given, Telemetry("shop")) as address:
        here = config(tmp_path / "tls.crt", tmp_path / "tls.key", int(address.rpartition(":")[2]))
        found = status_of(here)
        assert found is not None
        assert found["pipeline"] == "shop"
        # Another name for the place is another matter: the certificate must have it.
        with pytest.raises(OSError, match="certificate"):
            fetch(f"https://{address}/healthz", given.http.certificate_file, is_own=False)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(f"https://{address}/healthz")


def test_a_client_that_stays_in_the_handshake_holds_up_nobody(tmp_path: Path):
    given = config(*certificate(tmp_path))
    with serve_http(given, Telemetry("shop")) as address:
        host, port = address.split(":")
        held = [socket.create_connection((host, int(port))) for _ in range(20)]
        assert fetch(f"https://{address}/healthz", given.http.certificate_file) == '{"alive": true}\n'
        for each in held:
            each.close()


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path):
    crt, key = certificate(tmp_path, "first")
    now = [0.0]
    tls = Tls(crt, key, lambda: now[0])

    def serial() -> str:
        """Of the certificate that a client gets."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(to_client, to_server),
            tls.context.wrap_bio(to_server, to_client, server_side=True),
        )
        for _ in range(4):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        found = ends[0].getpeercert(binary_form=True)
        assert found is not None
        return found.hex()

    first = serial()
    certificate(tmp_path, "second")
    os.utime(crt, (1, 1))
    tls.refresh()
    assert serial() == first
    now[0] += LOOK_S
    tls.refresh()
    second = serial()
    assert second != first
    crt.write_text("not a certificate")
    now[0] += LOOK_S
    tls.refresh()
    assert serial() == second


@pytest.mark.parametrize("broken", ["missing", "garbage", "other key", "passphrase"])
def test_files_that_cannot_be_used_are_an_error_with_a_hint(broken, tmp_path: Path):
    crt, key = certificate(tmp_path)
    if broken == "missing":
        key.unlink()
    elif broken == "garbage":
        crt.write_text("nothing")
    elif broken == "other key":
        (tmp_path / "other").mkdir()
        key = certificate(tmp_path / "other")[1]
    else:
        closed = tmp_path / "closed.key"
        subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-in", str(key), "-out", str(closed), "-passout", "pass:hunter2"],
            check=True,
            capture_output=True,
        )
        key = closed
    with pytest.raises(ConfigError, match=r"certificate_file and http\.key_file cannot be used") as caught:
        Tls(crt, key)
    assert "PEM" in caught.value.hint


def test_a_certificate_without_its_key_is_a_wrong_configuration(tmp_path: Path):
    with pytest.raises(ConfigError, match="http: certificate_file and key_file belong together"):
        parse_config(
            "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {certificate_file: a}\n",
            {},
        )


HTTP = HttpConfig.model_validate({"port": 0})


def routes(telemetry: Telemetry) -> Routes:
    return daemon_routes(lambda: http_config("http: {port: 0}"), telemetry)


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def server(telemetry):
    with HttpServer(HTTP, routes(telemetry)) as server:
        yield server


def request(
    server: HttpServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_port_0_takes_a_free_port_and_says_which(server):
    assert server.port > 0


def test_metrics_are_in_the_format_of_prometheus(server, telemetry):
    telemetry.received_lsn = 42
    status, headers, body = request(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b"\ncdcd_received_lsn 42.0\n" in body


def test_metrics_are_in_openmetrics_for_who_asks_for_it(server):
    status, headers, body = request(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_metrics_with_a_query_are_metrics(server):
    assert request(server, "/metrics?x=1")[0] == 200


def test_healthz_says_that_the_loop_turns(server):
    status, headers, body = request(server, "/healthz")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == {"alive": True}


def test_healthz_notices_a_stuck_loop_while_it_is_stuck(server, telemetry):
    telemetry.loop_heartbeat = time.monotonic() - 31
    status, _, body = request(server, "/healthz")
    assert status == 503
    assert json.loads(body)["alive"] is False


def test_readyz_is_503_with_the_reason_before_anything_streams(server):
    status, _, body = request(server, "/readyz")
    assert status == 503
    assert json.loads(body)["reasons"] == ["not connected yet"]


def test_readyz_is_200_when_streaming_and_keeping_up(server, telemetry):
    telemetry.role, telemetry.streaming, telemetry.caught_up = "active", True, True
    assert request(server, "/readyz")[0] == 200


def test_readyz_is_200_for_a_standby(server, telemetry):
    telemetry.role = "standby"
    status, _, body = request(server, "/readyz")
    assert status == 200
    assert json.loads(body) == {"ready": True, "role": "standby"}


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_head_is_get_without_the_body(server, path):
    status, headers, body = request(server, path, "HEAD")
    assert status == request(server, path)[0]
    assert int(headers["Content-Length"]) > 0
    assert body == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server, method):
    status, headers, _ = request(server, "/metrics", method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_another_path_names_those_there_are(server):
    status, _, body = request(server, "/metric")
    assert status == 404
    assert body == (
        b"There are /, /v1/status, /metrics, /healthz, /readyz, /v1/snapshots, /v1/pause, /v1/resume, "
        b"/v1/tables/stop, /v1/tables/resume\n"
    )


def test_a_port_in_use_is_an_error_with_a_hint():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        ) as caught:
            HttpServer(HttpConfig.model_validate({"port": port}), routes(Telemetry()))
    assert "http.port" in caught.value.hint


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "a" * 70])
def test_an_address_that_is_not_ours_is_an_error(host):
    with pytest.raises(ConfigError, match=f"cannot listen on {host}"):
        HttpServer(HttpConfig.model_validate({"host": host, "port": 0}), routes(Telemetry()))


def test_ipv6_is_served_where_the_machine_has_it(telemetry):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    http6 = HttpConfig.model_validate({"host": "::1", "port": 0})
    with HttpServer(http6, routes(telemetry)) as server:
        connection = http.client.HTTPConnection("::1", server.port, timeout=10)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


def test_clients_that_only_hold_connections_open_lock_nobody_out(telemetry):
    with HttpServer(HTTP, routes(telemetry)) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CONNECTIONS_MAX + 3)]
        # The oldest were hung up on, so that a probe is answered.
        for each in idle[:3]:
            each.settimeout(10)
            assert each.recv(1) == b""
        assert request(server, "/healthz")[0] == 200
        started = time.monotonic()
    assert time.monotonic() - started < CONNECTION_S_MAX
    for connection in idle:
        connection.close()


def test_a_connection_ends_after_its_time_whatever_it_does(telemetry, monkeypatch):
    monkeypatch.setattr("cdcd.telemetry.tornado_server.CONNECTION_S_MAX", 0.3)
    with HttpServer(HTTP, routes(telemetry)) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.settimeout(10)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x")
        assert connection.recv(1) == b""
        connection.close()


def test_a_client_that_reads_nothing_is_let_go(monkeypatch):
    # Long enough that a busy machine begins to answer before.
    monkeypatch.setattr("cdcd.telemetry.tornado_server.CONNECTION_S_MAX", 3.0)
    large = HttpRoute(get=lambda _: Reply(200, "text/plain", b"x" * 20_000_000))
    with HttpServer(HTTP, {"/": large}) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.settimeout(10)
        assert connection.recv(1) == b"H"
        server_side = [thread for thread in threading.enumerate() if thread.name == "http"]
        assert len(server_side) == 1
        # The rest never comes: what lay in the buffers does, and then the end.
        received = 1
        time.sleep(3.5)  # longer than a connection may be open, while nothing is read
        with suppress(ConnectionResetError):
            while chunk := connection.recv(1 << 20):
                received += len(chunk)
        assert received < 20_000_000
        connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    ],
)
def test_nonsense_is_refused_and_the_next_one_is_answered(server, sent):
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(sent)
        # A server that has refused it may have reset the connection by now, and then there is nothing to shut down.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert request(server, "/healthz")[0] == 200


def test_a_body_that_is_too_large_is_refused_with_a_sentence(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/v1/pause", body=b"x" * (BODY_BYTES_MAX + 1))
    response = connection.getresponse()
    assert (response.status, response.read()) == (413, b"A body of at most 65536 bytes is allowed.\n")
    connection.close()


def test_a_body_without_a_length_is_refused_with_a_sentence(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/v1/pause", body=iter([b"{}"]), encode_chunked=True)
    response = connection.getresponse()
    assert (response.status, response.read()) == (411, b"Send the body with its length (Content-Length).\n")
    connection.close()


def test_a_route_that_fails_shows_nothing_of_it(telemetry):
    def fail(_: object) -> Reply:
        raise RuntimeError("secret")

    with HttpServer(HTTP, {"/": HttpRoute(get=fail)}) as server:
        status, _, body = request(server, "/")
    assert (status, body) == (500, b"cdcd failed; its log says why.\n")


def test_after_closing_nobody_listens(telemetry):
    server = HttpServer(HTTP, routes(telemetry))
    port = server.port
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    assert not [thread for thread in threading.enumerate() if thread.name == "http"]


def test_scrapes_go_on_while_tables_are_added(server, telemetry):
    stop = threading.Event()

    def add():
        number = 0
        while not stop.is_set():
            number += 1
            telemetry.events["t", str(number % 5000)] = number
            if number % 5000 == 0:
                telemetry.events.clear()

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(5):
            assert request(server, "/metrics")[0] == 200
    finally:
        stop.set()
        thread.join()


def http_config(text: str) -> Config:
    minimal = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n"
    return parse_config(minimal + text, {})


def test_serving_says_where(telemetry):
    with serve_http(http_config("http: {port: 0}"), telemetry) as address:
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()


def test_where_it_is_not_enabled_nothing_is_served(telemetry):
    with serve_http(http_config("http: {enabled: false}"), telemetry) as address:
        assert address == ""
        assert not [thread for thread in threading.enumerate() if thread.name == "http"]


def test_a_client_that_cannot_be_accepted_does_not_make_the_server_spin(server):
    # GIVEN a server whose event loop is there: it is made in the server's thread, after the port
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as first:
        first.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while first.recv(4096):
            pass
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(socket.socket()) as client:
        # Descriptors 0 to 2 are never free, so no thread that closes another one lets the server accept.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            client.connect(("127.0.0.1", server.port))
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.settimeout(10 * ACCEPT_AGAIN_S)
            began = time.process_time()
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert time.process_time() - began < 0.5
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        client.settimeout(10)
        assert client.recv(8) == b"HTTP/1.1"


def spend(seconds: float) -> str:
    """Use this much CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return "made"


def test_an_answer_is_kept_for_a_moment_and_by_kind():
    kept: AnswerCache[str, list[int]] = AnswerCache(1.0, 60.0)
    first, other = kept("a", list), kept("b", list)
    assert kept("a", list) is first
    assert first is not other


def test_an_answer_that_is_old_is_made_anew():
    kept: AnswerCache[str, list[int]] = AnswerCache(1e9, 0.0)
    assert kept("a", list) is not kept("a", list)


def test_an_answer_is_kept_as_long_as_its_cost_demands(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time)
    monkeypatch.setattr("cdcd.telemetry.http.time", clocks)
    kept: AnswerCache[str, str] = AnswerCache(0.01)
    times = 0

    def make() -> str:
        nonlocal times
        times += 1
        return spend(0.02)

    for now[0] in (0.0, 1.0, 1.99):
        kept("a", make)
    assert times == 1
    now[0] = 1e9
    kept("a", make)
    assert times == 2


def test_strangers_cannot_fill_it():
    kept: AnswerCache[int, str] = AnswerCache(1.0, 60.0)
    for kind in range(10 * KINDS_MAX):
        kept(kind, lambda: "made")
    assert len(kept._made) <= KINDS_MAX
