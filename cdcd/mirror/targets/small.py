"""Batches of a few records of a table: planning and starting cost more than their rows.

A small batch is read and reduced by one task, so that nothing is shuffled. Its plans are interpreted: Spark makes Java
of a plan by default, and to compile that pays off from thousands of rows on. A merge is planned so if the table is
small too. Both change what a batch costs, and nothing of what it does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

RECORDS_MAX: Final = 2_000
"""Number of records up to which a batch of one table is small. One core parses them in a tenth of a second."""

BYTES_MAX: Final = 16 * 1024 * 1024
"""Size up to which a table is small. One task reads so much in less than a second."""

_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def interpreted(spark: SparkSession, is_small: bool) -> Iterator[None]:
    """Plans are made for a few rows meanwhile. Afterwards the settings of the session are what they were."""
    if not is_small:
        yield
        return
    had = {key: spark.conf.get(key, None) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, former in had.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)
