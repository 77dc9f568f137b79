"""How far the reading of tables has got: what the checkpoint record holds beside the stream's position.

The rule: progress is written in the Kafka transaction of the rows that it counts. A page of a table is in `done` if
and only if its rows are with the broker, so whoever reads the record back goes on with the pages that are not.

Pages are the unit because rows stay on theirs: a row that nobody changed since the snapshot began is where it was
then, and one that was changed is in the stream. Two things make this untrue, and both are remembered here:

- The table is rewritten (VACUUM FULL, CLUSTER, TRUNCATE, some ALTER TABLE), which gives it another file, or its columns
  are altered. `filenode` and `form` tell, and then the table is read from its beginning.
- A change did not send a value that it left alone (unchanged TOAST), and the row that has the value was not read. Its
  key is `owed`: the row is read again by key before the table is complete. More keys than `OWED_KEYS_MAX`
  are not written down; `unsettled` says so, and a restart then reads the table from its beginning.

The record stays small whatever the number of tables: those that nobody has begun with are one list of oids
(`Oids`), given by their places in the list of all known tables, and only a table that is being read is written out.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from cdcd.snapshots.oids import Oids, expanded, squeezed
from cdcd.snapshots.pages import Pages, union
from cdcd.snapshots.signals import OWN_REQUESTS

KeyValue = tuple[bool, bytes]
"""A column's value as pgoutput sent it: whether it is in binary form, and its bytes. Never NULL."""

Key = tuple[KeyValue, ...]
"""The values of a row's key columns, in the order of the columns."""

EXPORTED: Final = "exported"
INCREMENTAL: Final = "incremental"

OUTCOMES_MAX: Final = 20
"""How many ended tables the record remembers."""

TEXT_MAX: Final = 150
"""Characters of an error that the record keeps."""

OWED_KEYS_MAX: Final = 256
OWED_BYTES_MAX: Final = 2500
"""Owed keys that the record keeps for a table, and their bytes in it. Where there are more, it keeps none.

So the record stays below 64 kB with 10,000 tables whose names are known (37 kB), four of which owe rows.
"""


def owed_text(keys: Iterable[Key]) -> str:
    """Keys as the record has them: Base85 of compressed JSON."""
    values = [[_value_json(value) for value in key] for key in keys]
    return squeezed(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode())


def form_of(columns: str) -> int:
    """32 bits that tell a table's columns (`SourceTable.columns`) from those after an ALTER TABLE."""
    return zlib.crc32(columns.encode())


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
        form: a checksum of the columns that it had then (`form_of`); 0 until it is planned.
        owed: keys of rows that are to be read again, since a value of theirs was never sent.
        unsettled: there are more of them than the record can hold; `owed` is then empty.
        number: tells this task from every other one of the process; not in the record.
    """

    name: str
    oid: int = 0
    request: str = ""
    where: str = ""
    parts: tuple[Part, ...] | None = None
    form: int = 0
    rows: int = 0
    owed: tuple[Key, ...] = ()
    unsettled: bool = False
    number: int = field(default=0, compare=False)

    @property
    def is_done(self) -> bool:
        """Whether every page was delivered."""
        return self.parts is not None and all(part.is_done for part in self.parts)

    @property
    def has_begun(self) -> bool:
        """Whether rows of it were delivered, by which a later plan goes on."""
        return any(part.done for part in self.parts or ())

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


_NOTHING: Final = Oids(())


@dataclass(frozen=True, slots=True)
class Progress:
    """All tables that are still to be read, and what became of those before.

    Attributes:
        method: how it is being read: a crash makes `incremental` of `exported`.
        tasks: tables that were begun with or asked for.
        waiting: tables of the initial snapshot, in the order in which they are read.
        begun: so many of `waiting` are in `tasks`, or ended.
        event_no: rows delivered so far by all snapshots, which numbers them.
        known: published tables that need no snapshot of their own, with their names; None: not looked at yet.
        vacated: checksums (`name_sum`) of names whose topics may hold rows of tables that have them no more.
        unlisted: those of `known` that had changes before a list of published tables had them, or that are published no
            more. They are added when a list has them.
        labels: a checksum of the labels of all enums, of which every published table is described; 0: there are none.
    """

    method: str = INCREMENTAL
    tasks: tuple[TableTask, ...] = ()
    paused: bool = False
    outcomes: tuple[Outcome, ...] = ()
    event_no: int = 0
    known: Oids | None = None
    vacated: tuple[int, ...] = ()
    unlisted: Oids = _NOTHING
    labels: int = 0
    waiting: Oids = _NOTHING
    begun: int = 0
    next_number: int = field(default=1, compare=False)

    @property
    def is_done(self) -> bool:
        return not self.tasks and self.begun >= len(self.waiting)

    @property
    def tables_left(self) -> int:
        """How many tables are not read to their end."""
        return len(self.tasks) + len(self.waiting) - self.begun

    def find(self, task: TableTask) -> TableTask | None:
        """The same task as it is now; None: it ended."""
        for each in self.tasks:
            if each.number == task.number:
                return each
        return None

    def add(self, tasks: Iterable[TableTask]) -> Self:
        """Further tables. One that is waiting for its first row already, in the same way, is that one.

        If the configuration asks for it too, it is the configuration's from then on, so that no request cancels it.
        """
        added = list(self.tasks)
        number = self.next_number
        # A table that has another one's former name is another table.
        by_oid: dict[tuple[int, str], int] = {}
        by_name: dict[tuple[str, str], int] = {}
        for at, task in enumerate(added):
            if not task.has_begun:
                by_oid[task.oid, task.where] = by_name[task.name, task.where] = at
        for task in tasks:
            found = by_name.get((task.name, task.where))
            if task.oid and (found is None or added[found].oid):
                found = by_oid.get((task.oid, task.where))
            if found is None:
                by_oid[task.oid, task.where] = by_name[task.name, task.where] = len(added)
                added.append(replace(task, number=number))
                number += 1
            elif task.request in OWN_REQUESTS and added[found].request not in OWN_REQUESTS:
                added[found] = replace(added[found], request=task.request)
        if tuple(added) == self.tasks:
            return self
        return replace(self, tasks=tuple(added), next_number=number)

    def begin_next(self, names: Mapping[int, str]) -> tuple[Self, TableTask] | None:
        """Take the next table of `waiting` among the tasks; None: there is none. `names` are by oid."""
        if self.begun >= len(self.waiting):
            return None
        oid = self.waiting.oids[self.begun]
        task = TableTask(names.get(oid, ""), oid, number=self.next_number)
        return (
            replace(self, tasks=(*self.tasks, task), begun=self.begun + 1, next_number=self.next_number + 1),
            task,
        )

    def plan(self, task: TableTask, oid: int, name: str, parts: tuple[Part, ...] | None, form: int) -> Self:
        """What is to be read of the table, for the first time or anew."""
        return self._update(task, oid=oid, name=name, parts=parts, form=form)

    def deliver(self, task: TableTask, part: int, begin: int, end: int, rows: int) -> Self:
        """These pages of the part with this oid are in the same Kafka transaction as the progress."""
        current = self.find(task)
        if current is None:
            return self
        parts = tuple(
            replace(each, done=union(each.done, begin, end)) if each.oid == part else each
            for each in current.parts or ()
        )
        return self._update(task, parts=parts).count(task, rows)

    def count(self, task: TableTask, rows: int) -> Self:
        """So many rows of the task are in the same Kafka transaction as the progress."""
        current = self.find(task)
        if current is None:
            return self
        return replace(self._update(task, rows=current.rows + rows), event_no=self.event_no + rows)

    def owe(self, task: TableTask, keys: tuple[Key, ...] | None) -> Self:
        """What the task owes now; None: more than the record can hold."""
        current = self.find(task)
        owed, unsettled = keys or (), keys is None
        if current is None or (current.owed == owed and current.unsettled == unsettled):
            return self
        return self._update(task, owed=owed, unsettled=unsettled)

    def restart(self, task: TableTask, request: str | None = None) -> Self:
        """The table is read from its beginning, as `request` asks, if it is given."""
        request = task.request if request is None else request
        return self._update(task, parts=None, owed=(), unsettled=False, request=request)

    def end(self, task: TableTask, error: str = "") -> Self:
        """The table is complete, or can not be read."""
        current = self.find(task)
        if current is None:
            return self
        outcome = Outcome(current.name, current.request, current.rows, error[:TEXT_MAX])
        return replace(
            self,
            tasks=tuple(each for each in self.tasks if each is not current),
            outcomes=(*self.outcomes, outcome)[-OUTCOMES_MAX:],
        )

    def _update(self, task: TableTask, **changes: Any) -> Self:
        return replace(
            self,
            tasks=tuple(
                replace(each, **changes) if each.number == task.number else each for each in self.tasks
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint record: what is empty is left out, and what a restart looks up again."""
        fields: dict[str, Any] = {
            "method": self.method,
            "tasks": [_task_json(task) for task in self.tasks],
            "paused": self.paused,
            "serial": self.event_no,
            "outcomes": [[each.name, each.request, each.rows, each.error] for each in self.outcomes],
        }
        if self.begun < len(self.waiting):
            within = "" if self.known is None else self.waiting.text_within(self.known)
            fields["waiting"] = [within or self.waiting.text(), self.begun, bool(within)]
        if self.vacated:
            fields["vacated"] = Oids(self.vacated).text()
        if self.known is not None and len(self.unlisted):
            fields["unlisted"] = self.unlisted.text_within(self.known)
        if self.labels:
            fields["labels"] = self.labels
        fields = {name: value for name, value in fields.items() if value}
        return fields if self.known is None else {**fields, "known": self.known.text()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError or IndexError when it is not what `to_json` writes."""
        method = fields["method"]
        if method not in (EXPORTED, INCREMENTAL):
            raise ValueError(f"{method!r} is not a method")
        known = fields.get("known")
        tasks = tuple(
            replace(_task_from(each), number=number)
            for number, each in enumerate(fields.get("tasks", ()), start=1)
        )
        # Before there were names in it, the record had a plain list of oids.
        known = None if known is None else Oids(known) if isinstance(known, list) else Oids.parse(known)
        unlisted = fields.get("unlisted", "")
        waiting, begun, within = fields.get("waiting", ("", 0, False))
        return cls(
            method=method,
            tasks=tasks,
            paused=bool(fields.get("paused")),
            event_no=int(fields.get("serial", 0)),
            outcomes=tuple(
                Outcome(str(name), str(request), int(rows), str(error))
                for name, request, rows, error in fields.get("outcomes", ())
            ),
            known=known,
            vacated=Oids.parse(fields["vacated"]).oids if "vacated" in fields else (),
            unlisted=_NOTHING if known is None else _oids_from(unlisted, known),
            labels=int(fields.get("labels", 0)),
            waiting=_oids_from(waiting, known if within else None),
            begun=int(begun),
            next_number=len(tasks) + 1,
        )


def _oids_from(text: str, all_: Oids | None) -> Oids:
    if not text:
        return _NOTHING
    return Oids.parse(text) if all_ is None else Oids.parse_within(text, all_)


def _task_json(task: TableTask) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": task.name, "oid": task.oid}
    fields |= {
        name: value
        for name, value in (
            ("request", task.request),
            ("where", task.where),
            ("rows", task.rows),
            ("unsettled", task.unsettled),
        )
        if value
    }
    if task.owed:
        fields["owed"] = owed_text(task.owed)
    if task.parts is not None and task.has_begun:
        fields["form"] = task.form
        fields["parts"] = [
            [part.oid, part.filenode, part.pages, part.size, [page for pages in part.done for page in pages]]
            for part in task.parts
        ]
    return fields


def _value_json(value: KeyValue) -> list[Any]:
    is_binary, data = value
    return [1, base64.b64encode(data).decode("ascii")] if is_binary else [0, data.decode()]


def _owed_from(text: str) -> tuple[Key, ...]:
    keys = json.loads(expanded(text)) if text else ()
    return tuple(tuple(_value_from(*value) for value in key) for key in keys)


def _value_from(is_binary: int, text: str) -> KeyValue:
    return (True, base64.b64decode(text)) if is_binary else (False, text.encode())


def _task_from(fields: Mapping[str, Any]) -> TableTask:
    parts = fields.get("parts")
    return TableTask(
        name=str(fields["name"]),
        oid=int(fields["oid"]),
        request=str(fields.get("request", "")),
        where=str(fields.get("where", "")),
        rows=int(fields.get("rows", 0)),
        form=int(fields.get("form", 0)),
        parts=None if parts is None else tuple(_part_from(*part) for part in parts),
        owed=_owed_from(fields.get("owed", "")),
        unsettled=bool(fields.get("unsettled")),
    )


def _part_from(oid: int, filenode: int, pages: int, size: int, done: list[int]) -> Part:
    return Part(
        int(oid), int(filenode), int(pages), int(size), tuple(zip(done[::2], done[1::2], strict=True))
    )
