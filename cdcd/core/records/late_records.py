"""Records whose values are made when they are handed over to Kafka, so that memory holds only parts until then."""

from collections.abc import Callable

from cdcd.core.records.encoder import Record

Produce = Callable[..., object]
"""Signature of `confluent_kafka.Producer.produce`, which takes topic, value, key and `headers`."""


class LateRecords:
    """Consecutive records of one topic, whose values are made when they are handed over.

    Attributes:
        count: number of records.
        size: bytes of all keys and values together.
        largest: bytes of key and value of the largest record.
        handed_over: number of records that `produce` has taken.
        is_forgotten: whether `forget` was called.
    """

    def __init__(self, topic: str, count: int, size: int, largest: int) -> None:
        self.topic = topic
        self.count = count
        self.size = size
        self.largest = largest
        self.handed_over = 0
        self.is_forgotten = False

    def records(self) -> list[Record]:
        """Return all records."""
        raise NotImplementedError

    def hand_over(self, produce: Produce, done: int) -> None:
        """Pass the records from index `done` on to `produce`.

        If `produce` raises, `handed_over` is the index of the record that it refused.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Free what the records would be made of, because they are never sent again."""
        self.is_forgotten = True
        self._forget()

    def _forget(self) -> None:
        raise NotImplementedError
