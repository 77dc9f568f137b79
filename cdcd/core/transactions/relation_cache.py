"""Stage 3, second part: the valid description of each relation.

The rule: of two descriptions of a relation, the one that was received last is valid, also if it belongs to a
transaction that commits before or after the other's.

The last Relation message of the server defines the columns of rows, and the server remembers what it has sent
(`pgoutput.c`, `maybe_send_schema`): once in the normal order, which includes Begin Prepare … Prepare, and once more
in every streamed transaction, which joins the normal order at its commit. So each description gets the number of
its arrival, and an undecided transaction keeps its own descriptions with these numbers.
"""

from collections.abc import Iterable, Iterator, Mapping

from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Relation, Type
from cdcd.core.protocol.reader import read_message
from cdcd.core.transactions.steps import Described, Step

Arrived = tuple[int, Relation]
"""(number of its arrival, description)."""


class RelationCache:
    """Descriptions of the normal order, by oid."""

    def __init__(self) -> None:
        self._arrived: dict[int, Arrived] = {}
        self._arrivals = 0

    def get(self, oid: int) -> Arrived | None:
        """Return the description in force; None if the server has sent none."""
        return self._arrived.get(oid)

    def in_force(self) -> list[Relation]:
        """Return all descriptions in force, in the order of their arrival."""
        return [relation for _, relation in sorted(self._arrived.values(), key=_number)]

    def number(self, relation: Relation) -> Arrived:
        """Return a new description with the number of its arrival; this does not put it in force."""
        self._arrivals += 1
        return self._arrivals, relation

    def describe(self, frame: bytes) -> Iterable[Step]:
        """Handle a Relation or Type message in the normal order."""
        return (self.take(frame),)

    def take(self, frame: bytes) -> Described:
        """Handle a description as `describe`, and return its step."""
        message = read_message(frame, XLOG_HEADER)
        assert isinstance(message, Relation | Type)
        if isinstance(message, Relation):
            self._arrived[message.oid] = self.number(message)
        return Described(message)

    def after_replay(self, own: Mapping[int, Arrived]) -> Iterator[Step]:
        """After the replay of a transaction with its `own` descriptions, yield the others that are in force again."""
        for oid, arrived in own.items():
            current = self._arrived.get(oid)
            if current is None or current[0] < arrived[0]:
                self._arrived[oid] = arrived
            elif current[1] != arrived[1]:
                yield Described(current[1])

    def without_replay(self, own: Mapping[int, Arrived]) -> Iterator[Step]:
        """After skipping a delivered transaction, yield those of its `own` descriptions that are valid."""
        for oid, arrived in own.items():
            current = self._arrived.get(oid)
            if current is None or current[0] < arrived[0]:
                self._arrived[oid] = arrived
                yield Described(arrived[1])


def _number(arrived: Arrived) -> int:
    return arrived[0]
