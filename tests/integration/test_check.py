"""`cdcd check` against real servers: what it prints, what it exits with, and that it changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.cli.__main__ import main
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database

pytestmark = pytest.mark.postgres(only=[13, 18], also=[14, 15, 16, 17])

SECRET = "hunter2-of-the-check"


class Checked:
    """The output of `cdcd check --format json`."""

    def __init__(self, exit_code: int, findings: list[dict[str, str]]) -> None:
        self.exit_code = exit_code
        self.findings = findings

    def about(self, subject: str) -> list[tuple[str, str]]:
        return [(one["level"], one["found"]) for one in self.findings if one["subject"] == subject]

    @property
    def errors(self) -> list[str]:
        return [f"{one['subject']}: {one['found']}" for one in self.findings if one["level"] == "error"]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`check(name, dsn, servers, postgres={…}, …)`: run the command in this process."""

    def run(name: str, dsn: str, servers: str, **sections: dict[str, Any]) -> Checked:
        config: dict[str, Any] = {
            "name": name,
            "postgres": {"dsn": dsn},
            "kafka": {"bootstrap_servers": servers},
        }
        for section, values in sections.items():
            config[section] = {**config.get(section, {}), **values}
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(config))
        with pytest.raises(SystemExit) as caught:
            main(["check", "--config", str(file), "--format", "json"])
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
        shown = json.loads(printed.out)
        assert caught.value.code == shown["exit_code"]
        return Checked(shown["exit_code"], shown["findings"])

    return run


def test_servers_in_order_are_found_so_and_left_as_they_were(database: Database, broker: KafkaBroker, check):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    name = f"c_{database.name[-8:]}"
    found = check(name, database.dsn(), broker.bootstrap_servers, postgres={"tables": ["public.*"]})
    assert (found.exit_code, found.errors) == (0, [])
    protocol = {13: 1, 14: 2, 15: 3}.get(database.version, 4)
    ((level, server),) = found.about("server")
    assert (level, f"protocol version {protocol}" in server) == ("ok", True)
    assert found.about(f"publication cdcd_{name}") == [("ok", "will be created for public.orders")]
    assert found.about("topics") == [
        ("ok", f"will be created: {name}.checkpoint, {name}.schemas, {name}.message"),
        ("ok", f"will be created: {name}.public.orders"),
    ]
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert database.execute(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%{name}'") == [
        (0,)
    ]


def test_what_exists_is_looked_into(database: Database, broker: KafkaBroker, check):
    name = f"c_{database.name[-8:]}"
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE TABLE plain (id int)")
    database.execute(
        f"CREATE PUBLICATION cdcd_{name} FOR TABLE orders, plain WITH (publish = 'insert, update')"
    )
    database.execute(f"SELECT pg_create_logical_replication_slot('cdcd_{name}', 'pgoutput')")
    # The slot is there before the first start, so the rows must be read beside the stream, behind a truncate record.
    assert check(name, database.dsn(), broker.bootstrap_servers).exit_code == 0
    found = check(name, database.dsn(), broker.bootstrap_servers, topics={"truncate": False})
    assert found.exit_code == 10
    (error,) = found.errors
    assert error.endswith("which topics.truncate or topics.skipped_operations turns off: public.plain")
    found = check(name, database.dsn(), broker.bootstrap_servers, snapshot={"mode": "never"})
    assert found.exit_code == 0
    assert [level for level, _ in found.about("replica identity")] == ["warning"]
    assert (
        "warning",
        "does not publish delete, truncate: consumers do not get these operations",
    ) in found.about(f"publication cdcd_{name}")
    ((level, slot),) = found.about(f"slot cdcd_{name}")
    assert (level, slot.startswith("nobody reads it; keeps ")) == ("ok", True)


def test_a_server_that_cannot_feed_a_pipeline_gives_10_and_says_why(
    private_postgres, broker: KafkaBroker, check
):
    server: PostgresServer = private_postgres(
        settings={
            "wal_level": "replica",
            "max_replication_slots": "1",
            "max_wal_senders": "1",
            "max_slot_wal_keep_size": "64MB",
        }
    )
    server.execute("SELECT pg_create_physical_replication_slot('taken')")
    server.execute("CREATE TABLE plain (id int)")
    server.execute(f"CREATE ROLE weak LOGIN PASSWORD '{SECRET}'")
    dsn = f"postgresql://weak:{SECRET}@127.0.0.1:{server.port}/postgres"
    found = check("weak", dsn, broker.bootstrap_servers, postgres={"tables": ["public.*"]})
    assert found.exit_code == 10
    assert {error.split(":")[0] for error in found.errors} == {
        "replication connection",
        "wal_level",
        "max_replication_slots",
        "publication cdcd_weak",
        "rows to be read",
    }
    assert [level for level, _ in found.about("max_slot_wal_keep_size")] == ["warning"]
    found = check("weak", dsn, broker.bootstrap_servers)
    assert [level for level, _ in found.about("publication cdcd_weak")] == ["error"]


def test_an_invalidated_slot_is_an_error(private_postgres, broker: KafkaBroker, check):
    server: PostgresServer = private_postgres(
        settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    )
    server.execute("CREATE PUBLICATION cdcd_lost FOR ALL TABLES")
    server.execute("SELECT pg_create_logical_replication_slot('cdcd_lost', 'pgoutput')")
    for _ in range(8):
        server.execute("SELECT pg_switch_wal(), txid_current()")
        server.execute("CHECKPOINT")
    found = check("lost", server.dsn(), broker.bootstrap_servers)
    assert found.exit_code == 10
    assert "invalidated" in found.about("slot cdcd_lost")[0][1]


@pytest.mark.postgres(only=[13, 18])
def test_a_side_that_cannot_be_asked_gives_its_own_code_and_the_other_is_asked(
    database: Database, broker: KafkaBroker, check
):
    name = f"c_{database.name[-8:]}"
    found = check(name, database.dsn(), "127.0.0.1:1")
    assert found.exit_code == 4
    assert found.about("wal_level") == [("ok", "logical")]
    assert "refused" in found.about("Kafka")[0][1]

    database.execute(f"CREATE ROLE {name} LOGIN")
    database.execute(f"REVOKE CONNECT ON DATABASE {database.name} FROM PUBLIC")
    found = check(name, f"{database.dsn(user=name)} password={SECRET}", broker.bootstrap_servers)
    database.execute(f"DROP ROLE {name}")
    assert found.exit_code == 3
    assert "permission denied for database" in found.about("PostgreSQL")[0][1]
    assert found.about("kafka")[0][0] == "ok"


@pytest.mark.postgres(only=18)
def test_topics_and_transactions_are_compared_with_the_configuration(
    database: Database, private_broker, check
):
    broker = private_broker(
        settings={
            "transaction.max.timeout.ms": "30000",
            "transaction.state.log.replication.factor": "3",
        }
    )
    found = check(
        "shop",
        database.dsn(),
        broker.bootstrap_servers,
        kafka={"transaction": {"timeout_s": 60}},
        topics={"create": {"replication_factor": 3}},
    )
    assert found.exit_code == 10
    assert {error.split(":")[0] for error in found.errors} == {
        "transaction.max.timeout.ms",
        "transaction.state.log.replication.factor",
        "topics",
    }
