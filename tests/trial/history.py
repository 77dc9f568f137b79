"""What clients did, and what was found: the values that the checker compares. Pure.

All tables have the columns `key`, `version`, `value` and `op`, so that one rule reads all of them:

| table | an operation | what must hold |
|---|---|---|
| `lists` | appends one element to the list of a key | each version is the one before and one element more |
| `registers` | raises the version of a key by one | versions of a key rise by one |
| `accounts` | moves money between two accounts | the sum stays the same after each transaction |
| `uniques` | takes a key, or gives it back | a key is there or not, by turns |
| `bulk` | writes rows that PostgreSQL streams; some savepoints are rolled back | all rows of a transaction, or none |
| `ops` | says of each transaction that it was committed | is the source's own word on transactions of unknown outcome |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

TABLES: Final = ("ops", "lists", "registers", "accounts", "uniques", "bulk")

Change = Literal["c", "u", "d"]


class Outcome(Enum):
    """What a client knows of its transaction."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The connection was lost while the answer to COMMIT was awaited."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row's values but its key. `op` is the operation that wrote it."""

    version: int
    value: str
    op: int


@dataclass(frozen=True, slots=True)
class Write:
    """One change of a row; `row` is None for a delete."""

    table: str
    key: str
    change: Change
    row: Row | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One transaction of one client.

    Attributes:
        writes: what it committed, or would have.
        undone: what it wrote in savepoints that it rolled back.
    """

    op: int
    writes: tuple[Write, ...]
    outcome: Outcome
    undone: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic: a change, with its place in Kafka and in the WAL."""

    topic: str
    partition: int
    offset: int
    write: Write
    commit_lsn: int
    serial: int
    """The number of the event in its transaction."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The slot's confirmed_flush_lsn, and the ends of the partitions, which were asked for after it.

    A partition that did not answer is left out.
    """

    at_s: float
    confirmed: int
    ends: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Source:
    """The source's tables in the end: rows by table and key."""

    tables: Mapping[str, Mapping[str, Row]]

    def committed(self) -> frozenset[int]:
        """The operations that are in the database."""
        return frozenset(row.op for row in self.tables["ops"].values())
