"""What happens to a record that is too large for the broker, by a policy of the configuration (`kafka.oversized`), and
to a request that the broker refuses for its size.

`fail` stops the daemon with an error that names topic, size and LSN. `dead_letter` sends the whole record to a
topic for large records. `claim_check` writes the value to a file or an object (`claim_store.py`) and sends a small
record in its place with the address (Hohpe and Woolf, "Claim Check"). All policies keep the record's position in the
order.

Every client that may connect to the database may send a logical message of any size, and must not stop the daemon
with it. So if the policy is `fail`, or the topic for large records refuses the message too, a record without a
value replaces the message.

The broker's limit (`max.message.bytes`) is for the compressed record batch of a whole request, and librdkafka does not
split a request that the broker refuses. If one record alone exceeds the limit, cdcd replaces that record
(`kafka.oversized`). If no such record is found, cdcd makes the requests smaller, down to one record each.

Without Kafka transactions, readers would see records that follow a refused one. So a record that is larger than the
topic's limit before compression is sent alone (`Alone`): all earlier records are acknowledged before it, and the broker
answers before a later record is sent. Compression alone decides whether the broker accepts such a record.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from confluent_kafka import KafkaError

from cdcd.adapters.kafka.claim_store import ClaimStore
from cdcd.adapters.kafka.producer import BATCH_SIZE, SinkSettings
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.batch import Batch
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import (
    HEADER_DIGEST,
    HEADER_LETTER_OF,
    HEADER_SIZE,
    LOST_KEY_BYTES_MAX,
    Record,
    record_bytes,
)
from cdcd.core.records.late_records import Produce

Policy = Literal["fail", "dead_letter", "claim_check"]

CLAIM_CHECK: Final = "cdcd.claim_check"
"""Header of a record in place of a value that is stored elsewhere: the path of the file, or the URL of the object."""

_OWN_HEADERS: Final = frozenset({CLAIM_CHECK, HEADER_SIZE, HEADER_LETTER_OF})


@dataclass(frozen=True, slots=True)
class OversizedRecord:
    """A record that was refused for its size: topic, key and the size of its value.

    The value itself is not compared. If parts of its transaction were released, the next session encodes the record
    again, with another time of processing (`ts_ms`), which has as many bytes.
    """

    topic: str
    key: bytes | None
    value_bytes: int

    @classmethod
    def of(cls, topic: str, key: bytes | None, value: bytes) -> "OversizedRecord":
        return cls(whole_topic(topic), key, len(value))


@dataclass(frozen=True, slots=True)
class Oversized:
    """The policy for large records, and the destinations of these records.

    `claims`: the place for values, with the policy `claim_check`. `messages_topic`: topic of logical messages.
    `on_replaced` is called with each record's topic, the size of its value, and its new destination ("" if
    the value was dropped).
    """

    policy: Policy = "fail"
    dead_letter_topic: str = ""
    claims: ClaimStore | None = None
    on_replaced: Callable[[str, int, str], None] | None = None
    messages_topic: str = ""

    def prove(self) -> None:
        """Check that the policy can be followed, before it is needed.

        Raises:
            LimitError: the place for claim checks refuses a value.
            SinkUnavailableError: the store for claim checks does not answer.
        """
        if self.claims is not None:
            self.claims.prove()

    def takes(self, topic: str, value: bytes | None) -> bool:
        """Return True if a refused record of this topic may be replaced by a smaller one, or sent elsewhere."""
        if value is None:
            return False
        if whole_topic(topic) == self.dead_letter_topic:
            return bool(self.messages_topic)
        return self.policy != "fail" or topic == self.messages_topic

    def replace(self, batch: Batch, refused: Collection[OversizedRecord]) -> bool:
        """Replace each of the `refused` records by a smaller one or send it elsewhere; return False if nothing was
        replaced.

        Raises:
            LimitError: the place for claim checks refuses the value.
            SinkUnavailableError: the store for claim checks does not answer.
        """
        sizes = {one.value_bytes for one in refused}
        replaced = False
        for index, record in enumerate(batch.records):
            topic, key, value, _ = record
            if value is None or len(value) not in sizes or not self.takes(topic, value):
                continue
            if OversizedRecord.of(topic, key, value) in refused:
                instead = self._instead(record, value)
                if instead is not None:
                    batch.records[index] = instead
                    replaced = True
        return replaced

    def _instead(self, record: Record, value: bytes) -> Record | None:
        """Return the replacement of the record; None if it may not be replaced."""
        topic, _, _, headers = record
        named = dict(headers or ())
        if whole_topic(topic) == self.dead_letter_topic:
            origin = named.get(HEADER_LETTER_OF)
            return self._without_value(record, value) if origin == self.messages_topic.encode() else None
        if CLAIM_CHECK in named:
            # The record is already a replacement and has no smaller form: its key may be too large.
            return self._without_value(record, value) if topic == self.messages_topic else None
        if self.policy == "fail":
            return self._without_value(record, value)
        return self._by_policy(record, value)

    def _without_value(self, record: Record, value: bytes) -> Record:
        _, key, _, headers = record
        self._tell(self.messages_topic, value, "")
        digest = hashlib.sha256(value).hexdigest().encode()
        named = [(HEADER_SIZE, str(len(value)).encode()), (HEADER_DIGEST, digest)]
        kept = key if key is not None and len(key) <= LOST_KEY_BYTES_MAX else None
        return (
            self.messages_topic,
            kept,
            None,
            [*(one for one in headers or () if one[0] not in _OWN_HEADERS), *named],
        )

    def _by_policy(self, record: Record, value: bytes) -> Record:
        topic, key, _, headers = record
        headers = list(headers or ())
        if self.policy == "dead_letter":
            self._tell(topic, value, self.dead_letter_topic)
            size = str(len(value)).encode()
            return (
                self.dead_letter_topic,
                key,
                value,
                [*headers, (HEADER_LETTER_OF, whole_topic(topic).encode()), (HEADER_SIZE, size)],
            )
        assert self.claims is not None, "the policy claim_check has a place"
        digest = hashlib.sha256(value).hexdigest()
        address = self.claims.keep(value, digest)
        self._tell(topic, value, address)
        claim = {"claim_check": {self.claims.field: address, "size": len(value), "sha256": digest}}
        return (topic, key, json.dumps(claim).encode(), [*headers, (CLAIM_CHECK, address.encode())])

    def _tell(self, topic: str, value: bytes, to: str) -> None:
        if self.on_replaced is not None:
            self.on_replaced(whole_topic(topic), len(value), to)


SHRINK: Final = 4
"""Divisor of the request size at each refusal."""

_LSN: Final = re.compile(rb'"lsn":([0-9]{1,19})[,}]')
"""The LSN in the source block of a record in JSON."""

_SOURCE_BYTES_MAX: Final = 2_000
"""Bytes at the end of a record in which its source block is searched."""

SMALLEST_BATCH: Final = 16_384
"""Smallest size of a request in bytes. The next smaller request holds one record."""


BATCH_OVERHEAD: Final = 512
"""Bytes that a record batch of one record may have besides key, value and headers. The batch's own fields have 61
bytes (DefaultRecordBatch.java), and the lengths of the record's parts have some more."""


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that was not delivered.

    Attributes:
        local: librdkafka refused the record before sending it.
        size: bytes of key, value and headers together.
    """

    error: KafkaError
    topic: str
    key: bytes | None
    value: bytes | None
    local: bool
    size: int = 0

    @property
    def is_too_large(self) -> bool:
        return bool(self.error.code() == KafkaError.MSG_SIZE_TOO_LARGE)

    def __str__(self) -> str:
        size = self.size or record_bytes(self.key, self.value, None)
        key = "no key" if self.key is None else f"a key of {len(self.key)} bytes"
        return f"A record of {size} bytes for topic {self.topic} with {key}{_place_of(self.value)}"


@dataclass(slots=True)
class SizeLimits:
    """The sizes that brokers have refused.

    One object serves every sink of the process. If memory of a transaction's parts is already released at a
    refusal, the next session sends the whole transaction again, and must not meet the same refusal.
    """

    batch_size: int | None = None
    """librdkafka's `batch.size` in bytes from now on; 0: one record for each request; None: the configured size."""
    records: set[OversizedRecord] = field(default_factory=set)
    """Records to replace before they are sent, until the transaction that contains them is committed."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """The value of `max.message.bytes` of each topic for which it is known. The mapping is replaced, never changed,
    because two threads use it."""

    def learn_topics(self, found: Mapping[str, int]) -> None:
        """Remember `max.message.bytes` of these topics."""
        self.topics = {**self.topics, **found}

    def smallest(self) -> int | None:
        """Return the smallest known limit of a topic in bytes; None if no limit is known."""
        return min(self.topics.values(), default=None)

    def may_refuse(self, topic: str, size: int) -> bool:
        """Return whether the topic's limit refuses a record of this size, if compression does not make it smaller."""
        limit = self.topics.get(whole_topic(topic))
        return limit is not None and size + BATCH_OVERHEAD > limit


class FlushFirstError(Exception):
    """`Alone` produces the record after all earlier records are acknowledged."""


class Alone:
    """Replacement for `produce` that sends each record alone which its topic may refuse for its size.

    A call raises FlushFirstError if all earlier records must be acknowledged first. Then the caller waits for that,
    calls `flushed`, and repeats the call.
    """

    def __init__(self, produce: Produce, limits: SizeLimits) -> None:
        self._produce = produce
        self._limits = limits
        self._has_others = True
        self.is_unanswered = False
        """True if the last record was sent alone, and the broker may not have answered yet."""

    def flushed(self) -> None:
        """Note that all records are acknowledged."""
        self._has_others = self.is_unanswered = False

    def __call__(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Produce a record; see `confluent_kafka.Producer.produce`."""
        is_large = self._limits.may_refuse(topic, record_bytes(key, value, headers))
        if self.is_unanswered or (is_large and self._has_others):
            raise FlushFirstError
        if headers is None:
            self._produce(topic, value, key)
        else:
            self._produce(topic, value, key, headers=headers)
        self._has_others = True
        self.is_unanswered = is_large


class Fitting:
    """Applies the policy `oversized` after a refusal, and remembers the refusal in `limits`."""

    def __init__(self, settings: SinkSettings, oversized: Oversized, limits: SizeLimits) -> None:
        self._settings = settings
        self._oversized = oversized
        self._limits = limits

    @property
    def batch_size(self) -> int:
        """librdkafka's `batch.size` for a new producer; 0: one record for each request."""
        size = self._limits.batch_size
        return self._settings.batch_size if size is None else size

    def alone(self, batch: Batch, produce: Produce) -> Alone | None:
        """Return the replacement of `produce` for the batch; None if no record is larger than a topic's limit."""
        smallest = self._limits.smallest()
        if smallest is None or not batch.has_larger(smallest - BATCH_OVERHEAD):
            return None
        return Alone(produce, self._limits)

    def prepare(self, batch: Batch) -> None:
        """Replace the records that were refused before. Raises what `Oversized.replace` raises."""
        if self._limits.records:
            self._oversized.replace(batch, self._limits.records)

    def committed(self) -> None:
        """Forget the refused records: the broker now has their replacements."""
        self._limits.records.clear()

    def replace_here(self, batch: Batch, error: KafkaError) -> bool:
        """Replace the record that librdkafka has just refused, and return True if it was replaced.

        The record was not sent, so the producer can continue.
        """
        topic, key, value, _ = batch.records[batch.handed_over]
        if error.code() != KafkaError.MSG_SIZE_TOO_LARGE or value is None:
            return False
        return self._oversized.replace(batch, {OversizedRecord.of(topic, key, value)})

    def learn(self, failed: FailedRecord, sent: Iterable[Batch]) -> FailedRecord | None:
        """After the refusal of `failed`, plan to send everything again in smaller requests or with a record replaced.

        Args:
            sent: the batches whose records may have been in the refused request.

        Returns:
            The record that cannot be sent either way; None if there is no such record.
        """
        # A record that is larger than the topic's limit was sent alone.
        is_alone = self._limits.may_refuse(failed.topic, failed.size)
        if self.batch_size and not failed.local and not is_alone:
            found = self._find(failed, sent)
            if found is None:
                size = self.batch_size
                smaller = BATCH_SIZE if size > BATCH_SIZE else size // SHRINK
                self._limits.batch_size = smaller if smaller >= SMALLEST_BATCH else 0
                return None
            failed = found
        if failed.local or failed.value is None or not self._oversized.takes(failed.topic, failed.value):
            return failed
        record = OversizedRecord.of(failed.topic, failed.key, failed.value)
        if record in self._limits.records:
            return failed
        self._limits.records.add(record)
        return None

    def _find(self, failed: FailedRecord, sent: Iterable[Batch]) -> FailedRecord | None:
        """Find a record that alone exceeds the limit.

        Only the refused topic counts, because dead letters may be larger.
        """
        limit = self._settings.record_bytes_max
        for batch in sent:
            for topic, key, value, headers in batch.records:
                if whole_topic(topic) != failed.topic:
                    continue
                size = record_bytes(key, value, headers)
                if size > limit:
                    return FailedRecord(failed.error, topic, key, value, local=False, size=size)
        return None


def _place_of(value: bytes | None) -> str:
    """Return the LSN of the record's event if the record has one in JSON; a key or value is never shown."""
    found = None if value is None else _LSN.search(value, max(0, len(value) - _SOURCE_BYTES_MAX))
    return "" if found is None else f", of the change at {Lsn(int(found[1]))}"
