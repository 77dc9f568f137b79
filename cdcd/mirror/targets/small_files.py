"""The files of a table of some kilobytes, which the driver reads and writes: from Parquet to rows of Arrow and back.

The rule: a file is read here only if it has each column of the table in the very type that the column has. A file of a
former form of the table (a column was added or grew since) is left to Spark, which knows what such a file means.
"""

import io
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.targets.state import State

FILES_MAX: Final = 32
"""Number of files up to which the driver reads them, one after the other."""
VALUES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Size of all values up to which the driver takes a table. Values that repeat themselves take few bytes in a file."""

ID: Final = b"PARQUET:field_id"
"""What pyarrow calls the id of a field, in the field's metadata."""

_BATCH_ROWS: Final = 256

_CODECS: Final = {"uncompressed": "none", "none": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
_LEGACY: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Spark writes them into files whose dates are of the Julian calendar (SPARK-31159)."""

INSTANT: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")


_ENCRYPTION: Final = ("parquet.crypto.", "parquet.encryption.")
"""What the settings begin with by which Parquet encrypts files (parquet-hadoop, PropertiesDrivenCryptoFactory)."""


def is_encryption(key: str) -> bool:
    """Whether a property of a table is one by which Parquet encrypts files, whatever stands before its name."""
    return any(each in f"{key}." for each in _ENCRYPTION)


class Limits(NamedTuple):
    """How large a table may be that the driver takes.

    Attributes:
        size: of all files, in bytes.
        rows: how many it has.
    """

    size: int
    rows: int


FEW: Final = Limits(256 * 1024, 20_000)
"""For a few changes. Each commit writes files of some kilobytes anyway, and the driver looks at the key of each row."""


class Written(NamedTuple):
    """The rows that take the place of all rows of a table, as the content of a file.

    Attributes:
        rows: how many they are. Without rows, no file is put.
        data: of the file.
    """

    rows: int
    data: bytes


LEFT_TO_SPARK: Final = (pa.ArrowException, OSError, MemoryError)
"""What reading or writing a file in the driver may raise: the file is encrypted or damaged, has a value that Arrow does
not know, or is too large for the memory. Spark may be able to do it, so the table is left to Spark."""


class ForSparkError(Exception):
    """The table has a file that is no Parquet, which the driver neither reads nor replaces."""


class Small(ABC):
    """One version of a small table, which the driver can read and replace."""

    def __init__(self, spark: SparkSession, name: str, columns: Sequence["Column"], limits: Limits) -> None:
        self._spark = spark
        self._name = name
        self._columns = columns
        self._rows_max = limits.rows

    def rows(self) -> pa.Table | None:
        """All rows of the table. None: they are too many for the driver, or it cannot read a file of them."""
        try:
            return read(self._files(), self._columns, self._find, self._rows_max)
        except OtherFormError:
            return by_spark(self._spark.table(self._name), self._columns, self._rows_max)
        except ForSparkError:
            return None

    @abstractmethod
    def _files(self) -> Iterator[bytes]:
        """The files of the table.

        Raises:
            OtherFormError: a file has deleted rows, or the driver cannot list the files.
            ForSparkError: a file is no Parquet.
        """

    @abstractmethod
    def _find(self, schema: pa.Schema, column: "Column") -> str | None:
        """The name that a column has in a file; None: the file lacks it."""

    @abstractmethod
    def written(self, rows: pa.Table) -> Written:
        """The content of a file with rows, for `put`. Nothing is stored.

        Args:
            rows: with the columns of `rows()`, in their types.
        """

    @abstractmethod
    def put(self, file: Written, state: State) -> None:
        """Put rows in the place of all rows, in one commit, which carries the state. The caller is in
        `TableFormat.carrying`. The commit fails if another process has changed the table since that version.
        """


class Column(NamedTuple):
    """A column of a table and of its files.

    Attributes:
        stored: its name in the files.
        number: the id of its field in the files; None: it has none.
        type: the same in the table and in the files.
    """

    name: str
    stored: str
    number: int | None
    type: pa.DataType

    @property
    def field(self) -> pa.Field:
        return pa.field(self.stored, self.type, metadata=identified(self.number))


def identified(number: int | None) -> dict[bytes, str] | None:
    """The metadata of a field with an id."""
    return None if number is None else {ID: str(number)}


class OtherFormError(Exception):
    """A file is of a former form of the table, or the table is larger than its files: only Spark can read it."""


def read(
    files: Iterable[bytes],
    columns: Sequence[Column],
    find: Callable[[pa.Schema, Column], str | None],
    rows_max: int,
) -> pa.Table:
    """The rows of files.

    Args:
        find: gives the name that a column has in a file; None: the file lacks it.
        rows_max: how many rows the files may have.

    Raises:
        OtherFormError: see there.
    """
    parts = [of_columns([pa.array([], column.type) for column in columns], columns)]
    rows = size = 0
    for data in files:
        file = pq.ParquetFile(pa.BufferReader(data))
        rows += file.metadata.num_rows
        names = _names(file, columns, find)
        if rows > rows_max:
            raise OtherFormError
        for batch in file.iter_batches(_BATCH_ROWS):
            size += batch.nbytes
            if size > VALUES_BYTES_MAX:
                raise OtherFormError
            parts.append(of_columns([batch.column(name) for name in names], columns))
    return pa.concat_tables(parts)


def _names(
    file: pq.ParquetFile, columns: Sequence[Column], find: Callable[[pa.Schema, Column], str | None]
) -> list[str]:
    """The names of the columns in a file, which has them in their types. OtherFormError: it has not."""
    if any(key in (file.metadata.metadata or {}) for key in _LEGACY):
        raise OtherFormError
    # Arrow has no INT96. Of far years it makes others, without a word.
    if any(file.schema.column(number).physical_type == "INT96" for number in range(len(file.schema))):
        raise OtherFormError
    names = []
    for column in columns:
        name = find(file.schema_arrow, column)
        if name is None or not _same(file.schema_arrow.field(name).type, column.type):
            raise OtherFormError
        names.append(name)
    return names


def by_spark(table: DataFrame, columns: Sequence[Column], rows_max: int) -> pa.Table | None:
    """The rows of a table that Spark reads. None: they are too many for the driver."""
    texts = [
        sf.coalesce(sf.length(sf.col(quoted(column.name)).cast("string")), sf.lit(0)) for column in columns
    ]
    found = table.agg(sf.count("*"), sf.sum(reduce(operator.add, texts))).head()
    assert found is not None, "an aggregate has one row"
    if found[0] > rows_max or (found[1] or 0) > VALUES_BYTES_MAX:
        return None
    rows = table.toArrow()
    return of_columns([rows[column.name] for column in columns], columns)


def of_columns(arrays: Iterable[Any], columns: Sequence[Column]) -> pa.Table:
    """The table of these arrays, by the names of the columns."""
    cast = [array.cast(column.type) for array, column in zip(arrays, columns, strict=True)]
    return pa.table(cast, schema=pa.schema([pa.field(column.name, column.type) for column in columns]))


def content(
    rows: pa.Table, columns: Sequence[Column], codec: str, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The rows as a file.

    Args:
        codec: by Spark's name. One that is not known becomes zstd.
        metadata: what the file says beside its rows.
    """
    schema = pa.schema([column.field for column in columns])
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        schema,
        compression=_CODECS.get(codec.lower(), "zstd"),
        store_decimal_as_integer=True,
        store_schema=False,
    ) as file:
        file.write_table(pa.table([rows[column.name] for column in columns], schema=schema))
        file.add_key_value_metadata(dict(metadata or {}))
    return sink.getvalue()


def list_of(element: pa.DataType, number: int | None = None) -> pa.DataType:
    """The type of arrays. `number`: the id of the field of their elements."""
    return pa.list_(pa.field("element", element, metadata=identified(number)))


def _same(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        return _same(stored.value_type, wanted.value_type)
    return bool(stored == wanted)
