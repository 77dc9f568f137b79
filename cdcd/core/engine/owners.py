"""Which table's rows each topic has: a table is identified by its oid, a topic by the name that the table had.

The rule: a topic has the rows of one table, which is its owner. If tables share a topic, each owns its share of it
(`catalog/sharing.py`). Every name for which records were written is listed
here, either with its owner or as vacated. A vacated name is one that its owner does not have any more, so its topic
may have rows that belong to no table: whichever table takes the name next begins with a truncate record, even if it
had the name before.

An `Owners` describes one position in the stream. The engine has two of them: one at the position up to which it has
decoded, and one at the position up to which it has delivered, which goes into the checkpoint. To save space, the
record has checksums of names (16 bits each) instead of the names. So a name that a table had when the record was
written, but does not have any more, is known by its checksum only (`_by_sum`). If two names have the same checksum,
the only effect is a truncate record and a reading of a table that were not needed.
"""

from collections.abc import Mapping
from typing import Final, Self

from cdcd.core.catalog.oids import Oids, name_sum
from cdcd.core.table_names import split_table

VACATED_MAX: Final = 512
"""Number of vacated names that are remembered one by one. If there are more, any name is taken to be vacated
(`ANY_NAME`)."""

GONE_MAX: Final = 1024
"""Number of dropped or unpublished tables that keep their topics. If there are more, any name is taken to be
vacated."""

ANY_NAME: Final = 1 << 16
"""Value among the checksums of vacated names that stands for all names."""


class Owners:
    """The owners of topics, by the names of tables.

    Attributes:
        names: names of the owners by oid, without owners whose name is known only by its checksum.
        unlisted: oids of owners for which it is not decided whether their existing rows are read. Such a table had
            changes under a name that was free, but no list of published tables has named it since; or it was
            dropped or unpublished. It is added as soon as a list of published tables names it.
        gone: those of them that were dropped, or left the publication.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.unlisted: set[int] = set()
        self.gone: set[int] = set()
        self._owners: dict[str, int] = {}
        self._by_sum: dict[int, list[int]] = {}
        """Owners that are known by the checksum of their name only, by that checksum."""
        self._sums: dict[int, int] = {}
        """The checksums of the names of all owners, by oid."""
        self._vacated: dict[int, int] = {}
        """The last owner of each vacated name, by the checksum of the name; 0 if the owner is not known."""

    @classmethod
    def of(cls, published: Mapping[int, str]) -> Self:
        """Return an `Owners` in which each of these tables owns its name; `published` is by oid."""
        made = cls()
        for oid, name in published.items():
            made._own(oid, name)
        return made

    @classmethod
    def from_record(
        cls, known: Oids, vacated: tuple[int, ...], unlisted: Oids, published: Mapping[int, str]
    ) -> Self:
        """Return the `Owners` that the record describes; `published` has the present names by oid.

        A record of earlier versions has no checksums, so its tables are taken to have had their present names.
        """
        made = cls()
        made._vacated = dict.fromkeys(vacated, 0)
        for oid in known.oids:
            name, before = published.get(oid, ""), known.sum_of(oid)
            # Earlier versions wrote names with dots without quotes.
            plain = ".".join(split_table(name))
            if name and before in (None, name_sum(name), name_sum(plain)):
                made._own(oid, name)
            elif before is not None:
                made._by_sum.setdefault(before, []).append(oid)
                made._sums[oid] = before
                if not name:
                    made.gone.add(oid)
        made.unlisted = made.gone | {oid for oid in unlisted.oids if oid in made._sums}
        return made

    def known(self) -> Oids:
        """Return all owners with the checksums of their names, for the record."""
        return Oids.with_sums(self._sums)

    def vacated(self) -> tuple[int, ...]:
        """Return the checksums of vacated names, for the record."""
        return tuple(sorted(self._vacated))

    def owns(self, oid: int, name: str) -> bool:
        """Return whether the topic of this name has the rows of this table and no others."""
        owner = self._owners.get(name)
        if owner is not None:
            return owner == oid
        return oid not in self.names and self._sums.get(oid) == name_sum(name)

    def former(self, name: str) -> int | None:
        """Return the oid of the table whose rows the topic of this name has or had last; 0 if the oid is not known.

        None if the topic has rows of no table.
        """
        owner = self._owners.get(name)
        if owner is not None:
            return owner
        checksum = name_sum(name)
        if checksum in self._by_sum:
            return self._by_sum[checksum][0]
        return self._vacated.get(checksum, self._vacated.get(ANY_NAME))

    def owns_any(self, oid: int) -> bool:
        """Return whether the table owns a topic."""
        return oid in self._sums

    def take(self, oid: int, name: str) -> None:
        """Make the table the owner of the name: its records go to this topic from now on.

        The table that owned the name before does not own it any more.
        """
        if self.owns(oid, name):
            if oid not in self.names:
                # Only the checksum of the name was known.
                self._disown_sum(oid)
                self._own(oid, name)
            return
        left = self._sums.get(oid)
        if left is not None:
            self._disown(oid)
            self._vacate(left, oid)
        checksum = name_sum(name)
        former = [self._owners[name]] if name in self._owners else self._by_sum.get(checksum, []).copy()
        for each in former:
            self._disown(each)
        # If several owners have this checksum, it is unknown which of them had the name, so it counts as vacated for
        # the others.
        if len(former) <= 1:
            self._vacated.pop(checksum, None)
        else:
            self._vacate(checksum, 0)
        self._own(oid, name)

    def let_go(self, oid: int) -> None:
        """Note that the table was dropped, or has left the publication.

        It still owns its topic, so it is added again if it comes back.
        """
        if oid not in self._sums:
            return
        self.unlisted.add(oid)
        self.gone.add(oid)
        if len(self.gone) > GONE_MAX:
            for each in list(self.gone):
                self._disown(each)
            self._vacated = {ANY_NAME: 0}

    def vacate(self, oid: int) -> None:
        """Note that the rows in the table's topic are of no table any more, also if this table comes back."""
        checksum = self._sums.get(oid)
        if checksum is not None:
            self._disown(oid)
            self._vacate(checksum, oid)

    def settle(self, oid: int) -> None:
        """Note that it is decided whether the table's existing rows are read."""
        self.unlisted.discard(oid)
        self.gone.discard(oid)

    def _own(self, oid: int, name: str) -> None:
        self.names[oid] = name
        self._owners[name] = oid
        self._sums[oid] = name_sum(name)

    def _disown(self, oid: int) -> None:
        name = self.names.pop(oid, None)
        if name is not None:
            del self._owners[name]
        else:
            self._disown_sum(oid)
        del self._sums[oid]
        self.settle(oid)

    def _disown_sum(self, oid: int) -> None:
        """Forget the owner of a name if cdcd knows only the checksum of that name."""
        checksum = self._sums[oid]
        self._by_sum[checksum].remove(oid)
        if not self._by_sum[checksum]:
            del self._by_sum[checksum]

    def _vacate(self, checksum: int, oid: int) -> None:
        self._vacated[checksum] = oid
        if len(self._vacated) > VACATED_MAX:
            self._vacated = {ANY_NAME: 0}
