"""Mirrors of commit 99c61843 continue under this version, without reading tables again."""

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from deploy.demo.mirrored import MirrorProcess, compare
from tests.integration.forked import run_cdcd
from tests.integration.former import Environment, former  # noqa: F401  a fixture
from tests.spark.stage import Source, Stage, target_for
from tests.spark.test_mirror_end_to_end import log_name
from tests.spark.workload import MIRRORED, TABLES, TOUCH, Workload

pytestmark = pytest.mark.upgrade

ANSWER_S = 120.0
"""Maximum number of seconds to wait until the broker has deleted records."""

TOPICS = ("public.account", "public.pair", "public.whole", "public.log")


def ends_of(source: Source) -> list[TopicPartition]:
    """Return the end offsets of all partitions of the tables' topics."""
    admin = AdminClient({"bootstrap.servers": source.servers})
    known = admin.list_topics(timeout=30).topics
    asked = {
        TopicPartition(f"{source.name}.{topic}", partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for topic in TOPICS
        for partition in known[f"{source.name}.{topic}"].partitions
    }
    return [
        TopicPartition(place.topic, place.partition, found.result().offset)
        for place, found in admin.list_offsets(asked).items()
    ]


def select(mirror: MirrorProcess, variables: Environment | None) -> None:
    """Select the version of the next process. The former version does not know the key `change_log`."""
    mirror.variables = variables or {}
    mirror.config.pop("change_log", None)


def run(source: Source, mirror: MirrorProcess, variables: Environment | None) -> None:
    """Mirror all delivered records, then delete these records, so that a later mirror cannot read them again."""
    source.deliver()
    ends = ends_of(source)
    said: list[str] = []
    select(mirror, variables)
    assert mirror.once(say=said.append) == 0, "\n".join(said) + mirror.errors()[-3000:]
    admin = AdminClient({"bootstrap.servers": source.servers})
    for deleted in admin.delete_records(ends).values():
        deleted.result(ANSWER_S)


def replace_daemon(source: Source) -> None:
    """Upgrade the daemon."""
    source.deliver()
    assert source.daemon.stop() == 0
    source.daemon = source.daemon_of(None)
    source.daemon.start()
    source.daemon.await_streaming()


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_this_version_goes_on_with_a_mirror_of_the_former_one_without_reading_it_again(
    stage: Stage,
    spark: SparkSession,
    former: Environment,  # noqa: F811
    table_format: str,
) -> None:
    name = f"u_{table_format}"
    with (
        stage.source(name, *TABLES, watermark_s=0.2, former=former) as source,
        source.connect() as connection,
    ):
        workload = Workload(connection, 7, source.deliver)

        def equal() -> None:
            verdicts = compare(source.dsn, spark, target, MIRRORED)
            assert [str(verdict) for verdict in verdicts if not verdict.equal] == []
            ((logged,),) = connection.execute("SELECT count(*) FROM log").fetchall()
            counted = spark.sql(
                f"SELECT count(*), count(DISTINCT _cdcd_commit_lsn, _cdcd_event_no) FROM {log_name(target)}"
            )
            assert tuple(counted.first() or ()) == (logged, logged)

        # GIVEN tables that a mirror of one version keeps, behind a daemon of that version
        mirror = source.mirror(table_format, tables={"history": ["public.pair"]})
        workload.run(12, definitions=1)
        run(source, mirror, former)
        target = target_for(spark, mirror, f"c_{name}")
        equal()
        # AND records that a daemon of that version and then a daemon of the other version delivered since
        workload.run(5, definitions=1)
        replace_daemon(source)
        workload.run(5, definitions=2)
        for statement in TOUCH:
            connection.execute(statement)
        # WHEN the mirror of the other version goes on, THEN the tables equal the source
        run(source, mirror, None)
        equal()


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_table_that_the_former_version_stopped_stays_stopped_by_name_until_the_hint_brings_it_back(
    stage: Stage,
    spark: SparkSession,
    former: Environment,  # noqa: F811
    table_format: str,
) -> None:
    name, tables = f"s_{table_format}", ["public.typed", "public.other"]
    created = [f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in ("typed", "other")]
    with stage.source(name, *created, former=former) as source:
        said: list[str] = []

        def mirrored(variables: Environment | None, *arguments: str) -> int:
            source.deliver()
            said.clear()
            select(mirror, variables)
            return mirror.once(*arguments, say=said.append)

        def equal() -> list[bool]:
            return [verdict.equal for verdict in compare(source.dsn, spark, target, tables)]

        # GIVEN a mirror of the former version that stopped a table, because no target can follow the change
        mirror = source.mirror(table_format, tables={"on_incompatible": "stop"})
        source.execute("INSERT INTO typed VALUES (1, 1); INSERT INTO other VALUES (1, 1)")
        assert mirrored(former) == 0, said
        source.execute("ALTER TABLE typed ALTER v TYPE text; INSERT INTO typed VALUES (2, 'two')")
        source.execute("INSERT INTO other VALUES (2, 2)")
        assert mirrored(former) != 0
        assert any("public.typed STOPPED" in line for line in said), said
        target = target_for(spark, mirror, f"c_{name}")
        assert equal() == [False, True]
        # WHEN daemon and mirror are upgraded
        replace_daemon(source)
        source.execute("INSERT INTO typed VALUES (3, 'three'); INSERT INTO other VALUES (3, 3)")
        # THEN the table stops by name with the hint, and the other one goes on
        assert mirrored(None) != 0
        stopped = " ".join(said)
        assert "public.typed STOPPED" in stopped
        assert "cdcd tables resume public.typed" in stopped
        assert equal() == [False, True]
        # AND what the hint says brings the table back
        config = str(source.daemon.config_path)
        seen = len(source.daemon.events)
        for action, event in (("stop", "table.aside"), ("resume", "table.read")):
            done = run_cdcd("tables", action, "public.typed", "--config", config)
            assert done.returncode == 0, done.stderr
            source.daemon.await_event(event, after=seen, table="public.typed")
        assert mirrored(None) == 0, said
        assert equal() == [True, True]
