"""The files of a table of some kilobytes, which the driver reads and writes: from Parquet to rows of Arrow and back.

The rule: a file is read here only if it has each column of the table in the very type that the column has. A file of a
former form of the table (a column was added or grew since) is left to Spark, which knows what such a file means.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.spark.targets.state import State

BYTES_MAX: Final = 256 * 1024
"""Size of all files of a table up to which the driver writes it anew. Each commit writes files of some kilobytes
anyway."""
FILES_MAX: Final = 32
"""Number of files up to which the driver reads them, one after the other."""

ID: Final = b"PARQUET:field_id"
"""What pyarrow calls the id of a field, in the field's metadata."""

_CODECS: Final = {"uncompressed": "none", "none": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
_LEGACY: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Spark writes them into files whose dates are of the Julian calendar (SPARK-31159)."""

INSTANT: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")


class Small(ABC):
    """A table of some kilobytes as it was at one version."""

    @abstractmethod
    def rows(self) -> pa.Table:
        """All rows of the table."""

    @abstractmethod
    def put(self, rows: pa.Table, state: State) -> None:
        """Put rows in the place of all rows, in one commit, which carries the state. The caller is in
        `TableFormat.carrying`. The commit fails if another process has changed the table since that version.

        Args:
            rows: with the columns of `rows()`, in their types.
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


def read(
    data: bytes, columns: Sequence[Column], find: Callable[[pa.Schema, Column], str | None]
) -> pa.Table | None:
    """The rows of a file. None: it is of a former form of the table.

    Args:
        find: gives the name that a column has in the file; None: the file lacks it.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    if any(key in (file.metadata.metadata or {}) for key in _LEGACY):
        return None
    # Arrow has no INT96. Of far years it makes others, without a word.
    if any(file.schema.column(number).physical_type == "INT96" for number in range(len(file.schema))):
        return None
    names = [find(file.schema_arrow, column) for column in columns]
    if None in names:
        return None
    found = file.read()
    arrays = [found[name] for name in names]
    if any(not _same(array.type, column.type) for array, column in zip(arrays, columns, strict=True)):
        return None
    return of_columns(arrays, columns)


def of_columns(arrays: Iterable[Any], columns: Sequence[Column]) -> pa.Table:
    """The table of these arrays, by the names of the columns."""
    cast = [array.cast(column.type) for array, column in zip(arrays, columns, strict=True)]
    return pa.table(cast, schema=pa.schema([pa.field(column.name, column.type) for column in columns]))


def written(
    rows: pa.Table, columns: Sequence[Column], codec: str, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The rows as a file.

    Args:
        codec: by Spark's name. One that is not known becomes zstd.
        metadata: what the file says beside its rows.
    """
    schema = pa.schema([column.field for column in columns], metadata=metadata)
    sink = io.BytesIO()
    pq.write_table(
        pa.table([rows[column.name] for column in columns], schema=schema),
        sink,
        compression=_CODECS.get(codec.lower(), "zstd"),
        store_decimal_as_integer=True,
        store_schema=False,
    )
    return sink.getvalue()


def list_of(element: pa.DataType, number: int | None = None) -> pa.DataType:
    """The type of arrays. `number`: the id of the field of their elements."""
    return pa.list_(pa.field("element", element, metadata=identified(number)))


def _same(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        return _same(stored.value_type, wanted.value_type)
    return bool(stored == wanted)
