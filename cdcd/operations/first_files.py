"""The two files that `cdcd init` writes: the configuration, and the SQL that a database administrator runs."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.checks.reader_proposal import OwnedTables, flow
from cdcd.checks.readers import untrusted
from cdcd.config.types import NAME_LENGTH_MAX
from cdcd.pasted import literal, shell
from cdcd.pasted import quoted as identifier
from cdcd.postgres.surroundings import Surroundings

_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Answers:
    """What was asked.

    Attributes:
        dsn: of the pipeline, without a secret.
        tables: patterns.
        brokers: number of brokers that Kafka has; None: it could not be asked.
    """

    name: str
    dsn: str
    role: str
    tables: tuple[str, ...]
    bootstrap_servers: str
    brokers: int | None

    @property
    def publication(self) -> str:
        return f"cdcd_{self.name}"


def name_for(database: str) -> str:
    """A name for the pipeline of a database, of the letters that a slot may have."""
    return re.sub(r"[^a-z0-9_]+", "_", database.lower()).strip("_")[:NAME_LENGTH_MAX] or "cdcd"


def readers(answers: Answers, found: Surroundings) -> list[OwnedTables]:
    """The tables that a reader must read for each owner: of owners that are neither superusers nor cdcd's role."""
    return list(untrusted(found.owned, {answers.role}))


def configuration(answers: Answers, found: Surroundings) -> str:
    """The text of cdcd.yaml."""
    replicas = min(3, answers.brokers or 1)
    why = (
        "Kafka could not be asked: 3 where there are three brokers or more."
        if answers.brokers is None
        else f"Kafka has {answers.brokers} broker{'' if answers.brokers == 1 else 's'}."
    )
    patterns = ", ".join(json.dumps(pattern, ensure_ascii=False) for pattern in answers.tables)
    return f"""\
# Written by `cdcd init`. `cdcd config --reference` shows every other key, its default and why.
name: {answers.name}
postgres:
  # The password does not belong here: password_file, the variable PGPASSWORD, or ~/.pgpass.
  dsn: {json.dumps(answers.dsn, ensure_ascii=False)}
  tables: [{patterns}]
{_readers(readers(answers, found))}kafka:
  bootstrap_servers: {json.dumps(answers.bootstrap_servers)}
topics:
  create:
    # {why}
    replication_factor: {replicas}
"""


def _readers(owners: Sequence[OwnedTables]) -> str:
    """The lines of `postgres.readers`, with the line's end."""
    if not owners:
        return ""
    lines = [
        "  # The owner of a table can run code as the role that reads the table. So each owner's tables have a role of",
        "  # their own. Each needs password_file, password_command or a line of ~/.pgpass. For an owner that you trust",
        "  # as much as cdcd, write instead, for example: trusted_owners: " + flow([owners[0].owner]),
        "  readers:",
    ]
    return "\n".join([*lines, *(f"    - {each.entry()}" for each in owners)]) + "\n"


def statements(answers: Answers, found: Surroundings, file: str) -> str:
    """The text of the SQL. It can be run once; what exists already is left out, and said."""
    role = identifier(answers.role)
    parts = [
        f"""\
-- What the pipeline {answers.name} needs in database {_comment(found.database)}. Written by `cdcd init`.
-- Read it, then run it as a superuser, or as the owner of the tables with CREATEROLE and REPLICATION:
--
--     {_comment(shell("psql", "-d", found.database))} {variables(answers, found)} {_comment(shell("-f", file))}
--
\\set ON_ERROR_STOP on""",
        _wal_level(found),
        _role(answers, found, role),
        _grants(answers, found, role),
        *(_reader(each, found) for each in readers(answers, found)),
        _publication(answers, found),
        _identities(found),
        _secured(found, role),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _wal_level(found: Surroundings) -> str:
    if found.wal_level == "logical":
        return ""
    how = (
        "-- Set rds.logical_replication = 1 in the parameter group, and restart the instance."
        if found.is_rds
        else "ALTER SYSTEM SET wal_level = 'logical';"
    )
    return f"-- wal_level is {found.wal_level}. It must be logical, and that takes a restart of PostgreSQL.\n{how}"


def _role(answers: Answers, found: Surroundings, role: str) -> str:
    lines = []
    if not found.has_role:
        replication = "" if found.is_rds else " REPLICATION"
        lines = [
            "-- The role that cdcd connects as. It can read all published changes: keep its password well.",
            f"CREATE ROLE {role} LOGIN{replication} PASSWORD :'password';",
        ]
    elif found.may_replicate:
        lines = [f"-- Role {_comment(answers.role)} exists, and may replicate."]
    else:
        lines = [f"-- Role {_comment(answers.role)} exists, and may not replicate yet."]
        if not found.is_rds:
            lines.append(f"ALTER ROLE {role} REPLICATION;")
    if found.is_rds and not found.may_replicate:
        lines.append(f"GRANT rds_replication TO {role};")
    return "\n".join([*lines, f"GRANT CONNECT ON DATABASE {identifier(found.database)} TO {role};"])


def variables(answers: Answers, found: Surroundings) -> str:
    """The variables that psql is given for the SQL."""
    return "-v password='...'" + (" -v reader_password='...'" if readers(answers, found) else "")


def _reader(tables: OwnedTables, found: Surroundings) -> str:
    make, *grants = tables.statements(password=":'reader_password'")  # noqa: S106  a variable of psql
    lines = [
        f"-- Reads the rows of {_comment(tables.owner)}'s tables, and nothing else.",
        "-- The owner can run code as this role, so give it no other right.",
        f"GRANT CONNECT ON DATABASE {identifier(found.database)} TO {identifier(tables.reader)};",
        *grants,
    ]
    exists = f"-- Role {_comment(tables.reader)} exists."
    lines.insert(2, exists if tables.reader in found.roles else make)
    return "\n".join(lines)


def _grants(answers: Answers, found: Surroundings, role: str) -> str:
    of_readers = {part for each in readers(answers, found) for part in each.parts}
    others = {each.sql_name for each in found.owned if each.part in of_readers}
    readable = [name for name in found.readable if name not in others]
    if not readable:
        return "-- The rows that exist already are read by the roles below, so this role needs SELECT on no table."
    of_role = {table.schema for table in found.tables if (table.schema, table.name) not in of_readers}
    schemas = ", ".join(identifier(schema) for schema in sorted(of_role))
    return "\n".join(
        [
            "-- Lets the role read the rows that exist already. Not needed with snapshot.mode: never.",
            f"GRANT USAGE ON SCHEMA {schemas} TO {role};",
            f"GRANT SELECT ON {_listed(readable)}",
            f"  TO {role};",
        ]
    )


def _publication(answers: Answers, found: Surroundings) -> str:
    name = identifier(answers.publication)
    if found.has_publication:
        return f"-- Publication {_comment(answers.publication)} exists. Compare: \\dRp+ {answers.publication}"
    tables = [f"{identifier(table.schema)}.{identifier(table.name)}" for table in found.tables]
    return "\n".join(
        [
            "-- What is delivered. A table that is made later: ALTER PUBLICATION ... ADD TABLE ...;",
            "-- Changes of partitions go to the topic of their table.",
            f"CREATE PUBLICATION {name} FOR TABLE {_listed(tables)}",
            "  WITH (publish_via_partition_root = true);",
        ]
    )


def _identities(found: Surroundings) -> str:
    without = [table for table in found.tables if not table.has_identity]
    if not without:
        return ""
    lines = [
        "-- These tables have no primary key: PostgreSQL rejects UPDATE and DELETE on them while they are published.",
        "-- Give each a primary key, or let PostgreSQL write whole old rows (more WAL; records still have no key):",
    ]
    lines += [
        f"-- ALTER TABLE {_comment(f'{identifier(table.schema)}.{identifier(table.name)}')} REPLICA IDENTITY FULL;"
        for table in without
    ]
    return "\n".join(lines)


def _secured(found: Surroundings, role: str) -> str:
    if not found.secured:
        return ""
    return "\n".join(
        [
            f"-- Row-level security hides rows of {_comment(', '.join(found.secured))} from the role. To read them:",
            f"-- ALTER ROLE {_comment(role)} BYPASSRLS;",
        ]
    )


def _listed(names: Sequence[str]) -> str:
    """Names with commas, in lines that can be read."""
    lines = [""]
    for index, name in enumerate(names):
        text = name + ("," if index < len(names) - 1 else "")
        if lines[-1] and len(lines[-1]) + len(text) > _WIDTH:
            lines.append("   ")
        lines[-1] += (" " if lines[-1].strip() else "") + text
    return "\n".join(lines)


def _comment(text: str) -> str:
    """A name within a comment: a line break would end the comment."""
    return text if text.isprintable() else literal(ascii(text))
