"""The template of a table's topic: a text with `{prefix}`, `{schema}` and `{table}` in it.

With every template, the topic of a table begins with `<prefix>.` and has a second dot after it: rights on topics,
`cdcd drop` and the mirror rely on this, and cdcd's own topics (`<prefix>.checkpoint`) have another form.

Parts of cdcd identify a table by `schema.table` without quotes. If a schema or a table has a dot in its name, this
text can be split in two ways. `{schema}.{table}` side by side needs no split; with other templates such a table has
no topic by the template (`needs_name`), and `topics.names` must give it one.
"""

import re
from typing import Final

from cdcd.core.catalog.patterns import parse_pattern

DEFAULT: Final = "{prefix}.{schema}.{table}"

_PLACEHOLDERS: Final = ("prefix", "schema", "table")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_BOTH: Final = "{schema}.{table}"
_BEGIN: Final = "{prefix}."


def check(template: str) -> None:
    """Raise ValueError if the text is no template, or if it can give a topic without the form of a table's topic."""
    for name in _PLACEHOLDER.findall(template):
        if name == "database":
            raise ValueError(
                "{database} is not a placeholder, because a pipeline reads one database; write its name as it is"
            )
        if name not in _PLACEHOLDERS:
            raise ValueError(
                f"{{{name}}} is not a placeholder; there are {{prefix}}, {{schema}} and {{table}}"
            )
    if re.fullmatch(r"[A-Za-z0-9._-]*", _PLACEHOLDER.sub("", template), re.ASCII) is None:
        raise ValueError(
            "may hold only ASCII letters, digits, '.', '_' and '-' beside {prefix}, {schema} and {table}, as Kafka "
            "demands of topics"
        )
    if re.fullmatch(r"[^.]+\..+", _PLACEHOLDER.sub("x", template.removeprefix(_BEGIN))) is None or not (
        template.startswith(_BEGIN)
    ):
        raise ValueError(
            f"{template} must begin with {{prefix}}. and have a second point after it: rights on topics and "
            "`cdcd mirror` go by that"
        )


def check_routed(text: str, pattern: str) -> None:
    """Raise ValueError if the text names no topic for rows of the tables that a pattern matches.

    The caller checks the prefix (`begins_as_table`).
    """
    placeholders = _PLACEHOLDER.findall(text)
    for name in placeholders:
        if name not in _PLACEHOLDERS:
            raise ValueError(
                f"topic: {{{name}}} is not a placeholder; there are {{prefix}}, {{schema}} and {{table}}"
            )
    if re.fullmatch(r"[A-Za-z0-9._-]*", _PLACEHOLDER.sub("", text), re.ASCII) is None:
        raise ValueError(
            f"topic: {text} may hold only ASCII letters, digits, '.', '_' and '-' beside {{prefix}}, {{schema}} and "
            "{table}, as Kafka demands of topics"
        )
    parsed = parse_pattern(pattern, "routes.tables")
    if parsed.has_wild_table and "table" not in placeholders:
        raise ValueError(
            f"topic: {text} needs {{table}}, because {pattern} may match several tables and a topic has the rows of one"
        )
    if parsed.has_wild_schema and "schema" not in placeholders:
        raise ValueError(
            f"topic: {text} needs {{schema}}, because {pattern} may match tables of several schemas and a topic has "
            "the rows of one"
        )


def begins_as_table(text: str, prefix: str) -> bool:
    """Return True if a topic, or a template of topics, has the form of tables' topics."""
    shown = _PLACEHOLDER.sub(lambda match: prefix if match[1] == "prefix" else "x", text)
    begins = f"{prefix}."
    return shown.startswith(begins) and re.fullmatch(r"[^.]+\..+", shown[len(begins) :]) is not None


def rendered(template: str, prefix: str, schema: str, table: str) -> str:
    """Return the topic's name, with all characters of the names."""
    values = {"prefix": prefix, "schema": schema, "table": table}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def rendered_qualified(template: str, prefix: str, table: str) -> str:
    """Return the topic's name for `schema.table`, without quotes."""
    if _needs_no_split(template):
        return rendered(template.replace(_BOTH, "{table}"), prefix, "", table)
    schema, _, name = table.partition(".")
    return rendered(template, prefix, schema, name)


def needs_name(template: str, schema: str, table: str) -> bool:
    """Return True if the template gives the table no topic, because a dot in its name could
    separate schema and table.
    """
    return "." in schema + table and not _needs_no_split(template)


def _needs_no_split(template: str) -> bool:
    return not {"schema", "table"} & set(_PLACEHOLDER.findall(template.replace(_BOTH, "")))
