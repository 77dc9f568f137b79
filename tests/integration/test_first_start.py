"""A first start that comes to nothing leaves no slot that holds WAL, or says which one and how it is freed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

ROWS = 2000


def settings(name: str, database: Database, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
    return configuration(
        name,
        database.dsn(),
        broker.bootstrap_servers,
        **{"snapshot": {"mode": "initial", "chunk_bytes": 16_384, "parallelism": 1}, **sections},
    )


def create(database: Database, *tables: str, rows: int = ROWS) -> None:
    for table in tables:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        database.execute(f"INSERT INTO {table} SELECT g, repeat('x', 50) FROM generate_series(1, {rows}) g")


def slots(database: Database) -> int:
    ((count,),) = database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    )
    return int(count)


def topic(broker: KafkaBroker, *names: str, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    create_topics(broker.bootstrap_servers, *names, config=settings)


def goes_on(process: Daemon, database: Database, broker: KafkaBroker, unique: str) -> None:
    """The daemon starts, and the topics become equal to the tables, also by changes."""
    process.start()
    process.await_event("snapshot.finished")
    process.await_streaming()
    database.execute("UPDATE t SET note = 'later' WHERE id <= 10")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True)
    assert report.equal, str(report)
    assert {op: count for op, count in report.tables[0].ops.items() if op == "r"}
    assert process.stop() == 0


def test_a_table_that_may_not_be_read_leaves_no_slot_and_the_next_start_begins_anew(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database, "t")
    database.execute(f"CREATE ROLE {unique} LOGIN REPLICATION")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t')
    try:
        process = daemon(settings(unique, database, broker, postgres={"dsn": database.dsn(user=unique)}))
        assert process.wait() == 3
        process.await_event("slot.dropped", slot=f"cdcd_{unique}")
        assert not process.saw("slot.kept")
        assert slots(database) == 0
        # AND what was deleted meanwhile is in no topic
        database.execute("DELETE FROM t WHERE id > 1000")
        database.execute(f"GRANT SELECT ON t TO {unique}")
        goes_on(process, database, broker, unique)
    finally:
        database.execute(f"DROP OWNED BY {unique}")
        database.execute(f"DROP ROLE {unique}")


def test_a_topic_that_may_not_be_made_leaves_no_slot_and_the_next_start_begins_anew(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database, "t")
    # GIVEN cdcd's own topics, and no right to make the table's, which is found when the slot is there already
    topic(broker, f"{unique}.checkpoint", f"{unique}.schemas", cleanup_policy="compact")
    topic(broker, f"{unique}.message")
    process = daemon(settings(unique, database, broker, topics={"create": {"enabled": False}}))
    assert process.wait() == 4
    process.await_event("slot.created")
    process.await_event("slot.dropped")
    assert slots(database) == 0
    topic(broker, f"{unique}.public.t")
    goes_on(process, database, broker, unique)


@dataclass(frozen=True)
class Refusal:
    """A first start that must be refused: sections of the configuration, the exit code, and words of the error."""

    sections: dict[str, Any]
    code: int
    words: str
    sql: str = ""


REFUSED = {
    "filter": Refusal(
        {"filters": {"tables": {"public.t": {"keep": "row.missing > 1"}}}},
        2,
        "no published column missing",
    ),
    "query": Refusal(
        {"snapshot": {"mode": "initial", "queries": {"public.t": "SELECT id FROM {rows} AS r"}}},
        2,
        "cannot be read",
    ),
    "table": Refusal({"postgres": {"tables": ["public.missing"]}}, 3, "there is no table public.missing"),
    "collision": Refusal(
        {},
        4,
        "names that differ only in '.' and '_' are the same",
        'CREATE TABLE a_b (); CREATE TABLE "a.b" ()',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_first_start_that_must_be_refused_creates_nothing(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, case: str
):
    """A publication without a stream would make PostgreSQL refuse UPDATEs of tables without a key."""
    create(database, "t", rows=1)
    database.execute("CREATE TABLE keyless (note text)")
    database.execute("INSERT INTO keyless VALUES ('x')")
    refusal = REFUSED[case]
    if refusal.sql:
        database.execute(refusal.sql)
    process = daemon(settings(unique, database, broker, **refusal.sections))
    assert process.wait() == refusal.code
    assert refusal.words in process.output()
    assert created(process, database, broker, unique) == []
    database.execute("UPDATE keyless SET note = 'y'")


@pytest.mark.parametrize(
    ("server_settings", "words"),
    [
        ({"wal_level": "replica"}, "wal_level is replica"),
        ({"max_replication_slots": "1"}, "all replication slots are in use"),
    ],
)
def test_a_server_that_cannot_have_the_slot_is_left_as_it_was(
    private_postgres: Callable[..., PostgresServer],
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    server_settings: dict[str, str],
    words: str,
):
    server = private_postgres(settings=server_settings)
    server.execute("CREATE TABLE keyless (note text)")
    if "max_replication_slots" in server_settings:
        server.execute("SELECT pg_create_physical_replication_slot('taken')")
    process = daemon(configuration(unique, server.dsn(), broker.bootstrap_servers))
    assert process.wait() == 3
    assert words in process.output()
    assert server.execute("SELECT pubname FROM pg_publication") == []
    assert topics_of(broker, unique) == []


def topics_of(broker: KafkaBroker, unique: str) -> list[str]:
    """The topics that the pipeline has."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{unique}.")]


def created(process: Daemon, database: Database, broker: KafkaBroker, unique: str) -> list[str]:
    """What the start left behind: events, publications, slots and topics."""
    events = [name for name in ("topic.created", "publication.created", "slot.created") if process.saw(name)]
    publications = [str(name) for (name,) in database.execute("SELECT pubname FROM pg_publication")]
    return events + publications + ["slot"] * slots(database) + topics_of(broker, unique)


def test_a_slot_by_which_rows_were_delivered_stays_and_the_end_says_how_it_is_freed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database, "t", "u")
    database.execute(f"CREATE ROLE {unique} LOGIN REPLICATION")
    database.execute(f"GRANT SELECT ON t TO {unique}")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t, u')
    try:
        process = daemon(
            settings(
                unique,
                database,
                broker,
                postgres={"dsn": database.dsn(user=unique)},
                kafka={"transaction": {"bytes_max": 16_384}, "queue_bytes_max": 65_536},
            )
        )
        assert process.wait() == 3
        kept = process.await_event("slot.kept", slot=f"cdcd_{unique}")
        assert "cdcd drop" in kept["hint"]
        assert "`cdcd drop` removes the slot" in process.await_event("fatal")["hint"]
        assert slots(database) == 1
        # AND the next start goes on with what is left
        database.execute(f"GRANT SELECT ON u TO {unique}")
        goes_on(process, database, broker, unique)
        process.await_event("snapshot.resumed")
    finally:
        database.execute(f"DROP OWNED BY {unique}")
        database.execute(f"DROP ROLE {unique}")


@pytest.mark.long
def test_a_stop_in_the_first_snapshot_says_that_the_slot_stays(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a table that takes seconds to be read
    create(database, "t", rows=100_000)
    process = daemon(settings(unique, database, broker))
    process.await_event("snapshot.started")
    assert process.stop() == 0
    assert "cdcd drop" in process.await_event("slot.kept")["hint"]
    assert slots(database) == 1
    # WHEN it is stopped again while it streams, THEN nothing of the kind is said
    goes_on(process, database, broker, unique)
    assert not process.saw("slot.kept")


def test_the_start_after_a_kill_right_after_the_slot_was_made_takes_the_slot_over(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # More rows than are read before the kill
    create(database, "t", rows=100_000)
    process = daemon(settings(unique, database, broker))
    process.await_event("slot.created")
    process.kill()
    assert slots(database) == 1
    database.execute("DELETE FROM t WHERE id > 1000")
    goes_on(process, database, broker, unique)
    assert not process.saw("slot.created")
