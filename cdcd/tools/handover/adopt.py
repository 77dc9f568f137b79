"""`cdcd handover adopt`: the pipeline continues from the new server if nothing was written in between.

    sealed for this server  ->  slot as it was made  ->  every transaction since is judged  ->  checkpoint written

The slot's contents up to now are read without confirming them. Later writes lie after the adopted position, so
`cdcd run` delivers them. The command may be killed and repeated at any moment.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from cdcd.adapters.postgres.slot import read_slot
from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.tools.handover.judging import Judge, Verdict, refuse
from cdcd.tools.handover.prepare import replace
from cdcd.tools.handover.sealing import adopted, seal_for
from cdcd.tools.handover.servers import Say, holding_lock, open_sql, open_stream, published, read_transactions
from cdcd.tools.operations.sides import peek


@dataclass(frozen=True, slots=True)
class Adoption:
    """Result of an adoption: the pipeline continues at `position`.

    `verdict` is None if the position was adopted before.
    """

    position: int
    verdict: Verdict | None


def adopt(new: Config, *, deliver_writes: bool, say: Say) -> Adoption:
    """Let the pipeline continue from the new server.

    Args:
        deliver_writes: True to adopt even if there are writes in between that can be delivered from the new server.

    Raises:
        PositionError: the pipeline is not sealed for this server, or there are writes in between.
        FencedError: an instance is active.
        TransientError, SourceError, SinkError: PostgreSQL or Kafka does not answer, or refuses.
    """
    return asyncio.run(_adopt(new, deliver_writes, say))


async def _adopt(new: Config, deliver_writes: bool, say: Say) -> Adoption:
    async with AsyncExitStack() as stack:
        sql = await open_sql(new, stack)
        stream, identity = await open_stream(new, stack)
        system = identity.system_identifier
        found = await asyncio.to_thread(peek, new)
        if found is not None and found.seal is None and found.system_identifier == system:
            return Adoption(found.position.end_lsn, None)
        await stack.enter_async_context(holding_lock(new, 0.0, say))
        slot = await read_slot(sql, new.postgres.slot)
        tables = await published(new, sql)
        slot_lsn = None if slot is None else slot.confirmed_flush_lsn
        seal = seal_for(found, system, slot_lsn, tables)
        say("Reads what was written on the new server since its slot was made.")
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
    return Adoption(verdict.position, verdict)
