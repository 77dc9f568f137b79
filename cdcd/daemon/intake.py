"""Stages 3 to 6 joined: frames of the stream -> records in the batches that go to Kafka.

The rule: a batch never has a part of an event, and its position is one that the assembler gave. Between two steps other
tasks may run; within one nothing is awaited that needs what the step is about to change.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cdcd.daemon.snapshot_run import SnapshotRun
from cdcd.facts import Observer, PrepareMissing, RelationChanged, TransactionLarge
from cdcd.protocol.frames import XLOG_HEADER
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import LogicalMessage, Relation, Type
from cdcd.protocol.peek import TRUNCATE, tag_of
from cdcd.protocol.reader import read_message
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.snapshots.signals import RESERVED
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.batches import Batches
from cdcd.transactions.drafts import events
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.steps import (
    Changes,
    Closed,
    CommitWithoutPrepare,
    Described,
    KeepaliveReceived,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    RelationPreview,
    RolledBack,
    TransactionalMessage,
    Turn,
)

YIELD_EVENTS: Final = 64
"""After a run of this many changes other tasks get their turn, also when nothing has to be waited for."""

Describe = Callable[[Relation, bool], Awaitable[None]]


class Intake:
    """What is done with the frames that were received. `take` them in their order.

    Args:
        assembler: new, at the position of the checkpoint.
        describe: makes the encoder know a relation (catalog, topic); awaited when a new description arrives. True: only
            if the catalog has it as it is described.
        snapshots: told of each change while it reads the tables beside the stream.
    """

    def __init__(
        self,
        *,
        assembler: Assembler,
        encoder: DebeziumJsonEncoder,
        batches: Batches,
        ledger: Ledger,
        snapshots: SnapshotRun,
        describe: Describe,
        telemetry: Telemetry,
        observe: Observer,
    ) -> None:
        self.assembler: Final = assembler
        self.encoder: Final = encoder
        self._batches = batches
        self._ledger = ledger
        self._snapshots = snapshots
        self._describe = describe
        self._telemetry = telemetry
        self._observe = observe
        self._filled = snapshots.state.filled
        self._relations: dict[int, Relation] = {}
        self._transaction: Opened | None = None
        self._xid = 0

    async def take(self, frames: list[bytes]) -> None:  # noqa: C901  one case for each step
        """Encode what follows from `frames`; waits while there is no room for it.

        Raises whatever the assembler, the encoder and `describe` do.
        """
        now_us = time.time_ns() // 1000
        for step in self.assembler.receive(frames):
            match step:
                case Changes():
                    if self._encode(step, now_us) >= YIELD_EVENTS:
                        await asyncio.sleep(0)
                        now_us = time.time_ns() // 1000
                    if not self._batches.room:
                        await self._snapshots.state.wait_for_room()
                case Opened():
                    self._open(step)
                case Closed():
                    self._close(step)
                case TransactionalMessage():
                    self._add_message(step, now_us)
                case Turn():
                    await asyncio.sleep(0)
                case RelationPreview():
                    await self._foretell(step.message)
                case Described():
                    await self._define(step.message)
                case KeepaliveReceived():
                    self._hear(step)
                case CommitWithoutPrepare():
                    self._observe(
                        PrepareMissing(gid=step.gid, xid=step.xid, commit_lsn=str(Lsn(step.commit_lsn)))
                    )
                case RolledBack():
                    self._batches.roll_back(step.end_lsn, step.tickets)
                    self._snapshots.emit(self._batches.position.end_lsn)
                case OriginChanged():
                    self.encoder.set_origin(step.name, step.lsn)
                case NonTransactionalMessage():
                    self._add_alone(step, now_us)
        self._filled.set()

    def _encode(self, step: Changes, now_us: int) -> int:
        """Returns the number of events."""
        count = events(step.items) if step.in_stream else len(step.items)
        tail = self._batches.tail
        known = len(tail)
        size = self.encoder.encode_all(step.items, step.in_stream, now_us, tail)
        if self._snapshots.window.watching:
            self._snapshots.note(self._xid, tail[known:])
            if any(isinstance(one, bytes) and tag_of(one) == TRUNCATE for one in step.items):
                self._snapshots.window.void(self._xid)
        self._count(size, count)
        return count

    def _count(self, size: int, count: int) -> None:
        if self._batches.add(size, count) and self._transaction is not None:
            self._observe(
                TransactionLarge(xid=self._transaction.xid, commit_lsn=self._transaction.commit_lsn)
            )
            self._transaction = None
        self._filled.set()

    def _add_message(self, step: TransactionalMessage, now_us: int) -> None:
        if self._is_request(step.frame, step.in_stream):
            self.encoder.skip(1)
            self._count(0, 1)
        else:
            self._encode(Changes([step.frame], step.in_stream), now_us)

    def _is_request(self, frame: bytes, in_stream: bool) -> bool:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
        assert isinstance(message, LogicalMessage)
        if message.prefix not in RESERVED:
            return False
        self._snapshots.signal(message)
        return True

    def _open(self, step: Opened) -> None:
        self._transaction = step
        self._xid = step.xid
        self.encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        if step.skip:
            self.encoder.skip(step.skip)
        self._batches.begin(step.commit_lsn, step.skip)

    def _close(self, step: Closed) -> None:
        if self._batches.size:
            self._telemetry.caught_up = False
        self._batches.close(step.commit_lsn, step.end_lsn, step.commit_time, step.tickets)
        self._snapshots.emit(self._batches.position.end_lsn)

    def _add_alone(self, step: NonTransactionalMessage, now_us: int) -> None:
        batches = self._batches
        batches.begin(step.lsn, 0)
        size = 0
        if not self._is_request(step.frame, step.in_stream):
            size = self.encoder.encode_message(
                step.frame, step.in_stream, step.last_commit_lsn, now_us, batches.tail
            )
        batches.add(size, 1)
        batches.close(step.lsn, step.lsn + 1, None, (step.ticket,))
        self._snapshots.emit(batches.position.end_lsn)

    def _hear(self, step: KeepaliveReceived) -> None:
        self._telemetry.server_wal_end = max(self._telemetry.server_wal_end, step.wal_end)
        if step.idle:
            self._telemetry.caught_up = not self._batches.size
            self._batches.advance(self._ledger, step.wal_end, asked=step.reply_requested)
            self._snapshots.emit(self._batches.position.end_lsn)

    async def _define(self, message: Relation | Type) -> None:
        if isinstance(message, Type):
            return
        known = self._relations.get(message.oid)
        # Also where it says what it said before: a column that was dropped and added again looks the same here.
        await self._describe(message, False)
        self._relations[message.oid] = message
        if known is not None and known != message:
            self._snapshots.redefined(message.schema, message.name)
            self._observe(RelationChanged(schema=message.schema, table=message.name))

    async def _foretell(self, message: Relation) -> None:
        """Know a relation before the commit of the transaction in which it is new to us, so that rows can be drafted.

        One that we know stays as it is: rows of other transactions may still come as it was. One that is not yet in the
        catalog as the message says was created or altered in that transaction, and is described at its commit.
        """
        if not self.encoder.knows(message.oid):
            await self._describe(message, True)
