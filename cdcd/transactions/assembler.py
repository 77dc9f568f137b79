"""Stage 3: messages -> transactions, committed ones only, in commit order.

The rule: what leaves here is committed, complete and in the order of the commits; what was rolled back, wholly or in
part, never leaves.

Here are the states of the stream, and which message may come in which of them: the table `TRANSITIONS`, from which
ARCHITECTURE.md's diagram is drawn. What a message does is in two classes that the assembler is made of: `Commits`
(normal transactions, the order, the ledger) and, on top of it, `OpenTransactions` (streamed and prepared ones).
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final

from cdcd.errors import ProtocolError
from cdcd.protocol.frames import XLOG_HEADER, Keepalive, read_frame
from cdcd.protocol.lsn import Lsn
from cdcd.transactions.commits import REPORT
from cdcd.transactions.drafts import EVENTS, Kept
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.open_transactions import ROWS, OpenTransactions
from cdcd.transactions.position import Position
from cdcd.transactions.spool import Spool
from cdcd.transactions.steps import Changes, Heard, Step


class State(Enum):
    """Where in the stream of messages we are."""

    IDLE = "between transactions"
    TRANSACTION = "Begin … Commit"
    PREPARE = "Begin Prepare … Prepare"
    STREAM = "Stream Start … Stream Stop"


_XLOG_DATA: Final = 0x77  # w


class Assembler(OpenTransactions):
    """Takes CopyData frames as they come, gives steps.

    The caller iterates over what `receive` gives to its end before it calls again, and carries the tickets of
    `Closed` and `Standalone` to `ledger.ack` when the broker holds what they stand for. After a lost connection
    it throws the assembler away: the server sends everything after the flushed position again, and never an
    abort for what a crash ended.

    Args:
        ledger: gets an entry for each commit, and each undecided prepare, when it is decoded.
        spool: keeps what is not decided; emptied by `close`.
        position: what the checkpoint covers; transactions before it are skipped.
        abort_info: Stream Abort carries LSN and time (protocol 4 with `streaming=parallel`).
    """

    def __init__(self, ledger: Ledger, spool: Spool, position: Position, *, abort_info: bool = False) -> None:
        super().__init__(ledger, spool, position, abort_info)
        self._at = _PLACES[State.IDLE]

    def receive(self, frames: list[bytes]) -> Iterator[Step]:
        """Steps that follow from `frames`, lazily: a replayed transaction may be larger than memory.

        Raises:
            ProtocolError: a message is malformed, or out of place.
            PositionError: a prepared transaction is committed whose changes were never received.
            UndecidableMessageError: start again without streaming.
            LimitError: the spool is full.
        """
        run: list[Kept] = []
        kept: list[Kept] = []
        for frame in frames:
            if len(frame) <= XLOG_HEADER or frame[0] != _XLOG_DATA:
                message = read_frame(frame)
                if not isinstance(message, Keepalive):
                    raise ProtocolError("XLogData without a message.", hint=REPORT)
                self._ledger.hear(message.wal_end)
                yield Heard(message.wal_end, message.reply_requested, self._at.is_idle)
                continue
            tag = frame[XLOG_HEADER]
            at = self._at
            if at.in_transaction and tag in EVENTS:
                if self._skip == 0:
                    run.append(frame)
                elif self._skip > 0:
                    self._skip -= 1
                continue
            if at.in_stream and tag in ROWS:
                kept.append(frame)
                continue
            if run:
                yield Changes(run, False)
                run = []
            if kept:
                yield from self._keep(kept)
                kept = []
            handle = at.handlers.get(tag)
            if handle is None:
                raise ProtocolError(
                    f"Message {chr(tag)!r} at {Lsn(int.from_bytes(frame[1:9], 'big'))} is out of place in the "
                    f"state {at.state.name} ({at.state.value}).",
                    hint=REPORT,
                )
            self._at = at.next[tag]
            yield from handle(self, frame)
        if run:
            yield Changes(run, False)
        if kept:
            yield from self._keep(kept)


Handler = Callable[[Assembler, bytes], Iterable[Step]]


class _Place:
    """A state, and by tag what the messages in it do and where they lead: the table, as it is looked into."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.is_idle = state is State.IDLE
        self.in_transaction = state is State.TRANSACTION
        self.in_stream = state is State.STREAM
        self.handlers: dict[int, Handler] = {}
        self.next: dict[int, _Place] = {}


def _places(transitions: dict[tuple[State, int], tuple[State, Handler]]) -> dict[State, _Place]:
    places = {state: _Place(state) for state in State}
    for (state, tag), (to, handle) in transitions.items():
        places[state].handlers[tag] = handle
        places[state].next[tag] = places[to]
    return places


def _table(
    rows: dict[State, dict[str, tuple[State, Handler]]],
) -> dict[tuple[State, int], tuple[State, Handler]]:
    return {
        (state, tag): to
        for state, cells in rows.items()
        for tags, to in cells.items()
        for tag in tags.encode()
    }


TRANSITIONS: Final = _table(
    {
        State.IDLE: {
            "B": (State.TRANSACTION, Assembler._begin),
            "b": (State.PREPARE, Assembler._begin_prepare),
            "S": (State.STREAM, Assembler._stream_start),
            "c": (State.IDLE, Assembler._stream_commit),
            "A": (State.IDLE, Assembler._stream_abort),
            "p": (State.IDLE, Assembler._stream_prepare),
            "P": (State.IDLE, Assembler._prepare_alone),
            "K": (State.IDLE, Assembler._commit_prepared),
            "r": (State.IDLE, Assembler._rollback_prepared),
            "M": (State.IDLE, Assembler._standalone),
        },
        State.TRANSACTION: {
            "RY": (State.TRANSACTION, Assembler._describe),
            "O": (State.TRANSACTION, Assembler._originate),
            "C": (State.IDLE, Assembler._commit),
        },
        State.PREPARE: {
            "RIUDTMYO": (State.PREPARE, Assembler._prepare_keep),
            "P": (State.IDLE, Assembler._prepare),
        },
        State.STREAM: {
            "RIUDTMYO": (State.STREAM, Assembler._stream_keep),
            "E": (State.IDLE, Assembler._stream_stop),
        },
    }
)
"""`(state, tag) -> (state, handler)`. In TRANSACTION the tags in `EVENTS` stay there, and are passed on as they are."""


_PLACES: Final = _places(TRANSITIONS)
