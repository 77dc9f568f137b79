"""A Kafka cluster as one transactional producer sees it (KIP-98), and what a read_committed reader sees.

A producer's transaction is known to the coordinator by the `transactional.id`; `init_transactions` raises the epoch,
which fences older producers, and ends what they left open. An answer that is lost leaves the producer in the dark: its
EndTxn may have been carried out, or lost, or be still on its way (KAFKA-17754).

A broker that dies after it has acknowledged a commit, or an abort, may come back and not tell the partitions: the
transaction hangs (KIP-664). Readers see nothing of a hanging transaction until the next commit, which ends it as
committed. If the sink cannot know its outcome, the partitions hear of the outcome at last. Kafka also aborts a hanging
transaction together with a later one, which this model leaves out: cdcd cannot make it good.

A topic may refuse the marker that ends a transaction. The coordinator does not repeat the marker, so it never ends the
transaction, and answers nothing that begins another one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final
from zlib import crc32

from cdcd.core.errors import TransientError
from tests.sim.expected import PromiseBrokenError, Record
from tests.sim.oracle import Oracle
from tests.sim.settings import Settings

REFUSES: Final = 3
"""One topic of so many refuses markers, if any do."""


class BrokerError(Exception):
    """An answer that says no, or no answer."""


class BrokerSilentError(BrokerError):
    """No answer, and nothing was done."""


class EpochFencedError(Exception):
    """The producer's epoch is not the newest."""


@dataclass(frozen=True, slots=True)
class Hanging:
    """A transaction that has ended, and whose end was not written to the partitions.

    `records`: what a commit makes visible. Those of a transaction that is committed count as delivered already.
    """

    records: list[Record]
    checkpoint: bytes
    committed: bool


class Broker:
    """The log, the checkpoint topic, and the transaction coordinator."""

    def __init__(self, settings: Settings, rng: Random, oracle: Oracle) -> None:
        self.settings = settings
        self.rng = rng
        self.oracle = oracle
        self.away = False
        self.healthy = False
        self.epoch = 0
        self.checkpoint: bytes | None = None
        self._open: list[Record] | None = None
        self._open_checkpoint: bytes | None = None
        self._late: deque[int] = deque()
        self._hanging: Hanging | None = None
        self._never_ends = False
        """A topic has refused the marker of a transaction."""
        self.dies: Callable[[], None] = lambda: None
        """Takes the broker away for a while."""

    def step(self) -> None:
        """A late EndTxn arrives."""
        if self._late and self.rng.random() < 0.2:
            self._end(self._late.popleft())

    @property
    def newest(self) -> bytes | None:
        """The last checkpoint that was written, whatever became of its transaction."""
        return self._open_checkpoint or self.hidden or self.checkpoint

    @property
    def hidden(self) -> bytes | None:
        """The checkpoint of a hanging transaction."""
        return None if self._hanging is None else self._hanging.checkpoint

    @property
    def acknowledged(self) -> bytes | None:
        """The last checkpoint whose commit was acknowledged, or must be taken for that."""
        hanging = self._hanging
        return hanging.checkpoint if hanging is not None and hanging.committed else self.checkpoint

    def abort_hanging(self) -> None:
        """It ends in every partition, and readers never see its records. PromiseBrokenError: it was committed."""
        if self._hanging is not None and self._hanging.committed:
            raise PromiseBrokenError("a transaction is aborted whose commit was acknowledged")
        self._hanging = None

    def commit_hanging(self) -> None:
        """A later commit ends what hangs, as committed."""
        if self._hanging is not None:
            hanging, self._hanging = self._hanging, None
            self.oracle.append(hanging.records)
            self.checkpoint = hanging.checkpoint

    def tell_partitions(self) -> None:
        """The partitions hear at last what became of it."""
        if self._hanging is not None and self._hanging.committed:
            self.commit_hanging()
        else:
            self.abort_hanging()

    def refuses_markers(self, topic: str) -> bool:
        """Whether the topic's settings make it refuse markers, until somebody mends all topics."""
        seen = self.oracle.aside
        is_mended = seen is None or seen.mended
        return self.settings.refuses_markers and not is_mended and crc32(topic.encode()) % REFUSES == 0

    def _write_markers(self) -> None:
        """The coordinator tells all partitions of the open transaction that it has ended."""
        topics = {record[0] for record in self._open or ()}
        self._never_ends = self._never_ends or any(map(self.refuses_markers, topics))

    def _await_the_end(self) -> None:
        if self._never_ends:
            raise BrokerSilentError

    def initialize(self) -> Iterator[None]:
        """init_transactions: fence, and end what is open. Afterwards `epoch` is the caller's."""
        yield from self._answer()
        self._await_the_end()
        self._write_markers()
        self.epoch += 1
        if self._open is not None and self._hangs():
            self._hang(committed=False)
        self._open = None
        self._open_checkpoint = None

    def begin(self, epoch: int) -> None:
        """Only the producer knows of it until something is produced."""
        if epoch == self.epoch:
            self._open = None
            self._open_checkpoint = None

    def produce(self, epoch: int, records: list[Record], checkpoint: bytes | None) -> Iterator[None]:
        """Some of the records, then perhaps a failure."""
        yield from self._answer()
        self._check(epoch)
        if self._open is None:
            self._await_the_end()
            self._open = []
        self._open += records
        if checkpoint is not None:
            self._open_checkpoint = checkpoint

    def commit(self, epoch: int) -> Iterator[None]:
        """commit_transaction: returns when it is committed, raises when it is not, or when nobody knows."""
        yield from self._answer()
        self._check(epoch)
        if not self.healthy and self.rng.random() < self.settings.p_unknown:
            fate = self.rng.random()
            if fate < 0.4:
                self._end(epoch)
            elif fate < 0.8:
                self._late.append(epoch)
            raise BrokerError
        if self._hangs():
            self._hang(committed=True)
        else:
            self._end(epoch)

    def _hangs(self) -> bool:
        """Whether the broker dies now, after the outcome is decided."""
        if self.healthy or not self.settings.p_hang or self._hanging is not None:
            return False
        return self._open_checkpoint is not None and self.rng.random() < self.settings.p_hang

    def _hang(self, *, committed: bool) -> None:
        assert self._open is not None
        assert self._open_checkpoint is not None
        if committed:
            self.oracle.append(self._open)
        self._hanging = Hanging([] if committed else self._open, self._open_checkpoint, committed)
        self._open = None
        self._open_checkpoint = None
        self.dies()

    def abort(self, epoch: int) -> None:
        """abort_transaction: it arrives or, with the broker away, it does not; a failure counts for nothing."""
        if epoch == self.epoch and not self.away:
            self._write_markers()
            self._open = None
            self._open_checkpoint = None

    def write(self, records: list[Record], checkpoint: bytes | None) -> Iterator[None]:
        """Without transactions: each record is visible at once, also when the answer is lost."""
        yield from self._answer()
        if not self.healthy and self.rng.random() < self.settings.p_unknown:
            self.oracle.append(records[: int(self.rng.random() * (len(records) + 1))])
            raise BrokerError
        self.oracle.append(records)
        if checkpoint is not None:
            self.checkpoint = checkpoint

    def forget(self) -> None:
        """A tombstone over the checkpoint, under the pipeline's transactional.id."""
        if self.away:
            raise TransientError("the broker does not answer")
        self.epoch += 1
        self._open = []
        self._open_checkpoint = None
        self._end(self.epoch)
        self.checkpoint = None

    def read_checkpoint(self) -> Iterator[None]:
        """Afterwards `checkpoint` is the last committed one."""
        yield from self._answer()

    def _answer(self) -> Iterator[None]:
        """How long an answer takes, and whether it comes."""
        if self.healthy:
            return
        settings, rng = self.settings, self.rng
        if rng.random() < settings.p_hold:
            for _ in range(int(rng.random() * 20)):
                yield
        if self.away:
            raise BrokerSilentError
        if rng.random() < settings.p_reject:
            raise BrokerError

    def _check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise EpochFencedError

    def _end(self, epoch: int) -> None:
        if epoch != self.epoch or self._open is None:
            return
        self._write_markers()
        records, checkpoint = self._open, self._open_checkpoint
        self._open = None
        self._open_checkpoint = None
        self.commit_hanging()
        self.oracle.append(records)
        if checkpoint is not None:
            self.checkpoint = checkpoint
