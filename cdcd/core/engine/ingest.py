"""Turns frames of the stream into records in the queue, by handling each step of the assembler.

The rule: the queue never has a part of an event, and its positions are those that the assembler has returned. A step is
processed at once, or held until the catalog has answered or a topic is ready.

`ChangeRecords` makes the records of rows, `MessageRecords` those of logical messages, `CurrentTransaction` is where
both put them, and `BetweenTransactions` does the rest.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, cast

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.between_transactions import BetweenTransactions
from cdcd.core.engine.change_records import ChangeRecords
from cdcd.core.engine.current_transaction import CurrentTransaction
from cdcd.core.engine.left_out import KeptStep, LeftOut, LeftOutTables, WentOut
from cdcd.core.engine.message_records import MessageRecords
from cdcd.core.engine.renewal import Renewal
from cdcd.core.facts.transactions import PrepareMissing
from cdcd.core.protocol import peek
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.encoder import TRANSACTIONS
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.steps import (
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
    Step,
    TransactionalMessage,
    TurnEnd,
)

TURN_EVENTS: Final = 256
"""Number of events or steps that are processed before other tasks run, which takes some milliseconds in uncompiled
code."""

STEP_BYTES: Final = 262_144
"""Bytes of a message or row above which it is converted in a thread (`Engine.has_large`): as many as the shell receives
at a time, and as many as the spool returns."""


class Ingest:
    """Processes the frames of a session: `accept` takes frames, then `advance` is called until `is_idle`.

    Args:
        left_out: the tables that the pipeline leaves out, or that are set aside.
        renewal: is told of large messages that were not copied whole, and of the ends of transactions.
    """

    def __init__(
        self,
        assembler: Assembler,
        current: CurrentTransaction,
        changes: ChangeRecords,
        messages: MessageRecords,
        between: BetweenTransactions,
        left_out: LeftOutTables,
        renewal: Renewal,
    ) -> None:
        self.caught_up: bool | None = None
        """True if the broker holds everything that the server had written by its last keepalive; None if not known."""
        self.server_wal_end = 0
        """End of the server's WAL, as far as keepalives and commits have shown it."""
        self._idle_since_keepalive = False
        """True if the last keepalive came between transactions, and no transaction has ended since."""
        self.relations = changes.relations
        self._assembler = assembler
        self._current = current
        self._encoder = current.encoder
        self._queue = current.queue
        self._changes = changes
        self._messages = messages
        self._between = between
        self._left_out = left_out
        self._renewal = renewal
        self._steps: Iterator[KeptStep] | None = None
        self._returned: list[Relation] = []
        """Descriptions of tables that came back, which precede the next steps."""
        self._held: KeptStep | None = None
        self._splits = False
        """True if the steps come from `left_out`."""
        self._has_large_frame = False
        self._has_large_step = False
        """True if the held step is a large message of the spool."""

    @property
    def is_idle(self) -> bool:
        """True if all received frames are processed."""
        return self._steps is None

    @property
    def has_large(self) -> bool:
        """True if the next steps may convert a large message."""
        return self._has_large_frame or self._has_large_step

    def accept(self, frames: list[bytes]) -> None:
        """Take the next frames of the stream."""
        assert self._steps is None, "the former frames are not worked off"
        self._has_large_frame = len(frames) > 0 and len(frames[-1]) > STEP_BYTES
        self._steps = self._kept(self._assembler.assemble(frames))

    def _kept(self, steps: Iterator[Step]) -> Iterator[KeptStep]:
        self._splits = self._left_out.is_needed
        return self._left_out.steps(steps) if self._splits else steps

    def leave(self, oid: int) -> Relation | None:
        """Set a table aside, beginning with the step that is being processed or held.

        Returns:
            The table's last description by the stream; None if it had none.
        """
        if self._steps is not None and not self._splits:
            # The remaining steps do not include descriptions of a table that is left out by its name.
            self._splits = True
            self._steps = self._left_out.steps(cast("Iterator[Step]", self._steps))
        held = self._held
        if isinstance(held, Changes):
            self._held = None
            self._put_back(held)
        waiting = [each for each in self._returned if each.oid == oid]
        self._returned = [each for each in self._returned if each.oid != oid]
        described = self.relations.leave(oid)
        # The server does not describe the table again.
        return waiting[0] if described is None and waiting else described

    def come_back(self, oid: int, relation: Relation | None) -> None:
        """Let a table that was set aside come back between two transactions: it is described before its next change."""
        self._encoder.forget(oid)
        if relation is not None:
            self._returned.append(relation)

    def _put_back(self, step: Changes) -> None:
        """Process these events next, without those of tables that are set aside."""
        assert self._steps is not None, "a step is worked off"
        if step.items:
            self._steps = chain(self._left_out.split(step), self._steps)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
        seen: Visibility | None,
    ) -> None:
        """Take the catalog's description of a relation (`Engine.described`)."""
        if seen is not None and not self._queue.between and not seen.sees(self._current.xid):
            self.relations.ask_again(now)
        else:
            self.relations.described(relation, description, types)

    def advance(self, now: float, unix_us: int) -> bool:
        """Process steps for one turn. Returns False if an answer, a delivery or more frames must come first."""
        self._current.unix_us = unix_us
        if self._steps is None or self._waits():
            return False
        left = TURN_EVENTS
        while left > 0:
            step = self._held
            if step is None:
                if not self._queue.room or self._between.is_held:
                    return False
                # A step may insert others before the ones that follow.
                step = Described(self._returned.pop(0)) if self._returned else next(self._steps, None)
                if step is None:
                    self._steps = None
                    self._has_large_frame = False
                    return True
                if not self._has_large_frame and _is_large(step):
                    # The caller sees `has_large` before the step is processed.
                    self._held = step
                    self._has_large_step = True
                    return True
            else:
                self._held = None
            left -= self._take(step, now)
            if self._is_held() or self._waits():
                return False
            self._has_large_step = False
        return True

    def _waits(self) -> bool:
        """True if steps wait for the catalog."""
        return self.relations.asking is not None

    def _is_held(self) -> bool:
        """True if a step waits for its topics."""
        return self._held is not None

    def _take(self, step: KeptStep, now: float) -> int:
        """Process the step, and return its share of `TURN_EVENTS`."""
        kind = type(step)
        if kind is Changes:
            assert isinstance(step, Changes)
            return self._encode(step)
        _HANDLERS[kind](self, step, now)
        return TURN_EVENTS if kind is TurnEnd else 1

    def _encode(self, step: Changes) -> int:
        """Make records of the events, and return their number; 0 if the step is held until its topics are ready."""
        # This is so even if the events wait for a topic, or for the rest of their transaction, because the broker
        # does not hold them.
        self.caught_up = False
        aside = self._left_out.count_aside()
        if self.relations.lacks_topics(step):
            self._held = step
        if self._left_out.count_aside() != aside:
            self._held = None
            self._put_back(step)
            return 0
        if self._held is not None:
            return 0
        done, again = self._changes.make_records(step)
        if again is not None:
            self._put_back(again)
        return done

    def _opened(self, step: Opened, now: float) -> None:
        self._committed(step.commit_lsn)
        self.relations.opened(step.commit_lsn)
        self._idle_since_keepalive = False
        self._current.open(step)

    def _committed(self, lsn: int) -> None:
        """Note that the server has a record at `lsn`, so that what waits for its topic or the catalog counts as not
        caught up.
        """
        self.server_wal_end = max(self.server_wal_end, lsn + 1)

    def _closed(self, step: Closed, now: float) -> None:
        if self._encoder.metadata is not None and not self._current.has_schemas(TRANSACTIONS):
            self._held = step
            return
        self.relations.closed()
        self._current.close(step)
        if self._queue.size:
            self.caught_up = False
        if self._renewal.is_pending:
            self._renewal.closed(step.end_lsn, self._undecided())
        self._between.closed(now, self._current.unix_us)

    def _rolled_back(self, step: RolledBack, now: float) -> None:
        self._queue.roll_back(step.end_lsn, step.tickets)
        self._between.reached(now)

    def _origin_changed(self, step: OriginChanged, now: float) -> None:
        self._encoder.set_origin(step.name, step.lsn)

    def _previewed(self, step: RelationPreview, now: float) -> None:
        self.relations.preview(step.message)

    def _described_in_stream(self, step: Described, now: float) -> None:
        if isinstance(step.message, Relation):
            # Rows of the relation follow, and wait for the catalog.
            self.caught_up = False
            self.relations.describe(step.message)

    def _undecided(self) -> int:
        """Return the number of transactions that are streamed or prepared, and that would be sent again over another
        connection.
        """
        return self._assembler.streamed_open + self._assembler.prepared_open

    def _transactional(self, step: TransactionalMessage, now: float) -> None:
        if not step.is_delivered:
            self._renewal.arrived(peek.shortened_bytes(step.frame), now)
        if not self._messages.handle(step):
            self._held = step

    def _skipped(self, step: LeftOut, now: float) -> None:
        self._current.leave_out(step.events)

    def _went_out(self, step: WentOut, now: float) -> None:
        self._changes.went_out(step)

    def _alone(self, step: NonTransactionalMessage, now: float) -> None:
        self._committed(step.lsn)
        if not self._messages.handle_alone(step):
            self._held = step
            return
        self._renewal.arrived(peek.shortened_bytes(step.frame), now)
        self._queue.close(step.lsn, step.lsn + 1, None, (step.ticket,))
        if self._renewal.is_pending:
            self._renewal.closed(step.lsn + 1, self._undecided())
        self._between.reached(now)

    def _commit_without_prepare(self, step: CommitWithoutPrepare, now: float) -> None:
        self._current.observe(
            PrepareMissing(gid=step.gid, xid=step.xid, commit_lsn=str(Lsn(step.commit_lsn)))
        )

    def _heard(self, step: KeepaliveReceived, now: float) -> None:
        self.server_wal_end = max(self.server_wal_end, step.wal_end)
        self._idle_since_keepalive = step.idle
        if step.idle:
            self.caught_up = not self._queue.size
            self._queue.advance(self._assembler.order.ledger, step.wal_end, asked=step.reply_requested)
            self._between.reached(now)

    def note_delivery(self) -> None:
        """Note that a batch was delivered.

        If no transaction arrived since the last keepalive, the server has nothing more to send.
        """
        if self._idle_since_keepalive and not self._queue.size:
            self.caught_up = True

    def _turn(self, step: TurnEnd, now: float) -> None:
        """Do nothing: the step ends the turn (`_take`), so that other tasks run."""


def _is_large(step: KeptStep) -> bool:
    """Return whether the step has a large message, which the spool or a held step may have kept."""
    if isinstance(step, Changes):
        # The spool keeps a large message in a list of its own.
        last = step.items[-1] if step.items else b""
        return isinstance(last, bytes) and len(last) > STEP_BYTES
    return isinstance(step, TransactionalMessage) and len(step.frame) > STEP_BYTES


_Handler = Callable[[Ingest, Any, float], None]

_HANDLERS: Final[dict[type[KeptStep], _Handler]] = {
    Opened: Ingest._opened,
    Closed: Ingest._closed,
    Described: Ingest._described_in_stream,
    RelationPreview: Ingest._previewed,
    OriginChanged: Ingest._origin_changed,
    RolledBack: Ingest._rolled_back,
    LeftOut: Ingest._skipped,
    WentOut: Ingest._went_out,
    TransactionalMessage: Ingest._transactional,
    NonTransactionalMessage: Ingest._alone,
    KeepaliveReceived: Ingest._heard,
    CommitWithoutPrepare: Ingest._commit_without_prepare,
    TurnEnd: Ingest._turn,
}
"""The method for each step of the assembler, except `Changes`."""
