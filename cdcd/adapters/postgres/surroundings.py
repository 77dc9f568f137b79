"""State of a server without a pipeline, from which `cdcd init` decides which commands to write.

Nothing on the server is changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import SECRET_PARAMETERS, Connection, Dsn, connect
from cdcd.adapters.postgres.publication import PublishedTable, find_tables, has_publication
from cdcd.adapters.postgres.quoting import TABLE_TEXT
from cdcd.adapters.postgres.readers import Owned, read_owned
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.errors import SourceError

APPLICATION: Final = "cdcd init"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of a database before the pipeline exists.

    Attributes:
        version: the server's major version.
        restart_pending: wal_level has another configured value, which takes effect at the next restart.
        is_rds: the role rds_superuser exists, so rights to replicate are granted by rds_replication.
        has_role: the pipeline's role exists.
        may_replicate: that role has REPLICATION, or the managed service's equivalent.
        has_publication: the pipeline's publication exists.
        tables: tables of the future publication, in the order of their names.
        readable: SQL names of all relations that must be readable for these tables, including partitions.
        owned: these relations with their owners.
        roles: the names of all roles.
        secured: tables of `tables` with row-level security, as `schema.table`.
    """

    version: int
    database: str
    wal_level: str
    is_rds: bool
    has_role: bool
    may_replicate: bool
    has_publication: bool
    tables: tuple[PublishedTable, ...]
    readable: tuple[str, ...]
    secured: tuple[str, ...]
    owned: tuple[Owned, ...] = ()
    roles: frozenset[str] = frozenset()
    restart_pending: bool = False

    @property
    def keyless(self) -> tuple[PublishedTable, ...]:
        """Tables on which PostgreSQL rejects UPDATE and DELETE as soon as they are published."""
        return tuple([table for table in self.tables if not table.has_identity])

    @property
    def published(self) -> tuple[PublishedTable, ...]:
        """The other tables, whose publication has no effect on their writers."""
        return tuple([table for table in self.tables if table.has_identity])


_SERVER: Final = """
SELECT current_database(), current_setting('wal_level'), pg_is_in_recovery(),
       EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_superuser'),
       (SELECT rolreplication OR rolsuper
               OR EXISTS (SELECT FROM pg_roles m
                           WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER'))
          FROM pg_roles r WHERE rolname = %s),
       (SELECT pending_restart FROM pg_settings WHERE name = 'wal_level')
"""

_READABLE: Final = """
SELECT DISTINCT format('%%I.%%I', n.nspname, c.relname)
  FROM (SELECT unnest(%s::oid[]) UNION SELECT relid FROM unnest(%s::oid[]) root, pg_partition_tree(root)) of(oid)
  JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY 1
"""

_SECURED: Final = f"""
SELECT {TABLE_TEXT} FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY(%s) AND c.relrowsecurity ORDER BY 1
"""


_ROLES: Final = "SELECT rolname::text FROM pg_roles"


async def look_around(dsn: Dsn, role: str, patterns: Sequence[str], publication: str) -> Surroundings:
    """Read the server's state with the role of the DSN.

    Raises:
        TransientError, SourceError: the server refuses the connection or is a standby, or no table matches the
            patterns.
        ConfigError: a pattern cannot be read.
    """
    wanted = [parse_pattern(pattern, "--table") for pattern in patterns]
    connection = await connect(dsn, application_name=APPLICATION)
    try:
        with translated("looking at the server", dsn.names):
            return await _look(connection, role, wanted, publication)
    finally:
        await connection.close()


async def database_of(dsn: Dsn) -> str:
    """Return the name of the DSN's database. Raises as `look_around`."""
    connection = await connect(dsn, application_name=APPLICATION)
    try:
        return connection.info.dbname
    finally:
        await connection.close()


async def _look(connection: Connection, role: str, wanted: Any, publication: str) -> Surroundings:
    async def rows(query: str, *parameters: object) -> Any:
        return await (await connection.execute(query.encode(), parameters)).fetchall()

    ((database, wal_level, in_recovery, is_rds, replicates, restart_pending),) = await rows(_SERVER, role)
    if in_recovery:
        raise SourceError(
            "The server is a standby: neither publication nor slot can be created there.",
            hint="Name the primary (target_session_attrs=read-write finds it among several hosts).",
        )
    tables = sorted(await find_tables(connection, wanted), key=lambda table: (table.schema, table.name))
    oids = [table.oid for table in tables]
    return Surroundings(
        version=connection.info.server_version // 10000,
        database=database,
        wal_level=wal_level,
        is_rds=is_rds,
        has_role=replicates is not None,
        may_replicate=bool(replicates),
        has_publication=await has_publication(connection, publication),
        tables=tuple(tables),
        readable=tuple([name for (name,) in await rows(_READABLE, oids, oids)]),
        secured=tuple([name for (name,) in await rows(_SECURED, oids)]),
        owned=await read_owned(connection, oids),
        roles=frozenset([name for (name,) in await rows(_ROLES)]),
        restart_pending=restart_pending,
    )


def dsn_for(dsn: Dsn, database: str, role: str = "") -> str:
    """Return a connection string without a secret, to `database` on the server of `dsn`.

    `role`: role of the connection; "" keeps the role of `dsn`.
    """
    kept = {name: value for name, value in dsn.parameters if name not in SECRET_PARAMETERS and value}
    return make_conninfo("", **{**kept, "dbname": database, **({"user": role} if role else {})})
