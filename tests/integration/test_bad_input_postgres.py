"""What PostgreSQL lacks, refuses or loses: said with the statement that mends it, and nothing lost by it."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from deploy.local import KafkaBroker, PostgresServer
from tests.integration.conftest import Database
from tests.integration.faults.holder import slot_holder, walsender
from tests.integration.faults.trial import SECRET, Trial

newest = pytest.mark.postgres(only=18)

PASSWORDS = ("host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Trial:
    """A pipeline on the shared server that never ran."""
    return trial(database.dsn(), broker.bootstrap_servers)


@pytest.fixture
def role(unique: str, database: Database) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"r_{unique[-8:]}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    database.execute(f"REASSIGN OWNED BY {name} TO postgres")
    database.execute(f"DROP OWNED BY {name}")
    database.execute(f"DROP ROLE {name}")


# At the start.


def test_a_wrong_password_is_told_without_it(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18, hba=PASSWORDS)
    server.execute("CREATE ROLE cdcd LOGIN SUPERUSER PASSWORD 'r1ght-5ecret'")
    one = trial(server.dsn(), broker.bootstrap_servers)
    one.secrets.append("r1ght-5ecret")
    one.configure(postgres={"dsn": server.dsn(user="cdcd", password=SECRET)})
    said, check = one.fail(), one.check()
    assert (said.code, check.code) == (3, 3)
    assert 'password authentication failed for user "cdcd"' in said.message
    assert "Check role and password" in said.hint
    assert check.error("password authentication failed")["fix"] == said.hint
    assert not one.has_slot()
    # The password from a file, as a mounted secret is.
    secret = one.daemon.config_path.with_name("password")
    secret.write_text("r1ght-5ecret\n")
    one.configure(postgres={"dsn": server.dsn(user="cdcd"), "password_file": str(secret)})
    one.start()
    one.insert(1)
    one.deliver(1)


@newest
def test_a_database_or_a_role_that_is_not_there_is_told(one: Trial, database: Database):
    for dsn, message, hint in (
        (
            database.server.dsn("nowhere", password=SECRET),
            'database "nowhere" does not exist',
            "create the database",
        ),
        (
            database.dsn(user="nobody", password=SECRET),
            'role "nobody" does not exist',
            "CREATE ROLE nobody LOGIN",
        ),
    ):
        one.configure(postgres={"dsn": dsn})
        said, check = one.fail(), one.check()
        assert (said.code, check.code) == (3, 3)
        assert message in said.message
        assert hint in said.hint
        assert check.error(message)["fix"] == said.hint
    assert not one.has_slot()


def test_a_server_without_logical_wal_is_told_how_to_get_it(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(13, settings={"wal_level": "replica"})
    one = trial(server.dsn(), broker.bootstrap_servers)
    said = one.fail()
    assert said.code == 3
    assert "wal_level" in said.message
    assert said.hint == "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL."
    assert one.check().error("wal_level")["fix"] == said.hint
    assert one.check().code == 10
    assert not one.has_slot()
    server.settings["wal_level"] = "logical"
    server.restart()
    one.start()
    one.insert(1)
    one.deliver(1)


def test_a_server_without_a_free_slot_or_walsender_is_told_what_to_free(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18, settings={"max_replication_slots": "1", "max_wal_senders": "1"})
    one = trial(server.dsn(), broker.bootstrap_servers, startup_timeout_s=2)
    server.execute("SELECT pg_create_physical_replication_slot('theirs')")
    said = one.fail()
    assert said.code == 3
    assert "all replication slots are in use" in said.message
    assert "Drop an unused slot" in said.hint
    assert one.check().error("max_replication_slots", "1 of 1 in use")
    server.execute("SELECT pg_drop_replication_slot('theirs')")

    with walsender(server.dsn()):
        # It may pass by itself, so it is tried for a while.
        one.configure(startup_timeout_s=600)
        one.await_another_try()
        one.configure(startup_timeout_s=2)
        said = one.fail()
        assert said.code == 3
        assert "max_wal_senders" in said.message
        assert said.hint == "Raise max_wal_senders or end unused WAL senders."
        check = one.check()
        assert check.code == 10
        assert check.error("max_wal_senders", "1 of 1 in use")
    assert not one.has_slot()
    one.start()
    one.insert(1)
    one.deliver(1)


@newest
def test_each_missing_privilege_is_told_with_its_grant(one: Trial, database: Database, role: str):
    one.configure(postgres={"dsn": database.dsn(user=role, password=SECRET), "tables": ["public.*"]})
    one.execute("CREATE TABLE other (id int PRIMARY KEY)")

    said = one.fail()
    assert said.code == 3
    assert "REPLICATION" in said.output
    assert said.hint.startswith(f"ALTER ROLE {role} REPLICATION;")
    assert one.check().error("replication connection", f"ALTER ROLE {role} REPLICATION")
    one.execute(f"ALTER ROLE {role} REPLICATION")

    said = one.fail()
    assert said.code == 3
    assert f"permission denied for database {database.name}" in said.message
    assert f'CREATE PUBLICATION "cdcd_{one.name}" FOR TABLE' in said.hint
    assert one.check().error("publication", "may not create it")["fix"] == said.hint
    one.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")

    said = one.fail()
    assert said.code == 3
    assert "must be owner of table" in said.message
    assert "Run as a superuser, or as the owner of these tables" in said.hint
    assert one.check().error("publication", "does not own public.other, public.t")["fix"] == said.hint

    one.configure(postgres={"tables": None})
    said = one.fail()
    assert said.code == 3
    assert "FOR ALL TABLES" in said.message
    assert f'CREATE PUBLICATION "cdcd_{one.name}" FOR ALL TABLES' in said.hint
    assert one.check().error("publication", "only a superuser")["fix"] == said.hint

    assert not one.has_slot()
    # As the hint says, a superuser makes it. SELECT on the table is not needed.
    one.execute(f"CREATE PUBLICATION cdcd_{one.name} FOR ALL TABLES")
    assert one.check().errors() == []
    one.start()
    one.insert(1)
    one.deliver(1)


@newest
def test_a_table_that_is_not_there_is_told(one: Trial):
    one.configure(postgres={"tables": ["public.t", "public.T"]})
    said = one.fail()
    assert said.code == 3
    assert said.message == "postgres.tables: there is no table public.T that can be published."
    assert "case" in said.hint
    assert one.check().error("there is no table public.T")
    assert not one.has_slot()


@newest
def test_a_slot_of_another_kind_or_database_is_not_touched(one: Trial, database: Database):
    one.configure(postgres={"slot": one.slot})
    before = one.wal_end()
    for make, message, hint in (
        (f"pg_create_physical_replication_slot('{one.slot}')", "is a physical one", "Choose another name"),
        (
            f"pg_create_logical_replication_slot('{one.slot}', 'test_decoding')",
            "uses the plugin test_decoding, not pgoutput",
            "Choose another name",
        ),
    ):
        one.execute(f"SELECT {make}")
        said = one.fail()
        assert said.code == 3
        assert f"Slot {one.slot} {message}" in said.message
        assert hint in said.hint
        assert one.check().error(message)["fix"] == said.hint
        one.drop_slot()
    with psycopg.connect(database.server.dsn(), autocommit=True) as elsewhere:
        make = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        elsewhere.execute(make, (one.slot,))
        said = one.fail()
        assert said.code == 3
        assert f"belongs to database postgres, not {database.name}" in said.message
        assert one.check().error("belongs to database postgres")
        assert one.confirmed() >= before
        elsewhere.execute("SELECT pg_drop_replication_slot(%s)", (one.slot,))
    one.start()
    one.insert(1)
    one.deliver(1)


@newest
def test_a_slot_that_another_session_reads_is_waited_for_and_then_told(one: Trial, database: Database):
    # How long it is waited for follows from this.
    one.configure(
        postgres={"dsn": database.dsn(password=SECRET, options="-c wal_sender_timeout=2s")},
    )
    one.start()
    one.insert(1)
    one.deliver(1)
    before = one.insert(2)
    with slot_holder(database.dsn(), one.slot, f"cdcd_{one.name}") as pid:
        said = one.fail()
        assert said.code == 3
        waiting = one.daemon.await_event("slot.waiting")
        assert f"is active for PID {pid}" in waiting["message"]
        assert f"is active for PID {pid}" in said.message
        assert "pg_terminate_backend" in said.hint
        assert one.check().error(f"read by somebody (PID {pid})", "pg_terminate_backend")
    one.assert_unconfirmed(before)
    one.deliver(2)


# Later.


def test_a_slot_whose_wal_is_gone_is_refused_at_the_start_and_underneath(
    trial: Callable[..., Trial], broker: KafkaBroker, private_postgres: Callable[..., PostgresServer]
):
    server = private_postgres(18, settings={"max_slot_wal_keep_size": "16MB"})
    one = trial(server.dsn(), broker.bootstrap_servers)
    for underneath in (True, False):
        one.start("--accept-gap")
        first = len(one.delivered)
        one.insert(first)
        one.expect(first)
        if underneath:
            one.daemon.pause()
        else:
            one.stop()
        before = one.insert(99)
        for _ in range(5):
            one.execute("SELECT pg_switch_wal()")
            one.execute("CREATE TABLE filler AS SELECT")
            one.execute("DROP TABLE filler")
        one.execute("CHECKPOINT")
        assert one.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
        if underneath:
            one.daemon.resume()
        said = one.fail()
        assert said.code == 6
        assert f"Slot {one.slot} has been invalidated (wal_removed)" in said.message
        assert f"SELECT pg_drop_replication_slot('{one.slot}')" in said.hint
        assert "max_slot_wal_keep_size" in said.hint
        assert one.check().error("has been invalidated")["fix"] == said.hint
        assert one.confirmed() <= before
        # What it had received before it stood still may have been delivered, and comes again to nobody's harm.
        one.delivered = one.read()
        # As the hint says. The gap is still one.
        one.drop_slot()
        assert one.fail().code == 6
        one.execute("DELETE FROM t WHERE id = 99")


@newest
def test_a_slot_dropped_underneath_is_a_gap(one: Trial):
    one.start()
    one.insert(1)
    one.expect(1)
    one.daemon.pause()
    one.insert(2)
    one.execute("SELECT pg_terminate_backend(%s, 60000)", one.walsender())
    one.drop_slot()
    one.daemon.resume()
    said = one.fail()
    assert said.code == 6
    assert f"Slot {one.slot} is not there" in said.message
    assert not one.has_slot()


@pytest.mark.postgres(only=(13, 17, 18))
def test_a_publication_dropped_underneath_stops_the_pipeline_for_good_measure(one: Trial):
    one.start()
    one.insert(1)
    one.expect(1)
    one.execute(f"DROP PUBLICATION cdcd_{one.name}")
    before = one.insert(2)
    said = one.fail()
    assert said.code == 3
    assert f"cdcd_{one.name}" in said.message
    assert "CREATE PUBLICATION" in said.hint
    assert "--accept-gap" in said.hint
    one.assert_unconfirmed(before)
    # Created again, it does not cover what was written without it: PostgreSQL looks it up as of each change.
    one.execute(f"CREATE PUBLICATION cdcd_{one.name} FOR ALL TABLES")
    one.insert(3)
    said = one.fail()
    assert said.code == 3
    one.assert_unconfirmed(before)
    # As the hint says, also if the publication is missing.
    one.drop_slot()
    one.execute(f"DROP PUBLICATION cdcd_{one.name}")
    one.start("--accept-gap")
    one.insert(4)
    one.deliver(4)


@newest
def test_a_publication_created_again_before_any_change_is_no_harm(one: Trial):
    one.start()
    one.insert(1)
    one.expect(1)
    one.execute(f"DROP PUBLICATION cdcd_{one.name}")
    one.execute(f"CREATE PUBLICATION cdcd_{one.name} FOR ALL TABLES")
    one.insert(2)
    one.deliver(2)
