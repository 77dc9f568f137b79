"""PostgreSQL's primary is killed and its standby promoted, while a daemon streams from whichever is the primary."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.workload import Workload
from deploy.local import KafkaBroker, PostgresServer
from tests.ha.watch import Watch
from tests.integration.daemon import Daemon, configuration, until

NAME: Final = "failover"
SLOT: Final = f"cdcd_{NAME}"
RATE: Final = 30.0
FAILOVER_SINCE: Final = 17
"""The first version whose standbys copy slots."""

SYNC_S: Final = 120.0
"""The slot is copied at intervals that grow up to 30 s, and not each copy is one that lasts."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary, and a standby that follows it and keeps a copy of its failover slots."""

    primary: PostgresServer
    standby: PostgresServer

    def dsn(self, dbname: str = NAME) -> str:
        """Whichever of the two is the primary."""
        return (
            f"host=127.0.0.1,127.0.0.1 port={self.primary.port},{self.standby.port} dbname={dbname} user=postgres "
            "target_session_attrs=read-write connect_timeout=2"
        )

    def await_slot(self) -> None:
        """Until the standby's copy of the slot is one that survives a promotion.

        It begins to be one when the primary's slot needs no more than the standby still has, which takes long with
        transactions open: wait for it before there is any load.
        """

        def ready() -> bool | None:
            self.primary.execute("SELECT pg_log_standby_snapshot()")
            found = self.standby.execute(
                f"""SELECT FROM pg_replication_slots
                    WHERE slot_name = '{SLOT}' AND synced AND NOT temporary AND invalidation_reason IS NULL"""
            )
            return bool(found) or None

        until(ready, f"{SLOT} is not on the standby", SYNC_S)

    def fail_over(self) -> None:
        """The primary is gone at once, and the standby is the primary when this returns."""
        self.primary.kill()
        self.standby.execute("SELECT pg_promote()")


@contextmanager
def servers(version: int, folder: Path, *, behind: bool = False) -> Iterator[Pair]:
    """A pair with the database `NAME`. `behind`: what the daemon gets need not be on the standby.

    Before PostgreSQL 17, the standby follows and has no copy of the slots.
    """
    settings = {"wal_receiver_status_interval": "1s"}
    if not behind:
        settings["synchronous_standby_names"] = "standby"
    if version >= FAILOVER_SINCE:
        settings["sync_replication_slots"] = "on"
        if not behind:
            settings["synchronized_standby_slots"] = "standby"
    with ExitStack() as stack:
        primary = PostgresServer(version, folder / "primary", settings=settings)
        stack.callback(primary.destroy)
        quiet = {name: "" for name in settings if name.startswith("synchron")}
        primary.settings.update(quiet)
        primary.start()
        primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        primary.execute(f"CREATE DATABASE {NAME}")
        primary.stop()
        standby = primary.make_standby(folder / "standby")
        stack.callback(standby.destroy)
        primary.settings.update(settings)
        primary.start()
        standby.start()
        yield Pair(primary, standby)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a failover under load came out."""

    version: int
    wait_s: float
    """From the end of the promotion to the first new record."""
    report: Report

    def lines(self) -> Iterator[str]:
        yield (
            f"PostgreSQL {self.version}: first new record {self.wait_s:.2f} s after the promotion; "
            f"{self.report.records} records, {self.report.transactions} transactions"
        )
        yield "equal" if self.report.equal else str(self.report)


def daemon_configuration(pair: Pair, broker: KafkaBroker, **postgres: Any) -> dict[str, Any]:
    return configuration(NAME, pair.dsn(), broker.bootstrap_servers, postgres={"failover": True, **postgres})


def run(version: int, folder: Path, *, seed: int = 1, rate: float = RATE, load_s: float = 3.0) -> Outcome:
    """One failover under load; AssertionError when something does not go on as it should."""
    with ExitStack() as stack:
        pair = stack.enter_context(servers(version, folder))
        broker = KafkaBroker(folder / "kafka")
        stack.callback(broker.destroy)
        broker.start()
        workload = Workload(pair.dsn(), seed, rate=rate)
        workload.create()
        daemon = stack.enter_context(Daemon(folder / "daemon", daemon_configuration(pair, broker)))
        daemon.start()
        daemon.await_streaming()
        pair.await_slot()
        with workload, Watch(broker.bootstrap_servers, NAME) as watch:
            watch.wait_s(time.time())
            time.sleep(load_s)
            mark = daemon.mark()
            pair.fail_over()
            promoted_at = time.time()
            wait_s = watch.wait_s(promoted_at)
            daemon.await_event("stream.started", after=mark)
            time.sleep(load_s)
        await_flushed(pair.dsn(), SLOT, 90)
        report = compare(pair.dsn(), broker.bootstrap_servers, NAME)
        assert daemon.stop() == 0, daemon.last_words()
    return Outcome(version, wait_s, report)


def fall_behind(pair: Pair) -> None:
    """The standby stops following, as one that is cut off from its primary."""
    with psycopg.connect(pair.standby.dsn(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        connection.execute("SELECT pg_reload_conf()")

    def stopped() -> bool | None:
        return not pair.standby.execute("SELECT FROM pg_stat_wal_receiver") or None

    until(stopped, "the standby still follows")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the daemon did about a new primary that lacks what Kafka has."""

    version: int
    exit_code: int
    said: str
    """The message and its hint."""
    report: Report
    """After `--accept-gap` and another transaction on the new primary."""

    def lines(self) -> Iterator[str]:
        yield f"PostgreSQL {self.version}, the standby was behind: exit code {self.exit_code}"
        yield f"  {self.said}"
        (table,) = self.report.tables
        yield f"  goes on with --accept-gap: {self.report.events} events in Kafka, {table.rows} row in the new primary"


def refuse(version: int, folder: Path, broker: KafkaBroker, prefix: str) -> Refusal:
    """A failover to a standby that had stopped following: what Kafka got meanwhile is nowhere but in Kafka."""
    with servers(version, folder, behind=True) as pair:
        pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)", NAME)
        config = {**daemon_configuration(pair, broker), "topics": {"prefix": prefix}}
        with Daemon(folder / "daemon", config) as daemon:
            daemon.start()
            daemon.await_streaming()
            pair.await_slot()
            fall_behind(pair)
            pair.primary.execute("INSERT INTO t VALUES (1)", NAME)
            daemon.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
            until(lambda: daemon.metrics()["cdcd_caught_up"][()] or None, "it did not catch up")
            pair.fail_over()
            code = daemon.wait()
            fatal = daemon.await_event("fatal")
            said = f"{fatal['message']}\n  {fatal['hint']}"
            daemon.start("--accept-gap")
            daemon.await_event("gap.accepted")
            daemon.await_streaming()
            pair.standby.execute("INSERT INTO t VALUES (2)", NAME)
            daemon.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
            assert daemon.stop() == 0, daemon.last_words()
        report = compare(pair.standby.dsn(NAME), broker.bootstrap_servers, prefix, whole=False)
    return Refusal(version, code, said, report)
