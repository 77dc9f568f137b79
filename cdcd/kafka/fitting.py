"""What to do about a request or a record that the broker refuses for its size.

librdkafka does not split a request that the broker refuses, and the broker's limit (`max.message.bytes`) is for the
request's whole record batch, compressed. So a record that is too large by itself is replaced (`kafka.oversized`); where
none is found that could be, the requests are made smaller, down to one record each.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError

from cdcd.engine.queue import Batch
from cdcd.kafka.oversized import Oversized, TooLarge
from cdcd.kafka.producer import BATCH_SIZE, SinkSettings

SHRINK: Final = 4
SMALLEST_BATCH: Final = 16_384


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that was not delivered; `local`: librdkafka refused it before it was sent."""

    error: KafkaError
    topic: str
    key: bytes | None
    value: bytes | None
    local: bool

    @property
    def is_too_large(self) -> bool:
        return bool(self.error.code() == KafkaError.MSG_SIZE_TOO_LARGE)

    def __str__(self) -> str:
        size = len(self.key or b"") + len(self.value or b"")
        return f"A record of {size} bytes for topic {self.topic} with key {_shorten(self.key)}"


@dataclass(slots=True)
class SizeLimits:
    """What the brokers have refused for its size.

    It outlives a sink: where a refusal is met after parts of a transaction were let go, the next session sends all of
    the transaction again, and must not meet the same refusal again.
    """

    batch_size: int | None = None
    """librdkafka's `batch.size` from now on, in bytes, 0 for one record in a request; None: what the settings say."""
    records: set[TooLarge] = field(default_factory=set)
    """Records that are replaced before they are sent, until the transaction that holds them is committed."""


class Fitting:
    """Learns from refusals, by the policy `oversized`, and keeps what it learned in `limits`."""

    def __init__(self, settings: SinkSettings, oversized: Oversized, limits: SizeLimits) -> None:
        self._settings = settings
        self._oversized = oversized
        self._limits = limits

    @property
    def batch_size(self) -> int:
        """librdkafka's `batch.size` for a new producer, or 0 for one record in a request."""
        size = self._limits.batch_size
        return self._settings.batch_size if size is None else size

    def prepare(self, batch: Batch) -> None:
        """Replace the records that were refused before. Raises LimitError: a claim-check file can not be written."""
        if self._limits.records:
            self._oversized.replace(batch, self._limits.records)

    def committed(self) -> None:
        """What was refused is delivered in another form."""
        self._limits.records.clear()

    def replace_here(self, batch: Batch, error: KafkaError) -> bool:
        """Replace the record that librdkafka refuses before it is sent, which leaves its producer as it was."""
        topic, key, value, _ = batch.records[batch.handed_over]
        if error.code() != KafkaError.MSG_SIZE_TOO_LARGE or value is None:
            return False
        return self._oversized.replace(batch, {TooLarge.of(topic, key, value)})

    def learn(self, failed: FailedRecord, sent: Iterable[Batch]) -> FailedRecord | None:
        """After the refusal of `failed`: make requests smaller, or have a record replaced when all is sent again.

        `sent`: the batches that may lie in the request that was refused. Returns the record for which neither helps.
        """
        if self.batch_size and not failed.local:
            found = self._find(failed, sent)
            if found is None:
                size = self.batch_size
                smaller = BATCH_SIZE if size > BATCH_SIZE else size // SHRINK
                self._limits.batch_size = smaller if smaller >= SMALLEST_BATCH else 0
                return None
            failed = found
        if failed.local or failed.value is None or not self._oversized.takes(failed.topic, failed.value):
            return failed
        record = TooLarge.of(failed.topic, failed.key, failed.value)
        if record in self._limits.records:
            return failed
        self._limits.records.add(record)
        return None

    def _find(self, failed: FailedRecord, sent: Iterable[Batch]) -> FailedRecord | None:
        """A record that is too large by itself. One for the dead letters is large, and is for another topic."""
        limit = self._settings.record_bytes_max
        for batch in sent:
            for topic, key, value, _ in batch.records:
                if topic == failed.topic and len(key or b"") + len(value or b"") > limit:
                    return FailedRecord(failed.error, topic, key, value, local=False)
        return None


def _shorten(key: bytes | None) -> str:
    text = "none" if key is None else key.decode(errors="replace")
    return text if len(text) <= 200 else f"{text[:200]}…"
