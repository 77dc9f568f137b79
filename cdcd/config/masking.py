"""What is secret, and how text is shown without it.

Rule: a secret is shown nowhere: not in an error, a log line, a repr or the output of `cdcd config`. When in
doubt, too much is masked, never too little: a DSN that libpq would refuse is masked as widely as its parts
could be read.
"""

import re
from collections.abc import Mapping
from typing import Final

MASK: Final = "***"

# libpq's keywords whose value is a secret; its URI form takes the same ones as parameters. Each scram key is enough to
# log in, or to pass for the server (RFC 5802, 9). fe-connect.c marks some of them with "*" and others with "D" only.
SECRET_PARAMETERS: Final = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
_KEYWORDS: Final = rf"(?:{'|'.join(sorted(SECRET_PARAMETERS))})"

# user:password@ of any URI. Up to the last @, because a password with an unescaped / or @ is what people
# paste. The user may be absent, and a password that holds a blank ends the match only at a quote or at the
# end of the line.
_URI_PASSWORD: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:@/?#'\"]*):[^\n'\"]*@", re.IGNORECASE)
_URI_PARAMETER: Final = re.compile(rf"([?&]{_KEYWORDS}=)[^&\s'\"]*", re.IGNORECASE)
# key=value: quoted with backslash escapes (an unfinished quote runs to the end), or up to a blank.
_KEY_VALUE: Final = re.compile(
    rf"(?<![?&\w])({_KEYWORDS}\s*=\s*)(?:'(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|[^\s\\'])+)",
    re.IGNORECASE | re.DOTALL,
)

# Parts of librdkafka's property names whose values are secrets (its CONFIGURATION.md marks them "sensitive"),
# and what log fields that carry such values are called.
_SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|token(?!\.endpoint)|jaas|sasl\.oauthbearer\.config|private|key\.pem|ssl_key|scram_(?:client|server)_key|assertion",
    re.IGNORECASE,
)
# Names that contain such a part and hold a path, a URL or an algorithm.
_PUBLIC_NAME: Final = re.compile(r"(?:_file|\.file|\.location|\.url|\.algorithm)$", re.IGNORECASE)


def mask_text(text: str) -> str:
    """The text with every password in it replaced: libpq URIs, key=value strings, other URIs with
    credentials.
    """
    text = _URI_PASSWORD.sub(rf"\1:{MASK}@", text)
    text = _URI_PARAMETER.sub(rf"\1{MASK}", text)
    return _KEY_VALUE.sub(rf"\1{MASK}", text)


def is_secret_name(name: str) -> bool:
    """Whether the value under such a property or field name is a secret."""
    return _SECRET_NAME.search(name) is not None and _PUBLIC_NAME.search(name) is None


def mask_value(value: object) -> object:
    """The value with passwords in its texts masked, and what stands under a secret name masked whole, at any
    depth.
    """
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {
            key: MASK
            if isinstance(key, str) and is_secret_name(key) and item is not None
            else mask_value(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask_value(item) for item in value]
    return value
