"""The text of bindings in the checkpoint, and the states of tables that are in it.

The rule: the text stays small, because a record that Kafka does not take ends the pipeline. Most columns of a table
were made by one transaction, so equal stamps that follow each other are written once, with their number. If there are
too many of these runs, the tables with the most runs are written without stamps. Nothing is proved by a stamp that is
unknown, so such a table is withheld after a restart if its columns were altered meanwhile and a rule is bound to one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdcd.core.catalog.oids import expanded, squeezed

VERSION: Final = 2
"""Version of the text's form. Version 1 had a number for each column in place of runs."""

TEXT_BYTES_MAX: Final = 1 << 24
"""Maximum bytes of the text before it is compressed."""

RUNS_MAX: Final = 50_000
"""Maximum number of runs of stamps in the text, which take 6 bytes each when they are all different."""

_GONE: Final = -1
"""Stamp of a dropped column."""

Rules = dict[str, dict[int, set[int]]]
"""Attribute numbers by digest of the rule and oid of the table."""

States = dict[int, list["SeenColumns"]]


@dataclass(frozen=True, slots=True)
class SeenColumns:
    """The columns of a table, as a look-up saw them.

    Attributes:
        lsn: LSN before which every transaction that the look-up saw has committed.
        last_id: highest attribute number that was ever used.
        stamps: `CatalogColumn.stamp` of each existing column, by attribute number; 0 if unknown.
        runs: the stamps of the numbers from 1 on, as pairs of a stamp and of how many numbers in a row have it.
    """

    lsn: int
    last_id: int
    stamps: Mapping[int, int]
    runs: list[int] = field(init=False, default_factory=list, compare=False)

    def __post_init__(self) -> None:
        stamps = [self.stamps.get(number, _GONE) for number in range(1, self.last_id + 1)]
        object.__setattr__(self, "runs", _runs(stamps))


def _runs(items: Iterable[int]) -> list[int]:
    found: list[int] = []
    for item in items:
        if found and found[-2] == item:
            found[-1] += 1
        else:
            found += [item, 1]
    return found


def _ranges(numbers: Iterable[int]) -> list[int]:
    """Return pairs of a first number and of how many numbers follow each other from there on."""
    found: list[int] = []
    for number in sorted(numbers):
        if found and number == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += [number, 1]
    return found


def write_bindings(rules: Rules, states: States) -> str:
    """Return the text, "" without bindings."""
    ranges = {
        digest: {str(oid): _ranges(numbers) for oid, numbers in sorted(tables.items()) if numbers}
        for digest, tables in sorted(rules.items())
    }
    oids = sorted({int(oid) for tables in ranges.values() for oid in tables})
    if not oids:
        return ""
    unstamped = _without_stamps(oids, states)
    tables = {
        str(oid): [
            [state.lsn, state.last_id, *(_unstamped(state) if oid in unstamped else state.runs)]
            for state in states.get(oid, ())
        ]
        for oid in oids
    }
    packed = squeezed(_json({"rules": ranges, "tables": tables}).encode())
    return _json({"version": VERSION, "columns": packed})


def _without_stamps(oids: Sequence[int], states: States) -> set[int]:
    """Return the tables with the most runs, without which there are no more than `RUNS_MAX`."""
    counts = {oid: sum(len(state.runs) // 2 for state in states.get(oid, ())) for oid in oids}
    total = sum(counts.values())
    found: set[int] = set()
    if total > RUNS_MAX:
        for oid in sorted(oids, key=lambda oid: (-counts[oid], oid)):
            if total <= RUNS_MAX:
                break
            found.add(oid)
            total -= counts[oid]
    return found


def _unstamped(state: SeenColumns) -> list[int]:
    numbers = range(1, state.last_id + 1)
    return _runs([0 if number in state.stamps else _GONE for number in numbers])


def read_bindings(text: str) -> tuple[Rules, States]:
    """Read a text of this version or of version 1.

    Raises:
        ValueError: the text was not written by `write_bindings`.
    """
    try:
        outer = json.loads(text)
        version = outer["version"]
        if version not in {1, VERSION}:
            raise ValueError(f"this cdcd reads version {VERSION}")
        data = json.loads(expanded(outer["columns"], TEXT_BYTES_MAX))
        in_runs = version == VERSION
        rules = {
            digest: {
                int(oid): set(_numbers(ids) if in_runs else map(int, ids)) for oid, ids in tables.items()
            }
            for digest, tables in data["rules"].items()
        }
        states = {
            int(oid): [_state(*each, in_runs=in_runs) for each in found]
            for oid, found in data["tables"].items()
        }
        return rules, states
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the bindings of columns: {error!r}") from None


def _pairs(runs: Sequence[Any]) -> list[tuple[int, int]]:
    if len(runs) % 2:
        raise ValueError("a run without its number")
    pairs = [(int(first), int(count)) for first, count in zip(runs[::2], runs[1::2], strict=True)]
    if any(not 0 < count < _COUNT_MAX for _, count in pairs):
        raise ValueError("a run of no or too many columns")
    return pairs


_COUNT_MAX: Final = 1 << 15
"""More than the attribute numbers of a table: PostgreSQL counts them in 16 bits with a sign."""


def _numbers(ranges: Sequence[Any]) -> list[int]:
    return [number for first, count in _pairs(ranges) for number in range(first, first + count)]


def _state(lsn: int, last_id: int, *stamps: int, in_runs: bool) -> SeenColumns:
    each = [stamp for stamp, count in _pairs(stamps) for _ in range(count)] if in_runs else map(int, stamps)
    live = {number: stamp for number, stamp in enumerate(each, 1) if stamp != _GONE}
    return SeenColumns(int(lsn), int(last_id), live)


def _json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))
