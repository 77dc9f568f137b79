"""Choice of the role that reads the rows of a table.

When PostgreSQL plans a query on a table, it folds the expressions of the table's indexes, and so runs functions of
the table's owner with the rights of the role that reads. No lock that SELECT permits prevents an owner from
creating such an index. So each owner's tables can be given a reader: a role with SELECT on these tables and no
other right. Every session that plans a query on a table is opened with the access that `Readers.of` names. The
session of cdcd's own role only reads the catalog, exports snapshots and writes watermarks, which runs no code of an
owner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from psycopg.conninfo import make_conninfo

from cdcd.adapters.postgres.connection import Dsn, open_session
from cdcd.adapters.postgres.replication import identifier
from cdcd.core.errors import CdcdError, ConfigError, FatalError, SourceError, TransientError
from cdcd.core.snapshot.reader_choice import KEY, ReaderChoice

_SAME: Final = "SELECT current_database(), (SELECT system_identifier FROM pg_control_system())::text"


@dataclass(frozen=True, slots=True)
class Access:
    """Role and DSN for sessions of one role.

    Attributes:
        place: the reader's index in `postgres.readers`; None: the role of postgres.dsn.
        role: name of the role, for messages.
        patterns: patterns of the tables that the role reads.
        dsn: returns the DSN with the current password. The DSN is a secret. Raises ConfigError if its file cannot
            be read.
    """

    place: int | None
    role: str
    patterns: tuple[str, ...]
    dsn: Callable[[], Dsn] = field(repr=False)

    @property
    def key(self) -> str:
        """Name of the configuration entry."""
        return "postgres.dsn" if self.place is None else f"{KEY}[{self.place}]"

    def text(self) -> tuple[str, tuple[str, ...]]:
        """Return the arguments of `parse_dsn`, for another process. The result is a secret."""
        dsn = self.dsn()
        return make_conninfo("", **dict(dsn.parameters)), dsn.password_command

    def explained(self, error: CdcdError) -> CdcdError:
        """Return the error with the entry and role of the reader in front of its message."""
        if self.place is None:
            return error
        kind = type(error)
        # Some error classes have more than a message; only transience and the exit code matter here.
        plain = (
            kind if kind in _PLAIN else TransientError if isinstance(error, TransientError) else SourceError
        )
        return plain(f"{self.key} (role {self.role}): {error.message}", hint=error.hint)


_PLAIN: Final = (TransientError, SourceError, ConfigError)


class Readers:
    """The choice of an access for each table.

    Args:
        main: access of the role of postgres.dsn.
        others: the readers, in the order of the configuration.
    """

    def __init__(self, main: Access, others: Sequence[Access] = ()) -> None:
        self.main = main
        self.others = tuple(others)
        self._choice = ReaderChoice([each.patterns for each in others])

    def of(self, table: str) -> Access:
        """Return the access with which the rows of `schema.table` are read."""
        place = self._choice.of(table)
        return self.main if place is None else self.others[place]


def one_role(dsn: Dsn) -> Readers:
    """Return the readers of a pipeline whose own role reads all tables."""
    return Readers(Access(None, dsn.get("user"), (), lambda: dsn))


def as_role(main: Dsn, user: str, password: str | None, password_command: tuple[str, ...]) -> Dsn:
    """Return the DSN of another role on the server and database of `main`, without the password of `main`."""
    kept = tuple((name, value) for name, value in main.parameters if name not in _OF_THE_ROLE)
    # libpq uses the user's name as the name of the database if no database is named.
    database = () if main.get("dbname") or not main.get("user") else (("dbname", main.get("user")),)
    given = () if password is None else (("password", password),)
    return Dsn((*kept, *database, ("user", user), *given), password_command)


_OF_THE_ROLE: Final = frozenset({"user", "password", "scram_client_key", "scram_server_key"})


def with_password(dsn: Dsn, password: str | None, password_command: tuple[str, ...]) -> Dsn:
    """Return the DSN with this password in place of its own; None keeps the DSN's password."""
    if password is None:
        return replace(dsn, password_command=password_command)
    others = tuple((name, value) for name, value in dsn.parameters if name != "password")
    return Dsn((*others, ("password", password)), password_command)


async def try_readers(readers: Readers, *, application_name: str, connect_timeout_s: float) -> None:
    """Connect as each reader, so that a failure shows up at the start and not at a later read.

    Raises:
        TransientError: the server does not answer.
        SourceError, ConfigError: the server refuses a reader, or its DSN leads to another database.
    """
    if not readers.others:
        return
    there = await _where(readers.main, application_name, connect_timeout_s)
    for access in readers.others:
        found = await _where(access, application_name, connect_timeout_s)
        if found != there:
            raise ConfigError(
                f"{access.key} (role {access.role}) leads to another database than postgres.dsn.",
                hint=f"Let {access.key}.dsn name the same server and database as postgres.dsn.",
            )


async def _where(access: Access, application_name: str, connect_timeout_s: float) -> list[str | None]:
    try:
        session = await open_session(
            access.dsn(), application_name=application_name, connect_timeout_s=connect_timeout_s
        )
    except FatalError as error:
        raise access.explained(error) from error
    except TransientError as error:
        raise access.explained(error) from error
    try:
        *_, ((database, server),) = await session.query(_SAME, f"connecting as {identifier(access.role)}")
    finally:
        session.close()
    return [database, server]
