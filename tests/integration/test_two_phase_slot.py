"""A slot and a configuration that differ about PREPARE: nothing is lost in either direction."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration

StartDaemon = Callable[[dict[str, Any]], Daemon]


def prepare(database: Database, gid: str, *ids: int) -> None:
    rows = ", ".join(f"({number}, '{gid}')" for number in ids)
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO t VALUES {rows}")
        connection.execute(f"PREPARE TRANSACTION '{gid}'")


@pytest.mark.postgres(only=[16, 18])
def test_two_phase_is_switched_off_and_on_with_prepared_transactions_in_between(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a pipeline that has received two prepared transactions
    dsn, slot = database.dsn(), f"cdcd_{unique}"
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")

    def start(two_phase: bool) -> Daemon:
        process = daemon(
            configuration(unique, dsn, broker.bootstrap_servers, postgres={"two_phase": two_phase})
        )
        process.await_streaming()
        return process

    process = start(True)
    prepare(database, "one", 1, 2)
    prepare(database, "doomed", 3)
    process.await_metric("cdcd_prepared_open", lambda count: count == 2)
    assert process.stop() == 0
    # WHEN it is started without two_phase
    process = start(False)
    if database.version >= 18:
        process.await_event("twophase.ended", slot=slot)
    else:
        process.await_event("twophase.kept", slot=slot)
    has_it = database.version < 18
    assert database.execute("SELECT two_phase FROM pg_replication_slots") == [(has_it,)]
    database.execute("COMMIT PREPARED 'one'")
    database.execute("ROLLBACK PREPARED 'doomed'")
    # AND a transaction is prepared meanwhile, behind which others are delivered
    prepare(database, "late", 4, 5)
    database.execute("INSERT INTO t VALUES (6, 'plain')")
    process.await_metric("cdcd_events_total", lambda count: count >= 3, "c", "public.t")
    assert process.stop() == 0
    # AND decided only after two_phase is back
    process = start(True)
    database.execute("COMMIT PREPARED 'late'")
    # THEN every row is there once
    await_flushed(dsn, slot)
    report = compare(dsn, broker.bootstrap_servers, unique)
    assert report.equal, report
    assert report.events == 5
    assert database.execute("SELECT two_phase FROM pg_replication_slots") == [(True,)]
    assert process.stop() == 0
