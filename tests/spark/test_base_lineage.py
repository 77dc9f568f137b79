"""Lineage of folded tables by OpenLineage's listener, which sees every statement because Spark runs it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.spark.stage import Stage

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("table_format", "edge", "topic"),
    [
        (ICEBERG, ("cdcd/log", "public/orders"), "public.orders"),
        # The listener does not look into what Delta's MERGE reads: it names the table, and no topic of a table.
        (DELTA, ("public/orders", "public/orders"), "schemas"),
    ],
)
def test_openlineages_listener_names_what_the_log_and_a_folded_table_were_made_of(
    stage: Stage, tmp_path: Path, table_format: str, edge: tuple[str, str], topic: str
) -> None:
    events = tmp_path / "events.json"
    with stage.source(f"lineage_{table_format}", "CREATE TABLE orders (id int PRIMARY KEY, n int)") as source:
        mirror = source.mirror(
            table_format,
            change_log="fold",
            spark={
                "spark.jars.packages": "io.openlineage:openlineage-spark_2.13:1.53.0",
                "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
                "spark.openlineage.transport.type": "file",
                "spark.openlineage.transport.location": str(events),
                "spark.openlineage.namespace": "lake",
            },
        )
        source.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 5) n")
        source.deliver()
        assert mirror.once() == 0, mirror.errors()[-3000:]
    edges = {
        (tail(read), tail(written))
        for line in events.read_text().splitlines()
        for event in [json.loads(line)]
        for read in event["inputs"]
        for written in event["outputs"]
    }
    assert edge in edges, sorted(edges)
    read = {each["name"] for line in events.read_text().splitlines() for each in json.loads(line)["inputs"]}
    assert f"lineage_{table_format}.{topic}" in read, read


def tail(dataset: Mapping[str, Any]) -> str:
    """The last two parts of the name of a dataset, which is its place."""
    return "/".join(dataset["name"].split("/")[-2:])
