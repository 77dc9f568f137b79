"""Whose rows each topic has: a table is known by its oid, and its topic by the name that the table had.

The rule: a topic has the rows of one table, its owner. Every name under which records were made is here, with its
owner or as vacated. A vacated name is one that its owner has left, so the topic may have rows that no table has any
more: whoever takes the name next begins with a truncate record, also the table that had it before.

An `Owners` is true at one place in the stream. The engine has two of them: what it has decoded, and what is delivered,
which the checkpoint has. The record has checksums of names, 16 bits each, instead of names. So a name that a table had
when the record was written, and has no more, is known by its checksum only (`_by_sum`). Where two names have the same
checksum, a truncate record and a reading too much come of it.
"""

from collections.abc import Mapping
from typing import Final, Self

from cdcd.core.catalog.oids import Oids, name_sum

VACATED_MAX: Final = 512
"""How many vacated names are remembered one by one. Where there are more, any name may be vacated (`ANY_NAME`)."""

GONE_MAX: Final = 1024
"""How many tables that are gone keep their topics. Where there are more, any name may be vacated."""

ANY_NAME: Final = 1 << 16
"""Stands for all names among the checksums of vacated ones."""


class Owners:
    """The owners of topics, by the names of tables.

    Attributes:
        names: the names of owners, by oid; not of those that are known by the checksum of their name only.
        unlisted: owners of whose other rows nobody has decided yet. The table had changes under a name that was free,
            and no list of published tables has had it since; or it is gone. It is added when a list has it.
        gone: those of them that were dropped, or left the publication.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.unlisted: set[int] = set()
        self.gone: set[int] = set()
        self._owners: dict[str, int] = {}
        self._by_sum: dict[int, list[int]] = {}
        """Owners whose names are not known, by the checksums of those names."""
        self._sums: dict[int, int] = {}
        """The checksums of all owners' names, by oid."""
        self._vacated: dict[int, int] = {}
        """Checksums of vacated names, and their last owners; 0 where the owner is not known."""

    @classmethod
    def of(cls, published: Mapping[int, str]) -> Self:
        """Tables that own their names; `published` is by oid."""
        made = cls()
        for oid, name in published.items():
            made._own(oid, name)
        return made

    @classmethod
    def from_record(
        cls, known: Oids, vacated: tuple[int, ...], unlisted: Oids, published: Mapping[int, str]
    ) -> Self:
        """As `known`, `vacated` and `unlisted` have written it down; `published` has the names of now, by oid.

        A record of former versions has no checksums: its tables are taken to have the names of now.
        """
        made = cls()
        made._vacated = dict.fromkeys(vacated, 0)
        for oid in known.oids:
            name, before = published.get(oid, ""), known.sum_of(oid)
            if name and before in (None, name_sum(name)):
                made._own(oid, name)
            elif before is not None:
                made._by_sum.setdefault(before, []).append(oid)
                made._sums[oid] = before
                if not name:
                    made.gone.add(oid)
        made.unlisted = made.gone | {oid for oid in unlisted.oids if oid in made._sums}
        return made

    def known(self) -> Oids:
        """For the record: all owners, with the checksums of their names."""
        return Oids.with_sums(self._sums)

    def vacated(self) -> tuple[int, ...]:
        """For the record: the checksums of vacated names."""
        return tuple(sorted(self._vacated))

    def owns(self, oid: int, name: str) -> bool:
        """Whether the topic has the table's rows, and no others."""
        owner = self._owners.get(name)
        if owner is not None:
            return owner == oid
        return oid not in self.names and self._sums.get(oid) == name_sum(name)

    def former(self, name: str) -> int | None:
        """The oid of the table whose rows the topic has, or had last; 0: the oid is not known. None: no table."""
        owner = self._owners.get(name)
        if owner is not None:
            return owner
        checksum = name_sum(name)
        if checksum in self._by_sum:
            return self._by_sum[checksum][0]
        return self._vacated.get(checksum, self._vacated.get(ANY_NAME))

    def owns_any(self, oid: int) -> bool:
        """Whether the table owns some topic."""
        return oid in self._sums

    def take(self, oid: int, name: str) -> None:
        """The table's records have this name from here on. Those of its former owner end here."""
        if self.owns(oid, name):
            return
        left = self._sums.get(oid)
        if left is not None:
            self._disown(oid)
            self._vacate(left, oid)
        checksum = name_sum(name)
        former = [self._owners[name]] if name in self._owners else self._by_sum.get(checksum, []).copy()
        for each in former:
            self._disown(each)
        # Which of several owners had this name cannot be told: for the others it is as good as vacated.
        if len(former) <= 1:
            self._vacated.pop(checksum, None)
        else:
            self._vacate(checksum, 0)
        self._own(oid, name)

    def let_go(self, oid: int) -> None:
        """The table was dropped, or left the publication. Its topic stays its own: if it comes back, it is added."""
        if oid not in self._sums:
            return
        self.unlisted.add(oid)
        self.gone.add(oid)
        if len(self.gone) > GONE_MAX:
            for each in list(self.gone):
                self._disown(each)
            self._vacated = {ANY_NAME: 0}

    def settle(self, oid: int) -> None:
        """It is decided whether the table's rows are read."""
        self.unlisted.discard(oid)
        self.gone.discard(oid)

    def _own(self, oid: int, name: str) -> None:
        self.names[oid] = name
        self._owners[name] = oid
        self._sums[oid] = name_sum(name)

    def _disown(self, oid: int) -> None:
        checksum = self._sums.pop(oid)
        name = self.names.pop(oid, None)
        if name is not None:
            del self._owners[name]
        else:
            self._by_sum[checksum].remove(oid)
            if not self._by_sum[checksum]:
                del self._by_sum[checksum]
        self.settle(oid)

    def _vacate(self, checksum: int, oid: int) -> None:
        self._vacated[checksum] = oid
        if len(self._vacated) > VACATED_MAX:
            self._vacated = {ANY_NAME: 0}
