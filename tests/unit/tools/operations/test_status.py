import time

import pytest

from cdcd.config.loading import parse_config
from cdcd.telemetry.daemon_pages import daemon_routes
from cdcd.telemetry.http import HttpServer, Reply, Route
from cdcd.telemetry.http_client import url_of
from cdcd.telemetry.state import Telemetry
from cdcd.tools.operations.status import ask_daemon

YAML = "name: shop\npostgres: {dsn: 'host=db'}\nkafka: {bootstrap_servers: 'k:9092'}\n"


def config(http: str):
    return parse_config(f"{YAML}http: {http}\n", {})


@pytest.mark.parametrize(
    ("http", "url"),
    [
        ("{}", "http://127.0.0.1:9464"),
        ("{host: 0.0.0.0, port: 80}", "http://127.0.0.1:80"),
        ("{host: '::'}", "http://[::1]:9464"),
        ("{host: 'fe80::1'}", "http://[fe80::1]:9464"),
        ("{host: cdcd.example.com}", "http://cdcd.example.com:9464"),
        ("{certificate_file: a, key_file: b}", "https://127.0.0.1:9464"),
        ("{port: 0}", ""),
        ("{enabled: false}", ""),
    ],
)
def test_where_the_daemon_of_a_configuration_answers(http, url):
    assert url_of(config(http)) == url


def test_the_numbers_of_a_daemon_are_read_from_its_status():
    telemetry = Telemetry("shop", "cdcd_shop")
    telemetry.role = "active"
    telemetry.server_wal_end, telemetry.flushed_lsn = 5000, 2000
    telemetry.last_commit_time = time.time() - 30
    telemetry.events = {("public.orders", "c"): 3, ("public.orders", "u"): 4, ("public.items", "d"): 1}
    telemetry.events[("public.items", "r")] = 40
    given = config("{port: 0}")
    bank = given.model_copy(update={"name": "bank"})
    with HttpServer(given.http, daemon_routes(lambda: given, telemetry)) as server:
        numbers, stranger = ask_daemon(given, f"http://127.0.0.1:{server.port}")
        assert ask_daemon(bank, f"http://127.0.0.1:{server.port}") == (None, "shop")
    assert stranger == ""
    assert numbers is not None
    assert (numbers.role, numbers.streaming, numbers.lag_bytes) == ("active", False, 3000)
    assert numbers.lag_s is not None
    assert 29 < numbers.lag_s < 40
    assert numbers.changes == {"public.orders": 7, "public.items": 1}
    assert numbers.read == {"public.orders": 0, "public.items": 40}
    assert numbers.reasons == ("not streaming: reconnecting to PostgreSQL or Kafka",)
    assert numbers.started_at is not None


def test_where_nobody_answers_there_are_no_numbers():
    assert ask_daemon(config("{port: 0}")) == (None, "")
    assert ask_daemon(config("{port: 1}")) == (None, "")


def test_another_program_on_the_port_is_not_taken_for_the_daemon():
    given = config("{port: 0}")
    with HttpServer(
        given.http, {"/v1/status": Route(get=lambda _: Reply(200, "text/html", b"[1]"))}
    ) as server:
        assert ask_daemon(given, f"http://127.0.0.1:{server.port}") == (None, "")
