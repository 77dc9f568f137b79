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
from cdcd.snapshots.progress import Oids, TableTask, name_sum
from cdcd.snapshots.signals import ADDED, REPLACED

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
        self._former: dict[int, int] = {}
        """Tables that had another name when we last looked, by the checksum of that name."""
        self._names: dict[int, str] = {}
        self._delivered: dict[int, str] = {}
        """Names whose consequences are delivered: these are written down."""
        self._due: dict[int, tuple[int, str]] = {}
        """Tables that were listed in another one's place: from which position on, and the name."""
        self._looked: set[int] = set()
        """Those of them that are described under that name."""
        known = incremental.progress.known
        if known is None:
            self._owners = {name: oid for oid, name in published.items()}
            self._names = dict(published)
            self._delivered = dict(published)
            self._write_down()
            return
        for oid in known.oids:
            name = published.get(oid, "")
            before = known.sum_of(oid)
            if name and before in (None, name_sum(name)):
                self._owners[name] = oid
                self._names[oid] = self._delivered[oid] = name
            elif before is not None:
                self._former[before] = oid

    def known_oids(self) -> frozenset[int]:
        """Tables whose number of rows nobody needs to estimate."""
        return frozenset(self._names)

    def is_new(self, oid: int, name: str) -> bool:
        """Whether the table had another name until now, or none."""
        return self._owners.get(name) != oid

    def described(self, oid: int, name: str) -> bool:
        """A table has its first event under a name. True: it takes another one's place; the caller owes `replace`.

        A name that no table had is left to the next list, which says whether the table's rows are to be read.
        """
        if not self.is_new(oid, name):
            return False
        former = self._owner_before(name)
        if former is None:
            return False
        self._take_name(oid, name)
        if former == oid:
            self._delivered[oid] = name
            return False
        self._say_replaced(name, former, oid)
        return True

    def listed(self, answer: Published) -> list[int]:
        """What is published, as of a moment that the stream may not have reached.

        Returns:
            Tables that took the place of others. The caller owes the description of each, by `looked` or `forget`;
            then they come up in `due`.
        """
        for oid in self._names.keys() - answer.tables.keys():
            self._leave_name(oid)
            del self._names[oid]
        found = []
        for oid, name in answer.tables.items():
            if self._owners.get(name) == oid or oid in self._due:
                continue
            former = self._owner_before(name)
            if former in (None, oid):
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
        for oid, (after, name) in list(self._due.items()):
            if after > position or oid not in self._looked or not has_topic(oid):
                continue
            self.forget(oid)
            if self.described(oid, name):
                found.append(oid)
        return found

    def forget(self, oid: int) -> None:
        """The table that was to take another one's place is not there: if it comes back it is listed again."""
        self._due.pop(oid, None)
        self._looked.discard(oid)

    def replace(self, oid: int) -> None:
        """Read the table from its beginning; call it when the end of the former one's rows is on its way."""
        name = self._delivered[oid] = self._names[oid]
        self._write_down()
        if self._reads:
            self._incremental.read_anew(oid, name, REPLACED)

    def _owner_before(self, name: str) -> int | None:
        owner = self._owners.get(name)
        return self._former.get(name_sum(name)) if owner is None else owner

    def _take_name(self, oid: int, name: str) -> None:
        self._leave_name(oid)
        self._owners[name] = oid
        self._names[oid] = name

    def _leave_name(self, oid: int) -> None:
        """Whoever takes the table's name next is another table under a known name."""
        before = self._names.get(oid)
        if before is not None and self._owners.get(before) == oid:
            self._former[name_sum(before)] = oid
            del self._owners[before]

    def _added(self, oid: int, name: str, rows: int) -> None:
        """It has a name that no table had: it is new in the publication, or was renamed."""
        self._take_name(oid, name)
        self._delivered[oid] = name
        read = self._reads_added and not self._excluded(name)
        self._write_down()
        if read:
            self._incremental.add([TableTask(name, oid, request=ADDED)])
        self._observe(
            TableAdded(table=name, rows=rows, read=read, command="" if read else _COMMAND.format(name))
        )

    def _say_replaced(self, name: str, former: int, oid: int) -> None:
        self._observe(
            TableReplaced(table=name, former_oid=former, oid=oid, truncated=self._reads, read=self._reads)
        )

    def _write_down(self) -> None:
        incremental = self._incremental
        known = Oids(self._delivered, self._delivered)
        if known != incremental.progress.known:
            incremental.replace(replace(incremental.progress, known=known))
