"""A container too small for libpq to receive a large message: the next start says why the last process ended."""

import os
from pathlib import Path

import pytest

from deploy.local.kafka_broker import KafkaBroker
from tests.bench.control_groups import can_limit, limited
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, confirmed

LIMIT_BYTES = 200_000_000
SIZE = 160_000_000
KILLED = -9


@pytest.mark.postgres(only=18)
@pytest.mark.timeout(600)
@pytest.mark.skipif(not can_limit(), reason="only root may make control groups")
def test_the_next_start_names_the_place_the_length_and_the_limit(
    database: Database, broker: KafkaBroker, scratch: Path, unique: str
):
    # GIVEN a daemon in a control group whose limit is too small for libpq to hold a message
    settings = configuration(unique, database.dsn(), broker.bootstrap_servers)
    daemon = Daemon(scratch / "daemon", settings, environment=dict(os.environ))
    with daemon:
        with limited(LIMIT_BYTES) as join:
            daemon.start()
            join(daemon.pid)
            daemon.await_streaming()
            before = confirmed(database.dsn(), f"cdcd_{unique}")
            database.execute(f"SELECT pg_logical_emit_message(false, 'x', repeat('a', {SIZE}))")
            # WHEN the kernel kills it
            assert daemon.wait(300) == KILLED
        # THEN the next start reports the message's least size and the memory limit
        daemon.start()
        told = daemon.await_event("message.fatal")
        assert told["bytes"] > 16 << 20
        assert told["memory_limit"] == LIMIT_BYTES // 4096 * 4096
        assert "give the process at least" in told["hint"]
        # AND with enough memory the daemon delivers the message
        daemon.await_event("message.large")
        daemon.await_event("stream.renewed")
        assert confirmed(database.dsn(), f"cdcd_{unique}") > before
        assert daemon.stop() == 0
