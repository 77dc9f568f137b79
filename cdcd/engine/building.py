"""An engine from what a session begins with. The daemon, a recording and its replay construct it here."""

from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.engine.engine import Engine
from cdcd.engine.exported import ExportedTables
from cdcd.engine.settings import EngineSettings
from cdcd.facts import Observer
from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.formats.snapshot_rows import SnapshotEncoder
from cdcd.snapshots.patterns import matcher
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint
from cdcd.transactions.spool import Spool


@dataclass(frozen=True, slots=True)
class SessionStart:
    """All that a session begins with. The same start, and the same verbs, give the same records.

    Attributes:
        settings, checkpoint, published, exported, unstreamed_until: as in `Engine`.
        excluded: patterns of tables that are read on demand only.
        envelope, binary: as in `DebeziumJsonEncoder`.
        abort_info: as in `Assembler`.
        spool_bytes: the memory that the spool may take. How a large transaction is cut into steps depends on it.
    """

    settings: EngineSettings
    checkpoint: Checkpoint
    envelope: EnvelopeSettings
    published: Mapping[int, str]
    exported: ExportedTables | None = None
    excluded: tuple[str, ...] = ()
    unstreamed_until: int = 0
    binary: bool = False
    abort_info: bool = False
    spool_bytes: int = 64 << 20


def build_engine(start: SessionStart, spool: Spool, ledger: Ledger, observe: Observer, now: float) -> Engine:
    """The engine of a session. The caller owes `close` of its assembler."""
    encoder = DebeziumJsonEncoder(start.envelope, binary=start.binary)
    assembler = Assembler(
        ledger, spool, start.checkpoint.position, encoder.draft_all, abort_info=start.abort_info
    )
    return Engine(
        start.settings,
        start.checkpoint,
        assembler=assembler,
        ledger=ledger,
        encoder=encoder,
        rows=SnapshotEncoder(start.envelope),
        published=start.published,
        observe=observe,
        now=now,
        exported=start.exported,
        excluded=matcher(start.excluded, "snapshot.exclude"),
        unstreamed_until=start.unstreamed_until,
    )
