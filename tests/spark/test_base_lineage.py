"""Lineage of folded tables by OpenLineage's listener, which sees every statement because Spark runs it."""

import json
from pathlib import Path

import pytest

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.spark.stage import Stage

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_openlineages_listener_names_the_log_as_the_input_of_a_folded_table(
    stage: Stage, tmp_path: Path, table_format: str
) -> None:
    events = tmp_path / "events.json"
    with stage.source(f"lineage_{table_format}", "CREATE TABLE orders (id int PRIMARY KEY, n int)") as source:
        mirror = source.mirror(
            table_format,
            spark={
                "spark.jars.packages": "io.openlineage:openlineage-spark_2.13:1.53.0",
                "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
                "spark.openlineage.transport.type": "file",
                "spark.openlineage.transport.location": str(events),
                "spark.openlineage.namespace": "lake",
            },
        )
        mirror.config["change_log"] = "fold"
        source.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 5) n")
        source.deliver()
        assert mirror.once() == 0, mirror.errors()[-3000:]
    edges = {
        (
            read["name"].rpartition("/")[2].rpartition(".")[2],
            written["name"].rpartition("/")[2].rpartition(".")[2],
        )
        for line in events.read_text().splitlines()
        for event in [json.loads(line)]
        for read in event["inputs"]
        for written in event["outputs"]
    }
    assert ("log", "public_orders" if table_format == ICEBERG else "orders") in edges, sorted(edges)
