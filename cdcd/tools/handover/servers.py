"""Queries and connections of `cdcd handover` to the two servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

from cdcd.adapters.postgres.answers import translated
from cdcd.adapters.postgres.connection import Connection, emit_message, parse_dsn
from cdcd.adapters.postgres.lock import AdvisoryLock
from cdcd.adapters.postgres.publication import has_publication
from cdcd.adapters.postgres.replication import Identity, ReplicationStream
from cdcd.adapters.postgres.tables import published_tables
from cdcd.config.loading import Config
from cdcd.core.errors import ConfigError, FencedError
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import Keepalive, read_frame
from cdcd.core.protocol.versions import start_options
from cdcd.core.snapshot.signals import WATERMARK
from cdcd.tools.handover.judging import JudgedTransaction, TransactionReader
from cdcd.tools.handover.sealing import Subscription
from cdcd.tools.operations.sides import connect_to

POLL_S: Final = 0.1
READ_BYTES: Final = 262_144

Say = Callable[[str], None]

# The query leaves out subconninfo, which only a superuser may read. Name of the origin:
# ReplicationOriginNameForLogicalRep (worker.c).
_SUBSCRIPTIONS: Final = """
SELECT s.oid::int8, s.subname::text, s.subenabled, coalesce(s.subslotname::text, ''), 'pg_' || s.oid
  FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
 WHERE d.datname = current_database() AND (%s::text IS NULL OR s.subname = %s)
 ORDER BY s.subname
"""

_UNREADY: Final = """
SELECT r.srrelid::regclass::text FROM pg_subscription_rel r WHERE r.srsubid = %s AND r.srsubstate <> 'r' ORDER BY 1
"""

# A partition counts as its partitioned table, and the other way round.
_WITHOUT: Final = """
SELECT p.oid::regclass::text
  FROM unnest(%s::oid[]) AS p(oid)
 WHERE NOT EXISTS (
       SELECT FROM pg_subscription_rel r
        WHERE r.srsubid = %s
          AND (r.srrelid = p.oid OR r.srrelid IN (SELECT relid FROM pg_partition_ancestors(p.oid))
               OR p.oid IN (SELECT relid FROM pg_partition_ancestors(r.srrelid))))
 ORDER BY 1
"""


# The properties that a mirror relies on: a column's number, name and type, and the oids of an enum's labels, also of
# an array's.
_COLUMNS: Final = """
SELECT a.attrelid::int8,
       string_agg(format('%%s %%s %%s (%%s)', a.attnum, quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
                         (SELECT string_agg(e.oid || ' ' || quote_literal(e.enumlabel), ', ' ORDER BY e.oid)
                            FROM pg_enum e
                           WHERE e.enumtypid = coalesce(nullif(t.typelem, 0), nullif(t.typbasetype, 0), t.oid))),
                  ', ' ORDER BY a.attnum)
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
 WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY a.attrelid
"""


_NUMBERS: Final = """
SELECT attrelid::int8, attname::text, attnum::int4 FROM pg_attribute
 WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped
"""


async def open_stream(config: Config, stack: AsyncExitStack) -> tuple[ReplicationStream, Identity]:
    """Open a replication connection, and return it with the server's identity."""
    postgres = config.postgres
    stream = await ReplicationStream.open(
        parse_dsn(*postgres.access()),
        application_name=f"{config.name} handover",
        connect_timeout_s=postgres.connect_timeout_s,
    )
    stack.callback(stream.close)
    return stream, await stream.identify()


async def open_sql(config: Config, stack: AsyncExitStack) -> Connection:
    sql = await connect_to(config, "handover")
    stack.push_async_callback(sql.close)
    return sql


async def published(config: Config, sql: Connection) -> dict[int, str]:
    """Return the pipeline's published tables, by oid. ConfigError: there is no publication.

    Tables that the pipeline leaves out had no rows delivered, so another server does not continue with them.
    """
    name = config.postgres.publication
    if not await has_publication(sql, name):
        raise ConfigError(
            f"There is no publication {name} in {sql.info.dbname} at {sql.info.host}.",
            hint="Create it as it is on the former server.",
        )
    has = config.tables.selection.test()
    return {oid: table for oid, table in (await published_tables(sql, name)).items() if has(table)}


async def read_columns(sql: Connection, tables: Collection[int]) -> dict[int, str]:
    """Return what a mirror knows of the columns of these tables, by the oid of the table."""
    with translated("looking at the columns", {}):
        rows: Any = await (await sql.execute(_COLUMNS, (list(tables),))).fetchall()
    return dict(rows)


async def read_numbers(sql: Connection, tables: Mapping[int, str]) -> dict[str, dict[str, int]]:
    """Return the attribute numbers of these tables' columns, by the name of the table and of the column."""
    found: dict[str, dict[str, int]] = {}
    with translated("looking at the columns", {}):
        rows: Any = await (await sql.execute(_NUMBERS, (list(tables),))).fetchall()
    for oid, column, number in rows:
        found.setdefault(tables[oid], {})[column] = number
    return found


async def read_subscription(sql: Connection, name: str | None, tables: dict[int, str]) -> Subscription:
    """Return the subscription with this name, or the only one. ConfigError: there is none, or several."""
    with translated("looking for the subscription", {}):
        rows: Any = await (await sql.execute(_SUBSCRIPTIONS, (name, name))).fetchall()
        if len(rows) != 1:
            known = ", ".join(row[1] for row in rows)
            raise ConfigError(
                f"The new server has several subscriptions: {known}."
                if rows
                else f"The new server has no subscription{f' {name}' if name else ''}.",
                hint="Name the one that has the tables of the pipeline: --subscription."
                if rows
                else "`cdcd handover` needs a subscription by which the new server follows the former one.",
            )
        ((oid, found, enabled, slot, origin),) = rows
        unready: Any = await (await sql.execute(_UNREADY, (oid,))).fetchall()
        without: Any = await (await sql.execute(_WITHOUT, (list(tables), oid))).fetchall()
    return Subscription(
        found, origin, slot, enabled, tuple(row[0] for row in unready), tuple(row[0] for row in without)
    )


@asynccontextmanager
async def holding_lock(config: Config, wait_s: float, say: Say) -> AsyncIterator[None]:
    """Hold the pipeline's lock in the `with` block, so that no instance is active.

    FencedError: an instance is active for longer than `wait_s` seconds.
    """
    postgres = config.postgres
    lock = await AdvisoryLock.open(
        parse_dsn(*postgres.access()),
        postgres.slot,
        application_name=f"{config.name} handover",
        connect_timeout_s=postgres.connect_timeout_s,
        lease_s=postgres.lease_s,
    )
    try:
        deadline = time.monotonic() + wait_s
        has_said = False
        while (held := await lock.acquire_at_once()) is not None:
            if time.monotonic() > deadline:
                raise FencedError(
                    f"An instance of the pipeline is active ({held.application_name}, server process {held.pid}).",
                    hint="Stop all instances of the pipeline, and run the command again.",
                )
            if not has_said:
                has_said = True
                say(f"Stop all instances of the pipeline now (active: server process {held.pid}).")
            await asyncio.sleep(POLL_S)
        keep = asyncio.create_task(lock.keep(), name="keep the lock")
        try:
            yield
        finally:
            keep.cancel()
            with suppress(asyncio.CancelledError):
                await keep
    finally:
        lock.close()


async def read_transactions(
    config: Config, stream: ReplicationStream, sql: Connection, take: Callable[[JudgedTransaction], None]
) -> None:
    """Pass to `take` all transactions from the slot's position to now that changed published tables.

    The slot's position is not confirmed.

    The stream has no streamed and prepared transactions, so each transaction arrives whole when it is committed.
    """
    postgres = config.postgres
    options = start_options(
        stream.server_version, "auto", [postgres.publication], streaming="off", messages=False
    )
    await stream.start(postgres.slot, 0, options.options, publication=postgres.publication)
    # The message moves the stream past this position, even if nothing else is written.
    until = await emit_message(sql, WATERMARK, "")
    reader = TransactionReader()
    while True:
        for frame in await stream.receive(READ_BYTES):
            if frame[peek.FRAME_KIND_AT] != peek.XLOG_DATA:
                alive = read_frame(frame)
                assert isinstance(alive, Keepalive)
                if alive.wal_end >= until:
                    return
            elif (transaction := reader.take(frame)) is not None:
                take(transaction)
