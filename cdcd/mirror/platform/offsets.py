"""How far a batch of a Structured Streaming query goes, from the log that Spark writes before it runs the batch.

The files `<checkpoint>/offsets/<batch>` are Spark's write-ahead log (OffsetSeqLog): a version, a line of metadata, then
a line for each source. For Kafka that is `{"topic":{"0":17}}`. The log is read through Hadoop's file systems, so it may
be wherever Spark can write.
"""

import json
from typing import Any, Final

from pyspark.sql import SparkSession

from cdcd.core.errors import ProtocolError
from cdcd.mirror.platform.java import PATH, java, read_all

VERSION: Final = "v1"

Ends = dict[str, dict[int, int]]
"""Offsets by topic and partition: the one after the last of the batch."""


def batch_ends(spark: SparkSession, checkpoint_location: str, batch_id: int) -> Ends:
    """Where a batch that has begun ends.

    Raises:
        ProtocolError: Spark wrote its log in another way than it used to.
    """
    path = f"{checkpoint_location.rstrip('/')}/offsets/{batch_id}"
    return read_ends(_text(spark, path), path)


def last_batch(spark: SparkSession, checkpoint_location: str) -> int | None:
    """The number of the last batch that has begun; None where there is none."""
    folder = java(spark, PATH)(f"{checkpoint_location.rstrip('/')}/offsets")
    files = folder.getFileSystem(_hadoop(spark))
    if not files.exists(folder):
        return None
    names = [status.getPath().getName() for status in files.listStatus(folder)]
    return max([int(name) for name in names if name.isdecimal()], default=None)


def read_ends(text: str, path: str) -> Ends:
    """The log's text. ProtocolError: it is of another form."""
    lines = text.splitlines()
    try:
        if lines[0] != VERSION or len(lines) != 3:
            raise ValueError(f"{len(lines)} lines, the first {lines[0]!r}")
        found = json.loads(lines[2])
        return {
            topic: {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in found.items()
        }
    except (ValueError, IndexError, AttributeError) as error:
        raise ProtocolError(
            f"{path} is not the offset log that this version of cdcd reads: {error}.",
            hint="Run the query with the Spark version that cdcd supports (`cdcd version`), and do not use the "
            "checkpoint of another query.",
        ) from None


def _text(spark: SparkSession, path: str) -> str:
    file = java(spark, PATH)(path)
    return read_all(file.getFileSystem(_hadoop(spark)).open(file)).decode()


def _hadoop(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession
    return session.sparkContext().hadoopConfiguration()
