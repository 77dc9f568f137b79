"""Stage 3, second part: which description of each relation is in force.

The rule: of two descriptions of a relation the one that was received last is in force, also where it belongs to a
transaction that commits before or after the other's.

Which columns a row has is said by the last Relation message that the server sent, and the server remembers what it
has sent (`pgoutput.c`, `maybe_send_schema`): once in the normal order, which Begin Prepare … Prepare is part of, and
once more in every streamed transaction, which counts for the normal order when that commits. So each description gets
the number of its arrival, and a transaction that waits for its fate keeps its own with these numbers.
"""

from collections.abc import Iterable, Iterator, Mapping

from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, Type
from cdcd.core.protocol.reader import read_message
from cdcd.core.transactions.steps import Described, Step

Arrived = tuple[int, Relation]
"""A description and the number of its arrival."""


class RelationsInForce:
    """The descriptions of the normal order, by oid."""

    def __init__(self) -> None:
        self._arrived: dict[int, Arrived] = {}
        self._arrivals = 0

    def get(self, oid: int) -> Arrived | None:
        """The description in force, None where the server has sent none."""
        return self._arrived.get(oid)

    def in_force(self) -> list[Relation]:
        """All descriptions in force, in the order of their arrival."""
        return [relation for _, relation in sorted(self._arrived.values(), key=_number)]

    def number(self, relation: Relation) -> Arrived:
        """A description that has arrived now; it is not in force by this."""
        self._arrivals += 1
        return self._arrivals, relation

    def describe(self, frame: bytes) -> Iterable[Step]:
        """A Relation or Type message in the normal order."""
        return (self.take(frame),)

    def take(self, frame: bytes) -> Described:
        """As `describe`, for a caller that looks at the message too."""
        message = read_message(frame, XLOG_HEADER)
        assert isinstance(message, Relation | Type)
        if isinstance(message, Relation):
            self._arrived[message.oid] = self.number(message)
        return Described(message)

    def after_replay(self, own: Mapping[int, Arrived]) -> Iterator[Step]:
        """A transaction was replayed with its `own` descriptions; say which others are in force again."""
        for oid, arrived in own.items():
            current = self._arrived.get(oid)
            if current is None or current[0] < arrived[0]:
                self._arrived[oid] = arrived
            elif current[1] != arrived[1]:
                yield Described(current[1])

    def without_replay(self, own: Mapping[int, Arrived]) -> Iterator[Step]:
        """A transaction was skipped because it is delivered; say which of its `own` descriptions hold."""
        for oid, arrived in own.items():
            current = self._arrived.get(oid)
            if current is None or current[0] < arrived[0]:
                self._arrived[oid] = arrived
                yield Described(arrived[1])


def _number(arrived: Arrived) -> int:
    return arrived[0]
