"""Sources of tokens for Kafka: a command, or a cloud's library, which an extra of cdcd installs."""

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from cdcd.adapters.credentials.command import SAID_LENGTH_MAX, Command, output_of, without_secrets
from cdcd.adapters.credentials.tokens import Provider, Token, Tokens, bounded
from cdcd.config.sections.kafka import OAuthConfig
from cdcd.core.errors import ConfigError, TransientError

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
        answer = json.loads(text)
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
            try:
                module = importlib.import_module(self.module)
            except ImportError as error:
                raise ConfigError(
                    f"{what} needs the package {self.package}, which cannot be imported: {error}",
                    hint=f"Install cdcd with the extra: pip install 'cdcd[{self.extra}]'.",
                ) from None
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
