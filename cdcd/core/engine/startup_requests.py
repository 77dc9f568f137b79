"""The requests that `startup.py` makes, and the types of their answers.

The shell carries out each request that `Start.run` yields, and sends the answer back; a `Request[int]` is answered
by an int. The requests are listed in the order of the steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.logged import DurableLog
from cdcd.core.engine.resuming import Source
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.errors import PositionError

T = TypeVar("T")


class Request(Generic[T]):
    """Something that the shell does and answers with a `T`. An error in doing it ends the start."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The slot as the server shows it. `problem` says why cdcd cannot use the slot any more; None if it can."""

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
    """Find the number of decimal digits of money under the database's default of lc_monetary."""


@dataclass(frozen=True, slots=True)
class EndFormerStream(Request[None]):
    """End the replication connection that an earlier instance of the pipeline left behind."""


@dataclass(frozen=True, slots=True)
class ConnectStream(Request[int]):
    """Open the replication connection. Answer: the server's version (`server_version_num`)."""


@dataclass(frozen=True, slots=True)
class StreamEarly(Request[None]):
    """Ask the server to send large transactions before their commit, even if they are not very large."""


@dataclass(frozen=True, slots=True)
class CheckCreation(Request[Mapping[int, str]]):
    """Check by reading only whether slot and publication can be created, if one of them is missing, and whether the
    rules of the configuration fit the tables. The answer is the tables that the publication has or will have, as
    `schema.table` by oid; it is empty if nothing is missing.

    `messages`: whether logical messages will come.
    """

    messages: bool


@dataclass(frozen=True, slots=True)
class PrepareSink(Request[None]):
    """Create the sink, which affects no other instance yet, and the topics that it needs.

    `messages`: whether logical messages will come.
    """

    messages: bool


@dataclass(frozen=True, slots=True)
class LookAtSlot(Request[SlotSeen | None]):
    """Identify the server, and read the slot. The answer is None if there is no slot of this name."""


@dataclass(frozen=True, slots=True)
class PeekCheckpoint(Request[Checkpoint | None]):
    """Read the newest checkpoint that readers of committed records see, without changing anything.

    With `newest`, read the newest checkpoint that was written, whether its Kafka transaction is committed, open or
    aborted. `told` means the same as in `Fence`.
    """

    newest: bool = False
    told: int = 0


@dataclass(frozen=True, slots=True)
class ReadSource(Request[Source]):
    """Describe the server that `LookAtSlot` identified, in comparison with this checkpoint."""

    found: Checkpoint | None
    slot_confirmed: int | None


@dataclass(frozen=True, slots=True)
class LookAtLog(Request[DurableLog | None]):
    """Open the durable log, and find out what it has. The answer is None if there is no log and none is configured."""


@dataclass(frozen=True, slots=True)
class RemoveLogged(Request[None]):
    """Delete the logged sessions with these numbers from the durable log."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fence(Request[Checkpoint | None]):
    """Shut out every other writer, then read the checkpoint. Afterwards, only this daemon can change the checkpoint.

    `told` is a position that PostgreSQL was told because of a checkpoint in Kafka.
    """

    told: int


@dataclass(frozen=True, slots=True)
class EnsurePublication(Request[Mapping[int, str]]):
    """Create the publication if it is missing. The answer is its tables as `schema.table`, by oid.

    `via_root` says how the pipeline has delivered partitioned tables: True through their root, False by partition,
    None if it has delivered none.
    """

    via_root: bool | None


@dataclass(frozen=True, slots=True)
class ReadRoots(Request[bool | None]):
    """Find out how partitioned tables are published.

    The answer is True for through their root, False for by partition, None if none is published.
    """


@dataclass(frozen=True, slots=True)
class DropSlot(Request[None]):
    """Drop the slot, because it cannot be used any more."""


@dataclass(frozen=True, slots=True)
class CreateSlot(Request[SlotMade]):
    """Create the slot.

    With `export`, the slot exports a snapshot, which exists until the next command on the replication connection.
    """

    export: bool


@dataclass(frozen=True, slots=True)
class EndTwoPhase(Request[None]):
    """Alter the slot so that it sends prepared transactions only at COMMIT PREPARED."""


@dataclass(frozen=True, slots=True)
class SetFailover(Request[None]):
    """Alter the slot so that standbys get a copy of it."""


@dataclass(frozen=True, slots=True)
class ImportSnapshot(Request[ExportedTables]):
    """Open connections that read at the exported snapshot.

    Afterwards, the snapshot exists as long as these connections do.
    """

    name: str


@dataclass(frozen=True, slots=True)
class ListTables(Request[Mapping[int, str]]):
    """List the published tables again. The answer is the same as for `EnsurePublication`."""


@dataclass(frozen=True, slots=True)
class BindColumns(Request[str]):
    """Find the columns of the published tables that the rules for protected columns apply to, by the present catalog.

    The answer is all bindings of rules to columns, for the checkpoint that the session begins with.

    Attributes:
        checkpoint: has the bindings of earlier sessions, which are kept.
        published: the published tables as `schema.table`, by oid.
        exported: the tables at the slot's snapshot, where columns may have had other names; None if there is no
            snapshot.
    """

    checkpoint: Checkpoint
    published: Mapping[int, str]
    exported: ExportedTables | None


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Request[None]):
    """Deliver this batch, which has no records, together with this checkpoint."""

    batch: Batch
    checkpoint: Checkpoint
