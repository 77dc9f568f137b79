"""What the sink does next, as two tables: one with Kafka transactions (exactly once), one without (at least once).

The rule: the outcome of a Kafka transaction is known before the next one begins. Where it is unknown (a timeout, a lost
coordinator), the producer is thrown away: a new one with the same `transactional.id` fences it, `init_transactions`
waits until the broker has decided, and the checkpoint, read back, says what was decided (KAFKA-17754, KIP-890: a late
EndTxn must not meet the next transaction). There is no other way of recovery.

A batch is sent again only while all of its Kafka transaction is in hand. A large source transaction comes as several
batches, which are parts of one Kafka transaction: every one but the last leaves it open and is let go, so that memory
stays bounded. If anything fails after that, the transaction is given up and the session begins again from the
checkpoint: nothing of the transaction is visible.

Without Kafka transactions nothing fences an old producer. A request of one that was thrown away could be appended
after the records of its successor, an old value last. So a producer whose requests are not answered is kept: it sends
the same requests again with the same sequence numbers, and the broker puts each in its place once (KIP-98, idempotent
producer).

Theory of operation: `open`, `deliver` and `close` ask the machine for an `Action`. The caller carries out the action's
steps in their order. If the action has an `end`, the call ends so. If not, the caller tells `done` after the last step,
or `failed` at the step that failed, and gets the next action.

Nothing here blocks, reads a clock or knows a Kafka client: `cdcd.kafka.sink` carries the steps out with librdkafka,
`tests/sim/sink.py` against a simulated broker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cdcd.errors import CdcdError, FatalError, FencedError, TransientError
from cdcd.transactions.position import Checkpoint


class State(Enum):
    """What is true between two actions, or what the action under way does."""

    CLOSED = "there is no producer"
    OPENING = "the first producer fences others and reads the checkpoint"
    READY = "a producer, no transaction open, and the checkpoint in Kafka is known"
    WHOLE = "a batch that is a transaction by itself is sent and committed"
    FIRST = "the first part of a transaction is sent; it is still in hand"
    OPEN = "parts of a transaction were let go, and the next one is awaited"
    LATER = "a further part is sent, which leaves the transaction open"
    LAST = "the last part is sent, and the transaction committed"
    NOTING = "the checkpoint is sent, its records are acknowledged (at least once)"
    HELD = "records are not acknowledged, and their producer is kept (at least once)"
    HELD_NOTE = "the checkpoint is not acknowledged, and its producer is kept (at least once)"
    FITTING = "a refusal for size is answered; all of the transaction is in hand"
    FITTING_LATE = "a refusal for size is answered after parts were let go"
    REOPENING = "a new producer takes the place of one that failed, with a batch in hand"


class Event(Enum):
    """What happened."""

    OPEN = "open was called"
    PART = "deliver was called with a batch that leaves the transaction open"
    LAST = "deliver was called with a batch that closes its transaction"
    CLOSE = "close was called"
    DONE = "every step was carried out"
    DELIVERED = "read back: the checkpoint is the batch's"
    UNCHANGED = "read back: the checkpoint is the one from before the batch"
    CHANGED = "read back: the checkpoint is neither"
    SUPERSEDED = "read back: the checkpoint is of a later epoch"
    SILENT = "no answer in time; requests may be under way"
    FAILED = "a failure that passes; what was under way has an unknown outcome"
    TOO_LARGE = "the broker refused a request for its size"
    REFUSED = "a failure that waiting does not mend, or this instance no longer owns the pipeline"
    STOPPED = "the caller is asked to stop waiting"


class Step(Enum):
    """One thing that the caller does."""

    PROVE = "prove that this instance holds the advisory lock"
    CREATE = "create a producer; the batch is not handed over yet"
    FENCE = "init_transactions"
    READ = "read the checkpoint, and tell it to `done`"
    LEASE = "prove ownership where the last proof is older than the lease"
    BEGIN = "begin a transaction"
    NOTE = "produce the checkpoint record"
    HAND_OVER = "produce the batch's records from where the producer has them"
    RELEASE = "wait until at most this part's records are unacknowledged"
    FLUSH = "wait until everything is acknowledged"
    COMMIT = "commit the transaction"
    FIT = "make smaller requests or replace the record; fails if neither helps"
    PAUSE = "report the failure and wait out the back-off"
    ABORT = "end the transaction without it, within a moment; a failure counts for nothing"
    DRAIN = "wait a moment for answers to what is under way; a failure counts for nothing"
    DISCARD = "drop the producer and whatever it has"


class End(Enum):
    """How the call ends after the action's steps."""

    RETURN = "return"
    RAISE = "raise the failure"
    START_OVER = "parts are gone: the session begins again from the checkpoint"
    CHANGED = "another producer wrote the checkpoint"
    SUPERSEDED = "another instance took over"


@dataclass(frozen=True, slots=True)
class Action:
    """Steps to carry out in their order, and how the call ends then; None: `done` tells."""

    steps: tuple[Step, ...] = ()
    end: End | None = None


DELIVER: Final = Action()
"""The batch is taken as if `deliver` were called now. The machine looks up what that is; no caller sees it."""

RETURN: Final = Action(end=End.RETURN)

Transitions = Mapping[tuple[State, Event], tuple[State, Action]]

S, E = State, Event

# Exactly once.

_OPEN: Final = (Step.PROVE, Step.CREATE, Step.FENCE, Step.READ)
OPEN: Final = Action(_OPEN)
REOPEN: Final = Action((Step.DISCARD, Step.PAUSE, *_OPEN))
REOPEN_AT_ONCE: Final = Action((Step.DISCARD, *_OPEN))
# The checkpoint goes first, so that one request takes its partition and those of the records into the transaction, and
# while librdkafka's queue has room for it.
SEND_WHOLE: Final = Action((Step.LEASE, Step.BEGIN, Step.NOTE, Step.HAND_OVER, Step.COMMIT))
SEND_FIRST: Final = Action((Step.LEASE, Step.BEGIN, Step.HAND_OVER, Step.RELEASE))
SEND_LATER: Final = Action((Step.LEASE, Step.HAND_OVER, Step.RELEASE))
SEND_LAST: Final = Action((Step.LEASE, Step.NOTE, Step.HAND_OVER, Step.COMMIT))
FIT: Final = Action((Step.FIT,))
LEAVE: Final = Action((Step.DISCARD,), End.RETURN)
# With a long timeout, readers would wait for a transaction that is left open until the next start.
ABORT_AND_LEAVE: Final = Action((Step.ABORT, Step.DISCARD), End.RETURN)
GIVE_UP: Final = Action((Step.DISCARD,), End.RAISE)
ABORT_AND_GIVE_UP: Final = Action((Step.ABORT, Step.DISCARD), End.RAISE)
START_OVER: Final = Action((Step.ABORT, Step.DISCARD), End.START_OVER)
# Whether the last part was committed is unknown: nothing more is asked of its coordinator by this producer.
START_OVER_UNKNOWN: Final = Action((Step.DISCARD,), End.START_OVER)
CHANGED: Final = Action((Step.DISCARD,), End.CHANGED)
SUPERSEDED: Final = Action((Step.DISCARD,), End.SUPERSEDED)

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
    # From here on a part was let go.
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

# At least once. The checkpoint must not outlive records that it covers: first they, then it. Nothing is open between
# two batches, so that a part is a batch without a checkpoint.

_OPEN_PLAIN: Final = (Step.PROVE, Step.CREATE, Step.READ)
OPEN_PLAIN: Final = Action(_OPEN_PLAIN)
REOPEN_PLAIN: Final = Action((Step.DRAIN, Step.DISCARD, Step.PAUSE, *_OPEN_PLAIN))
REOPEN_PLAIN_AT_ONCE: Final = Action((Step.DRAIN, Step.DISCARD, *_OPEN_PLAIN))
SEND_RECORDS: Final = Action((Step.LEASE, Step.HAND_OVER, Step.FLUSH))
SEND_CHECKPOINT: Final = Action((Step.LEASE, Step.NOTE, Step.FLUSH))
WAIT_ON: Final = Action((Step.FLUSH,))
# Beside the wait, somebody else may have taken over, and a broker that refuses us says so to whoever asks it.
LOOK: Final = Action((Step.PAUSE, Step.PROVE, Step.READ))
DRAIN_AND_LEAVE: Final = Action((Step.DRAIN, Step.DISCARD), End.RETURN)
DRAIN_AND_GIVE_UP: Final = Action((Step.DRAIN, Step.DISCARD), End.RAISE)
DRAIN_SUPERSEDED: Final = Action((Step.DRAIN, Step.DISCARD), End.SUPERSEDED)

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


class TransactionState:
    """One producer after the other, and the checkpoint that Kafka holds.

    `open` once, then `deliver` for each batch, `close` at any moment. Each returns the first action; carry it out and
    tell `done` or `failed` until an action has an `end`. What is outside the table is a bug of ours.

    `committed` is the checkpoint in Kafka, as far as it is known.
    """

    def __init__(self, transitions: Transitions) -> None:
        self.state = State.CLOSED
        self.committed: Checkpoint | None = None
        self._transitions = transitions
        self._action = RETURN
        self._checkpoint: Checkpoint | None = None
        self._given = Event.LAST

    def open(self) -> Action:
        """Fence whoever else writes, and read where to resume."""
        self._checkpoint = None
        return self._take(Event.OPEN)

    def deliver(self, checkpoint: Checkpoint, *, closes: bool) -> Action:
        """A batch is to be sent. `checkpoint` covers it; of a batch that does not close, only its epoch counts."""
        self._checkpoint = checkpoint
        self._given = Event.LAST if closes else Event.PART
        return self._take(self._given)

    def close(self) -> Action:
        """Give up what is not committed."""
        return self._take(Event.CLOSE)

    def done(self, found: Checkpoint | None = None) -> Action:
        """Every step of the last action was carried out; `found` is what its READ found, if it had one."""
        steps = self._action.steps
        if Step.READ in steps:
            event = self._judge(found)
            self.committed = found
            return self._take(event)
        if Step.NOTE in steps or self.state is State.NOTING:
            self.committed = self._checkpoint
        return self._take(Event.DONE)

    def failed(self, event: Event) -> Action:
        """A step of the last action failed, and those behind it were not begun; see `event_of`."""
        return self._take(event)

    def _judge(self, found: Checkpoint | None) -> Event:
        ours = self._checkpoint
        if ours is None:
            return Event.DONE
        if found == ours and self._given is Event.LAST:
            return Event.DELIVERED
        if found is not None and found.epoch > ours.epoch:
            return Event.SUPERSEDED
        return Event.UNCHANGED if found == self.committed else Event.CHANGED

    def _take(self, event: Event) -> Action:
        before = self.state
        assert (before, event) in self._transitions, f"{event} in {before}"
        self.state, self._action = self._transitions[before, event]
        if self._action is DELIVER:
            return self._take(self._given)
        return self._action


def event_of(failure: CdcdError, *, too_large: bool = False, silent: bool = False) -> Event:
    """What a failure is to the machine: `too_large`, a refusal for size; `silent`, nothing was heard in time."""
    if too_large:
        return Event.TOO_LARGE
    if isinstance(failure, FatalError):
        return Event.REFUSED
    return Event.SILENT if silent else Event.FAILED


def error_of(end: End, failure: CdcdError | None) -> CdcdError:
    """What a call raises that ends so, after `failure`."""
    if end is End.SUPERSEDED:
        return FencedError(
            "Another instance took over while the broker was away from this one.",
            hint="Nothing is lost. Start this one again: it stands by.",
        )
    if end is End.CHANGED:
        return TransientError(
            "The checkpoint changed while the broker was away.",
            hint="Another instance wrote it; starting over from there.",
        )
    assert failure is not None, "a call that fails says why"
    if end is End.START_OVER:
        return TransientError(
            f"A Kafka transaction failed after parts of it were sent: {failure.message}",
            hint=f"Nothing of it is visible; cdcd starts over from the checkpoint. {failure.hint}",
        )
    return failure
