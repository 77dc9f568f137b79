"""Tables folded into objects of S3 (moto's server), with a catalogue in PostgreSQL, by the commands alone."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from deploy.demo.mirrored import environment
from tests.s3_store import CREDENTIALS, S3Store
from tests.spark.stage import Stage

pytestmark = pytest.mark.timeout(1800)

LIMIT_S = 900.0
PACKAGES = "org.apache.iceberg:iceberg-aws-bundle:1.12.0,org.postgresql:postgresql:42.7.8"
CATALOG = "spark.sql.catalog.lake"


def test_folds_into_objects_of_s3_are_equal_and_no_secret_is_in_the_log(stage: Stage, tmp_path: Path) -> None:
    stage.postgres.execute("CREATE DATABASE s3_catalog")
    catalog = psycopg.conninfo.conninfo_to_dict(stage.postgres.dsn("s3_catalog"))
    tables = ("CREATE TABLE t (id int PRIMARY KEY, n int, body text)", "CREATE TABLE u (id text PRIMARY KEY)")
    with S3Store() as store, stage.source("s3_folds", *tables) as source:
        store.create_bucket("lake")
        # GIVEN a mirror whose tables and log are objects, and whose checkpoint is a folder
        mirror = source.mirror(
            "iceberg",
            change_log="fold",
            target={"location": None, "stream_checkpoint": str(tmp_path / "stream")},
            spark={
                "spark.jars.packages": PACKAGES,
                CATALOG: "org.apache.iceberg.spark.SparkCatalog",
                f"{CATALOG}.type": "jdbc",
                f"{CATALOG}.uri": f"jdbc:postgresql://{catalog['host']}:{catalog['port']}/s3_catalog",
                f"{CATALOG}.jdbc.user": catalog["user"],
                f"{CATALOG}.jdbc.schema-version": "V1",
                f"{CATALOG}.warehouse": "s3://lake/warehouse",
                f"{CATALOG}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
                f"{CATALOG}.s3.endpoint": store.url,
                f"{CATALOG}.s3.path-style-access": True,
                f"{CATALOG}.client.region": CREDENTIALS["AWS_REGION"],
                f"{CATALOG}.s3.access-key-id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                f"{CATALOG}.s3.secret-access-key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
                f"{CATALOG}.cache-enabled": False,
            },
        )
        said: list[str] = []
        for statements in (
            "INSERT INTO t SELECT n, n, repeat('b', 3000) FROM generate_series(1, 50) n; INSERT INTO u VALUES ('a')",
            (
                "UPDATE t SET n = -n WHERE id < 9; DELETE FROM t WHERE id = 50; UPDATE t SET id = 60 WHERE id = 10;"
                " TRUNCATE u; ALTER TABLE u ADD n int DEFAULT 7; INSERT INTO u VALUES ('b')"
            ),
        ):
            source.execute(statements)
            source.deliver()
            # WHEN changes are folded by one process after the other
            assert mirror.once(say=said.append) == 0, "\n".join(said) + mirror.errors()[-3000:]
        # THEN the tables equal the source, as the command compares them
        files = "--config", str(source.daemon.config_path), "--target", "mirror", "--mirror", str(mirror.path)
        done = subprocess.run(
            [sys.executable, "-m", "cdcd.cli", "verify", *files],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("equal") >= 2, done.stdout
        # AND the files are objects
        names = store.objects("lake").keys()
        assert [name for name in names if name.endswith(".parquet") and "/t/" in name]
        assert [name for name in names if name.endswith(".parquet") and "/log/" in name]
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in "\n".join(said) + mirror.errors()
