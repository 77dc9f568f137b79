"""When tokens are renewed, and what a provider's failure means to clients of Kafka."""

import threading

import pytest

from cdcd.adapters.credentials.tokens import Token, Tokens, bounded
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
