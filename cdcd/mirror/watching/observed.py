"""What a mirror tells, as numbers."""

import time

from cdcd.mirror.watching.progress import (
    BatchDone,
    Fact,
    LogAppended,
    MirrorStarted,
    Retrying,
    TableFailed,
    TableReloaded,
    TableResumed,
    TopicUnfit,
)
from cdcd.telemetry.mirror import MirrorTelemetry


def count(fact: Fact, numbers: MirrorTelemetry) -> None:
    """Bring a fact into the numbers."""
    match fact:
        case MirrorStarted():
            numbers.goes_on()
        case LogAppended():
            numbers.appended(fact.records, fact.unreadable, fact.lag_s)
        case BatchDone():
            for table in fact.tables:
                numbers.table(table.table, table.changes, table.commit_lsn)
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
