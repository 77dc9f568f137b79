"""Readers of a configuration: `postgres.readers` as sessions need them.

Passwords of readers are read from their files at each connection, because a secret may change while the daemon
runs.
"""

from cdcd.adapters.postgres.connection import Dsn, parse_dsn
from cdcd.adapters.postgres.readers import Access, Readers, as_role, with_password
from cdcd.config.loading import Config
from cdcd.config.sections.postgres import ReaderConfig
from cdcd.config.sources import read_secret
from cdcd.core.errors import ConfigError
from cdcd.core.snapshot.reader_choice import KEY


def readers_of(config: Config) -> Readers:
    """Return the choice of the role that reads each table. ConfigError: a DSN cannot be read."""
    main = parse_dsn(*config.postgres.access())
    return Readers(
        Access(None, main.get("user"), (), lambda: main),
        [_access(main, place, reader) for place, reader in enumerate(config.postgres.readers)],
    )


def _access(main: Dsn, place: int, reader: ReaderConfig) -> Access:
    own = None if reader.dsn is None else _own_dsn(place, reader.dsn.get_secret_value())

    def dsn() -> Dsn:
        password, command = _password(place, reader), reader.password_command or ()
        if own is not None:
            return with_password(own, password, command)
        return as_role(main, reader.user or "", password, command)

    return Access(place, reader.user or (own.get("user") if own else ""), reader.tables, dsn)


def _own_dsn(place: int, text: str) -> Dsn:
    try:
        return parse_dsn(text)
    except ConfigError as error:
        raise ConfigError(
            error.message.replace("postgres.dsn", f"{KEY}[{place}].dsn"), hint=error.hint
        ) from None


def _password(place: int, reader: ReaderConfig) -> str | None:
    if reader.password_file is not None:
        text, wrong = read_secret(str(reader.password_file))
        if wrong:
            raise ConfigError(f"{KEY}[{place}].password_file: {wrong}.")
        return text
    return None if reader.password is None else reader.password.get_secret_value()
