"""The servers under all other integration tests do what `deploy.local` says of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from cdcd.adapters.kafka.reading import NO_TOPIC
from deploy.local import KafkaBroker, LocalServerError, PostgresServer, client_program
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import WAIT_S

REPOSITORY = Path(__file__).resolve().parents[2]


def test_every_version_decodes_logically_and_has_the_extensions(database: Database):
    assert database.execute("SHOW server_version")[0][0].startswith(f"{database.version}.")
    assert database.execute("SHOW wal_level") == [("logical",)]
    for extension in ("hstore", "citext", "ltree"):
        database.execute(f"CREATE EXTENSION {extension}")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    slot = f"s_{os.getpid()}_{database.version}"
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    database.execute("INSERT INTO t VALUES (1)")
    changes = database.execute(
        f"SELECT get_byte(data, 0) FROM pg_logical_slot_get_binary_changes("
        f"'{slot}', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')"
    )
    assert bytes(tag for (tag,) in changes) == b"BRIC"


def test_a_database_goes_with_its_slots_and_prepared_transactions(postgres: PostgresServer, unique: str):
    postgres.execute(f"CREATE DATABASE {unique}")
    database = Database(postgres, unique)
    with database.connect(autocommit=False) as connection:
        connection.execute("CREATE TABLE t (id int)")
        connection.execute(f"PREPARE TRANSACTION '{unique}'")
    # A slot's creation waits for prepared transactions, a physical one's does not; logical ones need none open.
    database.execute("SELECT pg_create_physical_replication_slot('kept_" + unique[-8:] + "')")
    database.drop()
    assert postgres.execute(f"SELECT 1 FROM pg_database WHERE datname = '{unique}'") == []
    assert postgres.execute(f"SELECT 1 FROM pg_prepared_xacts WHERE gid = '{unique}'") == []
    postgres.execute("SELECT pg_drop_replication_slot('kept_" + unique[-8:] + "')")


@pytest.mark.parametrize("how", ["smart", "fast", "immediate", "kill"])
def test_what_was_committed_survives_stop_and_kill(how, private_postgres: Callable[..., PostgresServer]):
    server = private_postgres()
    server.execute("CREATE TABLE t (id int)")
    server.execute("INSERT INTO t VALUES (1)")
    pid, port = server.pid, server.port
    if how == "kill":
        server.kill()
    else:
        server.stop(how)
    assert not server.is_running()
    with pytest.raises(psycopg.OperationalError):
        server.execute("SELECT 1")
    server.start()
    assert server.pid != pid
    assert server.port == port
    assert server.execute("SELECT * FROM t") == [(1,)]


def test_a_killed_server_leaves_no_shared_memory(private_postgres: Callable[..., PostgresServer]):
    server = private_postgres()
    segment = (server.data_dir / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert segment in shared_memory()
    server.kill()
    server.destroy()
    assert segment not in shared_memory()


def test_settings_and_passwords_are_the_callers(private_postgres: Callable[..., PostgresServer]):
    server = private_postgres(
        settings={"wal_level": "replica", "cluster_name": "it's mine"},
        hba=["host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"],
    )
    assert server.execute("SHOW wal_level") == [("replica",)]
    assert server.execute("SHOW cluster_name") == [("it's mine",)]
    server.execute("CREATE ROLE cdcd LOGIN PASSWORD 'right'")
    with psycopg.connect(server.dsn(user="cdcd", password="right")) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("cdcd",)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.dsn(user="cdcd", password="wrong"))


def test_own_identity_gives_another_system_identifier(private_postgres: Callable[..., PostgresServer]):
    asked = "SELECT system_identifier FROM pg_control_system()"
    copies = [private_postgres(), private_postgres(), private_postgres(own_identity=True)]
    first, second, own = [server.execute(asked)[0][0] for server in copies]
    assert first == second != own


def test_a_server_that_cannot_start_says_why(private_postgres: Callable[..., PostgresServer]):
    with pytest.raises(LocalServerError, match="unrecognized configuration parameter"):
        private_postgres(settings={"no_such_setting": "1"})


@pytest.mark.postgres(only=(13, 18))
def test_the_client_programs_work_with_old_and_new_servers(database: Database):
    psql = [str(client_program("psql")), "-XAtc", "SELECT 6 * 7", database.dsn()]
    assert subprocess.run(psql, capture_output=True, check=True, text=True).stdout == "42\n"
    recvlogical = [str(client_program("pg_recvlogical")), "--dbname", database.dsn()]
    slot = ["--slot", f"recv_{database.version}"]
    subprocess.run([*recvlogical, *slot, "--create-slot", "--plugin", "test_decoding"], check=True)
    database.execute("CREATE TABLE t (id int)")
    database.execute("INSERT INTO t VALUES (1)")
    end = database.execute("SELECT pg_current_wal_insert_lsn()")[0][0]
    database.execute("SELECT pg_logical_emit_message(true, 'filler', 'past the end')")
    received = subprocess.run(
        [*recvlogical, *slot, "--start", "--file", "-", "--no-loop", "--endpos", end],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert "INSERT: id[integer]:1" in received.stdout


@pytest.mark.long
def test_a_record_survives_stop_kill_and_freeze_of_the_broker(
    private_broker: Callable[..., KafkaBroker], unique: str
):
    broker = private_broker()
    assert cluster_id(broker) != cluster_id(private_broker()), "their storage was copied"
    create_topics(broker.bootstrap_servers, unique)
    for number, upset in enumerate(
        [lambda: None, broker.restart, kill_and_start(broker), freeze_for_a_moment(broker)]
    ):
        upset()
        # A broker that has just come back may not list the topic yet, for which librdkafka waits by default.
        produce(
            broker.bootstrap_servers, unique, b"%d" % number, **{"topic.metadata.propagation.max.ms": 60_000}
        )
    assert consume(broker.bootstrap_servers, unique, 4) == [b"0", b"1", b"2", b"3"]


def test_the_shared_broker_commits_transactions_and_refuses_unknown_topics(broker: KafkaBroker, unique: str):
    create_topics(broker.bootstrap_servers, unique)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique})
    producer.init_transactions(30)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(unique, value)
        # librdkafka may abort a transaction that the broker does not know yet, which is fatal to the producer.
        producer.flush()
        end(30)
    assert consume(broker.bootstrap_servers, unique, 1) == [b"committed"]

    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
    assert unique in topics
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        produce(broker.bootstrap_servers, f"{unique}.missing", b"x")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_users_need_their_password_and_an_acl(
    mechanism: str, private_broker: Callable[..., KafkaBroker], unique: str
):
    broker = private_broker(users={"cdcd": "right"}, mechanism=mechanism)
    create_topics(broker.admin_bootstrap_servers, unique)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "cdcd"}
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        produce(broker.bootstrap_servers, unique, b"x", **login, **{"sasl.password": "right"})
    wrong = {"sasl.password": "wrong", "message.timeout.ms": "3000"}
    with pytest.raises(KafkaException, match=r"_AUTHENTICATION|_MSG_TIMED_OUT"):
        produce(broker.bootstrap_servers, unique, b"x", **login, **wrong)


def test_servers_end_with_the_process_that_started_them(scratch: Path):
    program = (
        "import sys, pathlib, signal, time\n"
        # A job in the background of a shell starts with it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from deploy.local import KafkaBroker, PostgresServer\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "servers = [PostgresServer(18, root / 'orphan-postgres'), KafkaBroker(root / 'orphan-kafka')]\n"
        "for server in servers: server.start()\n"
        "servers[1].pause()\n"
        "print(*[server.pid for server in servers], flush=True)\n"
        "time.sleep(600)\n"
    )
    for number in (signal.SIGKILL, signal.SIGINT):
        parent = subprocess.Popen(
            [sys.executable, "-c", program, str(scratch)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.send_signal(number)
        parent.wait(WAIT_S)
        parent.stdout.close()
        deadline = time.monotonic() + WAIT_S
        while any(runs(pid) for pid in pids):
            assert time.monotonic() < deadline, f"left behind after {number.name}"
            time.sleep(0.05)


def shared_memory() -> set[str]:
    """The ids of all System V segments, by /proc/sysvipc/shm."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def cluster_id(broker: KafkaBroker) -> str:
    listed: Any = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
    return str(listed.cluster_id)


def kill_and_start(broker: KafkaBroker) -> Callable[[], None]:
    def act() -> None:
        broker.kill()
        broker.start()

    return act


def freeze_for_a_moment(broker: KafkaBroker) -> Callable[[], None]:
    def act() -> None:
        broker.pause()
        time.sleep(0.5)
        broker.resume()

    return act


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def produce(bootstrap_servers: str, topic: str, value: bytes, **config: str | int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "message.timeout.ms": 60_000, "allow.auto.create.topics": False}
        | {"topic.metadata.propagation.max.ms": 0} | config
    )  # fmt: skip
    errors: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    left = producer.flush(WAIT_S)
    assert left == 0
    if (error := errors[0]) is not None:
        raise KafkaException(error)


def consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    """The first `count` committed values of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
        | {"isolation.level": "read_committed", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{topic} has {found}"
            message = consumer.poll(0.2)
            error = None if message is None else message.error()
            # A broker that has just come back may not list the topic yet.
            assert error is None or error.code() in NO_TOPIC, error
            if message is not None and error is None:
                found.append(message.value() or b"")
        return found
    finally:
        consumer.close()
