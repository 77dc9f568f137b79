"""A topic that the broker compacts, until only the tombstone of a delete is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.watching.progress import TopicUnfit
from tests.integration.daemon import until
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage, change

COMPACTED_S = 120.0
"""The broker looks for something to clean every 15 s."""

SETTINGS = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with (
        Stage.set_up() as stage,
        stage.source("compacted", "CREATE TABLE kept (id int PRIMARY KEY, n int)") as made,
    ):
        yield made


def compact(source: Source) -> None:
    resource = ConfigResource(ResourceType.TOPIC, f"{source.name}.public.kept")
    for name, value in SETTINGS.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": source.servers})
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(30)


def deletes(source: Source) -> tuple[int, int]:
    """How many the topic has, and how many tombstones."""
    records = source.records("public.kept")
    return sum(change(each)["op"] == "d" for each in records if each.value), sum(
        not each.value for each in records
    )


def test_a_table_of_which_compaction_removed_a_delete_stops_or_is_read_again(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    jobs = [Job(spark, source, tmp_path / form, form) for form in (ICEBERG, DELTA)]
    source.execute("INSERT INTO kept SELECT i, i FROM generate_series(1, 20) i")
    source.deliver()
    for job in jobs:
        assert job.once() == {}
        assert job.all(TopicUnfit) == []
    # GIVEN rows that were deleted, of which compaction has removed the deletes before they were mirrored
    compact(source)
    source.execute("DELETE FROM kept WHERE id <= 10")
    source.execute("INSERT INTO kept SELECT i, -i FROM generate_series(1, 3) i")
    source.execute("DELETE FROM kept WHERE id = 2")

    def compacted() -> bool | None:
        # A segment is closed when the next one begins.
        source.execute("UPDATE kept SET n = n + 1 WHERE id > 15")
        source.deliver()
        return True if deletes(source) == (0, 8) else None

    until(compacted, "only tombstones are left", COMPACTED_S)
    expected = sorted(map(tuple, source.connect().execute("SELECT id, n FROM kept").fetchall()))
    for job in jobs:
        # WHEN that is mirrored, THEN the table stops by name, and what compaction can cost is said once
        stopped = job.once()
        assert "compaction has removed the delete" in stopped["public.kept"].message
        assert [fact.topic for fact in job.all(TopicUnfit)] == [f"{source.name}.public.kept"]
        # AND a mirror that may read the table again is equal
        assert job.once(tables={"on_incompatible": "reload"}) == {}
        assert job.rows(source, "kept") == expected
