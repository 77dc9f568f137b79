"""HTTP requests that may carry a login: redirects are not followed, and errors show no address with a login.

urllib sends the headers of a request, including `Authorization`, to the target of a redirect.
"""

import http.client
import ssl
import urllib.error
import urllib.request
from typing import IO, Final

from cdcd.adapters.credentials.command import without_secrets

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

REDIRECTED: Final = (
    "The server redirects to another address. cdcd does not follow, because it would send the login there. Give the "
    "final address."
)
"""Hint for an answer with a status of `REDIRECTS`."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def opener(context: ssl.SSLContext | None = None, *, by_proxy: bool = True) -> urllib.request.OpenerDirector:
    """Return an opener whose requests raise HTTPError if the server redirects.

    Args:
        context: TLS context for https; None: the machine's certificate authorities.
        by_proxy: True to use the proxies of the environment (`https_proxy` and others). Use False for a server on
            this machine.
    """
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    if not by_proxy:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def reason(error: OSError | http.client.HTTPException) -> str:
    """Return the reason for a missing answer, without possible secrets."""
    if isinstance(error, http.client.InvalidURL):
        # The message of the exception quotes the address, and a proxy's address may contain a password.
        return "the address of the server, or of a proxy in the environment, is not valid"
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    return without_secrets(str(why) or type(why).__name__)
