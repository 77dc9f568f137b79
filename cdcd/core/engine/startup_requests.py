"""The requests of `startup.py`, and their answers.

The shell carries out each request that `Start.run` yields, and resumes it with the answer, whose type the request
names, as in `Request[int]`. The requests stand in the order of the steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from cdcd.core.engine.checkpoint import Checkpoint, Source
from cdcd.core.engine.exported import ExportedTables
from cdcd.core.engine.logged import DurableLog
from cdcd.core.engine.queue import Batch
from cdcd.core.errors import PositionError

T = TypeVar("T")


class Request(Generic[T]):
    """Something to be done, and answered with a `T`. An error that it raises ends the start."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The slot as the server shows it. `problem`: why cdcd cannot use the slot any more, None if it can."""

    confirmed: int | None
    two_phase: bool = False
    failover: bool = False
    problem: PositionError | None = None


@dataclass(frozen=True, slots=True)
class SlotMade:
    """A slot that was just created; `snapshot` is the name of the snapshot that it exports, None if it exports none."""

    slot: SlotSeen
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class TakeLock(Request[None]):
    """Wait until this instance holds the advisory lock, and keep it from then on."""


@dataclass(frozen=True, slots=True)
class ConnectCatalog(Request[bool]):
    """Open the connection for look-ups. Answer: whether the server is a standby."""


@dataclass(frozen=True, slots=True)
class ReadMoneyDigits(Request[int]):
    """Find how many digits of money stand behind the point, under the database's default of lc_monetary."""


@dataclass(frozen=True, slots=True)
class EndFormerStream(Request[None]):
    """End the replication connection that a former instance of the pipeline left behind."""


@dataclass(frozen=True, slots=True)
class ConnectStream(Request[int]):
    """Open the replication connection. Answer: the server's version (`server_version_num`)."""


@dataclass(frozen=True, slots=True)
class StreamEarly(Request[None]):
    """Let the server send large transactions before their commit, even when they are not very large."""


@dataclass(frozen=True, slots=True)
class PrepareSink(Request[None]):
    """Make the sink, which disturbs nobody yet, and the topics it needs. `messages`: logical messages will come."""

    messages: bool


@dataclass(frozen=True, slots=True)
class LookAtSlot(Request[SlotSeen | None]):
    """Identify the server, and read the slot. Answer: None if there is no slot of this name."""


@dataclass(frozen=True, slots=True)
class PeekCheckpoint(Request[Checkpoint | None]):
    """Read the newest checkpoint that readers see, without changing anything.

    `newest`: the newest one that was written instead, whether its transaction is committed, open or aborted. `told`: as
    `Fence` has it.
    """

    newest: bool = False
    told: int = 0


@dataclass(frozen=True, slots=True)
class ReadSource(Request[Source]):
    """Describe the server that `LookAtSlot` identified, compared with this checkpoint; `slot_confirmed` as given."""

    found: Checkpoint | None
    slot_confirmed: int | None


@dataclass(frozen=True, slots=True)
class LookAtLog(Request[DurableLog | None]):
    """Take the durable log, and look what it holds. Answer: None if there is none, and none is configured."""


@dataclass(frozen=True, slots=True)
class RemoveLogged(Request[None]):
    """Delete logged sessions of the durable log, given by their numbers."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fence(Request[Checkpoint | None]):
    """Shut out every other writer, then read the checkpoint. From then on, only this daemon can change the checkpoint.

    `told`: a position that PostgreSQL was told because of a checkpoint in Kafka.
    """

    told: int


@dataclass(frozen=True, slots=True)
class EnsurePublication(Request[Mapping[int, str]]):
    """Create the publication if it is missing. Answer: its tables as `schema.table`, by oid.

    `via_root`: how the pipeline has delivered partitioned tables: True: as a whole; False: by partition; None: it has
    delivered none.
    """

    via_root: bool | None


@dataclass(frozen=True, slots=True)
class ReadRoots(Request[bool | None]):
    """How partitioned tables are published. Answer: True: as a whole; False: by partition; None: none is published."""


@dataclass(frozen=True, slots=True)
class DropSlot(Request[None]):
    """Drop the slot, which is of no more use."""


@dataclass(frozen=True, slots=True)
class CreateSlot(Request[SlotMade]):
    """Create the slot. `export`: with a snapshot that lives until the next command on the replication connection."""

    export: bool


@dataclass(frozen=True, slots=True)
class EndTwoPhase(Request[None]):
    """Alter the slot: it sends prepared transactions at COMMIT PREPARED from now on."""


@dataclass(frozen=True, slots=True)
class SetFailover(Request[None]):
    """Alter the slot: standbys get a copy of it."""


@dataclass(frozen=True, slots=True)
class ImportSnapshot(Request[ExportedTables]):
    """Open readers at the exported snapshot. From then on, the snapshot lives as long as they do."""

    name: str


@dataclass(frozen=True, slots=True)
class ListTables(Request[Mapping[int, str]]):
    """List the published tables again. Answer: as for `EnsurePublication`."""


@dataclass(frozen=True, slots=True)
class BindColumns(Request[str]):
    """Bind the rules that protect columns to the columns of the published tables, as the catalog has them now.

    Answer: all bindings, for the checkpoint that the session begins with.

    Attributes:
        checkpoint: has the bindings of former sessions, which stay.
        published: the published tables as `schema.table`, by oid.
        exported: the tables at the slot's snapshot, where columns may have had other names; None: there is no snapshot.
    """

    checkpoint: Checkpoint
    published: Mapping[int, str]
    exported: ExportedTables | None


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Request[None]):
    """Deliver this batch, which has no records, with this checkpoint."""

    batch: Batch
    checkpoint: Checkpoint
