"""Where a daemon's HTTP is, and how it is asked: for `cdcd status`, `cdcd top` and `cdcd check`."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from cdcd.adapters.credentials.requests import opener
from cdcd.config.models import Config
from cdcd.config.sections.process import HttpConfig

ANSWER_S: Final = 3.0
"""Seconds that the daemon may take for a page."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}  # noqa: S104  where others listen


def url_of(config: Config) -> str:
    """Where a daemon of this configuration on this machine has its HTTP; "" if it has none, or at any port."""
    http = config.http
    if not http.enabled or not http.port:
        return ""
    return _url(http, http.port)


def page_url(http: HttpConfig, address: str) -> str:
    """URL of the page of the server that listens at `address`, for a browser on this machine."""
    return f"{_url(http, int(address.rpartition(':')[2]))}/"


def _url(http: HttpConfig, port: int) -> str:
    host = _EVERYWHERE.get(http.host, f"[{http.host}]" if ":" in http.host else http.host)
    return f"{'http' if http.certificate_file is None else 'https'}://{host}:{port}"


def status_of(config: Config, url: str = "", *, all_tables: bool = False) -> dict[str, Any] | None:
    """The daemon's status (`daemon_status.py`); None: no daemon answers, or what answers is no cdcd.

    Args:
        url: where the daemon's HTTP is; "": as the configuration says.
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
        found = json.loads(text)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("pipeline"), str) else None


def fetch(url: str, certificate: Path | None = None, *, is_own: bool = True, token: str = "") -> str:
    """The page at `url`, also if its status says that something is wrong.

    Args:
        certificate: `http.certificate_file`, which is trusted besides the machine's authorities.
        is_own: the daemon is on this machine, so that its certificate counts, and not the name in it.
        token: the content of `http.read_token`; empty: there is none.

    Raises OSError or HTTPException if there is no answer.
    """
    headers = {"Accept": "text/plain, application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  http or https
    context = _context(certificate, is_own) if url.startswith("https:") else None
    try:
        with opener(context, by_proxy=not is_own).open(request, timeout=ANSWER_S) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode(errors="replace")


def _context(certificate: Path | None, is_own: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if certificate is not None:
        context.load_verify_locations(certificate)
        # The server's certificate itself is trusted, whoever has issued it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if is_own:
            context.check_hostname = False
    return context
