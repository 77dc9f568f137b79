"""Records that are put together only when they are handed over to Kafka."""

from collections.abc import Callable

from cdcd.core.records.encoder import Record

Produce = Callable[..., object]
"""`confluent_kafka.Producer.produce`: topic, value and key, and `headers`."""


class LateRecords:
    """Records of one topic that follow each other, and whose values are made when they are handed over.

    Attributes:
        count: how many records they are.
        size: bytes of all keys and values.
        largest: bytes of the key and the value of the largest one.
        handed_over: how many of them `produce` has taken.
        is_forgotten: `forget` was called.
    """

    def __init__(self, topic: str, count: int, size: int, largest: int) -> None:
        self.topic = topic
        self.count = count
        self.size = size
        self.largest = largest
        self.handed_over = 0
        self.is_forgotten = False

    def records(self) -> list[Record]:
        """All of them."""
        raise NotImplementedError

    def hand_over(self, produce: Produce, done: int) -> None:
        """Give `produce` the records from number `done` on.

        If `produce` raises, `handed_over` is the number of the record that it refused.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Free what the records are made of. They are never sent again."""
        self.is_forgotten = True
        self._forget()

    def _forget(self) -> None:
        raise NotImplementedError
