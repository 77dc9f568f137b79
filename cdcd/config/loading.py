"""The configuration: read from a YAML file, the environment and files with secrets, checked as a whole.

    YAML file, with ${NAME} filled in  ->  CDCD_* variables  ->  *_file secrets  ->  models

Every problem is reported at once, with its line or variable, and none shows a secret.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cdcd.config.keys import KeyPath, dotted, field_at, suggestion
from cdcd.config.masking import has_secret, is_secret_name, mask_text
from cdcd.config.models import Config
from cdcd.config.sections.kafka import KafkaConfig, KafkaTransactionConfig
from cdcd.config.sections.postgres import PostgresConfig
from cdcd.config.sections.process import HttpConfig, LogConfig, ReadyConfig, RetryConfig, SpoolConfig
from cdcd.config.sections.snapshot import SnapshotConfig
from cdcd.config.sections.topics import TopicCreationConfig, TopicsConfig
from cdcd.config.sources import (
    KeyOrigin,
    Layers,
    Problem,
    apply_environment,
    is_unknown,
    read_secret_files,
    read_yaml,
)
from cdcd.config.types import Section
from cdcd.core.errors import ConfigError, out_of_files

__all__ = [
    "Config",
    "HttpConfig",
    "KafkaConfig",
    "KafkaTransactionConfig",
    "LogConfig",
    "PostgresConfig",
    "ReadyConfig",
    "RetryConfig",
    "SnapshotConfig",
    "SpoolConfig",
    "TopicCreationConfig",
    "TopicsConfig",
    "load_config",
    "parse_config",
]

_SHOWN_LENGTH_MAX: Final = 60

_KEYS: Final = frozenset({"hash_key", "encryption_key"})
"""Keys with secrets whose names do not say so."""

HINT: Final = "`cdcd config --reference` shows every key with its default and meaning."

START: Final = (
    "`cdcd init` writes a first configuration, and the SQL that goes with it; `cdcd config --examples DIR` writes the "
    "examples."
)

S = TypeVar("S", bound=Section)
Root = type[Section]
Describe = Callable[[ErrorDetails, KeyPath, Root], str]


def load_config(path: str | Path, environ: Mapping[str, str]) -> Config:
    """The configuration in the file at `path`, with what `environ` overrides.

    Raises ConfigError that names every problem: unreadable file, YAML syntax (line and column), unknown keys
    (with the near one), wrong types and values, missing variables and files.
    """
    layers = _read(read_file(path, START, HINT), environ, str(path))
    config = validated(layers, Config, str(path), HINT)
    if any(_is_secret_in_file(layers, key) for key in layers.origins):
        config.note_file_with_secrets(Path(path))
    return config


def _is_secret_in_file(layers: Layers, path: KeyPath) -> bool:
    """Whether the file itself has the secret, and not a variable or another file."""
    origin, value, name = layers.origin(path), layers.get(path), str(path[-1]) if path else ""
    if not origin.line or origin.variable or not isinstance(value, str):
        return False
    return has_secret(value) if name == "dsn" else is_secret_name(name) or name in _KEYS


def read_file(path: str | Path, start: str, hint: str) -> str:
    """The text of a configuration; ConfigError begins its hint with `start`: how a first one is made."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        full = out_of_files(error)
        if full is not None:
            raise full from None
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}",
            hint=f"{start} {hint}",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from None


def parse_config(text: str, environ: Mapping[str, str], file: str = "configuration") -> Config:
    """Like `load_config`, from text; `file` is what errors call it."""
    return validated(_read(text, environ, file), Config, file, HINT)


def _read(text: str, environ: Mapping[str, str], file: str) -> Layers:
    layers = read_yaml(text, environ, file)
    apply_environment(layers, environ)
    read_secret_files(layers)
    return layers


def validated(layers: Layers, model: type[S], file: str, hint: str) -> S:
    """The model of what was read. ConfigError names every problem; `hint` is its own."""
    config: S | None = None
    try:
        config = model.model_validate(layers.data)
    except ValidationError as error:
        # The input is left out: it may hold secrets, and `_describe` shows what may be shown.
        details = error.errors(include_url=False)
        layers.problems += [
            problem for detail in details if (problem := _describe(detail, layers)) is not None
        ]
    if layers.problems or config is None:
        raise _failure(file, layers.problems, hint)
    return config


def _failure(file: str, problems: list[Problem], hint: str) -> ConfigError:
    lines = [str(problem) for problem in sorted(set(problems))]
    if len(lines) == 1:
        return ConfigError(f"{file}: {lines[0]}", hint=hint)
    return ConfigError("\n  ".join([f"{file}: {len(lines)} problems", *lines]), hint=hint)


def _describe(detail: ErrorDetails, layers: Layers) -> Problem | None:
    """An error of pydantic's in our words; None for what follows from a problem that is reported already."""
    path: KeyPath = tuple(part for part in detail["loc"] if part != "[key]")
    if is_unknown(detail["input"]):
        return None
    describe = _DESCRIPTIONS.get(detail["type"])
    text = describe(detail, path, layers.root) if describe is not None else detail["msg"]
    origin = layers.origin(path)
    if detail["type"] in _WITH_VALUE and (shown := _shown(detail["input"], path, origin)):
        text += f", not {shown}"
    return Problem(origin, dotted(path), text)


def _shown(value: object, path: KeyPath, origin: KeyOrigin) -> str:
    """The value for an error, if it is short and can be no secret: not from a variable or file, nor for a
    secret.
    """
    secret = origin.variable or path[:2] in {
        ("postgres", "dsn"),
        ("postgres", "password"),
        ("postgres", "readers"),
        ("kafka", "oauth"),
    }
    if secret or is_secret_name(dotted(path)) or isinstance(value, dict | list):
        return ""
    text = mask_text(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= _SHOWN_LENGTH_MAX else ""


def _missing(_detail: ErrorDetails, path: KeyPath, root: Root) -> str:
    field = field_at(path, root)
    extra = field.json_schema_extra if field is not None else None
    example = extra.get("example") if isinstance(extra, dict) else None
    instead = " (or dsn_file)" if path == ("postgres", "dsn") else ""
    return f"is required{instead}" + (f", such as {path[-1]}: {example}" if example else "")


def _bound(words: str, key: str) -> Describe:
    return lambda detail, _path, _root: f"{words} {detail.get('ctx', {}).get(key)}"


def _fixed(text: str) -> Describe:
    return lambda _detail, _path, _root: text


def _own_words(detail: ErrorDetails, _path: KeyPath, _root: Root) -> str:
    return str(detail.get("ctx", {}).get("error", detail["msg"]))


def _one_of(detail: ErrorDetails, _path: KeyPath, _root: Root) -> str:
    return f"must be {str(detail.get('ctx', {}).get('expected')).replace(chr(39), '')}"


_MAPPING: Final = _fixed("must be a mapping of keys")


def _list(_detail: ErrorDetails, path: KeyPath, _root: Root) -> str:
    example = "[program, argument]" if str(path[-1]).endswith("command") else '["public.*"]'
    return f"must be a list, such as {example}"


_DESCRIPTIONS: Final[Mapping[str, Describe]] = {
    "missing": _missing,
    "extra_forbidden": lambda _detail, path, root: f"unknown key{suggestion(path, root)}",
    "value_error": _own_words,
    "literal_error": _one_of,
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": _list,
    "list_type": _list,
    "string_type": _fixed("must be text; quote it"),
    "path_type": _fixed("must be a path"),
    "bool_type": _fixed("must be true or false"),
    "int_type": _fixed("must be a whole number"),
    "float_type": _fixed("must be a number"),
    "finite_number": _fixed("must be a finite number"),
    "greater_than_equal": _bound("must be at least", "ge"),
    "less_than_equal": _bound("must be at most", "le"),
}
# Text where a mapping belongs may be anything, a DSN for example.
_WITH_VALUE: Final = frozenset(_DESCRIPTIONS) - {
    "missing",
    "extra_forbidden",
    "value_error",
    "model_type",
    "dict_type",
}
