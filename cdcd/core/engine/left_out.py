"""Takes tables out of the stream: those that the pipeline leaves out (`tables.include`, `tables.exclude`), by their
names, and those that are set aside (`fates.py`), by their oids.

The rule: each event counts, whatever becomes of it. So the events of tables that are left out become `LeftOut`, which
has only their number: positions, and the numbers of the events behind them, are as if they were encoded.

A relation is left out by its name where the stream is. So a table that is renamed comes in or goes out at that place.
What a transaction that is still open says of a relation counts at its commit only, because rows of other transactions
may come under the former name until then.

A table may come back to the name under which its topic has rows. So its first event under a name that is left out is
told (`WentOut`), because the topic lacks what changed meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cdcd.core.engine.fates import Fates
from cdcd.core.protocol.messages import Relation
from cdcd.core.transactions.drafts import SpoolItem, events, oids_of, only
from cdcd.core.transactions.steps import Changes, Described, RelationPreview, Step


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many events of the open transaction are of tables that the pipeline leaves out."""

    events: int


@dataclass(frozen=True, slots=True)
class WentOut:
    """Tables have their first events under names that are left out. The names are by oid, as `schema.table`."""

    names: Mapping[int, str]


KeptStep = Step | LeftOut | WentOut
"""What is left of the assembler's steps."""


class LeftOutTables:
    """The relations that are left out, as they were last described.

    Args:
        wants: whether the pipeline has a table, by its name as `schema.table`; None: it has all that are published.
        fates: the tables that are set aside.
    """

    def __init__(self, wants: Callable[[str], bool] | None = None, fates: Fates | None = None) -> None:
        self._wants = wants
        self._fates = fates
        self._aside: Mapping[int, object] = {} if fates is None else fates.aside
        self._oids: set[int] = set()
        self._untold: dict[int, str] = {}
        """The names of those of which no event has come under the name."""

    @property
    def is_needed(self) -> bool:
        """Whether a table may be left out. If not, the assembler's steps are what is left of them."""
        return self._wants is not None or len(self._aside) > 0

    def count_aside(self) -> int:
        """How many tables are set aside."""
        return len(self._aside)

    def steps(self, steps: Iterator[Step]) -> Iterator[KeptStep]:
        """The steps without descriptions of tables that are left out, and with `LeftOut` in place of their events."""
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
        """Take a description that holds from here on. Whether the relation is kept."""
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

    def rest(self, item: SpoolItem, in_stream: bool) -> SpoolItem | None:
        """What is left of an event, or of drafts of rows: of a Truncate, without some tables. None: nothing."""
        oids = oids_of(item, in_stream)
        kept = [oid for oid in oids if oid not in self._oids and oid not in self._aside]
        return item if len(kept) == len(oids) else only(item, in_stream, kept)

    def _is_kept(self, relation: Relation) -> bool:
        return self._has(relation) and relation.oid not in self._aside

    def _has(self, relation: Relation) -> bool:
        return self._wants is None or self._wants(_name(relation))

    def _told(self, step: Changes) -> dict[int, str]:
        """The names that are not told yet of tables that have events in the step."""
        found: dict[int, str] = {}
        for item in step.items:
            for oid in oids_of(item, step.in_stream):
                name = self._untold.pop(oid, None)
                if name is not None:
                    found[oid] = name
        return found

    def split(self, step: Changes) -> Iterator[KeptStep]:
        """The events in their order: runs of those that are kept, and of those that are not."""
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
    return f"{relation.schema}.{relation.name}"
