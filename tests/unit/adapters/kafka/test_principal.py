"""The name by which a broker knows a client: what the client shows, and what the broker's settings make of it."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cdcd.adapters.credentials.tokens import Token, Tokens
from cdcd.adapters.kafka.principal import (
    CLAIM,
    HANDLER,
    RULES,
    UNKNOWN,
    ClientIdentity,
    identity_of,
    mapped,
    subject_of_certificate,
    subject_of_token,
)
from cdcd.core.errors import SinkUnavailableError
from tests.integration.faults.certificates import Authority

USER, SUBJECT, TOKEN = (
    ClientIdentity("cdcd"),
    ClientIdentity(subject="CN=cdcd,O=Shop"),
    ClientIdentity(token="cdcd"),
)


def web_token(claims: object) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({}, claims)
    ]
    return ".".join([*parts, ""])


def tokens(value: str) -> Tokens:
    return Tokens(lambda: Token(value, 2000.0), clock=lambda: 1000.0)


def refusing() -> Token:
    raise SinkUnavailableError("the provider gives no token")


@pytest.mark.parametrize(
    ("client", "identity"),
    [
        ({"sasl.mechanism": "PLAIN", "sasl.username": "cdcd"}, USER),
        ({"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "cdcd"}, USER),
        ({"sasl.mechanism": "PLAIN"}, UNKNOWN),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.username": "cdcd"}, UNKNOWN),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens(web_token({"sub": "cdcd"}))}, TOKEN),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens("opaque")}, UNKNOWN),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": Tokens(refusing)}, UNKNOWN),
        ({"sasl.mechanism": "GSSAPI"}, UNKNOWN),
        ({"security.protocol": "SSL"}, UNKNOWN),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/nowhere"}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_a_client_shows_the_name_of_its_password_or_token(
    client: dict[str, object], identity: ClientIdentity
):
    assert identity_of(client) == identity


def test_a_client_shows_the_subject_of_its_certificate(tmp_path: Path):
    certificate = Authority(tmp_path / "authority").issue("cdcd")
    client = {"security.protocol": "SSL", "ssl.certificate.location": str(certificate)}
    assert identity_of(client) == ClientIdentity(subject="CN=cdcd")
    # With SASL, the broker goes by the user.
    assert identity_of({**client, "security.protocol": "SASL_SSL"}) == UNKNOWN


def test_a_subject_that_java_may_write_in_another_way_is_unknown(tmp_path: Path):
    assert subject_of_certificate(Authority(tmp_path / "authority").issue("a;b")) == ""


@pytest.mark.parametrize("token", ["", "a.b", "a.!.c", web_token([]), web_token({}), web_token({"sub": 7})])
def test_a_token_without_a_subject_names_nobody(token: str):
    assert subject_of_token(token) == ""


@pytest.mark.parametrize(
    ("identity", "broker", "principal"),
    [
        (USER, None, "User:cdcd"),
        (SUBJECT, None, ""),
        (SUBJECT, {}, "User:CN=cdcd,O=Shop"),
        (SUBJECT, {RULES: "RULE:^CN=(.*?),.*$/$1/U"}, "User:CDCD"),
        (SUBJECT, {RULES: "DEFAULT", f"listener.name.mutual.{RULES}": "DEFAULT"}, ""),
        (TOKEN, None, ""),
        (TOKEN, {}, "User:cdcd"),
        (TOKEN, {CLAIM: "client_id"}, ""),
        (TOKEN, {f"listener.name.client.{CLAIM}": "client_id"}, ""),
        (TOKEN, {f"listener.name.client.oauthbearer.{HANDLER}": "com.example.Handler"}, ""),
        (UNKNOWN, {}, ""),
    ],
)
def test_the_brokers_settings_decide(
    identity: ClientIdentity, broker: Mapping[str, str] | None, principal: str
):
    assert identity.principal(broker) == principal


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", "CN=Cdcd,OU=Data,O=Shop"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "cdcd@data"),
        ("RULE:^CN=x$/y/, RULE:^CN=(\\w+),.*$/$1/", "Cdcd"),
        ("RULE:^CN=x$/y/,DEFAULT", "CN=Cdcd,OU=Data,O=Shop"),
        # No rule matches; a pattern that only Java knows; no rule at all.
        ("RULE:^CN=x$/y/", ""),
        ("RULE:^CN=\\p{Alpha}+,.*$/x/", ""),
        ("RULE:^CN=(.*?),.*$/$7/", ""),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_rules_map_a_subject_as_kafka_does(rules: str, name: str):
    assert mapped("CN=Cdcd,OU=Data,O=Shop", rules) == name
