"""Refusals by PostgreSQL or libpq: the table of the errors of cdcd for them, with hints. `answers.py` finds the row.

One literal table decides. A row names a SQLSTATE (five characters, or the two of its class), a part of the English
message, or both. A row with both needs both when the SQLSTATE is known; when it is not (libpq keeps none for a
failed connection attempt, see `connection.py`), the message alone decides. Rows are tried in order, so the narrow
ones come first. A refusal without a matching row is transient if it has no SQLSTATE or a SQLSTATE class of passing
failures, and a `SourceError` otherwise.

Codes: PostgreSQL src/backend/utils/errcodes.txt. Sources of the messages: slot.c, walsender.c, postinit.c, auth.c,
pgoutput.c, fe-connect.c of 13 to 18.
"""

from dataclasses import dataclass
from typing import Final

from cdcd.core.errors import (
    FILES_HINT,
    OUT_OF_FILES,
    CdcdError,
    ConfigError,
    LimitError,
    PositionError,
    SourceError,
    TransientError,
    WithoutBinaryError,
    WithoutConversionError,
)


class SlotActiveError(TransientError):
    """Another session reads the slot: a former walsender of cdcd, or another client."""


class TableBusyError(TransientError):
    """Another session holds a lock on a table, and `lock_timeout` has passed; a retry may succeed. No data is lost.

    The snapshot of the table is requested again. At a start, the whole session is started again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="Trying again. pg_locks says which session holds the lock.")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row: the failure, its kind in cdcd, and a hint for the operator. `hint` may use {names}."""

    sqlstate: str
    fragment: str
    kind: type[CdcdError]
    hint: str


_LOST_SLOT: Final = (
    "The WAL this slot needs is gone, so changes are missing. Drop it (SELECT pg_drop_replication_slot('{slot}')), "
    "bring the consumers back to a known state, and create a new slot with `cdcd run --accept-gap`; raise "
    "max_slot_wal_keep_size against a repetition."
)
_SNAPSHOT_GONE: Final = (
    "The session that exported the snapshot has ended, and the snapshot with it. "
    "Start again, which takes a new snapshot."
)

_PUBLICATION: Final = (
    "PostgreSQL cannot decode changes at this point of the WAL, because publication {publication} did not exist when "
    "they were written. CREATE PUBLICATION alone does not help. Restart the pipeline from scratch: `cdcd reset --yes` "
    "removes slot and checkpoint, and the next `cdcd run` reads the tables again (snapshot.mode). Rows that were "
    "deleted meanwhile leave no record. Or accept that the changes are missing: drop the slot "
    "(SELECT pg_drop_replication_slot('{slot}')), bring the consumers back to a known state, and create a new slot "
    "with `cdcd run --accept-gap`. Either way, cdcd creates a missing publication."
)
_CREDENTIALS: Final = (
    "Check role and password: in postgres.dsn, PGPASSWORD, the password file, or the secret they come from. Where "
    "pg_hba.conf has clientcert=verify-full, the CN of sslcert must be the role."
)

_CLIENT_CERTIFICATE: Final = (
    "Check sslcert and sslkey in postgres.dsn: a client certificate that has not expired, signed by a CA in the "
    "server's ssl_ca_file."
)

_ROLE_LIMIT: Final = (
    "ALTER ROLE {role} CONNECTION LIMIT -1; or a limit with room for cdcd (`cdcd check` says how many it opens), or "
    "end other sessions of the role."
)
_DATABASE_LIMIT: Final = (
    "ALTER DATABASE {database} CONNECTION LIMIT -1; or a limit with room for cdcd (`cdcd check` says how many it "
    "opens), or end other sessions in the database."
)
_REPLICATION: Final = "ALTER ROLE {role} REPLICATION; (Amazon RDS: GRANT rds_replication TO {role};)"

_NO_UTF8: Final = "a text of the database cannot be converted to UTF-8"

_UNCONVERTED: Final = (
    "The name of a table, column or type, a label of an enum or a default has bytes that are not valid UTF-8. "
    "Rename it, or leave its table out of the publication. psql shows the names and labels that are not ASCII: "
    "SET client_encoding = SQL_ASCII; "
    "SELECT oid::regclass::text, relname FROM pg_class WHERE relname::text COLLATE \"C\" !~ '^[ -~]*$' "
    "UNION ALL SELECT attrelid::regclass::text, attname FROM pg_attribute "
    "WHERE attname::text COLLATE \"C\" !~ '^[ -~]*$' "
    "UNION ALL SELECT enumtypid::regtype::text, enumlabel FROM pg_enum "
    "WHERE enumlabel::text COLLATE \"C\" !~ '^[ -~]*$';"
)

TOO_LARGE_TO_SEND: Final = (
    "PostgreSQL cannot send a row or a logical message of more than 1 GB, and the text of a bytea is twice its size. "
    "If a bytea is the reason, postgres.binary: true sends up to 1 GB of it. Or leave the column out of the "
    "publication (PostgreSQL 15: ALTER PUBLICATION {publication} SET TABLE with a column list), or the table "
    "(ALTER PUBLICATION {publication} DROP TABLE). PostgreSQL decodes each change with the publication as it was at "
    "the time of the change. If "
    "this change still stops the slot, drop the slot and read the tables again (`cdcd reset`)."
)
"""palloc and StringInfo refuse more than 1 GB (MaxAllocSize in memutils.h, stringinfo.c)."""

ROW_FILTER_FAILED: Final = (
    "A row filter of publication {publication} failed on a row, because PostgreSQL evaluates nothing else there. "
    "PostgreSQL uses the filter as it was at the time of the change, so each start ends at this change. Correct the "
    "filter, so that it cannot fail (SELECT schemaname, tablename, rowfilter FROM pg_publication_tables WHERE "
    "rowfilter IS NOT NULL lists the filters). Then drop the slot (SELECT pg_drop_replication_slot('{slot}')), and "
    "start cdcd with snapshot.mode: when_needed, which makes the topics equal to the tables again."
)
"""For data errors (SQLSTATE class 22) in a callback of pgoutput, which evaluates row filters (pgoutput_row_filter in
pgoutput.c). Errors of conversion have rows of their own."""

TABLE_OF_CHANGE: Final = (
    " PostgreSQL does not name the table. A superuser finds it (PostgreSQL 15 and newer): CREATE EXTENSION IF NOT "
    "EXISTS pg_walinspect; SELECT pg_filenode_relation(m[1]::oid, m[2]::oid) FROM pg_get_wal_record_info('{lsn}'), "
    "regexp_match(block_ref, 'rel ([0-9]+)/[0-9]+/([0-9]+)') m;"
)
"""Addition to `TOO_LARGE_TO_SEND` and `ROW_FILTER_FAILED` if the LSN of the change is known."""

REFUSALS: Final[tuple[Refusal, ...]] = (
    # Texts that PostgreSQL cannot convert: character_not_in_repertoire, untranslatable_character.
    Refusal("22021", "", WithoutConversionError, _UNCONVERTED),
    Refusal("22P05", "", WithoutConversionError, _UNCONVERTED),
    Refusal("XX000", "invalid memory alloc request size", SourceError, TOO_LARGE_TO_SEND),
    Refusal("54000", "string buffer", SourceError, TOO_LARGE_TO_SEND),
    Refusal("53300", "too many connections for role", TransientError, _ROLE_LIMIT),
    Refusal("53300", "too many connections for database", TransientError, _DATABASE_LIMIT),
    # Refused connections.
    Refusal("28P01", "password authentication failed", SourceError, _CREDENTIALS),
    Refusal("28P01", "", SourceError, _CREDENTIALS),
    Refusal("", "no password supplied", SourceError, _CREDENTIALS),
    Refusal(
        "28000",
        "pg_hba.conf",
        SourceError,
        "Add a line for role {role} and this host to pg_hba.conf (a `host` line for database {database}; "
        "`replication` in the database column is for physical replication only) and run SELECT pg_reload_conf().",
    ),
    Refusal("28000", "valid client certificate", SourceError, _CLIENT_CERTIFICATE),
    Refusal("28000", "not permitted to log in", SourceError, "ALTER ROLE {role} LOGIN;"),
    Refusal(
        "28000",
        'role "',
        SourceError,
        "CREATE ROLE {role} LOGIN REPLICATION; or correct the user in postgres.dsn.",
    ),
    Refusal("28", "", SourceError, "Check the role, pg_hba.conf and the authentication method."),
    Refusal("42501", "start walsender", SourceError, _REPLICATION),
    Refusal("42501", "start WAL sender", SourceError, _REPLICATION),
    Refusal("42501", "use replication slots", SourceError, _REPLICATION),
    Refusal(
        "42501",
        "permission denied for database",
        SourceError,
        "GRANT CONNECT, CREATE ON DATABASE {database} TO {role};",
    ),
    Refusal(
        "3D000",
        'database "',
        SourceError,
        "Correct the database name in postgres.dsn, or create the database.",
    ),
    Refusal("3D000", "", SourceError, "Correct the database name in postgres.dsn, or create the database."),
    Refusal(
        "42501",
        "FOR ALL TABLES publication",
        SourceError,
        "Create it as a superuser (CREATE PUBLICATION {publication} FOR ALL TABLES), or name the tables in "
        "postgres.tables.",
    ),
    Refusal(
        "42501",
        "FOR TABLES IN SCHEMA publication",
        SourceError,
        "Create it as a superuser (CREATE PUBLICATION {publication} FOR TABLES IN SCHEMA ...), or name the tables "
        "one by one.",
    ),
    Refusal(
        "42501",
        "must be owner of",
        SourceError,
        "Only a table's owner can publish it: create the publication as the owner, or GRANT the owner's role TO "
        "{role}.",
    ),
    Refusal(
        "42501",
        "function pg_logical_emit_message",
        SourceError,
        "GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean,text,text,boolean) TO {role}; (without the last "
        "boolean before PostgreSQL 17)",
    ),
    Refusal("42501", "", SourceError, "Grant role {role} the right that the message names."),
    Refusal(
        "53300",
        "",
        TransientError,
        "Every connection or WAL sender slot is taken: raise max_connections or max_wal_senders, or end sessions that "
        "hold them.",
    ),
    Refusal("", "too many c", TransientError, "Raise max_connections or end idle connections."),
    Refusal(
        "", "connection slots are reserved", TransientError, "Raise max_connections or end idle connections."
    ),
    Refusal("", "max_wal_senders", TransientError, "Raise max_wal_senders or end unused WAL senders."),
    Refusal(
        "08P01",
        "unsupported startup parameter",
        SourceError,
        "The connection goes through a pooler. Connect to PostgreSQL directly, because logical replication needs its "
        "own session.",
    ),
    # Server starting or stopping, or session terminated. 57P04: the database was dropped.
    Refusal(
        "57P03",
        "",
        TransientError,
        "PostgreSQL does not accept connections right now. Wait until its start, or its recovery, is over.",
    ),
    Refusal(
        "",
        "the database system is",
        TransientError,
        "PostgreSQL does not accept connections right now. Wait until its start, or its recovery, is over.",
    ),
    Refusal(
        "57P01",
        "",
        TransientError,
        "PostgreSQL is shutting down, or someone ended this session; cdcd connects again.",
    ),
    Refusal(
        "57P02",
        "",
        TransientError,
        "PostgreSQL restarts after a crash of one of its processes; cdcd connects again.",
    ),
    Refusal("57P04", "", SourceError, "The database was dropped. Point postgres.dsn at one that exists."),
    Refusal("57", "", TransientError, "cdcd connects again."),
    # The server shuts down while a walsender waits for a standby (slot.c, StandbySlotsHaveCaughtup). As long as the
    # server runs, the walsender only warns. The parameter's name is the same in every language.
    *(
        Refusal(
            sqlstate,
            "synchronized_standby_slots",
            TransientError,
            "PostgreSQL waits for the standbys of synchronized_standby_slots before it sends changes. Start the "
            "standby, or take its slot out of that parameter. cdcd connects again.",
        )
        for sqlstate in ("55000", "22023")
    ),
    # Failures of slots.
    Refusal(
        "53400",
        "all replication slots are in use",
        SourceError,
        "Drop an unused slot (SELECT slot_name, active FROM pg_replication_slots) or raise max_replication_slots "
        "and restart.",
    ),
    Refusal(
        "55000", "wal_level", SourceError, "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL."
    ),
    Refusal("55000", "can no longer get changes", PositionError, _LOST_SLOT),
    Refusal("55000", "can no longer access replication slot", PositionError, _LOST_SLOT),
    Refusal("55000", "cannot read from logical replication slot", PositionError, _LOST_SLOT),
    Refusal("55000", "has been invalidated", PositionError, _LOST_SLOT),
    Refusal("58P01", "requested WAL segment", PositionError, _LOST_SLOT),
    Refusal("55000", "skipped loading publication", SourceError, _PUBLICATION),
    Refusal(
        "55000",
        "max_replication_slots",
        SourceError,
        "ALTER SYSTEM SET max_replication_slots = 10; (and max_wal_senders) then restart PostgreSQL.",
    ),
    Refusal(
        "55006", "is active for PID", SlotActiveError, "Another session reads it; see pg_replication_slots."
    ),
    Refusal(
        "55006", "replication slot", SlotActiveError, "Another session reads it; see pg_replication_slots."
    ),
    Refusal("55006", "", TransientError, "Another session uses it; see pg_replication_slots.active_pid."),
    Refusal(
        "42710",
        "replication slot",
        TransientError,
        "Another session has just created this object. cdcd reads it again.",
    ),
    Refusal(
        "42704",
        "replication slot",
        PositionError,
        "The slot was dropped while it was in use. Changes since then are lost to cdcd. Bring the consumers back to a "
        "known state, and create a new slot with `cdcd run --accept-gap`.",
    ),
    Refusal("42704", "publication", SourceError, _PUBLICATION),
    # The file of a snapshot, before PostgreSQL 18 and since.
    Refusal("22023", "invalid snapshot identifier", TransientError, _SNAPSHOT_GONE),
    Refusal("42704", 'snapshot "', TransientError, _SNAPSHOT_GONE),
    # array_send, record_send and range_send, for a component type. If the Relation message before is decoded first,
    # it fails for the same reason.
    Refusal(
        "42883",
        "no binary output function",
        WithoutBinaryError,
        "Set postgres.binary: false, so that values come as text at every start.",
    ),
    Refusal(
        "0A000",
        "was not created in this database",
        SourceError,
        "A slot belongs to one database: correct postgres.dsn or postgres.slot.",
    ),
    Refusal(
        "0A000",
        "",
        ConfigError,
        "The server lacks what the configuration asks for; see postgres.protocol and its options.",
    ),
    Refusal(
        "22023",
        "",
        ConfigError,
        "The server does not accept an option; see postgres.protocol and its options.",
    ),
    Refusal(
        "25006", "", SourceError, "This server is a read-only standby: point postgres.dsn at the primary."
    ),
    Refusal(
        "XX000",
        "could not open relation with OID",
        TransientError,
        "A table was dropped while cdcd read its description. Try again.",
    ),
    Refusal("XX001", "", SourceError, "PostgreSQL reports damaged data: see its log before anything else."),
    Refusal(
        "XX002", "", SourceError, "PostgreSQL reports a damaged index: see its log before anything else."
    ),
    # Classes of passing failures: connection, transaction rollback, resources, lock not available, system errors.
    Refusal("08", "", TransientError, "cdcd connects again."),
    Refusal("40", "", TransientError, "cdcd tries again."),
    Refusal("53", "", TransientError, "PostgreSQL is short of a resource: see its log."),
    Refusal("55P03", "", TransientError, "cdcd tries again."),
    Refusal("58", "", TransientError, "PostgreSQL reports a system error. See its log."),
    # Failures in libpq itself: no server has answered yet, so there is no SQLSTATE.
    Refusal("", "definition of service", ConfigError, "Check service and servicefile in postgres.dsn."),
    Refusal(
        "",
        "invalid sslmode value",
        ConfigError,
        "sslmode is one of disable, allow, prefer, require, verify-ca, verify-full.",
    ),
    Refusal("", "invalid integer value", ConfigError, "A value in postgres.dsn must be a number."),
    Refusal(
        "",
        "root certificate file",
        ConfigError,
        "Check sslrootcert in postgres.dsn (sslrootcert=system uses the system's).",
    ),
    Refusal("", "could not load private key file", ConfigError, "Check sslkey in postgres.dsn."),
    Refusal(
        "",
        "private key file",
        ConfigError,
        "Check sslkey in postgres.dsn: the file must exist, belong to the user, and have mode 0600.",
    ),
    Refusal("", "certificate file", ConfigError, "Check sslcert in postgres.dsn."),
    Refusal(
        "",
        "invalid response to SSL negotiation",
        TransientError,
        "Another program than PostgreSQL listens there. Correct host and port in postgres.dsn.",
    ),
    Refusal(
        "",
        "server does not support SSL",
        SourceError,
        "Switch ssl on in PostgreSQL, or choose another sslmode.",
    ),
    Refusal(
        "",
        "certificate verify failed",
        SourceError,
        "The server's certificate is not signed by a CA in sslrootcert, or it has expired.",
    ),
    # TLS alerts are the server's messages about cdcd's certificate (RFC 8446, 6.2).
    Refusal("", "alert unknown ca", SourceError, _CLIENT_CERTIFICATE),
    Refusal("", "alert certificate", SourceError, _CLIENT_CERTIFICATE),
    Refusal("", "alert bad certificate", SourceError, _CLIENT_CERTIFICATE),
    Refusal(
        "",
        "does not match host name",
        SourceError,
        "The server's certificate is for another name than the host in the DSN.",
    ),
    Refusal(
        "",
        "authentication method requirement",
        SourceError,
        "require_auth or channel_binding excludes the server's method.",
    ),
    Refusal(
        "",
        "channel binding",
        SourceError,
        "The server or the connection does not support the channel_binding that is required.",
    ),
    Refusal("", f"could not create socket: {OUT_OF_FILES}", LimitError, FILES_HINT),
    Refusal(
        "", "translate host name", TransientError, "Check the host in postgres.dsn and the name service."
    ),
    Refusal(
        "", "failed to resolve host", TransientError, "Check the host in postgres.dsn and the name service."
    ),
    Refusal(
        "",
        "Connection refused",
        TransientError,
        "Check that PostgreSQL runs there and that listen_addresses includes that address.",
    ),
    Refusal(
        "",
        "No such file or directory",
        TransientError,
        "Check that PostgreSQL runs and that this is its socket directory.",
    ),
    Refusal(
        "", "timeout expired", TransientError, "No server answered. Check host, port, routing and firewall."
    ),
    Refusal("", "session is read-only", TransientError, "No host of the DSN is a primary right now."),
    Refusal(
        "", "server is in hot standby mode", TransientError, "No host of the DSN is a primary right now."
    ),
)

UNKNOWN: Final = Refusal("", "", SourceError, "See PostgreSQL's log for more.")
UNKNOWN_TRANSIENT: Final = Refusal(
    "",
    "",
    TransientError,
    "If this does not pass, check host and port in postgres.dsn, and PostgreSQL's log.",
)
