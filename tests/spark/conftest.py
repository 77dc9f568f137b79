"""Both formats, each test with tables of its own; one source of changes for the tests that need real ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import Target
from tests.spark.stage import Stage

MakeTarget = Callable[[], Target]
"""Makes a target over the same tables each time: another process's view of them."""


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as stage:
        yield stage


@pytest.fixture(params=[ICEBERG, DELTA])
def make_target(request: pytest.FixtureRequest, warehouse: Path, unique: str) -> MakeTarget:
    if request.param == ICEBERG:
        return lambda: IcebergTarget("lake", unique)
    return lambda: DeltaTarget(str(warehouse / "delta" / unique))


@pytest.fixture(params=[ICEBERG, DELTA])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(make_target: MakeTarget) -> Target:
    return make_target()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return f"t{abs(hash(request.node.nodeid)):x}"
