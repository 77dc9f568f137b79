"""PostgreSQL that demands TLS, a client certificate and SCRAM; and each way in which that fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import until
from tests.integration.faults.certificates import Authority, for_server
from tests.integration.faults.trial import SECRET, Trial

DATABASE = "guarded"
HBA = (
    "host all postgres 127.0.0.1/32 trust",
    "hostssl all cdcd 127.0.0.1/32 scram-sha-256 clientcert=verify-full",
)


class Guarded:
    """The server, and what a client needs for it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.stranger = Authority(folder / "stranger", "somebody else")
        self.certificate = self.authority.issue("cdcd")
        self.server = PostgresServer(
            18,
            folder / "postgres",
            hba=HBA,
            settings={"ssl": "on", "ssl_ca_file": str(self.authority.certificate), **self.identity()},
        )

    def identity(self, **options: Any) -> dict[str, str]:
        """Settings for a certificate of the server's."""
        file = str(for_server(self.authority.issue("server", **options)))
        return {"ssl_cert_file": file, "ssl_key_file": file}

    def present(self, **options: Any) -> None:
        """Let the server show another certificate from now on."""
        for name, value in self.identity(**options).items():
            self.server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.server.execute("SELECT pg_reload_conf()")

    def dsn(self, **parameters: str) -> str:
        wanted = {
            "user": "cdcd",
            "host": "localhost",
            "sslmode": "verify-full",
            "sslrootcert": str(self.authority.certificate),
            "sslcert": str(self.certificate),
            "sslkey": str(self.certificate),
            "password": SECRET,
            **parameters,
        }
        return f"port={self.server.port} dbname={DATABASE} " + " ".join(
            f"{name}={value}" for name, value in wanted.items() if value
        )


@pytest.fixture(scope="module")
def guarded(scratch: Path) -> Iterator[Guarded]:
    folder = scratch / f"guarded-{uuid4().hex[:8]}"
    folder.mkdir(mode=0o711)
    made = Guarded(folder)
    made.server.start()
    made.server.execute(f"CREATE DATABASE {DATABASE}")
    made.server.execute(f"CREATE ROLE cdcd LOGIN REPLICATION PASSWORD '{SECRET}'")
    yield made
    made.server.destroy()


@pytest.fixture
def one(guarded: Guarded, trial: Callable[..., Trial], broker: KafkaBroker) -> Trial:
    """A pipeline as the role that the server lets in by TLS only."""
    made = trial(guarded.server.dsn(DATABASE), broker.bootstrap_servers)
    made.execute(f"CREATE PUBLICATION {made.slot} FOR TABLE t")
    made.execute("TRUNCATE t")
    made.configure(postgres={"dsn": guarded.dsn()}, startup_timeout_s=2)
    return made


def test_verify_full_with_a_client_certificate_and_scram(guarded: Guarded, one: Trial):
    one.start()
    one.insert(1)
    one.expect(1)
    assert one.check().errors() == []
    sessions = """SELECT bool_and(ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                  WHERE usename = 'cdcd' AND client_dn = '/CN=cdcd'"""
    # The sessions of the check are on their way out for a while.
    until(lambda: one.execute(sessions) == [(True, 4)] or None, "the daemon has not four sessions")
    one.stop()


@pytest.mark.parametrize(
    ("parameters", "message", "hint"),
    [
        ({"sslrootcert": "stranger"}, "certificate verify failed", "sslrootcert"),
        ({"sslrootcert": "/nowhere/ca.pem"}, "root certificate file", "sslrootcert"),
        ({"sslcert": "", "sslkey": ""}, "valid client certificate", "sslcert"),
        (
            {"sslcert": "other name", "sslkey": "other name"},
            "password authentication failed",
            "CN of sslcert",
        ),
        ({"sslcert": "unknown issuer", "sslkey": "unknown issuer"}, "unknown ca", "sslcert"),
        ({"sslcert": "expired", "sslkey": "expired"}, "certificate expired", "sslcert"),
        ({"sslmode": "disable"}, "no pg_hba.conf entry", "pg_hba.conf"),
        ({"password": "wr0ng-5ecret"}, "password authentication failed", "password"),
        ({"password": ""}, "no password supplied", "password"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_each_failure_is_told_with_what_to_do(
    guarded: Guarded, one: Trial, parameters: dict[str, str], message: str, hint: str
):
    files = {
        "stranger": lambda: guarded.stranger.certificate,
        "other name": lambda: guarded.authority.issue("mallory"),
        "unknown issuer": lambda: guarded.stranger.issue("cdcd"),
        "expired": lambda: guarded.authority.issue("cdcd", expired=True),
    }
    found = {name: str(files[value]()) if value in files else value for name, value in parameters.items()}
    one.secrets.append("wr0ng-5ecret")
    one.configure(postgres={"dsn": guarded.dsn(**found)})
    said = one.fail()
    assert said.code in {2, 3}
    assert message in said.message
    assert hint in said.hint


@pytest.mark.parametrize(
    ("shown", "message", "hint"),
    [
        ({"expired": True}, "certificate verify failed", "expired"),
        ({"names": "DNS:db.example.com"}, "does not match host name", "another name than the host"),
    ],
    ids=["expired", "other name"],
)
def test_what_is_wrong_with_the_servers_certificate_is_told(
    guarded: Guarded, one: Trial, shown: dict[str, Any], message: str, hint: str
):
    guarded.present(**shown)
    try:
        said = one.fail()
        assert said.code == 3
        assert message in said.message
        assert hint in said.hint
        assert one.check().code == 3
    finally:
        guarded.present()


def test_a_password_that_was_changed_is_read_again_when_it_reconnects(
    guarded: Guarded, one: Trial, tmp_path: Path
):
    file = tmp_path / "password"
    file.write_text(SECRET)
    one.secrets.append("n3w-5ecret")
    one.configure(postgres={"dsn": guarded.dsn(password=""), "password_file": str(file)})
    one.start()
    one.insert(1)
    one.expect(1)
    mark = one.daemon.mark()
    try:
        one.execute("ALTER ROLE cdcd PASSWORD 'n3w-5ecret'")
        file.write_text("n3w-5ecret\n")
        one.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cdcd'")
        one.daemon.await_event("stream.started", after=mark)
        one.insert(2)
        one.expect(2)
    finally:
        one.execute(f"ALTER ROLE cdcd PASSWORD '{SECRET}'")
    one.stop()


def test_a_certificate_that_was_renewed_is_read_again_when_it_reconnects(
    guarded: Guarded, one: Trial, tmp_path: Path
):
    shown = tmp_path / "client.pem"
    shown.touch(mode=0o600)
    shown.write_bytes(guarded.certificate.read_bytes())
    one.configure(postgres={"dsn": guarded.dsn(sslcert=str(shown), sslkey=str(shown))})
    one.start()
    one.insert(1)
    one.expect(1)
    mark = one.daemon.mark()
    try:
        guarded.stranger.issue("cdcd").rename(shown)
        # Only certificates of the new authority are good from now on.
        one.execute(f"ALTER SYSTEM SET ssl_ca_file = '{guarded.stranger.certificate}'")
        one.execute("SELECT pg_reload_conf()")
        one.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cdcd'")
        one.daemon.await_event("stream.started", after=mark)
        one.insert(2)
        one.expect(2)
    finally:
        one.execute("ALTER SYSTEM RESET ssl_ca_file")
        one.execute("SELECT pg_reload_conf()")
    one.stop()
