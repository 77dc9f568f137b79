"""Removes tables from the stream: those that the pipeline leaves out (`tables.include`, `tables.exclude`), by their
names, and those that are set aside (`fates.py`), by their oids.

The rule: each event counts, whatever is made of it. So events of removed tables are replaced by `LeftOut`, which
has only their number: positions, and the numbers of later events, are the same as if the events were encoded.

Whether a relation is left out depends on its name at this position of the stream. So a renamed table may be
included or left out from that position on. What an open transaction says about a relation counts only from its
commit on, because rows of other transactions may arrive under the earlier name until then.

A table may come back to a name under which its topic has rows. So its first event under a name that is left out is
reported (`WentOut`), because the topic then lacks changes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cdcd.core.engine.fates import Fates
from cdcd.core.protocol.messages import Relation
from cdcd.core.table_names import table_text
from cdcd.core.transactions.drafts import SpoolItem, events, oids_of, only
from cdcd.core.transactions.steps import Changes, Described, RelationPreview, Step


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Number of consecutive events of the open transaction that belong to tables which are left out."""

    events: int


@dataclass(frozen=True, slots=True)
class WentOut:
    """Reports tables whose first events under a name arrived while the name is left out; the names are by oid, as
    `schema.table`.
    """

    names: Mapping[int, str]


KeptStep = Step | LeftOut | WentOut
"""A step of the assembler after tables were removed."""


class LeftOutTables:
    """The relations that are left out, by their latest descriptions.

    Args:
        wants: returns whether the pipeline has a table, by its name as `schema.table`; None if it has all published
            tables.
        fates: the tables that are set aside.
    """

    def __init__(self, wants: Callable[[str], bool] | None = None, fates: Fates | None = None) -> None:
        self._wants = wants
        self._fates = fates
        self._aside: Mapping[int, object] = {} if fates is None else fates.aside
        self._oids: set[int] = set()
        self._untold: dict[int, str] = {}
        """The names of relations for which no event has arrived under the name."""

    @property
    def is_needed(self) -> bool:
        """True if a table may be left out; otherwise the assembler's steps can be used unchanged."""
        return self._wants is not None or len(self._aside) > 0

    def count_aside(self) -> int:
        """Return the number of tables that are set aside."""
        return len(self._aside)

    def steps(self, steps: Iterator[Step]) -> Iterator[KeptStep]:
        """Yield the steps without descriptions of tables that are left out, and with `LeftOut` in place of their
        events.
        """
        for step in steps:
            if isinstance(step, Changes):
                if self._untold and (names := self._told(step)):
                    yield WentOut(names)
                if self._oids or self._aside:
                    yield from self.split(step)
                else:
                    yield step
            elif isinstance(step, Described):
                message = step.message
                if not isinstance(message, Relation) or self.describe(message):
                    yield step
            elif not isinstance(step, RelationPreview) or self._is_kept(step.message):
                yield step

    def describe(self, relation: Relation) -> bool:
        """Take a description that is valid from here on, and return whether the relation is kept."""
        if self._has(relation):
            self._oids.discard(relation.oid)
            self._untold.pop(relation.oid, None)
            if self._fates is not None and relation.oid in self._aside:
                self._fates.describe(relation)
                return False
            return True
        self._oids.add(relation.oid)
        self._untold[relation.oid] = _name(relation)
        return False

    def refuse(self, oid: int) -> None:
        """Leave out a relation whose description is refused, until it is described again."""
        self._oids.add(oid)

    def rest(self, item: SpoolItem, in_stream: bool) -> SpoolItem | None:
        """Return the rest of an event or of drafts, such as a Truncate without some tables; None if nothing is left."""
        oids = oids_of(item, in_stream)
        kept = [oid for oid in oids if oid not in self._oids and oid not in self._aside]
        return item if len(kept) == len(oids) else only(item, in_stream, kept)

    def _is_kept(self, relation: Relation) -> bool:
        return self._has(relation) and relation.oid not in self._aside

    def _has(self, relation: Relation) -> bool:
        return self._wants is None or self._wants(_name(relation))

    def _told(self, step: Changes) -> dict[int, str]:
        """Return the names of tables with events in the step that were not reported yet."""
        found: dict[int, str] = {}
        for item in step.items:
            for oid in oids_of(item, step.in_stream):
                name = self._untold.pop(oid, None)
                if name is not None:
                    found[oid] = name
        return found

    def split(self, step: Changes) -> Iterator[KeptStep]:
        """Yield the events in their order, as runs of events that are kept and of events that are left out."""
        kept: list[SpoolItem] = []
        gone: list[SpoolItem] = []
        for item in step.items:
            rest = self.rest(item, step.in_stream)
            if rest is None:
                if kept:
                    yield Changes(kept, step.in_stream)
                    kept = []
                gone.append(item)
            else:
                if gone:
                    yield LeftOut(events(gone))
                    gone = []
                kept.append(rest)
        if kept:
            yield Changes(kept, step.in_stream)
        if gone:
            yield LeftOut(events(gone))


def _name(relation: Relation) -> str:
    return table_text(relation.schema, relation.name)
