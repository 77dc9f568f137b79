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
        """By the checksum of a name: the table that had it where the stream is, and has it no more now."""
        self._vacated: set[int] = set(incremental.progress.vacated)
        """Checksums of names whose topics may hold rows of a table that has the name no more.

        Whoever takes such a name begins with a truncate record, also the table that had it before: what was deleted of
        it meanwhile is still in the topic.
        """
        self._names: dict[int, str] = {}
        self._unlisted: set[int] = set()
        """Tables that the stream described and no list had yet: they are added when one has them."""
        self._due: list[tuple[int, int, str]] = []
        known = incremental.progress.known
        if known is None:
            self._owners = {name: oid for oid, name in published.items()}
            self._names = dict(published)
            self._write_down()
            return
        for oid in known.oids:
            name = published.get(oid, "")
            before = known.sum_of(oid)
            if name and before in (None, name_sum(name)):
                self._owners[name] = oid
                self._names[oid] = name
            elif before is not None:
                self._former[before] = oid

    def known_oids(self) -> frozenset[int]:
        """Tables whose number of rows nobody needs to estimate."""
        return frozenset(self._names) - self._unlisted

    def is_new(self, oid: int, name: str) -> bool:
        """Whether the table had another name until now, or none."""
        return self._owners.get(name) != oid

    def described(self, oid: int, name: str) -> bool:
        """A table has its first event under a name. True: it takes another one's place; the caller owes `replace`."""
        if not self.is_new(oid, name):
            return False
        former = self._owners.get(name)
        replaces = former is not None or not self._is_free(oid, name)
        self._take_name(oid, name)
        if not replaces:
            self._unlisted.add(oid)
            return False
        self._unlisted.discard(oid)
        self._say_replaced(name, former or 0, oid)
        return True

    def listed(self, answer: Published) -> list[int]:
        """What is published, as of a moment that the stream may not have reached.

        Returns:
            Tables that took the place of others, whose description the caller owes; then they come up in `due`.
        """
        due = {oid for _, oid, _ in self._due}
        found = []
        for oid, name in answer.tables.items():
            owns = self._owners.get(name) == oid
            if (owns and oid not in self._unlisted) or oid in due:
                continue
            is_free = self._owners.get(name) is None and self._is_free(oid, name)
            # One that has another name in the stream yet is renamed when the stream is there.
            if owns or (is_free and oid not in self._names):
                self._unlisted.discard(oid)
                self._added(oid, name, answer.estimates.get(oid, 0))
            else:
                self._due.append((answer.after, oid, name))
                found.append(oid)
        return found

    def due(self, position: int, known: Callable[[int], bool]) -> list[int]:
        """The stream has got to `position`: tables that took the place of others before it; the caller owes `replace`.

        `known`: whether a table has been described; one that has not waits.
        """
        if not self._due:
            return []
        found = []
        later = []
        for after, oid, name in self._due:
            if after > position or not known(oid):
                later.append((after, oid, name))
            elif self.described(oid, name):
                found.append(oid)
        self._due = later
        return found

    def forget(self, oid: int) -> None:
        """The table that was to take another one's place can not be described: it is listed again."""
        self._due = [each for each in self._due if each[1] != oid]

    def replace(self, oid: int) -> None:
        """Read the table from its beginning."""
        self._write_down()
        if self._reads:
            self._incremental.read_anew(oid, self._names[oid], REPLACED)

    def _is_free(self, oid: int, name: str) -> bool:
        """Whether the name's topic has no rows but, perhaps, this table's, which it has had all the time."""
        at = name_sum(name)
        return at not in self._vacated and self._former.get(at) in (None, oid)

    def _take_name(self, oid: int, name: str) -> None:
        before = self._names.get(oid)
        if before is not None and self._owners.get(before) == oid:
            self._vacated.add(name_sum(before))
            del self._owners[before]
        for vacated in [each for each, former in self._former.items() if former == oid]:
            del self._former[vacated]
            self._vacated.add(vacated)
        self._former.pop(name_sum(name), None)
        self._vacated.discard(name_sum(name))
        self._owners[name] = oid
        self._names[oid] = name

    def _added(self, oid: int, name: str, rows: int) -> None:
        """It has a name that no table had: it is new in the publication, or was renamed."""
        self._take_name(oid, name)
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
        sums = {oid: former for former, oid in self._former.items()}
        sums |= {oid: name_sum(name) for oid, name in self._names.items() if oid not in self._unlisted}
        known, vacated = Oids.with_sums(sums), tuple(sorted(self._vacated))
        if known != incremental.progress.known or vacated != incremental.progress.vacated:
            incremental.replace(replace(incremental.progress, known=known, vacated=vacated))
