"""Consistent batches: a join over the target's tables is true as of one LSN, at each of them."""

import threading
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.api import consistent_points
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind
from tests.spark.stage import Source, Stage, target_for

TABLES = (
    "CREATE TABLE giro (id int PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE savings (id int PRIMARY KEY, balance bigint NOT NULL)",
    "INSERT INTO giro SELECT n, 1000 FROM generate_series(1, 50) n",
    "INSERT INTO savings SELECT n, 1000 FROM generate_series(1, 50) n",
)
TOTAL = 2 * 50 * 1000
TRANSFER = """
    WITH moved AS (UPDATE giro SET balance = balance - {0} WHERE id = {1} RETURNING id)
    UPDATE savings SET balance = balance + {0} WHERE id = {2} AND EXISTS (SELECT FROM moved)"""


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(f"c{abs(hash(request.node.nodeid)) % 10**8}", *TABLES) as source:
        source.deliver()
        yield source


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_money_that_moves_between_two_tables_is_never_seen_twice_or_not_at_all(
    source: Source, spark: SparkSession, table_format: str
) -> None:
    # GIVEN transfers, a hundred a second at most, and a consistent mirror that follows them
    stop = threading.Event()

    def transfer() -> None:
        with source.connect() as connection:
            number = 0
            while not stop.wait(0.01):
                number += 1
                connection.execute(TRANSFER.format(number % 97, number % 50 + 1, number * 7 % 50 + 1))

    mirror = source.mirror(table_format, batches={"interval_s": 0.1})
    moving = threading.Thread(target=transfer)
    moving.start()
    try:
        mirror.start("--consistent")
        done = 0
        for line in mirror.lines():
            done += "all tables consistent" in line
            if done == 4:
                break
        mirror.kill()
    finally:
        stop.set()
        moving.join()
    source.deliver()
    assert mirror.once("--consistent") == 0, mirror.errors()[-3000:]

    # AND it may go on without common points, and with them again
    for options in ((), ("--consistent",)):
        assert mirror.once(*options) == 0, mirror.errors()[-3000:]

    # THEN at each LSN that is published the sum is what it always was
    target = target_for(spark, mirror, f"c_{source.name}")
    points = [row["commit_lsn"] for row in consistent_points(spark, target).collect()]
    assert len(points) >= 4
    names = [
        target.name_of(TableSchema("", "public", table, "", ("id",), ()), Kind.MIRROR)
        for table in ("giro", "savings")
    ]
    sums = {
        point: [target.read(spark, name, point).agg({"balance": "sum"}).collect()[0][0] for name in names]
        for point in points
    }
    assert {sum(of_both) for of_both in sums.values()} == {TOTAL}, sums
    # AND not because nothing moved
    assert len({giro for giro, _ in sums.values()}) >= 3
