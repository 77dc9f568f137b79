"""When tokens are renewed, and what a provider's failure means to clients of Kafka."""

import sys
import threading

import pytest

from cdcd.adapters.credentials.tokens import Token, Tokens, access, bounded, read_token
from cdcd.config.loading import parse_config
from cdcd.core.errors import CdcdError, ConfigError, SinkUnavailableError, TransientError

LIFETIME = 100.0


class Source:
    """A provider that the test moves through time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fetched = 0
        self.failure: CdcdError | None = None
        self.heard: list[CdcdError] = []
        self.tokens = Tokens(self.fetch, clock=lambda: self.now)
        self.tokens.on_failure = self.heard.append

    def fetch(self) -> Token:
        if self.failure is not None:
            raise self.failure
        self.fetched += 1
        return Token(f"token {self.fetched}", self.now + LIFETIME)


def test_clients_share_a_token_until_a_quarter_of_its_life_is_left():
    source = Source()
    source.tokens.prepare()
    assert source.tokens("") == ("token 1", 1100.0)
    source.now += 0.74 * LIFETIME
    source.tokens.prepare()
    assert source.tokens("") == ("token 1", 1100.0)
    source.now += 0.02 * LIFETIME
    assert source.tokens("") == ("token 2", 1176.0)
    assert source.fetched == 2


def test_librdkafkas_question_after_four_fifths_of_the_life_brings_a_new_token():
    source = Source()
    source.tokens("")
    # A client that is made later asks when four fifths of what it was given are over, which is later still.
    source.now += 0.8 * LIFETIME
    assert source.tokens("")[0] == "token 2"


def test_a_failing_provider_is_told_and_clients_go_on_with_the_token_at_hand():
    source = Source()
    source.tokens.prepare()
    source.failure = TransientError("the service is away", hint="wait")
    source.now += 0.8 * LIFETIME
    with pytest.raises(SinkUnavailableError, match="the service is away"):
        source.tokens("")
    source.tokens.prepare()
    assert [str(error) for error in source.heard] == ["the service is away Hint: wait"] * 2
    # WHEN the token at hand is about to expire
    source.now += 0.15 * LIFETIME
    with pytest.raises(SinkUnavailableError, match="the service is away"):
        source.tokens.prepare()
    # AND the provider works again
    source.failure = None
    source.tokens.prepare()
    assert source.tokens("")[0] == "token 2"


def test_a_failure_at_the_start_is_transient_unless_it_can_never_work():
    source = Source()
    source.failure = TransientError("no answer")
    with pytest.raises(SinkUnavailableError, match="no answer"):
        source.tokens.prepare()
    source.failure = ConfigError("no such program")
    with pytest.raises(ConfigError, match="no such program"):
        source.tokens.prepare()
    assert len(source.heard) == 2


def test_a_token_that_is_over_when_it_comes_is_refused():
    tokens = Tokens(lambda: Token("old", 999.0), clock=lambda: 1000.0)
    with pytest.raises(SinkUnavailableError, match="has expired already"):
        tokens.prepare()


def test_a_token_is_in_no_text():
    assert "s3cret" not in repr(Token("s3cret", 1.0))


def test_a_library_that_hangs_is_given_up():
    release = threading.Event()

    def hang() -> Token:
        release.wait(60)
        return Token("late", 1.0)

    with pytest.raises(TransientError, match=r"the library gave no token within 0\.1 s"):
        bounded(hang, "the library", 0.1)()
    release.set()


def test_what_a_library_raises_comes_through():
    def fail() -> Token:
        raise ConfigError("no library")

    with pytest.raises(ConfigError, match="no library"):
        bounded(fail, "the library", 10)()
    assert bounded(lambda: Token("t", 5.0), "the library", 10)() == Token("t", 5.0)


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
    # Python raises an ImportError for a module that is None in `sys.modules`.
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
