"""The committed changes of a publication from now on, by a temporary slot: a look that nobody else notices.

The slot belongs to the connection, so it is gone with it, also when this process is killed. It holds WAL back only for
changes that were not received yet. Large transactions come after their commit (streaming is off), and prepared ones at
COMMIT PREPARED.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from cdcd.engine.feedback import Feedback, interval_for, reply_requested
from cdcd.errors import SourceError
from cdcd.postgres import catalog
from cdcd.postgres.connection import Connection, Dsn, connect
from cdcd.postgres.publication import has_publication
from cdcd.postgres.replication import ReplicationStream
from cdcd.postgres.slot import SlotWait, create_slot
from cdcd.protocol.frames import XLOG_HEADER, Keepalive, read_frame, write_frame
from cdcd.protocol.messages import (
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    Truncate,
    Update,
)
from cdcd.protocol.peek import KEEPALIVE_BYTES
from cdcd.protocol.reader import read_message
from cdcd.protocol.versions import start_options
from cdcd.records.envelope import EnvelopeSettings, Record
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.relations import BUILTIN_TYPES, TypeDescription
from cdcd.records.schemas import is_lasting

BYTES_AT_ONCE: Final = 1 << 20
STATUS_S: Final = 5.0

TURN_S: Final = 0.5
"""Seconds after which the caller gets a turn, although nothing has come."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be streamed. `name` is the application_name that the server shows."""

    name: str
    publication: str
    messages: bool
    connect_timeout_s: float


async def changes(
    dsn: Dsn,
    wanted: Wanted,
    envelope: Callable[[str], EnvelopeSettings],
    *,
    on_wait: Callable[[SlotWait], None],
    on_start: Callable[[], None],
) -> AsyncGenerator[list[Record], None]:
    """Lists of records, in commit order, as the daemon would write them; an empty list at least every `TURN_S`.

    Args:
        envelope: the form of records, from the name of the database.
        on_wait: hears what the creation of the slot waits for.
        on_start: called when every transaction that commits from then on will come.

    Raises:
        SourceError: there is no such publication; the role may not replicate; no slot is free.
        TransientError: the connection is lost.
    """
    async with AsyncExitStack() as stack:
        sql = await connect(dsn, application_name=wanted.name, connect_timeout_s=wanted.connect_timeout_s)
        stack.push_async_callback(sql.close)
        if not await has_publication(sql, wanted.publication):
            raise SourceError(
                f"There is no publication {wanted.publication}.",
                hint="Create it (`cdcd check` shows how), or start the pipeline once.",
            )
        stream = await ReplicationStream.open(
            dsn, application_name=wanted.name, connect_timeout_s=wanted.connect_timeout_s
        )
        stack.callback(stream.close)
        timeout_s = await stream.wal_sender_timeout_s()
        identity = await stream.identify()
        slot = f"cdcd_tail_{os.getpid()}_{secrets.token_hex(4)}"
        created = await create_slot(stream, slot, temporary=True, observer=sql, on_wait=on_wait)
        options = start_options(
            stream.server_version, "auto", [wanted.publication], streaming="off", messages=wanted.messages
        )
        await stream.start(
            slot, 0, options.options, publication=wanted.publication, wal_sender_timeout_s=timeout_s
        )
        on_start()
        decoder = _Decoder(sql, DebeziumJsonEncoder(envelope(identity.database)))
        feedback = Feedback(interval_for(STATUS_S, timeout_s), time.monotonic())
        received = created.consistent_point
        while True:
            frames: list[bytes] = []
            try:
                async with asyncio.timeout(min(feedback.interval_s, TURN_S)):
                    frames = await stream.receive(BYTES_AT_ONCE)
            except TimeoutError:
                pass
            records: list[Record] = []
            for frame in frames:
                received = max(received, await decoder.take(frame, records))
            if reply_requested(frames):
                feedback.ask()
            now_us = time.time_ns() // 1000
            update = feedback.due(received, received, time.monotonic(), now_us - POSTGRES_EPOCH_US)
            if update is not None:
                await stream.send(write_frame(update))
            yield records


class _Decoder:
    """Frames of a stream without open transactions -> records."""

    def __init__(self, sql: Connection, encoder: DebeziumJsonEncoder) -> None:
        self._sql = sql
        self._encoder = encoder
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._last_commit_lsn: int | None = None

    async def take(self, frame: bytes, out: list[Record]) -> int:
        """Append the records of the frame; the position up to which everything has been received, 0: as before."""
        if len(frame) == KEEPALIVE_BYTES:
            keepalive = read_frame(frame)
            return keepalive.wal_end if isinstance(keepalive, Keepalive) else 0
        now_us = time.time_ns() // 1000
        message = read_message(frame, XLOG_HEADER)
        match message:
            case Insert() | Update() | Delete() | Truncate():
                self._encoder.encode(frame, False, now_us, out)
            case LogicalMessage(transactional=True):
                self._encoder.encode(frame, False, now_us, out)
            case LogicalMessage():
                self._encoder.encode_message(frame, False, self._last_commit_lsn, now_us, out)
            case Relation():
                await self._define(message)
            case Begin():
                self._encoder.begin(
                    message.xid, message.final_lsn, message.commit_time, self._last_commit_lsn
                )
                self._last_commit_lsn = message.final_lsn
            case Origin():
                self._encoder.set_origin(message.name, message.commit_lsn)
            case Commit():
                return message.end_lsn
            case _:
                pass
        return 0

    async def _define(self, relation: Relation) -> None:
        oids: Collection[int] = [column.type_oid for column in relation.columns]
        missing = [oid for oid in oids if not is_lasting(oid, self._types)]
        if missing:
            self._types.update(await catalog.types(self._sql, missing))
        described = await catalog.describe(self._sql, [relation.oid])
        self._encoder.define(relation, described[relation.oid], self._types)
