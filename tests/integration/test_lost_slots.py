"""`snapshot.lost_slot: read_again` after a lost slot ends rows that were deleted meanwhile, also if cdcd is killed."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cdcd.core.protocol.lsn import Lsn
from deploy.demo.fold import await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, drop_slot, wal_end
from tests.integration.forked import run_cdcd

StartDaemon = Callable[[dict[str, Any]], Daemon]

ROWS = 1000


def settings(name: str, database: Database, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
    return configuration(
        name,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "when_needed", "lost_slot": "read_again", "chunk_bytes": 16_384, "parallelism": 1},
        **sections,
    )


def lose(database: Database, slot: str, how: str) -> None:
    if how == "dropped":
        drop_slot(database.dsn(), slot)
        return
    # The slot is advanced past changes that were never delivered.
    end = Lsn(wal_end(database.dsn()))
    database.execute(f"SELECT pg_replication_slot_advance('{slot}', '{end}')")


def ops(broker: KafkaBroker, name: str) -> dict[str, Counter[str]]:
    """Return the number of records by op, for each topic of a table."""
    found: dict[str, Counter[str]] = {}
    with Reader(broker.bootstrap_servers, name) as reader:
        for raw in reader.read_all():
            if raw.value is not None and ".public." in raw.topic:
                topic = raw.topic.partition(".public.")[2]
                found.setdefault(topic, Counter())[json.loads(raw.value).get("op", "event")] += 1
    return found


@pytest.mark.postgres(only=18, also=[13])
@pytest.mark.parametrize("how", ["dropped", "advanced"])
def test_rows_that_were_deleted_while_the_slot_was_lost_end_once_though_it_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, how: str
) -> None:
    # GIVEN a pipeline that has delivered three tables: `t`, `emptied`, and the partitioned table `p`
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE emptied (id int PRIMARY KEY)")
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (1000000)")
    database.execute(f"INSERT INTO t SELECT g, 'row' FROM generate_series(1, {ROWS}) g")
    database.execute("INSERT INTO emptied VALUES (1), (2)")
    database.execute("INSERT INTO p SELECT generate_series(1, 10)")
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR ALL TABLES WITH (publish_via_partition_root = true)'
    )
    process = daemon(settings(unique, database, broker))
    process.await_event("snapshot.finished")
    process.await_streaming()
    assert process.stop() == 0
    # WHEN the slot is lost, and rows were deleted or got other keys while no daemon was running
    database.execute("DELETE FROM t WHERE id <= 100")
    database.execute("UPDATE t SET id = id + 100000 WHERE id BETWEEN 200 AND 300")
    database.execute("DELETE FROM emptied")
    database.execute("DELETE FROM p WHERE id > 5")
    lose(database, f"cdcd_{unique}", how)
    database.execute("INSERT INTO t VALUES (5000000, 'behind the gap')")
    checked = run_cdcd("check", "--config", str(process.config_path))
    assert checked.returncode == 0, checked.stdout
    # AND the daemon is killed while the tables are read again
    process.start()
    gap = process.await_event("gap.accepted")
    for _ in range(3):
        process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > 50)
        process.kill()
        process.start()
    # The last kill may come behind the end of the snapshot, so the state is awaited and not an event.
    process.await_metric("cdcd_snapshot_tables", lambda left: left == 0)
    process.await_streaming()
    # THEN the topics equal the source, and each topic has one truncate record, which ends its former rows
    await_flushed(database.dsn(), f"cdcd_{unique}")
    tables = ["public.emptied", "public.p", "public.t"]
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True, tables=tables)
    assert report.equal, str(report)
    found = ops(broker, unique)
    assert {topic: counts["t"] for topic, counts in found.items()} == {"t": 1, "emptied": 1, "p": 1}
    # AND the event names the tables in the gap, and where the gap begins and ends
    assert sorted(gap["tables"]) == tables
    assert gap["ended"] == 3
    assert gap["begins"] < gap["ends"]
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
def test_outbox_routes_filters_and_protected_tables_end_as_they_were_written(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    database.execute("CREATE TABLE outbox (id int PRIMARY KEY, topic text, key text, payload text)")
    database.execute("CREATE TABLE routed (id int PRIMARY KEY, kind text)")
    database.execute("CREATE TABLE filtered (id int PRIMARY KEY, kind text)")
    database.execute("CREATE TABLE hidden (id int PRIMARY KEY, secret text)")
    process = daemon(
        settings(
            unique,
            database,
            broker,
            outbox={
                "tables": {"public.outbox": {"event_id": "id", "key": "key", "route_by": "topic"}},
                "topics": [f"outbox.event.{unique}"],
            },
            columns={"mask": {"public.hidden.secret": "***"}},
            filters={"tables": {"public.filtered": {"keep": "row.kind == 'in'", "old_row": "assumed"}}},
            routes={
                "tables": {
                    "public.routed": {
                        "rules": [{"when": "row.kind == 'b'", "topic": f"{unique}.public.routed_b"}],
                        "old_row": "assumed",
                    }
                }
            },
        )
    )
    process.await_streaming()
    database.execute("INSERT INTO outbox VALUES (1, 'nowhere', 'k', 'refused')")
    for table in ("routed", "filtered"):
        database.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'in')")
    database.execute("INSERT INTO hidden VALUES (1, 'no one reads this'), (2, 'nor this')")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    database.execute("DELETE FROM routed WHERE id = 2; DELETE FROM filtered; DELETE FROM hidden WHERE id = 1")
    drop_slot(database.dsn(), f"cdcd_{unique}")
    process.start()
    process.await_event("gap.accepted")
    process.await_event("snapshot.finished")
    process.await_streaming()
    await_flushed(database.dsn(), f"cdcd_{unique}")
    found = ops(broker, unique)
    ends = {topic: counts["t"] for topic, counts in found.items()}
    assert ends == {"outbox": 0, "routed": 1, "routed_b": 1, "filtered": 1, "hidden": 1}
    assert process.stop() == 0


@pytest.mark.postgres(only=[18])
def test_without_truncate_records_the_event_says_that_rows_stay(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    process = daemon(settings(unique, database, broker, topics={"truncate": False}))
    process.await_event("snapshot.finished")
    process.await_streaming()
    assert process.stop() == 0
    drop_slot(database.dsn(), f"cdcd_{unique}")
    database.execute("DELETE FROM t WHERE id = 1")
    process.start()
    needed = process.await_event("snapshot.needed")
    assert "topics.truncate" in needed["hint"]
    assert process.await_event("gap.accepted")["ended"] == 0
    process.await_event("snapshot.finished")
    assert process.stop() == 0
    assert ops(broker, unique) == {"t": Counter({"r": 3})}
