"""The schema registry is away while rows are written: known forms go on, a new form waits, and nothing is lost.

A table `t` gets rows at a rate in Avro. The registry stops for a while. Near the end of it a table `u` gets a column
and a row, whose form the registry does not know: everything behind that row waits. Then the registry comes back. Each
row must be in the topics once, in order, and be read by the schemas that the registry has.

    python -m tests.chaos.registry [--seconds 600] [--waits 60] [--rate 200]
"""

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker, PostgresServer
from tests.chaos.told import Rows, rows_of
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_avro import values
from tests.integration.visible_records import await_decided
from tests.schema_registry import SchemaRegistry
from tests.scratch import scratch_folder

NAME: Final = "shop"


def run(options: argparse.Namespace, folder: Path) -> bool:
    """True if each row came once, and known forms did not wait. What was seen is printed."""
    with (
        PostgresServer(18, folder / "postgres") as server,
        KafkaBroker(folder / "kafka") as broker,
        SchemaRegistry() as registry,
    ):
        dsn, servers = server.dsn(), broker.bootstrap_servers
        for table in ("t", "u"):
            server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        config = configuration(
            NAME, dsn, servers, format={"key": "avro", "value": "avro"}, registry={"url": registry.url}
        )
        with ExitStack() as stack:
            daemon = stack.enter_context(Daemon(folder / "daemon", config))
            daemon.start()
            daemon.await_streaming()
            # Rows that are older than the slot would be left out.
            stack.enter_context(Rows(dsn, options.rate))
            server.execute("INSERT INTO u VALUES (1, 'before')")
            daemon.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.u")
            daemon.await_metric("cdcd_events_total", lambda count: count > options.rate, "c", "public.t")
            registry.stop()
            known = watched(daemon, options.seconds - options.waits)
            server.execute("ALTER TABLE u ADD amount int")
            server.execute("INSERT INTO u VALUES (2, 'new form', 7)")
            away = daemon.await_event("registry.unreachable")
            waiting = watched(daemon, options.waits)
            registry.start()
            back = daemon.await_event("registry.reachable")
            daemon.await_metric("cdcd_lag_seconds", lambda lag: lag < 1)
        with Daemon(folder / "daemon", config) as daemon:
            daemon.start()
            daemon.await_streaming()
            await_flushed(dsn, f"cdcd_{NAME}", 600)
            assert daemon.stop() == 0, daemon.last_words()
        await_decided(servers, f"{NAME}.public.t", f"{NAME}.public.u")
        rows = rows_of(dsn)
        ids = [value["after"]["id"] for value in values(servers, f"{NAME}.public.t", registry)]
        others: list[Any] = [value["after"] for value in values(servers, f"{NAME}.public.u", registry)]
    once = ids == list(range(1, rows + 1))
    expected = [{"id": 1, "note": "before"}, {"id": 2, "note": "new form", "amount": 7}]
    print(
        f"{len(ids):,} of {rows:,} rows {'once, in order' if once else 'NOT EQUAL'}; lag of known forms while the "
        f"registry was away at most {known:.1f} s, of what waited for the new one at most {waiting:.0f} s; told: "
        f"{away['message']!r}, back after {back['seconds']} s"
    )
    return once and others == expected and known < LAG_MAX_S


LAG_MAX_S: Final = 15.0
"""How far the known forms may be behind. A busy machine takes seconds."""


def watched(daemon: Daemon, seconds: float) -> float:
    """The largest `cdcd_lag_seconds` in this time."""
    largest, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        largest = max(largest, daemon.metrics().get("cdcd_lag_seconds", {}).get((), 0.0))
        time.sleep(0.5)
    return largest


def main() -> int:
    """0 if all is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.registry")
    parser.add_argument("--seconds", type=float, default=600.0, help="without a registry")
    parser.add_argument("--waits", type=float, default=60.0, help="of these, with a new form that waits")
    parser.add_argument("--rate", type=float, default=200.0, help="rows a second")
    with scratch_folder() as folder:
        return 0 if run(parser.parse_args(), folder) else 1


if __name__ == "__main__":
    sys.exit(main())
