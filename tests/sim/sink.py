"""`cdcd.adapters.kafka.transaction_state` against the simulated broker; other actors may act between two steps."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from operator import methodcaller
from random import Random
from typing import ClassVar, Final

from cdcd.adapters.kafka.outage import is_acknowledged
from cdcd.adapters.kafka.transaction_state import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Action,
    CallEnd,
    Step,
    TransactionEvent,
    TransactionState,
    Transitions,
    error_of,
    event_of,
)
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords, Judging
from cdcd.core.errors import CdcdError, FencedError, TransientError
from cdcd.core.records.encoder import HEADER_WATERMARK
from cdcd.core.records.late_records import Produce
from cdcd.core.retry import Backoff
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask
from cdcd.core.transactions.position import Position
from tests.sim.broker import Broker, BrokerError, BrokerSilentError, EpochFencedError
from tests.sim.expected import Record

BACKOFF_TICKS: Final = 1
BACKOFF_TICKS_MAX: Final = 16

PIPELINE: Final = "simulated"

KEY: Final = b"the pipeline's key"
"""Requests with a condition survive a restart if the pipeline has it."""

DEEP: Final = b"[" * 2000

AWAY: Final = "the broker does not answer"

KEEP_OVER: Final = 200
"""Bytes: some of the simulation's records are larger, and stay in a batch that was given away."""


def _append_to(records: list[Record]) -> Produce:
    def produce(
        topic: str, value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]] | None = None
    ) -> None:
        records.append((whole_topic(topic), key, value, headers))

    return produce


def _decoded(read: bytes | None) -> Checkpoint | None:
    return None if read is None else Checkpoint.decode(read, "the checkpoint topic", (KEY,), PIPELINE)


def counted(
    read: bytes | None, judging: Callable[[CheckpointRecords, str], Judging], *, has_key: bool
) -> Checkpoint | None:
    """The checkpoint that counts, where a stranger has written behind the pipeline's last record.

    He writes what is no checkpoint, and where the pipeline has a key, one that begins again and has a condition, too.
    """
    judged = judging(CheckpointRecords(PIPELINE, (KEY,) if has_key else ()), "checkpoint")
    if read is None:
        return None
    strangers = (_forged(read), DEEP) if has_key else (DEEP,)
    for offset, value in enumerate((read, *strangers)):
        judged.take(offset, PIPELINE.encode(), value)
    return judged.result()


def _forged(read: bytes) -> bytes:
    good = Checkpoint.decode(read, "the checkpoint topic")
    task = TableTask("public.none", request="forged", where="forged()")
    progress = (good.snapshot or Progress()).add([task])
    return replace(good, position=Position(), flushed_lsn=0, snapshot=progress).encode()


def _marks(batch: Batch) -> list[Record]:
    """The watermarks of the batch. A topic has one partition, which there is if somebody names it."""
    if batch.watermark is None:
        return []
    headers = [(HEADER_WATERMARK, b"%d" % batch.watermark.lsn)]
    return [(topic, None, None, list(headers)) for topic in batch.watermark.topics]


class Sink:
    """The only writer to the simulated Kafka; each `yield` is a moment in which something else may happen.

    `exactly` and `at_least` are the tables' entries that a planted bug replaces.
    """

    exactly: ClassVar[Transitions] = {}
    at_least: ClassVar[Transitions] = {}
    is_acknowledged = staticmethod(is_acknowledged)
    judging: ClassVar[type[Judging]] = Judging
    checks_markers: ClassVar[bool] = True
    """Topics that refuse the markers of transactions are found before the first record."""
    marks_first: ClassVar[bool] = False
    """Watermarks stand before the records of their batch, as a planted bug has it."""

    def __init__(
        self,
        broker: Broker,
        rng: Random,
        prove_ownership: Callable[[], None],
        *,
        exactly_once: bool,
        has_key: bool = True,
    ) -> None:
        self.has_key = has_key
        self.broker = broker
        self.rng = rng
        self._prove_ownership = prove_ownership
        table = {**EXACTLY_ONCE, **self.exactly} if exactly_once else {**AT_LEAST_ONCE, **self.at_least}
        self._state = TransactionState(table)
        self._exactly_once = exactly_once
        self._backoff = Backoff(BACKOFF_TICKS, BACKOFF_TICKS_MAX)
        self._epoch = 0
        self._batch: Batch | None = None
        self._checkpoint: Checkpoint | None = None
        self._found: Checkpoint | None = None
        self._told = 0
        self._sent: list[tuple[list[Record], bytes | None]] = []
        """What the producer of at least once has, and the broker has not acknowledged."""
        self._failure: CdcdError | None = None

    def open(self, told: int) -> Generator[None, None, Checkpoint | None]:
        self._told = told
        yield from self._carry_out(self._state.open())
        return self._state.committed

    def deliver(self, batch: Batch, checkpoint: Checkpoint) -> Iterator[None]:
        """Ends when the broker holds the batch and the checkpoint, or a part's transaction stays open."""
        self._batch, self._checkpoint = batch, checkpoint
        batch.handed_over = 0
        self._backoff.reset()
        yield from self._carry_out(self._state.deliver(checkpoint, closes=batch.closes))

    @property
    def outcome_unknown(self) -> bool:
        return self._state.outcome_unknown

    def close(self) -> Iterator[None]:
        yield from self._carry_out(self._state.close())

    def _carry_out(self, action: Action) -> Iterator[None]:
        while True:
            event = yield from self._attempt(action)
            if action.end is not None:
                break
            action = (
                self._state.done(self._found) if event is TransactionEvent.DONE else self._state.failed(event)
            )
        failure, self._failure = self._failure, None
        if action.end is not CallEnd.RETURN:
            raise error_of(action.end, failure)

    def _attempt(self, action: Action) -> Generator[None, None, TransactionEvent]:
        try:
            for step in action.steps:
                yield from STEPS[step](self)
        except CdcdError as error:
            self._failure = error
            return TransactionEvent.REFUSED
        except EpochFencedError:
            self._failure = FencedError("another producer has this transactional.id")
            return event_of(self._failure)
        except BrokerError as error:
            self._failure = TransientError(AWAY)
            return event_of(self._failure, silent=isinstance(error, BrokerSilentError))
        return TransactionEvent.DONE

    def _prove(self) -> Iterator[None]:
        self._prove_ownership()
        yield

    def _create(self) -> Iterator[None]:
        self._epoch = self.broker.epoch
        self._sent.clear()
        if self._batch is not None:
            self._batch.handed_over = 0
        yield

    def _fence(self) -> Iterator[None]:
        yield from self.broker.initialize()
        self._epoch = self.broker.epoch
        yield

    def _read(self) -> Iterator[None]:
        broker = self.broker
        yield from broker.read_checkpoint()
        if broker.hidden is not None:
            if not self.is_acknowledged(
                _decoded(broker.hidden),
                _decoded(broker.checkpoint),
                committed=self._state.committed,
                told=self._told,
            ):
                broker.tell_partitions()
                raise BrokerSilentError
            broker.begin(self._epoch)
            yield from broker.produce(self._epoch, [], broker.hidden)
            yield from broker.commit(self._epoch)
        self._found = counted(broker.checkpoint, self.judging, has_key=self.has_key)

    def _begin(self) -> Iterator[None]:
        self.broker.begin(self._epoch)
        yield from ()

    def _note(self) -> Iterator[None]:
        assert self._checkpoint is not None
        if self._exactly_once:
            yield from self.broker.produce(self._epoch, [], self._checkpoint.encode(KEY, PIPELINE))
        else:
            self._sent.append(([], self._checkpoint.encode(KEY, PIPELINE)))

    def _hand_over(self) -> Iterator[None]:
        assert self._batch is not None
        records: list[Record] = []
        self._batch.hand_over(_append_to(records))
        yield from self._give(records)

    def _give_away(self) -> Iterator[None]:
        assert self._batch is not None
        records: list[Record] = []
        self._batch.give_away(_append_to(records), KEEP_OVER)
        yield from self._give(records)

    def _give(self, records: list[Record]) -> Iterator[None]:
        assert self._batch is not None
        marks = _marks(self._batch)
        records = [*marks, *records] if self.marks_first else [*records, *marks]
        if not self._exactly_once:
            self._sent.append((records, None))
            return
        half = int(self.rng.random() * (len(records) + 1))
        yield from self.broker.produce(self._epoch, records[:half], None)
        yield from self.broker.produce(self._epoch, records[half:], None)

    def _release(self) -> Iterator[None]:
        yield

    def _flush(self) -> Iterator[None]:
        """An idempotent producer sends what is not acknowledged again, and the broker appends it once."""
        while self._sent:
            records, checkpoint = self._sent[0]
            yield from self.broker.write(records, checkpoint)
            del self._sent[0]

    def _commit(self) -> Iterator[None]:
        yield from self.broker.commit(self._epoch)

    def _pause(self) -> Iterator[None]:
        for _ in range(round(self._backoff.next(self.rng.random()))):
            yield

    def _abort(self) -> Iterator[None]:
        self.broker.abort(self._epoch)
        yield

    def _nothing(self) -> Iterator[None]:
        yield from ()


STEPS: Final[Mapping[Step, Callable[[Sink], Iterator[None]]]] = {
    Step.PROVE: methodcaller("_prove"),
    Step.CREATE: methodcaller("_create"),
    Step.FENCE: methodcaller("_fence"),
    Step.READ: methodcaller("_read"),
    Step.LEASE: methodcaller("_nothing"),
    Step.BEGIN: methodcaller("_begin"),
    Step.NOTE: methodcaller("_note"),
    Step.HAND_OVER: methodcaller("_hand_over"),
    Step.GIVE_AWAY: methodcaller("_give_away"),
    Step.RELEASE: methodcaller("_release"),
    Step.FLUSH: methodcaller("_flush"),
    Step.COMMIT: methodcaller("_commit"),
    Step.FIT: methodcaller("_nothing"),
    Step.PAUSE: methodcaller("_pause"),
    Step.ABORT: methodcaller("_abort"),
    Step.DRAIN: methodcaller("_nothing"),
    Step.DISCARD: methodcaller("_nothing"),
}
