"""The session of the tests: both table formats and the Kafka source; each test has tables of its own in it."""

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.session import catalog_conf, session
from deploy.local.cache import cache_folder


def for_tests(warehouse: Path, *, cores: int = 2, conf: Mapping[str, str] | None = None) -> SparkSession:
    os.environ.setdefault("CDCD_CACHE", str(cache_folder()))
    made = session(
        (ICEBERG, DELTA),
        conf={
            **catalog_conf(ICEBERG, "lake", str(warehouse / "iceberg")),
            "spark.sql.warehouse.dir": str(warehouse / "spark"),
            "spark.local.dir": str(warehouse),
            "spark.sql.shuffle.partitions": "2",
            **(conf or {}),
        },
        name="tests",
        cores=cores,
    )
    made.sparkContext.setLogLevel("OFF")
    return made
