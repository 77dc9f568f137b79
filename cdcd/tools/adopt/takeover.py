"""`cdcd adopt --takeover`: the connector is stopped, and it is known what comes twice.

    look  ->  publication made, and awaited  ->  connector stopped  ->  slot free  ->  offset, slot and topics compared

Until the stop, nothing of the connector is touched. After it, cdcd or the connector may go on from the slot, because
PostgreSQL keeps what was not confirmed. Each step may be done again, so a command that was killed is run again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from cdcd.adapters.credentials.providers import access
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.tails import read_tails
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.publication import is_ours, make_publication, mark_ours, read_publication
from cdcd.adapters.postgres.slot import SlotState, check_slot, current_lsn, read_pending, read_slot
from cdcd.config.loading import Config
from cdcd.core.errors import PositionError, SourceError
from cdcd.core.pasted import identifier
from cdcd.core.protocol.lsn import Lsn
from cdcd.tools.adopt.connect_api import Connector
from cdcd.tools.adopt.database import Narrowing
from cdcd.tools.adopt.overlap import Gap, Tails, Twice, gap, twice, unfinished_snapshot, unfinished_tables
from cdcd.tools.operations.sides import peek

FREE_S: Final = 60.0
"""Seconds until the slot must be free after the connector has stopped: the walsender notices the closed "
"connection."""

PASSED_S: Final = 300.0
"""Seconds until the connector must have confirmed a position of a moment ago. It stores its offsets once a minute."""

_POLL_S: Final = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is taken over.

    Attributes:
        narrowing: the publication that must be made first; None: the connector's is used.
        drops_slot: the connector drops its slot when it stops.
        driver_confirms: the connector lets its driver confirm WAL without changes (lsn.flush.mode), so
            that its slot may be past its offset.
        accept_gap: go on if somebody has moved the slot past the connector's offset.
    """

    config: Config
    connector: Connector
    narrowing: Narrowing | None
    drops_slot: bool
    driver_confirms: bool
    accept_gap: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The connector is stopped.

    Attributes:
        confirmed: the slot's position: cdcd gets every transaction that ends after it.
        written_up_to: the end of the WAL after the connector has stopped.
        offset: the connector's, as Connect gives it.
        gap: the slot is past the connector's offset.
        driver_confirms: as in `Plan`: such a gap has no changes, unless somebody else has moved the slot too.
        unfinished_tables: an incremental snapshot was being read.
    """

    slot: str
    confirmed: Lsn
    written_up_to: Lsn
    offset: Mapping[str, Any]
    twice: Twice
    gap: Gap | None
    driver_confirms: bool
    unfinished_tables: bool


def take_over(plan: Plan, say: Say) -> Outcome:
    """Stop the connector, when all that can be known beforehand is in order.

    Args:
        say: told of each step.

    Raises:
        PositionError: the connector's rows are not read, its slot was moved, or cdcd has a checkpoint already.
        ConnectError: Connect refuses, or does not answer.
        TransientError, SourceError, SinkError: a side cannot be asked, or refuses.
    """
    if plan.drops_slot:
        raise PositionError(
            "The connector drops its slot when it stops (slot.drop.on.stop), and what was not delivered would be "
            "lost.",
            hint="Set slot.drop.on.stop to false in the connector, let it restart, and run this command again.",
        )
    return asyncio.run(_take_over(plan, say))


async def _take_over(plan: Plan, say: Say) -> Outcome:
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
        slot = await _slot(sql, config)
        offset = await asyncio.to_thread(plan.connector.offset)
        _refuse_unfinished(offset)
        _gap(plan, offset, slot)
        if plan.narrowing is not None:
            await _narrow(sql, plan, plan.narrowing, say)
        say(f"stopping {plan.connector.url}")
        await asyncio.to_thread(plan.connector.stop)
        slot = await _free(sql, config)
        offset = await asyncio.to_thread(plan.connector.offset)
        _refuse_unfinished(offset)
        found = _gap(plan, offset, slot)
        assert slot.confirmed_flush_lsn is not None, "check_slot has looked"
        say("comparing the slot with the topics")
        up_to = await current_lsn(sql)
        pending, is_all = await read_pending(sql, slot.name, config.postgres.publication, up_to)
        xids = frozenset(each.xid for each in pending)
        tails = await asyncio.to_thread(_tails, config, await _topics(sql, config), xids)
        return Outcome(
            slot.name,
            Lsn(slot.confirmed_flush_lsn),
            up_to,
            offset,
            twice(pending, tails.events, is_complete=is_all, is_readable=not tails.unreadable),
            found,
            plan.driver_confirms,
            unfinished_tables(offset),
        )


def _refuse_checkpoint(config: Config) -> None:
    topic = config.topics.checkpoint
    if peek(config) is not None:
        raise PositionError(
            f"Topic {topic} has a checkpoint already: cdcd has delivered by this name before.",
            hint=f"The connector has moved the slot since. Delete topic {topic}, and run this command again. "
            "Nothing was changed.",
        )


async def _slot(sql: Connection, config: Config) -> SlotState:
    name = config.postgres.slot
    state = await read_slot(sql, name)
    if state is None:
        raise SourceError(
            f"There is no slot {name}.",
            hint="The connector has not started yet, or reads another server: compare slot.name and database.hostname.",
        )
    check_slot(state, sql.info.dbname)
    return state


def _refuse_unfinished(offset: Mapping[str, Any]) -> None:
    if unfinished_snapshot(offset):
        raise PositionError(
            "The connector has not finished its first snapshot: rows are missing in the topics.",
            hint="Wait until its log says `Snapshot completed`, and run this command again. If it is stopped, "
            "resume it first: PUT .../resume",
        )


def _gap(plan: Plan, offset: Mapping[str, Any], slot: SlotState) -> Gap | None:
    assert slot.confirmed_flush_lsn is not None, "check_slot has looked"
    found = gap(offset, slot.confirmed_flush_lsn)
    if found is not None and not plan.driver_confirms and not plan.accept_gap:
        raise PositionError(
            f"Slot {slot.name} stands at {found.up_to}, past the connector's offset {found.after}: somebody else "
            "has moved it. What committed in between may be in no topic, and PostgreSQL does not send it any more.",
            hint="Find out what has moved the slot. With --accept-gap, this command goes on; "
            "`cdcd snapshot start` reads tables again.",
        )
    return found


async def _narrow(sql: Connection, plan: Plan, wanted: Narrowing, say: Say) -> None:
    """The publication is there, and the slot is past the place from which on PostgreSQL can send by it."""
    found = await read_publication(sql, wanted.name)
    if found is None:
        say(f"creating publication {wanted.name} for {len(wanted.tables)} tables")
        await make_publication(sql, wanted.name, wanted.statement)
    elif not wanted.is_made_by(found):
        raise SourceError(
            f"Publication {wanted.name} exists, and has other tables than the connector captures.",
            hint=f"DROP PUBLICATION {identifier(wanted.name)}; this command makes it again.",
        )
    elif await is_ours(sql, wanted.name):
        # The comment was made after the wait.
        return
    state = await asyncio.to_thread(plan.connector.state)
    if state.connector != "RUNNING":
        raise PositionError(
            f"The connector is {state.connector}, so its slot does not get past the new publication {wanted.name}.",
            hint=f"Resume the connector (curl -X PUT {plan.connector.url}/resume), and run this command again.",
        )
    made_at = await current_lsn(sql)
    say(f"waiting until the connector has confirmed {made_at}")
    await _passed(sql, plan.config, made_at)
    await mark_ours(sql, wanted.name)


async def _passed(sql: Connection, config: Config, lsn: Lsn) -> None:
    deadline = time.monotonic() + PASSED_S
    while True:
        slot = await _slot(sql, config)
        assert slot.confirmed_flush_lsn is not None, "check_slot has looked"
        if slot.confirmed_flush_lsn >= lsn:
            return
        if time.monotonic() > deadline:
            raise PositionError(
                f"Slot {slot.name} has stood at {Lsn(slot.confirmed_flush_lsn)}, before {lsn}, for {PASSED_S:.0f} s.",
                hint="Change a row in a table that the connector captures, so that it confirms a later position, and "
                "run this command again. The connector was not stopped.",
            )
        await asyncio.sleep(_POLL_S)


async def _free(sql: Connection, config: Config) -> SlotState:
    deadline = time.monotonic() + FREE_S
    while (slot := await _slot(sql, config)).active:
        if time.monotonic() > deadline:
            raise SourceError(
                f"Slot {slot.name} is still read by the session with PID {slot.active_pid}.",
                hint="The connector is stopped. Another one may have the same slot.name: stop that one, and run this "
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
