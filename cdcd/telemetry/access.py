"""Access control of cdcd's HTTP servers: by the requested host name, by a token, and against other sites.

A page of a foreign site can make the browser send requests to a server on this machine, under a name of that site
(DNS rebinding). So the name in `Host` must be known. An address is always allowed, because rebinding needs a name.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from cdcd.config.sections.process import ListenConfig
from cdcd.telemetry.http import HttpRequest, Reply, text

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")

MISDIRECTED: Final = 421
"""Status for a host name that does not belong to the server (RFC 9110, 15.5.20)."""

READ: Final = (
    "Reading needs the token of http.read_token_file: `Authorization: Bearer …`, or Basic with the token as the "
    "password."
)


def refuse_host(host: str, listen: ListenConfig) -> Reply | None:
    """Return the refusal for an unknown host name; None: it is an address, of this machine, or in `http.hosts`.

    A request without `Host` uses HTTP/1.0, which no browser uses.
    """
    if not host:
        return None
    match = _HOST.fullmatch(host.strip())
    name = "" if match is None else match[1].lower().removesuffix(".")
    if name and (_is_address(name) or _is_known(name, listen)):
        return None
    return text(
        MISDIRECTED,
        "The server does not answer under this host name. Use an IP address, or add the name to http.hosts.",
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_known(name: str, listen: ListenConfig) -> bool:
    if name == "localhost" or name.endswith(".localhost") or name == listen.host.lower():
        return True
    return any(fnmatchcase(name, pattern.lower()) for pattern in listen.hosts)


def bearer_token(headers: Mapping[str, str]) -> bytes:
    """Return the bearer token of a request; empty if it has none."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    return given.strip().encode(errors="surrogateescape") if scheme.lower() == "bearer" else b""


def given_token(headers: Mapping[str, str]) -> bytes:
    """Return the token of a request, as bearer token or as password of Basic; empty if it has none."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return bearer_token(headers)
    try:
        return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def reading(current: Callable[[], ListenConfig]) -> Callable[[HttpRequest], Reply | None]:
    """Return a function that refuses requests without the right to read; it returns None to allow a request.

    The token for actions also allows reading.

    Args:
        current: returns the settings of the server.
    """

    def refuse(asked: HttpRequest) -> Reply | None:
        http = current()
        if http.read_token is None:
            return None
        given = given_token(asked.headers)
        # Each token is compared, in constant time, so that the time of the answer says nothing about the tokens.
        tokens = [http.read_token.get_secret_value().encode(), *[token for _, token in http.action_tokens()]]
        matches = [hmac.compare_digest(given, token) for token in tokens]
        if any(matches):
            return None
        return text(401, READ, **{"WWW-Authenticate": 'Basic realm="cdcd", Bearer realm="cdcd"'})

    return refuse


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Return True if the browser says that the request comes from a page of another site."""
    if headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
        return True
    origin = headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower()
