"""The reader that an owner's tables should have: the SQL that makes the role, and the lines for cdcd.yaml."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.pasted import quoted as identifier

_ROLE_MAX: Final = 63
"""Bytes of a role's name (NAMEDATALEN - 1)."""

_PLAIN: Final = re.compile(r'[^".*?\s]+')


@dataclass(frozen=True, slots=True)
class OwnedTables:
    """Tables of one owner.

    Attributes:
        owner: the role that owns them.
        tables: the names under which they are published, as (schema, table).
        parts: all relations that have their rows, partitions too, as (schema, name).
    """

    owner: str
    tables: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]

    @property
    def reader(self) -> str:
        """A name for the role that reads them."""
        name = f"cdcd_reads_{self.owner}"
        while len(name.encode()) > _ROLE_MAX:
            name = name[:-1]
        return name

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of `postgres.readers` that match these tables and no other."""
        return tuple([f"{_quoted(schema)}.{_quoted(table)}" for schema, table in self.tables])

    def statements(self, *, password: str = "") -> list[str]:
        """SQL that makes the reader with the rights that it needs. `password`: what stands behind PASSWORD."""
        role = identifier(self.reader)
        schemas = ", ".join(identifier(schema) for schema in sorted({schema for schema, _ in self.parts}))
        parts = ", ".join(f"{identifier(schema)}.{identifier(name)}" for schema, name in self.parts)
        return [
            f"CREATE ROLE {role} LOGIN{f' PASSWORD {password}' if password else ''};",
            f"GRANT USAGE ON SCHEMA {schemas} TO {role};",
            f"GRANT SELECT ON {parts} TO {role};",
        ]

    def entry(self, *, password: str = "") -> str:
        """The entry of `postgres.readers`, as YAML in one line. `password`: for example ${NAME}; "": no password."""
        given = f", password: {json.dumps(password)}" if password else ""
        return (
            f"{{tables: {flow(self.patterns)}, user: {json.dumps(self.reader, ensure_ascii=False)}{given}}}"
        )


def flow(texts: Sequence[str]) -> str:
    """The texts as a list of YAML in one line."""
    return f"[{', '.join(json.dumps(text, ensure_ascii=False) for text in texts)}]"


def _quoted(name: str) -> str:
    """A name as a part of a pattern that matches this name alone."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
