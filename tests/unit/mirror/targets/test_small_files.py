import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcd.mirror.targets import delta_small, iceberg_small, small_files
from cdcd.mirror.targets.small_files import (
    INSTANT,
    Column,
    OtherFormError,
    content,
    is_encryption,
    list_of,
    read,
)

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
    data = content(rows(), COLUMNS, "snappy", {"who": "me"})
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
    data = content(rows(), COLUMNS, codec)
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).compression == found


def test_no_file_is_a_table_without_rows():
    assert read([], COLUMNS, by_name, 2000).num_rows == 0
    assert (
        read([content(rows(0), COLUMNS, "zstd")], COLUMNS, by_name, 2000).schema
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
        pytest.param(content(rows().drop_columns(["tags"]), COLUMNS[:3], "zstd"), id="a column fewer"),
    ],
)
def test_a_file_of_another_form_is_left_to_spark(data: bytes):
    assert read([stored(rows())], COLUMNS, by_name, 2000).num_rows == 3
    with pytest.raises(OtherFormError):
        read([data], COLUMNS, by_name, 2000)


def test_a_table_that_is_larger_than_its_files_is_left_to_spark(monkeypatch: pytest.MonkeyPatch):
    data = content(rows(1000), COLUMNS, "zstd")
    assert read([data], COLUMNS, by_name, 2000).num_rows == 1000
    monkeypatch.setattr(small_files, "VALUES_BYTES_MAX", 10_000)
    with pytest.raises(OtherFormError):
        read([data], COLUMNS, by_name, 2000)
    monkeypatch.undo()
    assert read([data, data], COLUMNS, by_name, 2000).num_rows == 2000
    with pytest.raises(OtherFormError):
        read([data, data], COLUMNS, by_name, 1999)


def test_the_driver_writes_only_what_the_properties_of_an_iceberg_table_ask_for():
    own = (
        "cdcd.schema",
        "owner",
        "format-version",
        "commit.retry.num-retries",
        "history.expire.min-snapshots-to-keep",
    )
    writer = (
        "write.parquet.compression-codec",
        "write.format.default",
        "write.merge.mode",
        "write.update.isolation-level",
        "write.distribution-mode",
        "write.merge.distribution-mode",
        "write.spark.fanout.enabled",
        "write.metadata.delete-after-commit.enabled",
        "write.metadata.previous-versions-max",
        "write.data.path",
        "write.object-storage.enabled",
    )
    assert all(map(iceberg_small.writes_so, own + writer))
    for key in (
        "write.parquet.compression-level",
        "write.parquet.bloom-filter-enabled.column.id",
        "write.parquet.row-group-size-bytes",
        "write.metadata.metrics.default",
        "write.metadata.metrics.column.id",
        "write.target-file-size-bytes",
        "write.what-a-later-version-has",
        "parquet.encryption.uniform.key",
    ):
        assert not iceberg_small.writes_so(key), key


def test_the_driver_writes_only_what_the_properties_of_a_delta_table_ask_for():
    for key in (
        "cdcd.schema",
        "delta.columnMapping.mode",
        "delta.columnMapping.maxColumnId",
        "delta.enableDeletionVectors",
        "delta.checkpointInterval",
        "delta.checkpoint.writeStatsAsJson",
        "delta.feature.timestampNtz",
        "delta.minReaderVersion",
        "delta.logRetentionDuration",
    ):
        assert delta_small.writes_so(key), key
    for key in (
        "delta.dataSkippingStatsColumns",
        "delta.dataSkippingNumIndexedCols",
        "delta.targetFileSize",
        "delta.autoOptimize.optimizeWrite",
        "delta.parquet.compression.codec",
        "delta.enableChangeDataFeed",
        "delta.whatALaterVersionHas",
        "parquet.crypto.factory.class",
    ):
        assert not delta_small.writes_so(key), key


def test_encryption_of_parquet_is_known_by_its_settings_whatever_stands_before_them():
    assert all(
        map(is_encryption, ("parquet.encryption.column.keys", "spark.hadoop.parquet.crypto.factory.class"))
    )
    assert not any(
        map(is_encryption, ("parquet.compression", "write.parquet.compression-codec", "encryption.note"))
    )
