"""One Spark for all tests, with both table formats and the Kafka source; each test has tables of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.spark.jars import DELTA, ICEBERG
from cdcd.spark.session import catalog_conf, session
from cdcd.spark.targets.delta import DeltaTarget
from cdcd.spark.targets.iceberg import IcebergTarget
from cdcd.spark.targets.lakehouse import Lakehouse
from deploy.local.cache import cache_folder

HERE = Path(__file__).parent

MakeTarget = Callable[[], Lakehouse]
"""Makes a target over the same tables each time: another process's view of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # py4j leaves its sockets to the garbage collector.
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    os.environ.setdefault("CDCD_CACHE", str(cache_folder()))
    made = session(
        (ICEBERG, DELTA),
        conf={
            **catalog_conf(ICEBERG, "lake", str(warehouse / "iceberg")),
            "spark.sql.warehouse.dir": str(warehouse / "spark"),
            "spark.local.dir": str(warehouse),
        },
        name="tests",
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(params=[ICEBERG, DELTA])
def make_target(request: pytest.FixtureRequest, warehouse: Path, unique: str) -> MakeTarget:
    if request.param == ICEBERG:
        return lambda: IcebergTarget("lake", unique)
    return lambda: DeltaTarget(str(warehouse / "delta" / unique))


@pytest.fixture
def target(make_target: MakeTarget) -> Lakehouse:
    return make_target()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return f"t{abs(hash(request.node.nodeid)):x}"
