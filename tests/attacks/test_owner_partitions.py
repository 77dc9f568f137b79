"""The owner of a partitioned table changes its rows by commands that PostgreSQL does not publish."""

import time
from collections.abc import Callable

import pytest

from cdcd.daemon.partition_watch import PARTITIONS_S
from cdcd.daemon.pipeline import SURVEY_S
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S
from tests.integration.faults.trial import Trial

GAIN = "a topic, and tables made of it, whose rows differ from the source without a word"

FIRST_LOOK_S = 5.0

LOOK_S = PARTITIONS_S + SURVEY_S + WAIT_S


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.attack(gains=GAIN, before="failed")
def test_partitions_that_come_go_and_are_truncated_are_told(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    database.execute("CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for number in range(3):
        bounds = f"FROM ({number}) TO ({number + 1})"
        database.execute(f"CREATE TABLE part_{number} PARTITION OF whole FOR VALUES {bounds}")
    database.execute("INSERT INTO whole VALUES (0), (1), (2)")
    database.execute("CREATE TABLE attached (id int PRIMARY KEY)")
    database.execute("INSERT INTO attached VALUES (9)")
    for table in ("attached", "whole"):
        database.execute(f"ANALYZE {table}")
    # Published by partition, each change above is an event of the partition's own topic or publication.
    database.execute(f"CREATE PUBLICATION {one.slot} FOR ALL TABLES WITH (publish_via_partition_root)")
    one.start()
    # The first look is at the beginning of the session.
    time.sleep(FIRST_LOOK_S)
    database.execute("ALTER TABLE whole ATTACH PARTITION attached FOR VALUES FROM (9) TO (10)")
    database.execute("ALTER TABLE whole DETACH PARTITION part_0")
    database.execute("DROP TABLE part_1")
    database.execute("TRUNCATE part_2")
    attached = one.daemon.await_event("table.attached", timeout_s=LOOK_S)
    assert (attached["table"], attached["partition"]) == ("public.whole", "public.attached")
    assert attached["command"] == "cdcd snapshot start --table public.whole"
    truncated = one.daemon.await_event("table.truncated", timeout_s=LOOK_S)
    assert truncated["partition"] == "public.part_2"
    for partition in ("public.part_0", "public.part_1"):
        one.daemon.await_event("table.detached", partition=partition, timeout_s=LOOK_S)
    gone = [event["partition"] for event in one.daemon.events if event["event"] == "table.detached"]
    assert sorted(gone) == ["public.part_0", "public.part_1"]
    one.stop()


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.attack(gains="values of another form than the topic had, without a word", before="failed")
def test_a_column_whose_type_was_dropped_is_told(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    assert one.daemon.stop() == 0
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.execute("CREATE TABLE moods (id int PRIMARY KEY, moods mood[])")
    database.execute("INSERT INTO moods VALUES (1, '{sad,ok}')")
    database.execute("DROP TABLE moods")
    database.execute("DROP TYPE mood")
    one.start()
    told = one.daemon.await_event("type.dropped")
    assert (told["table"], told["column"]) == ("public.moods", "moods")
    assert one.daemon.stop() == 0
