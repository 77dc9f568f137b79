"""The values that a session begins with.

The rule: the same values, and the same calls of the engine afterwards, produce the same records. So a recording has
them, and its replay begins with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.fates import AsideNotes
from cdcd.core.engine.settings import EngineSettings
from cdcd.core.records.encoder import EncoderSettings, owner_headers
from cdcd.core.records.gaps import Gap
from cdcd.core.records.shaping.settings import Outbox, TableFilter, TableRoutes
from cdcd.core.snapshot.reading import SourceTable


@dataclass(frozen=True, slots=True)
class ExportedTables:
    """The published tables at the slot's snapshot, by oid, with their descriptions and the types of their columns.

    Attributes:
        locked: which session has locked each table that could not be looked up, by oid. These tables are missing in
            `tables`, but are described.
    """

    tables: Mapping[int, SourceTable]
    descriptions: Mapping[int, TableDescription]
    types: Mapping[int, TypeDescription]
    locked: Mapping[int, str] = field(default_factory=dict)

    def names(self) -> dict[int, str]:
        """The tables as `schema.table`, by oid."""
        return {oid: table.name for oid, table in self.tables.items()}

    def locked_keyless(self) -> tuple[int, ...]:
        """Oids of the locked tables without a key."""
        return tuple([oid for oid in self.locked if not self.descriptions[oid].has_key])


@dataclass(frozen=True, slots=True)
class SessionStart:
    """All values that a session begins with. The same values, and the same calls afterwards, produce the same records.

    Attributes:
        settings: of the engine.
        checkpoint: the checkpoint to resume from, as it is in Kafka, with the progress of this session.
        encoding: settings for the form of records.
        published: the published tables as `schema.table` by oid, looked up for this session.
        exported: the published tables at the slot's snapshot; None: the slot existed, or was made without a snapshot.
        excluded: patterns of tables that are read only on request.
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0: streaming is as configured.
        logged_until: the frames come from the durable log, which ends there; 0: they come from the server.
        binary: whether values may arrive in binary form.
        abort_info: as in `Assembler`.
        spool_bytes: bytes of memory that the spool may use. They determine how a large transaction is divided into
            steps.
        outbox: which events are published.
        filters: which rows of tables the topics have.
        routes: which topics the rows of tables go to. `encoding` has their names too.
        tables: which of the published tables the pipeline has.
    """

    settings: EngineSettings
    checkpoint: Checkpoint
    encoding: EncoderSettings
    published: Mapping[int, str]
    exported: ExportedTables | None = None
    excluded: tuple[str, ...] = ()
    unstreamed_until: int = 0
    logged_until: int = 0
    binary: bool = False
    abort_info: bool = False
    spool_bytes: int = 64 << 20
    outbox: Outbox = field(default_factory=Outbox)
    filters: tuple[TableFilter, ...] = ()
    routes: tuple[TableRoutes, ...] = ()
    tables: TableSelection = field(default_factory=TableSelection)

    @property
    def aside_notes(self) -> AsideNotes | None:
        """Makes records that say which tables are set aside; None if there is no topic for them."""
        topic = self.encoding.schemas_topic
        return None if topic is None else AsideNotes(topic, owner_headers(self.encoding))

    @property
    def gap(self) -> Gap | None:
        """The gap before this session, for its record; None: there is none, or no topic for the record."""
        topic, progress = self.encoding.schemas_topic, self.checkpoint.snapshot
        return None if topic is None or progress is None or not progress.gap else Gap(topic, progress.gap)
