"""What tests of `import cdcd` have in common: a stream read with a limit of time, changes in short, and the slot."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import cdcd
from tests.integration.conftest import Database

T = TypeVar("T")
WAIT_S = 120.0
SMALL_WORK_MEM = "-c logical_decoding_work_mem=64kB"
PUBLICATION = "p"


async def soon(awaited: Awaitable[T]) -> T:
    """Its result, which comes within the limit of a test."""
    async with asyncio.timeout(WAIT_S):
        return await awaited


async def changes(transaction: cdcd.Transaction) -> list[cdcd.Change]:
    return [change async for change in transaction]


async def take(stream: cdcd.Stream, count: int) -> list[tuple[cdcd.Transaction, list[cdcd.Change]]]:
    """So many transactions with their changes, each acknowledged."""
    found = []
    for _ in range(count):
        transaction = await soon(anext(stream))
        found.append((transaction, await soon(changes(transaction))))
        await transaction.acknowledge()
    return found


def rows(change: cdcd.Change) -> object:
    """What a change says, in short."""
    match change:
        case cdcd.Insert():
            return ("insert", dict(change.new))
        case cdcd.Update():
            return ("update", change.old and dict(change.old), dict(change.new))
        case cdcd.Delete():
            return ("delete", dict(change.old))
        case cdcd.Truncate():
            return ("truncate", [table.name for table in change.tables])
        case cdcd.Message():
            return ("message", change.content)


def slots(database: Database) -> list[tuple[Any, ...]]:
    return database.execute(
        "SELECT slot_name, temporary, confirmed_flush_lsn::text FROM pg_replication_slots "
        "WHERE database = current_database()"
    )


def confirmed(database: Database, slot: str) -> cdcd.Lsn:
    ((found,),) = database.execute(
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    return cdcd.Lsn.parse(found)
