"""Weaknesses of a configuration's secrets: files that other users can read or replace, and weak keys.

`cdcd check` shows each weakness as a warning. With `security.strict: true`, weaknesses are errors, and `cdcd run`
does not start. No text of this module contains a secret.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from cdcd.config.keys import KeyPath, dotted, secrets_of, values_of
from cdcd.config.mirror import MirrorConfig
from cdcd.config.models import Config
from cdcd.config.sections.columns import encryption_key_bytes
from cdcd.config.types import Section
from cdcd.core.errors import ConfigError

DISTINCT_CHARACTERS_MIN: Final = 6
"""Minimum of distinct characters in a token. Of a million random tokens of 16 hexadecimal digits, about 36 have
fewer."""

DISTINCT_BYTES_MIN: Final = 16
"""Minimum of distinct bytes in an encryption key. A random key of 32 bytes has about 30."""

TOKEN_LENGTH_MIN: Final = 16
"""Minimum length of a token in characters. Shorter tokens can be found by trying all of them."""

REST_LENGTH_MIN: Final = 12
"""Minimum of characters in a token besides words that attackers try first."""

_WORDS: Final = (
    "password",
    "passw0rd",
    "changeme",
    "change-me",
    "secret",
    "default",
    "example",
    "token",
    "admin",
    "letmein",
    "qwerty",
    "cdcd",
)

_PUBLIC_FILES: Final = frozenset({"ca_file", "certificate_file"})

_KEY_LOCATIONS: Final = ("ssl.key.location", "ssl.keystore.location")
"""librdkafka properties that name a file with a private key."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """A secret that is too easy to read or guess.

    Attributes:
        key: configuration key of the secret or of its file.
        of_file: True if the file is open to others; False if the secret can be guessed.
        found: description of the problem, without the secret.
        fix: instruction for the operator.
    """

    key: str
    found: str
    fix: str
    of_file: bool


def weaknesses(config: Config) -> list[Weakness]:
    """Return all weaknesses of the configuration's secrets and of the files with secrets."""
    found = [weakness for key, file in _files(config) if (weakness := _of_file(key, file)) is not None]
    return [*found, *_weak_keys(config)]


def mirror_weaknesses(config: MirrorConfig) -> list[Weakness]:
    """Return all weaknesses of the secrets and of the files with secrets of a mirror."""
    files = [*_secret_files(config), *_property_files(config.kafka.properties_files)]
    found = [weakness for key, file in files if (weakness := _of_file(key, file)) is not None]
    token = config.http.read_token
    if token is not None and (why := weak_token(token.get_secret_value())):
        found.append(_weak("http.read_token", why, "openssl rand -hex 32"))
    return found


def refuse_weaknesses(config: Config) -> None:
    """Raise ConfigError that names every weakness, if `security.strict` is set."""
    if not config.security.strict or not (found := weaknesses(config)):
        return
    lines = [f"{each.key}: {each.found}" for each in found]
    raise ConfigError(
        "\n  ".join(["security.strict refuses to start:", *lines]),
        hint=" ".join(dict.fromkeys(each.fix for each in found)),
    )


def _files(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the configuration key and path of every file that contains a secret."""
    if config.file_with_secrets is not None:
        yield "configuration", config.file_with_secrets
    yield from _secret_files(config)
    yield from _property_files(config.kafka.properties_files)
    for name in _KEY_LOCATIONS:
        location = config.kafka.properties.get(name)
        if isinstance(location, str) and location:
            yield f"kafka.properties.{name}", Path(location)


def _secret_files(section: Section) -> Iterator[tuple[str, Path]]:
    """Yield the key and path of every file that a key names.

    Each key that ends with `_file` counts, except those of certificates, so that a new one is not forgotten.
    """
    for path, value in values_of(section):
        name = str(path[-1])
        if isinstance(value, Path) and name.endswith("_file") and name not in _PUBLIC_FILES:
            yield dotted(path), value


def _property_files(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    yield from ((f"kafka.properties_files.{name}", Path(file)) for name, file in files.items())


def _of_file(key: str, file: Path) -> Weakness | None:
    """Return the weakness of a file; None if it has none or cannot be examined, which its reader reports."""
    try:
        there = file.stat()
        why = _exposed(there) or _replaceable(file)
    except OSError:
        return None
    if not why:
        return None
    return Weakness(
        key,
        f"{file} {why}",
        f"Let only the user that runs cdcd read {file} (mode 0600), in a folder that only this user or root may "
        "change. A file of root may also be readable by a group (mode 0640).",
        of_file=True,
    )


def _exposed(there: os.stat_result) -> str:
    """Return the reason why other users can read or change a file with this status; "" if they cannot.

    The rule is libpq's for sslkey: a file of root may be readable by its group, because containers and systemd pass
    secrets this way.
    """
    mode = stat.S_IMODE(there.st_mode)
    if there.st_uid not in {0, os.geteuid()}:
        return f"belongs to another user (uid {there.st_uid})"
    allowed = 0o740 if there.st_uid == 0 else 0o700
    if mode & ~allowed & 0o077:
        return f"is open to other users (mode {mode:04o})"
    return ""


def _replaceable(file: Path) -> str:
    """Return the reason why every user can replace the file; "" if not every user can.

    Among the parent folders, a world-writable folder is safe if it is sticky or mounted read-only, as Kubernetes
    mounts secrets. The file itself must not be in such a folder.
    """
    for place in dict.fromkeys([file.absolute(), file.resolve()]):
        for folder in place.parents:
            mode = folder.stat().st_mode
            if not mode & stat.S_IWOTH or os.statvfs(folder).f_flag & os.ST_RDONLY:
                continue
            if folder == place.parent or not mode & stat.S_ISVTX:
                return f"is in {folder}, which every user may change"
    return ""


def _weak_keys(config: Config) -> Iterator[Weakness]:
    columns = config.columns
    if columns.encryption_key is not None:
        raw = encryption_key_bytes(columns.encryption_key)
        if why := _guessable(raw, DISTINCT_BYTES_MIN):
            yield _weak("columns.encryption_key", why, "openssl rand -base64 32")
    texts = {dotted(path): text for path, text in secrets_of(config) if _is_key(path)}
    named = {f"http.tokens ({name})": token.decode() for name, token in config.http.action_tokens() if name}
    for key, text in (texts | named).items():
        if why := weak_token(text):
            yield _weak(key, why, "openssl rand -hex 32")


def _is_key(path: KeyPath) -> bool:
    """Return True for the path of a token or key. A password's strength is the other side's business."""
    names = [part for part in path if isinstance(part, str)]
    return names[-1].endswith(("token", "key", "keys")) and names != ["columns", "encryption_key"]


def _weak(key: str, why: str, command: str) -> Weakness:
    return Weakness(
        key,
        f"can be guessed: {why}",
        f"Make a random value for {key}, for example by `{command}`.",
        of_file=False,
    )


def weak_token(text: str) -> str:
    """Return the reason why the token can be guessed; "" if none was found."""
    if len(text) < TOKEN_LENGTH_MIN:
        return f"it is shorter than {TOKEN_LENGTH_MIN} characters"
    if why := _guessable(text.encode(), DISTINCT_CHARACTERS_MIN):
        return why
    rest = text.lower()
    for word in _WORDS:
        rest = rest.replace(word, "")
    if len(rest) < REST_LENGTH_MIN:
        return "it consists of common words, which an attacker tries first"
    return ""


def _guessable(secret: Sequence[int], distinct_min: int) -> str:
    """Return the reason why these bytes are not random; "" if none was found."""
    distinct = len(set(secret))
    if distinct == 1:
        return "it is one byte or letter, repeated"
    if distinct < distinct_min:
        return f"it has {distinct} different bytes or letters only"
    steps = Counter((after - before) % 256 for before, after in pairwise(secret))
    if 4 * max(steps.values()) >= 3 * steps.total():
        return "it is a sequence"
    period = next((size for size in range(2, len(secret) // 2 + 1) if _repeats(secret, size)), 0)
    return f"its first {period} bytes or letters are repeated" if period else ""


def _repeats(secret: Sequence[int], size: int) -> bool:
    return all(one == secret[index % size] for index, one in enumerate(secret))
