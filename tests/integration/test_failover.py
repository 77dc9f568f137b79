"""PostgreSQL's primary is gone and its standby promoted: the daemon goes on there, or says why it does not.

The long version, under more load, is `python -m tests.ha failover`.
"""

from pathlib import Path

import pytest

from cdcd.errors import ConfigError, PositionError
from deploy.demo.fold import compare
from deploy.local import KafkaBroker
from tests.ha import failover
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until


@pytest.mark.parametrize("version", [pytest.param(17, marks=pytest.mark.chaos), 18])
def test_a_failover_under_load_loses_nothing_and_repeats_nothing(version: int, scratch: Path, unique: str):
    folder = scratch / unique
    folder.mkdir(mode=0o711)
    outcome = failover.run(version, folder, load_s=1)
    assert outcome.report.equal, outcome.report


def test_a_standby_that_was_behind_is_refused_until_the_gap_is_accepted(
    broker: KafkaBroker, scratch: Path, unique: str
):
    # GIVEN a standby that has the slot, and stops following
    folder = scratch / unique
    folder.mkdir(mode=0o711)
    with failover.servers(18, folder, behind=True) as pair:
        pair.primary.execute("CREATE TABLE t (id int PRIMARY KEY)", failover.NAME)
        config = failover.daemon_configuration(pair, broker)
        with Daemon(folder / "daemon", {**config, "topics": {"prefix": unique}}) as daemon:
            daemon.start()
            daemon.await_streaming()
            pair.await_slot()
            failover.fall_behind(pair)
            # WHEN Kafka gets what the standby does not, and the primary is gone
            pair.primary.execute("INSERT INTO t VALUES (1)", failover.NAME)
            daemon.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
            until(lambda: daemon.metrics()["cdcd_caught_up"][()] or None, "it did not catch up")
            pair.fail_over()
            # THEN the daemon ends, and says what there is to choose
            assert daemon.wait() == PositionError.exit_code, daemon.last_words()
            said = daemon.output()
            assert "failed over to a standby that lacked changes" in said
            assert "Bring back the server that has them" in said
            assert "--accept-gap" in said
            # AND goes on when somebody chose
            daemon.start("--accept-gap")
            daemon.await_event("gap.accepted")
            daemon.await_streaming()
            pair.standby.execute("INSERT INTO t VALUES (2)", failover.NAME)
            daemon.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
            assert daemon.stop() == 0
        # What the former primary had is in Kafka, and nowhere else.
        report = compare(pair.standby.dsn(failover.NAME), broker.bootstrap_servers, unique, whole=False)
        assert report.events == 2
        (table,) = report.tables
        assert (table.rows, table.folded) == (1, 2)


@pytest.mark.postgres(only=[16, 18])
def test_an_existing_slot_is_marked_for_the_standbys_where_the_server_can(
    database: Database, broker: KafkaBroker, scratch: Path, unique: str
):
    config = configuration(unique, database.dsn(), broker.bootstrap_servers)
    with Daemon(scratch / unique, config) as daemon:
        daemon.start()
        daemon.await_streaming()
        assert daemon.stop() == 0
        daemon.config["postgres"] = {**config["postgres"], "failover": True}
        daemon.start()
        if database.version < 17:
            assert daemon.wait() == ConfigError.exit_code
            assert "failover needs PostgreSQL 17, this is 16" in daemon.output()
            return
        daemon.await_streaming()
        assert database.execute(
            f"SELECT failover FROM pg_replication_slots WHERE slot_name = 'cdcd_{unique}'"
        ) == [(True,)]
        assert daemon.stop() == 0
