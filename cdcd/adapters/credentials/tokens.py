"""Tokens for Kafka's SASL/OAUTHBEARER, the rule by which they are renewed, and their sources: a command, or a cloud's
library, which an extra of cdcd installs.

The rule: all clients of a process share one token. A new client gets the present token, and fetches a new one only
if less than a quarter of its lifetime is left. librdkafka asks for a new token after four fifths of the lifetime,
in its own thread (rdkafka_sasl_oauthbearer.c, `wts_refresh_after`), so its request always fetches a new token.

A failure of a provider is transient. Clients keep the token that they have, and librdkafka asks again after ten
seconds. A new client gets the error if the present token is about to expire.

Requests for snapshots need one of two tokens: the configured one, or the token of the process.

The token of the process is written where only the pipeline's role can read it: into the text of queries on the
connection that holds the lock (`pg_stat_activity.query`, which PostgreSQL shows to the session's own role, to
superusers and to members of pg_read_all_stats). So `cdcd snapshot` needs no secret except the connection to the
database.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from cdcd.adapters.credentials.command import SAID_LENGTH_MAX, Command, output_of, without_secrets
from cdcd.adapters.credentials.requests import AbandonedError, Limit
from cdcd.config.models import Config
from cdcd.config.sections.kafka import OAuthConfig
from cdcd.core import bounded_json
from cdcd.core.errors import CdcdError, SinkUnavailableError, TransientError
from cdcd.core.snapshot.signals import token_digest
from cdcd.extras import library

RENEW_SHARE: Final = 0.75
"""Share of a token's lifetime after which a new token is fetched."""

USABLE_SHARE: Final = 0.9
"""Share of a token's lifetime after which no new client uses the token."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its expiry, in seconds since 1970."""

    value: str = field(repr=False)
    expires_at: float


Provider = Callable[[], Token]
"""Function that fetches a token. The call blocks. Raises ConfigError if it can never work, and TransientError if it
does not work now."""


class Tokens:
    """The tokens of one provider, for use from several threads. The object is callable as librdkafka's `oauth_cb`.

    Attributes:
        on_failure: called with each failure, in the thread in which it happens.
    """

    def __init__(self, provider: Provider, clock: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._fetched_at = 0.0
        self.on_failure: Callable[[CdcdError], None] = lambda _error: None

    def __call__(self, _config: str) -> tuple[str, float]:
        """Return the token and its expiry, for librdkafka.

        Raises CdcdError if there is no new token. librdkafka keeps the former token, and asks again.
        """
        with self._lock:
            token = self._renewed()
        return token.value, token.expires_at

    def prepare(self) -> None:
        """Fetch a token for a client that is about to be created, which would otherwise wait ten seconds for it.

        Raises ConfigError if the provider can never work, and SinkUnavailableError if it does not work now.
        """
        with self._lock:
            try:
                self._renewed()
            except TransientError:
                if self._used() > USABLE_SHARE:
                    raise

    def _renewed(self) -> Token:
        """Return the present token, or a new one if `RENEW_SHARE` of its lifetime has passed."""
        if self._token is not None and self._used() < RENEW_SHARE:
            return self._token
        asked_at = self._clock()
        try:
            token = self._provider()
            if token.expires_at <= self._clock():
                raise TransientError(
                    "kafka.oauth: the token has expired already when it comes.",
                    hint="Set this machine's clock, and let the provider issue tokens that are valid for minutes.",
                )
        except CdcdError as error:
            failure = (
                SinkUnavailableError(error.message, hint=error.hint)
                if isinstance(error, TransientError)
                else error
            )
            self.on_failure(failure)
            raise failure from None
        self._token, self._fetched_at = token, asked_at
        return token

    def _used(self) -> float:
        """Return the share of the present token's lifetime that has passed; 1 without a token."""
        token = self._token
        if token is None:
            return 1.0
        return (self._clock() - self._fetched_at) / (token.expires_at - self._fetched_at)


def bounded(provider: Provider, what: str, timeout_s: float) -> Provider:
    """Return the provider with a timeout, for libraries without timeouts.

    The token of a call that takes too long is not used.
    """
    limit = Limit(timeout_s)

    def fetch() -> Token:
        try:
            return limit.run(provider)
        except AbandonedError:
            raise TransientError(
                f"{what} gave no token within {timeout_s:g} s",
                hint="Check that this machine can reach the service that issues tokens (metadata service, STS, Entra "
                "ID).",
            ) from None

    return fetch


PROCESS_TOKEN: Final = secrets.token_urlsafe(24)
"""Random token of this process, which is valid until the process ends. After a takeover, the new instance refuses a
request that was sent before, and it must be sent again."""


def request_tokens(config: Config) -> tuple[str, ...] | None:
    """Return the digests of the tokens that this process accepts; None if requests need no token."""
    if config.snapshot.signals_from == "anybody":
        return None
    given = config.snapshot.signal_token
    tokens = [PROCESS_TOKEN] if given is None else [PROCESS_TOKEN, given.get_secret_value()]
    return tuple([token_digest(token) for token in tokens])


_FORM: Final = (
    'Let the command print one JSON object: {"access_token": "…", "expires_in": 3600} as an OAuth server answers '
    '(RFC 6749), or {"accessToken": "…", "expires_on": 1767225600} as `az account get-access-token` does.'
)


class KafkaAccess(Protocol):
    """The part of Kafka's configuration that concerns a client's login."""

    @property
    def oauth(self) -> OAuthConfig: ...

    def librdkafka(self) -> dict[str, str]:
        """librdkafka properties, including secrets."""
        ...


def access(kafka: KafkaAccess) -> tuple[dict[str, str], Tokens | None]:
    """Return librdkafka's properties, and the tokens if there is a provider.

    The properties contain secrets and must never be printed.
    """
    return kafka.librdkafka(), None if kafka.oauth.provider == "none" else _tokens(kafka.oauth)


@lru_cache
def _tokens(oauth: OAuthConfig) -> Tokens:
    """Return the same object for all clients of the process, so that they share a token."""
    return Tokens(_PROVIDERS[oauth.provider](oauth))


def _by_command(oauth: OAuthConfig) -> Provider:
    command = Command("kafka.oauth.command", oauth.command or (), oauth.timeout_s)

    def fetch() -> Token:
        asked_at = time.time()
        return read_token(output_of(command), asked_at)

    return fetch


def read_token(text: str, asked_at: float) -> Token:
    """Return the token that a command printed.

    Args:
        asked_at: start of the command in seconds since 1970. A lifetime counts from this time.

    Raises TransientError, whose message shows nothing of the text.
    """
    try:
        answer = bounded_json.parse(text.encode())
        value = answer["access_token"] if "access_token" in answer else answer["accessToken"]
        expires_at = (
            float(answer["expires_on"]) if "expires_on" in answer else asked_at + float(answer["expires_in"])
        )
        if not isinstance(value, str) or not value:
            raise ValueError("no token")
    except (ValueError, TypeError, KeyError):
        raise TransientError(
            "kafka.oauth.command: the command did not print a token with its lifetime.", hint=_FORM
        ) from None
    return Token(value, expires_at)


@dataclass(frozen=True, slots=True)
class _Library:
    """A library that creates tokens."""

    extra: str
    package: str
    module: str
    fetch: Callable[[Any, OAuthConfig], Token]

    def __call__(self, oauth: OAuthConfig) -> Provider:
        what = f"kafka.oauth.provider {self.extra}"

        def fetch() -> Token:
            module = library(self.module, self.extra, f"{what} needs the package {self.package}")
            try:
                return self.fetch(module, oauth)
            except Exception as error:  # noqa: BLE001  whatever a foreign library raises
                said = without_secrets(" ".join(str(error).split()))[:SAID_LENGTH_MAX]
                raise TransientError(
                    f"{what}: {type(error).__name__}: {said}",
                    hint="Check that this machine, pod or user has an identity in the cloud, and may use the cluster. "
                    "docs/clouds.md has the steps.",
                ) from None

        return bounded(fetch, what, oauth.timeout_s)


def _from_msk(module: Any, oauth: OAuthConfig) -> Token:
    value, expires_ms = module.generate_auth_token(oauth.region)
    return Token(value, expires_ms / 1000)


def _from_azure(module: Any, oauth: OAuthConfig) -> Token:
    with module.DefaultAzureCredential() as credential:
        token = credential.get_token(oauth.scope)
    return Token(token.token, float(token.expires_on))


_PROVIDERS: Final[dict[str, Callable[[OAuthConfig], Provider]]] = {
    "command": _by_command,
    "msk": _Library(
        "msk", "aws-msk-iam-sasl-signer-python", "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", _from_msk
    ),
    "azure": _Library("azure", "azure-identity", "azure.identity", _from_azure),
}
"""Providers by their names in `kafka.oauth.provider`."""
