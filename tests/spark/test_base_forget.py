"""`cdcd mirror forget`: no data file has the values of a key any more, and the table goes on."""

import zlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdcd.cli.mirror_forget import plan, proved
from cdcd.core.errors import ConfigError, SourceError, TransientError
from cdcd.mirror.base.forget import Forgetting
from cdcd.mirror.base.reading import LogTables
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from tests.spark.folding import Folds
from tests.spark.stage import Stage

SECRETS = ("first-secret", "second-secret", "third-secret")
ITEMS = (
    "CREATE TABLE item (id int PRIMARY KEY, body text)",
    "INSERT INTO item SELECT g, 'plain' FROM generate_series(1, 5) g",
)


def secrets_in(folder: Path) -> set[str]:
    """The secrets that a data file below the folder has, or that a manifest of Iceberg has as a bound of its values."""
    found = set()
    for file in folder.rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            values = str(pq.ParquetFile(file).read().to_pylist())
            found |= {secret for secret in SECRETS if secret in values}
    for file in folder.rglob("*.avro"):
        content = avro_content(file.read_bytes())
        # A bound has the first 16 characters of a text.
        found |= {secret for secret in SECRETS if secret[:16].encode() in content}
    return found


def avro_content(file: bytes) -> bytes:
    """The blocks of an Avro file without their compression."""
    sync = file[-16:]
    blocks = []
    for block in file.split(sync)[1:-1]:
        at = 0
        # Two numbers of variable length: records and bytes.
        for _ in range(2):
            while block[at] & 0x80:
                at += 1
            at += 1
        blocks.append(zlib.decompress(block[at:], -15))
    return b"".join(blocks)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_key_that_is_forgotten_is_in_no_data_file_and_the_table_goes_on(
    stage: Stage, spark: SparkSession, warehouse: Path, tmp_path: Path, table_format: str
) -> None:
    with stage.source(f"forget_{table_format}", *ITEMS) as source:
        folds = Folds(spark, source, tmp_path, table_format)
        folder = warehouse / "iceberg" / source.name if table_format == ICEBERG else folds.folder

        def fold() -> None:
            source.deliver()
            assert folds.once(scd2=("public.item",), history=("public.item",)) == {}

        def forgetting(id_: str) -> Forgetting:
            tables = LogTables(folds.spark, KafkaSource(source.servers), folds.target, source.name)
            return Forgetting(tables, "public.item", {"id": id_})

        # GIVEN a row that was changed, that got another key, and whose values are in former versions
        source.execute("INSERT INTO item VALUES (70, 'first-secret')")
        fold()
        if table_format == DELTA:
            # Files of changes have the values too.
            for name in ("item", "item_scd2", "item_changes"):
                folds.spark.sql(
                    f"ALTER TABLE {folds.name(name)} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
                )
        source.execute("UPDATE item SET body = 'second-secret' WHERE id = 70")
        fold()
        source.execute("UPDATE item SET id = 71, body = 'third-secret' WHERE id = 70")
        fold()
        assert secrets_in(folder) == {*SECRETS}
        # WHEN the source still has it, or its delete is not folded yet, THEN it stays
        with pytest.raises(SourceError, match="the source has a row with this key"):
            forgetting("71").look()
        with pytest.raises(ConfigError, match="is no integer"):
            forgetting("seventy")
        source.execute("DELETE FROM item WHERE id = 71")
        source.deliver()
        folds.append()
        with pytest.raises(TransientError, match="the table does not have it yet"):
            forgetting("71").look()
        fold()
        # WHEN both of its keys are forgotten
        found = forgetting("71").look()
        assert len(found.records) >= 2
        # The tombstone of the former key has the later key too.
        assert len(found.references) == 2
        # One state, and in the changelog the change that made the row and its delete.
        assert found.states == 3
        assert [line for line in plan("public.item", found) if '{"id":70}' in line]
        forgetting("71").remove(found)
        assert secrets_in(folder) <= {"first-secret", "second-secret"}
        second = forgetting("70")
        proof = second.remove(second.look())
        # THEN nothing of it is left, and the table goes on from its position
        assert [(each.rows, each.strange, each.former) for each in proof] == [(0, 0, 0)] * 4
        assert secrets_in(folder) == set()
        assert [line for line in proved(found, proof) if "0 rows with the key" in line]
        rows = folds.spark.table(folds.place.name).filter("kind = 'change'").count()
        source.execute("UPDATE item SET body = 'later' WHERE id = 1; INSERT INTO item VALUES (6, 'new')")
        fold()
        assert folds.different("item") == []
        assert folds.spark.table(folds.place.name).filter("kind = 'change'").count() == rows + 2
        assert secrets_in(folder) == set()
