"""Every folder's mark, a good order, and Hypothesis without a clock."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from cdcd.daemon.build import is_compiled

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
    items.sort(key=rank)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
