"""Kafka with SASL/OAUTHBEARER and tokens that live for seconds: a command prints them, and they are renewed.

The broker checks tokens by Kafka's own validator for unsecured JSON web tokens (RFC 7515, appendix A.5), and ends the
connection of a client that has not shown a new token when the old one is over (KIP-368).
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import BUSY_S, until
from tests.integration.faults.trial import Trial
from tests.integration.kafka_rights import allow, on_cluster, told_of_topics
from tests.integration.test_deploy_acl import documented_rights

pytestmark = pytest.mark.postgres(only=18)

LIFETIME_S = 8
"""A token lives for so many seconds."""

LONG_LIFETIME_S = 24
"""A token lives for so many seconds where no renewal may be late: it is renewed about 5 s before its end.

A connection that is made with a token of less than about 1 s is refused at its renewal, because the broker takes none
within a second of the former one (KIP-368).
"""
PROGRAM = """\
import base64, json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
lifetime = int((folder / "lifetime").read_text())
with (folder / "calls").open("a") as calls:
    calls.write("x")
failure = folder / "failure"
if failure.exists():
    sys.exit(failure.read_text())
def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
now = time.time()
claims = {"sub": (folder / "subject").read_text(), "iat": now, "exp": now + lifetime}
token = part({"alg": "none"}) + "." + part(claims) + "."
print(json.dumps({"access_token": token, "expires_in": lifetime}))
"""


@pytest.fixture(scope="module")
def guarded(scratch: Path) -> Iterator[KafkaBroker]:
    listener = "listener.name.client"
    broker = KafkaBroker(
        scratch / f"oauth-{uuid4().hex[:8]}",
        settings={
            "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{listener}.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer."
            'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
            f"{listener}.oauthbearer.connections.max.reauth.ms": "3600000",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:cdcd",
        },
    )
    broker.start()
    yield broker
    broker.destroy()


class Issuer:
    """Where the command gets its tokens, and how often it was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.arguments = [sys.executable, "-c", PROGRAM, str(folder)]
        self.lifetime(LIFETIME_S)
        self.subject("cdcd")

    def subject(self, name: str) -> None:
        """Issue tokens to this name from now on."""
        (self.folder / "subject").write_text(name)

    def lifetime(self, seconds: int) -> None:
        """Let each token live for so many seconds from now on."""
        (self.folder / "lifetime").write_text(str(seconds))

    @property
    def calls(self) -> int:
        calls = self.folder / "calls"
        return len(calls.read_text()) if calls.exists() else 0

    def await_calls(self, count: int) -> None:
        """Wait until it was run so many times more."""
        before = self.calls
        until(lambda: self.calls >= before + count or None, "no token was fetched")

    def fail(self, said: str) -> None:
        (self.folder / "failure").write_text(said)

    def mend(self) -> None:
        (self.folder / "failure").unlink()


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "issuer")


@pytest.fixture
def one(guarded: KafkaBroker, issuer: Issuer, trial: Callable[..., Trial], database: Database) -> Trial:
    made = trial(database.dsn(), guarded.bootstrap_servers, reader_servers=guarded.admin_bootstrap_servers)
    # The beginning of every unsecured token.
    made.secrets.append("eyJhbGci")
    made.configure(
        kafka={
            "properties": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
            "oauth": {"provider": "command", "command": issuer.arguments},
        }
    )
    return made


@pytest.mark.long
def test_tokens_are_renewed_under_a_running_daemon(one: Trial, issuer: Issuer):
    issuer.lifetime(LONG_LIFETIME_S)
    one.start()
    one.insert(1)
    one.expect(1)
    calls = issuer.calls
    # WHEN tokens expire one after the other, while the daemon has work and while it has none
    for number in (2, 3):
        issuer.await_calls(2)
        one.insert(number)
        one.expect(number)
    assert issuer.calls >= calls + 4
    # THEN nobody noticed
    for event in ("kafka.unreachable", "kafka.retry", "kafka.token", "reconnect.scheduled"):
        assert not one.daemon.saw(event), one.daemon.last_words()
    assert one.check().errors() == []
    one.stop()


@pytest.mark.long
def test_a_provider_that_fails_for_longer_than_a_token_lives_is_waited_for(one: Trial, issuer: Issuer):
    one.start()
    one.insert(1)
    one.expect(1)
    mark = one.daemon.mark()
    issuer.fail("no identity: client_secret=hunter2-5ecret")
    one.secrets.append("hunter2-5ecret")
    event = one.daemon.await_event("kafka.token", after=mark)
    assert event["message"].endswith("ended with exit code 1: no identity: client_secret=***")
    # The broker lets nobody in any more.
    one.daemon.await_event("kafka.unreachable", after=mark)
    one.insert(2)
    one.daemon.await_metric("cdcd_kafka_token_failures_total", lambda count: count >= 2)
    issuer.mend()
    one.expect(2)
    one.daemon.await_event("kafka.reachable", after=mark)
    told = [line for line in one.daemon.output().splitlines() if json.loads(line)["event"] == "kafka.token"]
    assert len(told) == 1, "once a minute at most"
    one.stop()


def test_at_a_start_a_failing_provider_is_told_and_nothing_hangs(one: Trial, issuer: Issuer):
    one.configure(startup_timeout_s=1)
    issuer.fail("the service is away")
    said, check = one.fail(timeout_s=2 * BUSY_S), one.check()
    assert (said.code, check.code) == (4, 4)
    assert "kafka.oauth.command" in said.message
    assert "the service is away" in said.message
    assert "Run the command of kafka.oauth.command by hand" in said.hint
    assert check.error("the service is away")["fix"] == said.hint
    issuer.mend()
    one.configure(kafka={"oauth": {"provider": "command", "command": ["/nowhere/print-token"]}})
    said, check = one.fail(), one.check()
    assert (said.code, check.code) == (2, 2)
    assert "/nowhere/print-token cannot be run" in said.message


@pytest.mark.long
def test_a_token_that_the_broker_refuses_ends_the_start(one: Trial):
    one.configure(
        kafka={
            "oauth": {
                "provider": "command",
                "command": ["echo", '{"access_token": "no-web-token", "expires_in": 300}'],
            }
        }
    )
    said = one.fail()
    assert said.code == 4
    assert "invalid_token" in said.message
    assert "kafka.oauth" in said.hint


@pytest.mark.long
def test_check_knows_the_rights_of_a_tokens_principal(one: Trial, issuer: Issuer, guarded: KafkaBroker):
    principal = "User:teller"
    issuer.lifetime(LONG_LIFETIME_S)
    issuer.subject("teller")
    # GIVEN every documented right but the one to write to topics
    rights = [*documented_rights(one.name), *on_cluster(principal)]
    for right in rights:
        right.principal = principal
    write = [each for each in rights if each.operation == AclOperation.WRITE]
    allow(guarded.admin_bootstrap_servers, [each for each in rights if each not in write])
    # WHEN it is missing, THEN it is an error, and not unknown
    assert "topic.rights" in told_of_topics(one.check().findings)
    allow(guarded.admin_bootstrap_servers, write)
    assert told_of_topics(one.check().findings) == set()
