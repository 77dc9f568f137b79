"""Commands that a person pastes, with names of strangers in them: into a shell, into psql, as an option of cdcd.

The rule: whatever a table, column, role or file is called, a command that cdcd prints is one command, and names what it
is about. The owner of a schema chooses names, and must not choose what a DBA runs.
"""

import re
import shlex
from typing import Final

from cdcd.core.table_names import split_table
from cdcd.core.visible import visible

_BARE: Final = re.compile(r"[a-z_][a-z0-9_]*")
_PLAIN: Final = re.compile(r'[^*?".,\s&]+')

_RESERVED: Final = re.compile(
    r"all|analy[sz]e|and|any|array|as|asc|asymmetric|authorization|binary|both|case|cast|check|collate|collation|column"
    r"|concurrently|constraint|create|cross|current_(?:catalog|date|role|schema|time|timestamp|user)|default|deferrable"
    r"|desc|distinct|do|else|end|except|false|fetch|for|foreign|freeze|from|full|grant|group|having|i?like|in|initially"
    r"|inner|intersect|into|is|isnull|join|lateral|leading|left|limit|localtime|localtimestamp|natural|not|notnull|null"
    r"|offset|on|only|or|order|outer|overlaps|placing|primary|references|returning|right|select|session_user|similar"
    r"|some|symmetric|system_user|table|tablesample|then|to|trailing|true|union|unique|user|using|variadic|verbose|when"
    r"|where|window|with"
)
"""Words that are no name of a role, table or column unless they are quoted (PostgreSQL's kwlist.h)."""


def shell(*words: object) -> str:
    """The words as one command of a POSIX shell."""
    return " ".join(shlex.quote(str(word)) for word in words)


def identifier(name: str) -> str:
    """The name for SQL, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) and _RESERVED.fullmatch(name) is None else quoted(name)


def quoted(name: str) -> str:
    r"""The name for SQL, in quotes; with hidden characters as `U&"\202e"`, which PostgreSQL reads as that name."""
    inside = name.replace('"', '""')
    if visible(name) == name:
        return f'"{inside}"'
    return f'U&"{"".join(map(_written, inside))}"'


def _written(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    if visible(letter) == letter:
        return letter
    point = ord(letter)
    return f"\\{point:04x}" if point < 0x10000 else f"\\+{point:06x}"


def qualified(table: str) -> str:
    """Return the text of a table for SQL."""
    schema, name = split_table(table)
    return f"{identifier(schema)}.{identifier(name)}" if name else identifier(schema)


def literal(text: str) -> str:
    """The text as a constant of SQL; with hidden characters as `E'…'`."""
    if visible(text) == text:
        return "'{}'".format(text.replace("'", "''"))
    inside = "".join(
        f"\\U{ord(each):08x}" if visible(each) != each else each for each in text.replace("\\", "\\\\")
    )
    return "E'{}'".format(inside.replace("'", "''"))


def table_option(table: str) -> str:
    """Return the text of a table for `--table` and for patterns of the configuration."""
    schema, name = split_table(table)
    return f"{_part(schema)}.{_part(name)}"


def _part(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and visible(name) == name else quoted(name)


def cdcd(*words: object) -> str:
    """A command of cdcd, for a shell."""
    return shell("cdcd", *words)


_NEEDS_FILE: Final = re.compile(
    r"`(cdcd (?:bench|check|downgrade|drop|handover|record|reset|run|snapshot|status|tables|tail|top|trace|verify)"
    r"\b[^`]*)`"
)


def with_file(text: str, file: object) -> str:
    """A hint in which each command of a pipeline, in backticks, names its configuration file."""

    def named(found: re.Match[str]) -> str:
        command = found[1]
        return (
            found[0]
            if "--config" in command or "--help" in command
            else f"`{command} {shell('--config', file)}`"
        )

    return _NEEDS_FILE.sub(named, text)


def on_table(option: str, table: str) -> str:
    """An option that names a table, for a shell."""
    return shell(option, table_option(table))


def resume_table(table: str) -> str:
    """The command that lets a table come back that is set aside."""
    return cdcd("tables", "resume", table_option(table))


def read_table(table: str, *, where: bool = False) -> str:
    """The command that makes a running daemon read the table."""
    command = f"{cdcd('snapshot', 'start')} {on_table('--table', table)}"
    return f"{command} --where '<condition>'" if where else command


def begin_again(table: str) -> str:
    """The hint for a table that a log lacks changes of. Its topic gets a truncate record, and then all rows."""
    stop = cdcd("tables", "stop", table_option(table))
    return (
        f"Let the daemon read the table again: {stop} --config FILE, and then {resume_table(table)} --config FILE. The "
        "table begins with the truncate record that resume writes (topics.truncate: true)."
    )
