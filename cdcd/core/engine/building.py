"""Builds an engine from the values that a session begins with.

The daemon, a recording and its replay use this function.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcd.core.catalog.patterns import TableSelection, matcher
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.exported import ExportedTables
from cdcd.core.engine.fates import AsideNotes
from cdcd.core.engine.settings import EngineSettings
from cdcd.core.facts import Observer
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, owner_headers
from cdcd.core.records.gaps import Gap
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.partitioning import partitioned
from cdcd.core.records.shaping.routed import routed
from cdcd.core.records.shaping.settings import Outbox, TableFilter, TableRoutes
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.spool import Spool


@dataclass(frozen=True, slots=True)
class SessionStart:
    """All values that a session begins with. The same values, and the same calls afterwards, produce the same records.

    Attributes:
        settings, checkpoint, published, exported, unstreamed_until, logged_until: as in `Engine`.
        excluded: patterns of tables that are read only on request.
        encoding: settings for the form of records.
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


def build_engine(start: SessionStart, spool: Spool, ledger: Ledger, observe: Observer, now: float) -> Engine:
    """Return the engine of a session. The caller must call `close` of its assembler."""
    # If tables are not set aside, only the start refuses rules that do not fit their table.
    refuses = start.settings.sets_aside
    encoder = shaped(
        record_stream(start.encoding, start.binary, observe),
        start.outbox,
        start.encoding,
        observe,
        fails_over_bytes=start.settings.fails_over_bytes,
    )
    encoder = routed(
        partitioned(encoder, start.encoding), start.routes, start.encoding, observe, refuses=refuses
    )
    encoder = filtered(encoder, start.filters, start.encoding, observe, refuses=refuses)
    rows = partitioned(record_stream(start.encoding, False, observe), start.encoding)
    rows = routed(rows, start.routes, start.encoding, observe, refuses=refuses)
    rows = filtered(rows, start.filters, start.encoding, observe, refuses=refuses)
    assembler = Assembler(
        ledger, spool, start.checkpoint.position, encoder.draft_all, abort_info=start.abort_info
    )
    progress = start.checkpoint.snapshot
    return Engine(
        start.settings,
        start.checkpoint,
        assembler=assembler,
        ledger=ledger,
        encoder=encoder,
        rows=rows,
        published=start.published,
        observe=observe,
        now=now,
        exported=start.exported,
        excluded=matcher(start.excluded, "snapshot.exclude"),
        outbox=start.outbox,
        notes=None
        if start.encoding.schemas_topic is None
        else AsideNotes(start.encoding.schemas_topic, owner_headers(start.encoding)),
        unstreamed_until=start.unstreamed_until,
        chosen_keys=start.encoding.chosen_keys,
        wants=None if start.tables.is_all else start.tables.test(),
        logged_until=start.logged_until,
        bindings=start.encoding.bindings,
        gap=None
        if progress is None or not progress.gap or start.encoding.schemas_topic is None
        else Gap(start.encoding.schemas_topic, progress.gap),
    )
