"""Bearer tokens for the schema registry, by OAuth's client credentials (RFC 6749, section 4.4).

The rule: a token is asked for again after `RENEW` of its lifetime, or when the registry refuses the token. Neither the
secret nor a token is in an error.
"""

import base64
import http.client
import re
import time
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import quote_plus, urlencode

from cdcd.adapters.credentials.requests import REDIRECTED, REDIRECTS, reason
from cdcd.config.sections.registry import RegistryOAuthConfig
from cdcd.core import bounded_json
from cdcd.core.errors import RegistryUnavailableError, SinkError

ANSWER_BYTES_MAX: Final = 1 << 16

RENEW: Final = 0.8
"""Share of a token's lifetime after which a new token is asked for."""

LIFETIME_S: Final = 60.0
"""Lifetime in seconds of a token if the server does not name a lifetime."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
"""What a header can have: anything else could begin another header."""

_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class ClientCredentials:
    """The present token of a pipeline; `opener` sends the requests."""

    def __init__(self, opener: urllib.request.OpenerDirector, timeout_s: float) -> None:
        self._opener = opener
        self._timeout_s = timeout_s
        self._token = ""
        self._renew_at = 0.0

    def forget(self) -> None:
        """Ask for a new token with the next request, because the registry has refused the present one."""
        self._token = ""

    def token(self, settings: RegistryOAuthConfig) -> str:
        """Return a token, an earlier one if it is still valid.

        Raises:
            RegistryUnavailableError: the server of tokens does not answer.
            SinkError: it refuses.
        """
        now = time.monotonic()
        if not self._token or now >= self._renew_at:
            self._token, lifetime_s = self._fetch(settings)
            self._renew_at = now + RENEW * lifetime_s
        return self._token

    def _fetch(self, settings: RegistryOAuthConfig) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"}
        if settings.scope is not None:
            form["scope"] = settings.scope
        assert settings.token_url is not None, "it is on"
        assert settings.client_id is not None, "it belongs to token_url"
        assert settings.client_secret is not None, "it belongs to token_url"
        secret = settings.client_secret.get_secret_value()
        login = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}"
        request = urllib.request.Request(  # noqa: S310  http or https, as the configuration says
            settings.token_url,
            data=urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        where = f"The server of tokens at {settings.token_url} (registry.oauth)"
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return _read(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _LATER:
                raise _away(f"{where} answers HTTP {error.code}") from None
            raise SinkError(
                f"{where} refuses: HTTP {error.code}",
                hint=REDIRECTED
                if error.code in REDIRECTS
                else "Correct registry.oauth: client_id, client_secret_file, scope.",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _away(f"{where} does not answer: {reason(error)}") from None
        except ValueError:
            raise SinkError(
                f"{where} did not answer with a token.",
                hint="Check that registry.oauth.token_url is the token endpoint of an OAuth server.",
            ) from None


def _away(message: str) -> RegistryUnavailableError:
    return RegistryUnavailableError(
        message, hint="Start the server of tokens, or correct registry.oauth.token_url. cdcd tries again."
    )


def _read(data: bytes) -> tuple[str, float]:
    """Return the token and its lifetime in seconds. ValueError: the answer has no token."""
    answer = bounded_json.parse(data, ANSWER_BYTES_MAX)
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise ValueError("no token")
    lifetime = answer.get("expires_in", LIFETIME_S)
    if isinstance(lifetime, bool) or not isinstance(lifetime, int | float):
        raise ValueError("no lifetime")  # noqa: TRY004  the server's answer is wrong, not our call
    return token, float(lifetime)
