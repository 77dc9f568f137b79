"""The examples of catalogs: each loads, and those that can run on one machine are run."""

from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from cdcd.cli.mirror_parts import target_of
from cdcd.config.mirror import load_mirror
from cdcd.mirror.api import apply_changes
from cdcd.mirror.base.given import reached
from cdcd.mirror.platform.tables import having
from cdcd.mirror.targets.target import Kind
from tests.spark.source_model import FORM, change, frame
from tests.spark.stage import Stage

EXAMPLES = Path(__file__).parents[2] / "config" / "mirror"
CATALOG = "spark.sql.catalog.lake"


def test_a_mirror_in_a_hive_metastore(spark: SparkSession, tmp_path: Path):
    # GIVEN the example, under a name that no other test's catalog has, with a metastore in this process
    config = load_mirror(EXAMPLES / "hive-metastore.yaml", {})
    given = {key.replace(CATALOG, f"{CATALOG}_hive"): value for key, value in config.spark.items()}
    catalog = f"{CATALOG}_hive"
    del given[f"{catalog}.uri"]
    given |= {
        f"{catalog}.warehouse": tmp_path / "lake",
        f"{catalog}.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/meta;create=true",
        f"{catalog}.hadoop.datanucleus.schema.autoCreateAll": "true",
        f"{catalog}.hadoop.hive.metastore.schema.verification": "false",
        # What pyspark has of the metastore lacks the part that keeps locks.
        f"{catalog}.hadoop.iceberg.engine.hive.lock-enabled": "false",
    }
    place = config.target.model_copy(update={"catalog": "lake_hive"})
    target = target_of(config.model_copy(update={"target": place}))
    jvm: Any = spark._jvm
    # Derby writes a log into the folder of the process otherwise.
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    with having(spark, {key: str(value) for key, value in given.items()}):
        # WHEN a table is made, merged into and looked for
        name = target.name_of(FORM, Kind.MIRROR)
        apply_changes(target, frame(spark, [change("c", 10, 1), change("c", 11, 2)]), FORM)
        apply_changes(target, frame(spark, [change("d", 12, 1)]), FORM)
        # THEN another process finds it by the catalog alone
        other = target_of(config.model_copy(update={"target": place}))
        (found,) = other.list_tables(spark)
        assert [row.id for row in other.read(spark, found).collect()] == [2]
        assert found == name
        assert reached(spark, other, found).commit_lsn == 12


def test_a_mirror_in_a_jdbc_catalog(stage: Stage, tmp_path: Path):
    # GIVEN the example with a database of the test's own for its catalog; Spark fetches the driver that it names
    config = load_mirror(EXAMPLES / "jdbc-catalog.yaml", {"CATALOG_PASSWORD": "unused"})
    stage.postgres.execute("CREATE DATABASE iceberg_catalog")
    catalog = psycopg.conninfo.conninfo_to_dict(stage.postgres.dsn("iceberg_catalog"))
    given = {
        **config.spark,
        f"{CATALOG}.uri": f"jdbc:postgresql://{catalog['host']}:{catalog['port']}/iceberg_catalog",
        f"{CATALOG}.jdbc.user": catalog["user"],
        f"{CATALOG}.warehouse": str(tmp_path / "lake"),
    }
    place = {"location": None, "stream_checkpoint": str(tmp_path / "stream")}
    with stage.source("catalogued", "CREATE TABLE t (id int PRIMARY KEY, n int)") as source:
        mirror = source.mirror("iceberg", target=place, spark=given)
        source.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 10) n")
        source.deliver()
        assert mirror.once() == 0
        source.execute("UPDATE t SET n = -n WHERE id < 5")
        source.execute("DELETE FROM t WHERE id = 9")
        source.deliver()
        # WHEN a second process goes on from what the catalog says
        said: list[str] = []
        assert mirror.once(say=said.append) == 0
        # THEN it has the changes that are new, and no others
        assert any("batch 1: 5 changes" in line for line in said), said
    with psycopg.connect(stage.postgres.dsn("iceberg_catalog")) as connection:
        tables = connection.execute("SELECT table_namespace, table_name FROM iceberg_tables").fetchall()
    assert tables == [("public", "t")]
