"""The same module under `spark-submit`, which brings the jars and says where it runs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import yaml
from pyspark.sql import SparkSession

from cdcd.cli import mirror as command
from cdcd.mirror.jars import ICEBERG, KAFKA, jars
from deploy.demo.mirrored import compare, environment
from tests.spark.stage import Source, Stage, target_for


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source("submitted", "CREATE TABLE item (id int PRIMARY KEY, name text)") as source:
        source.execute("INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, 100) n")
        source.execute("DELETE FROM item WHERE id % 10 = 0")
        source.deliver()
        yield source


def test_spark_submit_runs_the_mirror_in_the_session_that_it_makes(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    mirror = source.mirror(ICEBERG, change_log="fold")
    config = tmp_path / "mirror.yaml"
    config.write_text(yaml.safe_dump(mirror.config))
    arguments = ["--master", "local[1]", "--jars", ",".join(map(str, jars((ICEBERG, KAFKA))))]
    done = subprocess.run(
        [
            Path(pyspark.__file__).parent / "bin" / "spark-submit",
            *arguments,
            *("--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.ui.enabled=false"),
            str(command.__file__),
            *("--config", config, "--once"),
        ],
        env={**environment(), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (verdict,) = compare(source.dsn, spark, target_for(spark, mirror, "submitted"), ["public.item"])
    assert verdict.equal, verdict
    assert verdict.source.rows == 90
    assert "submitted: 1 tables, what is there now" in done.stdout
