"""The text of cdcd.yaml, from the keys of the findings; and whether cdcd takes it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from cdcd.config.keys import field_at
from cdcd.config.loading import Config, parse_config
from cdcd.tools.adopt.references import References

_ALWAYS: Final = frozenset({"postgres.slot", "postgres.publication", "topics.prefix", "snapshot.mode"})
"""Keys that are written also if cdcd would take the same value by itself: they name what is taken over."""

_STAND_IN: Final = "0"
"""For a secret that is not there while the file is checked."""

_ORDER: Final = (
    "name",
    "postgres",
    "kafka",
    "tables",
    "topics",
    "key",
    "partitioner",
    "fields",
    "columns",
    "format",
    "cloudevents",
    "event_flattening",
    "heartbeat",
    "filters",
    "routes",
    "outbox",
    "registry",
    "snapshot",
)

Settings = dict[str, Any]
"""The keys of cdcd's configuration, nested."""


def merged(parts: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The keys of several findings. Mappings and lists of one key become one; else the last value counts."""
    found: dict[str, object] = {}
    for keys in parts:
        for name, value in keys.items():
            found[name] = _both(found.get(name), value)
    return found


def _both(one: object, other: object) -> object:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {**one, **{name: _both(one.get(name), value) for name, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *[each for each in other if each not in one]]
    return other


def nested(keys: Mapping[str, object]) -> Settings:
    """Dotted keys as mappings, without those whose value is cdcd's default."""
    # Debezium delivers logical messages of every prefix. cdcd delivers them only with postgres.messages.
    return _nested(keys, {"postgres.messages": True})


def drafted(keys: Mapping[str, object]) -> Settings:
    """The keys that a person completes, as mappings."""
    return _nested(keys, {})


def _nested(keys: Mapping[str, object], always: Mapping[str, object]) -> Settings:
    found: Settings = {}
    dsn = {name.removeprefix("dsn."): str(value) for name, value in keys.items() if name.startswith("dsn.")}
    flat: dict[str, object] = {**always}
    if dsn:
        flat["postgres.dsn"] = _conninfo(dsn)
    flat |= {name: value for name, value in keys.items() if not name.startswith("dsn.")}
    for name, value in flat.items():
        path = _path(name)
        field = field_at(path)
        if name not in _ALWAYS and field is not None and field.default == value:
            continue
        parent = found
        for part in path[:-1]:
            parent = parent.setdefault(part, {})
        parent[path[-1]] = value
    return {name: found[name] for name in sorted(found, key=_ORDER.index)}


def _path(name: str) -> tuple[str, ...]:
    """The parts of a dotted key. What follows kafka.properties and topics.create.config is one name."""
    for free in ("kafka.properties.", "kafka.properties_files.", "topics.create.config."):
        if name.startswith(free):
            return (*free.rstrip(".").split("."), name.removeprefix(free))
    return tuple(name.split("."))


def _conninfo(parameters: Mapping[str, str]) -> str:
    """libpq's string of keywords and values. What libpq takes by itself is left out."""
    usual = {("sslmode", "prefer")}
    return " ".join(
        f"{name}={_quoted(value)}"
        for name, value in parameters.items()
        if (name, value) not in usual and value
    )


def _quoted(value: str) -> str:
    if value and not any(character in value for character in " '\\$"):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def as_text(settings: Settings, comments: Sequence[str], draft: Settings | None = None) -> str:
    """The text of cdcd.yaml.

    Args:
        comments: lines for the head of the file.
        draft: keys that a person completes. They are comments at the end of the file.
    """
    parts = [_commented(comments), _yaml(settings)]
    if draft:
        parts += [
            "\n",
            _commented(["To be completed (`cdcd adopt` says what is missing):", *_yaml(draft).splitlines()]),
        ]
    return "".join(parts)


def _yaml(settings: Settings) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100)


def _commented(lines: Iterable[str]) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def checked(settings: Settings, references: References, file: str) -> Config:
    """The configuration as cdcd reads it, with stand-ins for secrets that are not on this machine.

    Raises ConfigError: cdcd would refuse it.
    """
    environ = {
        name: os.environ.get(name, references.given.get(name, _STAND_IN)) for name in references.variables
    }
    absent = [name for name, value in environ.items() if value == _STAND_IN]
    return parse_config(as_text(_with_stand_ins(settings, absent), ()), environ, file)


def missing_secrets(settings: Settings, references: References) -> list[str]:
    """Variables and files that cdcd needs and that neither this process nor the connector's configuration has."""
    return [
        name for name in references.variables if name not in os.environ and name not in references.given
    ] + [str(file) for file in _secret_files(settings) if not Path(file).exists()]


def _secret_files(settings: Settings) -> list[str]:
    files = [
        settings.get("postgres", {}).get("password_file"),
        settings.get("registry", {}).get("token_file"),
    ]
    files += settings.get("kafka", {}).get("properties_files", {}).values()
    return [file for file in files if file]


def _with_stand_ins(settings: Settings, absent: Sequence[str]) -> Settings:
    """The settings with stand-ins for files and for the registry's URL, if they are not on this machine.

    Args:
        absent: variables that have only a stand-in.
    """
    postgres, kafka = dict(settings.get("postgres", {})), dict(settings.get("kafka", {}))
    file = postgres.get("password_file")
    if file and not Path(file).exists():
        del postgres["password_file"]
        postgres["password"] = _STAND_IN
    missing = [name for name, file in kafka.get("properties_files", {}).items() if not Path(file).exists()]
    if missing:
        present = {name: file for name, file in kafka["properties_files"].items() if name not in missing}
        kafka |= {
            "properties_files": present,
            "properties": {**kafka.get("properties", {}), **dict.fromkeys(missing, _STAND_IN)},
        }
    registry = dict(settings.get("registry", {}))
    file = registry.get("token_file")
    if file and not Path(file).exists():
        del registry["token_file"]
        registry["token"] = _STAND_IN
    if any(f"${{{name}}}" in str(registry.get("url")) for name in absent):
        registry["url"] = "http://registry"
    for name in ("ca_file", "certificate_file", "key_file"):
        # They are read when the registry is asked.
        registry.pop(name, None)
    return {
        **settings,
        **({"registry": registry} if registry else {}),
        **({"postgres": postgres} if postgres else {}),
        **({"kafka": kafka} if kafka else {}),
    }
