"""A running mirror answers probes and scrapes, and a table that stopped is seen there."""

import http.client
import json
import re
import threading
from pathlib import Path

from tests.integration.daemon import until
from tests.spark.stage import Stage


def get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_a_stopped_table_fails_the_probe_and_is_named_and_the_other_goes_on(tmp_path: Path) -> None:
    tables = ("CREATE TABLE good (id int PRIMARY KEY, n int)", "CREATE TABLE bad (id int PRIMARY KEY, n int)")
    with Stage.set_up() as stage, stage.source("probed", *tables) as source:
        mirror = source.mirror("iceberg", batches={"interval_s": 0.5})
        mirror.start()
        lines = mirror.lines()
        address = next(
            found[1] for line in lines if (found := re.search(r"http: (\S+) has /metrics and /healthz", line))
        )
        # Its output is read on, so that it does not wait for us.
        threading.Thread(target=lambda: list(lines), daemon=True).start()
        source.execute("INSERT INTO good VALUES (1, 1)")
        source.execute("INSERT INTO bad VALUES (1, 1)")

        def changes(table: str) -> float:
            found = re.search(
                rf'^cdcd_mirror_table_changes_total{{table="public.{table}"}} (\S+)$',
                get(address, "/metrics")[1],
                re.MULTILINE,
            )
            return float(found[1]) if found else 0.0

        until(lambda: changes("good") == changes("bad") == 1 or None, "both are mirrored", 120)
        assert get(address, "/healthz")[0] == 200
        # WHEN a table changes so that its target cannot follow
        source.execute("ALTER TABLE bad ALTER n TYPE text")
        source.execute("INSERT INTO bad VALUES (2, '2')")
        until(lambda: True if get(address, "/healthz")[0] == 503 else None, "the probe fails", 120)
        # THEN the probe says which and why, and the other table goes on
        (reason,) = json.loads(get(address, "/healthz")[1])["reasons"]
        assert reason.startswith("public.bad is stopped: ")
        assert 'cdcd_mirror_table_stopped{table="public.bad"} 1.0' in get(address, "/metrics")[1]
        source.execute("INSERT INTO good VALUES (2, 2)")
        until(lambda: changes("good") == 2 or None, "the other goes on", 120)
