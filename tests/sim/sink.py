"""`cdcd.kafka.sink` without librdkafka: the same decisions, between which others may move."""

from collections.abc import Callable, Generator, Iterator
from random import Random

from cdcd.errors import FencedError, TransientError
from cdcd.transactions.batches import Batch
from cdcd.transactions.position import Checkpoint
from tests.sim.broker import Broker, BrokerError, EpochFencedError

BACKOFF_TICKS_MAX = 16


class Sink:
    """The only writer to the simulated Kafka; each `yield` is a moment in which something else may happen."""

    def __init__(
        self, broker: Broker, rng: Random, prove_ownership: Callable[[], None], *, exactly_once: bool
    ) -> None:
        self.broker = broker
        self.rng = rng
        self.exactly_once = exactly_once
        self._prove_ownership = prove_ownership
        self._epoch: int | None = None
        self._committed: Checkpoint | None = None

    def open(self) -> Generator[None, None, Checkpoint | None]:
        try:
            yield from self._open_producer()
        except BrokerError as error:
            self._epoch = None
            raise TransientError("the broker does not answer") from error
        return self._committed

    def deliver(self, batch: Batch, checkpoint: Checkpoint) -> Iterator[None]:
        """Ends when the broker holds the batch and the checkpoint."""
        wait = 1
        while True:
            try:
                if self._epoch is None:
                    before = self._committed
                    yield from self._open_producer()
                    if self._committed == checkpoint:
                        return
                    if self.exactly_once and self._committed != before:
                        raise TransientError("the checkpoint changed while the broker was away")
                assert self._epoch is not None
                yield from self._send(self._epoch, batch, checkpoint)
            except BrokerError:
                self._failed()
                for _ in range(wait):
                    yield
                wait = min(2 * wait, BACKOFF_TICKS_MAX)
            except EpochFencedError as error:
                raise FencedError("another producer has this transactional.id") from error
            else:
                self._committed = checkpoint
                return

    def _failed(self) -> None:
        """Whatever failed: the next attempt is with a new producer."""
        self._epoch = None

    def _open_producer(self) -> Iterator[None]:
        self._prove_ownership()
        yield
        if self.exactly_once:
            yield from self.broker.initialize()
        self._epoch = self.broker.epoch
        yield
        yield from self.broker.read_checkpoint()
        read = self.broker.checkpoint
        self._committed = None if read is None else Checkpoint.decode(read, "the checkpoint topic")

    def _send(self, epoch: int, batch: Batch, checkpoint: Checkpoint) -> Iterator[None]:
        records = batch.records
        broker = self.broker
        if not self.exactly_once:
            yield from broker.write(records, None)
            yield from broker.write([], checkpoint.encode())
            return
        broker.begin(epoch)
        half = int(self.rng.random() * (len(records) + 1))
        yield from broker.produce(epoch, records[:half], None)
        yield from broker.produce(epoch, records[half:], checkpoint.encode())
        yield from broker.commit(epoch)
