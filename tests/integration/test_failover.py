"""PostgreSQL's primary is gone and its standby promoted: the daemon goes on there, or says why it does not.

The long version, under more load, is `python -m tests.ha failover`.
"""

from pathlib import Path

import pytest

from cdcd.core.errors import ConfigError, PositionError
from deploy.local import KafkaBroker
from tests.ha import failover
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration


@pytest.mark.parametrize("version", [pytest.param(17, marks=pytest.mark.chaos), 18])
def test_a_failover_under_load_loses_nothing_and_repeats_nothing(version: int, scratch: Path, unique: str):
    folder = scratch / unique
    folder.mkdir(mode=0o711)
    outcome = failover.run(version, folder, load_s=1)
    assert outcome.report.equal, outcome.report


@pytest.mark.parametrize("version", [pytest.param(17, marks=pytest.mark.chaos), 18])
def test_a_standby_that_was_behind_is_refused_until_the_gap_is_accepted(
    version: int, broker: KafkaBroker, scratch: Path, unique: str
):
    folder = scratch / unique
    folder.mkdir(mode=0o711)
    refusal = failover.refuse(version, folder, broker, unique)
    assert refusal.exit_code == PositionError.exit_code, refusal.said
    assert "is a promoted standby that lacked changes" in refusal.said
    assert "Bring back the server that has them" in refusal.said
    assert "--accept-gap" in refusal.said
    # What the former primary had is in Kafka, and nowhere else.
    assert refusal.report.events == 2
    (table,) = refusal.report.tables
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
            assert "failover needs PostgreSQL 17, and the server has 16" in daemon.output()
            return
        daemon.await_streaming()
        assert database.execute(
            f"SELECT failover FROM pg_replication_slots WHERE slot_name = 'cdcd_{unique}'"
        ) == [(True,)]
        assert daemon.stop() == 0
