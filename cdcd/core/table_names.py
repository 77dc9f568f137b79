"""Names of tables as one text, `schema.table`.

The rule: two tables never have the same text. If a schema or a table has a dot in its name, each of the two names that
has a dot or a double quote stands in double quotes, as in `"crm.x".t`. Otherwise a stranger's schema `crm.x` with a
table `t` would be taken for the table `x.t` of the schema `crm`, and rules, requests and commands for the one would
reach the other. All other tables have their plain names, without quotes.
"""

import re
from typing import Final

Table = tuple[str, str]
"""(schema, name)."""

_NAME: Final = r'"(?:[^"]|"")+"|[^".]+'
_TEXT: Final = re.compile(rf"({_NAME})\.({_NAME})", re.DOTALL)


def table_text(schema: str, table: str) -> str:
    """Return the text that stands for this table, and for no other one."""
    if "." not in schema and "." not in table:
        return f"{schema}.{table}"
    return f"{_part(schema)}.{_part(table)}"


def _part(name: str) -> str:
    if "." not in name and '"' not in name:
        return name
    return '"' + name.replace('"', '""') + '"'


def split_table(text: str) -> Table:
    """Return schema and name of the table for which `table_text` gave the text.

    Other text with several dots, as a person may have written it, is split at the first dot.
    """
    schema, _, table = text.partition(".")
    if "." in table and (match := _TEXT.fullmatch(text)) is not None:
        return _name(match[1]), _name(match[2])
    return schema, table


def _name(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
