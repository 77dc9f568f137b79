"""A second daemon stands by and takes over; the former one, if it comes to itself again, ends.

The long version, with twenty rounds, is `python -m tests.ha takeover`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.config.loading import Config
from cdcd.core.errors import FencedError
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.telemetry.state import Role, Telemetry
from deploy.demo.fold import await_flushed, compare
from deploy.local import KafkaBroker, PostgresServer
from tests.ha import takeover
from tests.integration.conftest import Database
from tests.integration.daemon import BUSY_S, Daemon, configuration

RATE = 5.0
"""Transactions a second, with which a daemon keeps pace on a busy machine too: what is awaited is the takeover."""

StartDaemon = Callable[[dict[str, Any]], Daemon]


class RememberedRoles(Telemetry):
    """Telemetry that records the roles of an instance in their order."""

    def __init__(self) -> None:
        self.roles: list[Role] = []
        super().__init__()

    @property
    def role(self) -> Role:
        return self.roles[-1]

    @role.setter
    def role(self, role: Role) -> None:
        self.roles.append(role)


def test_the_standby_takes_over_from_one_that_is_killed_frozen_or_cut_off_with_nothing_lost_or_twice():
    outcome = takeover.run(takeover.BLOWS, rate=RATE)
    assert outcome.report.equal, outcome.report
    # `python -m tests.ha` holds the bound itself.
    assert outcome.longest_s < takeover.BOUND_S + BUSY_S, outcome.rounds


@pytest.mark.long
def test_without_kafka_transactions_nothing_is_lost_either():
    outcome = takeover.run(
        ["frozen", "cut off"], rate=RATE, sections={"kafka": {"delivery": "at_least_once"}}
    )
    assert outcome.report.equal, outcome.report


@pytest.mark.postgres(only=[18], also=[13])
def test_it_takes_over_from_one_that_froze_with_its_stream_full_and_that_one_ends_when_it_wakes_up(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an active daemon that freezes, and a walsender that cannot get rid of what it has for it
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    config = configuration(unique, database.dsn(), broker.bootstrap_servers, postgres={"lease_s": 1.5})
    first = daemon(config)
    first.await_streaming()
    second = daemon(config)
    assert second.await_event("standby.waiting")["holder"] == f"{unique} lock"
    first.pause()
    with psycopg.connect(database.dsn()) as connection:
        connection.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g")
    # THEN the standby ends both of its sessions and goes on
    second.await_event("session.ended", held="lock")
    second.await_event("session.ended", held="stream")
    second.await_streaming()
    await_flushed(database.dsn(), f"cdcd_{unique}")
    # AND the former one finds that out when it wakes up
    first.resume()
    assert first.wait() == FencedError.exit_code, first.last_words()
    report = compare(database.dsn(), broker.bootstrap_servers, unique)
    assert (report.equal, report.events) == (True, 30_000), report


def test_a_former_active_one_stands_by_after_a_restart_of_postgres_and_shows_no_old_numbers(
    private_postgres: Callable[..., PostgresServer], broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN an active daemon and one that stands by
    postgres = private_postgres()
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = configuration(unique, postgres.dsn(), broker.bootstrap_servers)
    first = daemon(config)
    first.await_streaming()
    first.await_metric("cdcd_retained_wal_bytes", lambda _: True)
    second = daemon(config)
    second.await_event("standby.waiting")
    # WHEN PostgreSQL restarts, and the other one is quicker
    mark = first.mark()
    postgres.stop()
    first.pause()
    postgres.start()
    second.await_streaming()
    first.resume()
    # THEN the former one stands by in its turn
    first.await_event("standby.waiting", after=mark)
    found = first.metrics()
    assert found["cdcd_role"]["standby",] == 1
    assert "cdcd_lag_bytes" not in found
    assert "cdcd_retained_wal_bytes" not in found


@pytest.mark.postgres(only=18)
def test_a_daemon_alone_goes_on_after_it_was_frozen_for_longer_than_the_lease(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers, postgres={"lease_s": 1}))
    process.await_streaming()
    process.pause()
    database.execute("SELECT pg_sleep(2)")
    process.resume()
    database.execute("INSERT INTO t VALUES (1)")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert compare(database.dsn(), broker.bootstrap_servers, unique).equal
    assert process.stop() == 0


@pytest.mark.postgres(only=[13, 18])
def test_an_instance_is_a_standby_from_when_it_sees_another_one_and_not_while_it_asks(
    database: Database, unique: str
):
    config = Config.model_validate(configuration(unique, database.dsn(), "127.0.0.1:1"))
    dsn = parse_dsn(database.dsn())

    async def run() -> None:
        first, second = RememberedRoles(), RememberedRoles()
        waits = asyncio.Event()
        holder = PostgresSide(config, first, lambda _: None)
        waiter = PostgresSide(config, second, lambda _: waits.set())
        held, wanted = await holder.connect_lock(dsn), await waiter.connect_lock(dsn)
        try:
            # WHEN no other instance holds the lock
            await holder.acquire(held, frozenset())
            # THEN the instance becomes active without the role standby, which would report it as ready
            assert first.roles == ["starting", "active"]
            # AND an instance that has to wait becomes a standby
            waiting = asyncio.ensure_future(waiter.acquire(wanted, frozenset()))
            await asyncio.wait_for(waits.wait(), BUSY_S)
            assert second.roles == ["starting", "standby"]
            waiting.cancel()
            await asyncio.wait([waiting])
        finally:
            held.close()
            wanted.close()

    asyncio.run(run())
