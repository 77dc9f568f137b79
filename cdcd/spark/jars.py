"""Public names of `cdcd.mirror.jars`; `python -m cdcd.spark.jars` fetches the jars and prints where they are."""

import sys

from cdcd.mirror.jars import AVRO, DELTA, ICEBERG, KAFKA, coordinates, jars

__all__ = ["AVRO", "DELTA", "ICEBERG", "KAFKA", "coordinates", "jars"]

if __name__ == "__main__":
    sys.stdout.writelines(f"{jar}\n" for jar in jars([KAFKA, AVRO, ICEBERG, DELTA]))
