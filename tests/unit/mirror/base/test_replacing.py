"""What a table keeps that is written again, and which tables are refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.core.errors import ConfigError
from cdcd.mirror.base.replacing import replacing_of


class Spark:
    """Keeps the statements, and answers each of them with one row."""

    def __init__(self, version: str = "4.1.1", **row: Any) -> None:
        self.version = version
        self.statements: list[str] = []
        self._row = row

    def sql(self, statement: str) -> Any:
        self.statements.append(statement)
        return SimpleNamespace(collect=lambda: [self._row])


def test_iceberg_keeps_properties_by_itself_and_gets_its_sort_order_back():
    spark: Any = Spark()
    has = {"note": "mine", "sort-order": "n ASC NULLS FIRST"}
    replacing_of("iceberg").replace(spark, "lake.t", "v", has, {"cdcd.buckets": "4"}, ["n", "_cdcd_bucket"])
    replaced, sorted_ = spark.statements
    assert replaced.startswith(
        "CREATE OR REPLACE TABLE lake.t USING iceberg PARTITIONED BY (n, _cdcd_bucket) "
    )
    assert "'cdcd.buckets' = '4'" in replaced
    assert "'write.distribution-mode' = 'hash'" in replaced
    assert "note" not in replaced
    assert replaced.endswith(" AS SELECT * FROM v")
    assert sorted_ == "ALTER TABLE lake.t WRITE ORDERED BY n ASC NULLS FIRST"


def test_delta_gets_its_properties_again_but_those_that_delta_sets_and_those_of_the_former_layout():
    spark: Any = Spark()
    has = {
        "note": "mine",
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "9",
        "delta.minReaderVersion": "3",
        "delta.feature.timestampNtz": "supported",
        "cdcd.position": "{}",
        "cdcd.fields": "[]",
        "cdcd.buckets": "4",
    }
    replacing_of("delta").replace(spark, "delta.`/t`", "v", has, {"cdcd.buckets": "1"}, [])
    (replaced,) = spark.statements
    assert replaced == (
        "CREATE OR REPLACE TABLE delta.`/t` USING delta TBLPROPERTIES ("
        "'note' = 'mine', 'delta.columnMapping.mode' = 'name', 'cdcd.buckets' = '1') AS SELECT * FROM v"
    )


@pytest.mark.parametrize(
    ("table_format", "spark", "has", "said"),
    [
        ("iceberg", Spark("4.0.1"), {}, "Spark 4.1 or later"),
        ("delta", Spark(clusteringColumns=["id"]), {}, "CLUSTER BY NONE"),
        ("delta", Spark(clusteringColumns=[]), {"delta.enableChangeDataFeed": "true"}, "UNSET TBLPROPERTIES"),
    ],
)
def test_a_table_that_would_lose_something_is_refused_with_the_way_on(
    table_format: str, spark: Any, has: dict[str, str], said: str
):
    with pytest.raises(ConfigError) as refused:
        replacing_of(table_format).check(spark, "t", has)
    assert said in refused.value.hint


def test_other_tables_may_be_written_again():
    for table_format, spark in (("iceberg", Spark()), ("delta", Spark(clusteringColumns=[]))):
        spark_: Any = spark
        replacing_of(table_format).check(spark_, "t", {})
