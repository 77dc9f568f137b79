"""Attacks by people below the operator, on real servers: each test is one attempt, and passes if the attempt fails.

A file is named for its row of the trust boundary (docs/security.md): `test_<row>_<subject>.py`. Each test carries
`@pytest.mark.attack(gains="…", before="failed")`: what the attacker would gain, and whether commit 99c61843 fell to the
attack on some version of PostgreSQL (`failed`) or withstood it (`withstood`). `make attacks` runs all of them and ends
with a table. The tests that are also marked `worst` are part of `make test`.
"""

from collections import Counter
from typing import Final

import pytest

from tests.integration.conftest import (  # noqa: F401  the fixtures of these tests are those of the integration tests
    _shared_broker,
    broker,
    collected_after_the_test,
    collected_in_the_main_thread,
    daemon,
    database,
    postgres,
    private_broker,
    private_postgres,
    published,
    pytest_generate_tests,
    scratch,
    servers,
    stranger,
    trial,
    unique,
)

ROWS: Final = {
    "connecting": "a role that may connect",
    "owner": "the owner of a published table or schema",
    "writer": "who writes rows",
    "reader": "a reader of page, metrics, log",
    "topics": "who can write into topics",
    "secrets": "who sees what cdcd prints",
}
"""Who attacks, by the word behind `test_` in the name of a file."""

BEFORE: Final = ("failed", "withstood")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name != "attacks":
            continue
        row = item.path.stem.split("_")[1]
        mark = item.get_closest_marker("attack")
        if row not in ROWS:
            raise pytest.UsageError(
                f"{item.path.name}: the name must begin with test_ and one of {', '.join(ROWS)}"
            )
        if mark is None or not mark.kwargs.get("gains") or mark.kwargs.get("before") not in BEFORE:
            raise pytest.UsageError(f"{item.nodeid}: needs attack(gains='…', before='failed' or 'withstood')")
        item.user_properties += [("row", row), ("before", mark.kwargs["before"])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many attacks of each row failed, and how many of them succeeded on commit 99c61843."""
    tried: Counter[tuple[str, str, str]] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(getattr(report, "user_properties", ()))
            if "row" in properties and (outcome == "error" or report.when == "call"):
                tried[properties["row"], properties["before"], outcome] += 1
    if not tried:
        return
    terminalreporter.section("attacks")
    for row, who in ROWS.items():
        counts = {key[1:]: count for key, count in tried.items() if key[0] == row}
        if not counts:
            continue
        withstood = sum(count for (_, outcome), count in counts.items() if outcome == "passed")
        new = sum(
            count for (before, outcome), count in counts.items() if (before, outcome) == ("failed", "passed")
        )
        terminalreporter.write_line(
            f"{who}: {sum(counts.values())} attacks, {withstood} withstood, {new} of them succeeded on 99c61843"
        )
