"""An Iceberg table of some kilobytes, read and written in the driver by Iceberg's own objects, without a plan of Spark.

The rule: only a table that any writer of Parquet can write is taken. A table that is partitioned, sorted or encrypted,
that gives its rows an identity (format version 3), or whose properties ask for something that is not done here
(`_WRITES`), is left to Spark.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.mirror.platform.java import identifier, java, read_all, texts, write_all
from cdcd.mirror.platform.sql import parts
from cdcd.mirror.targets.small_files import (
    FILES_MAX,
    ID,
    INSTANT,
    LOCAL,
    Column,
    ForSparkError,
    Limits,
    OtherFormError,
    Small,
    Written,
    content,
    is_encryption,
    list_of,
)
from cdcd.mirror.targets.state import State

_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": LOCAL,
    "timestamptz": INSTANT,
    "string": pa.string(),
    "binary": pa.binary(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_VERSION_MAX: Final = 2
_CODEC: Final = "write.parquet.compression-codec"
_PLAIN: Final = {"write.format.default": "parquet", "write.wap.enabled": "false"}
"""Properties and the value that they must have if they are there."""
_WRITES: Final = re.compile(
    r"write\.(?:parquet\.compression-codec|format\.default|wap\.enabled|(?:\w+\.)?distribution-mode"
    r"|(?:merge|update|delete)\.(?:mode|isolation-level)|spark\..*|metadata\.(?!metrics\.).*"
    r"|(?:data|folder-storage)\.path|object-storage\..*|location-provider\.impl)"
)
"""Properties of the writer that Iceberg's own objects or this module observe, or that concern a MERGE or a shuffle.
With any other one (bloom filters, level of compression, sizes of row groups and files, metrics), Spark writes."""


class _OtherError(Exception):
    """The table has something that is left to Spark."""


def small_iceberg(
    spark: SparkSession,
    name: str,
    table: Any,
    limits: Limits,
    summary: Callable[[State], Mapping[str, str]],
) -> Small | None:
    """The table, if the driver can read and write it.

    Args:
        table: as Iceberg's own object.
        summary: what the summary of a commit says of its state.
    """
    with suppress(_OtherError, PySparkException, Py4JError):
        properties = table.properties()
        plain = (
            table.operations().current().formatVersion() <= _VERSION_MAX
            and table.specs().size() == 1
            and table.spec().isUnpartitioned()
            and table.sortOrder().isUnsorted()
            and table.encryption().getClass().getSimpleName() == "PlaintextEncryptionManager"
            and all((properties.get(key) or value) == value for key, value in _PLAIN.items())
            and all(writes_so(key) for key in texts(spark, properties))
        )
        if not plain:
            return None
        columns = [_column(field) for field in fields_of(spark, table)]
        newest = table.currentSnapshot()
        size = 0 if newest is None else newest.summary().get("total-files-size")
        if size is None or int(size) > limits.size:
            return None
        return _SmallIceberg(spark, name, columns, limits, table, newest, summary)
    return None


def writes_so(key: str) -> bool:
    """Whether a file of the driver has what a table's property asks for, whatever the property's value."""
    return not (key.startswith("write.") or is_encryption(key)) or _WRITES.fullmatch(key) is not None


def fields_of(spark: SparkSession, table: Any) -> list[Any]:
    """The fields of a table's columns, as Iceberg's JSON has them.

    Args:
        table: as Iceberg's own object.
    """
    text: str = java(spark, "org.apache.iceberg.SchemaParser").toJson(table.schema())
    fields: list[Any] = json.loads(text)["fields"]
    return fields


class _SmallIceberg(Small):
    def __init__(
        self,
        spark: SparkSession,
        name: str,
        columns: list[Column],
        limits: Limits,
        table: Any,
        version: Any,
        summary: Callable[[State], Mapping[str, str]],
    ) -> None:
        super().__init__(spark, name, columns, limits)
        self._table = table
        self._version = version
        self._summary = summary

    def _files(self) -> Iterator[bytes]:
        if self._version is None:
            return
        tasks = self._table.newScan().useSnapshot(self._version.snapshotId()).planFiles()
        try:
            files = _listed(tasks.iterator(), FILES_MAX + 1)
        finally:
            tasks.close()
        if len(files) > FILES_MAX or any(not file.deletes().isEmpty() for file in files):
            raise OtherFormError
        if any(file.file().format().name() != "PARQUET" for file in files):
            raise ForSparkError
        for file in files:
            yield read_all(self._table.io().newInputFile(file.file().location()).newStream())

    def _find(self, schema: pa.Schema, column: Column) -> str | None:
        for field in schema:
            if (field.metadata or {}).get(ID) == str(column.number).encode():
                return str(field.name)
        return None

    def written(self, rows: pa.Table) -> Written:
        codec = self._table.properties().get(_CODEC) or "zstd"
        return Written(rows.num_rows, content(rows, self._columns, codec))

    def put(self, file: Written, state: State) -> None:
        everything = java(self._spark, "org.apache.iceberg.expressions.Expressions").alwaysTrue()
        change = self._table.newOverwrite().overwriteByRowFilter(everything)
        if file.rows:
            change = change.addFile(self._file(file))
        if self._version is not None:
            change = (
                change.validateFromSnapshot(self._version.snapshotId())
                .conflictDetectionFilter(everything)
                .validateNoConflictingData()
                .validateNoConflictingDeletes()
            )
        for key, value in self._summary(state).items():
            change = change.set(key, value)
        change.commit()
        self._forget()

    def _forget(self) -> None:
        """Do what REFRESH TABLE does: a catalog that keeps tables in memory loads this one again next time."""
        catalog, *namespace, table = parts(self._name)
        manager = self._spark._jsparkSession.sessionState().catalogManager()
        manager.catalog(catalog).invalidateTable(identifier(self._spark, namespace, table))

    def _file(self, file: Written) -> Any:
        """A new file with the rows, as Iceberg's own object."""
        table = self._table
        place = table.locationProvider().newDataLocation(f"00000-0-{uuid4()}-00001.parquet")
        write_all(table.io().newOutputFile(place).create(), file.data)
        # The file has no bounds of its columns: readers gain nothing if they leave out a file of some kilobytes.
        described = (
            java(self._spark, "org.apache.iceberg.DataFiles")
            .builder(table.spec())
            .withPath(place)
            .withFormat("parquet")
        )
        return described.withFileSizeInBytes(len(file.data)).withRecordCount(file.rows).build()


def _listed(tasks: Any, most: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < most and tasks.hasNext():
        found.append(tasks.next())
    return found


def _column(field: Any) -> Column:
    if field["required"] or "initial-default" in field or "write-default" in field:
        raise _OtherError
    return Column(field["name"], field["name"], field["id"], _type(field["type"]))


def _type(type_: Any) -> pa.DataType:
    if isinstance(type_, dict):
        if type_["type"] != "list" or type_["element-required"]:
            raise _OtherError
        return list_of(_type(type_["element"]), type_["element-id"])
    decimal = _DECIMAL.fullmatch(type_)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if type_ not in _TYPES:
        raise _OtherError
    return _TYPES[type_]
