"""`postgres.password_command` against a server that wants a password: each session gets the one of now."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import until
from tests.integration.faults.trial import Trial, command

pytestmark = pytest.mark.postgres(only=18)

FIRST, SECOND = "f1rst-5ecret", "s3cond-5ecret"
PROGRAM = """\
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
with (folder / "calls").open("a") as calls:
    calls.write("x")
failure = folder / "failure"
if failure.exists():
    sys.exit(failure.read_text())
print((folder / "password").read_text())
"""


class Vault:
    """Where the command finds the password, and counts how often it was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arguments = [sys.executable, "-c", PROGRAM, str(folder)]
        folder.mkdir()
        self.put(FIRST)

    @property
    def calls(self) -> int:
        return len((self.folder / "calls").read_text())

    def put(self, password: str) -> None:
        (self.folder / "password").write_text(password)

    def fail(self, said: str) -> None:
        (self.folder / "failure").write_text(said)

    def mend(self) -> None:
        (self.folder / "failure").unlink()


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault")


@pytest.fixture
def one(
    vault: Vault,
    trial: Callable[..., Trial],
    broker: KafkaBroker,
    private_postgres: Callable[..., PostgresServer],
) -> Trial:
    """A pipeline whose role has to show the password of the vault."""
    server = private_postgres(
        18, hba=("host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
    )
    made = trial(server.dsn(), broker.bootstrap_servers)
    made.secrets += [FIRST, SECOND]
    made.execute("CREATE ROLE cdcd LOGIN REPLICATION")
    made.execute(f"CREATE PUBLICATION {made.slot} FOR TABLE t")
    made.execute("GRANT SELECT ON t TO cdcd")
    made.execute(f"ALTER ROLE cdcd PASSWORD '{FIRST}'")
    made.configure(
        postgres={"dsn": server.dsn(user="cdcd"), "password_command": vault.arguments}, startup_timeout_s=2
    )
    return made


def end_sessions(one: Trial) -> None:
    one.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cdcd'")


def test_each_session_gets_the_password_of_now(one: Trial, vault: Vault):
    # GIVEN rows to read, so that a reader of snapshots connects too
    one.insert(1, 2)
    one.configure(snapshot={"mode": "initial"})
    one.start()
    one.expect(1, 2)
    calls = vault.calls
    assert calls >= 4, "lock, catalog, stream and reader have a session each"
    # WHEN the password changes: open sessions stay
    one.execute(f"ALTER ROLE cdcd PASSWORD '{SECOND}'")
    vault.put(SECOND)
    one.insert(3)
    one.expect(3)
    assert vault.calls == calls
    # AND the sessions are killed
    mark = one.daemon.mark()
    end_sessions(one)
    one.daemon.await_event("stream.started", after=mark)
    one.insert(4)
    one.expect(4)
    assert vault.calls > calls
    # THEN the other commands that connect do so by the command too
    assert one.check().errors() == []
    for arguments in (("status", "--format", "json"), ("snapshot", "start", "--table", "public.t")):
        calls = vault.calls
        done = command(*arguments, "--config", str(one.daemon.config_path))
        one.said += [done.stdout, done.stderr]
        assert done.returncode == 0, done.stdout + done.stderr
        assert vault.calls > calls
    # The rows were asked for once more, so that the topic has more than the test counts.
    assert one.daemon.stop() == 0


def test_a_command_that_fails_for_a_while_is_waited_for(one: Trial, vault: Vault):
    one.start()
    one.insert(1)
    one.expect(1)
    mark = one.daemon.mark()
    vault.fail(f"no credentials: password={SECOND}, AWS_SECRET_ACCESS_KEY={SECOND}")
    end_sessions(one)
    event = one.daemon.await_event("reconnect.scheduled", after=mark)
    until(lambda: vault.calls > 8 or None, "the command was not run again")
    assert one.daemon.is_running()
    vault.mend()
    one.insert(2)
    one.expect(2)
    lines = [json.loads(line) for line in one.daemon.output().splitlines()]
    said = [line["message"] for line in lines if "password_command" in line.get("message", "")]
    assert said, event
    assert "ended with exit code 1: no credentials: password=***" in said[0]
    one.stop()


def test_at_a_start_it_is_told_what_the_command_says(one: Trial, vault: Vault):
    vault.fail("the vault is sealed")
    said, check = one.fail(), one.check()
    assert (said.code, check.code) == (3, 3)
    assert "exit code 1: the vault is sealed" in said.message
    assert "Run the command of postgres.password_command by hand" in said.hint
    assert check.error("the vault is sealed")["fix"] == said.hint
    vault.mend()
    # A password that the server refuses: the next one may be right.
    vault.put(SECOND)
    said = one.fail()
    assert said.code == 3
    assert 'password authentication failed for user "cdcd"' in said.message
    assert "refuses the password that postgres.password_command printed" in said.hint
    # What cannot be mended by waiting.
    one.configure(postgres={"password_command": ["/nowhere/print-password"]})
    said, check = one.fail(), one.check()
    assert (said.code, check.code) == (2, 2)
    assert "/nowhere/print-password cannot be run: No such file" in said.message
    assert not one.has_slot()
