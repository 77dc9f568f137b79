"""A configuration that cannot be: told with every problem at once, before either side is touched; exit code 2."""

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.faults.trial import SECRET, Trial, command

pytestmark = pytest.mark.postgres(only=18)


@pytest.fixture
def one(trial: Callable[..., Trial], database: Database, broker: KafkaBroker) -> Trial:
    """A pipeline that never ran."""
    return trial(database.dsn(), broker.bootstrap_servers)


def untouched(one: Trial) -> None:
    """Neither PostgreSQL nor Kafka has anything of the pipeline."""
    assert not one.has_slot()
    assert not one.execute("SELECT FROM pg_publication")
    assert not [topic for topic in one.topics() if topic.startswith(one.name)]


def test_every_problem_of_a_configuration_is_told_at_once(one: Trial):
    one.secrets += ["5ecret-of-sasl"]
    one.configure(
        postgres={"dns": f"postgresql://cdcd:{SECRET}@localhost/shop", "status_interval_s": "fast"},
        kafka={"properties": {"sasl.password": "5ecret-of-sasl", "acks": 1}},
        topics={"create": {"partitions": 0}},
        log={"level": "loud"},
    )
    said = one.fail()
    assert said.code == 2
    file = one.daemon.config_path
    assert said.message.splitlines()[0] == f"{file}: 5 problems"
    for problem in (
        "postgres.dns: unknown key; did you mean postgres.dsn?",
        'postgres.status_interval_s: must be a number, not "fast"',
        "kafka.properties.acks: is not for properties: cdcd always uses all",
        "topics.create.partitions: must be at least 1, not 0",
        'log.level: must be debug, info, warning or error, not "loud"',
    ):
        assert problem in said.message
    assert all(line.startswith("  line ") for line in said.message.splitlines()[1:])
    assert "cdcd config --reference" in said.hint
    untouched(one)
    one.configure(
        postgres={"dns": None, "status_interval_s": None},
        kafka={"properties": None},
        topics=None,
        log=None,
    )
    one.deliver()


@pytest.mark.parametrize(
    ("dsn", "message", "hint"),
    [
        ("localhost:5432/shop", "postgres.dsn: must be a libpq URI", "--reference"),
        (f"postgresql://cdcd:{SECRET}@a@localhost/shop", "it has a bare @", "@ is %40"),
        (f"postgresql://cdcd:{SECRET}@localhost:54x/shop", "its port is not a number", "percent-encoded"),
        (f"host=localhost passwrd={SECRET}", "did you mean password", "dbname="),
        (f"host=localhost password='{SECRET}", "a quoted value does not end", "dbname="),
        (f"postgresql://cdcd:{SECRET}@localhost/shop?sslmode=some", "invalid sslmode value", "verify-full"),
    ],
    ids=["no-dsn", "bare-at", "port", "parameter", "quote", "sslmode"],
)
def test_a_dsn_that_cannot_be_read_is_told_without_its_password(
    dsn: str, message: str, hint: str, one: Trial
):
    one.configure(postgres={"dsn": dsn})
    said = one.fail()
    assert said.code == 2
    assert message in said.message
    assert hint in said.hint
    untouched(one)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the configuration"),
        ("name: shop\n  postgres: {", "line 2"),
        (b"name: \xff", "not UTF-8 text, at byte 6"),
        ("name: ${CDCD_NO_SUCH}\n", "CDCD_NO_SUCH"),
    ],
    ids=["missing", "yaml", "encoding", "variable"],
)
def test_a_file_that_cannot_be_read_is_told_with_the_place(text: Any, message: str, tmp_path: Path):
    config = tmp_path / "cdcd.yaml"
    if text is not None:
        config.write_bytes(text.encode() if isinstance(text, str) else text)
    done = command("run", "--config", str(config))
    assert done.returncode == 2
    assert message in done.stderr


def test_a_port_that_is_taken_is_told_before_anything_is_connected(one: Trial):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        one.configure(http={"port": port})
        said = one.fail()
    assert said.code == 2
    assert said.message == f"cannot listen on 127.0.0.1 port {port}: Address already in use"
    assert "Set http.port to another, or 0 for any" in said.hint
    untouched(one)
    one.deliver()
