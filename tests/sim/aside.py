"""Faults of tables: which rows and topics are refused, and which records the topics lack because of that."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.errors import SourceError
from cdcd.core.protocol import peek
from cdcd.core.records.shaping.shape import Shape, ShapedPart
from cdcd.core.snapshot.signals import RESUME_TABLES
from cdcd.core.transactions.drafts import SpoolItem
from cdcd.core.transactions.position import Position
from tests.sim.catalog import Definition
from tests.sim.expected import TOMBSTONE, TOPIC_PREFIX, Expected, topic_of
from tests.sim.expected import Record as Seen

ROWS: Final = 31
"""One row of so many has a fault, as long as faults come."""


class RefusesRows(Shape):
    """Some rows cannot be encoded, always the same ones, until everything heals."""

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self._healthy = healthy

    @property
    def is_on(self) -> bool:
        return True

    def takes(self, item: SpoolItem, in_stream: bool) -> bool:
        if not isinstance(item, bytes) or peek.tag_of(item) not in peek.ROWS or self._healthy():
            return False
        return crc32(item[25:]) % ROWS == 0

    def parts(self, frame: bytes, in_stream: bool, now_us: int) -> list[ShapedPart] | None:
        if not self.takes(frame, in_stream):
            return None
        raise SourceError("the server did not send a part of the key")


@dataclass(slots=True)
class Interval:
    """A table's changes that commit from `since` on and before `until` may have no records; None: it is set aside."""

    since: int
    until: int | None = None


class AsideSeen:
    """What the daemon said of tables that are set aside."""

    def __init__(self) -> None:
        self._intervals: dict[int, list[Interval]] = {}
        self.left: dict[int, int] = {}
        """By oid: where tables that left the publication were not set aside any more."""
        self.mended = False
        """Nothing is at fault any more."""
        self.ends: set[str] = set()
        """Topics whose former rows may end."""

    def set_aside(self, oid: int, since: int) -> None:
        self._intervals.setdefault(oid, []).append(Interval(since))

    def returned(self, oid: int, name: str, until: int) -> None:
        self.ends.add(f"{TOPIC_PREFIX}.{name}")
        for each in self._intervals.get(oid, ()):
            if each.until is None:
                each.until = until

    def published_again(self, oid: int, name: str) -> None:
        """A table that left the publication while it was set aside is back: its former rows end, and it is read."""
        if oid in self.left:
            self.returned(oid, name, self.left.pop(oid))

    def begun(self, tables: Iterable[AsideTable], position: Position) -> None:
        """A session goes on from a checkpoint, which alone says which tables are set aside."""
        aside = {each.oid: each.since_lsn for each in tables}
        until = position.commit_lsn if position.events_done else position.end_lsn
        for intervals in self._intervals.values():
            for each in intervals:
                # A return behind the checkpoint is not true any more. A table that is set aside has an interval below.
                if each.until is None or each.until > until:
                    each.until = until
        for oid, since in aside.items():
            self._intervals.setdefault(oid, []).append(Interval(since))

    def found(self, tables: Iterable[AsideTable]) -> None:
        """Records from before the fault of a table that is set aside were refused, too."""
        for table in tables:
            for each in self._intervals.get(table.oid, ()):
                if each.until is None:
                    each.since = min(each.since, table.since_lsn)

    def may_lack(self, wanted: Expected) -> bool:
        """Whether the record may be missing."""
        # The rows of a table without a key have some changes, and may be missing because the table is set aside.
        return wanted.table is not None and any(
            (wanted.table.keyless or each.since <= wanted.commit_lsn)
            and (each.until is None or wanted.commit_lsn < each.until)
            for each in self._intervals.get(wanted.table.oid, ())
        )

    def must_lack_row(self, oid: int, commit_lsn: int) -> bool:
        """Whether a row of a snapshot has its place behind the one from where on its table is set aside."""
        intervals = self._intervals.get(oid, ())
        return any(each.until is None and each.since < commit_lsn for each in intervals)

    def may_end(self, topic: str) -> bool:
        """Whether the former rows of the topic may end. A route's topic is named after the table's own."""
        return topic in self.ends or topic.rpartition("-")[0] in self.ends

    def must_lack(self, wanted: Expected) -> bool:
        """Whether the table is set aside since a commit before that of the record."""
        return wanted.table is not None and any(
            each.since < wanted.commit_lsn and (each.until is None or wanted.commit_lsn < each.until)
            for each in self._intervals.get(wanted.table.oid, ())
        )

    def requests(self, definitions: Mapping[int, Definition]) -> list[bytes]:
        """What lets every table come back, by the names that the tables have now. Some of them are back already."""
        names = [definitions[oid].full_name for oid in sorted(self._intervals) if oid in definitions]
        return [json.dumps({"action": RESUME_TABLES, "tables": names}).encode()] if names else []


def is_tombstone_of(wanted: Expected, record: Seen) -> bool:
    """Whether the record, which has no value, may be the expected one."""
    if wanted.op != TOMBSTONE or wanted.table is None:
        return False
    return record[0] == topic_of(wanted.table) + wanted.route
