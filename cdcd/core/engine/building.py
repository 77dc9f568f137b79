"""Builds an engine from the values that a session begins with.

The daemon, a recording and its replay use this function.
"""

from cdcd.core.engine.engine import Engine
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.facts import Observer
from cdcd.core.records.available import record_stream
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.partitioning import partitioned
from cdcd.core.records.shaping.routed import routed
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.spool import Spool


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
        made_topics=start.checkpoint.topics,
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
    return Engine(start, assembler, encoder, rows, observe, now)
