"""The owner of a schema fills it with tables in one transaction, which must not hold up everybody else's changes."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, Event, configuration
from tests.integration.faults.trial import Trial

TABLES = 400

REQUESTS_MAX = 20
"""Bursts in which these topics may be created. One request has up to 500; a busy machine may tell them in several."""

GAIN = "an outage of all other tables for as long as the topics of new ones are created one by one"


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.attack(gains=GAIN, before="failed")
def test_the_topics_of_one_transactions_new_tables_are_created_together(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    # WHEN many tables are created and filled in one transaction, and another table changes behind it
    with database.connect(autocommit=False) as owner:
        for number in range(TABLES):
            owner.execute(f"CREATE TABLE filler_{number} (id int PRIMARY KEY)".encode())
            owner.execute(f"INSERT INTO filler_{number} VALUES (1)".encode())
    one.insert(1)
    one.expect(1)
    # THEN their topics came by few requests
    created = [event for event in one.daemon.events if event["event"] == "topic.created"]
    fillers = [event for event in created if "filler" in event["topic"]]
    assert len(fillers) == TABLES
    assert requests(fillers) <= REQUESTS_MAX
    one.stop()


@pytest.mark.postgres(only=[13, 18])
@pytest.mark.attack(gains="an end of the pipeline by a table that has no row", before="withstood")
def test_a_new_table_without_a_topic_that_kafka_would_take_stops_nobody_before_it_has_a_row(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker
):
    """Topics are created ahead of the first record, and one of them is refused: two names are one to Kafka."""
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.start()
    with database.connect(autocommit=False) as owner:
        owner.execute('CREATE TABLE "odd.name" (id int PRIMARY KEY)')
        owner.execute("CREATE TABLE odd_name (id int PRIMARY KEY)")
        owner.execute("CREATE TABLE another (id int PRIMARY KEY)")
        owner.execute("INSERT INTO another VALUES (1)")
    one.insert(1)
    one.expect(1)
    one.stop()


def requests(created: list[Event]) -> int:
    """Topics of one request are told at the same moment."""
    times = [datetime.fromisoformat(event["timestamp"]) for event in created]
    return 1 + sum(after - before > timedelta(milliseconds=20) for before, after in pairwise(times))


@pytest.mark.attack(
    gains="a delay of all other tables, that grows with the square of the partitions", before="failed"
)
@pytest.mark.postgres(only=[13, 18])
def test_a_row_in_each_of_many_partitions_costs_few_look_ups(
    database: Database, broker: KafkaBroker, daemon: Callable[[Mapping[str, Any]], Daemon], unique: str
):
    """PostgreSQL describes the partitioned table again before the first change of each partition."""
    count = 150
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    database.execute(
        f"DO $$ BEGIN FOR n IN 0 .. {count - 1} LOOP "
        "EXECUTE format('CREATE TABLE t_%s PARTITION OF t FOR VALUES FROM (%s) TO (%s)', n, n, n + 1); "
        "END LOOP; END $$"
    )
    database.execute(f"CREATE PUBLICATION cdcd_{unique} FOR TABLE t WITH (publish_via_partition_root = true)")
    process = daemon(
        configuration(unique, database.dsn(options="-c log_statement=all"), broker.bootstrap_servers)
    )
    process.await_streaming()
    log_from = len(database.server.log())
    database.execute(f"INSERT INTO t SELECT n, 'x' FROM generate_series(0, {count - 1}) n")
    process.await_metric("cdcd_events_total", lambda events: events == count, "c", "public.t")
    look_ups = [
        line
        for line in database.server.log()[log_from:].splitlines()
        if "hashtextextended(string_agg(concat_ws(' ', c.oid, relfilenode)" in line
    ]
    assert 1 <= len(look_ups) < 20
