"""Every folder's mark, a good order, and Hypothesis without a clock."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from cdcd.build import is_compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

TESTS = Path(__file__).parent

CORE = TESTS / "unit" / "core"
"""Tests of the compiled packages. `make test` runs them compiled only. The tests with servers run the same packages
uncompiled."""

# A compiled class cannot be subclassed by a test's.
UNCOMPILED = {
    TESTS / file
    for file in (
        "unit/core/records/test_new_format.py",
        "unit/core/transactions/test_golden_transactions.py",
        "unit/trial/test_planted.py",
    )
}
collect_ignore = [file.relative_to(TESTS).as_posix() for file in sorted(UNCOMPILED)] if is_compiled() else []
# `make setup` goes without pyspark, `make spark` brings it.
if find_spec("pyspark") is None:
    collect_ignore += ["spark", "unit/mirror", "attacks/test_topics_change_headers.py"]

# Files that take longest begin first where several workers share the tests: a worker keeps a file to its end.
LONG = (
    "integration/test_check_foresees.py",
    "integration/test_claim_store.py",
    "sim/test_simulation.py",
    "integration/test_exactly_once.py",
    "integration/test_table_faults.py",
    "integration/test_snapshot_trouble.py",
    "integration/test_bad_input_postgres.py",
    "integration/test_snapshot_requests.py",
    "integration/test_adopt.py",
    "integration/test_complete_snapshots.py",
    "integration/test_partitions.py",
    "integration/test_postgres_snapshot_reader.py",
    "integration/test_demo.py",
    "integration/test_tokens_kafka.py",
    "integration/test_outages.py",
    "integration/test_debezium_beside.py",
    "integration/test_postgres_replication.py",
    "integration/test_bad_input_wire.py",
    "integration/test_takeover.py",
    "integration/test_local_servers.py",
    "integration/test_bad_input_position.py",
    "deploy/test_packaging.py",
    "integration/test_tail.py",
    "integration/test_bad_input_kafka.py",
    "integration/test_first_start.py",
    "integration/test_bad_input_away.py",
    "integration/test_kafka_whole_transactions.py",
    "integration/test_durable_spool.py",
    "integration/test_tls_kafka.py",
    "integration/test_snapshots.py",
    "integration/test_bad_input_limits.py",
    "integration/test_stream_process.py",
    "integration/test_drop_and_reset.py",
    "integration/test_postgres_lock.py",
    "integration/test_publication_follows.py",
    "integration/test_large_values_of_a_pair.py",
    "integration/test_page.py",
    "integration/test_verify_faults.py",
    "integration/test_tutorial.py",
    "integration/test_init.py",
    "integration/test_column_grants.py",
    "integration/test_keys_and_topics.py",
    "integration/test_shared_id.py",
    "integration/test_heartbeat.py",
    "integration/test_failover.py",
    "integration/test_types.py",
    "integration/test_handover.py",
    "integration/test_kafka_hanging.py",
    "integration/test_readers.py",
    "integration/test_stream.py",
    "integration/test_heal_kinds.py",
    "integration/test_postgres_slot.py",
    "integration/test_heal.py",
    "integration/test_postgres_snapshot_catalog.py",
    "integration/test_check.py",
    "integration/test_bench.py",
    "integration/test_verify.py",
    "pages/test_site.py",
    "integration/test_strangers.py",
    "integration/test_lost_slots.py",
    "integration/test_streamed_transactions.py",
    "integration/test_bad_input_access.py",
    "integration/test_watermarks.py",
    "integration/test_stopped_tables.py",
    "integration/test_schemas_topic.py",
    "integration/test_columns.py",
    "integration/test_status.py",
    "integration/test_snapshot_queries.py",
    "integration/test_tls_postgres.py",
    "integration/test_password_command.py",
    "integration/test_routes.py",
    "attacks/test_owner_protection.py",
)

# Cheap and telling tests first. A folder's tests carry the folder's mark.
ORDER = ["unit", "golden", "sim", "deploy", "attacks", "integration", "spark", "bench"]
# Several workers end together if the quick tests, which wait for nothing, come last.
ORDER_SHARED = ["sim", "deploy", "attacks", "integration", "spark", "bench", "unit", "golden"]
MARKED = {"sim", "integration", "spark", "bench"}

SPARK_TIMEOUT_S = 1800
"""Seconds after which a test with Spark counts as one that hangs, unless it has a longer limit of its own. Such a test
works on all cores, and takes ten times as long beside other work as alone."""

# A loaded machine is no reason to fail, and a failure prints what repeats it. `make test` finds the same each
# time; `make wide` looks at other examples, and at more of them.
settings.register_profile("cdcd", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("wide", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("cdcd")


def pytest_configure() -> None:
    assert all((TESTS / file).is_file() for file in LONG), "LONG names a file that is not there"
    # A shell starts a background job with SIGINT ignored, and a child inherits that. So no test could end it by Ctrl-C.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """A worker keeps a file to its end, because its tests share servers. Tests of the simulation need no server."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith("tests/sim/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> LoadFileScheduling | None:
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    order = ORDER_SHARED if is_shared else ORDER
    # There are twelve thousand tests in six hundred files, and each worker collects all of them.
    folders = {path: path.relative_to(TESTS).parts[0] for path in {item.path for item in items}}

    def rank(path: Path) -> tuple[int, int]:
        folder, file = folders[path], path.relative_to(TESTS).as_posix()
        long = LONG.index(file) if is_shared and file in LONG else len(LONG)
        return long, order.index(folder) if folder in order else len(order)

    ranks = {path: rank(path) for path in folders}
    for item in items:
        if (folder := folders[item.path]) in MARKED:
            item.add_marker(folder)
        if (
            item.path.is_relative_to(CORE)
            and item.path not in UNCOMPILED
            and not item.get_closest_marker("skipif")
        ):
            item.add_marker("again")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            # py4j leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
    items.sort(key=lambda item: ranks[item.path])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, which would walk through all that is collected again and again, and never
    walk through it later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> "Iterator[SparkSession]":
    """One Spark for all tests: a process has one Java, and that has its jars from the first session."""
    from tests.spark.sessions import for_tests

    made = for_tests(warehouse)
    yield made
    made.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """What was not tested of the deployment goes last, with what to install: a line among others is overlooked."""
    yield
    for line in _out_of_date(terminalreporter):
        terminalreporter.line(f"OUT OF DATE {line}", yellow=True, bold=True)
    missing: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        file = report.nodeid.partition("::")[0]
        if file.startswith("tests/deploy/"):
            missing[file, str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
    if missing:
        terminalreporter.section("NOT TESTED", red=True, bold=True)
    for (file, reason), count in missing.items():
        tests = f"{count} tests" if count > 1 else "1 test"
        terminalreporter.line(f"NOT TESTED {file}, {tests}: {reason}", red=True, bold=True)


def _out_of_date(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    """What tests recorded as the property `out of date`: they passed, and were slow, so nobody would read of it."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                yield from (value for name, value in report.user_properties if name == "out of date")
