"""The replication slot: its state, whether it can be used, and its creation.

A slot is the server's promise to keep the WAL from `restart_lsn` on. If the promise is broken (the slot was
dropped, invalidated, or created again), changes are missing, so `PositionError` is raised.

Creating a slot waits until every transaction that was open at the beginning has ended, including prepared ones
(snapbuild.c, SnapBuildWaitSnapshot). This may take forever, so the wait is reported together with the transaction
that causes it.

`read_pending` returns the transactions that a slot would send next, and leaves the slot unchanged.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.quoting import identifier, literal
from cdcd.adapters.postgres.refusals import SlotActiveError
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.tables import holder
from cdcd.core.engine.startup_requests import SlotSeen
from cdcd.core.errors import ConfigError, PositionError, SourceError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.versions import ALTER_TWO_PHASE_SINCE

PLUGIN: Final = "pgoutput"
TWO_PHASE_SINCE: Final = 150000
"""Since this version pgoutput decodes prepared transactions; in 14 a slot can only have the flag."""
FAILOVER_SINCE: Final = 170000

END_STREAM_S: Final = 2.0
END_STREAM_POLL_S: Final = 0.05
_OPTION_LIST_SINCE: Final = 150000


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots; columns that an older server lacks are None or False."""

    name: str
    plugin: str
    """Empty for a physical slot, and for a logical one whose creation has just begun (`is_physical`)."""
    database: str
    """Empty for a physical slot."""
    temporary: bool
    active: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    wal_status: str
    """reserved | extended | unreserved | lost; "" if the server gives no status."""
    safe_wal_size: int | None
    """Bytes of WAL that can still be written before the slot may be lost; None: no limit is set."""
    two_phase: bool
    failover: bool
    invalidation_reason: str
    """Reason for the invalidation, in the terms of version 17; "" for a valid slot."""
    retained_bytes: int
    """Bytes of WAL that the server keeps for this slot."""
    current_lsn: int
    """Flush position of the server at the same moment."""

    @property
    def is_physical(self) -> bool:
        """True if the slot has no database, which is so only for a physical slot (slot.h, SlotIsPhysical).

        A logical slot has its database at once, and its plugin shortly after (logical.c,
        CreateInitDecodingContext).
        """
        return not self.database


_READ: Final = """
SELECT to_jsonb(s), p.lsn, coalesce(pg_wal_lsn_diff(p.lsn, s.restart_lsn), 0)::bigint
  FROM pg_replication_slots s,
       (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END) p(lsn)
 WHERE s.slot_name = %s
"""


async def read_slot(connection: Connection, name: str) -> SlotState | None:
    """Return the slot, or None if it does not exist. Raises TransientError and SourceError."""
    with translated(f"reading slot {name}", {"slot": name}):
        cursor = await connection.execute(_READ, (name,))
        row: Any = await cursor.fetchone()
    if row is None:
        return None
    fields, current, retained = row
    return SlotState(
        name=fields["slot_name"],
        plugin=fields["plugin"] or "",
        database=fields["database"] or "",
        temporary=fields["temporary"],
        active=fields["active"],
        active_pid=fields["active_pid"],
        restart_lsn=_position(fields["restart_lsn"]),
        confirmed_flush_lsn=_position(fields["confirmed_flush_lsn"]),
        wal_status=fields["wal_status"] or "",
        safe_wal_size=fields["safe_wal_size"],
        two_phase=fields.get("two_phase", False),
        failover=fields.get("failover", False),
        invalidation_reason=_invalidation(fields),
        retained_bytes=max(0, retained),
        current_lsn=Lsn.parse(current),
    )


def _position(text: str | None) -> int | None:
    return None if text is None else Lsn.parse(text)


def _invalidation(fields: dict[str, Any]) -> str:
    """Return the reason of the invalidation; "" for a valid slot.

    17 and later have the reason. Every version removes restart_lsn with the WAL. Other cases are 16's
    `conflicting`.
    """
    if reason := fields.get("invalidation_reason"):
        return str(reason)
    if fields["restart_lsn"] is None and not fields["active"]:
        return "wal_removed"
    if fields.get("conflicting"):
        return "rows_removed"
    return "wal_removed" if fields["wal_status"] == "lost" else ""


def check_slot(state: SlotState, database: str) -> None:
    """Return if this slot can feed a pipeline of `database`; otherwise raise SourceError or PositionError.

    SlotActiveError (transient): another session is still creating the slot.
    """
    if not state.is_physical and not state.plugin:
        raise _unfinished(state)
    if state.plugin != PLUGIN:
        kind = "is a physical one" if state.is_physical else f"uses the plugin {state.plugin}"
        raise SourceError(
            f"Slot {state.name} {kind}, not {PLUGIN}.",
            hint="Choose another name in postgres.slot: cdcd creates it.",
        )
    if state.database != database:
        raise SourceError(
            f"Slot {state.name} belongs to database {state.database}, not {database}.",
            hint="Correct postgres.dsn or postgres.slot: a logical slot belongs to one database.",
        )
    if state.temporary:
        raise SourceError(
            f"Slot {state.name} is a temporary slot of another session.",
            hint="Choose another name in postgres.slot: cdcd creates it.",
        )
    if state.invalidation_reason:
        raise PositionError(
            f"Slot {state.name} has been invalidated ({state.invalidation_reason}): the server no longer has the WAL "
            f"after {Lsn(state.confirmed_flush_lsn or 0)}, so changes are missing.",
            hint=f"SELECT pg_drop_replication_slot('{state.name}'), bring the consumers back to a known state, and "
            "create a new slot with `cdcd run --accept-gap`; against a repetition raise max_slot_wal_keep_size.",
        )
    if state.confirmed_flush_lsn is None:
        raise _unfinished(state)


def _unfinished(state: SlotState) -> SlotActiveError:
    return SlotActiveError(
        f"Slot {state.name} is still being created by the session with PID {state.active_pid}.",
        hint="It waits for open transactions to end; see pg_stat_activity and pg_prepared_xacts.",
    )


def seen(state: SlotState, database: str) -> SlotSeen:
    """Return the slot's state for the decisions of the start.

    SourceError: no pipeline can use the slot in this database.
    """
    problem = None
    try:
        check_slot(state, database)
    except PositionError as error:
        problem = error
    return SlotSeen(state.confirmed_flush_lsn, state.two_phase, state.failover, problem)


@dataclass(frozen=True, slots=True)
class SlotWait:
    """The creation of a slot waits for a transaction: of session `pid`, or the prepared transaction `gid`.

    `holder` describes the transaction's owner; "" if the owner is unknown.
    """

    slot: str
    waited_s: float
    pid: int | None
    gid: str | None
    holder: str = ""


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """The answer to CREATE_REPLICATION_SLOT."""

    name: str
    consistent_point: int
    """Every transaction that commits after this LSN is streamed, and no transaction before."""
    snapshot: str | None
    """Name of the exported snapshot; None if no export was requested."""


_BLOCKERS: Final = """
SELECT holder.pid, prepared.gid, activity.usename::text, activity.application_name
  FROM pg_locks waiting
  LEFT JOIN pg_locks holder ON holder.locktype = 'transactionid' AND holder.granted
                           AND holder.transactionid = waiting.transactionid
  LEFT JOIN pg_prepared_xacts prepared ON prepared.transaction = waiting.transactionid
  LEFT JOIN pg_stat_activity activity ON activity.pid = holder.pid
 WHERE waiting.pid = %s AND waiting.locktype = 'transactionid' AND NOT waiting.granted
"""


async def create_slot(
    stream: ReplicationStream,
    name: str,
    *,
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
    export: bool = False,
    observer: Connection | None = None,
    notice_s: float = 5.0,
    on_wait: Callable[[SlotWait], None] = lambda _: None,
) -> CreatedSlot:
    """Create the slot by the replication command CREATE_REPLICATION_SLOT, which alone can export a snapshot.

    `export`: the answer names a snapshot, which can be imported until the stream runs another command. `temporary`:
    the slot ends with the stream.

    Every `notice_s` seconds of waiting, `on_wait` is called with the blocking transaction, as seen on `observer`
    (an idle SQL connection). When this call is cancelled, the command on the server is cancelled, so that no slot
    remains. Raises ConfigError (the server lacks an option), SourceError (wal_level, no free slot, privilege),
    TransientError.
    """
    command = _create_command(
        stream.server_version,
        name,
        temporary=temporary,
        two_phase=two_phase,
        failover=failover,
        export=export,
    )
    creation = asyncio.create_task(stream.query(command, f"creating slot {name}", slot=name))
    began = time.monotonic()
    try:
        while not (await asyncio.wait({creation}, timeout=notice_s))[0]:
            on_wait(await _blocker(observer, stream.backend_pid, name, time.monotonic() - began))
        ((_, consistent_point, snapshot, _),) = creation.result()
    except BaseException:
        if not creation.done():
            await stream.cancel()
            await asyncio.wait({creation}, timeout=notice_s)
            creation.cancel()
            await asyncio.wait({creation})
        raise
    assert consistent_point
    return CreatedSlot(name, Lsn.parse(consistent_point), snapshot)


_CAPACITY: Final = """
SELECT current_setting('wal_level'), current_setting('effective_wal_level', true),
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)
"""


async def refuse_creation(connection: Connection, name: str, *, two_phase: bool, failover: bool) -> None:
    """Refuse what the creation of this slot would meet, without creating anything.

    Raises ConfigError (the server lacks an option), SourceError (wal_level, no free slot), TransientError.
    """
    version = connection.info.server_version
    _create_command(version, name, temporary=False, two_phase=two_phase, failover=failover, export=False)
    what = f"creating slot {name}"
    with translated(what, {"slot": name}):
        row: Any = await (await connection.execute(_CAPACITY.encode())).fetchone()
    level, effective, slots_max, slots = row
    # PostgreSQL 19 raises effective_wal_level with the first logical slot, if wal_level is replica. By its
    # documentation, not tested on a server.
    if level != "logical" and not (level == "replica" and effective is not None):
        raise SourceError(
            f"{what}: wal_level is {level}, and logical decoding needs wal_level = logical.",
            hint="ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL.",
        )
    if slots >= slots_max:
        raise SourceError(
            f"{what}: all replication slots are in use (max_replication_slots is {slots_max}).",
            hint="Drop an unused slot (SELECT slot_name, active FROM pg_replication_slots) or raise "
            "max_replication_slots and restart.",
        )


def creation_by_sql(name: str) -> str:
    """Return the statement that creates a slot, for a person to run."""
    return f"SELECT lsn FROM pg_create_logical_replication_slot({literal(name)}, '{PLUGIN}');"


async def create_slot_by_sql(connection: Connection, name: str, *, failover: bool) -> Lsn:
    """Create a slot without a replication connection, and return its consistent point.

    The server waits for the transactions that are open now.

    Args:
        failover: True: the server copies the slot to its standbys (17 and up).

    Raises TransientError and SourceError.
    """
    more = ", failover => true" if failover else ""
    query = f"SELECT lsn::text FROM pg_create_logical_replication_slot(%s, '{PLUGIN}'{more})"
    with translated(f"creating slot {name}", {"slot": name}):
        row: Any = await (await connection.execute(query.encode(), (name,))).fetchone()
    return Lsn.parse(row[0])


async def set_failover(stream: ReplicationStream, name: str) -> None:
    """Mark a slot for synchronization to standbys. ConfigError: before 17. Waits until no session reads the slot."""
    _needs(stream.server_version, "failover", FAILOVER_SINCE)
    command = f"ALTER_REPLICATION_SLOT {identifier(name)} (FAILOVER true)"
    await stream.query(command, f"altering slot {name}", slot=name)


async def end_two_phase(stream: ReplicationStream, name: str) -> None:
    """Let PostgreSQL send prepared transactions whole at COMMIT PREPARED again. ConfigError: before 18.

    Transactions that were sent and confirmed at PREPARE are sent again, because restart_lsn lies before them until
    they are decided. The command waits until no session reads the slot.

    PostgreSQL has no safe command for the other direction. ALTER_REPLICATION_SLOT (TWO_PHASE true) leaves
    two_phase_at unchanged (slot.c, ReplicationSlotAlter). For a transaction that was prepared before
    confirmed_flush_lsn and is committed later, the server then sends COMMIT PREPARED alone, without its rows.
    START_REPLICATION with the option two_phase sets two_phase_at to the start of the stream (logical.c,
    CreateDecodingContext), so such a transaction is sent whole.
    """
    _needs(stream.server_version, "ALTER_REPLICATION_SLOT with two_phase", ALTER_TWO_PHASE_SINCE)
    command = f"ALTER_REPLICATION_SLOT {identifier(name)} (TWO_PHASE false)"
    await stream.query(command, f"altering slot {name}", slot=name)


def _needs(version: int, option: str, since: int) -> None:
    if version < since:
        raise ConfigError(
            f"{option} needs PostgreSQL {since // 10000}, and the server has {version // 10000}.",
            hint=f"Set {option}: false.",
        )


def _create_command(
    version: int, name: str, *, temporary: bool, two_phase: bool, failover: bool, export: bool
) -> str:
    if two_phase:
        _needs(version, "two_phase", TWO_PHASE_SINCE)
    if failover:
        _needs(version, "failover", FAILOVER_SINCE)
    head = f"CREATE_REPLICATION_SLOT {identifier(name)}{' TEMPORARY' if temporary else ''} LOGICAL {PLUGIN}"
    if version < _OPTION_LIST_SINCE:
        return f"{head} {'EXPORT' if export else 'NOEXPORT'}_SNAPSHOT"
    options = [
        f"SNAPSHOT '{'export' if export else 'nothing'}'",
        *["TWO_PHASE"] * two_phase,
        *["FAILOVER"] * failover,
    ]
    return f"{head} ({', '.join(options)})"


async def _blocker(observer: Connection | None, walsender_pid: int, slot: str, waited_s: float) -> SlotWait:
    """Return the transaction that the creation waits for, as far as it is known."""
    if observer is None:
        return SlotWait(slot, waited_s, None, None)
    with translated("looking for what holds the slot's creation", {}):
        cursor = await observer.execute(_BLOCKERS, (walsender_pid,))
        row: Any = await cursor.fetchone()
    if row is None:
        return SlotWait(slot, waited_s, None, None)
    pid, gid, role, application_name = row
    who = f"prepared transaction {gid!r}" if pid is None else holder(pid, role, application_name)
    return SlotWait(slot, waited_s, pid, gid, who)


_END_STREAM: Final = """
SELECT s.active_pid, pg_terminate_backend(s.active_pid)
  FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.slot_name = %s AND a.usename = current_user AND a.application_name = %s
"""


async def end_stream(connection: Connection, name: str, application_name: str) -> list[int]:
    """End the walsender of this role and application that reads the slot, and return the ended process ids.

    Returns when the slot is free, or after `END_STREAM_S`. A walsender whose client no longer reads must be
    terminated twice, because it first tries to send the reason to its client (elog.c, send_message_to_frontend).
    """
    ended: list[int] = []
    deadline = time.monotonic() + END_STREAM_S
    with translated(f"ending the former stream of slot {name}", {"slot": name}):
        while True:
            cursor = await connection.execute(_END_STREAM, (name, application_name))
            rows: list[Any] = await cursor.fetchall()
            ended += [pid for pid, _ in rows if pid not in ended]
            if not rows or time.monotonic() > deadline:
                return ended
            await asyncio.sleep(END_STREAM_POLL_S)


async def drop_slot(connection: Connection, name: str) -> bool:
    """Drop the slot; return False if it does not exist. SlotActiveError: a session reads the slot."""
    with translated(f"dropping slot {name}", {"slot": name}):
        try:
            await connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.UndefinedObject:
            return False
    return True


MESSAGES_MAX: Final = 1_000_000
"""Approximate maximum of messages that are decoded, which the server keeps in a temporary file in the meantime."""

_MESSAGES_SINCE: Final = 140000

# These are tags of pgoutput's messages (logicalproto.h): BEGIN, COMMIT, DELETE, INSERT, MESSAGE, TRUNCATE, UPDATE.
# The server sends only the tag and the LSN, so that large rows cost nothing here.
_TAGS: Final = "66, 67, 68, 73, 77, 84, 85"

_PENDING: Final = """
SELECT xid::text::bigint, lsn::text, chr(get_byte(data, 0)), count(*)
  FROM pg_logical_slot_peek_binary_changes(%s, %s::text::pg_lsn, %s, 'proto_version', '1', 'publication_names',
                                           %s{more})
 WHERE get_byte(data, 0) IN ({tags})
 GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction that the slot will send.

    Attributes:
        xid: 0 for a non-transactional logical message.
        end_lsn: end of its commit record.
        events: number of its changes and messages with different LSNs; rows of one statement may have the same LSN.
    """

    xid: int
    end_lsn: int
    events: dict[int, int]


async def current_lsn(connection: Connection) -> Lsn:
    """Return the position up to which the server has written WAL. Raises TransientError and SourceError."""
    with translated("asking for the position in the WAL", {}):
        row: Any = await (await connection.execute("SELECT pg_current_wal_lsn()::text")).fetchone()
    return Lsn.parse(row[0])


async def read_pending(
    connection: Connection, slot: str, publication: str, up_to: Lsn
) -> tuple[list[PendingTransaction], bool]:
    """Return the transactions with events that end after the slot's position, in the order of their ends; and whether
    these are all.

    Args:
        up_to: only transactions that commit before this LSN are returned.

    Raises:
        SlotActiveError: a session reads the slot.
        TransientError, SourceError.
    """
    more = ", 'messages', 'true'" if connection.info.server_version >= _MESSAGES_SINCE else ""
    query = _PENDING.format(more=more, tags=_TAGS).encode()
    with translated(f"looking at what slot {slot} has", {"slot": slot, "publication": publication}):
        rows: Any = await (
            await connection.execute(query, (slot, str(up_to), MESSAGES_MAX, identifier(publication)))
        ).fetchall()
    found: dict[int, PendingTransaction] = {}
    ends: dict[int, int] = {}
    for xid, text, tag, count in rows:
        lsn = Lsn.parse(text)
        if tag == "C":
            ends[xid] = lsn
        elif tag != "B":
            # A non-transactional message belongs to no transaction, so its own position is used as its end.
            key = xid or -lsn
            events = found.setdefault(key, PendingTransaction(xid, lsn, {})).events
            events[lsn] = events.get(lsn, 0) + count
    transactions = [
        PendingTransaction(each.xid, ends.get(each.xid, each.end_lsn), each.events) for each in found.values()
    ]
    is_all = sum(count for *_, count in rows) < MESSAGES_MAX
    return sorted(transactions, key=lambda each: each.end_lsn), is_all
