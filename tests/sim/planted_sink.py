"""Bugs of the sink that the simulation must find: entries of its tables that say something else."""

from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

from cdcd.adapters.kafka.transaction_state import (
    DELIVER,
    OPEN_PLAIN,
    REOPEN,
    REOPEN_PLAIN,
    SEND_WHOLE,
    Action,
    SinkState,
    Step,
    TransactionEvent,
    Transitions,
)
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import Judging
from cdcd.core.errors import PositionError
from tests.sim.sink import PIPELINE, Sink


class KeepsTheProducer(Sink):
    """Goes on with the producer whose transaction's outcome is unknown."""

    exactly: ClassVar[Transitions] = {
        (state, event): (state, Action((Step.PAUSE, Step.BEGIN, Step.NOTE, Step.HAND_OVER, Step.COMMIT)))
        for state in (SinkState.WHOLE,)
        for event in (TransactionEvent.SILENT, TransactionEvent.FAILED)
    }

    def _begin(self) -> Iterator[None]:
        assert self._batch is not None
        self._batch.handed_over = 0
        return super()._begin()


class TakesUnknownForFailed(Sink):
    """Delivers again without a look at the checkpoint."""

    exactly: ClassVar[Transitions] = {
        (SinkState.REOPENING, found): (SinkState.READY, DELIVER)
        for found in (TransactionEvent.DELIVERED, TransactionEvent.CHANGED, TransactionEvent.UNCHANGED)
    }


class CommitsWhatHangs(Sink):
    """Takes every hidden checkpoint for a committed one."""

    is_acknowledged = staticmethod(lambda *_checkpoints, **_known: True)


class ChecksNoMarkers(Sink):
    """Writes to topics that refuse the markers of transactions."""

    checks_markers: ClassVar[bool] = False


class AbortsWhatHangs(Sink):
    """Takes every hidden checkpoint for one that was aborted."""

    def _read(self) -> Iterator[None]:
        self.broker.abort_hanging()
        return super()._read()


class TakesTheLast(Judging):
    """The last record that can be read counts, whoever wrote it."""

    def take(self, offset: int, _key: bytes | None, value: bytes | None, _transactional_id: str = "") -> None:
        assert value is not None
        with suppress(PositionError):
            self._latest = Checkpoint.decode(value, f"offset {offset}", self._records.keys, PIPELINE)


class CountsTheLastRecord(Sink):
    """A stranger's record counts if it stands behind the pipeline's."""

    judging = TakesTheLast


class DoesNotFence(Sink):
    """Takes over without shutting out the producer before it."""

    exactly: ClassVar[Transitions] = {
        (SinkState.CLOSED, TransactionEvent.OPEN): (SinkState.OPENING, OPEN_PLAIN),
        (SinkState.WHOLE, TransactionEvent.SILENT): (SinkState.REOPENING, REOPEN_PLAIN),
        (SinkState.WHOLE, TransactionEvent.FAILED): (SinkState.REOPENING, REOPEN_PLAIN),
    }


class WritesTheCheckpointFirst(Sink):
    """The checkpoint in a transaction of its own, before that of the records."""

    exactly: ClassVar[Transitions] = {
        (SinkState.READY, TransactionEvent.LAST): (
            SinkState.WHOLE,
            Action((Step.BEGIN, Step.NOTE, Step.COMMIT, Step.BEGIN, Step.HAND_OVER, Step.COMMIT)),
        )
    }


class CommitsParts(Sink):
    """A part of a larger transaction is committed by itself."""

    exactly: ClassVar[Transitions] = {
        (SinkState.READY, TransactionEvent.PART): (
            SinkState.FIRST,
            Action((Step.BEGIN, Step.HAND_OVER, Step.COMMIT)),
        ),
        (SinkState.OPEN, TransactionEvent.PART): (
            SinkState.LATER,
            Action((Step.BEGIN, Step.HAND_OVER, Step.COMMIT)),
        ),
        (SinkState.OPEN, TransactionEvent.LAST): (SinkState.LAST, SEND_WHOLE),
    }


class SendsTheLastPartAgain(Sink):
    """After a failure behind a part that was let go, only what is in hand is sent again."""

    exactly: ClassVar[Transitions] = {
        (state, event): (SinkState.REOPENING, REOPEN)
        for state in (SinkState.LATER, SinkState.LAST)
        for event in (TransactionEvent.SILENT, TransactionEvent.FAILED)
    }


class ForgetsTheFirstPart(Sink):
    """The records of the first part are forgotten as the producer takes them, though they may be sent again."""

    exactly: ClassVar[Transitions] = {
        (SinkState.READY, TransactionEvent.PART): (
            SinkState.FIRST,
            Action((Step.LEASE, Step.BEGIN, Step.GIVE_AWAY, Step.RELEASE)),
        )
    }


class NotesFirstAtLeastOnce(Sink):
    """Without Kafka transactions: the checkpoint goes before the records that it covers."""

    at_least: ClassVar[Transitions] = {
        (SinkState.READY, TransactionEvent.LAST): (SinkState.WHOLE, Action((Step.NOTE, Step.FLUSH))),
        (SinkState.WHOLE, TransactionEvent.DONE): (SinkState.NOTING, Action((Step.HAND_OVER, Step.FLUSH))),
    }
