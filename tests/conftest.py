"""Every folder's mark, a good order, and Hypothesis without a clock."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from cdcd.build import is_compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent

# A compiled class can not be subclassed by a test's.
collect_ignore = ["unit/transactions/test_golden_transactions.py"] if is_compiled() else []
# `make setup` goes without pyspark, `make spark` brings it.
if find_spec("pyspark") is None:
    collect_ignore += ["spark", "unit/spark"]

# Cheap and telling tests first. A folder's tests carry the folder's mark.
ORDER = ["unit", "golden", "sim", "deploy", "integration", "spark", "bench"]
MARKED = {"sim", "integration", "spark", "bench"}

# A loaded machine is no reason to fail, and a failure prints what repeats it. `make test` finds the same each
# time; `make wide` looks at other examples, and at more of them.
settings.register_profile("cdcd", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("wide", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("cdcd")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = _folder(item)
        return ORDER.index(folder) if folder in ORDER else len(ORDER)

    for item in items:
        if (folder := _folder(item)) in MARKED:
            item.add_marker(folder)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            # py4j leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    items.sort(key=rank)


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


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
