"""A daemon's HTTP server without a daemon: what it answers, was asked to do, and told the log."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from cdcd.config.loading import Config, parse_config
from cdcd.core.facts import Fact
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.signals import Signal
from cdcd.telemetry.actions import Accepted
from cdcd.telemetry.daemon_pages import daemon_routes
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.html_look_ups import LastRecord
from cdcd.telemetry.http import HttpServer
from cdcd.telemetry.look_ups import Tools
from cdcd.telemetry.state import Telemetry

ACT = "act-5c0de11e77aa4b91"
READ = "read-90b1e2c3d4f5a697"
TABLE = "public.orders"
DATA = ("/", "/v1/status", "/metrics")
LOOKED_UP = ("/check", "/v1/check", f"/records?table={TABLE}", f"/v1/records?table={TABLE}")
PROBES = ("/healthz", "/readyz")
EVIL = "evil.example.com"


def config(keys: str = "") -> Config:
    return parse_config(
        f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\nhttp: {{port: 0{keys}}}\n",
        {},
    )


class Served:
    """A server, what it was asked to do, and what it told the log."""

    def __init__(self, server: HttpServer, telemetry: Telemetry) -> None:
        self.server = server
        self.telemetry = telemetry
        self.signals: list[Signal] = []
        self.facts: list[Fact] = []
        self.looked_up: list[str] = []
        """What was looked up, by threads of the server: "" for a check, or the name of a table."""

    def ask(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)) as connection:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="Host" in named)
            if body or method == "POST":
                named["Content-Length"] = str(len(body))
            for name, value in named.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def raw(self, sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as connection:
            connection.sendall(sent)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            with suppress(ConnectionResetError):
                while chunk := connection.recv(65_536):
                    answer += chunk
            return answer


@contextmanager
def serving(keys: str = "") -> Iterator[Served]:
    given = config(keys)
    served: list[Served] = []

    def carry_out(_config: Config, signal: Signal) -> Accepted:
        served[0].signals.append(signal)
        return Accepted(Lsn(1))

    def observe(fact: Fact) -> None:
        served[0].facts.append(fact)

    def check(_config: Config) -> list[Finding]:
        served[0].looked_up.append("")
        return []

    def records(_config: Config, table: str) -> list[LastRecord]:
        served[0].looked_up.append(table)
        return []

    telemetry = Telemetry("shop")
    telemetry.events[TABLE, "c"] = 1
    routes = daemon_routes(lambda: given, telemetry, carry_out, observe, tools=Tools(check, records))
    with HttpServer(given.http, routes) as server:
        served.append(Served(server, telemetry))
        yield served[0]
