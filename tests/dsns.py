"""Connection strings as people write them, right and wrong, each with a random password that must not be shown."""

import string
from collections.abc import Callable
from random import Random
from typing import Final
from urllib.parse import quote

LENGTHS: Final = range(12, 40)
"""Characters of a password."""

PIECE: Final = 4
"""Number of consecutive characters of a password that count as a leak."""

_LETTERS: Final = (
    string.ascii_letters + string.digits,
    string.ascii_letters + string.digits + string.punctuation,
    string.punctuation,
    string.printable,
    string.ascii_letters + "äöüßéñ中文пароль€😀 \u00a0\u202e\u200b",
    "'\"\\@:/?#&=% ",
)

_WORDS: Final = ("", "/", "'", '"', "password=", "://u:", "@", "\\", "%", "\n")

_PARAMETERS: Final = (
    ("sslmode", "verify-full"),
    ("sslrootcert", "/etc/ssl/root.pem"),
    ("sslkey", "/etc/ssl/it's.key"),
    ("passfile", "/home/cdcd/.pgpass"),
    ("service", "shop"),
    ("application_name", "my app"),
    ("connect_timeout", "10"),
    ("options", "-c search_path=public -c geqo=off"),
    ("target_session_attrs", "read-write"),
    ("gssencmode", "disable"),
    ("channel_binding", "require"),
)

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

_HOSTS: Final = ("db", "db.example.com", "10.0.0.1", "[::1]", "[2001:db8::5]", "a,b,c", "%2Fvar%2Frun", "")


def pieces(password: str) -> set[str]:
    """Every part of the password that must not be shown."""
    return {password[at : at + PIECE] for at in range(len(password) - PIECE + 1)}


def leaked(password: str, shown: str) -> set[str]:
    """The parts of the password that a text shows, as they are, encoded for a URI or escaped for quotes."""
    forms = {password, quote(password, safe=""), password.replace("\\", "\\\\").replace("'", "\\'")}
    return {piece for form in forms for piece in pieces(form) if piece in shown}


def draw(random: Random) -> tuple[str, str]:
    """A connection string and its password, which shares no four characters with the rest of the string."""
    while True:
        letters = random.choice(_LETTERS)
        password = "".join(random.choices(letters, k=random.choice(LENGTHS)))
        if random.random() < 0.2:
            at = random.randrange(len(password))
            password = password[:at] + random.choice(_WORDS) + password[at:]
        text = _uri(random, password) if random.random() < 0.6 else _key_values(random, password)
        # What remains of the string without the password must not hold a piece of it by chance.
        marker = "\x01"
        rest = text
        for form in _forms(password):
            rest = rest.replace(form, marker)
        rest += " ".join(
            (*dict(_PARAMETERS), *dict(_PARAMETERS).values(), *_SECRETS, "user host port dbname =*** :***@")
        )
        if not leaked(password, rest) and "\x00" not in password:
            return text, password


def _forms(password: str) -> list[str]:
    return sorted(
        {
            password,
            quote(password, safe=""),
            quote(password),
            _escaped(password),
            _bare(password),
            _all_encoded(password),
            quote(password, safe="'\"!$*()"),
        },
        key=len,
        reverse=True,
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _bare(text: str) -> str:
    """Without quotes: a backslash before each blank, quote and backslash."""
    return "".join(f"\\{each}" if each.isspace() or each in "'\\" else each for each in text)


def _encoded(text: str) -> str:
    return quote(text, safe="")


def _nearly_encoded(text: str) -> str:
    return quote(text, safe="'\"!$*()")


def _all_encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def _uri(random: Random, password: str) -> str:
    forms: list[Callable[[str], str]] = [_encoded, _encoded, quote, _nearly_encoded, _all_encoded, str]
    secret = random.choice(forms)(password)
    user = random.choice(["cdcd", "", "o'brien", "us?er", "a%40b", "Odd%20Name", "üser"])
    host = random.choice(_HOSTS)
    port = random.choice(["", ":5432", ":6543"]) if "," not in host else ""
    database = random.choice(["", "/", "/shop", "/Odd%20Name", "/o'clock"])
    parameters = [f"{name}={quote(value, safe='/')}" for name, value in _some(random)]
    where = random.random()
    if where < 0.6:
        login = f"{user}:{secret}@"
    else:
        login = f"{user}@" if user else ""
        name = random.choice(_SECRETS)
        if random.random() < 0.2:
            name = f"{name[0]}%{ord(name[1]):02x}{name[2:]}"
        parameters.insert(random.randint(0, len(parameters)), f"{name}={secret}")
    scheme = random.choice(["postgresql://", "postgres://"])
    query = f"?{'&'.join(parameters)}" if parameters else ""
    if query and not database:
        database = "/"
    return f"{scheme}{login}{host}{port}{database}{query}"


def _key_values(random: Random, password: str) -> str:
    forms: list[Callable[[str], str]] = [
        lambda text: f"'{_escaped(text)}'",
        lambda text: f"'{_escaped(text)}",
        lambda text: f"'{_bare(text)}'",
        lambda text: f"'{text}'",
        _bare,
        str,
    ]
    secret = random.choice(forms)(password)
    equals = random.choice(["=", "=", " = ", "= ", "\n=\t"])
    pairs = [
        ("host", random.choice(["db", "10.0.0.1", "/var/run", "a,b"])),
        ("dbname", "shop"),
        *_some(random),
    ]
    parts = [f"{name}={_quoted(value)}" for name, value in pairs]
    parts.insert(random.randint(1, len(parts)), f"{random.choice(_SECRETS)}{equals}{secret}")
    return random.choice([" ", " ", "\n", "  "]).join(parts)


def _quoted(value: str) -> str:
    return f"'{_escaped(value)}'" if " " in value or "'" in value else value


def _some(random: Random) -> list[tuple[str, str]]:
    return random.sample(_PARAMETERS, random.randrange(4))
