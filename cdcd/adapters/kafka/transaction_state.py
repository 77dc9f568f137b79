"""Decisions of the sink, by two tables: with Kafka transactions (exactly once), and without (at least once).

The rule: the outcome of a Kafka transaction is known before the next one begins. If the outcome is unknown (a
timeout, a lost coordinator), the sink drops the producer. A new producer with the same `transactional.id` fences
the old one, `init_transactions` waits until the broker has decided, and the checkpoint that is then read shows the
decision (KAFKA-17754, KIP-890: a late EndTxn must not meet the next transaction). There is no other way of
recovery.

A batch is sent again only while memory holds its whole Kafka transaction. A large source transaction comes as
several batches, the parts of one Kafka transaction. Every part but the last leaves the transaction open, and the
part's memory is released, so that memory stays bounded. If a later step fails, the sink abandons the transaction,
and the session starts again from the checkpoint. Nothing of the transaction becomes visible. So the records of a
later part are released one by one as the producer accepts them.

Without Kafka transactions, nothing fences an old producer. If that producer were dropped, the broker could append
one of its requests after the records of its successor, so that an old value came last. So a producer that gets no
answer is kept. It sends the same requests again with the same sequence numbers, and the broker appends each of them
once, in order (KIP-98, idempotent producer).

Theory of operation: `open`, `deliver` and `close` ask the machine for an `Action`. The caller carries out the
action's steps in their order. If the action has an `end`, the call ends in that way. If not, the caller calls
`done` after the last step, or `failed` at the step that failed, and gets the next action.

This module does not block, read a clock or know a Kafka client. `cdcd.adapters.kafka.sink` carries the steps out
with librdkafka, and `tests/sim/sink.py` carries them out against a simulated broker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError, FatalError, FencedError, TransientError


class SinkState(Enum):
    """What holds between two actions, or what the current action does."""

    CLOSED = "there is no producer"
    OPENING = "the first producer fences others and reads the checkpoint"
    READY = "there is a producer, no transaction is open, and the checkpoint in Kafka is known"
    WHOLE = "a batch that is a whole transaction is sent and committed"
    FIRST = "the first part of a transaction is sent; memory still holds it"
    OPEN = "memory of parts of a transaction was released, and the next part is awaited"
    LATER = "a later part is sent, which leaves the transaction open"
    LAST = "the last part is sent, and the transaction is committed"
    NOTING = "the records are acknowledged, and the checkpoint is sent (at least once)"
    HELD = "records are not acknowledged, and their producer is kept (at least once)"
    HELD_NOTE = "the checkpoint is not acknowledged, and its producer is kept (at least once)"
    FITTING = "the broker refused a request for its size; memory holds the whole transaction"
    FITTING_LATE = "the broker refused a request for its size after memory of parts was released"
    REOPENING = "a new producer replaces one that failed, while a batch is to be sent"


class TransactionEvent(Enum):
    """Outcome of an action, or call of the caller."""

    OPEN = "open was called"
    PART = "deliver was called with a batch that leaves the transaction open"
    LAST = "deliver was called with a batch that closes its transaction"
    CLOSE = "close was called"
    DONE = "every step was carried out"
    DELIVERED = "the checkpoint in Kafka is that of the batch"
    UNCHANGED = "the checkpoint in Kafka is the one before the batch"
    CHANGED = "read back: the checkpoint is neither"
    SUPERSEDED = "the checkpoint in Kafka is of a later epoch"
    SILENT = "no answer came in time; requests may still be in flight"
    FAILED = "a failure that is likely to pass; the outcome of requests in flight is unknown"
    TOO_LARGE = "the broker refused a request for its size"
    REFUSED = "a permanent failure, or this instance is no longer the active one"
    STOPPED = "the caller is asked to stop waiting"


class Step(Enum):
    """One step that the caller carries out."""

    PROVE = "prove that this instance holds the advisory lock"
    CREATE = "create a producer; the batch is not handed over yet"
    FENCE = "init_transactions"
    READ = "read the checkpoint, and tell it to `done`"
    LEASE = "prove ownership again if the last proof is older than the lease"
    BEGIN = "begin a transaction"
    NOTE = "produce the checkpoint record"
    HAND_OVER = "produce those records of the batch that the producer does not have yet"
    GIVE_AWAY = "do the same, and release each record that the producer has accepted"
    RELEASE = "wait until at most this part's records are unacknowledged"
    FLUSH = "wait until everything is acknowledged"
    COMMIT = "commit the transaction"
    FIT = "plan smaller requests, or replace the record; fails if neither helps"
    PAUSE = "report the failure and wait out the back-off"
    ABORT = "try for a moment to abort the transaction; a failure is ignored"
    DRAIN = "wait a moment for answers to requests in flight; a failure is ignored"
    DISCARD = "drop the producer and all records that it has"


class CallEnd(Enum):
    """How the call ends after the action's steps."""

    RETURN = "return"
    RAISE = "raise the failure"
    START_OVER = (
        "parts of the transaction are no longer in memory, so the session starts over from the checkpoint"
    )
    CHANGED = "another producer wrote the checkpoint"
    SUPERSEDED = "another instance took over"


@dataclass(frozen=True, slots=True)
class Action:
    """Steps to carry out in their order, and the end of the call after them.

    `end` is None if `done` returns the next action.
    """

    steps: tuple[Step, ...] = ()
    end: CallEnd | None = None


DELIVER: Final = Action()
"""Treat the batch as if `deliver` were called now. The machine replaces this action; no caller sees it."""

RETURN: Final = Action(end=CallEnd.RETURN)

Transitions = Mapping[tuple[SinkState, TransactionEvent], tuple[SinkState, Action]]

S, E = SinkState, TransactionEvent

# Actions and transitions for exactly once.

_OPEN: Final = (Step.PROVE, Step.CREATE, Step.FENCE, Step.READ)
OPEN: Final = Action(_OPEN)
REOPEN: Final = Action((Step.DISCARD, Step.PAUSE, *_OPEN))
REOPEN_AT_ONCE: Final = Action((Step.DISCARD, *_OPEN))
# The checkpoint is first, so that one request adds its partition and those of the records to the transaction, and
# because librdkafka's queue still has room for it.
SEND_WHOLE: Final = Action((Step.LEASE, Step.BEGIN, Step.NOTE, Step.HAND_OVER, Step.COMMIT))
SEND_FIRST: Final = Action((Step.LEASE, Step.BEGIN, Step.HAND_OVER, Step.RELEASE))
SEND_LATER: Final = Action((Step.LEASE, Step.GIVE_AWAY, Step.RELEASE))
SEND_LAST: Final = Action((Step.LEASE, Step.NOTE, Step.GIVE_AWAY, Step.COMMIT))
FIT: Final = Action((Step.FIT,))
LEAVE: Final = Action((Step.DISCARD,), CallEnd.RETURN)
# Without the abort, readers would wait for the open transaction until the next start, or until its long timeout.
ABORT_AND_LEAVE: Final = Action((Step.ABORT, Step.DISCARD), CallEnd.RETURN)
GIVE_UP: Final = Action((Step.DISCARD,), CallEnd.RAISE)
ABORT_AND_GIVE_UP: Final = Action((Step.ABORT, Step.DISCARD), CallEnd.RAISE)
START_OVER: Final = Action((Step.ABORT, Step.DISCARD), CallEnd.START_OVER)
# The commit of the last part may have succeeded, so this producer must not send the coordinator an abort.
START_OVER_UNKNOWN: Final = Action((Step.DISCARD,), CallEnd.START_OVER)
CHANGED: Final = Action((Step.DISCARD,), CallEnd.CHANGED)
SUPERSEDED: Final = Action((Step.DISCARD,), CallEnd.SUPERSEDED)

EXACTLY_ONCE: Final[Transitions] = {
    (S.CLOSED, E.OPEN): (S.OPENING, OPEN),
    (S.CLOSED, E.CLOSE): (S.CLOSED, RETURN),
    (S.OPENING, E.DONE): (S.READY, RETURN),
    (S.OPENING, E.SILENT): (S.CLOSED, GIVE_UP),
    (S.OPENING, E.FAILED): (S.CLOSED, GIVE_UP),
    (S.OPENING, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.OPENING, E.CLOSE): (S.CLOSED, LEAVE),
    (S.READY, E.LAST): (S.WHOLE, SEND_WHOLE),
    (S.READY, E.PART): (S.FIRST, SEND_FIRST),
    (S.READY, E.CLOSE): (S.CLOSED, LEAVE),
    (S.WHOLE, E.DONE): (S.READY, RETURN),
    (S.WHOLE, E.SILENT): (S.REOPENING, REOPEN),
    (S.WHOLE, E.FAILED): (S.REOPENING, REOPEN),
    (S.WHOLE, E.TOO_LARGE): (S.FITTING, FIT),
    (S.WHOLE, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.WHOLE, E.CLOSE): (S.CLOSED, LEAVE),
    (S.FIRST, E.DONE): (S.OPEN, RETURN),
    (S.FIRST, E.SILENT): (S.REOPENING, REOPEN),
    (S.FIRST, E.FAILED): (S.REOPENING, REOPEN),
    (S.FIRST, E.TOO_LARGE): (S.FITTING, FIT),
    (S.FIRST, E.REFUSED): (S.CLOSED, ABORT_AND_GIVE_UP),
    (S.FIRST, E.CLOSE): (S.CLOSED, ABORT_AND_LEAVE),
    (S.FITTING, E.DONE): (S.REOPENING, REOPEN_AT_ONCE),
    (S.FITTING, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.FITTING, E.CLOSE): (S.CLOSED, LEAVE),
    (S.REOPENING, E.DELIVERED): (S.READY, RETURN),
    (S.REOPENING, E.UNCHANGED): (S.READY, DELIVER),
    (S.REOPENING, E.CHANGED): (S.CLOSED, CHANGED),
    (S.REOPENING, E.SUPERSEDED): (S.CLOSED, SUPERSEDED),
    (S.REOPENING, E.SILENT): (S.REOPENING, REOPEN),
    (S.REOPENING, E.FAILED): (S.REOPENING, REOPEN),
    (S.REOPENING, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.REOPENING, E.STOPPED): (S.CLOSED, GIVE_UP),
    (S.REOPENING, E.CLOSE): (S.CLOSED, LEAVE),
    # In the states from here on, memory of a part was released.
    (S.OPEN, E.PART): (S.LATER, SEND_LATER),
    (S.OPEN, E.LAST): (S.LAST, SEND_LAST),
    (S.OPEN, E.CLOSE): (S.CLOSED, ABORT_AND_LEAVE),
    (S.LATER, E.DONE): (S.OPEN, RETURN),
    (S.LATER, E.SILENT): (S.CLOSED, START_OVER),
    (S.LATER, E.FAILED): (S.CLOSED, START_OVER),
    (S.LATER, E.TOO_LARGE): (S.FITTING_LATE, FIT),
    (S.LATER, E.REFUSED): (S.CLOSED, ABORT_AND_GIVE_UP),
    (S.LATER, E.CLOSE): (S.CLOSED, ABORT_AND_LEAVE),
    (S.LAST, E.DONE): (S.READY, RETURN),
    (S.LAST, E.SILENT): (S.CLOSED, START_OVER_UNKNOWN),
    (S.LAST, E.FAILED): (S.CLOSED, START_OVER_UNKNOWN),
    (S.LAST, E.TOO_LARGE): (S.FITTING_LATE, FIT),
    (S.LAST, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.LAST, E.CLOSE): (S.CLOSED, LEAVE),
    (S.FITTING_LATE, E.DONE): (S.CLOSED, START_OVER),
    (S.FITTING_LATE, E.REFUSED): (S.CLOSED, ABORT_AND_GIVE_UP),
    (S.FITTING_LATE, E.CLOSE): (S.CLOSED, ABORT_AND_LEAVE),
}

# Actions and transitions for at least once. The records are acknowledged before the checkpoint is sent, so that no
# checkpoint covers records that Kafka lacks. Nothing stays open between two batches, so a part is a batch without a
# checkpoint.

_OPEN_PLAIN: Final = (Step.PROVE, Step.CREATE, Step.READ)
OPEN_PLAIN: Final = Action(_OPEN_PLAIN)
REOPEN_PLAIN: Final = Action((Step.DRAIN, Step.DISCARD, Step.PAUSE, *_OPEN_PLAIN))
REOPEN_PLAIN_AT_ONCE: Final = Action((Step.DRAIN, Step.DISCARD, *_OPEN_PLAIN))
SEND_RECORDS: Final = Action((Step.LEASE, Step.HAND_OVER, Step.FLUSH))
SEND_CHECKPOINT: Final = Action((Step.LEASE, Step.NOTE, Step.FLUSH))
WAIT_ON: Final = Action((Step.FLUSH,))
# During the wait, another instance may have taken over, or the broker may have begun to refuse this one.
LOOK: Final = Action((Step.PAUSE, Step.PROVE, Step.READ))
DRAIN_AND_LEAVE: Final = Action((Step.DRAIN, Step.DISCARD), CallEnd.RETURN)
DRAIN_AND_GIVE_UP: Final = Action((Step.DRAIN, Step.DISCARD), CallEnd.RAISE)
DRAIN_SUPERSEDED: Final = Action((Step.DRAIN, Step.DISCARD), CallEnd.SUPERSEDED)

AT_LEAST_ONCE: Final[Transitions] = {
    (S.CLOSED, E.OPEN): (S.OPENING, OPEN_PLAIN),
    (S.CLOSED, E.CLOSE): (S.CLOSED, RETURN),
    (S.OPENING, E.DONE): (S.READY, RETURN),
    (S.OPENING, E.SILENT): (S.CLOSED, GIVE_UP),
    (S.OPENING, E.FAILED): (S.CLOSED, GIVE_UP),
    (S.OPENING, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.OPENING, E.CLOSE): (S.CLOSED, LEAVE),
    (S.READY, E.LAST): (S.WHOLE, SEND_RECORDS),
    (S.READY, E.PART): (S.FIRST, SEND_RECORDS),
    (S.READY, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.WHOLE, E.DONE): (S.NOTING, SEND_CHECKPOINT),
    (S.WHOLE, E.SILENT): (S.HELD, LOOK),
    (S.WHOLE, E.FAILED): (S.REOPENING, REOPEN_PLAIN),
    (S.WHOLE, E.TOO_LARGE): (S.FITTING, FIT),
    (S.WHOLE, E.REFUSED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.WHOLE, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.FIRST, E.DONE): (S.READY, RETURN),
    (S.FIRST, E.SILENT): (S.HELD, LOOK),
    (S.FIRST, E.FAILED): (S.REOPENING, REOPEN_PLAIN),
    (S.FIRST, E.TOO_LARGE): (S.FITTING, FIT),
    (S.FIRST, E.REFUSED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.FIRST, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.NOTING, E.DONE): (S.READY, RETURN),
    (S.NOTING, E.SILENT): (S.HELD_NOTE, LOOK),
    (S.NOTING, E.FAILED): (S.REOPENING, REOPEN_PLAIN),
    (S.NOTING, E.TOO_LARGE): (S.FITTING, FIT),
    (S.NOTING, E.REFUSED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.NOTING, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.HELD, E.DELIVERED): (S.READY, DELIVER),
    (S.HELD, E.UNCHANGED): (S.READY, DELIVER),
    (S.HELD, E.CHANGED): (S.READY, DELIVER),
    (S.HELD, E.SUPERSEDED): (S.CLOSED, DRAIN_SUPERSEDED),
    (S.HELD, E.SILENT): (S.HELD, LOOK),
    (S.HELD, E.FAILED): (S.HELD, LOOK),
    (S.HELD, E.REFUSED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.HELD, E.STOPPED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.HELD, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.HELD_NOTE, E.DELIVERED): (S.NOTING, WAIT_ON),
    (S.HELD_NOTE, E.UNCHANGED): (S.NOTING, WAIT_ON),
    (S.HELD_NOTE, E.CHANGED): (S.NOTING, WAIT_ON),
    (S.HELD_NOTE, E.SUPERSEDED): (S.CLOSED, DRAIN_SUPERSEDED),
    (S.HELD_NOTE, E.SILENT): (S.HELD_NOTE, LOOK),
    (S.HELD_NOTE, E.FAILED): (S.HELD_NOTE, LOOK),
    (S.HELD_NOTE, E.REFUSED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.HELD_NOTE, E.STOPPED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.HELD_NOTE, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.FITTING, E.DONE): (S.REOPENING, REOPEN_PLAIN_AT_ONCE),
    (S.FITTING, E.REFUSED): (S.CLOSED, DRAIN_AND_GIVE_UP),
    (S.FITTING, E.CLOSE): (S.CLOSED, DRAIN_AND_LEAVE),
    (S.REOPENING, E.DELIVERED): (S.READY, RETURN),
    (S.REOPENING, E.UNCHANGED): (S.READY, DELIVER),
    (S.REOPENING, E.CHANGED): (S.READY, DELIVER),
    (S.REOPENING, E.SUPERSEDED): (S.CLOSED, SUPERSEDED),
    (S.REOPENING, E.SILENT): (S.REOPENING, REOPEN_PLAIN),
    (S.REOPENING, E.FAILED): (S.REOPENING, REOPEN_PLAIN),
    (S.REOPENING, E.REFUSED): (S.CLOSED, GIVE_UP),
    (S.REOPENING, E.STOPPED): (S.CLOSED, GIVE_UP),
    (S.REOPENING, E.CLOSE): (S.CLOSED, LEAVE),
}


_UNANSWERED: Final = (TransactionEvent.SILENT, TransactionEvent.FAILED)


class TransactionState:
    """The state of the current producer, and the checkpoint that Kafka holds.

    Call `open` once, then `deliver` for each batch, and `close` at any moment. Each returns the first action. Carry
    the action out, and call `done` or `failed`, until an action has an `end`. A missing event in the table is a bug
    of cdcd.

    `committed` is the newest checkpoint that Kafka is known to hold. `outcome_unknown` is true from a commit
    without an answer until the checkpoint is read back: Kafka may hold the checkpoint that was given last.
    """

    def __init__(self, transitions: Transitions) -> None:
        self.state = SinkState.CLOSED
        self.committed: Checkpoint | None = None
        self.outcome_unknown = False
        self._transitions = transitions
        self._action = RETURN
        self._checkpoint: Checkpoint | None = None
        self._given = TransactionEvent.LAST

    def open(self) -> Action:
        """Return the action that fences all other writers and reads the checkpoint to resume from."""
        self._checkpoint = None
        return self._take(TransactionEvent.OPEN)

    def deliver(self, checkpoint: Checkpoint, *, closes: bool) -> Action:
        """Return the action that sends a batch, which `checkpoint` covers.

        For a batch that does not close its transaction, only the checkpoint's epoch is used.
        """
        self._checkpoint = checkpoint
        self._given = TransactionEvent.LAST if closes else TransactionEvent.PART
        return self._take(self._given)

    def close(self) -> Action:
        """Return the action that discards everything uncommitted."""
        return self._take(TransactionEvent.CLOSE)

    def done(self, found: Checkpoint | None = None) -> Action:
        """Return the next action after every step of the last action was carried out.

        `found` is the checkpoint that the action's READ found, if it has a READ.
        """
        steps = self._action.steps
        if Step.READ in steps:
            event = self._judge(found)
            self.committed = found
            # A producer that is kept may send its request again, so the checkpoint that was read is not final.
            self.outcome_unknown &= self.state is SinkState.HELD_NOTE
            return self._take(event)
        if Step.NOTE in steps or self.state is SinkState.NOTING:
            self.committed = self._checkpoint
            self.outcome_unknown = False
        return self._take(TransactionEvent.DONE)

    def failed(self, event: TransactionEvent) -> Action:
        """Return the next action after a step failed and the steps after it were not begun.

        `event` comes from `event_of`.
        """
        if event in _UNANSWERED and (Step.NOTE in self._action.steps or self.state is SinkState.NOTING):
            self.outcome_unknown = True
        return self._take(event)

    def _judge(self, found: Checkpoint | None) -> TransactionEvent:
        ours = self._checkpoint
        if ours is None:
            return TransactionEvent.DONE
        if _is_same(found, ours) and self._given is TransactionEvent.LAST:
            return TransactionEvent.DELIVERED
        if found is not None and found.epoch > ours.epoch:
            return TransactionEvent.SUPERSEDED
        return TransactionEvent.UNCHANGED if _is_same(found, self.committed) else TransactionEvent.CHANGED

    def _take(self, event: TransactionEvent) -> Action:
        before = self.state
        assert (before, event) in self._transitions, f"{event} in {before}"
        self.state, self._action = self._transitions[before, event]
        if self._action is DELIVER:
            return self._take(self._given)
        return self._action


def event_of(failure: CdcdError, *, too_large: bool = False, silent: bool = False) -> TransactionEvent:
    """Return the event of a failure. `too_large`: the broker refused a size. `silent`: no answer arrived in time."""
    if too_large:
        return TransactionEvent.TOO_LARGE
    if isinstance(failure, FatalError):
        return TransactionEvent.REFUSED
    return TransactionEvent.SILENT if silent else TransactionEvent.FAILED


def error_of(end: CallEnd, failure: CdcdError | None) -> CdcdError:
    """Return the error that a call raises if it ends in this way after `failure`."""
    if end is CallEnd.SUPERSEDED:
        return FencedError(
            "Another instance took over while this instance could not reach the broker.",
            hint="Nothing is lost. Start this instance again: it becomes the standby.",
        )
    if end is CallEnd.CHANGED:
        return TransientError(
            "The checkpoint changed while the broker was away.",
            hint="Another instance wrote it. cdcd starts over from the new checkpoint, and you need not do anything.",
        )
    assert failure is not None, "a call that fails says why"
    if end is CallEnd.START_OVER:
        return TransientError(
            f"A Kafka transaction failed after parts of it were sent: {failure.message}",
            hint="read_committed readers see no part of it. cdcd starts over from the checkpoint. "
            f"{failure.hint}",
        )
    return failure


def _is_same(one: Checkpoint | None, other: Checkpoint | None) -> bool:
    return one is other if one is None or other is None else one.is_same(other)
