"""What the engine wants done, and the answers that it is given: the whole of what it and its shell say to each other.

The shell asks `Engine.next_action` again and again, carries out what it gets, and reports by a verb of the engine. An
action that takes time does not stop the others: the shell goes on asking while it is under way.

| action | the shell owes |
|---|---|
| `Ship` | deliver the batch, then `delivered` |
| `Status` | send the bytes on the replication connection |
| `Describe` | look the relation up in the catalog, then `described` |
| `EnsureTopics` | create or check the topics, then `topics_ready` |
| `Begin` | START_REPLICATION, then `stream_begun` |
| `Ask` | ask PostgreSQL on a connection that the stream does not use, then `answered` |
| `Turn` | let other tasks run, and ask again |
| `Wait` | ask again at that time, or after the next verb |
| `End` | end the session: with the error, or in good order |
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.engine.queue import Batch
from cdcd.errors import CdcdError
from cdcd.protocol.messages import Relation
from cdcd.records.relations import TableDescription, TypeDescription
from cdcd.snapshots.reading import Changed, KeyQuery, PageQuery, Refused, Rows, SourceTable, TooLarge
from cdcd.snapshots.visibility import Visibility
from cdcd.transactions.position import Checkpoint


@dataclass(frozen=True, slots=True)
class Ship:
    """Deliver the batch to Kafka, with this checkpoint if the batch closes a Kafka transaction. One at a time."""

    batch: Batch
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Status:
    """Tell PostgreSQL: a status update as bytes of CopyData."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Describe:
    """Look up in the catalog what the relation's message does not say."""

    relation: Relation
    tentative: bool
    """The transaction that described it may never commit."""


@dataclass(frozen=True, slots=True)
class EnsureTopics:
    """Records for these topics follow: create or check them. `keyless`: those whose records have no key."""

    topics: tuple[str, ...]
    keyless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Begin:
    """The initial snapshot is read: start replication."""


@dataclass(frozen=True, slots=True)
class Turn:
    """There is more to do at once, after other tasks had their turn."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done before this time (monotonic seconds; None: before something happens)."""

    until: float | None


@dataclass(frozen=True, slots=True)
class End:
    """The session is over: with an error, or (None) as it was asked to stop."""

    error: CdcdError | None = None


# Questions about tables.


@dataclass(frozen=True, slots=True)
class Look:
    """Look a published table up: the one with this oid or, where that is 0, with this name.

    Also its description, the types of its columns, and whether `where` can be a condition on its rows.
    """

    oid: int
    name: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class FindWriters:
    """Who writes to one of these tables now."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Read rows. `exported`: at the slot's snapshot; else at a snapshot of their own."""

    query: PageQuery | KeyQuery
    bytes_max: int
    exported: bool = False


@dataclass(frozen=True, slots=True)
class ListPublished:
    """Which tables the publication has, and about how many rows those have that are not in `known`."""

    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class FindEnums:
    """Which published tables have columns of enums, of domains over them, or of arrays of them."""


Question = Look | FindWriters | Read | ListPublished | FindEnums


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `ticket` comes back with the answer. Several may be under way at once."""

    ticket: int
    question: Question


# Answers.


@dataclass(frozen=True, slots=True)
class Looked:
    """What the catalog says.

    Attributes:
        table: None if the publication has no such table.
        problem: why the request's condition can not be used; "" if it can.
        seen: a snapshot that was taken no later than the table was looked at.
    """

    table: SourceTable | None
    description: TableDescription
    types: Mapping[int, TypeDescription]
    problem: str
    seen: Visibility


@dataclass(frozen=True, slots=True)
class Writers:
    """The writers, named for a person; `seen` is a snapshot that was taken no later than they were looked for."""

    names: frozenset[str]
    seen: Visibility


@dataclass(frozen=True, slots=True)
class Published:
    """The published tables as `schema.table` by oid, as of a moment whose commits all lie before `after` in the WAL.

    `estimates` has the planner's number of rows of those that were not known. `labels` is a checksum of the labels of
    all enums, 0 without any.
    """

    tables: Mapping[int, str]
    after: int
    estimates: Mapping[int, int]
    labels: int = 0


@dataclass(frozen=True, slots=True)
class Enums:
    """The oids of published tables with columns of enums."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Busy:
    """A lock was not to be had in time; `reason` is PostgreSQL's word. The question may be asked again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection was lost."""

    error: CdcdError


ReadAnswer = Rows | TooLarge | Changed | Refused
Answer = Looked | Writers | Published | Enums | ReadAnswer | Busy | Lost

Action = Ship | Status | Describe | EnsureTopics | Begin | Ask | Turn | Wait | End
