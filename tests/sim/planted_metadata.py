"""Bugs of transaction metadata."""

from typing import Any

from cdcd.core.engine.queue import BatchQueue
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.transactions.position import Counts
from tests.sim.planted_stream import PlantedStream


class ForgetsCounts(BatchQueue):
    """The position inside a transaction does not say how many records it had."""

    def __init__(self, *args: Any, **limits: Any) -> None:
        super().__init__(*args, **{**limits, "counts": lambda: ()})


class CutsOffTheEnd(BatchQueue):
    """END may be in a part of its own, behind which a restart writes it once more."""

    def append(self, records: list[Record], size: int) -> None:
        self.enqueue(records, size, 0)


class BeginsAgain(TransactionMetadata):
    """A restart inside a transaction writes BEGIN once more."""

    def restore(self, counts: Counts) -> None:
        super().restore(counts)
        self._is_begun = False


class BeginsAgainEncoder(PlantedStream):
    """An encoder with `BeginsAgain`."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        assert self.metadata is not None
        self.format.metadata = BeginsAgain(settings, self.metadata.topic)
