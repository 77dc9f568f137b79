"""Reads database and Kafka for `cdcd init`, and writes its files."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.surroundings import Surroundings, database_of, dsn_for, look_around
from cdcd.config.loading import parse_config
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.tools.operations.first_files import READER_PASSWORD, Answers

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
