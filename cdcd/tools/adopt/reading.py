"""The configuration of a connector: from a .properties file, a .json file, or Connect's REST API. Options as "
"texts."""

import json
import re
from pathlib import Path
from typing import Any, Final

from cdcd.core.errors import ConfigError

_LINE: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

BYTES_MAX: Final = 4_194_304
"""A configuration is larger only by mistake."""


def read_file(path: Path) -> dict[str, str]:
    """The options in the file: JSON, by what it begins with, or Java's properties.

    Raises ConfigError, which repeats nothing of the file: it may hold secrets.
    """
    try:
        with path.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise ConfigError(f"{path} is larger than {BYTES_MAX} bytes: it is no connector's configuration.")
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}.") from None
    if text.lstrip().startswith("{"):
        return from_json(text, str(path))
    return from_properties(text)


def from_json(text: str, source: str) -> dict[str, str]:
    """The options of `{"name": ..., "config": {...}}`, as Connect takes and gives it, or of the inner object "
    "alone."""
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{source}{where}: not JSON.") from None
    config = found.get("config", found) if isinstance(found, dict) else None
    if not isinstance(config, dict):
        raise ConfigError(f"{source}: not an object with a connector's options.")
    options = {}
    for name, value in config.items():
        if value is None:
            continue
        if isinstance(value, dict | list):
            raise ConfigError(f"{source}: {name} is not a text, a number or a boolean.")
        options[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(found.get("name"), str):
        options.setdefault("name", found["name"])
    return options


def from_properties(text: str) -> dict[str, str]:
    """Java's properties (java.util.Properties): continued lines, escapes, `=`, `:` or blanks between name and "
    "value."""
    options = {}
    pending = ""
    for line in text.splitlines():
        part = line.lstrip()
        if not pending and (not part or part[0] in "#!"):
            continue
        pending += part
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        name, value = _pair(pending)
        options[name] = value
        pending = ""
    if pending:
        name, value = _pair(pending)
        options[name] = value
    return options


def _pair(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    assert match is not None, "the pattern matches every line"
    return _plain(match[1]), _plain(match[2])


def _plain(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", replacement, text, flags=re.DOTALL)
