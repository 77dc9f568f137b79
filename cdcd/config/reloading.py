"""What changes while the daemon runs: a configuration that is read again (SIGHUP), of which a part has to wait for a
restart, and files with secrets, which are read again before each connection.

Certificates and keys that libpq and librdkafka are given as files need nothing of this: they read them themselves,
whenever they connect or are made again.

The rule: a key changes while the daemon runs only if it is in one of the two lists below. Every other key decides what
the pipeline is (its names, its places, its limits), or was given to parts that are made once. A change of such a key is
named, and is left out of the configuration in effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import SecretStr

from cdcd.config.models import Config
from cdcd.config.sources import read_secret
from cdcd.config.types import Section


def reread(config: Config) -> Config:
    """Return `config` with the present secrets of its files. If a file cannot be read, its former secret stays."""
    postgres, kafka = config.postgres, config.kafka
    secrets = {
        name: SecretStr(text)
        for name, file in (("dsn", postgres.dsn_file), ("password", postgres.password_file))
        if file is not None and (text := _present(file))
    }
    properties = {
        name: SecretStr(text) for name, file in kafka.properties_files.items() if (text := _present(file))
    }
    registry = config.registry
    logins = {
        name: SecretStr(text)
        for name, file in (("password", registry.password_file), ("token", registry.token_file))
        if file is not None and (text := _present(file))
    }
    secret = "" if registry.oauth.client_secret_file is None else _present(registry.oauth.client_secret_file)
    oauth = {"client_secret": SecretStr(secret)} if secret else {}
    return config.model_copy(
        update={
            "postgres": postgres.model_copy(update=secrets),
            "registry": registry.model_copy(
                update={**logins, "oauth": registry.oauth.model_copy(update=oauth)}
            ),
            "kafka": kafka.model_copy(update={"properties": {**kafka.properties, **properties}}),
        }
    )


def _present(file: object) -> str:
    text, wrong = read_secret(str(file))
    return "" if wrong else text


S = TypeVar("S", bound=Section)

AT_ONCE: Final = (
    "http.read_token",
    "http.read_token_file",
    "http.stall_s_max",
    "http.token",
    "http.token_file",
    "http.tokens",
    "http.tokens_file",
    "log.format",
    "log.level",
    "postgres.prepared_warning_age_s",
    "postgres.wal_warning_s",
    "ready.during_snapshot",
    "ready.lag_bytes_max",
    "ready.lag_s_max",
    "shutdown_timeout_s",
)
"""Keys that count from now on."""

NEXT_SESSION: Final = (
    "kafka.properties_files",
    "postgres.connect_timeout_s",
    "postgres.password",
    "postgres.password_command",
    "postgres.password_file",
    "postgres.readers",
)
"""Keys that count when cdcd connects next."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What was read again.

    Attributes:
        config: the configuration in effect.
        at_once, next_session, needs_restart: the keys that differ, by what becomes of their new values.
    """

    config: Config
    at_once: list[str] = field(default_factory=list)
    next_session: list[str] = field(default_factory=list)
    needs_restart: list[str] = field(default_factory=list)


def reloaded(before: Config, after: Config) -> Reloaded:
    """What `after` changes in `before`, the configuration in effect."""
    old, new = dict(_keys(before)), dict(_keys(after))
    changed = [key for key in new if old.get(key) != new[key]]
    read_anyway = _from_files(before, after)
    found = Reloaded(
        _with(before, after, [key for key in changed if key in AT_ONCE or key in NEXT_SESSION]),
        [key for key in changed if key in AT_ONCE],
        [key for key in changed if key in NEXT_SESSION or key in read_anyway],
    )
    known = {*found.at_once, *found.next_session}
    found.needs_restart.extend(key for key in changed if key not in known)
    return found


def _from_files(before: Config, after: Config) -> set[str]:
    """The keys whose values come from files that are read again whenever cdcd connects (`reloading.py`)."""
    found = set()
    if before.postgres.dsn_file is not None and before.postgres.dsn_file == after.postgres.dsn_file:
        found.add("postgres.dsn")
    for name in ("password", "token"):
        file = getattr(before.registry, f"{name}_file")
        if file is not None and file == getattr(after.registry, f"{name}_file"):
            found.add(f"registry.{name}")
    secret_file = before.registry.oauth.client_secret_file
    if secret_file is not None and secret_file == after.registry.oauth.client_secret_file:
        found.add("registry.oauth.client_secret")
    kafka, other = before.kafka, after.kafka
    secret = {*kafka.properties_files, *other.properties_files}
    if all(
        kafka.properties.get(name) == other.properties.get(name)
        for name in {*kafka.properties, *other.properties} - secret
    ):
        found.add("kafka.properties")
    return found


def _keys(section: Section, prefix: str = "") -> list[tuple[str, object]]:
    """Each key below a section, dotted, with its value."""
    found: list[tuple[str, object]] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            found += _keys(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


def _with(before: Config, after: Config, keys: Sequence[str]) -> Config:
    """`before` with the values that `after` has for these keys."""
    for key in keys:
        before = _replaced(before, after, key.split("."))
    return before


def _replaced(before: S, after: S, path: list[str]) -> S:
    name, rest = path[0], path[1:]
    value = getattr(after, name)
    if rest:
        value = _replaced(getattr(before, name), value, rest)
    return before.model_copy(update={name: value})
