"""Columns to which the rules of `columns` are bound, by the table's oid and the column's attribute number.

The rule: a column that a rule has matched once stays under that rule, even if the column or its table is renamed
later. Bindings only grow. They end in two cases:

- The operator changes the rule, because another rule has another digest.
- PostgreSQL no longer has the table, and everything that was committed before this was seen is delivered. No message
  can follow about this oid. Without this, whoever creates and drops tables would let the checkpoint grow for ever.

A Relation message has names but no attribute numbers. `Bindings.numbers` determines which numbers each of its
columns may have. Each part of its evidence is a proof:

- PostgreSQL lists columns by rising attribute number, and never reuses a number.
- A look-up whose LSN is at or before the commit LSN of the message's transaction saw the table before that
  transaction changed it: ALTER TABLE and a change of a row exclude each other until the end of the earlier
  transaction. The state that this look-up saw is the *former state*.
- The look-up that answers the message sees that transaction, so it saw the table afterwards: the present state.
- A column in both states existed in between. If its row of pg_attribute was written by the same transaction in both
  states (`xmin`), the column also had the same name and type in between.
- A column that the former state lacks, although its number was used already, was dropped before.

Names prove nothing else. If several numbers remain, the caller withholds the table if one of them is bound.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.attribute_numbers import NumberedPlace, bounds, column_ids
from cdcd.core.catalog.bindings_text import Rules, SeenColumns, States, read_bindings, write_bindings
from cdcd.core.catalog.relations import TENTATIVE, UNKNOWN_PLACE, TableDescription
from cdcd.core.protocol.messages import Relation

STATES_MAX: Final = 32
"""Maximum number of a table's states that are kept. Each ALTER TABLE adds a state; delivering everything that was
committed before a state removes one."""

RESOLVED_MAX: Final = 16
"""Maximum number of a table's Relation messages whose numbers are remembered."""

Touch = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Attribute numbers that a column of a Relation message may have, in ascending order.

    If there is exactly one, the number is certain.

    `proved`: True if a former state of the table limits the numbers. False: the numbers follow from the present
    catalog alone.
    """

    possible: tuple[int, ...]
    proved: bool = True

    @property
    def certain(self) -> int | None:
        return self.possible[0] if len(self.possible) == 1 else None


def state_of(table: TableDescription) -> SeenColumns:
    """Return the state that a look-up has seen."""
    return SeenColumns(table.seen, table.last_id, {column.id: column.stamp for column in table.columns})


class Bindings:
    """Columns of each rule, and states of the tables with such columns.

    A session has one object: its encoders for changes and for rows share it. `touched` is called when the bindings
    have changed, so that a checkpoint with them is written soon.
    """

    def __init__(self) -> None:
        self.touched: Touch = _nobody
        self.changes = 0
        """Number of changes since the session began."""
        self._rules: Rules = {}
        """Attribute numbers by digest of the rule and oid of the table."""
        self._states: States = {}
        """States by oid, in ascending order of LSN."""
        self._resolved: dict[int, dict[object, list[Numbers]]] = {}
        self._dropped: dict[int, int] = {}
        """LSN behind which no message about a dropped table follows, by the table's oid."""
        self._text = ""
        self._is_stale = False

    def of_table(self, digest: str, oid: int) -> Collection[int]:
        """Return the numbers of a table's columns to which a rule is bound."""
        return self._rules.get(digest, {}).get(oid, ())

    def bind(self, digest: str, oid: int, numbers: Iterable[int]) -> None:
        """Bind the rule to these columns."""
        bound = self._rules.setdefault(digest, {}).setdefault(oid, set())
        new = set(numbers) - bound
        if new:
            bound |= new
            self.changes += 1
            self._is_stale = True
            self.touched()

    def has(self, oid: int) -> bool:
        """Return True if a rule is bound to a column of the table."""
        return any(tables.get(oid) for tables in self._rules.values())

    # Tables that PostgreSQL no longer has.

    def oids(self) -> frozenset[int]:
        """Return the oids of the tables that something is known about, except those that are known to be dropped."""
        bound = [oid for tables in self._rules.values() for oid in tables]
        return frozenset([*bound, *self._states, *self._resolved]).difference(self._dropped)

    def dropped(self, oids: Iterable[int], after: int) -> None:
        """Forget these tables as soon as everything before the LSN `after` is delivered.

        Args:
            oids: tables that PostgreSQL's catalog does not have any more.
            after: LSN after the commits that dropped the tables.
        """
        for oid in oids:
            self._dropped.setdefault(oid, after)

    def _forget_dropped(self, delivered: int) -> bool:
        """Remove what is known about dropped tables, if no message about them can follow."""
        gone = [oid for oid, after in self._dropped.items() if after <= delivered]
        self.changes += len(gone)
        for oid in gone:
            del self._dropped[oid]
            self._states.pop(oid, None)
            self._resolved.pop(oid, None)
            for tables in self._rules.values():
                tables.pop(oid, None)
        return bool(gone)

    # Knowledge about the columns of a table.

    def note(self, relation: Relation, table: TableDescription) -> None:
        """Keep the state of the table that a look-up has seen, for later commits.

        If a table was dropped before any look-up, the columns of its first message are the former state. The
        positions of the columns replace the attribute numbers, which are unknown.
        """
        oid = relation.oid
        if not table.columns:
            if oid not in self._states and table.at >= 0:
                places = range(1, len(relation.columns) + 1)
                self._states[oid] = [SeenColumns(table.at, len(places), dict.fromkeys(places, 0))]
            return
        if not table.seen:
            return
        state = state_of(table)
        states = self._states.setdefault(oid, [])
        if states and state.lsn <= states[-1].lsn:
            return
        if states and (states[-1].last_id, states[-1].stamps) == (state.last_id, state.stamps):
            return
        if len(states) >= STATES_MAX:
            # An older state is as true, but proves less.
            states.pop(1)
        states.append(state)
        self._is_stale = self._is_stale or self.has(oid)

    def numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        """Return the attribute numbers that each column of a Relation message may have.

        Args:
            table: answer of the catalog. `TableDescription.at` is the position of the message in the stream.
        """
        key = tuple([(column.name, column.type_oid) for column in relation.columns])
        resolved = self._resolved.setdefault(relation.oid, {})
        if table.at == UNKNOWN_PLACE and not table.numbers and key in resolved:
            return resolved[key]
        found = self._numbers(relation, table)
        if table.at != TENTATIVE and not table.numbers:
            resolved.pop(key, None)
            if len(resolved) >= RESOLVED_MAX:
                resolved.pop(next(iter(resolved)))
            resolved[key] = found
        return found

    def _numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        if table.numbers:
            # The whole table was looked up, with the numbers of its columns.
            return [Numbers((number,)) for number in table.numbers]
        if table.at == TENTATIVE:
            return _as_of_now(relation, table)
        former = self._state_before(relation.oid, table.at)
        if former is None:
            if not table.columns:
                return [Numbers((place,), proved=False) for place in range(1, len(relation.columns) + 1)]
            return _without_former(relation, table)
        if not table.columns:
            return _of_dropped(relation, former)
        return _between(relation, former, table)

    def _state_before(self, oid: int, at: int) -> SeenColumns | None:
        found = None
        for state in self._states.get(oid, ()):
            if state.lsn <= at:
                found = state
        return found

    # Bindings in the checkpoint.

    def text(self, delivered: int) -> str:
        """Return the bindings for a checkpoint at this position as JSON, "" without bindings."""
        forgot = self._forget_dropped(delivered)
        if self._forget_states(delivered) or forgot or self._is_stale:
            self._is_stale = False
            self._text = write_bindings(self._rules, self._states)
        return self._text

    def _forget_states(self, delivered: int) -> bool:
        """Remove states of a table that are older than another state before `delivered`, because they are not needed
        again.
        """
        forgot = False
        for states in self._states.values():
            while len(states) > 1 and states[1].lsn <= delivered:
                del states[0]
                forgot = True
        return forgot

    def load(self, text: str, digests: Collection[str]) -> None:
        """Load the bindings of a checkpoint, except those of rules that the configuration no longer has.

        Raises:
            ValueError: the text was not written by `text`.
        """
        if not text:
            return
        rules, states = read_bindings(text)
        self._rules |= {digest: tables for digest, tables in rules.items() if digest in digests}
        self._states |= {oid: found for oid, found in states.items() if self.has(oid)}
        self._text = text
        self._is_stale = len(self._rules) < len(rules)


def _nobody() -> None:
    """Default of `touched`: do nothing."""


def _as_of_now(relation: Relation, table: TableDescription) -> list[Numbers]:
    """Return the numbers for a transaction that may never commit: certain only if the message is the present table."""
    published = [column for column in table.columns if not column.generated]
    if [(each.name, each.type_oid) for each in published] == [
        (each.name, each.type_oid) for each in relation.columns
    ]:
        return [Numbers((column.id,)) for column in published]
    return _anything(relation, table)


def _anything(relation: Relation, table: TableDescription) -> list[Numbers]:
    numbers = tuple(range(1, max([table.last_id, *[each.id for each in table.columns]], default=0) + 1))
    return [Numbers(numbers) for _ in relation.columns]


def _without_former(relation: Relation, table: TableDescription) -> list[Numbers]:
    """Return the numbers by the present catalog and former descriptions alone (`attribute_numbers.py`)."""
    ids = column_ids(relation.columns, table)
    last = max([table.last_id, *[each for each in ids if each is not None]])
    found: list[Numbers] = []
    for at, number in enumerate(ids):
        if number is not None:
            found.append(Numbers((number,), proved=False))
            continue
        before = max([each for each in ids[:at] if each is not None], default=0)
        after = min([each for each in ids[at + 1 :] if each is not None], default=last + 1)
        found.append(Numbers(tuple(range(before + 1, after)), proved=False))
    return found


def _of_dropped(relation: Relation, former: SeenColumns) -> list[Numbers]:
    """Return the numbers of a table that was dropped since.

    If the former state has as many columns, they have the former numbers, but without proof.
    """
    numbers = sorted(former.stamps)
    if len(numbers) == len(relation.columns):
        return [Numbers((number,), proved=False) for number in numbers]
    everything = tuple(range(1, max(numbers, default=0) + len(relation.columns) + 1))
    return [Numbers(everything) for _ in relation.columns]


def _between(relation: Relation, former: SeenColumns, table: TableDescription) -> list[Numbers]:
    """Return the numbers by the states before and after the message."""
    now = {column.id: column for column in table.columns}
    names = {
        number: (column.name, column.type_oid)
        for number, column in now.items()
        if column.stamp and column.stamp == former.stamps.get(number)
    }
    fixed = {each: number for number, each in names.items()}
    places: list[NumberedPlace] = []
    for number in range(1, table.last_id + 1):
        if number > former.last_id or number in former.stamps:
            column = now.get(number)
            lasts = column is not None and number in former.stamps and not (table.listed or column.generated)
            places.append(NumberedPlace(number, lasts))
    columns = [(column.name, column.type_oid) for column in relation.columns]
    fits = [
        [fixed[names_of] == place.id if names_of in fixed else place.id not in names for place in places]
        for names_of in columns
    ]
    found = bounds(fits, places, lasting=True)
    if found is None:
        # A column list that the publication no longer has excluded some columns from the message.
        found = bounds(fits, places, lasting=False)
    if found is None:
        return _anything(relation, table)
    return [
        Numbers(
            tuple(
                [place.id for place, fit in zip(places, row, strict=True) if fit and low <= place.id <= high]
            )
        )
        for row, (low, high) in zip(fits, found, strict=True)
    ]


def withheld(numbers: Sequence[Numbers], bound: Collection[int]) -> list[int]:
    """Return the indexes of columns that may be bound although their numbers are uncertain."""
    return [
        at
        for at, each in enumerate(numbers)
        if each.certain is None and any(number in bound for number in each.possible)
    ]
