"""Address of a daemon's HTTP, and requests to it: for `cdcd status`, `cdcd top` and `cdcd check`."""

import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from cdcd.adapters.credentials.requests import opener
from cdcd.config.models import Config
from cdcd.config.sections.process import HttpConfig
from cdcd.core import bounded_json

ANSWER_S: Final = 3.0
"""Seconds within which the daemon must answer."""

ANSWER_BYTES_MAX: Final = 64 << 20
"""Bytes of an answer that are read. Another process may listen on the port; a status of 100,000 tables has 30 MB."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}  # noqa: S104  where others listen


def url_of(config: Config) -> str:
    """Return the URL of this configuration's daemon on this machine; "" without HTTP or with an unknown port."""
    http = config.http
    if not http.enabled or not http.port:
        return ""
    return _url(http, http.port)


def page_url(http: HttpConfig, address: str) -> str:
    """Return the page's URL for a browser on this machine, by the `address` on which the server listens."""
    return f"{_url(http, int(address.rpartition(':')[2]))}/"


def _url(http: HttpConfig, port: int) -> str:
    host = _EVERYWHERE.get(http.host, f"[{http.host}]" if ":" in http.host else http.host)
    return f"{http.scheme}://{host}:{port}"


def status_of(config: Config, url: str = "", *, all_tables: bool = False) -> dict[str, Any] | None:
    """Return the daemon's status (`daemon_pages.py`); None if no daemon of cdcd answers.

    Args:
        url: URL of the daemon's HTTP; "": the configured one.
    """
    own = url_of(config)
    url = url or own
    if not url:
        return None
    read = config.http.read_token
    try:
        text = fetch(
            f"{url}/v1/status{'?tables=all' if all_tables else ''}",
            config.http.certificate_file,
            is_own=url == own,
            token="" if read is None else read.get_secret_value(),
        )
        found = bounded_json.parse(text.encode(), ANSWER_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("pipeline"), str) else None


def fetch(url: str, certificate: Path | None = None, *, is_own: bool = True, token: str = "") -> str:
    """Return the page at `url`, also if its HTTP status is an error.

    Args:
        certificate: `http.certificate_file`, which is trusted besides the machine's certificate authorities.
        is_own: True if the daemon is on this machine, so that its certificate is checked, but not the name in it.
        token: content of `http.read_token`; empty: no token.

    Raises OSError or HTTPException if no answer arrives.
    """
    headers = {"Accept": "text/plain, application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  http or https
    context = _context(certificate, is_own) if url.startswith("https:") else None
    try:
        with opener(context, by_proxy=not is_own).open(request, timeout=ANSWER_S) as answer:
            return str(answer.read(ANSWER_BYTES_MAX).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return error.read(ANSWER_BYTES_MAX).decode(errors="replace")


def _context(certificate: Path | None, is_own: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if certificate is not None:
        context.load_verify_locations(certificate)
        # The server's certificate itself is trusted, whatever its issuer is.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if is_own:
            context.check_hostname = False
    return context
