"""Which table has which name: a table is known by its oid, and its topic by its name.

The rule: a topic holds the rows of one table. Where another table gets the name (two renames, DROP and CREATE), the
rows of the former one are ended by a truncate record at that place in the stream, and the new table is read, unless
`snapshot.mode: never` says that rows are nobody's concern. A table that is added to the publication is read where
`snapshot.added_tables` says so; where it does not, a fact says about how many rows were left out.

There are two sources. A Relation message tells where in the stream a name changed hands, but comes only with a
table's next change. A list of what is published is as of now, which the stream may be far behind: what it says counts
when the stream is past it (`Published.after`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cdcd.engine.actions import Published
from cdcd.engine.incremental import Incremental
from cdcd.facts import Observer, TableAdded, TableReplaced
from cdcd.snapshots.oids import Oids, name_sum
from cdcd.snapshots.progress import TableTask
from cdcd.snapshots.signals import ADDED, REPLACED

VACATED_MAX: Final = 512
ANY_NAME: Final = 1 << 16
"""More names than these are not remembered one by one: then any new one is taken for a name that a table had."""

_COMMAND: Final = "cdcd snapshot start --table {}"


class PublishedTables:
    """The published tables as the stream has seen them, by name.

    Args:
        published: those of now, by oid. What the progress knows from before, of which only checksums of names are
            kept, is compared with them.
        reads: rows of tables are anybody's concern.
        reads_added: tables that are added are read.
        excluded: whether a table is read on demand only.
    """

    def __init__(
        self,
        incremental: Incremental,
        published: Mapping[int, str],
        *,
        reads: bool,
        reads_added: bool,
        excluded: Callable[[str], bool],
        observe: Observer,
    ) -> None:
        self._incremental = incremental
        self._reads = reads
        self._reads_added = reads_added
        self._excluded = excluded
        self._observe = observe
        self._owners: dict[str, int] = {}
        self._unnamed: dict[int, int] = {}
        """Tables of which the stream had another name than the list has now, by the checksum of that name."""
        self._vacated: dict[int, int] = dict.fromkeys(incremental.progress.vacated, 0)
        """Checksums of names whose topics may hold rows of a table that has the name no more, and its oid if known.

        Whoever takes such a name begins with a truncate record, also the table that had it before: what was deleted of
        it meanwhile is still in the topic. `ANY_NAME` stands for all names.
        """
        self._names: dict[int, str] = {}
        """The names that tables have in the stream."""
        self._delivered: dict[int, int] = {}
        """Checksums of names whose consequences are delivered: these are written down."""
        self._unlisted: set[int] = set()
        """Tables that the last list did not have: they are added when one has them."""
        self._due: dict[int, tuple[int, str]] = {}
        """Tables that were listed under another name than the stream has: from which position on, and the name."""
        self._looked: set[int] = set()
        """Those of them that are described under that name."""
        self._gone: dict[int, int] = {}
        """Tables that were listed no more, and from which position on."""
        known = incremental.progress.known
        if known is None:
            self._owners = {name: oid for oid, name in published.items()}
            self._names = dict(published)
            self._delivered = {oid: name_sum(name) for oid, name in published.items()}
            self._write_down()
            return
        for oid in known.oids:
            name = published.get(oid, "")
            before = known.sum_of(oid)
            if name and before in (None, name_sum(name)):
                self._owners[name] = oid
                self._names[oid] = name
                self._delivered[oid] = name_sum(name)
            elif before is not None:
                self._unnamed[before] = oid
                self._delivered[oid] = before
                if not name:
                    self._unlisted.add(oid)

    def known_oids(self) -> frozenset[int]:
        """Tables whose number of rows nobody needs to estimate."""
        return frozenset(self._names) - self._unlisted

    def is_new(self, oid: int, name: str) -> bool:
        """Whether the table had another name in the stream until now, or none."""
        return self._owner(name) != oid

    def described(self, oid: int, name: str) -> bool:
        """A table has its first event under a name. True: it takes another one's place; the caller owes `replace`."""
        if not self.is_new(oid, name):
            return False
        former = self._owner(name) or self._vacated.get(name_sum(name), 0)
        replaces = former > 0 or self._is_vacated(name)
        self._take_name(oid, name)
        if not replaces:
            self._unlisted.add(oid)
            return False
        self._unlisted.discard(oid)
        self._observe(
            TableReplaced(table=name, former_oid=former, oid=oid, truncated=self._reads, read=self._reads)
        )
        return True

    def listed(self, answer: Published) -> list[int]:
        """What is published, as of a moment that the stream may not have reached.

        Returns:
            Tables that took the place of others. The caller owes the description of each, by `looked` or `forget`;
            then they come up in `due`.
        """
        for oid in self._names.keys() - answer.tables.keys() - self._unlisted:
            self._gone.setdefault(oid, answer.after)
        found = []
        for oid, name in answer.tables.items():
            self._gone.pop(oid, None)
            if oid in self._due:
                continue
            owner = self._owner(name)
            if owner == oid:
                if oid in self._unlisted:
                    self._added(oid, name, answer.estimates.get(oid, 0))
            elif owner is None and not self._is_vacated(name) and not self._has_name(oid):
                self._added(oid, name, answer.estimates.get(oid, 0))
            else:
                self._due[oid] = (answer.after, name)
                found.append(oid)
        return found

    def looked(self, oid: int, name: str) -> None:
        """The table is described under this name."""
        if oid in self._due and self._due[oid][1] == name:
            self._looked.add(oid)
        else:
            self.forget(oid)

    def due(self, position: int, has_topic: Callable[[int], bool]) -> list[int]:
        """The stream has got to `position`: tables that took the place of others before it; the caller owes `replace`.

        `has_topic`: whether records of the table can be sent; one that has none yet waits.
        """
        found = []
        for oid, (after, name) in list(self._due.items()) if self._due else ():
            if after > position or oid not in self._looked or not has_topic(oid):
                continue
            self.forget(oid)
            if self.described(oid, name):
                found.append(oid)
        for oid, after in list(self._gone.items()) if self._gone else ():
            if after <= position:
                del self._gone[oid]
                self._let_go(oid)
        return found

    def _let_go(self, oid: int) -> None:
        """The table was dropped, or left the publication: if it comes back, it is added; its topic stays its own."""
        name = self._names.pop(oid, None)
        if name is not None and self._owners.get(name) == oid:
            del self._owners[name]
            self._unnamed[name_sum(name)] = oid
        self._unlisted.add(oid)

    def forget(self, oid: int) -> None:
        """The table that was to take another one's place is not there: if it comes back it is listed again."""
        self._due.pop(oid, None)
        self._looked.discard(oid)

    def replace(self, oid: int) -> None:
        """Read the table from its beginning; call it when the end of the former one's rows is on its way."""
        name = self._names[oid]
        self._delivered[oid] = name_sum(name)
        self._write_down()
        if self._reads:
            self._incremental.read_anew(oid, name, REPLACED)

    def _owner(self, name: str) -> int | None:
        owner = self._owners.get(name)
        return self._unnamed.get(name_sum(name)) if owner is None else owner

    def _has_name(self, oid: int) -> bool:
        """Whether the stream has the table under a name that it may be about to leave."""
        return oid in self._names or oid in self._unnamed.values()

    def _is_vacated(self, name: str) -> bool:
        return ANY_NAME in self._vacated or name_sum(name) in self._vacated

    def _take_name(self, oid: int, name: str) -> None:
        self._leave_name(oid)
        self._unnamed.pop(name_sum(name), None)
        self._vacated.pop(name_sum(name), None)
        self._owners[name] = oid
        self._names[oid] = name

    def _leave_name(self, oid: int) -> None:
        """Whoever takes the table's name next finds rows of this one under it."""
        before = self._names.get(oid)
        if before is not None and self._owners.get(before) == oid:
            self._vacated[name_sum(before)] = oid
            del self._owners[before]
        for checksum in [each for each, owner in self._unnamed.items() if owner == oid]:
            self._vacated[checksum] = oid
            del self._unnamed[checksum]
        if len(self._vacated) > VACATED_MAX:
            self._vacated = {ANY_NAME: 0}

    def _added(self, oid: int, name: str, rows: int) -> None:
        """It has a name that no table had: it is new in the publication, or was renamed."""
        self._take_name(oid, name)
        self._unlisted.discard(oid)
        self._delivered[oid] = name_sum(name)
        read = self._reads_added and not self._excluded(name)
        self._write_down()
        if read:
            self._incremental.add([TableTask(name, oid, request=ADDED)])
        self._observe(
            TableAdded(table=name, rows=rows, read=read, command="" if read else _COMMAND.format(name))
        )

    def _write_down(self) -> None:
        incremental = self._incremental
        known, vacated = Oids.with_sums(self._delivered), tuple(sorted(self._vacated))
        if known != incremental.progress.known or vacated != incremental.progress.vacated:
            incremental.replace(replace(incremental.progress, known=known, vacated=vacated))
