"""Kafka that demands TLS, with SCRAM or a client certificate, and allows deploy/acl.md's list; and how that fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from cdcd.adapters.kafka import topic_facts
from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.config.mirror import SourceConfig
from cdcd.core.errors import SinkError
from deploy.local import KafkaBroker
from deploy.local.process import free_port
from tests.integration.conftest import Database
from tests.integration.faults.certificates import Authority
from tests.integration.faults.trial import Trial
from tests.integration.kafka_rights import allow, on_cluster, told_of_topics
from tests.integration.test_deploy_acl import documented_rights

pytestmark = pytest.mark.postgres(only=18)

PASSWORD = "5cram-5ecret"


class Guarded:
    """A broker with a listener for passwords, one for client certificates and one that shows a bad certificate."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.stranger = Authority(folder / "stranger", "somebody else")
        names = ("CLIENT", "MUTUAL", "EXPIRED", "OTHER", "ADMIN")
        self.ports = {name: free_port() for name in names}
        controller = free_port()
        told = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        identities = {
            "client": self.authority.issue("broker"),
            "mutual": self.authority.issue("broker"),
            "expired": self.authority.issue("broker", expired=True),
            "other": self.authority.issue("broker", names="DNS:kafka.example.com"),
        }
        settings = {
            "listeners": f"{told},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": told,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "CLIENT:SASL_SSL,MUTUAL:SSL,EXPIRED:SSL,OTHER:SSL,"
            "ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.mutual.ssl.client.auth": "required",
            # DEFAULT leaves other certificates their subject.
            "ssl.principal.mapping.rules": "RULE:^CN=(svc-[a-z]+)$/$1/U,DEFAULT",
            # The expired one is shown as it is, not refused at the start.
            "ssl.allow.dn.changes": "true",
        }
        # Whose clients' certificates are taken.
        self._trusted = folder / "trusted.pem"
        self.trust(self.authority)
        for name, file in identities.items():
            settings |= {
                f"listener.name.{name}.ssl.keystore.type": "PEM",
                f"listener.name.{name}.ssl.keystore.location": str(file),
                f"listener.name.{name}.ssl.truststore.type": "PEM",
                f"listener.name.{name}.ssl.truststore.location": str(self._trusted),
            }
        self.broker = KafkaBroker(
            folder / "kafka", settings=settings, users={"cdcd": PASSWORD}, mechanism="SCRAM-SHA-512"
        )

    @property
    def admin(self) -> str:
        return f"127.0.0.1:{self.ports['ADMIN']}"

    def trust(self, authority: Authority) -> None:
        """Take clients' certificates of that one only, from the broker's next start on."""
        self._trusted.write_bytes(authority.certificate.read_bytes())

    def allow(self, pipeline: str, principal: str) -> None:
        """What deploy/acl.md lists, and nothing else."""
        rights = documented_rights(pipeline)
        for right in rights:
            right.principal = principal
        allow(self.admin, rights)

    def scram(self, **properties: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "cdcd",
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.authority.certificate),
            **properties,
        }

    def mutual(self, certificate: Path | None) -> dict[str, str]:
        shown = (
            {}
            if certificate is None
            else dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), str(certificate))
        )
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.authority.certificate), **shown}


@pytest.fixture(scope="module")
def guarded(scratch: Path) -> Iterator[Guarded]:
    folder = scratch / f"guarded-{uuid4().hex[:8]}"
    folder.mkdir(mode=0o711)
    made = Guarded(folder)
    made.broker.start()
    yield made
    made.broker.destroy()


@pytest.fixture
def one(guarded: Guarded, trial: Callable[..., Trial], database: Database) -> Trial:
    made = trial(database.dsn(), "", reader_servers=guarded.admin)
    made.secrets.append(PASSWORD)
    return made


def use(one: Trial, guarded: Guarded, listener: str, properties: dict[str, str]) -> None:
    one.configure(
        kafka={"bootstrap_servers": f"127.0.0.1:{guarded.ports[listener]}", "properties": properties}
    )


@pytest.mark.parametrize("listener", ["CLIENT", "MUTUAL"], ids=["SCRAM", "client certificate"])
def test_it_delivers_over_tls_with_the_documented_rights_alone(guarded: Guarded, one: Trial, listener: str):
    principal = "User:cdcd" if listener == "CLIENT" else "User:CN=cdcd"
    guarded.allow(one.name, principal)
    use(
        one,
        guarded,
        listener,
        guarded.scram() if listener == "CLIENT" else guarded.mutual(guarded.authority.issue("cdcd")),
    )
    one.start()
    one.insert(1)
    one.expect(1)
    one.stop()
    # AND with a checkpoint to read
    one.start()
    one.insert(2)
    one.expect(2)
    one.stop()


@pytest.mark.parametrize(
    ("shown", "principal"),
    [pytest.param("teller", "User:CN=teller", marks=pytest.mark.long), ("svc-teller", "User:SVC-TELLER")],
)
def test_check_knows_the_rights_of_a_certificates_principal(
    guarded: Guarded, one: Trial, shown: str, principal: str
):
    use(one, guarded, "MUTUAL", guarded.mutual(guarded.authority.issue(shown)))
    # GIVEN every documented right but the one to write to topics
    rights = [*documented_rights(one.name), *on_cluster(principal)]
    for right in rights:
        right.principal = principal
    write = [each for each in rights if each.operation == AclOperation.WRITE]
    allow(guarded.admin, [each for each in rights if each not in write])
    # WHEN it is missing, THEN it is an error, and not unknown
    assert "topic.rights" in told_of_topics(one.check().findings)
    allow(guarded.admin, write)
    assert told_of_topics(one.check().findings) == set()


@pytest.mark.long
def test_each_failure_is_told_at_once_with_what_to_do(guarded: Guarded, one: Trial):
    one.secrets.append("wr0ng-5ecret")
    stranger = str(guarded.stranger.certificate)
    unknown = guarded.mutual(guarded.stranger.issue("cdcd"))
    expired = guarded.mutual(guarded.authority.issue("cdcd", expired=True))
    for listener, properties, message, hint in (
        ("CLIENT", guarded.scram(**{"ssl.ca.location": stranger}), "verify failed", "ssl.ca.location"),
        ("CLIENT", guarded.scram(**{"ssl.ca.location": "/nowhere"}), "ssl.ca.location", "kafka.properties"),
        (
            "CLIENT",
            guarded.scram(**{"sasl.password": "wr0ng-5ecret"}),
            "Authentication failed",
            "sasl.password",
        ),
        ("EXPIRED", guarded.mutual(None), "verify failed", "expired"),
        ("OTHER", guarded.mutual(None), "verify failed", "another name"),
        ("MUTUAL", guarded.mutual(None), "alert bad certificate", "ssl.certificate.location"),
        ("MUTUAL", unknown, "SSL alert number", "ssl.certificate.location"),
        ("MUTUAL", expired, "SSL alert number", "must not have expired"),
        ("CLIENT", guarded.scram(), "Topic authorization failed", "kafka-acls"),
    ):
        use(one, guarded, listener, properties)
        said = one.fail()
        assert said.code == 4, said
        assert message in said.message
        assert hint in said.hint
        assert "given up" not in said.message


def test_a_listener_that_wants_tls_and_is_spoken_to_without_is_told_when_the_start_took_too_long(
    guarded: Guarded, one: Trial
):
    # The listener keeps silent or ends the connection, so that only the time tells it from a broker that is away.
    one.configure(startup_timeout_s=1)
    use(one, guarded, "CLIENT", {"security.protocol": "PLAINTEXT"})
    said = one.fail()
    assert said.code == 4, said
    assert "127.0.0.1" in said.message
    assert "given up after startup_timeout_s: 1" in said.message
    assert "security.protocol" in said.hint


@pytest.mark.parametrize("listener", ["CLIENT", "MUTUAL"], ids=["SCRAM", "client certificate"])
def test_a_mirror_looks_at_topics_with_the_login_that_spark_has(guarded: Guarded, listener: str):
    # GIVEN a login in the names of the Java client
    authority, name = guarded.authority, f"mirrored{uuid4().hex[:8]}"
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
    if listener == "CLIENT":
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        properties |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{module} required username="cdcd" password="{PASSWORD}";',
        }
    else:
        identity = str(authority.issue("cdcd"))
        properties |= {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": identity,
        }
    guarded.allow(name, "User:cdcd" if listener == "CLIENT" else "User:CN=cdcd")
    topic = f"{name}.public.t"
    admin = AdminClient({"bootstrap.servers": guarded.admin})
    for made in admin.create_topics([NewTopic(topic, 1)]).values():
        made.result(30)
    servers = f"127.0.0.1:{guarded.ports[listener]}"
    kafka = SourceConfig.model_validate({"bootstrap_servers": servers, "properties": properties})
    # WHEN the client of the log asks, THEN the broker answers
    starts = TopicStarts(kafka.librdkafka())
    assert starts.ends([topic]) == {topic: {0: 0}}
    # AND the broker answers each question, also about a topic that does not exist
    assert starts.beginnings([topic, f"{name}.nowhere"]) == {topic: {0: 0}}
    found = starts.look([topic, f"{name}.nowhere"])
    assert starts.topic_ids([topic, f"{name}.nowhere"]) == {topic: found[topic].topic_id}
    assert len(found[topic].topic_id) == 22


def test_a_login_that_the_brokers_refuse_is_no_outage_of_them(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(topic_facts, "_TIMEOUT_S", 4.0)
    properties = {**guarded.scram(), "sasl.password": "wr0ng"}
    starts = TopicStarts({**properties, "bootstrap.servers": f"127.0.0.1:{guarded.ports['CLIENT']}"})
    for _ in range(2):
        with pytest.raises(SinkError, match="refuses the login") as refused:
            starts.ends(["t"])
        assert "wr0ng" not in refused.value.message + refused.value.hint


@pytest.mark.long
def test_a_password_that_was_changed_is_read_again_when_the_broker_is_back(
    guarded: Guarded, one: Trial, tmp_path: Path
):
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    one.secrets.append("n3w-5ecret")
    guarded.allow(one.name, "User:cdcd")
    properties = guarded.scram()
    del properties["sasl.password"]
    use(one, guarded, "CLIENT", properties)
    one.configure(kafka={"properties_files": {"sasl.password": str(file)}, "transaction": {"timeout_s": 3}})
    one.start()
    one.insert(1)
    one.expect(1)
    admin = AdminClient({"bootstrap.servers": guarded.admin})
    salted = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changed = UserScramCredentialUpsertion("cdcd", salted, b"n3w-5ecret")
    for done in admin.alter_user_scram_credentials([changed]).values():
        done.result(30)
    # The former one is what the daemon knows when the broker comes back.
    guarded.broker.restart()
    one.insert(2)
    one.daemon.await_event("kafka.retry")
    file.write_text("n3w-5ecret\n")
    one.expect(2)
    one.stop()


@pytest.mark.long
def test_a_certificate_that_was_renewed_is_read_again_when_the_broker_is_back(
    guarded: Guarded, one: Trial, tmp_path: Path
):
    shown = tmp_path / "client.pem"
    shown.write_bytes(guarded.authority.issue("cdcd").read_bytes())
    guarded.allow(one.name, "User:CN=cdcd")
    use(one, guarded, "MUTUAL", guarded.mutual(shown))
    one.configure(kafka={"transaction": {"timeout_s": 3}})
    one.start()
    one.insert(1)
    one.expect(1)
    try:
        # As a secret's volume does it: there is one file or the other, never half of one.
        guarded.stranger.issue("cdcd").rename(shown)
        guarded.trust(guarded.stranger)
        guarded.broker.restart()
        one.insert(2)
        one.expect(2)
        one.stop()
    finally:
        guarded.trust(guarded.authority)
        guarded.broker.restart()
