import pytest

pytest.importorskip("pyspark")

from cdcd.spark.jars import DELTA, ICEBERG
from cdcd.spark.session import _joined, catalog_conf, under_spark_submit


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


def test_jars_and_extensions_of_a_user_come_beside_ours_and_other_settings_in_their_place():
    ours = {"spark.jars": "kafka.jar", "spark.sql.extensions": "Ours", "spark.driver.memory": "1g"}
    theirs = {"spark.jars": "mine.jar", "spark.driver.memory": "4g", "spark.x": "y"}
    assert _joined(ours, theirs) == {
        "spark.jars": "kafka.jar,mine.jar",
        "spark.sql.extensions": "Ours",
        "spark.driver.memory": "4g",
        "spark.x": "y",
    }
    assert _joined({}, {"spark.jars": "mine.jar"}) == {"spark.jars": "mine.jar"}
