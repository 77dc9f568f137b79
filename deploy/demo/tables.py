"""Events folded into tables, as a consumer that applies them one after the other would have them.

Rows with a key are kept by it, rows without one are counted. A value that the server did not send (unchanged TOAST,
named in the header `cdcd.unchanged`) keeps what the row had before, also when the row's key changes. All tables
were empty when the topics began, so an update of a row that is not there, or an insert of one that is, is a
violation like those of history.py.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.demo.history import OLD_KEY, Event, Violations

Row = dict[str, Any]

UNKNOWN: Final = "\0 never sent"
"""In place of a value that was named unchanged when there was none before."""


@dataclass(slots=True)
class Folded:
    """A table's content by the topics. `bag` counts rows without a key, each as its JSON."""

    keyed: dict[bytes, Row] = field(default_factory=dict)
    bag: Counter[str] = field(default_factory=Counter)
    key_columns: tuple[str, ...] = ()
    ops: Counter[str] = field(default_factory=Counter)
    _moved: Row | None = None

    def rows(self) -> list[Row]:
        """Every row, those of the bag as often as they are in it."""
        return [*self.keyed.values(), *(json.loads(text) for text in self.bag.elements())]

    def apply(self, event: Event, violations: Violations, *, rows_before: bool = False) -> None:
        self.ops[event.op] += 1
        if event.op == "t":
            self.keyed.clear()
            self.bag.clear()
            return
        envelope = event.envelope()
        before, after, key = envelope["before"], envelope["after"], event.raw.key
        if key is None:
            self._apply_without_key(event, before, after, violations)
            return
        self.key_columns = tuple(json.loads(key))
        old = self.keyed.pop(key, None)
        if event.op == "c":
            if old is not None:
                violations.add("insert of a row that is there", str(event))
            old = self._moved if OLD_KEY in dict(event.raw.headers) else None
        elif old is None and event.op != "r" and not rows_before:
            violations.add("change of a row that is not there", str(event))
        elif old is not None and before is not None:
            _check_before(event, old, before, violations)
        self._moved = old if event.op == "d" else None
        if after is not None:
            for name in event.unchanged():
                after[name] = (old or {}).get(name, UNKNOWN)
            self.keyed[key] = after

    def _apply_without_key(
        self, event: Event, before: Row | None, after: Row | None, violations: Violations
    ) -> None:
        if before is not None:
            text = canonical(before)
            if not self.bag[text]:
                violations.add("change of a row that is not there", str(event))
            else:
                self.bag[text] -= 1
        elif event.op in "ud":
            violations.add("change without key and old row", str(event))
        if after is not None:
            self.bag[canonical(after)] += 1


def fold(
    events: Iterable[Event], violations: Violations, *, rows_before: bool = False
) -> dict[tuple[str, str], Folded]:
    """Tables by schema and name, from events in the order of their places.

    `rows_before`: there were rows that an incremental snapshot gives, later than changes of them.
    """
    tables: dict[tuple[str, str], Folded] = {}
    for event in events:
        if event.op != "m":
            tables.setdefault((event.schema, event.table), Folded()).apply(
                event, violations, rows_before=rows_before
            )
    return tables


def canonical(row: Row) -> str:
    """The same text for the same row."""
    return json.dumps(row, sort_keys=True, ensure_ascii=False)


def _check_before(event: Event, old: Row, before: Row, violations: Violations) -> None:
    """What the server sent of the old row must be what we have; null may mean that it did not send it."""
    unsent = event.unchanged()
    for name, value in before.items():
        if value is not None and name in old and old[name] != value and name not in unsent:
            violations.add(
                "old row is another than before", f"{event} {name}: {old[name]!r:.80} -> {value!r:.80}"
            )
            return
