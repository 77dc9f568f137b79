"""Checks of PostgreSQL for `cdcd check`: pure functions over the facts of `inspection.py`.

A check reads the facts and yields findings with SQL that fixes the problem; it never queries the server itself.

One check asks PostgreSQL whether it would run `heartbeat.action_query`, without running it.
"""

from collections.abc import Callable, Iterator
from typing import Final

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.heartbeat_query import HeartbeatQuery
from cdcd.adapters.postgres.inspection import ServerFacts, ServerWanted
from cdcd.adapters.postgres.money import MoneyLocale, hidden, reset
from cdcd.adapters.postgres.replication import STREAMED_FROM
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError, ConfigError, SourceError
from cdcd.core.pasted import quoted as identifier
from cdcd.core.protocol.versions import Options, StreamingMode, start_options
from cdcd.telemetry.findings import Finding, of_error
from cdcd.tools.checks.publication import (
    check_identities,
    check_partitions,
    check_patterns,
    check_publication,
    check_selection,
    check_topic_names,
)
from cdcd.tools.checks.slot import check_failover, check_retention, check_slot_state, check_takeover

WALSENDERS_UNCOUNTED_SINCE: Final = 180000
"""First server version that does not count walsenders as connections of the role and the database."""


READS_TABLES_ONLY_SINCE: Final = {13: 16, 14: 13, 15: 8, 16: 4}
"""First minor version of each major version with restrict_nonsystem_relation_kind. All versions from 17 on have it."""


def examine(facts: ServerFacts, wanted: ServerWanted) -> list[Finding]:
    """Return all findings, in the order of `CHECKS`."""
    return [finding for check in CHECKS for finding in check(facts, wanted)]


def _options(facts: ServerFacts, wanted: ServerWanted) -> Options:
    return start_options(
        facts.server_version,
        wanted.protocol,
        [wanted.publication],
        streaming=wanted.streaming,
        two_phase=wanted.two_phase,
        messages=wanted.messages,
        origin=wanted.origin,
        binary=wanted.binary,
    )


def check_server(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check the server's version, recovery state and encoding."""
    try:
        options = _options(facts, wanted)
    except ConfigError as error:
        yield of_error("server.version", "server", error)
    else:
        chosen = f"protocol version {options.protocol}, streaming {options.streaming}"
        yield Finding("ok", "server.version", "server", f"PostgreSQL {facts.session.version}: {chosen}")
    if facts.session.in_recovery:
        yield Finding(
            "error",
            "server.standby",
            "server",
            "is a standby: neither publication nor slot can be created here",
            "Point postgres.dsn at the primary (target_session_attrs=read-write finds it among several hosts).",
        )
    yield from _check_encoding(facts.session.encoding)


def _check_encoding(encoding: str) -> Iterator[Finding]:
    """Report how texts are converted. A database in UTF8 gives no finding, because all its texts are valid."""
    if encoding == "UTF8":
        return
    known = {
        "SQL_ASCII": "the database is SQL_ASCII: PostgreSQL does not know the encoding of its text, and accepts any "
        "bytes",
        "MULE_INTERNAL": "the database is MULE_INTERNAL, which PostgreSQL does not convert to UTF-8: only ASCII is "
        "delivered",
    }
    yield Finding(
        "warning" if encoding in known else "ok",
        "server.encoding",
        "encoding",
        known.get(
            encoding, f"the database is {encoding}; its texts are converted to UTF-8 as PostgreSQL does it"
        ),
        "A text that is not UTF-8 is delivered as null with the header cdcd.unwritable and the event "
        "value.unwritable; in a key, or in the name of a table or column, it ends the daemon. Dump and restore into a "
        "UTF8 database."
        if encoding in known
        else "",
    )


def check_minor(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check that the sessions that read tables can refuse views and foreign tables."""
    major, minor = divmod(facts.server_version, 10_000)
    since = READS_TABLES_ONLY_SINCE.get(major)
    if since is None or minor >= since:
        return
    yield Finding(
        "warning",
        "server.minor",
        "server",
        f"PostgreSQL {facts.session.version} lacks restrict_nonsystem_relation_kind: the owner of a published table's "
        "schema can have a view read in place of the table, with the rights of the role that reads",
        f"Update PostgreSQL to {major}.{since} or a later minor version.",
    )


def check_money(found: MoneyLocale, chosen: int | None) -> Iterator[Finding]:
    """Check the decimal digits of money, and if the role or the DSN sets others. `chosen`: `money.digits`."""
    digits = found.digits if chosen is None else chosen
    if digits is None:
        yield of_error("server.money", "money", hidden(found))
        return
    if chosen is None and not found.is_usable:
        yield Finding(
            "warning",
            "server.money",
            "money",
            f"no session with the database's default of lc_monetary, {found.name}, can use money, because the "
            "currency's symbol has no character in the encoding of the database. cdcd assumes 2 digits behind the "
            "point",
            "Set lc_monetary of the database to a locale in its encoding (ALTER DATABASE … SET lc_monetary), or set "
            "money.digits.",
        )
        return
    source = "money.digits" if chosen is not None else f"the database's default of lc_monetary, {found.name}"
    shown = f"{digits} digits behind the point, by {source}"
    if not found.own or found.own_digits == digits:
        yield Finding("ok", "server.money", "money", shown)
        return
    yield Finding(
        "warning",
        "server.money",
        "money",
        f"{shown}; but the role {found.role} or postgres.dsn sets lc_monetary to {found.own}, which has "
        f"{found.own_digits}",
        f"Sessions with that setting write and show amounts that differ by a power of ten. {reset(found)}",
    )


def check_privileges(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check REPLICATION and pg_hba.conf by the result of a walsender connection."""
    if facts.walsender_refusal:
        yield of_error("server.replication", "replication connection", facts.walsender_refusal)
    else:
        yield Finding(
            "ok", "server.replication", "replication connection", f"role {facts.session.role} may replicate"
        )


def check_wal_level(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check wal_level, which must be logical. Since PostgreSQL 19, replica is enough."""
    setting = facts.settings["wal_level"]
    level = setting.shown
    effective = facts.settings.get("effective_wal_level")
    if level == "logical":
        yield Finding("ok", "wal.level", "wal_level", level)
    elif level == "replica" and effective is not None:
        # By PostgreSQL 19's documentation of effective_wal_level; not tested on a server.
        found = f"{level}, and effective_wal_level is {effective.shown}: logical as long as there is a logical slot"
        yield Finding("ok", "wal.level", "wal_level", found)
    elif setting.restart_pending:
        found = f"{level}, and another value is set that takes effect after a restart of PostgreSQL"
        yield Finding("error", "wal.level", "wal_level", found, RESTART)
    else:
        yield Finding(
            "error",
            "wal.level",
            "wal_level",
            f"{level}, and cdcd needs logical",
            "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL.",
        )


RESTART: Final = "Restart PostgreSQL, for example by `systemctl restart postgresql`."

_FREE: Final = {
    "max_replication_slots": "Drop an unused slot (SELECT slot_name, active FROM pg_replication_slots)",
    "max_wal_senders": "End unused WAL senders (pg_stat_replication)",
}


def check_capacity(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check that a slot and a walsender are free for cdcd."""
    for code, name, used, needed in (
        ("slot.capacity", "max_replication_slots", facts.session.slots, 0 if facts.slot else 1),
        (
            "wal.senders",
            "max_wal_senders",
            facts.session.senders,
            0 if facts.slot and facts.slot.active else 1,
        ),
    ):
        limit = int(facts.settings[name].value)
        found = f"{used} of {limit} in use"
        if used + needed > limit and facts.settings[name].restart_pending:
            found += "; another value is set and takes effect after a restart of PostgreSQL"
            yield Finding("error", code, name, found, RESTART)
        elif used + needed > limit:
            yield Finding(
                "error",
                code,
                name,
                found,
                f"{_FREE[name]}, or ALTER SYSTEM SET {name} = {limit + 5}; then restart PostgreSQL.",
            )
        else:
            yield Finding("ok", code, name, found)


def check_connections(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check CONNECTION LIMIT of role and database. Before PostgreSQL 18 these limits also count walsenders."""
    session = facts.session
    needed = wanted.connections + (facts.server_version < WALSENDERS_UNCOUNTED_SINCE)
    for subject, kind, name, used, limit in (
        (f"role {session.role}", "ROLE", session.role, session.role_connections, session.role_limit),
        (
            f"database {session.database}",
            "DATABASE",
            session.database,
            session.database_connections,
            session.database_limit,
        ),
    ):
        # An active instance has its connections already, and they are counted.
        if limit is None or facts.active:
            continue
        found = f"CONNECTION LIMIT {limit}, of which {used} are in use; cdcd opens up to {needed}"
        if used + needed > limit:
            fix = f"ALTER {kind} {identifier(name)} CONNECTION LIMIT {used + needed + 2};"
            yield Finding("error", "server.connections", subject, found, fix)
        else:
            yield Finding("ok", "server.connections", subject, found)


def check_timeouts(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check how soon each side detects that the other is gone."""
    timeout = facts.settings["wal_sender_timeout"]
    timeout_s = timeout.value / 1000
    if timeout_s == 0:
        yield Finding(
            "warning",
            "wal.timeout",
            "wal_sender_timeout",
            "off: a connection that failed silently holds the slot until TCP detects it",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    elif wanted.status_interval_s > timeout_s / 3:
        found = f"{timeout.shown}; status updates go out every {timeout_s / 3:g} s, not {wanted.status_interval_s:g} s"
        yield Finding("ok", "wal.timeout", "wal_sender_timeout", found)
    else:
        yield Finding("ok", "wal.timeout", "wal_sender_timeout", timeout.shown)


def check_transactions(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check settings for prepared and large transactions."""
    prepared = int(facts.settings["max_prepared_transactions"].value)
    if wanted.two_phase and not prepared:
        yield Finding(
            "warning",
            "server.prepared",
            "max_prepared_transactions",
            "0: there can be no prepared transactions, so two_phase has nothing to do",
            "Set postgres.two_phase: false, or ALTER SYSTEM SET max_prepared_transactions = 100; and restart.",
        )
    elif wanted.two_phase:
        yield Finding("ok", "server.prepared", "max_prepared_transactions", str(prepared))
    setting = facts.settings["logical_decoding_work_mem"]
    try:
        streamed = _options(facts, wanted).streaming is not StreamingMode.OFF
    except ConfigError:
        return
    memory = f"{STREAMED_FROM} for the stream" if streamed and not setting.is_set else setting.shown
    beyond = (
        "is streamed while it is open" if streamed else "is spilled to the server's disk until its commit"
    )
    yield Finding(
        "ok", "server.memory", "logical_decoding_work_mem", f"{memory}; a transaction beyond that {beyond}"
    )


def revoke_emit(facts: ServerFacts) -> str:
    """Return SQL that restricts writing logical messages to roles with the right."""
    more = ", boolean" if facts.server_version >= 170000 else ""
    functions = ", ".join(
        [f"pg_catalog.pg_logical_emit_message(boolean, text, {kind}{more})" for kind in ("text", "bytea")]
    )
    role = facts.session.role.replace('"', '""')
    return f'REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC; GRANT EXECUTE ON FUNCTION {functions} TO "{role}";'


def check_signals(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check who can request snapshots: the requests are logical messages, which any client of the database can send.

    A request needs a token, unless `snapshot.signals_from` is anybody. Events of an outbox need none. A context needs
    the token of `context.token`, if there is one.
    """
    subject = "snapshot.signals"
    try:
        heard = _options(facts, wanted).messages
    except ConfigError:
        return
    if wanted.signals == "off" or not heard:
        why = (
            "off"
            if wanted.signals == "off"
            else "logical messages are not sent (PostgreSQL 14, postgres.messages)"
        )
        yield Finding("ok", "snapshot.signals", subject, f"{why}: `cdcd snapshot` has no effect")
    elif wanted.signals_from_anybody and facts.session.emits_anybody:
        yield Finding(
            "warning",
            "snapshot.signals",
            subject,
            "every role that may connect to the database can start, pause and cancel snapshots (signals_from: anybody)",
            f"Set snapshot.signals_from: authorized. Or revoke the right from the others: {revoke_emit(facts)}",
        )
    elif wanted.signals == "all" and facts.session.superuser:
        yield Finding(
            "warning",
            "snapshot.signals",
            subject,
            f"all: everybody who may send a request can make cdcd evaluate an expression as superuser "
            f"{facts.session.role}",
            "Set snapshot.signals: without_where, or connect as a role that is not a superuser.",
        )
    else:
        yield Finding("ok", "snapshot.signals", subject, wanted.signals)
    if wanted.outbox_messages and facts.session.emits_anybody:
        yield Finding(
            "warning",
            "outbox.public",
            "outbox.messages",
            "every role that may connect to the database can publish events to the topics of outbox.topics",
            f"Revoke the right from the others, and grant it to the applications: {revoke_emit(facts)}",
        )
    if wanted.contexts_from_anybody and facts.session.emits_anybody:
        yield Finding(
            "warning",
            "context.public",
            "context.token",
            "every role that may connect to the database can choose the headers of the records of its transactions",
            "Set context.token_file, and let the applications call cdcd.set_context (deploy/sql/context.sql).",
        )


def check_synchronous(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check that cdcd's walsender cannot count as a synchronous standby, because commits would then wait for Kafka."""
    names = facts.settings["synchronous_standby_names"].shown
    if "*" in names:
        yield Finding(
            "warning",
            "server.synchronous",
            "synchronous_standby_names",
            f"{names!r} may choose cdcd as a synchronous standby: commits would wait until Kafka has them",
            "Name the standbys by their application_name instead of *.",
        )


CHECKS: Final[tuple[Callable[[ServerFacts, ServerWanted], Iterator[Finding]], ...]] = (
    check_server,
    check_minor,
    check_privileges,
    check_wal_level,
    check_capacity,
    check_connections,
    check_publication,
    check_patterns,
    check_selection,
    check_partitions,
    check_identities,
    check_topic_names,
    check_slot_state,
    check_retention,
    check_timeouts,
    check_takeover,
    check_failover,
    check_transactions,
    check_synchronous,
    check_signals,
)


CODE = "heartbeat.query"
SUBJECT = "heartbeat query"


async def check_heartbeat(config: Config, dsn: Dsn) -> Iterator[Finding]:
    """Return the findings about the query; none without a query.

    Raises:
        TransientError: the server does not answer.
        FatalError: it refuses the connection.
    """
    query = config.heartbeat.action_query
    if query is None:
        return iter(())
    opened = await HeartbeatQuery.open(
        dsn,
        query,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
        timeout_s=config.heartbeat.action_timeout_s,
    )
    try:
        planned = await opened.plan()
    except SourceError as error:
        return iter((_refused(error),))
    finally:
        opened.close()
    if planned:
        found = Finding("ok", CODE, SUBJECT, "the server accepts it, and the role may run it")
    else:
        found = Finding(
            "unknown",
            CODE,
            SUBJECT,
            "the server accepts the statement but cannot plan it, so the right of the role is known only when it runs",
            "Look at the metric cdcd_heartbeat_queries_total, or write the statement as SELECT, INSERT or UPDATE.",
        )
    return iter((found,))


def _refused(error: CdcdError) -> Finding:
    return Finding("warning", CODE, SUBJECT, f"{error.message} The stream continues without it", error.hint)
