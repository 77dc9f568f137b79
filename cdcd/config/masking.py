"""What is secret, and how text is shown without it.

Rule: a secret is shown nowhere: not in an error, a log line, a repr or the output of `cdcd config`. When in
doubt, too much is masked, never too little: a DSN that libpq would refuse is masked as widely as its parts
could be read.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote

MASK: Final = "***"

# libpq's keywords whose value is a secret; its URI form takes the same ones as parameters. Each scram key is enough to
# log in, or to pass for the server (RFC 5802, 9). fe-connect.c marks some of them with "*" and others with "D" only.
SECRET_PARAMETERS: Final = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
_KEYWORDS: Final = rf"(?:{'|'.join(sorted(SECRET_PARAMETERS))})"

# user:password@ of any URI. Up to the last @ of the line, because a password with an unescaped / or @ is what people
# paste, and a password may hold quotes and blanks. The user may be absent. Blanks are those of ASCII, as libpq has it.
_URI_LOGIN: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s:@/?#]*:", re.IGNORECASE | re.ASCII)
_URI_PARAMETER: Final = re.compile(r"([?&])([^=&?\s]{1,64})=([^&\s]*)", re.ASCII)
# key=value: quoted with backslash escapes (an unfinished quote runs to the end), or up to a blank.
_KEY_VALUE: Final = re.compile(
    rf"(?<![?&\w])({_KEYWORDS}\s*=\s*)(?:'(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|[^\s\\'])(?:\\.|[^\s\\])*)",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)

_URI_SCHEMES: Final = ("postgresql://", "postgres://")
_DSN: Final = re.compile(r"\s*(?:postgres(?:ql)?://|[a-z_]+\s*=)", re.ASCII)
"""How a text begins that may be a DSN as a whole."""
_DSN_USER: Final = re.compile(r"(\s*postgres(?:ql)?://[^:@/]*):.*@", re.DOTALL | re.ASCII)
_PARAMETER: Final = re.compile(r"(?:(?<=[?&])|(?<![?&\w%]))([\w%]+)\s*=\s*", re.ASCII)
_VALUE: Final = re.compile(r"[^&\s]*", re.ASCII)
_OTHERS: Final = re.compile(r"(?:[&\s]+[\w%]+\s*=\s*[^&\s'\\]*)*\s*", re.ASCII)
"""Parameters behind another one, whose values have no quotes."""

_PIECE: Final = 4
"""Number of consecutive characters of a password that no output may show."""

_OPAQUE: Final[Mapping[str, Callable[[str], bool]]] = {
    # A setting of an extension may be a password.
    "options": lambda _value: True,
    # Each of these is what libpq makes of a password that its author did not encode.
    "user": lambda value: ":" in value,
    "host": lambda value: re.fullmatch(r"@?[\w.:,/%-]*", value) is None,
    "port": lambda value: not value.replace(",", "").isdecimal(),
    "dbname": lambda value: any(part in value for part in ("@", "=", "://")),
}
"""libpq's parameters, and whether a value of theirs may hold a secret."""

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
    # Parameters first: one of them may be a password with an @.
    masked = _URI_PARAMETER.sub(_masked_parameter, text)
    masked = "\n".join(map(_without_login, masked.split("\n")))
    masked = _KEY_VALUE.sub(rf"\1{MASK}", masked)
    if _DSN.match(text) is None:
        return masked
    values = _parsed(text)
    if values is None:
        return _refused(text)
    secrets = [value for value, is_secret in values.values() if is_secret]
    return masked_dsn(text) if any(_shows(masked, secret) for secret in secrets) else masked


def _without_login(line: str) -> str:
    """The line without the password of its first URI. A pattern for all of it would take a time that is the square of
    the line's length.
    """
    login, at = _URI_LOGIN.search(line), line.rfind("@")
    return line if login is None or at < login.end() else f"{line[: login.end()]}{MASK}{line[at:]}"


def _masked_parameter(match: re.Match[str]) -> str:
    # libpq decodes the names of parameters as well as their values.
    return f"{match[1]}{match[2]}={MASK}" if is_secret_name(unquote(match[2])) else match[0]


def _refused(text: str) -> str:
    """A DSN that libpq refuses, without what may be its password: up to the first secret parameter, and from there on
    only parameters that libpq knows.
    """
    first = next((one for one in _PARAMETER.finditer(text) if _name(one) in SECRET_PARAMETERS), None)
    before, after = (text, "") if first is None else (f"{text[: first.end()]}{MASK}", text[first.end() :])
    before = _without_login(_DSN_USER.sub(rf"\1:{MASK}@", before))
    others = _VALUE.sub("", after, count=1)
    if (
        _OTHERS.fullmatch(others) is None
        or not {_name(one) for one in _PARAMETER.finditer(others)} <= _keywords()
    ):
        return before
    return before + _KEY_VALUE.sub(rf"\1{MASK}", _URI_PARAMETER.sub(_masked_parameter, others))


def _name(parameter: re.Match[str]) -> str:
    return unquote(parameter[1]).lower()


def _keywords() -> set[str]:
    from psycopg import pq  # noqa: PLC0415  what only reads a configuration does not need libpq

    return {each.keyword.decode() for each in pq.Conninfo.get_defaults()}


def _shows(text: str, secret: str) -> bool:
    """True if the text contains a part of the secret, plain or percent-encoded."""
    pieces = {secret[at : at + _PIECE] for at in range(max(1, len(secret) - _PIECE + 1))}
    plain = unquote(text)
    return any(piece in text or piece in plain for piece in pieces)


def masked_dsn(text: str) -> str:
    """The DSN in its own form, URI or key=value, without its secrets; `***` if libpq refuses it.

    libpq's own parser decides what is a secret, because a copy of its grammar would differ from it somewhere.
    """
    values = _parsed(text)
    if values is None:
        return MASK
    shown = {
        name: MASK if secret or (name in _OPAQUE and _OPAQUE[name](value)) else value
        for name, (value, secret) in sorted(values.items(), key=lambda each: text.find(each[0]))
    }
    scheme = next((each for each in _URI_SCHEMES if text.startswith(each)), None)
    if scheme is None:
        return _key_values(shown)
    return _uri(scheme, shown, has_login="user" in shown or text.startswith(f"{scheme}:"))


def has_secret(dsn: str) -> bool:
    """Whether the DSN has a password in it, or may have one, because libpq refuses it."""
    values = _parsed(dsn)
    return values is None or any(is_secret for _, is_secret in values.values())


def _has_stray_at(uri: str) -> bool:
    """Whether an unencoded @ stands where libpq would read a part of the password as host, port or database."""
    rest = uri.split("://", 1)[1]
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    return rest.count("@") > 1 or ("@" in rest and "@" not in authority)


def _parsed(text: str) -> dict[str, tuple[str, bool]] | None:
    """The DSN's parameters by name, and whether each is a secret.

    None: libpq refuses the DSN, or takes a part of the password for something else.
    """
    from psycopg import Error, pq  # noqa: PLC0415  what only reads a configuration does not need libpq

    if text.startswith(_URI_SCHEMES) and _has_stray_at(text):
        return None
    try:
        return {
            name: (each.val.decode(), name in SECRET_PARAMETERS or each.dispchar == b"*")
            for each in pq.Conninfo.parse(text.encode())
            if each.val and (name := each.keyword.decode())
        }
    except (Error, UnicodeError):
        return None


def _key_values(values: dict[str, str]) -> str:
    return " ".join(f"{name}={_quoted(mask_text(value))}" for name, value in values.items())


def _quoted(value: str) -> str:
    if not any(letter.isspace() or letter in "'\\" for letter in value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _uri(scheme: str, values: dict[str, str], *, has_login: bool) -> str:
    user, password = values.pop("user", ""), values.pop("password", "") if has_login else ""
    login = f"{_encoded(user)}{':' if password else ''}{password}@" if user or password else ""
    hosts = [
        f"[{host}]" if ":" in host else _encoded(host, "/") for host in values.pop("host", "").split(",")
    ]
    ports = values.get("port", "").split(",")
    if len(ports) == len(hosts):
        values.pop("port", "")
        hosts = [f"{host}{':' if port else ''}{port}" for host, port in zip(hosts, ports, strict=True)]
    database = values.pop("dbname", "")
    query = "&".join(f"{name}={_encoded(mask_text(value))}" for name, value in values.items())
    path = f"/{_encoded(database)}" if database or query else ""
    return f"{scheme}{login}{','.join(hosts)}{path}{'?' if query else ''}{query}"


def _encoded(value: str, also: str = "") -> str:
    """The value as a part of a URI: what would end the part is encoded."""
    return "".join(
        f"%{ord(letter):02X}"
        if letter in f"%:@?#&=[]{also}" or (letter.isspace() and letter.isascii())
        else letter
        for letter in value
    )


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
