"""How far the reading of tables has got: what the checkpoint record holds beside the stream's position.

The rule: progress is written in the Kafka transaction of the rows that it counts. A page of a table is in `done` if
and only if its rows are with the broker, so whoever reads the record back goes on with the pages that are not.

Pages are the unit because rows stay on theirs: a row that nobody changed since the snapshot began is where it was
then, and one that was changed is in the stream. That holds until the table is rewritten (VACUUM FULL, CLUSTER, some
ALTER TABLE), which gives it another file: `filenode` tells, and then the table is read from its beginning.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

Pages = tuple[tuple[int, int], ...]
"""Ranges of page numbers, each from its first to before its second, in order and apart."""

EXPORTED: Final = "exported"
INCREMENTAL: Final = "incremental"

OUTCOMES_MAX: Final = 20
"""How many ended tables the record remembers."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table with pages of its own: a plain one, or a leaf of a partitioned one."""

    oid: int
    filenode: int
    pages: int
    size: int
    """Bytes on disk with what is out of line (TOAST), as of the plan."""
    done: Pages = ()

    @property
    def pages_done(self) -> int:
        return sum(end - begin for begin, end in self.done)

    @property
    def is_done(self) -> bool:
        return self.pages_done >= self.pages


@dataclass(frozen=True, slots=True)
class TableTask:
    """A published table that is to be read.

    Attributes:
        name: `schema.table`, for people; the table is known by its `oid`, 0 until it is looked up.
        request: what asked for it, "" for the initial snapshot.
        where: SQL that rows must satisfy, "" for all.
        parts: what is to be read of it; None until it is planned.
    """

    name: str
    oid: int = 0
    request: str = ""
    where: str = ""
    parts: tuple[Part, ...] | None = None
    rows: int = 0

    @property
    def is_done(self) -> bool:
        return self.parts is not None and all(part.is_done for part in self.parts)

    @property
    def pages(self) -> int:
        return sum(part.pages for part in self.parts or ())

    @property
    def pages_done(self) -> int:
        return sum(part.pages_done for part in self.parts or ())

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts or ())

    @property
    def share(self) -> float:
        """How much of it is read, from 0 to 1."""
        return self.pages_done / self.pages if self.pages else float(self.is_done)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a table ended: complete, or why not."""

    name: str
    request: str
    rows: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """All tables that are still to be read, and what became of those before.

    Attributes:
        method: how it is being read: a crash makes `incremental` of `exported`.
        serial: rows delivered so far by all snapshots, which numbers them.
        known: oids of published tables that need no snapshot of their own, where added ones are looked for.
    """

    method: str = INCREMENTAL
    tasks: tuple[TableTask, ...] = ()
    paused: bool = False
    outcomes: tuple[Outcome, ...] = ()
    serial: int = 0
    known: tuple[int, ...] | None = field(default=None)

    @property
    def is_done(self) -> bool:
        return not self.tasks

    def find(self, task: TableTask) -> TableTask | None:
        """The same task as it is now; None: it ended."""
        return next((each for each in self.tasks if _same(each, task)), None)

    def add(self, tasks: Iterable[TableTask]) -> Self:
        """Further tables; a request for a table that is waiting or being read already, in the same way, is that one."""
        present = {(task.name, task.where) for task in self.tasks}
        new = tuple(task for task in tasks if (task.name, task.where) not in present)
        return replace(self, tasks=self.tasks + new) if new else self

    def plan(self, task: TableTask, oid: int, parts: tuple[Part, ...]) -> Self:
        """What is to be read of the table, for the first time or anew."""
        return self._update(task, oid=oid, parts=parts)

    def deliver(self, task: TableTask, part: int, begin: int, end: int, rows: int) -> Self:
        """These pages of the part with this oid are in the same Kafka transaction as the progress."""
        current = self.find(task)
        if current is None:
            return self
        parts = tuple(
            replace(each, done=union(each.done, begin, end)) if each.oid == part else each
            for each in current.parts or ()
        )
        return replace(self._update(task, parts=parts, rows=current.rows + rows), serial=self.serial + rows)

    def end(self, task: TableTask, error: str = "") -> Self:
        """The table is complete, or can not be read."""
        current = self.find(task)
        if current is None:
            return self
        outcome = Outcome(current.name, current.request, current.rows, error)
        return replace(
            self,
            tasks=tuple(each for each in self.tasks if each is not current),
            outcomes=(*self.outcomes, outcome)[-OUTCOMES_MAX:],
        )

    def _update(self, task: TableTask, **changes: Any) -> Self:
        return replace(
            self,
            tasks=tuple(replace(each, **changes) if _same(each, task) else each for each in self.tasks),
        )

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint record: what is empty is left out."""
        fields: dict[str, Any] = {
            "method": self.method,
            "tasks": [_task_json(task) for task in self.tasks],
            "paused": self.paused,
            "serial": self.serial,
            "outcomes": [[each.name, each.request, each.rows, each.error] for each in self.outcomes],
        }
        fields = {name: value for name, value in fields.items() if value}
        return fields if self.known is None else {**fields, "known": list(self.known)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError or IndexError when it is not what `to_json` writes."""
        method = fields["method"]
        if method not in (EXPORTED, INCREMENTAL):
            raise ValueError(f"{method!r} is not a method")
        known = fields.get("known")
        return cls(
            method=method,
            tasks=tuple(_task_from(each) for each in fields.get("tasks", ())),
            paused=bool(fields.get("paused")),
            serial=int(fields.get("serial", 0)),
            outcomes=tuple(
                Outcome(str(name), str(request), int(rows), str(error))
                for name, request, rows, error in fields.get("outcomes", ())
            ),
            known=None if known is None else tuple(map(int, known)),
        )


def _same(one: TableTask, other: TableTask) -> bool:
    return one.name == other.name and one.where == other.where and one.request == other.request


def _task_json(task: TableTask) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": task.name, "oid": task.oid}
    fields |= {
        name: value
        for name, value in (("request", task.request), ("where", task.where), ("rows", task.rows))
        if value
    }
    if task.parts is not None:
        fields["parts"] = [
            [part.oid, part.filenode, part.pages, part.size, [page for pages in part.done for page in pages]]
            for part in task.parts
        ]
    return fields


def _task_from(fields: Mapping[str, Any]) -> TableTask:
    parts = fields.get("parts")
    return TableTask(
        name=str(fields["name"]),
        oid=int(fields["oid"]),
        request=str(fields.get("request", "")),
        where=str(fields.get("where", "")),
        rows=int(fields.get("rows", 0)),
        parts=None if parts is None else tuple(_part_from(*part) for part in parts),
    )


def _part_from(oid: int, filenode: int, pages: int, size: int, done: list[int]) -> Part:
    return Part(
        int(oid), int(filenode), int(pages), int(size), tuple(zip(done[::2], done[1::2], strict=True))
    )


def union(done: Pages, begin: int, end: int) -> Pages:
    """The ranges with one more, joined where they touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*done, (begin, end))):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def gaps(done: Pages, pages: int) -> Pages:
    """What of `pages` pages is not in the ranges."""
    found: list[tuple[int, int]] = []
    at = 0
    for begin, end in done:
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < pages:
        found.append((at, pages))
    return tuple(found)
