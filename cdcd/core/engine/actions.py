"""The engine's actions, and the answers to its questions: everything that engine and shell exchange.

The shell repeatedly calls `Engine.next_action`, carries out the action, and reports the outcome by a method of the
engine. While a slow action is being carried out, the shell goes on calling for others.

| action | the shell owes |
|---|---|
| `Ship` | deliver the batch, then `delivered`, or `refused` if Kafka refuses records of some tables |
| `Status` | send the bytes on the replication connection |
| `Describe` | look the relation up in the catalog, then `described` |
| `EnsureTopics` | create or check the topics, then `topics_ready`, and `topics_refused` for those that cannot be used |
| `EnsureSchemas` | have the schemas registered, ids into `SchemaIds`, then `schemas_ready`, `schemas_refused` |
| `RunHeartbeatQuery` | run the operator's query on the source, unless the lock is lost, then `heartbeat_query_ended` |
| `BeginStream` | START_REPLICATION, then `stream_begun` |
| `Ask` | ask PostgreSQL on a connection that the stream does not use, then `answered` |
| `Turn` | let other tasks run, and ask again |
| `Wait` | ask again at that time, or after the next verb |
| `End` | end the session: raise the error, or (None) stop in good order |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.reading import (
    Changed,
    KeyQuery,
    PageQuery,
    Refused,
    Rows,
    SourceTable,
    TooLarge,
    Visibility,
)


@dataclass(frozen=True, slots=True)
class Ship:
    """Deliver the batch to Kafka, with this checkpoint if the batch closes a Kafka transaction.

    Only one batch is delivered at a time.
    """

    batch: Batch
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Status:
    """Send a status update to PostgreSQL. `data` has the bytes of one CopyData message."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Describe:
    """Look up in the catalog what a Relation message does not have: keys, and attributes of columns."""

    relation: Relation
    tentative: bool
    """True if the transaction that sent the Relation message may never commit."""


@dataclass(frozen=True, slots=True)
class EnsureTopics:
    """Create or check these topics, because records for them follow.

    Attributes:
        keyless: topics whose records have no key.
        ahead: topics that will be needed soon. If topics are created, these are created in the same request, which
            saves requests later.
        again: topics of `topics` that must be checked again, because they were refused, or may have been deleted.
    """

    topics: tuple[str, ...]
    keyless: frozenset[str] = frozenset()
    ahead: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsureSchemas:
    """Register these schemas, because records with them follow. If the registry does not answer, wait for it."""

    schemas: tuple[SchemaUse, ...]


@dataclass(frozen=True, slots=True)
class RunHeartbeatQuery:
    """Run `heartbeat.action_query` on its own connection, if the lock is still held. Only one query runs at a time."""


@dataclass(frozen=True, slots=True)
class BeginStream:
    """Start replication, because the initial snapshot is complete."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Let other tasks run, then call `next_action` again at once, because there is more to do."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before this time (monotonic seconds); None: before something is reported."""

    until: float | None


@dataclass(frozen=True, slots=True)
class End:
    """End the session because of an error, or (None) because it was asked to stop."""

    error: CdcdError | None = None


# Classes from here on are questions about tables.


@dataclass(frozen=True, slots=True)
class Look:
    """Look up a published table: the one with this oid or, if the oid is 0, the one with this name.

    The answer has its description and the types of its columns. The answer also says whether `where` can be a
    condition on the table's rows.
    """

    oid: int
    name: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class FindWriters:
    """Find out which transactions have written to one of these tables and have not ended."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Read rows: at the slot's snapshot if `exported` is true, otherwise at a snapshot that is taken for this query.

    Attributes:
        kept: number of the snapshot (`TakeSnapshot`) at which the rows are read; 0 if there is none.
    """

    query: PageQuery | KeyQuery
    bytes_max: int
    exported: bool = False
    kept: int = 0


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take a snapshot, and keep it for `Read` until `LetGo`. The role that reads the table must take it."""

    number: int
    table: SourceTable


@dataclass(frozen=True, slots=True)
class LetGo:
    """Release the snapshot with this number, which is not needed any more."""

    number: int


@dataclass(frozen=True, slots=True)
class ListPublished:
    """List the tables of the publication, and estimate the number of rows of those that are not in `known`.

    `bound`: tables of which the answer says whether they were dropped.
    """

    known: frozenset[int]
    bound: frozenset[int] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class FindEnums:
    """Find the published tables with columns of enums, of domains over enums, or of arrays of enums."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the table at the slot's snapshot with the rows that its topic has."""

    table: SourceTable


@dataclass(frozen=True, slots=True)
class NextDifferences:
    """Return the next differences of the table that was compared last, of about `bytes_max` bytes."""

    bytes_max: int


Question = (
    Look | FindWriters | Read | TakeSnapshot | LetGo | ListPublished | FindEnums | Compare | NextDifferences
)


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask PostgreSQL a question. `ticket` is returned with the answer.

    Several questions may be open at the same time.
    """

    ticket: int
    question: Question


# Classes from here on are answers.


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to `Look`.

    Attributes:
        table: the table; None if the publication has no such table.
        leaves: the published partitions as `schema.table`, by oid, if the table is partitioned and published
            through its partitions.
        problem: why the request's condition cannot be used, that there is no such table, or that the pipeline leaves
            the table's present name out; "" if the condition can be used, or if this is not known.
        seen: a snapshot that was taken before the table was looked up.
    """

    table: SourceTable | None
    description: TableDescription
    types: Mapping[int, TypeDescription]
    problem: str
    seen: Visibility
    leaves: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Writers:
    """The answer to `FindWriters`. `seen` is a snapshot that was taken before the writers were looked up.

    Attributes:
        people: for each writer's name, a description with role and application for people. The description may
            differ each time, because an application can change its name.
    """

    names: frozenset[str]
    seen: Visibility
    people: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to `TakeSnapshot`.

    Attributes:
        seen: which transactions the snapshot sees.
        after: an LSN behind the commit of every transaction that the snapshot sees.
    """

    seen: Visibility
    after: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The answer to `LetGo`."""


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to `ListPublished`.

    Attributes:
        tables: the published tables as `schema.table`, by oid.
        after: an LSN. Every commit that the list includes is before it in the WAL.
        estimates: the planner's estimate of the number of rows of tables that were not known, by oid.
        labels: a checksum of the labels of all enums; 0 if there are no enums.
        members: for each table that the publication lists by name, a number that identifies this entry, by the
            table's oid. If the table is removed and added again, the number differs.
        dropped: the oids of `ListPublished.bound` that PostgreSQL no longer has.
        partitions: the partitions of tables that are published as a whole, as the checkpoint remembers them
            (`core/catalog/partitions.py`); None: they were not read yet.
        newest_before: the highest of `members` before the session began; 0: there were none.
    """

    tables: Mapping[int, str]
    after: int
    estimates: Mapping[int, int]
    labels: int = 0
    members: Mapping[int, int] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    partitions: str | None = None
    newest_before: int = 0


@dataclass(frozen=True, slots=True)
class Enums:
    """The oids of published tables with columns of enums."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The answer to `Compare`: the numbers of rows that only the topic has, that differ, and that only the table has.

    `NextDifferences` returns these rows.
    """

    deletes: int
    updates: int
    inserts: int


@dataclass(frozen=True, slots=True)
class NotComparable:
    """The answer to `Compare` if the topic cannot be folded into rows, or not for certain; `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Differences:
    """The answer to `NextDifferences`. If it has no rows, all differences were returned.

    Attributes:
        deletes: for each row that only the topic has, the JSON of its key's values, in the key's order.
        updates, inserts: rows of the table as lines in the text format of COPY.
        topic: the topic that has the rows in `deletes`, if the table has routes; "": the table's own topic.
    """

    deletes: tuple[tuple[bytes, ...], ...] = ()
    updates: tuple[bytes, ...] = ()
    inserts: tuple[bytes, ...] = ()
    topic: str = ""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.deletes) + len(self.updates) + len(self.inserts)


@dataclass(frozen=True, slots=True)
class Busy:
    """Answer: a lock could not be acquired in time; `reason` is PostgreSQL's message.

    The question may be asked again.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Answer: the connection was lost before the real answer arrived."""

    error: CdcdError


ReadAnswer = Rows | TooLarge | Changed | Refused
Answer = (
    Looked
    | Writers
    | Taken
    | Gone
    | Published
    | Enums
    | ReadAnswer
    | Compared
    | NotComparable
    | Differences
    | Busy
    | Lost
)

Action = (
    Ship
    | Status
    | Describe
    | EnsureTopics
    | EnsureSchemas
    | RunHeartbeatQuery
    | BeginStream
    | Ask
    | Turn
    | Wait
    | End
)
