"""Tokens for Kafka's SASL/OAUTHBEARER, and the rule by which they are renewed.

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
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from cdcd.config.models import Config
from cdcd.core.errors import CdcdError, SinkUnavailableError, TransientError
from cdcd.core.snapshot.signals import token_digest

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

    A call that takes too long is abandoned in its thread, and its token is not used.
    """

    def fetch() -> Token:
        answer: Future[Token] = Future()

        def run() -> None:
            try:
                answer.set_result(provider())
            except BaseException as error:  # noqa: BLE001  raised in the thread that waits
                answer.set_exception(error)

        threading.Thread(target=run, name="token", daemon=True).start()
        try:
            return answer.result(timeout_s)
        except TimeoutError:
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
