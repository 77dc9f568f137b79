"""Facts about a server that are read before a pipeline starts, without changing anything.

The check opens both kinds of connection that the daemon opens, so a failure of the daemon shows up in the check
with the same message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.barriers import BARRIERS, Barrier
from cdcd.adapters.postgres.connection import Connection, Dsn, connect
from cdcd.adapters.postgres.following import (
    NO_DIFFERENCES,
    Desired,
    Listed,
    PublicationDifferences,
    check_function,
    read_differences,
)
from cdcd.adapters.postgres.lock import PEER, lock_condition
from cdcd.adapters.postgres.publication import (
    Publication,
    PublishedTable,
    find_tables,
    find_target,
    read_publication,
)
from cdcd.adapters.postgres.publication_history import find_too_young
from cdcd.adapters.postgres.quoting import TABLE_TEXT
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import PLUGIN, SlotState, read_slot
from cdcd.core.catalog.patterns import TableSelection, parse_pattern
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.versions import StreamingMode

OPEN_LONG_S: Final = 60
"""Age in seconds from which open transactions are reported, because the creation of a slot waits for them."""

ALL_TABLES: Final = TableSelection()


@dataclass(frozen=True, slots=True)
class ServerWanted:
    """PostgreSQL part of the configuration, as the checks need it."""

    slot: str
    publication: str
    tables: Sequence[str] | None
    topics: TopicNames
    """Topic names, which must not collide."""
    protocol: int | Literal["auto"] = "auto"
    streaming: StreamingMode | Literal["auto", "off", "on", "parallel"] = "auto"
    two_phase: bool = False
    failover: bool = False
    messages: bool = True
    origin: Literal["any", "none"] = "any"
    binary: bool = False
    status_interval_s: float = 10.0
    signals: str = "without_where"
    """Kinds of snapshot requests that cdcd follows (`snapshot.signals`)."""
    when_needed: bool = False
    """True: a lost slot is replaced and the tables are read again (`snapshot.mode`)."""
    heals: bool = False
    """True: then the topics are healed by their differences from the tables (`snapshot.lost_slot`)."""
    truncate: bool = True
    """True: a TRUNCATE becomes a record (`topics.truncate`, `topics.skipped_operations`)."""
    signals_from_anybody: bool = False
    """True: snapshot requests need no token (`snapshot.signals_from`)."""
    outbox_messages: bool = False
    """True: logical messages are outbox events (`outbox.messages`)."""
    contexts_from_anybody: bool = False
    """True: contexts of transactions need no token (`context.token`)."""
    pipeline: str = ""
    """application_name of the daemon's session on the slot."""
    connections: int = 3
    """Number of connections that the daemon opens, besides its walsender."""
    application_name: str = "cdcd check"
    connect_timeout_s: float = 10.0
    selection: TableSelection = ALL_TABLES
    """Selection of the published tables that belong to the pipeline."""
    changes: Literal["never", "owner", "function"] = "never"
    """Who alters the publication (`postgres.publication_changes`)."""
    trusted: tuple[str, ...] = ()
    """`postgres.trusted_owners`."""

    @property
    def desired(self) -> Desired:
        """The tables that the configuration wants published."""
        tables = None if self.tables is None else tuple(self.tables)
        return Desired(tables, self.selection, drops=self.changes != "never")


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of pg_settings: `value` as a number of `unit`s if the setting is numeric, `shown` as SHOW prints it."""

    shown: str
    value: float
    unit: str
    is_set: bool = True
    """True if the server, database, role or DSN sets the value; False for PostgreSQL's default."""
    restart_pending: bool = False
    """True if another value is configured and takes effect at the next restart of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class InspectedSession:
    """The role, database and server of cdcd's session, with their limits and usage."""

    role: str
    database: str
    version: str
    superuser: bool
    """True for a superuser, or for a member of the role that a managed PostgreSQL has instead."""
    may_create: bool
    """True if the role has CREATE on the database, which CREATE PUBLICATION needs."""
    in_recovery: bool
    encoding: str
    slots: int
    senders: int
    open_transactions: tuple[str, ...]
    """Descriptions of prepared and long open transactions, which the creation of a slot would wait for."""
    role_connections: int = 0
    """Number of the role's connections now, without cdcd's own."""
    role_limit: int | None = None
    """CONNECTION LIMIT of the role; None: no limit."""
    database_connections: int = 0
    database_limit: int | None = None
    """CONNECTION LIMIT of the database; None: no limit."""
    emit: str = ""
    """Function that writes a logical message, with its argument types, if the role may not execute it; else ""."""
    emits_anybody: bool = True
    """True if every role may execute this function."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """All facts that the checks examine."""

    server_version: int
    session: InspectedSession
    settings: Mapping[str, Setting]
    walsender_refusal: CdcdError | None
    slot: SlotState | None
    slot_reader: str
    """application_name of the session that reads the slot; "" if no session reads it."""
    publication: Publication | None
    matched: tuple[PublishedTable, ...] | CdcdError
    """Tables of the publication that cdcd would create; an error if they cannot be determined."""
    foreign: frozenset[str]
    """Tables that are published, or would be, and that this role does not own."""
    barriers: tuple[Barrier, ...]
    """Barriers for the roles that read the rows of these tables."""
    streaming_slots: frozenset[str] = frozenset()
    """Physical slots that a standby reads now."""
    differences: PublicationDifferences = NO_DIFFERENCES
    listed: Listed | None = None
    """Entries of the publication; None if `differences` were not determined."""
    function_problem: str = ""
    """Why the function that alters the publication cannot be called."""
    """Differences between an existing publication and the configured tables."""
    target: str = "ALL TABLES"
    """Text after FOR in the command that creates the missing publication."""
    partitioned: tuple[str, ...] = ()
    """Partitioned tables of the publication that cdcd would create, as `schema.table`."""
    active: str = ""
    """application_name of the active instance of this pipeline; "" if no instance is active."""
    chosen: frozenset[str] = frozenset()
    """Tables with a configured record key (`key.columns`), as `schema.table`."""
    repeating: frozenset[str] = frozenset()
    """Tables of `chosen` in which several rows may have the same key."""
    left_out: tuple[str, ...] = ()
    """Tables that are published, or would be, and that the pipeline leaves out, as `schema.table`."""

    too_young: CdcdError | None = None
    """Error that the stream would raise at changes older than the publication; None if it would not fail."""

    @property
    def tables(self) -> tuple[PublishedTable, ...]:
        """Tables of the pipeline."""
        if not self.left_out:
            return self.sent
        left_out = frozenset(self.left_out)
        return tuple([table for table in self.sent if table.qualified not in left_out])

    @property
    def sent(self) -> tuple[PublishedTable, ...]:
        """Tables whose changes PostgreSQL sends, or would send after the publication is created."""
        if self.publication:
            return self.publication.tables
        return () if isinstance(self.matched, CdcdError) else self.matched


_SETTINGS: Final = """
SELECT name, current_setting(name),
       CASE WHEN vartype IN ('integer', 'real') THEN setting::float8 ELSE 0 END, coalesce(unit, ''),
       source <> 'default', pending_restart
  FROM pg_settings WHERE name = ANY(%s)
"""

_SETTING_NAMES: Final = (
    "wal_level",
    "effective_wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "wal_sender_timeout",
    "max_prepared_transactions",
    "logical_decoding_work_mem",
    "synchronous_standby_names",
    "synchronized_standby_slots",
    "track_activities",
)

# PostgreSQL hides details of other users' sessions from some roles; then the kind of the session is NULL.
_SESSION: Final = """
WITH others AS (
    SELECT usesysid, datid FROM pg_stat_activity
     WHERE coalesce(backend_type, 'client backend') = 'client backend'
       AND coalesce(application_name, '') <> current_setting('application_name')
)
SELECT current_user, current_database(), current_setting('server_version'),
       r.rolsuper OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('rds_superuser', 'cloudsqlsuperuser',
           'alloydbsuperuser', 'azure_pg_admin') AND pg_has_role(r.oid, m.oid, 'MEMBER')),
       has_database_privilege(current_database(), 'CREATE'), pg_is_in_recovery(), current_setting('server_encoding'),
       (SELECT count(*) FROM pg_replication_slots),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'),
       ARRAY(SELECT format('session %%s (%%s), for %%s s', pid, application_name,
                           extract(epoch FROM now() - xact_start)::int)
               FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start < now() - make_interval(secs => %s)
              ORDER BY xact_start) ||
       ARRAY(SELECT format('prepared transaction %%s', gid) FROM pg_prepared_xacts ORDER BY prepared)
       , (SELECT count(*) FROM others WHERE usesysid = r.oid),
       CASE WHEN r.rolsuper OR r.rolconnlimit < 0 THEN NULL ELSE r.rolconnlimit END,
       (SELECT count(*) FROM others WHERE datid = d.oid),
       CASE WHEN r.rolsuper OR d.datconnlimit < 0 THEN NULL ELSE d.datconnlimit END,
       coalesce((SELECT p.oid::regprocedure::text FROM pg_proc p
                  WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
                    AND p.proargtypes[2] = 'text'::regtype AND NOT has_function_privilege(p.oid, 'EXECUTE')), ''),
       (SELECT bool_or(has_function_privilege('public', p.oid, 'EXECUTE')) FROM pg_proc p
         WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace)
  FROM pg_roles r CROSS JOIN pg_database d WHERE r.rolname = current_user AND d.datname = current_database()
"""

_FOREIGN: Final = f"""
SELECT {TABLE_TEXT}
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY(%s) AND NOT pg_has_role(c.relowner, 'USAGE')
"""

_PARTITIONED: Final = f"""
SELECT {TABLE_TEXT} FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY(%s) AND c.relkind = 'p' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
"""

_ACTIVE: Final = f"""
SELECT coalesce(a.application_name, ''), l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE {{}} AND {PEER}
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def read_facts(dsn: Dsn, wanted: ServerWanted) -> ServerFacts:
    """Read all facts from the server without changing anything. Raises TransientError, SourceError, ConfigError."""
    connection = await connect(
        dsn, application_name=wanted.application_name, connect_timeout_s=wanted.connect_timeout_s
    )
    try:
        with translated("looking at the server", dsn.names):
            await connection.execute(b"SET lock_timeout = '5s'")
            return await _read_facts(connection, await _try_walsender(dsn, wanted), wanted)
    finally:
        await connection.close()


async def _try_walsender(dsn: Dsn, wanted: ServerWanted) -> CdcdError | None:
    try:
        stream = await ReplicationStream.open(
            dsn, application_name=wanted.application_name, connect_timeout_s=wanted.connect_timeout_s
        )
    except CdcdError as error:
        return error
    stream.close()
    return None


async def _read_facts(connection: Connection, refusal: CdcdError | None, wanted: ServerWanted) -> ServerFacts:
    async def rows(query: str, *parameters: object) -> Any:
        return await (await connection.execute(query.encode(), parameters)).fetchall()

    session = InspectedSession(*(await rows(_SESSION, OPEN_LONG_S))[0])
    settings = {
        name: Setting(shown, value, unit, is_set, restart_pending)
        for name, shown, value, unit, is_set, restart_pending in await rows(_SETTINGS, list(_SETTING_NAMES))
    }
    slot = await read_slot(connection, wanted.slot)
    reader = await rows(
        "SELECT application_name FROM pg_stat_activity WHERE pid = %s", slot and slot.active_pid
    )
    physical = await rows(
        "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'physical' AND active"
    )
    publication = await read_publication(connection, wanted.publication)
    too_young = None
    if publication is not None and slot is not None and slot.plugin == PLUGIN:
        too_young = await find_too_young(connection, publication.name, slot.name)
    patterns = [parse_pattern(pattern) for pattern in wanted.tables or ("*.*",)]
    matched: tuple[PublishedTable, ...] | CdcdError = ()
    differences, target = NO_DIFFERENCES, "ALL TABLES"
    listed: Listed | None = None
    if publication is not None:
        if wanted.desired.is_stated:
            compared = await read_differences(connection, publication.name, wanted.desired)
            listed, differences = compared or (None, NO_DIFFERENCES)
    else:
        try:
            matched = await find_tables(connection, patterns)
            if wanted.tables is not None:
                target = await find_target(connection, patterns)
        except CdcdError as error:
            # FOR ALL TABLES may start without any table.
            matched = () if wanted.tables is None else error
    sent = publication.tables if publication else () if isinstance(matched, CdcdError) else matched
    has = wanted.selection.test()
    shown = [table for table in sent if has(table.qualified)]
    partitioned = await rows(_PARTITIONED, [] if publication else [table.oid for table in sent])
    oids = [table.oid for table in shown]
    active = await rows(_ACTIVE.format(lock_condition(wanted.slot)))
    return ServerFacts(
        server_version=connection.info.server_version,
        session=session,
        settings=settings,
        walsender_refusal=refusal,
        slot=slot,
        slot_reader=(reader[0][0] or "") if reader else "",
        publication=publication,
        matched=matched,
        foreign=frozenset(table for (table,) in await rows(_FOREIGN, [table.oid for table in sent])),
        barriers=tuple(Barrier(*row) for row in await rows(BARRIERS, oids)),
        streaming_slots=frozenset(name for (name,) in physical),
        differences=differences,
        listed=listed,
        function_problem=await check_function(connection, wanted.trusted)
        if wanted.changes == "function"
        else "",
        target=target,
        partitioned=tuple(table for (table,) in partitioned),
        active=(active[0][0] or f"pid {active[0][1]}") if active else "",
        left_out=tuple([table.qualified for table in sent if not has(table.qualified)]),
        too_young=too_young,
    )
