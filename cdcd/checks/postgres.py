"""What `cdcd check` says of PostgreSQL: one pure check after another over the facts of `inspection.py`.

A check looks at the facts and says what it finds, with the SQL that mends it; it never asks the server itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cdcd.checks.finding import Finding
from cdcd.checks.standby import check_failover, check_takeover
from cdcd.errors import CdcdError, ConfigError
from cdcd.postgres.connection import Dsn
from cdcd.postgres.inspection import Facts, Wanted, read_facts
from cdcd.postgres.publication import OPERATIONS
from cdcd.postgres.replication import STREAMED_FROM, identifier
from cdcd.postgres.slot import check_slot
from cdcd.protocol.versions import ALTER_TWO_PHASE_SINCE, Options, StreamingMode, start_options
from cdcd.records.routing import collisions

NAMED_MAX: Final = 8
"""So many tables are named in one finding; the rest are counted."""

KEEP_SIZE_SMALL_MB: Final = 1024
"""A max_slot_wal_keep_size below this may be used up by an outage of minutes on a busy server."""


async def examine(dsn: Dsn, wanted: Wanted) -> list[Finding]:
    """All findings, in the order of `CHECKS`. Raises what a refused first connection raises."""
    facts = await read_facts(dsn, wanted)
    return [finding for check in CHECKS for finding in check(facts, wanted)]


def _error_finding(subject: str, error: CdcdError) -> Finding:
    return Finding("error", subject, error.message, error.hint)


def _options(facts: Facts, wanted: Wanted) -> Options:
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


def check_server(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Version, role on the network, encoding."""
    try:
        options = _options(facts, wanted)
    except ConfigError as error:
        yield _error_finding("server", error)
    else:
        chosen = f"protocol version {options.protocol}, streaming {options.streaming}"
        yield Finding("ok", "server", f"PostgreSQL {facts.session.version}: {chosen}")
    if facts.session.in_recovery:
        yield Finding(
            "error",
            "server",
            "is a standby: neither publication nor slot can be created here",
            "Point postgres.dsn at the primary (target_session_attrs=read-write finds it among several hosts).",
        )
    if facts.session.encoding == "SQL_ASCII":
        yield Finding(
            "warning",
            "encoding",
            "the database is SQL_ASCII: PostgreSQL does not know what its text means, and sends bytes as they are",
            "Text that is not UTF-8 stops the pipeline. Dump and restore into a UTF8 database.",
        )


def check_privileges(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """REPLICATION and pg_hba.conf, shown by a walsender connection."""
    if facts.walsender_refusal:
        yield _error_finding("replication connection", facts.walsender_refusal)
    else:
        yield Finding("ok", "replication connection", f"role {facts.session.role} may replicate")


def check_wal_level(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """Logical decoding needs it."""
    level = facts.settings["wal_level"].shown
    if level == "logical":
        yield Finding("ok", "wal_level", level)
    else:
        yield Finding(
            "error", "wal_level", level, "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL."
        )


def check_capacity(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """A slot and a walsender for us."""
    for name, used, needed in (
        ("max_replication_slots", facts.session.slots, 0 if facts.slot else 1),
        ("max_wal_senders", facts.session.senders, 0 if facts.slot and facts.slot.active else 1),
    ):
        limit = int(facts.settings[name].value)
        found = f"{used} of {limit} in use"
        if used + needed > limit:
            yield Finding(
                "error",
                name,
                found,
                f"Free one, or ALTER SYSTEM SET {name} = {limit + 5}; then restart PostgreSQL.",
            )
        else:
            yield Finding("ok", name, found)


def check_publication(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """What it publishes, or whether it can be created."""
    publication = facts.publication
    if publication is None:
        yield from _missing_publication(facts, wanted)
        return
    name = f"publication {publication.name}"
    scope = "all tables, those to come too" if publication.all_tables else f"{len(publication.tables)} tables"
    if publication.schemas:
        scope += f", schemas {', '.join(publication.schemas)} with all that is to come"
    if not publication.tables:
        yield Finding(
            "warning",
            name,
            "publishes no table",
            f"ALTER PUBLICATION {identifier(publication.name)} ADD TABLE ...; nothing arrives before.",
        )
    else:
        yield Finding("ok", name, f"{scope}: {_named([table.qualified for table in publication.tables])}")
    missing = [operation for operation in OPERATIONS if operation not in publication.operations]
    if missing:
        yield Finding(
            "warning",
            name,
            f"does not publish {', '.join(missing)}: consumers will not hear of them",
            f"ALTER PUBLICATION {identifier(publication.name)} SET (publish = '{', '.join(OPERATIONS)}');",
        )
    for what, tables in (
        ("a row filter", [table for table in publication.tables if table.row_filter]),
        ("a column list", [table for table in publication.tables if table.columns]),
    ):
        if tables:
            found = f"{what} leaves a part out: {_named([table.qualified for table in tables])}"
            yield Finding("ok", name, found)


def _missing_publication(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    name = f"publication {wanted.publication}"
    quoted = identifier(wanted.publication)
    session = facts.session
    if isinstance(facts.matched, CdcdError):
        yield _error_finding(name, facts.matched)
    elif not (session.superuser or session.may_create):
        yield Finding(
            "error",
            name,
            f"is missing, and role {session.role} may not create it",
            f"GRANT CREATE ON DATABASE {identifier(session.database)} TO {identifier(session.role)};",
        )
    elif wanted.tables is None and not session.superuser:
        yield Finding(
            "error",
            name,
            "is missing, and only a superuser may create it for all tables",
            f"As a superuser: CREATE PUBLICATION {quoted} FOR ALL TABLES; or name the tables in postgres.tables.",
        )
    elif facts.foreign and not session.superuser:
        tables = sorted(facts.foreign)
        yield Finding(
            "error",
            name,
            f"is missing, and role {session.role} does not own {_named(tables)}",
            f"As their owner: CREATE PUBLICATION {quoted} FOR TABLE ...; or GRANT the owner's role TO "
            f"{identifier(session.role)}.",
        )
    else:
        scope = (
            "all tables" if wanted.tables is None else _named([table.qualified for table in facts.matched])
        )
        yield Finding("ok", name, f"will be created for {scope}")


def check_identities(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """REPLICA IDENTITY of what is published."""
    operations = facts.publication.operations if facts.publication else OPERATIONS
    changing = [operation for operation in ("update", "delete") if operation in operations]
    unnamed = [table for table in facts.tables if not table.has_identity]
    if unnamed and changing:
        fixes = [
            f"ALTER TABLE {identifier(table.schema)}.{identifier(table.name)} REPLICA IDENTITY FULL;"
            for table in unnamed[:2]
        ]
        yield Finding(
            "warning",
            "replica identity",
            f"{_named([table.qualified for table in unnamed])}: no old row can be named, so PostgreSQL refuses "
            f"{' and '.join(changing)} on them as long as they are published",
            f"Add a primary key, or: {' '.join(fixes)}{' ...' if len(unnamed) > len(fixes) else ''}",
        )
    full = [table for table in facts.tables if table.replica_identity == "f"]
    if full:
        found = f"FULL, whole old rows are written to the WAL: {_named([table.qualified for table in full])}"
        yield Finding("ok", "replica identity", found)
    if facts.tables and not unnamed and not full:
        yield Finding("ok", "replica identity", "every published table has one")


def check_topic_names(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Each table must have a topic that Kafka allows, and that is nobody else's."""
    for error in collisions([(table.schema, table.name) for table in facts.tables], wanted.topics):
        yield _error_finding("topic names", error)


def check_slot_state(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """The slot, its WAL, and what its creation would wait for."""
    name = f"slot {wanted.slot}"
    slot = facts.slot
    if slot is None:
        found = (
            "will be created: changes are sent from then on, rows that exist by then as snapshot.mode says"
        )
        yield Finding("ok", name, found)
        if facts.session.open_transactions:
            yield Finding(
                "warning",
                name,
                f"its creation will wait for {_named(facts.session.open_transactions)}",
                "COMMIT or ROLLBACK them (ROLLBACK PREPARED for prepared ones).",
            )
        return
    try:
        check_slot(slot, facts.session.database)
    except CdcdError as error:
        yield _error_finding(name, error)
        return
    reader = (
        f"read by {facts.slot_reader or 'a session'} (PID {slot.active_pid})"
        if slot.active
        else "nobody reads it"
    )
    found = f"{reader}; keeps {_size(slot.retained_bytes)} of WAL ({slot.wal_status})"
    if slot.wal_status in ("unreserved", "lost"):
        yield Finding(
            "error",
            name,
            found,
            "Its WAL is about to be removed: start cdcd now, or raise max_slot_wal_keep_size.",
        )
    elif slot.active and facts.slot_reader not in ("", wanted.pipeline):
        yield Finding(
            "error",
            name,
            found,
            f"End that session (SELECT pg_terminate_backend({slot.active_pid})), or give this pipeline a slot of its "
            "own (postgres.slot): what another confirms never comes here.",
        )
    else:
        yield Finding("ok", name, found)
    if slot.two_phase and not wanted.two_phase:
        altered = facts.server_version >= ALTER_TWO_PHASE_SINCE
        yield Finding(
            "ok" if altered else "warning",
            name,
            "decodes prepared transactions at PREPARE"
            + (", which cdcd changes when it starts" if altered else ", whatever the stream asks for"),
            ""
            if altered
            else "Set postgres.two_phase: true to be rid of this warning: before PostgreSQL 18 a slot keeps that mode.",
        )


def check_retention(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """How much WAL an outage of ours may cost, and when the slot is given up for it."""
    keep = facts.settings["max_slot_wal_keep_size"]
    if keep.value < 0:
        yield Finding(
            "warning",
            "max_slot_wal_keep_size",
            "unlimited: while cdcd or Kafka is away, WAL piles up until the disk is full",
            "Watch the retained WAL (cdcd's metrics), or set a limit that outlasts your longest outage, beyond which "
            "the slot is lost: ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();",
        )
    elif keep.value < KEEP_SIZE_SMALL_MB:
        yield Finding(
            "warning",
            "max_slot_wal_keep_size",
            f"{keep.shown}: a short outage on a busy server is enough to lose the slot",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();",
        )
    else:
        yield Finding("ok", "max_slot_wal_keep_size", keep.shown)
    idle = facts.settings.get("idle_replication_slot_timeout")
    if idle is not None and idle.value > 0:
        yield Finding(
            "warning",
            "idle_replication_slot_timeout",
            f"{idle.shown}: a pipeline that stands still for longer loses its slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def check_timeouts(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """How soon either side notices that the other is gone."""
    timeout = facts.settings["wal_sender_timeout"]
    timeout_s = timeout.value / 1000
    if timeout_s == 0:
        yield Finding(
            "warning",
            "wal_sender_timeout",
            "off: a connection that died silently keeps the slot busy until TCP gives up",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    elif wanted.status_interval_s > timeout_s / 3:
        found = f"{timeout.shown}; status updates go out every {timeout_s / 3:g} s, not {wanted.status_interval_s:g} s"
        yield Finding("ok", "wal_sender_timeout", found)
    else:
        yield Finding("ok", "wal_sender_timeout", timeout.shown)


def check_transactions(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Prepared transactions and large ones."""
    prepared = int(facts.settings["max_prepared_transactions"].value)
    if wanted.two_phase and not prepared:
        yield Finding(
            "warning",
            "max_prepared_transactions",
            "0: there can be no prepared transactions, so two_phase has nothing to do",
            "Set postgres.two_phase: false, or ALTER SYSTEM SET max_prepared_transactions = 100; and restart.",
        )
    elif wanted.two_phase:
        yield Finding("ok", "max_prepared_transactions", str(prepared))
    setting = facts.settings["logical_decoding_work_mem"]
    try:
        streamed = _options(facts, wanted).streaming is not StreamingMode.OFF
    except ConfigError:
        return
    memory = f"{STREAMED_FROM} for the stream" if streamed and not setting.is_set else setting.shown
    beyond = (
        "is streamed while it is open" if streamed else "is spilled to the server's disk until its commit"
    )
    yield Finding("ok", "logical_decoding_work_mem", f"{memory}; a transaction beyond that {beyond}")


def check_synchronous(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """A walsender of ours can be taken for a synchronous standby: then commits wait for Kafka."""
    names = facts.settings["synchronous_standby_names"].shown
    if "*" in names:
        yield Finding(
            "warning",
            "synchronous_standby_names",
            f"{names!r} may choose cdcd as a synchronous standby: commits would wait until Kafka has them",
            "Name the standbys by their application_name instead of *.",
        )


def check_select(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """Streaming needs no SELECT; reading a table's present content does."""
    if facts.unreadable:
        yield Finding(
            "ok", "SELECT", f"not granted on {_named(sorted(facts.unreadable))}; streaming works without it"
        )


CHECKS: Final[tuple[Callable[[Facts, Wanted], Iterator[Finding]], ...]] = (
    check_server,
    check_privileges,
    check_wal_level,
    check_capacity,
    check_publication,
    check_identities,
    check_topic_names,
    check_slot_state,
    check_retention,
    check_timeouts,
    check_takeover,
    check_failover,
    check_transactions,
    check_synchronous,
    check_select,
)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"
