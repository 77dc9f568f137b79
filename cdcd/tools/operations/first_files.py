"""The two files that `cdcd init` writes: the configuration, and the SQL that a database administrator runs. Both
follow from the answers, and from what database and Kafka say.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.surroundings import Surroundings, database_of, dsn_for, look_around
from cdcd.config.loading import parse_config
from cdcd.config.types import NAME_LENGTH_MAX
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.pasted import cdcd, literal, shell
from cdcd.core.pasted import quoted as identifier
from cdcd.daemon.rules.readers import OwnedTables, flow, untrusted
from cdcd.telemetry.findings import named
from cdcd.telemetry.terminal_text import number

_WIDTH: Final = 110

PASSWORD: Final = "CDCD_POSTGRES__PASSWORD"  # noqa: S105  the name of a variable
"""The variable that holds the password of cdcd's role, for psql and for cdcd. PGPASSWORD is the administrator's."""

READER_PASSWORD: Final = "CDCD_READER_PASSWORD"  # noqa: S105
"""The variable that holds the password of all readers, for psql and for the configuration."""

_RANDOM: Final = '"$(head -c 18 /dev/urandom | base64)"'
"""A new password, for every POSIX shell. openssl is not installed everywhere."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The operator's answers.

    Attributes:
        dsn: DSN of the pipeline, without a secret.
        admin_dsn: DSN of the administrator who runs the SQL, without a secret.
        tables: patterns of tables.
        brokers: number of Kafka's brokers; None: Kafka did not answer.
    """

    name: str
    dsn: str
    role: str
    tables: tuple[str, ...]
    bootstrap_servers: str
    brokers: int | None
    admin_dsn: str

    @property
    def publication(self) -> str:
        return f"cdcd_{self.name}"


def name_for(database: str) -> str:
    """Return a name for a database's pipeline, with the characters that a slot may have."""
    return re.sub(r"[^a-z0-9_]+", "_", database.lower()).strip("_")[:NAME_LENGTH_MAX] or "cdcd"


def readers(answers: Answers, found: Surroundings) -> list[OwnedTables]:
    """Return the tables that a separate reader must read, by owner: owners that are neither
    superusers nor cdcd's role.
    """
    return list(untrusted(found.owned, {answers.role}))


def configuration(answers: Answers, found: Surroundings) -> str:
    """Return the text of cdcd.yaml."""
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
  # The password does not belong here: password_file, the variable {PASSWORD}, or ~/.pgpass.
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
    """Return the lines of `postgres.readers`, with a final line end."""
    if not owners:
        return ""
    lines = [
        "  # The owner of a table can run code as the role that reads the table. So each owner's tables have a role of",
        "  # their own. Its password comes from the environment; password_file and password_command are other ways.",
        f"  # For an owner that you trust as much as cdcd, write instead: trusted_owners: {flow([owners[0].owner])}",
        "  readers:",
    ]
    return "\n".join([*lines, *(f"    - {each.entry(password=_REFERENCE)}" for each in owners)]) + "\n"


_REFERENCE: Final = f"${{{READER_PASSWORD}}}"


def psql(answers: Answers, found: Surroundings, file: str) -> str:
    """Return the command that runs the SQL, for a shell in which the variables of `passwords` are set."""
    given = [
        f'-v {variable}="${name}"'
        for variable, name, is_new in (
            ("password", PASSWORD, not found.has_role),
            ("reader_password", READER_PASSWORD, _has_new_reader(answers, found)),
        )
        if is_new
    ]
    return " ".join([shell("psql", "-d", answers.admin_dsn), *given, shell("-f", file)])


def passwords(answers: Answers, found: Surroundings) -> list[str]:
    """Return commands that set the variables with the passwords.

    A new role gets a new password; other passwords are typed in.
    """
    typed = "read -r {0} && export {0}"
    lines = [typed.format(PASSWORD) if found.has_role else f"export {PASSWORD}={_RANDOM}"]
    if readers(answers, found):
        is_new = _has_new_reader(answers, found)
        lines.append(f"export {READER_PASSWORD}={_RANDOM}" if is_new else typed.format(READER_PASSWORD))
    return lines


def _has_new_reader(answers: Answers, found: Surroundings) -> bool:
    return any(each.reader not in found.roles for each in readers(answers, found))


def warnings(found: Surroundings, sql: str) -> list[str]:
    """Return warnings for the terminal about tables without a key, and about a setting that needs a restart."""
    lines = []
    if found.keyless and not found.has_publication:
        count, names = len(found.keyless), [table.qualified for table in found.keyless]
        lines.append(
            f"{named(names)} {'has' if count == 1 else 'have'} no primary key. PostgreSQL rejects UPDATE and DELETE on "
            f"a published table without one, so the publication leaves {'it' if count == 1 else 'them'} out. To "
            f"deliver {'it' if count == 1 else 'them'}, see the end of {sql}."
        )
    if found.wal_level != "logical":
        is_set = found.is_rds or found.restart_pending
        how = _restart(found) if is_set else "Run the SQL, then restart PostgreSQL."
        lines.append(
            f"wal_level is {found.wal_level}"
            + (", and a change waits for the restart" if found.restart_pending else "")
            + f". {how} `cdcd check` sees whether it was restarted."
        )
    return lines


def _restart(found: Surroundings) -> str:
    """Return the step that makes wal_level logical after the SQL was run."""
    if found.is_rds:
        return "Set rds.logical_replication = 1 in the parameter group, and restart the instance."
    return "Restart PostgreSQL."


def steps(answers: Answers, found: Surroundings, *, file: str, sql: str) -> list[tuple[str, list[str]]]:
    """The next steps: a sentence for each step, with its shell commands. All commands are for the same shell."""
    role = f"role {answers.role}"
    keep = f"Type the password of {role}" if found.has_role else f"Make a password for {role}, and keep it"
    return [
        (f"Read {sql}.", []),
        (f"{keep}.", passwords(answers, found)),
        ("Run the SQL.", [psql(answers, found, sql)]),
        *([] if found.wal_level == "logical" else [(_restart(found), list[str]())]),
        ("Check both sides.", [cdcd("check", "--config", file)]),
        ("Start.", [cdcd("run", "--config", file)]),
    ]


def statements(answers: Answers, found: Surroundings, file: str) -> str:
    """Return the text of the SQL. It can be run once; existing objects are left out and named in a comment."""
    role = identifier(answers.role)
    parts = [
        f"""\
-- What the pipeline {answers.name} needs in database {_comment(found.database)}. Written by `cdcd init`.
-- Read it, then run it as a superuser, or as the owner of the tables with CREATEROLE and REPLICATION:
--
{_commented([*passwords(answers, found), psql(answers, found, file)])}
--
\\set ON_ERROR_STOP on""",
        _wal_level(found),
        _role(answers, found, role),
        _grants(answers, found, role),
        *(_reader(each, found) for each in readers(answers, found)),
        _publication(answers, found),
        _secured(found, role),
        _keyless(answers, found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _wal_level(found: Surroundings) -> str:
    if found.wal_level == "logical":
        return ""
    how = (
        "-- Set rds.logical_replication = 1 in the parameter group, and restart the instance."
        if found.is_rds
        else "-- It is set, and waits for that restart."
        if found.restart_pending
        else "ALTER SYSTEM SET wal_level = 'logical';\nSELECT pg_reload_conf();"
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
    tables = [f"{identifier(table.schema)}.{identifier(table.name)}" for table in found.published]
    left_out = (
        f" Not yet: {number(len(found.keyless), 'table')} without a key (below)." if found.keyless else ""
    )
    return "\n".join(
        [
            f"-- The delivered tables.{left_out} A table that is made later: ALTER PUBLICATION ... ADD TABLE ...;",
            "-- Changes of partitions go to the topic of their table.",
            f"CREATE PUBLICATION {name}{f' FOR TABLE {_listed(tables)}' if tables else ''}",
            "  WITH (publish_via_partition_root = true);",
        ]
    )


def _keyless(answers: Answers, found: Surroundings) -> str:
    if not found.keyless or found.has_publication:
        return ""
    lines = [
        "-- Not delivered yet, because they have no primary key: PostgreSQL rejects UPDATE and DELETE on such a table",
        "-- as soon as it is published. Give each a primary key, or let PostgreSQL write whole old rows (more WAL;",
        "-- records then have no key). If rows are only inserted, the second line is enough. Remove the dashes before:",
    ]
    for table in found.keyless:
        name = f"{identifier(table.schema)}.{identifier(table.name)}"
        lines += [
            f"-- ALTER TABLE {_comment(name)} REPLICA IDENTITY FULL;",
            f"-- ALTER PUBLICATION {identifier(answers.publication)} ADD TABLE {_comment(name)};",
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
    """Return names with commas, in lines of limited width."""
    lines = [""]
    for index, name in enumerate(names):
        text = name + ("," if index < len(names) - 1 else "")
        if lines[-1] and len(lines[-1]) + len(text) > _WIDTH:
            lines.append("   ")
        lines[-1] += (" " if lines[-1].strip() else "") + text
    return "\n".join(lines)


def _commented(commands: Sequence[str]) -> str:
    return "\n".join(f"--     {_comment(command)}" for command in commands)


def _comment(text: str) -> str:
    """Return a name for a comment, without line breaks, which would end the comment."""
    return text if text.isprintable() else literal(ascii(text))


KAFKA_S: Final = 5.0


def database(dsn: str) -> str:
    """Return the name of the DSN's database. Raises as `look`."""
    return asyncio.run(database_of(parse_dsn(dsn)))


def look(dsn: str, role: str, tables: tuple[str, ...], publication: str) -> Surroundings:
    """Return the state of the database.

    Raises:
        ConfigError: the DSN or a pattern cannot be read.
        TransientError, SourceError: PostgreSQL refuses the connection, or no table matches.
    """
    return asyncio.run(look_around(parse_dsn(dsn), role, tables, publication))


def pipeline_dsn(dsn: str, role: str, found: Surroundings) -> str:
    """Return the DSN for the configuration, without a secret."""
    return dsn_for(parse_dsn(dsn), found.database, role)


def admin_dsn(dsn: str, found: Surroundings) -> str:
    """Return the given DSN without a secret, for the psql that runs the SQL."""
    return dsn_for(parse_dsn(dsn), found.database)


def count_brokers(bootstrap_servers: str) -> tuple[int | None, str]:
    """Return the number of Kafka's brokers and "", or None and the reason why Kafka does not answer."""
    connection, _ = client.split({"bootstrap.servers": bootstrap_servers})
    try:
        return len(Admin(connection, KAFKA_S).cluster().brokers), ""
    except CdcdError as error:
        return None, error.message


def check_text(text: str, answers: Answers) -> None:
    """Raise ConfigError if an answer makes a configuration that cdcd refuses."""
    parse_config(text, {READER_PASSWORD: "stand-in"}, f"the configuration of {answers.name}")


def refuse_existing(files: tuple[Path, ...]) -> None:
    """Raise ConfigError if a file exists already."""
    if there := [str(file) for file in files if file.exists()]:
        raise ConfigError(
            f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already, and nothing was written.",
            hint="Name other files (--output, --sql), or let cdcd overwrite them: --force.",
        )


def write(texts: Mapping[Path, str], *, force: bool) -> None:
    """Write all files, or none if one of them exists and `force` is False.

    ConfigError: a file exists or cannot be written.
    """
    if not force:
        refuse_existing(tuple(texts))
    for file, text in texts.items():
        try:
            with file.open("w" if force else "x", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise ConfigError(f"Cannot write {file}: {os.strerror(error.errno or 0)}.") from None
