"""The interfaces of a session that the pipeline calls: the stream, the catalog, and the topics."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.registry.client import Registrar
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.transactions.spool import Spool
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.large_messages import LargeMessages
from cdcd.daemon.postgres_side import HeartbeatAction
from cdcd.daemon.snapshot_driver import SnapshotDriver
from cdcd.daemon.tables import NewTables


class FrameStream(Protocol):
    """Source of frames: the replication stream, or the durable log."""

    async def receive(self, bytes_max: int) -> list[bytes]:
        """Return at least one frame; wait while there is none."""

    async def send(self, status: bytes) -> None:
        """Send a status update."""

    async def finish(self, timeout_s: float) -> bool:
        """End the stream in good order."""


class LookUp(Protocol):
    """Look-up of relations in the catalog of PostgreSQL (`CatalogLookUp`)."""

    def received(self, frames: Sequence[bytes]) -> None:
        """Register new frames; the caller has processed all earlier frames."""

    async def __call__(
        self, relation: Relation, *, tentative: bool = False
    ) -> tuple[TableDescription, dict[int, TypeDescription], Visibility | None]:
        """Return the description, the types that are known so far, and the snapshot (`seen`) of `Engine.described`."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Everything that a session holds open: the source of frames, the lock, the producer, the readers, the spool."""

    stream: FrameStream
    lock: KeptLock
    sink: Sink
    snapshots: SnapshotDriver
    spool: Spool


@dataclass(frozen=True, slots=True)
class CatalogCalls:
    """Calls to PostgreSQL beside the stream.

    Attributes:
        begin: starts replication on the stream.
        look_up: returns the catalog's description of a relation, the types that are known so far, and the snapshot
            (`seen`) of `Engine.described`.
        survey: writes the state of the slot to the telemetry. It raises if the slot or the publication does not
            exist.
        heartbeat: runs the heartbeat query; None: no query.
        large: notified of how far the stream is received and confirmed.
    """

    begin: Callable[[], Awaitable[None]]
    look_up: LookUp
    survey: Callable[[], Awaitable[None]]
    heartbeat: HeartbeatAction | None
    large: LargeMessages


@dataclass(frozen=True, slots=True)
class TopicCalls:
    """Calls that create topics and register schemas.

    Attributes:
        new_tables: tables whose topics are created together.
        registrar: registers schemas; None: the format needs none.
    """

    kafka: KafkaSide
    new_tables: NewTables
    registrar: Registrar | None
