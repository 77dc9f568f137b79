import pytest

pytest.importorskip("pyspark")

from cdcd.spark.jars import DELTA, ICEBERG
from cdcd.spark.session import catalog_conf, under_spark_submit


def test_a_folder_is_an_iceberg_catalog_of_type_hadoop_without_a_cache():
    conf = catalog_conf(ICEBERG, "lake", "/data")
    assert conf["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert conf["spark.sql.catalog.lake.warehouse"] == "/data"
    assert conf["spark.sql.catalog.lake.cache-enabled"] == "false"


def test_deltas_folder_is_the_warehouse():
    assert catalog_conf(DELTA, "spark_catalog", "/data") == {"spark.sql.warehouse.dir": "/data"}


@pytest.mark.parametrize("submitted", [True, False])
def test_spark_submit_is_known_by_its_gateway(monkeypatch: pytest.MonkeyPatch, submitted: bool):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1234")
    assert under_spark_submit() == submitted
