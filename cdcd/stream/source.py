"""The server's side of a stream: its two connections, and the slot.

This module is imported when a stream is entered, because importing psycopg takes a tenth of a second.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from cdcd.adapters.postgres.answers import Answer, translated
from cdcd.adapters.postgres.catalog import CatalogLookUp
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.conversion import Conversion
from cdcd.adapters.postgres.money import find_money_digits
from cdcd.adapters.postgres.publication import has_publication
from cdcd.adapters.postgres.quoting import identifier
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.postgres.slot import SlotWait, check_slot, create_slot, drop_slot, read_slot
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.errors import CdcdError, SourceError
from cdcd.core.protocol.versions import Options, start_options
from cdcd.stream.settings import StreamSettings

SLOT_WAIT_S: Final = 10.0
"""Seconds to wait for a permanent slot that another session reads. The session of a program that has just ended
needs part of a second; the session of a vanished machine keeps the slot for `wal_sender_timeout`."""


class StreamSource:
    """The open connections of a stream. The caller owes `close`.

    Attributes:
        replication: connection that receives frames.
        look_up: queries the catalog.
        slot: name of the slot.
        slot_created: True if this start created the slot.
        start_lsn: LSN after which all commits are received.
        database: name of the database.
        money_digits: number of decimal digits of money.
    """

    def __init__(
        self, sql: Connection, replication: ReplicationStream, conversion: Conversion | None = None
    ) -> None:
        self.replication = replication
        self.look_up = CatalogLookUp(sql)
        self.slot = ""
        self.slot_created = False
        self.start_lsn = 0
        self.abort_info = False
        self.wal_sender_timeout_s = 0.0
        self.database = ""
        self.money_digits = DIGITS_OF_C
        self._sql = sql
        self._conversion = conversion

    async def check(self) -> None:
        """Ask the server for a sign of life on the other connection. Raises TransientError.

        A fast shutdown ends that connection, but waits until everything is confirmed on the streaming one
        (`walsender.c`, `WalSndDone`).
        """
        with translated("asking the server for a sign of life", {}):
            await self._sql.execute("SELECT 1")

    async def close(self) -> None:
        """Close all connections. A temporary slot is dropped with them."""
        self.replication.close()
        if self._conversion is not None:
            self._conversion.close()
        await self._sql.close()


async def open_source(
    settings: StreamSettings, on_wait: Callable[[SlotWait], None], on_warning: Callable[[Answer], None]
) -> StreamSource:
    """Connect, check the publication and the slot, and start replication.

    Args:
        on_wait: called with the transaction that the creation of the slot waits for.
        on_warning: called with the server's warnings, for example that it waits for a standby.

    Raises:
        ConfigError: the DSN cannot be read, or the server lacks a requested feature.
        SourceError: the publication or slot does not exist, or the role may not use it.
        PositionError: the slot has lost changes.
        TransientError: the server is unreachable, or accepts no connections now.
    """
    dsn = parse_dsn(settings.dsn, settings.password_command)
    name, timeout_s = settings.application_name, settings.connect_timeout_s
    async with AsyncExitStack() as stack:
        sql = await connect(dsn, application_name=name, connect_timeout_s=timeout_s)
        stack.push_async_callback(sql.close)
        if not await has_publication(sql, settings.publication):
            raise SourceError(
                f"There is no publication {settings.publication}.",
                hint=f"CREATE PUBLICATION {identifier(settings.publication)} FOR TABLE …; or correct its name.",
            )
        replication = await ReplicationStream.open(
            dsn, application_name=name, connect_timeout_s=timeout_s, warned=on_warning
        )
        stack.callback(replication.close)
        conversion = None
        if replication.server_encoding != "UTF8":
            conversion = await Conversion.open(
                dsn, replication.server_encoding, application_name=name, connect_timeout_s=timeout_s
            )
            stack.callback(conversion.close)
            await replication.take_raw(conversion)
        source = StreamSource(sql, replication, conversion)
        source.wal_sender_timeout_s = await replication.wal_sender_timeout_s()
        source.database = (await replication.identify()).database
        source.money_digits = await find_money_digits(
            dsn, settings.money_digits, application_name=name, connect_timeout_s=timeout_s
        )
        options = _options(settings, replication.server_version)
        source.abort_info = options.abort_info
        await _find_slot(source, sql, settings, on_wait)
        try:
            await replication.start(
                source.slot,
                0,
                options.options,
                publication=settings.publication,
                wal_sender_timeout_s=source.wal_sender_timeout_s,
                slot_wait_s=SLOT_WAIT_S,
            )
        except BaseException:
            if source.slot_created and settings.slot is not None:
                # An unused slot would keep WAL.
                replication.close()
                with suppress(CdcdError):
                    await drop_slot(sql, source.slot)
            raise
        stack.pop_all()
    return source


def _options(settings: StreamSettings, server_version: int) -> Options:
    return start_options(
        server_version,
        settings.protocol,
        [settings.publication],
        streaming=settings.streaming_mode,
        messages=settings.messages,
    )


async def _find_slot(
    source: StreamSource, sql: Connection, settings: StreamSettings, on_wait: Callable[[SlotWait], None]
) -> None:
    """Create the temporary slot, or check the permanent one and create it if `create_slot` is set."""
    if settings.slot is None:
        source.slot = f"cdcd_{os.getpid()}_{secrets.token_hex(4)}"
    else:
        source.slot = settings.slot
        state = await read_slot(sql, settings.slot)
        if state is not None:
            check_slot(state, source.database)
            assert state.confirmed_flush_lsn is not None
            source.start_lsn = state.confirmed_flush_lsn
            return
        if not settings.create_slot:
            raise SourceError(
                f"There is no replication slot {settings.slot}.",
                hint="Pass create_slot=True to create it. If the slot was there before, the changes since its last "
                "confirmed position are lost to this program: read the tables again.",
            )
    created = await create_slot(
        source.replication, source.slot, temporary=settings.slot is None, observer=sql, on_wait=on_wait
    )
    source.slot_created = True
    source.start_lsn = created.consistent_point
