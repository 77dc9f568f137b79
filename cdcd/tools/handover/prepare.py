"""`cdcd handover prepare`, `cancel` and `adopt`: a pipeline leaves the former server, and continues from the new one.

    look  ->  slot on the new server  ->  fence  ->  delivered  ->  instances stopped  ->  applied  ->  sealed

The rule: the seal is written when Kafka holds everything up to the fence, the new server has applied everything up
to the fence, and no instance is active. The slot on the new server is older than the seal, so it contains all later
writes there. Each step may be repeated, so a killed command is run again. Until the seal, `cdcd run` continues as
before.

    sealed for this server  ->  slot as it was made  ->  every transaction since is judged  ->  checkpoint written

The slot's contents up to now are read without confirming them. Later writes lie after the adopted position, so
`cdcd run` delivers them. The command may be killed and repeated at any moment.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from cdcd.adapters.postgres.connection import Connection, emit_message
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import check_slot, create_slot, current_lsn, read_slot
from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint, Seal, tables_sum
from cdcd.core.errors import ConfigError, TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.protobuf.form import PROTOBUF
from cdcd.core.snapshot.signals import WATERMARK
from cdcd.daemon.settings import checkpoint_writer
from cdcd.tools.handover.judging import HandoverVerdict, Judge, refuse
from cdcd.tools.handover.sealing import (
    Subscription,
    adopted,
    refuse_lower,
    refuse_other_numbers,
    refuse_same_oids,
    refuse_unfit,
    refuse_unsealable,
    seal_for,
    sealed,
    unsealed,
)
from cdcd.tools.handover.servers import (
    POLL_S,
    Say,
    holding_lock,
    open_sql,
    open_stream,
    published,
    read_columns,
    read_numbers,
    read_subscription,
    read_transactions,
)
from cdcd.tools.operations.sides import peek

WRITER_S: Final = 60.0
"""Seconds that the broker may take to end an open transaction of a killed daemon."""

UNREAD_S: Final = 2.0
"""Seconds until a slot without a reader is reported. A reader that connects again takes less time."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Options of a preparation.

    Attributes:
        former, new: configurations of the pipeline on the two servers.
        subscription: name of the subscription; None: the only one.
        wait_s: maximum seconds of each wait.
        accept_lower_lsns: True to continue although LSNs of the new server are lower.
        accept_same_oids: True to continue although tables have the same oid on both servers but other columns.
        accept_other_numbers: True to continue although Protobuf records get other field numbers.
    """

    former: Config
    new: Config
    subscription: str | None
    wait_s: float
    accept_lower_lsns: bool
    accept_same_oids: bool
    accept_other_numbers: bool


def prepare(wanted: Preparation, say: Say) -> Seal:
    """Seal the pipeline. `say` is called with each step.

    Raises:
        ConfigError: the two servers do not fit together.
        PositionError: the checkpoint cannot be sealed.
        FencedError: an instance stays active.
        TransientError, SourceError, SinkError: PostgreSQL or Kafka does not answer or refuses, or a wait takes too
            long.
    """
    _refuse_other_pipeline(wanted.former, wanted.new)
    return asyncio.run(_prepare(wanted, say))


def cancel(former: Config, say: Say) -> None:
    """Remove the seal, so that the pipeline continues from the former server. The errors are those of `prepare`."""
    asyncio.run(_cancel(former, say))


def _refuse_other_pipeline(former: Config, new: Config) -> None:
    same = {
        "name": (former.name, new.name),
        "topics.checkpoint": (former.topics.checkpoint, new.topics.checkpoint),
        "topics.prefix": (former.topics.prefix, new.topics.prefix),
        "topics.name": (former.topics.name, new.topics.name),
        "topics.rename": (former.topics.rename, new.topics.rename),
        "topics.claims": (former.topics.claims, new.topics.claims),
        "kafka.delivery": (former.kafka.delivery, new.kafka.delivery),
        "kafka.transactional_id": (former.kafka.transactional_id, new.kafka.transactional_id),
    }
    for key, (one, other) in same.items():
        if one != other:
            raise ConfigError(
                f"{key} is {one!r} for the former server and {other!r} for the new one.",
                hint="Both configurations must belong to the same pipeline. Only postgres differs.",
            )


async def _prepare(wanted: Preparation, say: Say) -> Seal:
    former, new = wanted.former, wanted.new
    async with AsyncExitStack() as stack:
        sql = await open_sql(former, stack)
        there = await open_sql(new, stack)
        _, identity = await open_stream(former, stack)
        stream, new_identity = await open_stream(new, stack)
        if identity.system_identifier == new_identity.system_identifier:
            raise ConfigError(
                "Both configurations lead to the same server.",
                hint="Give --to the configuration of the new server.",
            )
        refuse_unsealable(await asyncio.to_thread(peek, former), identity.system_identifier)
        tables = await published(new, there)
        subscription = await read_subscription(there, wanted.subscription, tables)
        former_tables = await published(former, sql)
        refuse_unfit(subscription, former_tables.values(), tables.values())
        same = former_tables.keys() & tables.keys()
        columns = (await read_columns(sql, same), await read_columns(there, same))
        refuse_same_oids(former_tables, tables, columns, accept=wanted.accept_same_oids)
        if new.format.value == PROTOBUF:
            numbers = (await read_numbers(sql, former_tables), await read_numbers(there, tables))
            refuse_other_numbers(*numbers, accept=wanted.accept_other_numbers)
        slot_lsn = await _slot(new, stream, there, new_identity.database, say)
        accept = wanted.accept_lower_lsns
        refuse_lower(await current_lsn(sql), slot_lsn, accept=accept)
        token = secrets.token_hex(8)
        fence = await emit_message(sql, WATERMARK, json.dumps({"handover": token}))
        say(
            f"The fence is at {fence} of the former server. Waits until Kafka has everything that was committed "
            f"before the fence."
        )
        await _delivered(former, sql, fence, wanted.wait_s, say)
        say("Kafka holds it.")
        async with holding_lock(former, wanted.wait_s, say):
            found = await asyncio.to_thread(peek, former)
            refuse_unsealable(found, identity.system_identifier)
            assert found is not None
            end = found.position.end_lsn
            say(f"Waiting until the new server has applied everything up to {Lsn(end)}.")
            await _applied(sql, subscription, end, wanted.wait_s, say)
            refuse_lower(end, slot_lsn, accept=accept)
            seal = Seal(
                end,
                new_identity.system_identifier,
                slot_lsn,
                subscription.origin,
                tables_sum(tables),
                token,
            )
            await replace(former, lambda last: sealed(last, identity.system_identifier, end, seal))
    return seal


async def _cancel(former: Config, say: Say) -> None:
    async with AsyncExitStack() as stack:
        _, identity = await open_stream(former, stack)
        # `replace` fences the daemon of the new server, so it must not run if there is nothing to cancel.
        unsealed(await asyncio.to_thread(peek, former), identity.system_identifier)
        async with holding_lock(former, 0.0, say):
            await replace(former, lambda last: unsealed(last, identity.system_identifier))


async def replace(config: Config, change: Callable[[Checkpoint | None], Checkpoint]) -> Checkpoint:
    """Replace the pipeline's checkpoint after every other writer was fenced."""
    return await asyncio.to_thread(checkpoint_writer(config, WRITER_S).replace, change)


async def _slot(new: Config, stream: ReplicationStream, sql: Connection, database: str, say: Say) -> int:
    """Return the position at which the pipeline's slot on the new server begins.

    The slot is created if it is missing.
    """
    name = new.postgres.slot
    there = await read_slot(sql, name)
    if there is not None:
        check_slot(there, database)
        assert there.confirmed_flush_lsn is not None
        say(f"The new server already has slot {name}, at {Lsn(there.confirmed_flush_lsn)}.")
        return there.confirmed_flush_lsn
    made = await create_slot(stream, name, failover=new.postgres.failover)
    say(f"Created slot {name} on the new server, at {Lsn(made.consistent_point)}.")
    return made.consistent_point


async def _delivered(former: Config, sql: Connection, fence: int, wait_s: float, say: Say) -> None:
    name = former.postgres.slot
    await await_confirmed(
        sql,
        name,
        fence,
        wait_s,
        TransientError(
            f"Slot {name} of the former server was not confirmed up to the fence ({Lsn(fence)}) in {wait_s:g} s.",
            hint="An instance of the pipeline must run meanwhile: `cdcd status` shows the reason of the delay. An "
            "undecided prepared transaction holds the slot back too. Then run the command again.",
        ),
        lambda: say(
            f"Nobody reads slot {name} of the former server. Start the pipeline there, if it was stopped."
        ),
    )


async def _applied(sql: Connection, subscription: Subscription, end: int, wait_s: float, say: Say) -> None:
    """Wait until the subscription has confirmed to the former server that the new server has
    applied and flushed `end`.
    """
    await await_confirmed(
        sql,
        subscription.slot,
        end,
        wait_s,
        TransientError(
            f"Subscription {subscription.name} has not applied all up to {Lsn(end)} in {wait_s:g} s.",
            hint="See pg_stat_subscription and the log of the new server. Meanwhile `cdcd run` may continue on the "
            "former server. Then run the command again.",
        ),
        lambda: say(
            f"Nobody reads slot {subscription.slot} of the former server. Read the log of the new server for the "
            f"reason why subscription {subscription.name} does not read it."
        ),
    )


async def await_confirmed(
    sql: Connection, name: str, lsn: int, wait_s: float, error: TransientError, unread: Callable[[], None]
) -> None:
    """Wait until the reader of the slot has confirmed this position. Raises `error` after `wait_s` seconds.

    Args:
        unread: called once if the slot has no reader for `UNREAD_S` seconds, because without a reader the wait is
            in vain.
    """
    deadline = time.monotonic() + wait_s
    read_at, has_said = time.monotonic(), False
    while True:
        slot = await read_slot(sql, name)
        if slot is not None and (slot.confirmed_flush_lsn or 0) >= lsn:
            return
        now = time.monotonic()
        if slot is not None and slot.active:
            read_at = now
        elif now - read_at >= UNREAD_S and not has_said:
            has_said = True
            unread()
        if now > deadline:
            raise error
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class HandoverAdoption:
    """Result of an adoption: the pipeline continues at `position`.

    `verdict` is None if the position was adopted before.
    """

    position: int
    verdict: HandoverVerdict | None


def adopt(new: Config, *, deliver_writes: bool, say: Say) -> HandoverAdoption:
    """Let the pipeline continue from the new server.

    Args:
        deliver_writes: True to adopt even if there are writes in between that can be delivered from the new server.

    Raises:
        PositionError: the pipeline is not sealed for this server, or there are writes in between.
        FencedError: an instance is active.
        TransientError, SourceError, SinkError: PostgreSQL or Kafka does not answer, or refuses.
    """
    return asyncio.run(_adopt(new, deliver_writes, say))


async def _adopt(new: Config, deliver_writes: bool, say: Say) -> HandoverAdoption:
    async with AsyncExitStack() as stack:
        sql = await open_sql(new, stack)
        stream, identity = await open_stream(new, stack)
        system = identity.system_identifier
        found = await asyncio.to_thread(peek, new)
        if found is not None and found.seal is None and found.system_identifier == system:
            return HandoverAdoption(found.position.end_lsn, None)
        await stack.enter_async_context(holding_lock(new, 0.0, say))
        slot = await read_slot(sql, new.postgres.slot)
        tables = await published(new, sql)
        slot_lsn = None if slot is None else slot.confirmed_flush_lsn
        seal = seal_for(found, system, slot_lsn, tables)
        say("Reads everything that was written on the new server since its slot was created.")
        judge = Judge(seal)
        await read_transactions(new, stream, sql, judge.take)
        verdict = judge.verdict()
        assert found is not None, "seal_for has looked"
        refuse(verdict, found.system_identifier, deliver_writes=deliver_writes)

        def change(last: Checkpoint | None) -> Checkpoint:
            seal_for(last, system, slot_lsn, tables)
            assert last is not None
            return adopted(last, system, identity.timeline, verdict.position, tables)

        await replace(new, change)
    return HandoverAdoption(verdict.position, verdict)
