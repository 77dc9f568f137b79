"""`cdcd bench` prints figures, and removes everything that it created."""

import re
import signal
from pathlib import Path

import pytest
import yaml

from cdcd.adapters.kafka.admin import Admin
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import configuration, until
from tests.integration.forked import run_cdcd, start_cdcd

BEGINS = "cdcd_bench_"


def left(database: Database, broker: KafkaBroker, name: str) -> list[str]:
    """Return the slots, publications, schemas and topics that exist for a run."""
    found = database.execute(
        f"SELECT slot_name::text FROM pg_replication_slots WHERE slot_name = '{name}' UNION ALL "
        f"SELECT pubname::text FROM pg_publication WHERE pubname = '{name}' UNION ALL "
        f"SELECT nspname::text FROM pg_namespace WHERE nspname = '{name}'"
    )
    topics = Admin({"bootstrap.servers": broker.bootstrap_servers}).names()
    return [str(each) for (each,) in found] + [topic for topic in topics if topic.startswith(name)]


def await_removal(database: Database, broker: KafkaBroker, name: str, said: str) -> None:
    """Wait until nothing of a run is left. Kafka's brokers list a deleted topic for a moment."""
    until(lambda: left(database, broker, name) == [] or None, said)


@pytest.fixture
def file(database: Database, broker: KafkaBroker, unique: str, tmp_path: Path) -> Path:
    path = tmp_path / "cdcd.yaml"
    path.write_text(yaml.safe_dump(configuration(unique, database.dsn(), broker.bootstrap_servers)))
    return path


@pytest.mark.postgres(only=18, also=[13])
def test_a_run_prints_figures_and_leaves_nothing(
    database: Database, broker: KafkaBroker, file: Path, tmp_path: Path
):
    # WHEN the question is answered with no, THEN nothing is created
    arguments = ("bench", "--config", str(file), "--rows", "5000", "--rows-each", "100")
    refused = run_cdcd(*arguments, folder=tmp_path, answers="n\n")
    assert refused.returncode == 130
    name = re.search(rf"schema ({BEGINS}[0-9a-f]+)", refused.stdout)
    assert name is not None
    assert left(database, broker, name[1]) == []
    # AND WHEN the benchmark runs
    done = run_cdcd(*arguments, "--yes", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^rows +[\d,]+ a second: 5,000 in", done.stdout, re.MULTILINE)
    for part in ("cpu ", "memory ", "WAL ", "Kafka ", "latency "):
        assert part in done.stdout
    name = re.search(rf"schema ({BEGINS}[0-9a-f]+)", done.stdout)
    assert name is not None
    await_removal(database, broker, name[1], done.stdout)


@pytest.mark.postgres(only=18)
def test_a_role_that_may_not_create_gets_the_right_to_grant(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path
):
    database.execute("CREATE ROLE bench_reader LOGIN REPLICATION")
    try:
        file = tmp_path / "cdcd.yaml"
        dsn = database.dsn(user="bench_reader")
        file.write_text(yaml.safe_dump(configuration(unique, dsn, broker.bootstrap_servers)))
        said = run_cdcd("bench", "--config", str(file), "--yes", folder=tmp_path)
        assert said.returncode == 3
        assert "permission denied for database" in said.stderr
        assert re.search(r"hint: GRANT CONNECT, CREATE ON DATABASE \S+ TO \S*bench_reader", said.stderr)
        assert "Traceback" not in said.stderr
    finally:
        database.execute("DROP ROLE bench_reader")


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_is_removed_by_itself_or_by_its_name(
    database: Database, broker: KafkaBroker, file: Path, tmp_path: Path, number: signal.Signals
):
    name, said = "", ""
    with start_cdcd(
        "bench", "--config", str(file), "--rows", "100000000", "--yes", folder=tmp_path
    ) as process:
        # GIVEN a run that writes
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            name = name or "".join(re.findall(rf"{BEGINS}[0-9a-f]+", line)[:1])
            if line.startswith("Writing"):
                break
        assert name, said
        assert left(database, broker, name) != []
        # WHEN the run is ended by a signal
        process.send_signal(number)
        said += process.stderr.read()
    # THEN nothing is left. After SIGKILL, the run must be removed by its name first
    if number == signal.SIGKILL:
        removed = run_cdcd("bench", "--config", str(file), "--remove", name, folder=tmp_path)
        assert removed.returncode == 0, removed.stderr
    await_removal(database, broker, name, said)
