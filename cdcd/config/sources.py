"""Where values come from: the YAML file, the environment, files with secrets. Later ones win.

Each value keeps its origin, so that a problem names the line or the variable. Nothing here stops at the first
problem: they are collected, and what is wrong is left out or stood in for, so that the rest is checked as
well.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from cdcd.config.keys import KeyPath, dotted, field_at, has_free_keys, read_text, suggestion
from cdcd.config.models import Config
from cdcd.config.types import Section
from cdcd.core.errors import ConfigError, out_of_files

ENVIRONMENT_PREFIX: Final = "CDCD_"

SECRET_BYTES_MAX: Final = 1_048_576
"""A file with a secret is larger only by mistake."""

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")

# A URI or a key=value string that was given where a file's name belongs.
_SECRET_ITSELF: Final = re.compile(r"://|=")

# Messages of PyYAML's that quote the file, which may be quoting a secret.
_QUOTING: Final = {
    "found undefined alias": "found an undefined alias: text that starts with * must be quoted",
    "found duplicate anchor": "found an anchor twice: text that starts with & must be quoted",
    "could not determine a constructor": "found an unknown tag: text that starts with ! must be quoted",
    "found undefined tag handle": "found an unknown tag: text that starts with ! must be quoted",
}


@dataclass(frozen=True, slots=True, order=True)
class KeyOrigin:
    """Where a value was given.

    Args:     line: in the file, from 1; 0 when it is not from the file.     variable: the environment
    variable that gave it, wholly or in part; empty: none. Such a value is not shown.
    """

    line: int
    variable: str = ""

    def __str__(self) -> str:
        if self.line == 0:
            return f"environment {self.variable}" if self.variable else ""
        return f"line {self.line}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong: where, which key, and what."""

    origin: KeyOrigin
    path: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.origin), self.path, self.text) if part)


@dataclass(slots=True)
class Layers:
    """The values so far, as plain mappings, with their origins and what was wrong with them."""

    root: type[Section] = Config
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, KeyOrigin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def origin(self, path: KeyPath) -> KeyOrigin:
        """Of the value, or of the nearest mapping around it."""
        for length in range(len(path), -1, -1):
            if (known := self.origins.get(path[:length])) is not None:
                return known
        return KeyOrigin(0)

    def problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(self.origin(path), dotted(path), text))

    def get(self, path: KeyPath) -> Any:
        value: Any = self.data
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def set(self, path: KeyPath, value: object, origin: KeyOrigin) -> None:
        """Set the value; in silence not, where its parent is no mapping, which is a problem of its own."""
        parent: Any = self.data
        for part in path[:-1]:
            if parent.get(part) is None:
                parent[part] = {}
            parent = parent[part]
            if not isinstance(parent, dict):
                return
        parent[path[-1]] = value
        self.origins[path] = origin

    def drop(self, path: KeyPath) -> None:
        parent = self.get(path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)


def read_yaml(text: str, environ: Mapping[str, str], file: str, root: type[Section] = Config) -> Layers:
    """The file's values, for the model `root`, with `${NAME}` and `${NAME:-default}` filled in; `$${` stands for `${`.

    Raises ConfigError with line and column when the text is not YAML or no mapping.
    """
    layers = Layers(root)
    try:
        # A CSafeLoader would be faster and has other messages; a configuration is small.
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is not None and not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{file}: must be a mapping of keys, such as `name: shop`")
            if node is not None:
                layers.data = _NodeReader(loader, environ, layers).mapping(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        line = text.splitlines()[mark.line : mark.line + 1] if mark is not None else []
        hint = "Inside { } and [ ] a ${NAME} must be quoted." if line and "${" in line[0] else ""
        raise ConfigError(f"{file}{where}: not valid YAML: {_plain(error.problem)}", hint=hint) from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", "unreadable")
        raise ConfigError(f"{file}: not valid YAML: {reason}") from None
    except RecursionError:
        raise ConfigError(f"{file}: mappings are nested too deeply") from None
    return layers


def _plain(problem: str | None) -> str:
    for start, replacement in _QUOTING.items():
        if problem is not None and problem.startswith(start):
            return replacement
    return problem or "unreadable"


class _NodeReader:
    """YAML nodes to plain values. A key is its text: `on:` is not the boolean that YAML 1.1 makes of it."""

    def __init__(self, loader: yaml.SafeLoader, environ: Mapping[str, str], layers: Layers) -> None:
        self._loader = loader
        self._environ = environ
        self._layers = layers

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._layers.origins.setdefault(path, KeyOrigin(node.start_mark.line + 1))
        own = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        self._loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._layers.problems.append(
                    Problem(KeyOrigin(line), dotted(path), "has a key that is not text")
                )
                continue
            key = key_node.value
            # A key that came in with << may be overridden; one that is written twice here may not.
            if key in values and own.count(key) > 1:
                first = self._layers.origin((*path, key))
                self._layers.problems.append(
                    Problem(KeyOrigin(line), dotted((*path, key)), f"is given twice, first on {first}")
                )
                continue
            self._layers.origins[(*path, key)] = KeyOrigin(line)
            values[key] = self._value(value_node, (*path, key))
        return values

    def _value(self, node: yaml.Node, path: KeyPath) -> object:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self._layers.origins[(*path, index)] = KeyOrigin(item.start_mark.line + 1)
                items.append(self._value(item, (*path, index)))
            return items
        value: object = self._loader.construct_object(node)
        return self._interpolated(value, path) if isinstance(value, str) and "${" in value else value

    def _interpolated(self, text: str, path: KeyPath) -> object:
        names = []

        def replacement(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            if match[0] == "$${":
                return "${"
            if name is None:
                self._layers.problem(
                    path, "has a ${ that is not ${NAME} or ${NAME:-default}; write $${ for ${"
                )
                return ""
            names.append(name)
            value = self._environ.get(name)
            if default is not None:
                return value or default
            if value is None:
                self._layers.problem(path, f"needs the environment variable {name}, which is not set")
                return ""
            return value

        found = len(self._layers.problems)
        filled = _VARIABLE.sub(replacement, text)
        if len(self._layers.problems) > found:
            return _Unknown()
        if not names:
            return filled
        self._layers.origins[path] = KeyOrigin(self._layers.origin(path).line, names[0])
        return read_text(filled, path, self._layers.root)


class _Unknown:
    """Stands where a value is not known because of a problem that is reported already."""


def is_unknown(value: object) -> bool:
    return isinstance(value, _Unknown)


def apply_environment(layers: Layers, environ: Mapping[str, str]) -> None:
    """Let `CDCD_POSTGRES__DSN` and the like win over the file.

    Variables with one part that is no key are left alone: Kubernetes sets CDCD_PORT, CDCD_SERVICE_HOST and
    more for a service called cdcd.
    """
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        parts = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(parts) == 1 and parts[0] not in Config.model_fields:
            continue
        path = _environment_path(parts)
        origin = KeyOrigin(0, variable)
        if path is None:
            near = suggestion(tuple(parts))
            layers.problems.append(Problem(origin, ".".join(parts), f"unknown key{near}"))
            continue
        layers.set(path, read_text(environ[variable], path), origin)
        if (other := _other_way(path)) is not None:
            layers.drop(other)


def _environment_path(parts: list[str]) -> KeyPath | None:
    for length in range(1, len(parts) + 1):
        known = field_at(tuple(parts[:length]))
        if known is None:
            return None
        if has_free_keys(known) and length < len(parts):
            # No shell takes a dot in a variable's name, and no property of Kafka's has an underscore.
            return (*parts[:length], "_".join(parts[length:]).replace("_", "."))
    return tuple(parts)


def _other_way(path: KeyPath) -> KeyPath | None:
    """The key that gives the same value in the other way: from a file, or directly."""
    match path:
        case ("kafka", "properties", str(name)):
            return ("kafka", "properties_files", name)
        case ("kafka", "properties_files", str(name)):
            return ("kafka", "properties", name)
        case (*parent, str(key)) if key.endswith("_file"):
            return (*parent, key.removesuffix("_file"))
        case (*parent, str(key)) if field_at((*parent, f"{key}_file")) is not None:
            return (*parent, f"{key}_file")
    return None


_FILES: Final[Sequence[KeyPath]] = (
    ("postgres", "dsn_file"),
    ("postgres", "password_file"),
    ("http", "token_file"),
    ("http", "tokens_file"),
    ("http", "read_token_file"),
    ("registry", "password_file"),
    ("registry", "token_file"),
    ("registry", "oauth", "client_secret_file"),
    ("topics", "checkpoint_key_file"),
    ("snapshot", "signal_token_file"),
    ("context", "token_file"),
    ("columns", "hash_key_file"),
    ("columns", "encryption_key_file"),
)
"""Keys that name files with secrets."""


def read_secret_files(layers: Layers) -> None:
    """Put the contents of the files that `*_file` and kafka.properties_files name where they belong.

    The section `kafka` of a mirror reads its own files, because Java's properties have other names.
    """
    files = [path for path in _FILES if field_at(path, layers.root) is not None]
    named = layers.get(("kafka", "properties_files"))
    if isinstance(named, dict) and layers.root is Config:
        files += [("kafka", "properties_files", name) for name in named]
    for path in files:
        file = layers.get(path)
        target = _other_way(path)
        assert target is not None, f"{path} is not for a file"
        if not isinstance(file, str) or not file:
            continue
        if layers.get(target) is not None:
            layers.problem(path, f"and {dotted(target)} are both given; give one of them")
            continue
        value, wrong = read_secret(file)
        if wrong:
            layers.problem(path, wrong)
        # The origin is the file's key, and like a variable's value the file's content is not shown.
        layers.set(target, _Unknown() if wrong else value, KeyOrigin(layers.origin(path).line, "a file"))


def read_secret(file: str) -> tuple[str, str]:
    """The file's text without the line's end, and what is wrong with it."""
    shown = "what is given, which looks like a secret itself," if _SECRET_ITSELF.search(file) else file
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        full = out_of_files(error)
        if full is not None:
            raise full from None
        return "", f"cannot read {shown}: {getattr(error, 'strerror', None) or 'not a file name'}"
    if len(content) > SECRET_BYTES_MAX:
        return "", f"{shown} is larger than {SECRET_BYTES_MAX} bytes, too large for a secret"
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return "", f"{shown} is not UTF-8 text"
    return text, "" if text.strip() else f"{shown} is empty"
