"""Parquet's encryption of all files, as Spark's configuration asks for it: folds write and read it, and no file of the
table or of the log is in clear.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from cdcd.mirror.jars import DELTA
from deploy.demo.mirrored import environment
from tests.spark.stage import Stage

pytestmark = pytest.mark.timeout(1800)

LIMIT_S = 900.0
SECRET = "hush-5ecret-of-a-row"
# Parquet's own service of keys for tests, which keeps them in memory.
KEYS_JAR = (
    "https://repo1.maven.org/maven2/org/apache/parquet/parquet-hadoop/1.16.0/parquet-hadoop-1.16.0-tests.jar"
)


def test_with_parquets_encryption_no_file_of_a_folded_table_or_of_the_log_is_in_clear(
    stage: Stage, tmp_path: Path
) -> None:
    with stage.source("encrypted", "CREATE TABLE t (id int PRIMARY KEY, body text)") as source:
        # GIVEN a mirror whose Spark encrypts files, and a table whose transaction log has no values
        mirror = source.mirror(
            DELTA,
            change_log="fold",
            target={
                "location": str(tmp_path / "lake"),
                "properties": {"delta.dataSkippingNumIndexedCols": "0", "delta.checkpointInterval": "2"},
            },
            spark={
                "spark.jars": KEYS_JAR,
                "spark.hadoop.parquet.crypto.factory.class": (
                    "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
                ),
                "spark.hadoop.parquet.encryption.kms.client.class": (
                    "org.apache.parquet.crypto.keytools.mocks.InMemoryKMS"
                ),
                "spark.hadoop.parquet.encryption.key.list": "all:AAECAwQFBgcICQoLDA0ODw==",
                "spark.hadoop.parquet.encryption.uniform.key": "all",
            },
        )
        said: list[str] = []
        for statement in (
            f"INSERT INTO t SELECT n, '{SECRET}' || n FROM generate_series(1, 20) n",
            f"UPDATE t SET body = '{SECRET} again' WHERE id < 5; DELETE FROM t WHERE id = 9",
        ):
            source.execute(statement)
            source.deliver()
            # WHEN changes are folded by one process after the other
            assert mirror.once(say=said.append) == 0, "\n".join(said) + mirror.errors()[-3000:]
        files = "--config", str(source.daemon.config_path), "--target", "mirror", "--mirror", str(mirror.path)
        done = subprocess.run(
            [sys.executable, "-m", "cdcd.cli", "verify", *files],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        # THEN the table equals the source
        assert done.returncode == 0, done.stdout + done.stderr
    # AND each file of Parquet is encrypted, also its footer, and no other file has a value
    found = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    parquet = [path for path in found if path.suffix == ".parquet"]
    assert {folder for path in parquet for folder in path.parts} >= {"t", "log"}
    assert {path.read_bytes()[-4:] for path in parquet} == {b"PARE"}
    assert [path for path in found if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in "\n".join(said) + mirror.errors()
