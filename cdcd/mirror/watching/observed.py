"""What a mirror tells, as numbers."""

import time
from datetime import UTC, datetime

from cdcd.mirror.watching.progress import (
    BatchDone,
    Fact,
    Retrying,
    TableFailed,
    TableReloaded,
    TableResumed,
    TopicUnfit,
    lag_s,
)
from cdcd.telemetry.mirror import MirrorTelemetry


def count(fact: Fact, numbers: MirrorTelemetry) -> None:
    """Bring a fact into the numbers."""
    match fact:
        case BatchDone():
            now = datetime.now(UTC)
            for table in fact.tables:
                lag = None if table.commit_time is None else lag_s(table.commit_time, now)
                numbers.table(
                    table.table, table.changes, table.quarantined, table.held, table.commit_lsn, lag
                )
            numbers.batch(time.time(), fact.seconds, fact.cut)
        case TableFailed():
            numbers.failed(fact.table, fact.message, stopped=fact.stopped)
        case TableResumed():
            numbers.resumed(fact.table)
        case TableReloaded():
            numbers.reloaded(fact.table)
        case TopicUnfit():
            numbers.unfit.add(fact.topic)
        case Retrying():
            numbers.retrying(fact.message)
        case _:
            pass
