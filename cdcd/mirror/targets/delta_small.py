"""A Delta table of some kilobytes, read and written in the driver by Delta's own objects, without a plan of Spark.

The rule: only a table that any writer of Parquet can write is taken: one that is not partitioned, and whose features
(`_FEATURES`) and properties (`_PROPERTIES`) ask nothing of a writer but what is done here. Any other table is left to
Spark.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.mirror.platform.java import LIST, PATH, java, read_all, write_all
from cdcd.mirror.targets.small_files import (
    FILES_MAX,
    INSTANT,
    LOCAL,
    Column,
    Limits,
    OtherFormError,
    Small,
    Written,
    content,
    is_encryption,
    list_of,
)
from cdcd.mirror.targets.state import State

_TYPES: Final[dict[DataType, pa.DataType]] = {
    BooleanType(): pa.bool_(),
    ShortType(): pa.int16(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    FloatType(): pa.float32(),
    DoubleType(): pa.float64(),
    DateType(): pa.date32(),
    TimestampNTZType(): LOCAL,
    TimestampType(): INSTANT,
    StringType(): pa.string(),
    BinaryType(): pa.binary(),
}

_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "columnMapping",
        "deletionVectors",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""The features that a table may have. Of those that a writer has to know, Delta's transaction sees to appendOnly and
inCommitTimestamp, and a column with an invariant is refused."""

_PROPERTIES: Final = re.compile(
    r"delta\.(?:columnMapping\.\w+|enableDeletionVectors|enableTypeWidening|(?:min|feature)\w*(?:\.\w+)?"
    r"|appendOnly|isolationLevel|checkpoint\w*(?:\.\w+)?|enableInCommitTimestamps|inCommitTimestamp\w+"
    r"|logRetentionDuration|deletedFileRetentionDuration|setTransactionRetentionDuration|enableExpiredLogCleanup)"
)
"""Properties of Delta that a table may have: they concern the log and Delta's transaction, or are features. With any
other one (columns of statistics, sizes of files, optimized writes, change data), Spark writes."""

_ID: Final = "delta.columnMapping.id"
_STORED: Final = "delta.columnMapping.physicalName"
_METADATA: Final = frozenset({_ID, _STORED, "delta.typeChanges"})
"""What a column's metadata may say."""
_DELTA: Final = "org.apache.spark.sql.delta"
_CODEC: Final = "spark.sql.parquet.compression.codec"


def small_delta(spark: SparkSession, name: str, table: Any, limits: Limits) -> Small | None:
    """The table, if the driver can read and write it.

    Args:
        table: as Delta's own object.
    """
    with suppress(PySparkException, Py4JError):
        snapshot = table.update()
        checksum = snapshot.checksumOpt()
        if checksum.isEmpty() or int(checksum.get().tableSizeBytes()) > limits.size:
            return None
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        metadata = json.loads(snapshot.metadata().json())["metaData"]
        features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
        # Before there were features by name, a table's version stood for some of them.
        if not features or not features <= _FEATURES or metadata["partitionColumns"]:
            return None
        if not all(writes_so(key) for key in metadata["configuration"]):
            return None
        columns = [_column(field) for field in StructType.fromJson(json.loads(metadata["schemaString"]))]
        if None in columns:
            return None
        plain = [column for column in columns if column is not None]
        return _SmallDelta(spark, name, plain, limits, table, snapshot)
    return None


def writes_so(key: str) -> bool:
    """Whether a file of the driver has what a table's property asks for, whatever the property's value."""
    return not (key.startswith("delta.") or is_encryption(key)) or _PROPERTIES.fullmatch(key) is not None


class _SmallDelta(Small):
    def __init__(
        self, spark: SparkSession, name: str, columns: list[Column], limits: Limits, table: Any, snapshot: Any
    ) -> None:
        super().__init__(spark, name, columns, limits)
        self._table = table
        self._snapshot = snapshot
        # Delta writes the list of a small table's files beside each commit. Its other ways to it are statements.
        listed = snapshot.checksumOpt().get().allFiles()
        self._listed: Any = listed.get() if listed.isDefined() else None

    def _files(self) -> Iterator[bytes]:
        if self._listed is None or self._listed.size() > FILES_MAX:
            raise OtherFormError
        log = self._table.deltaLog()
        system = log.dataPath().getFileSystem(log.newDeltaHadoopConf())
        files = [self._listed.apply(number) for number in range(self._listed.size())]
        if any(file.deletionVector() is not None for file in files):
            raise OtherFormError
        for file in files:
            yield read_all(system.open(file.absolutePath(log)))

    def _find(self, schema: pa.Schema, column: Column) -> str | None:
        return column.stored if schema.get_field_index(column.stored) >= 0 else None

    def written(self, rows: pa.Table) -> Written:
        # A file of Spark's says by which version it was written: from 3.0 on, dates are of the Gregorian calendar.
        version = {"org.apache.spark.version": self._spark.version}
        return Written(rows.num_rows, content(rows, self._columns, self._codec, version))

    @property
    def _codec(self) -> str:
        return str(self._spark.conf.get(_CODEC))

    def put(self, file: Written, state: State) -> None:
        spark, option = self._spark, java(self._spark, "scala.Option")
        log = self._table.deltaLog()
        transaction = log.startTransaction(self._table.catalogTable(), option.apply(self._snapshot))
        # What another process adds meanwhile is a conflict.
        transaction.readWholeTable()
        files = transaction.filterFiles() if self._listed is None else self._listed
        now = int(time.time() * 1000)
        actions = java(spark, LIST)()
        for number in range(files.size()):
            actions.add(files.apply(number).removeWithTimestamp(now, True))
        if file.rows:
            actions.add(java(spark, f"{_DELTA}.actions.Action").fromJson(self._file(file, now)))
        update = java(spark, f"{_DELTA}.DeltaOperations$StreamingUpdate")
        mode = java(spark, "org.apache.spark.sql.streaming.OutputMode").Complete()
        operation = update(mode, state.stamp.writer, state.batch_id, option.empty())
        scala = java(spark, "scala.jdk.javaapi.CollectionConverters")
        transaction.commit(scala.asScala(actions).toSeq(), operation)

    def _file(self, file: Written, now: int) -> str:
        """The action of Delta's log that adds a new file with the rows.

        Args:
            now: in milliseconds since 1970.
        """
        log = self._table.deltaLog()
        path = f"part-00000-{uuid4()}-c000.{self._codec}.parquet"
        system = log.dataPath().getFileSystem(log.newDeltaHadoopConf())
        write_all(system.create(java(self._spark, PATH)(log.dataPath(), path)), file.data)
        added = {
            "path": path,
            "partitionValues": {},
            "size": len(file.data),
            "modificationTime": now,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows, "tightBounds": True}),
        }
        return json.dumps({"add": added})


def _column(field: StructField) -> Column | None:
    """None: it is left to Spark."""
    type_ = _type(field.dataType)
    if type_ is None or not field.nullable or not field.metadata.keys() <= _METADATA:
        return None
    return Column(field.name, field.metadata.get(_STORED, field.name), field.metadata.get(_ID), type_)


def _type(type_: DataType) -> pa.DataType | None:
    if isinstance(type_, ArrayType):
        element = _type(type_.elementType)
        return None if element is None or not type_.containsNull else list_of(element)
    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    return _TYPES.get(type_)
