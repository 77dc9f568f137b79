"""Mistakes that the trial must find: those of the simulator, put into the daemon's own process, and two
more (`keys_ignored`, `checkpoint_forgotten`).

A mistake is put in by replacing names of modules before the daemon starts (`entry.py`). Each is looked for with the
faults and the configuration that bring it about.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from cdcd.adapters.kafka import producer, sink
from cdcd.adapters.kafka.transaction_state import (
    EXACTLY_ONCE,
    Action,
    SinkState,
    Step,
    TransactionEvent,
    Transitions,
)
from cdcd.core.engine import building
from cdcd.core.engine.building import build_engine
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.transactions.position import Position
from cdcd.daemon import startup, wiring
from tests.sim import planted_sink, planted_stream
from tests.sim.planted import made_of
from tests.sim.session import makers_of


@dataclass(frozen=True)
class Mistake:
    """What is put in, and the conditions under which it is looked for."""

    put_in: Callable[[], None]
    faults: Sequence[str]
    transaction: Mapping[str, int] = field(default_factory=dict)
    """Keys of `kafka.transaction`."""
    bulk: float = 0.04


def _set(module: object, name: str, value: object) -> None:
    assert hasattr(module, name), f"{module} has no {name}"
    setattr(module, name, value)


def _in_engine(**parts: Any) -> Callable[[], None]:
    def put_in() -> None:
        for name, part in made_of(**parts).items():
            for module in makers_of(name):
                _set(module, name, part)

    return put_in


def _in_start(module: object, name: str, part: object) -> Callable[[], None]:
    return lambda: _set(module, name, part)


def _in_sink(transitions: Transitions) -> Callable[[], None]:
    return lambda: _set(sink, "EXACTLY_ONCE", {**EXACTLY_ONCE, **transitions})


def _in_position(planted: type[Position]) -> Callable[[], None]:
    def build_planted(start: SessionStart, *arguments: Any) -> Engine:
        at = start.checkpoint.position
        position = planted(at.commit_lsn, at.end_lsn, at.events_done)
        return build_engine(
            replace(start, checkpoint=replace(start.checkpoint, position=position)), *arguments
        )

    return lambda: _set(wiring, "build_engine", build_planted)


def _without_keys() -> None:
    """A record goes to any partition, whatever its key is."""
    properties = producer.producer_properties

    def random_partitions(*arguments: Any, **options: Any) -> dict[str, Any]:
        return {**properties(*arguments, **options), "partitioner": "random"}

    for module in (producer, sink):
        _set(module, "producer_properties", random_partitions)


def _assembler(part: Any) -> Callable[[], None]:
    return _in_start(building, "Assembler", planted_stream.assembler_with(part))


AWAY: Final = ("kafka links cut", "broker frozen")
KILLED: Final = ("daemon killed",)
SLOW: Final = ("kafka links slow",)

PARTS: Final[Mapping[str, int]] = MappingProxyType({"bytes_max": 4096})
"""Large transactions are handed over in parts."""

CUT: Final[Mapping[str, int]] = MappingProxyType({"bytes_max": 4096, "whole_bytes_max": 0})
"""Large transactions are several of Kafka's."""

IMPATIENT: Final[Mapping[str, int]] = MappingProxyType({**PARTS, "timeout_s": 3})
"""A link that is cut for some seconds fails the transaction, instead of delaying it."""

STREAMED: Final = 0.3

FORGOTTEN: Final[Transitions] = {
    (SinkState.READY, TransactionEvent.LAST): (
        SinkState.WHOLE,
        Action((Step.LEASE, Step.BEGIN, Step.HAND_OVER, Step.COMMIT)),
    )
}
"""Records without the checkpoint that covers them."""

PLANTED: Final[Mapping[str, Mistake]] = MappingProxyType(
    {
        "confirm_on_receive": Mistake(_in_engine(feedback=planted_stream.ConfirmsOnReceive), AWAY),
        "ack_before_delivery": Mistake(_in_start(startup, "Ledger", planted_stream.AcksWhenSent), AWAY),
        "entry_opened_late": Mistake(_in_start(startup, "Ledger", planted_stream.OpensLate), AWAY),
        "drop_all_on_subtransaction_abort": Mistake(
            _assembler(planted_stream.DropsAllOnSubtransactionAbort), KILLED, bulk=STREAMED
        ),
        "aborted_subtransaction_kept": Mistake(
            _assembler(planted_stream.KeepsAbortedSubtransactions), KILLED, bulk=STREAMED
        ),
        "skip_one_too_many": Mistake(
            _in_position(planted_stream.SkipsOneTooMany), (*KILLED, *SLOW), CUT, STREAMED
        ),
        "skip_one_too_few": Mistake(
            _in_position(planted_stream.SkipsOneTooFew), (*KILLED, *SLOW), CUT, STREAMED
        ),
        "cut_not_recorded": Mistake(
            _in_engine(queue=planted_stream.ForgetsWhatIsDone), (*KILLED, *SLOW), CUT, STREAMED
        ),
        "unknown_taken_for_failed": Mistake(
            _in_sink(planted_sink.TakesUnknownForFailed.exactly), (*AWAY, *SLOW)
        ),
        "checkpoint_before_records": Mistake(
            _in_sink(planted_sink.WritesTheCheckpointFirst.exactly), (*KILLED, *SLOW)
        ),
        "checkpoint_forgotten": Mistake(_in_sink(FORGOTTEN), KILLED),
        "part_committed": Mistake(
            _in_sink(planted_sink.CommitsParts.exactly), (*KILLED, *SLOW), PARTS, STREAMED
        ),
        "last_part_sent_again": Mistake(
            _in_sink(planted_sink.SendsTheLastPartAgain.exactly), AWAY, IMPATIENT, STREAMED
        ),
        "first_part_forgotten": Mistake(
            _in_sink(planted_sink.ForgetsTheFirstPart.exactly), AWAY, IMPATIENT, STREAMED
        ),
        "keys_ignored": Mistake(_without_keys, ("leaders moved",)),
    }
)
