"""`cdcd adopt --takeover`: stops the connector, and finds which events come twice or not at all when cdcd follows it.

PostgreSQL sends every transaction again that ends after the position that the slot has confirmed. Of those, the former
reader had written some events to Kafka already: these come twice. It had confirmed only what Kafka has, and its own
offset says up to where. A slot that is past that offset was moved by somebody else.

`Tails` (`written_events.py`) reads Debezium's events at the ends of the topics: the transaction of each event, and
its LSN.

    look  ->  publication and slot made, and awaited  ->  connector stopped  ->  slot free  ->  all compared

Until the stop, nothing of the connector is touched. After it, cdcd or the connector may go on from the slot, because
PostgreSQL keeps what was not confirmed. Each step may be done again, so a command that was killed is run again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from cdcd.adapters.credentials.tokens import access
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.bounded_reading import read_tails
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.publication import is_ours, make_publication, mark_ours, read_publication
from cdcd.adapters.postgres.slot import (
    SlotState,
    check_slot,
    create_slot_by_sql,
    current_lsn,
    read_pending,
    read_slot,
)
from cdcd.config.loading import Config
from cdcd.core.errors import PositionError, SourceError
from cdcd.core.pasted import identifier
from cdcd.core.protocol.lsn import Lsn
from cdcd.tools.adopt.connect_api import Connector
from cdcd.tools.adopt.database import Narrowing
from cdcd.tools.adopt.written_events import (
    POSITIONS,
    OffsetGap,
    Tails,
    Twice,
    gap,
    twice,
    unfinished_snapshot,
    unfinished_tables,
)
from cdcd.tools.operations.sides import peek

FREE_S: Final = 60.0
"""Seconds until the slot must be free after the connector has stopped: the walsender notices the closed
connection."""

PASSED_S: Final = 300.0
"""Seconds until the connector must have confirmed a position of a moment ago. It stores its offsets once a minute."""

_POLL_S: Final = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TakeoverPlan:
    """What is taken over.

    Attributes:
        narrowing: the publication that must be made first; None: the connector's is used.
        connector_slot: the slot that the connector reads. If cdcd cannot read it, the configuration has another one,
            which is created before the connector stops.
        driver_confirms: the connector lets its driver confirm WAL without changes (lsn.flush.mode), so
            that its slot may be past its offset.
        accept_gap: go on if somebody has moved the slot past the connector's offset.
    """

    config: Config
    connector: Connector
    narrowing: Narrowing | None
    connector_slot: str
    driver_confirms: bool
    accept_gap: bool

    @property
    def has_own_slot(self) -> bool:
        return self.connector_slot != self.config.postgres.slot


@dataclass(frozen=True, slots=True)
class TakeoverOutcome:
    """The connector is stopped.

    Attributes:
        confirmed: the slot's position: cdcd gets every transaction that ends after it.
        written_up_to: the end of the WAL after the connector has stopped.
        offset: the connector's, as Connect gives it.
        gap: the slot is past the connector's offset.
        driver_confirms: as in `TakeoverPlan`: such a gap has no changes, unless somebody else has moved the slot too.
        unfinished_tables: an incremental snapshot was being read.
        left_slot: the connector's slot, which cdcd does not read and which keeps WAL; None: there is none.
    """

    slot: str
    confirmed: Lsn
    written_up_to: Lsn
    offset: Mapping[str, Any]
    twice: Twice
    gap: OffsetGap | None
    driver_confirms: bool
    unfinished_tables: bool
    left_slot: str | None = None


def take_over(plan: TakeoverPlan, say: Say) -> TakeoverOutcome:
    """Stop the connector, when all that can be known beforehand is in order.

    Args:
        say: told of each step.

    Raises:
        PositionError: the connector's rows are not read, its slot was moved, or cdcd has a checkpoint already.
        ConnectError: Connect refuses, or does not answer.
        TransientError, SourceError, SinkError: a side cannot be asked, or refuses.
    """
    return asyncio.run(_take_over(plan, say))


async def _take_over(plan: TakeoverPlan, say: Say) -> TakeoverOutcome:
    config = plan.config
    async with AsyncExitStack() as stack:
        sql = await connect(
            parse_dsn(*config.postgres.access()),
            application_name=f"{config.name} adopt",
            connect_timeout_s=config.postgres.connect_timeout_s,
        )
        stack.push_async_callback(sql.close)
        await asyncio.to_thread(_refuse_checkpoint, config)
        # The slot first: it follows the offset, so that an offset that is read later is not before it.
        theirs = await _connectors_slot(sql, plan)
        offset = await asyncio.to_thread(plan.connector.offset)
        _refuse_unfinished(offset)
        _gap(plan, offset, theirs)
        if plan.narrowing is not None:
            await _narrow(sql, plan, plan.narrowing, say)
        if plan.has_own_slot:
            await _make_slot(sql, plan, offset, theirs, say)
        say(f"stopping {plan.connector.url}")
        await asyncio.to_thread(plan.connector.stop)
        theirs = await _free(sql, plan)
        offset = await asyncio.to_thread(plan.connector.offset)
        _refuse_unfinished(offset)
        found = _gap(plan, offset, theirs)
        slot = await _slot(sql, config)
        assert slot.confirmed_flush_lsn is not None, "check_slot has looked"
        say("comparing the slot with the topics")
        up_to = await current_lsn(sql)
        pending, is_all = await read_pending(sql, slot.name, config.postgres.publication, up_to)
        xids = frozenset(each.xid for each in pending)
        tails = await asyncio.to_thread(_tails, config, await _topics(sql, config), xids)
        return TakeoverOutcome(
            slot.name,
            Lsn(slot.confirmed_flush_lsn),
            up_to,
            offset,
            twice(pending, tails.events, is_complete=is_all, is_readable=not tails.unreadable),
            found,
            plan.driver_confirms,
            unfinished_tables(offset),
            theirs.name if theirs is not None and plan.has_own_slot else None,
        )


def _refuse_checkpoint(config: Config) -> None:
    topic = config.topics.checkpoint
    if peek(config) is not None:
        raise PositionError(
            f"Topic {topic} already has a checkpoint: cdcd has delivered under this name before.",
            hint=f"The connector has moved the slot since. Delete topic {topic}, and run this command again. "
            "Nothing was changed.",
        )


async def _slot(sql: Connection, config: Config) -> SlotState:
    """The slot that cdcd will read."""
    state = await read_slot(sql, config.postgres.slot)
    if state is None:
        raise _no_slot(config.postgres.slot)
    check_slot(state, sql.info.dbname)
    return state


def _no_slot(name: str) -> SourceError:
    return SourceError(
        f"There is no slot {name}.",
        hint="The connector has not started yet, or reads another server: compare slot.name and database.hostname.",
    )


async def _connectors_slot(sql: Connection, plan: TakeoverPlan) -> SlotState | None:
    """The slot that the connector reads; None: the connector has dropped it when an earlier command stopped it."""
    if not plan.has_own_slot:
        return await _slot(sql, plan.config)
    state = await read_slot(sql, plan.connector_slot)
    if state is None and await read_slot(sql, plan.config.postgres.slot) is None:
        raise _no_slot(plan.connector_slot)
    return state


async def _make_slot(
    sql: Connection, plan: TakeoverPlan, offset: Mapping[str, Any], theirs: SlotState | None, say: Say
) -> None:
    """The slot of cdcd's own is there, and the connector has delivered everything before its position."""
    config = plan.config
    if await read_slot(sql, config.postgres.slot) is None:
        say(f"creating slot {config.postgres.slot}, after the transactions that are open now")
        await create_slot_by_sql(sql, config.postgres.slot, failover=config.postgres.failover)
    own = await _slot(sql, config)
    assert own.confirmed_flush_lsn is not None, "check_slot has looked"
    point = Lsn(own.confirmed_flush_lsn)
    if theirs is not None:
        await _await_past(sql, plan, point, f"slot {own.name}", say)
        return
    # The offset alone says what the connector had delivered when it dropped its slot.
    delivered = [int(offset[name]) for name in POSITIONS if offset.get(name) is not None]
    if not delivered or max(delivered) < point:
        raise PositionError(
            f"The connector has dropped its slot {plan.connector_slot}, and its offset is before {point}, where slot "
            f"{own.name} begins: changes in between may be in no topic.",
            hint=f"SELECT pg_drop_replication_slot('{own.name}'); resume the connector, which makes a slot again, and "
            "run this command again. Changes since the connector stopped need a new snapshot.",
        )


def _refuse_unfinished(offset: Mapping[str, Any]) -> None:
    if unfinished_snapshot(offset):
        raise PositionError(
            "The connector has not finished its first snapshot: rows are missing in the topics.",
            hint="Wait until its log says `Snapshot completed`, and run this command again. If it is stopped, "
            "resume it first: PUT .../resume",
        )


def _gap(plan: TakeoverPlan, offset: Mapping[str, Any], slot: SlotState | None) -> OffsetGap | None:
    if slot is None or slot.confirmed_flush_lsn is None:
        return None
    found = gap(offset, slot.confirmed_flush_lsn)
    if found is not None and not plan.driver_confirms and not plan.accept_gap:
        raise PositionError(
            f"Slot {slot.name} stands at {found.up_to}, past the connector's offset {found.after}: somebody else "
            "has moved it. Transactions that committed in between may be in no topic, and PostgreSQL does not send "
            "them again.",
            hint="Find out what has moved the slot. With --accept-gap, this command continues; `cdcd snapshot start` "
            "reads tables again.",
        )
    return found


async def _narrow(sql: Connection, plan: TakeoverPlan, wanted: Narrowing, say: Say) -> None:
    """The publication is there, and the slot is past the place from which on PostgreSQL can send by it.

    A slot of cdcd's own is created after the publication.
    """
    found = await read_publication(sql, wanted.name)
    if found is None:
        if plan.has_own_slot and await read_slot(sql, plan.config.postgres.slot) is not None:
            raise SourceError(
                f"Slot {plan.config.postgres.slot} is older than publication {wanted.name}, which does not exist.",
                hint=f"SELECT pg_drop_replication_slot('{plan.config.postgres.slot}'); this command then creates both.",
            )
        say(f"creating publication {wanted.name} for {len(wanted.tables)} tables")
        await make_publication(sql, wanted.name, wanted.statement)
    elif not wanted.is_made_by(found):
        raise SourceError(
            f"Publication {wanted.name} exists, and has other tables than the connector captures.",
            hint=f"Run DROP PUBLICATION {identifier(wanted.name)}; this command then creates the publication again.",
        )
    elif await is_ours(sql, wanted.name):
        # The comment was made after the wait.
        return
    if not plan.has_own_slot:
        await _await_past(sql, plan, await current_lsn(sql), f"the new publication {wanted.name}", say)
    await mark_ours(sql, wanted.name)


async def _await_past(sql: Connection, plan: TakeoverPlan, lsn: Lsn, what: str, say: Say) -> None:
    """Wait until the connector has confirmed this position, which `what` has."""
    deadline = time.monotonic() + PASSED_S
    is_asked = False
    while True:
        slot = await _connectors_slot(sql, plan)
        if slot is None or slot.confirmed_flush_lsn is None:
            raise _no_slot(plan.connector_slot)
        if slot.confirmed_flush_lsn >= lsn:
            return
        if not is_asked:
            state = await asyncio.to_thread(plan.connector.state)
            if state.connector != "RUNNING":
                raise PositionError(
                    f"The connector is {state.connector}, so its slot does not get past {what}.",
                    hint=f"Resume the connector (curl -X PUT {plan.connector.url}/resume), and run this command again.",
                )
            say(f"waiting until the connector has confirmed {lsn}")
            is_asked = True
        if time.monotonic() > deadline:
            raise PositionError(
                f"Slot {slot.name} has stood at {Lsn(slot.confirmed_flush_lsn)}, before {lsn}, for {PASSED_S:.0f} s.",
                hint="Change a row in a table that the connector captures, so that the connector confirms a later "
                "position. Then run this command again. The connector was not stopped.",
            )
        await asyncio.sleep(_POLL_S)


async def _free(sql: Connection, plan: TakeoverPlan) -> SlotState | None:
    """Wait until nobody reads the connector's slot, and return the slot; None: the connector has dropped the slot."""
    deadline = time.monotonic() + FREE_S
    while (slot := await _connectors_slot(sql, plan)) is not None and slot.active:
        if time.monotonic() > deadline:
            raise SourceError(
                f"Slot {slot.name} is still read by the session with PID {slot.active_pid}.",
                hint="The connector is stopped. Another connector may have the same slot.name: stop it, and run this "
                "command again.",
            )
        await asyncio.sleep(_POLL_S)
    return slot


async def _topics(sql: Connection, config: Config) -> set[str]:
    """The topics of the published tables, and that of logical messages."""
    publication = await read_publication(sql, config.postgres.publication)
    names = config.topic_names()
    tables = () if publication is None else publication.tables
    found = {topic for table in tables for topic in names.all_of(table.schema, table.name)}
    return found | {config.topics.message}


def _tails(config: Config, topics: set[str], xids: frozenset[int]) -> Tails:
    """The events of these transactions that are in the topics."""
    found = Tails(xids)
    if xids:
        connection, _ = client.split(*access(config.kafka))
        for value in read_tails(connection, f"{config.name}-adopt", topics, found.reach_before):
            found.take(value)
    return found
