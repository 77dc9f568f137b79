"""The page in a real Chromium: light and dark, wide and narrow, in three states of a real pipeline.

`CDCD_SCREENSHOTS=folder` keeps the pictures, to be looked at; docs/page.md shows two of them.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from cdcd.config.loading import parse_config
from cdcd.telemetry.daemon_pages import daemon_routes
from cdcd.telemetry.http import HttpRequest, HttpRoute, HttpServer, Reply
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.test_page import get, status
from tests.unit.telemetry.status_examples import HOSTILE, busy

CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT TESTED the page in a browser: there is no Chromium (Debian: chromium)"
    ),
]

SIZES: Final = {"wide": "1200,1500", "narrow": "500,1900"}
SCHEMES: Final = {"light": "1", "dark": "0"}
COMPLAINTS: Final = ("Refused to", "violates", "Uncaught", "SyntaxError", "TypeError")
"""What Chromium's console says of a page that breaks its own policy, or whose script fails."""


def chromium(url: str, profile: Path, *options: str) -> str:
    """Load the page; what the browser printed. A complaint of the console fails the test."""
    assert CHROMIUM is not None
    run = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--enable-logging=stderr", f"--user-data-dir={profile}", *options, url],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert not [line for line in console if any(each in line for each in COMPLAINTS)], console
    return run.stdout


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CDCD_SCREENSHOTS", tmp_path / "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def photograph(url: str, pictures: Path, profile: Path, state: str) -> None:
    for scheme, number in SCHEMES.items():
        for width, size in SIZES.items():
            picture = pictures / f"{state}-{scheme}-{width}.png"
            options = (f"--blink-settings=preferredColorScheme={number}", f"--window-size={size}")
            chromium(url, profile, *options, f"--screenshot={picture}")
            assert picture.stat().st_size > 20_000


def test_the_script_fetches_the_page_again_and_runs_nothing_of_strangers(tmp_path: Path) -> None:
    given = parse_config("name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n", {})
    telemetry, asked = busy("shop", f"public.{HOSTILE}", HOSTILE), []
    page = daemon_routes(lambda: given, telemetry)["/"].get
    assert page is not None

    def counted(request: HttpRequest) -> Reply:
        asked.append(request)
        return page(request)

    with HttpServer(given.http.model_copy(update={"port": 0}), {"/": HttpRoute(get=counted)}) as server:
        shown = chromium(
            f"http://127.0.0.1:{server.port}/", tmp_path, "--virtual-time-budget=7000", "--dump-dom"
        )
    assert len(asked) >= 3
    assert shown.count("<main>") == 1
    assert shown.count("<script>") == 1
    assert "&lt;script&gt;alert" in shown


@pytest.fixture
def servers(scratch: Path) -> Iterator[tuple[PostgresServer, KafkaBroker]]:
    with PostgresServer(18, scratch / "postgres") as postgres, KafkaBroker(scratch / "kafka") as broker:
        yield postgres, broker


def test_three_states_in_light_and_dark_wide_and_narrow(
    servers: tuple[PostgresServer, KafkaBroker], tmp_path: Path, pictures: Path
) -> None:
    postgres, broker = servers
    dsn = postgres.dsn()
    with psycopg.connect(dsn, autocommit=True) as sql:
        for table in ("orders", "order_items", "customers", "invoices"):
            sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
            sql.execute(f"INSERT INTO {table} SELECT g, repeat('x', 300) FROM generate_series(1, 200000) g")
        sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '4GB'")
        sql.execute("SELECT pg_reload_conf()")
    config = configuration(
        "shop",
        dsn,
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 65_536},
        kafka={"transaction": {"bytes_max": 131_072}, "queue_bytes_max": 262_144},
    )
    with Daemon(tmp_path / "daemon", config) as daemon, psycopg.connect(dsn, autocommit=True) as sql:
        daemon.start()
        url = f"http://{daemon.await_event('daemon.started')['http']}/"
        # A snapshot is under way.
        until(lambda: (status(daemon)["snapshot"] or {}).get("rows", 0) > 20_000 or None, "no snapshot")
        photograph(url, pictures, tmp_path / "profile", "snapshot")
        # Changes are streamed.
        daemon.await_streaming()
        until(lambda: status(daemon)["snapshot"]["tables_left"] == 0 or None, "the snapshot does not end")
        for number in range(300):
            sql.execute("UPDATE orders SET note = 'b' WHERE id = %s", (number,))
            sql.execute("INSERT INTO customers VALUES (%s, 'c')", (300_000 + number,))
        until(lambda: status(daemon)["lag_bytes"] == 0 or None, "not delivered")
        photograph(url, pictures, tmp_path / "profile", "streaming")
        # Kafka is away.
        broker.stop()
        sql.execute("DELETE FROM invoices WHERE id < 1000")
        until(lambda: status(daemon)["kafka"]["up"] is False or None, "Kafka is not away")
        assert "Kafka has not answered for" in get(daemon, "/")
        photograph(url, pictures, tmp_path / "profile", "kafka-away")


def test_many_tables_checks_records_and_a_standby(
    servers: tuple[PostgresServer, KafkaBroker], tmp_path: Path, pictures: Path
) -> None:
    postgres, broker = servers
    # The test before this one has left its tables and its pipeline in the other database.
    with psycopg.connect(postgres.dsn(), autocommit=True) as sql:
        sql.execute("CREATE DATABASE many")
    dsn = postgres.dsn("many")
    config = configuration("many", dsn, broker.bootstrap_servers)
    with Daemon(tmp_path / "daemon", config) as daemon, psycopg.connect(dsn, autocommit=True) as sql:
        for number in range(300):
            sql.execute(f"CREATE TABLE table_{number:03} (id int PRIMARY KEY, note text)")
        daemon.start()
        daemon.await_streaming()
        for number in range(300):
            sql.execute(f"INSERT INTO table_{number:03} VALUES (1, 'a')")
        # Most of the time goes to the broker, which creates 300 topics. On two busy cores that takes minutes.
        until(lambda: status(daemon)["tables_total"] == 300 or None, "not delivered", timeout_s=480)
        url = f"http://{daemon.await_event('daemon.started')['http']}"
        get(daemon, "/")
        page = until(lambda: text if "in order" in (text := get(daemon, "/")) else None, "no checks")
        assert "The busiest 50 of 300 tables" in page
        photograph(f"{url}/", pictures, tmp_path / "profile", "many-tables")
        photograph(f"{url}/check", pictures, tmp_path / "profile", "checks")
        records = "/records?table=public.table_299"
        until(lambda: "INSERT" in get(daemon, records) or None, "no records")
        photograph(url + records, pictures, tmp_path / "profile", "records")
        with Daemon(tmp_path / "standby", config) as standby:
            standby.start()
            standby.await_event("standby.waiting")
            other = f"http://{standby.await_event('daemon.started')['http']}/"
            photograph(other, pictures, tmp_path / "profile", "standby")
