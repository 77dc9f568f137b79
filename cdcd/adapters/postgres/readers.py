"""Roles that read the rows of tables (`postgres.readers`): the choice of the role for a table, and what `cdcd check`
finds about the owners of the tables and the rights of these roles.

When PostgreSQL plans a query on a table, it folds the expressions of the table's indexes, and so runs functions of
the table's owner with the rights of the role that reads. No lock that SELECT permits prevents an owner from
creating such an index. So each owner's tables can be given a reader: a role with SELECT on these tables and no
other right. Every session that plans a query on a table is opened with the access that `Readers.of` names. The
session of cdcd's own role only reads the catalog, exports snapshots and writes watermarks, which runs no code of an
owner.

Nothing on the server is changed. Each reader has its own session, so that PostgreSQL's refusals for this reader are
found.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.barriers import BARRIERS, Barrier
from cdcd.adapters.postgres.connection import Connection, Dsn, connect, open_session
from cdcd.adapters.postgres.quoting import TABLE_TEXT, identifier
from cdcd.core.errors import CdcdError, ConfigError, FatalError, SourceError, TransientError
from cdcd.core.snapshot.reading import KEY, ReaderChoice
from cdcd.core.table_names import table_text

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
        trusted: roles whose tables are read, besides superusers and the role itself; None: tables of all owners.
    """

    place: int | None
    role: str
    patterns: tuple[str, ...]
    dsn: Callable[[], Dsn] = field(repr=False)
    trusted: tuple[str, ...] | None = None

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

    def of(self, schema: str, table: str) -> Access:
        """Return the access with which the rows of a table are read."""
        place = self._choice.of(schema, table)
        return self.main if place is None else self.others[place]


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


@dataclass(frozen=True, slots=True)
class Owned:
    """A relation that has rows of a published table, and its owner.

    Attributes:
        table: the published table, as (schema, table).
        part: the table itself or a partition of it, as (schema, table).
        owner: name of the role that owns `part`.
        is_superuser: the owner is a superuser.
        sql_name: name of `part`, quoted for SQL.
        oid: oid of the published table.
    """

    table: tuple[str, str]
    part: tuple[str, str]
    owner: str
    is_superuser: bool
    sql_name: str = ""
    oid: int = 0

    @property
    def name(self) -> str:
        """The published table as `schema.table`."""
        return table_text(*self.table)


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """Role, rights and tables of one reader.

    Attributes:
        access: the reader's entry in the configuration.
        tables: published tables that the reader reads, as `schema.table`.
        refusal: error with which PostgreSQL refuses the reader's connection; None: the reader can connect.
        elsewhere: True if the reader's DSN leads to another database.
        attributes: the role's attributes among SUPERUSER, REPLICATION, BYPASSRLS, CREATEROLE and CREATEDB.
        has_policies: True if one of the reader's tables has row-level security.
        memberships: roles of which somebody else made the reader's role a member.
        offered: roles that made the reader's role their own member.
        barriers: what keeps the reader from reading its tables.
        others: relations besides the reader's tables that it may read, as `schema.table`.
    """

    access: Access
    tables: tuple[str, ...]
    refusal: CdcdError | None = None
    elsewhere: bool = False
    attributes: tuple[str, ...] = ()
    has_policies: bool = False
    memberships: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadersFacts:
    """All readers, and the owners of the tables that they read.

    Attributes:
        role: cdcd's own role.
        owned: relations of all published tables.
        readers: in the order of the configuration.
        places: readers of published tables by (schema, table), as indexes into `readers`.
    """

    role: str
    owned: tuple[Owned, ...] = ()
    readers: tuple[ReaderFacts, ...] = ()
    places: Mapping[tuple[str, str], int | None] = field(default_factory=dict)


_OWNED: Final = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION ALL
    SELECT tree.root, i.inhrelid
      FROM tree JOIN pg_class c ON c.oid = tree.oid AND c.relkind = 'p' JOIN pg_inherits i ON i.inhparent = c.oid
)
SELECT rn.nspname::text, r.relname::text, n.nspname::text, c.relname::text, o.rolname::text, o.rolsuper,
       format('%%I.%%I', n.nspname, c.relname), tree.root::int8
  FROM tree JOIN pg_class r ON r.oid = tree.root JOIN pg_namespace rn ON rn.oid = r.relnamespace
  JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_roles o ON o.oid = c.relowner
 WHERE c.relkind IN ('r', 'p')
 ORDER BY 1, 2, 3, 4
"""

_DATABASE: Final = "SELECT current_database(), (SELECT system_identifier FROM pg_control_system())::text"

_MAIN: Final = "SELECT current_user::text"

# Before PostgreSQL 16, each role can make any other role its member, without asking anybody.
_ROLE: Final = """
SELECT array_remove(ARRAY[CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolreplication THEN 'REPLICATION' END,
                          CASE WHEN rolbypassrls THEN 'BYPASSRLS' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
                          CASE WHEN rolcreatedb THEN 'CREATEDB' END], NULL),
       ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
              WHERE m.member = r.oid AND m.grantor <> m.roleid ORDER BY 1),
       ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
              WHERE m.member = r.oid AND m.grantor = m.roleid ORDER BY 1),
       EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY(%s::oid[]) AND c.relrowsecurity)
  FROM pg_roles r WHERE rolname = current_user
"""

# Views of an extension, such as pg_stat_statements, are meant for all roles.
_OTHERS: Final = f"""
WITH RECURSIVE tree(oid) AS (
    SELECT oid FROM unnest(%s::oid[]) AS wanted(oid)
     UNION
    SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
)
SELECT {TABLE_TEXT}
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.oid NOT IN (SELECT oid FROM tree)
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
   AND n.nspname NOT LIKE 'pg\\_temp\\_%%' AND n.nspname NOT LIKE 'pg\\_toast\\_temp\\_%%'
   AND has_any_column_privilege(c.oid, 'SELECT')
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1
"""


async def read_owned(connection: Connection, oids: Collection[int]) -> tuple[Owned, ...]:
    """Return the owners of these tables and of their partitions. Raises TransientError and SourceError."""
    with translated("looking who owns the tables", {}):
        rows: Any = await (await connection.execute(_OWNED.encode(), (list(oids),))).fetchall()
    return tuple([Owned((row[0], row[1]), (row[2], row[3]), *row[4:]) for row in rows])


async def read_readers(
    connection: Connection,
    readers: Readers,
    oids: Collection[int],
    *,
    application_name: str,
    connect_timeout_s: float,
) -> ReadersFacts:
    """Read the owners of these tables and the rights of each reader from the server.

    Raises:
        TransientError, SourceError: cdcd's own role is refused.
    """
    owned = await read_owned(connection, oids)
    with translated("looking at cdcd's own role", {}):
        where: Any = await (await connection.execute(_DATABASE.encode())).fetchone()
        ((role,),) = await (await connection.execute(_MAIN.encode())).fetchall()
    places = {each.table: readers.of(*each.table).place for each in owned}
    found = []
    for access in readers.others:
        own = {each.oid: each.name for each in owned if places[each.table] == access.place}
        reader = ReaderFacts(access, tuple(sorted(own.values())))
        try:
            session = await connect(
                access.dsn(), application_name=application_name, connect_timeout_s=connect_timeout_s
            )
            try:
                with translated(f"looking at role {access.role}", {}):
                    reader = await _look(session, reader, list(own), where)
            finally:
                await session.close()
        except CdcdError as error:
            reader = ReaderFacts(access, reader.tables, access.explained(error))
        found.append(reader)
    return ReadersFacts(str(role), owned, tuple(found), places)


async def _look(session: Connection, reader: ReaderFacts, oids: Collection[int], where: Any) -> ReaderFacts:
    async def rows(query: str, *parameters: object) -> Any:
        return await (await session.execute(query.encode(), parameters or None)).fetchall()

    if (await rows(_DATABASE))[0] != where:
        return ReaderFacts(reader.access, reader.tables, elsewhere=True)
    ((attributes, memberships, offered, has_policies),) = await rows(_ROLE, list(oids))
    return ReaderFacts(
        reader.access,
        reader.tables,
        attributes=tuple(attributes),
        has_policies=has_policies,
        memberships=tuple(memberships),
        offered=tuple(offered),
        barriers=tuple(
            [replace(Barrier(*row), role=reader.access.role) for row in await rows(BARRIERS, list(oids))]
        ),
        others=tuple([name for (name,) in await rows(_OTHERS, list(oids))]),
    )
