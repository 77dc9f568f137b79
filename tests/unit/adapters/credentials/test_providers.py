"""The providers of tokens: what a command must print, and what is said without a cloud's library."""

import sys

import pytest

from cdcd.adapters.credentials.providers import access, read_token
from cdcd.adapters.credentials.tokens import Token
from cdcd.config.loading import parse_config
from cdcd.core.errors import ConfigError, SinkUnavailableError, TransientError

MINIMAL = """
name: shop
postgres: {dsn: "host=db"}
kafka:
  bootstrap_servers: "broker:9092"
  properties: {security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER}
"""


def config(oauth: str) -> str:
    return f"{MINIMAL}  oauth: {oauth}\n"


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ('{"access_token": "t", "expires_in": 300, "token_type": "Bearer"}', Token("t", 1300.0)),
        ('{"access_token": "t", "expires_in": "300"}', Token("t", 1300.0)),
        ('{"accessToken": "t", "expires_on": 1600, "expiresOn": "2026-01-01"}', Token("t", 1600.0)),
    ],
)
def test_the_forms_of_an_oauth_server_and_of_the_azure_cli_are_read(text: str, token: Token):
    assert read_token(text, 1000.0) == token


@pytest.mark.parametrize(
    "text",
    ["s3cret", "[]", "3", '{"access_token": "s3cret"}', '{"expires_in": 5}', '{"access_token": 5, "expires_in": 5}',
     '{"access_token": "s3cret", "expires_in": "soon"}', '{"access_token": "", "expires_in": 5}'],
)  # fmt: skip
def test_what_is_no_token_is_refused_and_not_shown(text: str):
    with pytest.raises(TransientError, match="did not print a token") as caught:
        read_token(text, 1000.0)
    assert "s3cret" not in str(caught.value)
    assert "expires_in" in caught.value.hint


def test_a_command_gives_tokens_to_all_clients_of_the_process():
    text = config("""{provider: command, command: [echo, '{"access_token": "t", "expires_in": 60}']}""")
    properties, tokens = access(parse_config(text, {}).kafka)
    assert properties["sasl.mechanism"] == "OAUTHBEARER"
    assert tokens is not None
    assert tokens("")[0] == "t"
    assert access(parse_config(text, {}).kafka)[1] is tokens


def test_without_a_provider_librdkafka_is_left_alone():
    text = MINIMAL.replace("OAUTHBEARER}", "OAUTHBEARER, sasl.oauthbearer.method: oidc}")
    properties, tokens = access(parse_config(text, {}).kafka)
    assert properties["sasl.oauthbearer.method"] == "oidc"
    assert tokens is None


@pytest.mark.parametrize(
    ("oauth", "module", "package", "extra"),
    [
        (
            "{provider: msk, region: eu-central-1}",
            "aws_msk_iam_sasl_signer.MSKAuthTokenProvider",
            "aws-msk-iam-sasl-signer-python",
            "cdcd[msk]",
        ),
        ("{provider: azure, scope: https://x/.default}", "azure.identity", "azure-identity", "cdcd[azure]"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    oauth: str, module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    # What Python itself does with a module that is None here: an ImportError.
    monkeypatch.setitem(sys.modules, module, None)
    _, tokens = access(parse_config(config(oauth), {}).kafka)
    assert tokens is not None
    with pytest.raises(ConfigError, match=package) as caught:
        tokens.prepare()
    assert extra in caught.value.hint


def test_a_command_that_fails_is_a_failure_of_kafkas_side():
    _, tokens = access(parse_config(config("{provider: command, command: ['false']}"), {}).kafka)
    assert tokens is not None
    with pytest.raises(SinkUnavailableError, match=r"kafka\.oauth\.command: false ended with exit code 1"):
        tokens.prepare()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (config("{provider: command}"), "provider: command needs command"),
        (config("{provider: command, command: []}"), "must be a list that begins with a program"),
        (config("{provider: command, command: print-token}"), "must be a list, such as [program, argument]"),
        (config("{provider: msk}"), "provider: msk needs region"),
        (config("{provider: azure}"), "provider: azure needs scope"),
        (config("{provider: aws}"), "must be none, command, msk or azure"),
        (
            config("{provider: msk, region: r}").replace("OAUTHBEARER", "SCRAM-SHA-512"),
            "needs sasl.mechanism: OAUTHBEARER",
        ),
        (
            config("{provider: msk, region: r}").replace("SASL_SSL", "SSL"),
            "needs security.protocol: SASL_SSL",
        ),
        (
            config("{provider: msk, region: r}").replace("OAUTHBEARER}", "OAUTHBEARER, sasl.oauthbearer.method: oidc}"),
            "give one of them",
        ),
    ],
)  # fmt: skip
def test_a_provider_that_cannot_work_is_refused_by_the_configuration(text: str, says: str):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, {})
    assert says in caught.value.message


def test_two_ways_to_give_a_password_are_refused():
    text = MINIMAL.replace('"host=db"', '"host=db", password: x, password_command: [print-password]')
    with pytest.raises(ConfigError, match="password_command and password are both given"):
        parse_config(text, {})


def test_the_command_is_with_the_dsn():
    text = MINIMAL.replace('"host=db"', '"host=db", password_command: [print-password, -v]')
    assert parse_config(text, {}).postgres.access() == ("host=db", ("print-password", "-v"))
