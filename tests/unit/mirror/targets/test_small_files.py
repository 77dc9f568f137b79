import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcd.mirror.targets import small_files
from cdcd.mirror.targets.small_files import INSTANT, Column, OtherFormError, list_of, read, written

COLUMNS = (
    Column("id", "col-1", 1, pa.int64()),
    Column("at", "col-2", 2, INSTANT),
    Column("price", "col-3", 3, pa.decimal128(9, 2)),
    Column("tags", "col-4", 4, list_of(pa.string(), 5)),
)
# Instants of PostgreSQL's infinities, for which Python has no datetime.
FAR = [9_223_372_036_825_200_000, -9_223_372_036_832_400_000, None]


def rows(count: int = 3) -> pa.Table:
    at = pa.array([*FAR, *[0] * count][:count], pa.int64()).cast(INSTANT)
    price = pa.array([None] * count, pa.decimal128(9, 2))
    tags = pa.array([["a", None]] * count, COLUMNS[3].type)
    return pa.table({"id": pa.array(range(count), pa.int64()), "at": at, "price": price, "tags": tags})


def by_name(schema: pa.Schema, column: Column) -> str | None:
    return column.stored if column.stored in schema.names else None


def stored(table: pa.Table, metadata: Mapping[str, str] | None = None, **how: Any) -> bytes:
    sink = io.BytesIO()
    named = table.rename_columns([column.stored for column in COLUMNS]).replace_schema_metadata(metadata)
    pq.write_table(named, sink, **how)
    return sink.getvalue()


def test_what_is_written_is_read_again_with_its_names_and_numbers():
    data = written(rows(), COLUMNS, "snappy", {"who": "me"})
    assert read([data, data], COLUMNS, by_name, 2000).column_names == ["id", "at", "price", "tags"]
    again = read([data], COLUMNS, by_name, 2000)
    assert again["at"].cast(pa.int64()).to_pylist() == FAR
    assert again["tags"].to_pylist() == rows()["tags"].to_pylist()
    file = pq.ParquetFile(pa.BufferReader(data))
    assert (file.metadata.metadata or {}).get(b"who") == b"me"
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    numbers = {field.name: (field.metadata or {})[small_files.ID] for field in file.schema_arrow}
    assert numbers == {"col-1": b"1", "col-2": b"2", "col-3": b"3", "col-4": b"4"}
    assert file.schema_arrow.field("col-4").type.value_field.metadata[small_files.ID] == b"5"
    # Small numbers are whole numbers in Parquet, as the table formats have them.
    assert file.schema.column(2).physical_type == "INT32"


@pytest.mark.parametrize(
    ("codec", "found"), [("lz4", "ZSTD"), ("ZSTD", "ZSTD"), ("gzip", "GZIP"), ("none", "UNCOMPRESSED")]
)
def test_a_codec_that_is_not_known_becomes_zstd(codec: str, found: str):
    data = written(rows(), COLUMNS, codec)
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).compression == found


def test_no_file_is_a_table_without_rows():
    assert read([], COLUMNS, by_name, 2000).num_rows == 0
    assert (
        read([written(rows(0), COLUMNS, "zstd")], COLUMNS, by_name, 2000).schema
        == read([], COLUMNS, by_name, 2000).schema
    )


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(stored(rows(), use_deprecated_int96_timestamps=True), id="INT96"),
        pytest.param(stored(rows(), {"org.apache.spark.legacyDateTime": ""}), id="Julian dates"),
        pytest.param(stored(rows().set_column(0, "id", pa.array([1, 2, 3], pa.int32()))), id="narrower"),
        pytest.param(
            stored(rows().set_column(3, "tags", pa.array([["a"]] * 3, pa.list_(pa.binary())))), id="elements"
        ),
        pytest.param(written(rows().drop_columns(["tags"]), COLUMNS[:3], "zstd"), id="a column fewer"),
    ],
)
def test_a_file_of_another_form_is_left_to_spark(data: bytes):
    assert read([stored(rows())], COLUMNS, by_name, 2000).num_rows == 3
    with pytest.raises(OtherFormError):
        read([data], COLUMNS, by_name, 2000)


def test_a_table_that_is_larger_than_its_files_is_left_to_spark(monkeypatch: pytest.MonkeyPatch):
    data = written(rows(1000), COLUMNS, "zstd")
    assert read([data], COLUMNS, by_name, 2000).num_rows == 1000
    monkeypatch.setattr(small_files, "VALUES_BYTES_MAX", 10_000)
    with pytest.raises(OtherFormError):
        read([data], COLUMNS, by_name, 2000)
    monkeypatch.undo()
    assert read([data, data], COLUMNS, by_name, 2000).num_rows == 2000
    with pytest.raises(OtherFormError):
        read([data, data], COLUMNS, by_name, 1999)
