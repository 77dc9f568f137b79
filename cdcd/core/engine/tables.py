"""Which table has which name: a table is known by its oid, and its topic by its name.

The rule: a topic holds the rows of one table. Where another table gets the name (two renames, DROP and CREATE), or a
table comes back to a name that it had left, a truncate record ends the rows in the topic at that place in the stream,
and the table is read, unless `snapshot.mode: never` says that rows are nobody's concern. A table that is renamed to a
name that no table had is read too, because its rows are in the topic of its former name; the truncate record tells a
reader that the rows of the table begin there. A table that is added to the publication is read where
`snapshot.added_tables` says so; where it does not, a fact says about how many rows were left out.

There are two sources. A Relation message tells where in the stream a name changed hands, but comes only with a
table's next change. A list of what is published is as of now, which the stream may be far behind: what it says counts
when the stream is past it (`Published.after`). A table that was taken out of the publication and added again is in each
of two lists, by another entry of the publication (`Published.members`).

What is decoded (`_seen`) is ahead of what is delivered (`_delivered`), and only the latter may be in the checkpoint. A
new table that takes a free name has no rows of others to end, but makes rows itself. The checkpoint has the table as
the owner of the name together with its first row, because another process may be there when another table takes the
name.

After a gap (`snapshot.mode: when_needed`), the topics of the tables that are read again have rows that may have been
deleted in the gap (`Progress.outdated`). A truncate record ends them, once, before the table's next record.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.actions import Published
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.owners import Owners
from cdcd.core.facts import Observer
from cdcd.core.facts.tables import TableAdded, TableReplaced
from cdcd.core.pasted import read_table
from cdcd.core.snapshot.signals import REPLACED, RESUMED


class PublishedTables:
    """The published tables as the stream has seen them, by name.

    Args:
        published: those of now, by oid. What the progress knows from before, of which only checksums of names are
            kept, is compared with them.
        reads: rows of tables are anybody's concern.
        reads_added: tables that are added are read.
        ends_rows: the caller makes truncate records where it owes them, if rows are anybody's concern.
        excluded: whether a table is read on demand only.
    """

    def __init__(
        self,
        incremental: Incremental,
        published: Mapping[int, str],
        *,
        reads: bool,
        reads_added: bool,
        ends_rows: bool = True,
        excluded: Callable[[str], bool],
        observe: Observer,
    ) -> None:
        self._incremental = incremental
        self._reads = reads
        self._reads_added = reads_added
        self._ends_rows = reads and ends_rows
        self._excluded = excluded
        self._observe = observe
        self._due: dict[int, tuple[int, str]] = {}
        """Tables that were listed under another name than the stream has: from which position on, and the name."""
        self._listed: Mapping[int, str] = {}
        """The published tables that were listed last."""
        self._looked: set[int] = set()
        """Those of them that are described under that name."""
        self._gone: dict[int, int] = {}
        """Tables that were listed no more, and from which position on."""
        self._is_first = True
        """True until the published tables are listed for the first time in the session."""
        self._members: dict[int, int] = {}
        """By oid, the entries of the publication that were listed last."""
        self._rejoined: dict[int, int] = {}
        """Tables that were taken out of the publication and added again, and from which position on."""
        self._seen = self._read_back(published)
        self._delivered = self._read_back(published)
        if not self._ends_rows:
            incremental.tasks.replace(
                incremental.progress.end_former_rows(incremental.progress.outdated.oids)
            )
        self._ended: set[int] = set()
        """Outdated tables whose former rows end with a record that is decoded, and not yet in the queue."""
        self._write_down()

    @property
    def ends_rows(self) -> bool:
        """True if a truncate record ends the former rows of a topic, which the caller makes where it owes one."""
        return self._ends_rows

    def outdated(self) -> list[int]:
        """Tables whose topics have rows from before a gap. They are not read while they are among these."""
        return [oid for oid in self._incremental.progress.outdated.oids if oid not in self._ended]

    def is_outdated(self, oid: int) -> bool:
        """Whether the table's topic has rows from before a gap."""
        return oid in self._incremental.progress.outdated and oid not in self._ended

    def bring_back(self, oid: int, name: str) -> bool:
        """A table that was set aside comes back: its former rows end with its next record, and it is read again.

        Returns:
            Whether its rows are read.
        """
        if not self._reads:
            return False
        incremental = self._incremental
        incremental.read_anew(oid, name, RESUMED)
        if self._seen.owns_any(oid):
            self._end_rows_of([oid])
        return True

    def owes_end(self, oid: int) -> bool:
        """Return whether a record that ends the former rows of the table's topic may follow."""
        return oid in self._due or oid in self._incremental.progress.outdated

    def _end_rows_of(self, oids: Collection[int]) -> None:
        """A truncate record ends the former rows of these tables before they are read."""
        if self._ends_rows and oids:
            self._ended.difference_update(oids)
            progress = self._incremental.progress
            outdated = Oids([*progress.outdated.oids, *oids])
            self._incremental.tasks.replace(replace(progress, outdated=outdated))

    def vacate(self, oid: int) -> None:
        """A table that was set aside has left the publication: its topic lacks changes, whoever has the name next."""
        self._gone.pop(oid, None)
        self._rejoined.pop(oid, None)
        # A later entry of the publication is that of a table that is read then.
        self._members.pop(oid, None)
        self._ended.discard(oid)
        self._incremental.tasks.replace(self._incremental.progress.end_former_rows((oid,)))
        for owners in (self._seen, self._delivered):
            owners.vacate(oid)
        self._write_down()

    def end_outdated(self, oids: Collection[int]) -> None:
        """The truncate records of these tables are put into the queue now."""
        self._incremental.tasks.replace(self._incremental.progress.end_former_rows(oids))

    def _read_back(self, published: Mapping[int, str]) -> Owners:
        progress = self._incremental.progress
        if progress.known is None:
            return Owners.of(published)
        return Owners.from_record(progress.known, progress.vacated, progress.unlisted, published)

    def known_oids(self) -> frozenset[int]:
        """Tables whose number of rows nobody needs to estimate."""
        return frozenset(self._seen.names) - self._seen.unlisted

    def oids(self) -> Mapping[int, str]:
        """The tables of which the stream knows, as `schema.table`, by oid."""
        return self._seen.names

    def by_name(self) -> dict[str, int]:
        """The oids of the tables, by `schema.table`: the names in the stream, and those that were listed last."""
        names = {**self._seen.names, **self._listed}
        return {name: oid for oid, name in names.items()}

    def is_new(self, oid: int, name: str) -> bool:
        """Whether the table had another name in the stream until now, or none; or is outdated.

        None of its rows may be sent before an event of it was `described`.
        """
        return not self._seen.owns(oid, name) or self.is_outdated(oid)

    def described(self, oid: int, name: str) -> bool:
        """A table has its first event under a name.

        The caller owes `settle`, in time to be delivered together with the event. True: the caller also owes a
        truncate record before the event, because the topic may have rows that are no table's any more.
        """
        seen = self._seen
        is_outdated = self.is_outdated(oid)
        if is_outdated:
            self._ended.add(oid)
        if seen.owns(oid, name):
            seen.take(oid, name)
            return is_outdated
        former = self._former(seen, oid, name)
        seen.take(oid, name)
        if former is None:
            seen.unlisted.add(oid)
            return is_outdated
        self._observe(
            TableReplaced(table=name, former_oid=former, oid=oid, truncated=self._ends_rows, read=self._reads)
        )
        return True

    def settle(self, oid: int, name: str) -> None:
        """What `described` took note of is delivered with what is put into the queue now."""
        delivered = self._delivered
        if oid in self._ended:
            self._ended.discard(oid)
            self.end_outdated((oid,))
        if delivered.owns(oid, name):
            return
        is_new = self._former(delivered, oid, name) is None
        delivered.take(oid, name)
        if is_new:
            delivered.unlisted.add(oid)
        self._write_down()
        if not is_new and self._reads:
            self._incremental.read_anew(oid, name, REPLACED)

    def _former(self, owners: Owners, oid: int, name: str) -> int | None:
        """The oid of the table whose rows a table must not be taken for under a name; 0: the oid is not known.

        The table's own oid, if the table has left its rows in the topic of a former name. None: the table is new. It is
        taken for new too if it is not to be read, because then a truncate record would say that it has no other rows.
        """
        former = owners.former(name)
        if former is None and owners.owns_any(oid) and self._reads and not self._excluded(name):
            return oid
        return former

    def left(self, oid: int, name: str) -> bool:
        """A table has its first event under a name that the pipeline leaves out, so its topic lacks what changed.

        If it comes back to its former name, it is another table there. True: the caller owes `settle_left`, in time to
        be delivered together with the event.
        """
        seen = self._seen
        if not seen.owns_any(oid) or seen.owns(oid, name):
            return False
        seen.take(oid, name)
        return True

    def settle_left(self, oid: int, name: str) -> None:
        """What `left` took note of is delivered with what is put into the queue now."""
        self._delivered.take(oid, name)
        self._write_down()

    def listed(self, answer: Published) -> list[int]:
        """What is published, as of a moment that the stream may not have reached.

        Returns:
            Tables that took the place of others, or that are outdated. The caller owes the description of each, by
            `looked` or `forget`; then they come up in `due`.
        """
        progress = self._incremental.progress
        if answer.partitions is not None and answer.partitions != progress.partitions:
            self._incremental.tasks.replace(replace(progress, partitions=answer.partitions))
        self._listed = answer.tables
        seen = self._seen
        for oid in seen.names.keys() - answer.tables.keys() - seen.gone:
            self._gone.setdefault(oid, answer.after)
        self._note_members(answer)
        found, added = [], []
        for oid, name in answer.tables.items():
            self._gone.pop(oid, None)
            if oid in self._due:
                continue
            if seen.owns(oid, name):
                if oid in seen.unlisted:
                    added.append(oid)
                if self.is_outdated(oid):
                    # Every position of the stream is after the gap.
                    self._due[oid] = (0, name)
                    found.append(oid)
            elif seen.former(name) is None and not seen.owns_any(oid):
                added.append(oid)
            else:
                self._due[oid] = (answer.after, name)
                found.append(oid)
        if added:
            self._add({oid: answer.tables[oid] for oid in added}, answer.estimates)
        return found

    def _note_members(self, answer: Published) -> None:
        """Find tables that left the publication and came back. Changes in between are in no topic.

        A new entry has a higher number than all entries before. So the checkpoint needs only the highest one to tell
        what happened before the session's first list.
        """
        seen = self._seen
        progress = self._incremental.progress
        newest = progress.newest_member or answer.newest_before
        for oid, member in answer.members.items():
            is_known = oid not in seen.unlisted and seen.owns(oid, answer.tables.get(oid, ""))
            before = self._members.get(oid)
            is_new = self._is_first and 0 < newest < member if before is None else before != member
            if is_new and is_known:
                self._rejoined[oid] = answer.after
        self._is_first = False
        newest = max(answer.members.values(), default=newest)
        if newest > progress.newest_member and not self._rejoined:
            # Tables that have joined again are in the checkpoint first, as tables that left.
            self._incremental.tasks.replace(replace(progress, newest_member=newest))
        self._members = {
            oid: member
            for oid, member in {**self._members, **answer.members}.items()
            if oid in answer.members or seen.owns_any(oid)
        }

    def looked(self, oid: int, name: str) -> None:
        """The table is described under this name."""
        if oid in self._due and self._due[oid][1] == name:
            self._looked.add(oid)
        else:
            self.forget(oid)

    def due(self, position: int, has_topic: Callable[[int], bool]) -> list[int]:
        """The stream has got to `position`, between two transactions: tables that took the place of others before it.
        Outdated tables are among them.

        The caller owes a truncate record for each of them, and then `replace`.

        Args:
            has_topic: whether records of the table can be sent; one that has none yet waits.
        """
        found = []
        for oid, (after, name) in list(self._due.items()) if self._due else ():
            if after > position or oid not in self._looked or not has_topic(oid):
                continue
            self.forget(oid)
            if self.described(oid, name):
                found.append(oid)
            else:
                self.settle(oid, name)
        for left in (self._gone, self._rejoined):
            if left:
                self._let_go(left, [oid for oid, after in left.items() if after <= position])
        return found

    def _let_go(self, left: dict[int, int], gone: list[int]) -> None:
        """They were dropped, or left the publication. `left` has them."""
        for oid in gone:
            del left[oid]
            self._seen.let_go(oid)
            self._delivered.let_go(oid)
        if gone:
            self._write_down()

    def forget(self, oid: int) -> None:
        """The table that was to take another one's place is not there: if it comes back it is listed again."""
        self._due.pop(oid, None)
        self._looked.discard(oid)

    def replace(self, oid: int) -> None:
        """A table that was due is read from its beginning; the end of the former one's rows is on its way."""
        self.settle(oid, self._seen.names[oid])

    def _add(self, added: Mapping[int, str], estimates: Mapping[int, int]) -> None:
        """Add tables under names that no table had. They are new in the publication, renamed, or back in it."""
        back = [oid for oid in added if oid in self._seen.gone]
        for oid, name in added.items():
            for owners in (self._seen, self._delivered):
                owners.take(oid, name)
                owners.settle(oid)
        self._write_down()
        read = {oid: name for oid, name in added.items() if self._reads_added and not self._excluded(name)}
        self._incremental.tasks.await_added(read)
        # Rows may have been deleted while the table was not published.
        self._end_rows_of([oid for oid in back if oid in read])
        for oid, name in added.items():
            command = "" if oid in read else read_table(name)
            rows = estimates.get(oid, 0)
            self._observe(TableAdded(table=name, rows=rows, read=oid in read, command=command))

    def _write_down(self) -> None:
        incremental, delivered = self._incremental, self._delivered
        progress = replace(
            incremental.progress,
            known=delivered.known(),
            vacated=delivered.vacated(),
            unlisted=Oids(delivered.unlisted),
        )
        if progress != incremental.progress:
            incremental.tasks.replace(progress)
