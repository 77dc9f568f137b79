"""Tables and answers made by hand, and what stands in for the engine where tables are read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.actions import Looked, Question, Writers
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.errors import SinkError
from cdcd.core.facts import Fact, Observer
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.encoder import Encoded
from cdcd.core.records.markers import Marked
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Rows, SourcePart, SourceTable, Visibility
from cdcd.core.snapshot.table_task import Key, Part

PAGE = 8192
KEYED = TableDescription(primary_key=("id",))


def relation(oid: int, name: str) -> Relation:
    return Relation(None, oid, "public", name, "d", (Column(1, "id", 23, -1), Column(0, "note", 25, -1)))


def table(
    oid: int = 1,
    name: str = "t",
    *,
    pages: int = 4,
    filenode: int = 100,
    columns: str = "id,note",
    leaves: Mapping[int, int] | None = None,
) -> SourceTable:
    """A table of so many pages of 8 kB; `leaves` are the pages of its partitions, by oid."""
    leaves = {oid: pages} if leaves is None else leaves
    parts = tuple(
        SourcePart(Part(leaf, filenode, count, count * PAGE), f'"public"."{leaf}"')
        for leaf, count in leaves.items()
    )
    return SourceTable(relation(oid, name), "", parts, f'"public"."{name}"', len(leaves) > 1, columns)


def looked(found: SourceTable | None, *, problem: str = "", seen: int = 100) -> Looked:
    return Looked(found, KEYED, {}, problem, Visibility(seen, seen))


def nobody(seen: int = 100) -> Writers:
    return Writers(frozenset(), Visibility(seen, seen))


def rows(*ids: int, seen: int = 100, after: int = 0) -> Rows:
    lines = [b"%d\tx\n" % each for each in ids]
    return Rows(lines, sum(map(len, lines)), Visibility(seen, seen), after)


def key(number: int) -> bytes:
    """The record's key of the row with this id."""
    return b"%d" % number


def values(number: int) -> Key:
    return ((False, b"%d" % number),)


@dataclass
class Rendering:
    """Stands for the engine: a row's key is its id; it notes what was put where.

    Attributes:
        keyless: oids of tables without a key.
        missing: topics that are not ready.
        put_rows: oid, ids and markers of the rows of each chunk.
        ended: oids of the tables whose former rows ended.
    """

    keyless: set[int] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    asked_topics: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    put_rows: list[tuple[int, list[int]]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    markers: list[tuple[str, str] | None] = field(default_factory=list)

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> str:
        if relation.oid in self.refused:
            raise SinkError("no topic", hint="")
        self.names[relation.oid] = f"{relation.schema}.{relation.name}"
        return self.topic_of(relation.oid)

    def key_columns(self, oid: int) -> tuple[str, ...]:
        return () if oid in self.keyless else ("id",)

    def topic_is_ready(self, topic: str) -> bool:
        self.asked_topics.append(topic)
        return topic not in self.missing

    def topic_of(self, oid: int) -> str:
        return self.names[oid]

    def put(
        self,
        oid: int,
        rows: Rows,
        *,
        event_no: int,
        dropped: set[bytes],
        progress: Callable[[Encoded], None],
        marked: Marked[Any] | None = None,
    ) -> None:
        ids = [int(line.split(b"\t")[0]) for line in rows.lines]
        kept = [each for each in ids if key(each) not in dropped]
        self.put_rows.append((oid, kept))
        self.numbers.append(event_no)
        self.markers.append(None if marked is None else (marked.first, marked.last))
        progress(Encoded(len(kept), 10 * len(kept), [key(each) for each in kept]))

    def end_former_rows(self, oids: Iterable[int], event_no: int) -> None:
        self.ended += oids

    @property
    def ids(self) -> list[int]:
        return [each for _, ids in self.put_rows for each in ids]


class Facts:
    """What was observed."""

    def __init__(self) -> None:
        self.all: list[Fact] = []

    def __call__(self, fact: Fact) -> None:
        self.all.append(fact)

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.all if isinstance(fact, kind)]


def no_fates() -> Fates:
    """No table is set aside, and a fault of a table ends the session."""
    return Fates((), {}, observe=lambda _fact: None)


def tasks(
    progress: Progress,
    names: Mapping[int, str],
    observe: Observer,
    changed: Callable[[], None] = lambda: None,
) -> SnapshotTasks:
    return SnapshotTasks(progress, names=names, observe=observe, changed=changed)


Asked = tuple[object, Question]
