"""The check of `postgres.readers`: which role reads whose tables, and which other rights this role has.

The owner of a table runs code with the rights of the role that reads the table, because PostgreSQL evaluates the
table's index expressions when it plans a query. So the role of postgres.dsn reads tables of trusted owners only,
and a reader has no right beyond SELECT on the tables of one owner. `cdcd check` reports everything else; with
`security.strict`, no session starts.

A proposal is the reader that an owner's tables should have: the SQL for the role, and the lines for cdcd.yaml.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.readers import Owned, ReaderFacts, ReadersFacts, read_readers
from cdcd.config.loading import Config
from cdcd.core.errors import ConfigError
from cdcd.core.pasted import quoted as identifier
from cdcd.core.table_names import split_table, table_text
from cdcd.daemon.readers import readers_of
from cdcd.telemetry.findings import NAMED_MAX, Finding, Level, named, of_error

_ROLE_MAX: Final = 63
"""Maximum bytes of a role's name (NAMEDATALEN - 1)."""

_PLAIN: Final = re.compile(r'[^".*?\s]+')


@dataclass(frozen=True, slots=True)
class OwnedTables:
    """Tables of one owner.

    Attributes:
        owner: role that owns the tables.
        tables: published names, as (schema, table).
        parts: all relations that contain their rows, including partitions, as (schema, name).
    """

    owner: str
    tables: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]

    @property
    def reader(self) -> str:
        """Name for the role that reads the tables."""
        name = f"cdcd_reads_{self.owner}"
        while len(name.encode()) > _ROLE_MAX:
            name = name[:-1]
        return name

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of `postgres.readers` that match exactly these tables."""
        return tuple([f"{_quoted(schema)}.{_quoted(table)}" for schema, table in self.tables])

    def statements(self, *, password: str = "") -> list[str]:
        """Return SQL that creates the reader with the rights that it needs.

        `password`: text after PASSWORD; "": no password.
        """
        role = identifier(self.reader)
        schemas = ", ".join(identifier(schema) for schema in sorted({schema for schema, _ in self.parts}))
        parts = ", ".join(f"{identifier(schema)}.{identifier(name)}" for schema, name in self.parts)
        return [
            f"CREATE ROLE {role} LOGIN{f' PASSWORD {password}' if password else ''};",
            f"GRANT USAGE ON SCHEMA {schemas} TO {role};",
            f"GRANT SELECT ON {parts} TO {role};",
        ]

    def entry(self, *, password: str = "") -> str:
        """Return the entry of `postgres.readers`, as YAML in one line.

        `password`: for example ${NAME}; "": no password.
        """
        given = f", password: {json.dumps(password)}" if password else ""
        return (
            f"{{tables: {flow(self.patterns)}, user: {json.dumps(self.reader, ensure_ascii=False)}{given}}}"
        )


def flow(texts: Sequence[str]) -> str:
    """Return the texts as a YAML list in one line."""
    return f"[{', '.join(json.dumps(text, ensure_ascii=False) for text in texts)}]"


def _quoted(name: str) -> str:
    """Return a name as a part of a pattern that matches only this name."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


SUBJECT: Final = "postgres.readers"

BY_OWNERS: Final = frozenset({"reader.missing", "reader.tables", "reader.shared"})
"""Codes of findings that the owner of a table can cause."""


async def ask_about_readers(config: Config, connection: Connection, oids: Collection[int]) -> ReadersFacts:
    """Return owners and readers of these published tables. Raises TransientError and SourceError."""
    return await read_readers(
        connection,
        readers_of(config),
        oids,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
    )


async def refuse_untrusted(
    config: Config, connection: Connection, oids: Collection[int], *, is_first: bool
) -> list[Finding]:
    """Refuse findings about readers if `security.strict` is set, and return those that do not end this start.

    An owner can cause some findings, by a new table or by GRANT. They end only the first start of a pipeline, because
    an owner must not end a pipeline that runs. Later, no table is read that its owner could use (`Access.trusted`).

    Raises:
        ConfigError: names every finding that ends this start.
    """
    if not config.security.strict:
        return []
    facts = await ask_about_readers(config, connection, oids)
    found = [one for one in check_readers(facts, config) if one.level == "error"]
    refused = [one for one in found if is_first or one.code not in BY_OWNERS]
    if refused:
        lines, hint = told(refused)
        raise ConfigError(
            "\n  ".join(["security.strict refuses to start:", *lines]),
            hint=f"{hint} Without security.strict, these findings are warnings.",
        )
    return found


def told(findings: Sequence[Finding]) -> tuple[list[str], str]:
    """Return a line for each finding, and what to do about all of them."""
    return [f"{one.subject}: {one.found}" for one in findings], " ".join(
        dict.fromkeys(one.fix for one in findings)
    )


def check_readers(facts: ReadersFacts, config: Config) -> Iterator[Finding]:
    """Yield the findings of `cdcd check` about owners and readers."""
    level: Level = "error" if config.security.strict else "warning"
    trusted = {*config.postgres.trusted_owners, facts.role}
    mine = [each for each in facts.owned if facts.places[each.table] is None]
    missing = list(untrusted(mine, trusted))
    for each in missing:
        yield _missing(each, facts.role, level)
    for reader in facts.readers:
        if reader.refusal is not None:
            yield of_error("reader.connect", _subject(reader), reader.refusal)
        elif reader.elsewhere:
            yield Finding(
                "error",
                "reader.connect",
                _subject(reader),
                "its DSN leads to another database than postgres.dsn",
                f"Let {reader.access.key}.dsn name the same server and database as postgres.dsn.",
            )
        else:
            yield from _check_reader(reader, facts, trusted, level)
    if facts.owned and not missing:
        count = len(facts.readers)
        found = f"{count} readers" if count else "every table belongs to a trusted owner"
        yield Finding("ok", "reader.missing", SUBJECT, found)


def untrusted(owned: Sequence[Owned], trusted: Collection[str]) -> Iterator[OwnedTables]:
    """Yield, by owner, the tables whose owners are neither superusers nor trusted."""
    by_owner: dict[str, list[Owned]] = {}
    for each in owned:
        if not each.is_superuser and each.owner not in trusted:
            by_owner.setdefault(each.owner, []).append(each)
    for owner, tables in sorted(by_owner.items()):
        roots = {each.table for each in tables}
        # The reader of a partitioned table reads all partitions of that table, also those that other owners own.
        parts = [each.part for each in owned if each.table in roots]
        yield OwnedTables(owner, tuple(sorted(roots)), tuple(sorted(set(parts))))


def _missing(tables: OwnedTables, role: str, level: Level) -> Finding:
    names = [table_text(*table) for table in tables.tables]
    return Finding(
        level,
        "reader.missing",
        SUBJECT,
        f"role {tables.owner} owns {named(names)} and can run code as role {role} whenever cdcd reads these tables",
        f"Make a reader: {' '.join(tables.statements())} Then add to cdcd.yaml: postgres: {{readers: "
        f"[{tables.entry()}]}}, with a password. If {tables.owner} is trusted: postgres: {{trusted_owners: "
        f"{flow([tables.owner])}}}.",
    )


def _check_reader(
    reader: ReaderFacts, facts: ReadersFacts, trusted: set[str], level: Level
) -> Iterator[Finding]:
    subject, role = _subject(reader), identifier(reader.access.role)
    problems = list(_check_rights(reader, subject, role, level))
    owners = sorted(
        {
            each.owner
            for each in facts.owned
            if facts.places[each.table] == reader.access.place
            and not each.is_superuser
            and each.owner not in trusted
        }
    )
    if len(owners) > 1:
        problems.append(
            Finding(
                level,
                "reader.shared",
                subject,
                f"reads tables of {named(owners)}, so each of these owners can see the tables of the others",
                "Give each owner a reader.",
            )
        )
    if reader.others:
        others = _of_others(reader, facts)
        whose = f"; {named(others)} of them belong to other readers" if others else ""
        problems.append(
            Finding(
                level,
                "reader.tables",
                subject,
                f"may SELECT from {named(reader.others)}, which it does not read{whose}",
                f"REVOKE SELECT ON {', '.join(map(_sql_name, reader.others[:NAMED_MAX]))} FROM {role}; or FROM PUBLIC, "  # noqa: S608
                "if everybody has the right.",
            )
        )
    if reader.offered:
        groups = ", ".join(map(identifier, reader.offered))
        problems.append(
            Finding(
                level,
                "reader.tables",
                subject,
                f"is a member of {named(reader.offered)}, which granted themselves to it, so the owner of a table that "
                "it reads could use their rights",
                f"REVOKE {groups} FROM {role}; as a superuser.",
            )
        )
    yield from problems
    if not reader.tables:
        yield Finding(
            "warning",
            "reader.unmatched",
            subject,
            f"{', '.join(reader.access.patterns)} matches no published table that an earlier reader does not read",
            "Correct the patterns, or take the reader out: <schema>.<table> as PostgreSQL spells them.",
        )
    elif not problems:
        yield Finding("ok", "reader.rights", subject, f"reads {named(reader.tables)} and has no other right")


def _check_rights(reader: ReaderFacts, subject: str, role: str, level: Level) -> Iterator[Finding]:
    needless = [one for one in reader.attributes if not (one == "BYPASSRLS" and reader.has_policies)]
    if needless:
        yield Finding(
            level,
            "reader.rights",
            subject,
            f"has {', '.join(needless)}, which the owner of a table that it reads could use",
            f"ALTER ROLE {role} {' '.join(f'NO{one}' for one in needless)};",
        )
    if reader.memberships:
        groups = ", ".join(map(identifier, reader.memberships))
        yield Finding(
            level,
            "reader.rights",
            subject,
            f"is a member of {named(reader.memberships)}, whose rights the owner of a table that it reads could use",
            f"REVOKE {groups} FROM {role};",
        )


def _of_others(reader: ReaderFacts, facts: ReadersFacts) -> list[str]:
    """Return the relations outside of the reader's tables that it may read and that other readers read."""
    theirs = {
        name
        for each in facts.owned
        if facts.places[each.table] not in (None, reader.access.place)
        for name in (each.name, table_text(*each.part))
    }
    return [name for name in reader.others if name in theirs]


def _subject(reader: ReaderFacts) -> str:
    return f"{reader.access.key} (role {reader.access.role})"


def _sql_name(name: str) -> str:
    return ".".join(map(identifier, split_table(name)))
