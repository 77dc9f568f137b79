"""`cdcd mirror` behind a real daemon: tables equal the source, whatever happens on the way."""

import random
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from deploy.demo.mirrored import compare
from tests.spark.stage import Source, Stage, change, target_for
from tests.spark.workload import DEFINITIONS, MIRRORED, TABLES, TOUCH, Workload

SEED = 20_261_121


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    # Watermarks stand between the changes: to a mirror they are nothing.
    name = f"m{abs(hash(request.node.nodeid)) % 10**8}"
    with stage.source(name, *TABLES, watermark_s=0.2) as source:
        yield source


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_mirror_equals_its_source_through_changes_of_tables_kills_repeats_and_poison(
    source: Source, spark: SparkSession, table_format: str
) -> None:
    dice = random.Random(SEED)
    with source.connect() as connection:
        workload = Workload(connection, SEED, source.deliver)
        # GIVEN a mirror that follows a workload with changes of definitions, and is killed in the middle of batches
        mirror = source.mirror(table_format, batches={"interval_s": 0.1}, tables={"history": ["public.pair"]})
        workload.run(40)
        for _ in range(3):
            mirror.start()
            batches = 0
            for line in mirror.lines():
                workload.run(10, definitions=1)
                # Such a line follows each round of folds.
                batches += line.startswith("  public.")
                if batches >= dice.randrange(1, 3):
                    break
            mirror.kill()
        workload.run(30, definitions=len(DEFINITIONS))
        for statement in TOUCH:
            connection.execute(statement)
        source.deliver()
        # AND records that come again, and such as are no changes
        repeated = source.repeat("public.account")
        sound = change(source.records("public.pair")[0])
        poison = [
            b"{ not json",
            b'{"op":"c"}',
            str(sound).encode(),
            b'{"op":"c","after":{"a":1},"source":{"commit_lsn":1,"schema_id":"0000000000000000"}}',
        ]
        source.produce("public.pair", *poison)

        # WHEN it has caught up
        assert mirror.once() == 0, mirror.errors()[-3000:]

        # THEN all tables equal the source
        target = target_for(spark, mirror, f"c_{source.name}")
        verdicts = compare(source.dsn, spark, target, MIRRORED)
        assert [str(verdict) for verdict in verdicts if not verdict.equal] == []
        # AND every record that is no change is in quarantine, once, with its place and the reason; one from before what
        # the tables have is passed over, whatever its form
        quarantine = spark.table(target.own_name("log")).filter("kind = 'unreadable'")
        assert [row["reason"] for row in quarantine.orderBy("off").collect()] == [
            "its JSON is not that of a change",
            "it has no source.commit_lsn",
            "its JSON is not that of a change",
        ]
        # AND the table without a key, and the changelog, have each change once
        log = spark.sql(
            f"SELECT count(*), count(DISTINCT _cdcd_commit_lsn, _cdcd_event_no) FROM {log_name(target)}"
        )
        ((logged,),) = connection.execute("SELECT count(*) FROM log").fetchall()
        assert tuple(log.first() or ()) == (logged, logged)

        # WHEN everything is read again from nothing but what the targets know
        before = [str(verdict) for verdict in verdicts]
        assert mirror.once() == 0
        # THEN nothing changes
        assert [str(verdict) for verdict in compare(source.dsn, spark, target, MIRRORED)] == before
        assert quarantine.count() == len(poison) - 1
        assert repeated > 100


def log_name(target: object) -> str:
    from cdcd.mirror.records.schema import TableSchema
    from cdcd.mirror.targets.target import Kind, Target

    assert isinstance(target, Target)
    name: str = target.name_of(TableSchema("", "public", "log", "", (), ()), Kind.CHANGELOG)
    return name
