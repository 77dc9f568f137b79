from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.session import (
    _LATE_COMPILER,
    REMOTE,
    _joined,
    catalog_conf,
    check_classic,
    check_time_zone,
    is_connect,
    session,
    under_spark_submit,
)


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


def test_java_got_the_options_of_a_local_session(spark: SparkSession):
    java: Any = spark.sparkContext._jvm
    runtime = java.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert set(_LATE_COMPILER.split()) <= set(runtime.getInputArguments())


class Remote:
    """As a session of Spark Connect, which needs packages that are not everywhere."""

    __module__ = "pyspark.sql.connect.session"


def test_a_session_of_spark_connect_is_refused_where_the_driver_is_needed(spark: Any):
    remote: Any = Remote()
    assert (is_connect(remote), is_connect(spark)) == (True, False)
    check_classic(spark, "follow_changes", "it is so")
    with pytest.raises(
        ConfigError, match="follow_changes does not work in a session of Spark Connect: it is so"
    ) as refused:
        check_classic(remote, "follow_changes", "it is so")
    assert "spark-submit" in refused.value.hint


def test_an_environment_that_asks_for_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(REMOTE, "sc://example.com")
    with pytest.raises(ConfigError, match="cdcd mirror shop makes a classic session") as refused:
        session(name="cdcd mirror shop")
    assert refused.value.hint.startswith("Unset SPARK_REMOTE")


def test_a_time_zone_that_would_move_values_is_refused(spark: Any):
    check_time_zone(spark)
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    with pytest.raises(ConfigError, match="is Europe/Berlin") as refused:
        check_time_zone(other)
    assert "spark.conf.set" in refused.value.hint
