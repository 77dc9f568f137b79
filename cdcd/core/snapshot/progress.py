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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from cdcd.core import bounded_json
from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.partitions import recalled
from cdcd.core.snapshot.outcomes import (
    TEXT_MAX,
    Outcome,
    Requested,
    find_request,
    outcome_from,
    outcome_json,
    remember,
    request_from,
    request_json,
    with_request,
)
from cdcd.core.snapshot.signals import ADDED, OWN_REQUESTS
from cdcd.core.snapshot.table_task import Key, Part, TableTask, task_from, task_json, union

EXPORTED: Final = "exported"
INCREMENTAL: Final = "incremental"

ASKERS_MAX: Final = 8
"""How many requests may share one reading of a table. For a further request, the table is read once more."""

_NOTHING: Final = Oids(())


@dataclass(frozen=True, slots=True)
class Progress:
    """All tables that are still to be read, and what became of those before.

    Attributes:
        method: how it is being read: a crash makes `incremental` of `exported`.
        tasks: tables that were begun with or asked for.
        waiting: tables of the initial snapshot and tables that were added later, in the order in which they are read.
        begun: so many of `waiting` are in `tasks`, or ended.
        added: those of `waiting` that were added to the publication after the initial snapshot. Oids that are not in
            `waiting` have no meaning.
        outcomes: how the last tables ended (`outcomes.py`).
        complete, failed: how many readings of tables have ended since the pipeline began.
        requests: what became of the last requests that have names.
        event_no: rows delivered so far by all snapshots, which numbers them.
        known: published tables that need no snapshot of their own, with their names; None: not looked at yet.
        vacated: checksums (`name_sum`) of names whose topics may hold rows of tables that have them no more.
        unlisted: those of `known` that had changes before a list of published tables had them, or that are published no
            more. They are added when a list has them.
        outdated: tables that are read again after a gap, as long as their topics have the rows from before the gap.
            Some of these rows may have been deleted in the gap, so a truncate record ends all of them.
        healing: tables of an attempt to heal the topics after a gap, until the attempt has ended. None of the slot's
            changes is delivered before that.
        gap: LSN at which the gap begins that `healing` is about; 0: there is none.
        labels: a checksum of the labels of all enums, of which every published table is described; 0: there are none.
        partitions: the partitions of tables that are published as a whole, as they were read last
            (`core/catalog/partitions.py`); "": they were never read, or there are none.
        newest_member: the highest number of an entry of the publication (pg_publication_rel.oid) that was listed. A
            known table with a higher one was taken out of the publication and added again since then. 0: none was
            listed.
    """

    method: str = INCREMENTAL
    tasks: tuple[TableTask, ...] = ()
    paused: bool = False
    outcomes: tuple[Outcome, ...] = ()
    event_no: int = 0
    known: Oids | None = None
    vacated: tuple[int, ...] = ()
    unlisted: Oids = _NOTHING
    outdated: Oids = _NOTHING
    healing: Oids = _NOTHING
    gap: int = 0
    labels: int = 0
    partitions: str = ""
    newest_member: int = 0
    waiting: Oids = _NOTHING
    begun: int = 0
    added: Oids = _NOTHING
    complete: int = 0
    failed: int = 0
    requests: tuple[Requested, ...] = ()
    next_number: int = field(default=1, compare=False)

    @property
    def is_done(self) -> bool:
        return not self.tasks and self.begun >= len(self.waiting)

    @property
    def ended(self) -> int:
        """How many readings of tables have ended since the pipeline began, completely or not. It only rises."""
        return self.complete + self.failed

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
            if found is None or len({*added[found].askers, *task.askers}) > ASKERS_MAX:
                by_oid[task.oid, task.where] = by_name[task.name, task.where] = len(added)
                added.append(replace(task, number=number))
                number += 1
                continue
            askers = tuple(dict.fromkeys((*added[found].askers, *task.askers)))
            added[found] = replace(added[found], askers=askers)
            if task.request in OWN_REQUESTS and added[found].request not in OWN_REQUESTS:
                added[found] = replace(added[found], request=task.request)
        if tuple(added) == self.tasks:
            return self
        return replace(self, tasks=tuple(added), next_number=number)

    def expand(self, task: TableTask, leaves: Mapping[int, str]) -> Self:
        """These tables, by oid, stand for the task's table. Whoever waits for the task waits for each of them."""
        current = self.find(task)
        if current is None:
            return self
        others = replace(self, tasks=tuple(each for each in self.tasks if each is not current))
        made = others.add(replace(current, name=name, oid=oid) for oid, name in leaves.items())
        requests = self.requests
        for name in current.askers:
            request = find_request(requests, name)
            if request is not None and not request.has_ended:
                more = made.awaited(name) - self.awaited(name)
                requests = with_request(requests, replace(request, tables=request.tables + more))
        return replace(made, requests=requests)

    def awaited(self, request: str) -> int:
        """How many tables the request with this name waits for."""
        return sum(request in task.askers for task in self.tasks)

    def begin_next(self, names: Mapping[int, str]) -> tuple[Self, TableTask] | None:
        """Take the next table of `waiting` among the tasks; None: there is none. `names` are by oid."""
        if self.begun >= len(self.waiting):
            return None
        oid = self.waiting.oids[self.begun]
        request = ADDED if oid in self.added else ""
        task = TableTask(names.get(oid, ""), oid, request=request, number=self.next_number)
        return (
            replace(self, tasks=(*self.tasks, task), begun=self.begun + 1, next_number=self.next_number + 1),
            task,
        )

    def await_added(self, oids: Iterable[int]) -> Self:
        """Read these tables too, which were added to the publication, after the tables that are waiting.

        Many tables may be added at once, so they are in `waiting` until their reading begins: the record has a few
        bits for each of them, and a task would have its name.
        """
        left = frozenset(self.waiting.oids[self.begun :])
        new = left.union(oids) - left
        if not new:
            return self
        added = new.union(left.intersection(self.added.oids))
        return replace(self, waiting=Oids(left | new), begun=0, added=Oids(added))

    def take_from_waiting(self, oid: int) -> Self:
        """Remove a table from `waiting`, because another task reads it."""
        left = self.waiting.oids[self.begun :]
        return replace(self, waiting=Oids(left).without((oid,)), begun=0) if oid in left else self

    def plan(self, task: TableTask, oid: int, name: str, parts: tuple[Part, ...] | None, form: int) -> Self:
        """What is to be read of the table, for the first time or again."""
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

    def end_rows(self, task: TableTask) -> Self:
        """The truncate record before the rows of a table without a key is in the same Kafka transaction.

        No row of it counts as read.
        """
        return self._update(task, parts=None, owed=(), unsettled=False, ended=True)

    def begin(self, task: TableTask, unix_s: int) -> Self:
        """The table is read from now on, unless it was before."""
        current = self.find(task)
        return self if current is None or current.began else self._update(task, began=unix_s)

    def end_gone(self, task: TableTask) -> Self:
        """Return the progress without the task, whose table was dropped or is not published any more."""
        current = self.find(task)
        if current is None:
            return self
        return replace(
            self,
            tasks=tuple(each for each in self.tasks if each is not current),
            complete=self.complete + 1,
            outdated=self.outdated.without((current.oid,)),
        )

    def end(self, task: TableTask, error: str = "", *, code: int = 0, unix_s: int = 0) -> Self:
        """The table is complete, or cannot be read: `code` is the exit code that `error` stands for.

        A table that cannot be read keeps its former rows, because nothing would replace them.
        """
        current = self.find(task)
        if current is None:
            return self
        outcome = Outcome(
            current.name,
            current.request,
            current.rows,
            error[:TEXT_MAX],
            current.asked,
            current.began,
            unix_s,
        )
        requests = self.requests
        for name in current.askers:
            request = find_request(requests, name)
            if request is not None:
                requests = with_request(requests, request.end_table(current.rows, error, code, unix_s))
        return replace(
            self,
            tasks=tuple(each for each in self.tasks if each is not current),
            outcomes=remember(self.outcomes, outcome),
            complete=self.complete + (not error),
            failed=self.failed + bool(error),
            requests=requests,
            outdated=self.outdated.without((current.oid,)) if error else self.outdated,
        )

    def end_former_rows(self, oids: Iterable[int]) -> Self:
        """The truncate records of these tables are in the same Kafka transaction as the progress."""
        left = self.outdated.without(oids)
        return self if left is self.outdated else replace(self, outdated=left)

    def end_healing(self, healed: Collection[int]) -> Self:
        """The attempt has ended: the topics of the tables in `healed` equal the tables, so these need not be read."""
        left = [oid for oid in self.waiting.oids[self.begun :] if oid not in healed]
        return replace(
            self,
            healing=_NOTHING,
            gap=0,
            waiting=Oids(left),
            begun=0,
            outdated=self.outdated.without(healed),
            complete=self.complete + len(healed),
        )

    def request(self, name: str, tables: int, unix_s: int) -> Self:
        """The request with this name asks for so many tables more. One that has ended begins again."""
        found = find_request(self.requests, name)
        if found is None or found.has_ended:
            found = Requested(name, asked=unix_s)
        asked = replace(found, tables=found.tables + tables)
        return replace(self, requests=with_request(self.requests, asked))

    def refuse(self, name: str, error: str, code: int, unix_s: int) -> Self:
        """The request with this name was refused. An earlier one of the name that is open goes on."""
        found = find_request(self.requests, name)
        if found is not None and not found.has_ended:
            return self
        refused = Requested(name, asked=unix_s, ended=unix_s, error=error[:TEXT_MAX], code=code)
        return replace(self, requests=with_request(self.requests, refused))

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
            "tasks": [task_json(task) for task in self.tasks],
            "paused": self.paused,
            "serial": self.event_no,
            "outcomes": [outcome_json(each) for each in self.outcomes],
            "requests": [request_json(each) for each in self.requests],
        }
        if self.complete or self.failed:
            fields["ended"] = [self.complete, self.failed]
        if self.begun < len(self.waiting):
            within = "" if self.known is None else self.waiting.text_within(self.known)
            fields["waiting"] = [within or self.waiting.text(), self.begun, bool(within)]
            if len(self.added):
                within = "" if self.known is None else self.added.text_within(self.known)
                fields["added"] = [within or self.added.text(), bool(within)]
        if self.vacated:
            fields["vacated"] = Oids(self.vacated).text()
        if self.known is not None and len(self.unlisted):
            fields["unlisted"] = self.unlisted.text_within(self.known)
        if len(self.outdated):
            fields["outdated"] = self.outdated.text()
        if len(self.healing):
            fields["healing"] = self.healing.text()
            fields["gap"] = self.gap
        if self.labels:
            fields["labels"] = self.labels
        if self.newest_member:
            fields["member"] = self.newest_member
        if self.partitions:
            fields["partitions"] = self.partitions
        fields = {name: value for name, value in fields.items() if value}
        return fields if self.known is None else {**fields, "known": self.known.text()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError or IndexError when it is not what `to_json` writes."""
        method = fields["method"]
        if method not in (EXPORTED, INCREMENTAL):
            raise ValueError(f"{bounded_json.shown(method)} is not a method")
        known = fields.get("known")
        tasks = tuple(
            replace(task_from(bounded_json.fields(each)), number=number)
            for number, each in enumerate(fields.get("tasks", ()), start=1)
        )
        # Before there were names in it, the record had a plain list of oids.
        known = (
            None
            if known is None
            else Oids(map(bounded_json.count, known))
            if isinstance(known, list)
            else Oids.parse(known)
        )
        unlisted = fields.get("unlisted", "")
        waiting, begun, within = fields.get("waiting", ("", 0, False))
        added, added_within = fields.get("added", ("", False))
        complete, failed = fields.get("ended", (0, 0))
        return cls(
            method=method,
            tasks=tasks,
            paused=bool(fields.get("paused")),
            event_no=bounded_json.count(fields.get("serial", 0)),
            outcomes=tuple(outcome_from(*each) for each in fields.get("outcomes", ())),
            requests=tuple(request_from(*each) for each in fields.get("requests", ())),
            complete=bounded_json.count(complete),
            failed=bounded_json.count(failed),
            known=known,
            vacated=Oids.parse(fields["vacated"]).oids if "vacated" in fields else (),
            unlisted=_NOTHING if known is None else _oids_from(unlisted, known),
            outdated=_oids_from(fields.get("outdated", ""), None),
            healing=_oids_from(fields.get("healing", ""), None),
            gap=bounded_json.count(fields.get("gap", 0)),
            labels=bounded_json.whole(fields.get("labels", 0)),
            newest_member=bounded_json.count(fields.get("member", 0)),
            partitions=_partitions_from(bounded_json.text(fields.get("partitions", ""))),
            waiting=_oids_from(waiting, known if within else None),
            begun=bounded_json.count(begun),
            added=_oids_from(added, known if added_within else None),
            next_number=len(tasks) + 1,
        )


def _partitions_from(text: str) -> str:
    recalled(text)
    return text


def _oids_from(text: str, all_: Oids | None) -> Oids:
    if not text:
        return _NOTHING
    return Oids.parse(text) if all_ is None else Oids.parse_within(text, all_)
