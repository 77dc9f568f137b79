"""What the engine wants done, and the answers that it is given: all that the engine and its shell say to each other.

The shell asks `Engine.next_action` again and again, carries out the action, and reports the outcome by a verb of the
engine. While an action that takes time is under way, the shell goes on asking for others.

| action | the shell owes |
|---|---|
| `Ship` | deliver the batch, then `delivered`, or `refused` if Kafka refuses records of some tables |
| `Status` | send the bytes on the replication connection |
| `Describe` | look the relation up in the catalog, then `described` |
| `EnsureTopics` | create or check the topics, then `topics_ready`, and `topics_refused` for those that cannot be had |
| `EnsureSchemas` | have the schemas registered, ids into `SchemaIds`, then `schemas_ready`, `schemas_refused` |
| `RunHeartbeatQuery` | run the operator's query on the source, unless the lock is lost, then `heartbeat_query_ended` |
| `Begin` | START_REPLICATION, then `stream_begun` |
| `Ask` | ask PostgreSQL on a connection that the stream does not use, then `answered` |
| `Turn` | let other tasks run, and ask again |
| `Wait` | ask again at that time, or after the next verb |
| `End` | end the session: raise the error, or (None) stop in good order |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.queue import Batch
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.reading import Changed, KeyQuery, PageQuery, Refused, Rows, SourceTable, TooLarge
from cdcd.core.snapshot.visibility import Visibility


@dataclass(frozen=True, slots=True)
class Ship:
    """Deliver the batch to Kafka, with this checkpoint if the batch closes a Kafka transaction. One batch at a time."""

    batch: Batch
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Status:
    """Send a status update to PostgreSQL. `data` are the bytes of one CopyData message."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Describe:
    """Look up in the catalog what a Relation message does not say: keys, and the attributes of columns."""

    relation: Relation
    tentative: bool
    """The transaction that sent the Relation message may never commit."""


@dataclass(frozen=True, slots=True)
class EnsureTopics:
    """Create or check these topics, because records for them follow.

    Attributes:
        keyless: those whose records have no key.
        ahead: topics that will be asked for soon. Created now, if topics are created, they cost no request later.
        again: those of `topics` that must be looked at again, because they were refused, or may be gone.
    """

    topics: tuple[str, ...]
    keyless: frozenset[str] = frozenset()
    ahead: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsureSchemas:
    """Have these schemas registered, because records with them follow. A registry that is away is waited for."""

    schemas: tuple[SchemaUse, ...]


@dataclass(frozen=True, slots=True)
class RunHeartbeatQuery:
    """Run `heartbeat.action_query` on a connection of its own, if the lock is still held. One at a time."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start replication, because the initial snapshot is read."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Let other tasks run, then ask again at once: there is more to do."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before this time (monotonic seconds; None: before something is reported)."""

    until: float | None


@dataclass(frozen=True, slots=True)
class End:
    """The session is over, because of an error, or (None) because it was asked to stop."""

    error: CdcdError | None = None


# Questions about tables.


@dataclass(frozen=True, slots=True)
class Look:
    """Look up a published table: the one with this oid or, if the oid is 0, the one with this name.

    The answer has its description and the types of its columns. It says whether `where` can be a condition on its rows.
    """

    oid: int
    name: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class FindWriters:
    """Find out which transactions write to one of these tables now."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Read rows: at the slot's snapshot if `exported` is true, else at a snapshot that is taken for this query.

    Attributes:
        kept: read at the snapshot that was taken with this number (`TakeSnapshot`). 0: there is none.
    """

    query: PageQuery | KeyQuery
    bytes_max: int
    exported: bool = False
    kept: int = 0


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take a snapshot, and keep it for `Read` until `LetGo`. The role that reads the table takes it."""

    number: int
    table: SourceTable


@dataclass(frozen=True, slots=True)
class LetGo:
    """The snapshot with this number is not needed any more."""

    number: int


@dataclass(frozen=True, slots=True)
class ListPublished:
    """List the tables of the publication, and estimate the number of rows of those that are not in `known`."""

    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class FindEnums:
    """Which published tables have columns of enums, of domains over them, or of arrays of them."""


Question = Look | FindWriters | Read | TakeSnapshot | LetGo | ListPublished | FindEnums


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask PostgreSQL a question. `ticket` comes back with the answer. Several questions may be under way at once."""

    ticket: int
    question: Question


# Answers.


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to `Look`.

    Attributes:
        table: None if the publication has no such table.
        leaves: if there is none of the name that was asked for, because the table is partitioned and published through
            its partitions: the published ones as `schema.table`, by oid.
        problem: why the request's condition cannot be used, or there is no such table; "" if it can, or that is not
            known.
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
    """The answer to `FindWriters`. `seen` is a snapshot that was taken before the look-up.

    Attributes:
        people: by name: the name with role and application, for people. An application can change its name meanwhile.
    """

    names: frozenset[str]
    seen: Visibility
    people: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to `TakeSnapshot`.

    Attributes:
        seen: what the snapshot sees.
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
        after: an LSN. Every commit that the list has seen lies before it in the WAL.
        estimates: the planner's number of rows of the tables that were not known, by oid.
        labels: a checksum of the labels of all enums; 0 without any.
        members: of tables that the publication names one by one, a number that another entry of the same table in the
            publication does not have, by the table's oid.
    """

    tables: Mapping[int, str]
    after: int
    estimates: Mapping[int, int]
    labels: int = 0
    members: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Enums:
    """The oids of published tables with columns of enums."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Busy:
    """A lock could not be taken in time; `reason` is PostgreSQL's message. The question may be asked again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection was lost before the answer came."""

    error: CdcdError


ReadAnswer = Rows | TooLarge | Changed | Refused
Answer = Looked | Writers | Taken | Gone | Published | Enums | ReadAnswer | Busy | Lost

Action = (
    Ship
    | Status
    | Describe
    | EnsureTopics
    | EnsureSchemas
    | RunHeartbeatQuery
    | Begin
    | Ask
    | Turn
    | Wait
    | End
)
