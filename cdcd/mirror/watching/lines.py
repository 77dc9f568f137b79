"""Facts of the mirror as lines for a person (`log.format: console`). Nothing here needs PySpark."""

from collections.abc import Iterator

from cdcd.core.facts import Fact
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.watching.progress import (
    BatchDone,
    ChangesMissing,
    LoadRestarted,
    LoadWaiting,
    LogAppended,
    LogExpired,
    LogShortened,
    MirrorSecretWeak,
    MirrorServing,
    MirrorStarted,
    Replayed,
    Retrying,
    SetChanged,
    StatesMissing,
    TableFailed,
    TableLaidOut,
    TableLoaded,
    TableMaintained,
    TableReloaded,
    TableReloading,
    TableResumed,
    TableRolledBack,
    TableTakenOver,
    TopicUnfit,
)


def lines(fact: Fact) -> Iterator[str]:  # noqa: C901, PLR0912, PLR0915  a table, by kind
    """A fact for a person."""
    match fact:
        case MirrorStarted():
            mode = "what is there now" if fact.once else "what comes"
            yield f"{fact.name}: {fact.topics} tables, {mode}"
        case MirrorServing():
            yield f"http: {fact.address} has /metrics and /healthz"
        case MirrorSecretWeak():
            yield f"{fact.key}: {fact.found}"
            yield f"  {fact.fix}"
        case BatchDone():
            yield from _batch(fact)
        case LogAppended():
            lag = "" if fact.lag_s is None else f", the newest {fact.lag_s:.1f} s old"
            yield f"log: {fact.records} records in {fact.seconds:.1f} s{lag}{_bad(fact.unreadable, 'to')}"
        case TableFailed():
            yield f"{fact.table} {'STOPPED' if fact.stopped else 'failed, trying again'}: {fact.message}"
            if fact.hint:
                yield f"  {fact.hint}"
        case TableResumed():
            yield f"{fact.table} goes on again"
        case TableReloading():
            waits = f" Waiting for {fact.waiting}." if fact.waiting else ""
            yield f"{fact.table} is read again from the database: {fact.message}{waits}"
        case TableReloaded():
            yield (
                f"{fact.table} was read again: {fact.rows} rows in {fact.seconds:.1f} s, as of"
                f" {Lsn(fact.commit_lsn)}{_bad(fact.quarantined, 'to')}"
            )
        case TableLoaded():
            rate = fact.rows / max(fact.seconds, 1e-3)
            yield (
                f"snapshot: {fact.table} {fact.rows:,} rows, {rate:,.0f} rows/s, as of {Lsn(fact.commit_lsn)}"
                f"{_bad(fact.quarantined, 'in')}"
            )
        case LoadWaiting():
            yield f"snapshot: waiting for {fact.waiting} to end ({fact.waited_s:.0f} s)"
        case LoadRestarted():
            yield f"snapshot: {fact.message}; retrying with a new snapshot"
        case Replayed():
            gone = f", {fact.gone} gone from the topic" if fact.gone else ""
            yield f"{fact.table}: {fact.replayed} records from quarantine, {fact.left} stay{gone}"
        case SetChanged():
            whole = "all tables are in the common points"
            left = f"not in the common points: {', '.join(fact.without)}"
            yield f"from LSN {Lsn(fact.consistent_lsn)} on, {left if fact.without else whole}"
        case TableLaidOut() if not fact.changed:
            yield f"{fact.table} has {_layout(fact.after, fact.deletes_after, fact.fields_after)} already"
        case TableLaidOut():
            yield (
                f"{fact.table}: {_layout(fact.before, fact.deletes_before, fact.fields_before)} before,"
                f" {_layout(fact.after, fact.deletes_after, fact.fields_after)} now, in {fact.seconds:.1f} s"
            )
        case TableRolledBack():
            yield f"{fact.table}: {fact.message} Later changes are read from the topic again."
            yield f"  {fact.hint}"
        case StatesMissing():
            yield (
                f"{fact.states} lacks the states of {fact.table} between LSN {Lsn(fact.after_lsn)} and "
                f"{Lsn(fact.until_lsn)}"
            )
            yield f"  {fact.hint}"
        case ChangesMissing():
            yield (
                f"{fact.changelog} lacks the changes of {fact.table} between LSN {Lsn(fact.after_lsn)} and "
                f"{Lsn(fact.until_lsn)}"
            )
            yield f"  {fact.hint}"
        case TableTakenOver():
            yield f"{fact.target} was taken over from a mirror without a log: folds begin after LSN {Lsn(fact.lsn)}"
        case TableMaintained():
            yield (
                f"{fact.table}: {fact.compacted_files} files into {fact.written_files}, "
                f"{fact.expired_versions} former versions gone"
            )
        case LogShortened():
            held = f"; {fact.held} topics are held" if fact.held else ""
            yield f"{fact.table}: {fact.rows} records from before {fact.before} deleted{held}"
        case LogExpired():
            yield f"{fact.table} MUST BE READ AGAIN: {fact.message}"
            yield f"  {fact.hint}"
        case TopicUnfit():
            yield f"{fact.topic} {fact.message}."
            yield f"  {fact.hint}"
        case Retrying():
            yield f"{fact.message} Trying again in {fact.wait_s:.1f} s. {fact.hint}"


def _layout(buckets: int, deletes: str, fields: tuple[str, ...]) -> str:
    by = f", partitions by {', '.join(fields)}" if fields else ""
    return f"{buckets} buckets and `deletes: {deletes}`{by}"


def _bad(quarantined: int, where: str) -> str:
    return f", {quarantined} {where} quarantine" if quarantined else ""


def _batch(fact: BatchDone) -> Iterator[str]:
    changes, lsn = fact.changes, fact.commit_lsn
    rate = changes / fact.seconds if fact.seconds else 0.0
    consistent = "" if fact.cut is None else ", all tables consistent"
    where = f", LSN {Lsn(lsn)}{consistent}" if lsn else ""
    yield f"batch {fact.batch_id}: {changes} changes in {fact.seconds:.1f} s, {rate:.0f}/s{where}"
    shown, others = fact.named
    for table in shown:
        yield f"  {table.table}: {table.changes} changes of {table.rows} rows in {table.seconds:.1f} s"
    if others:
        yield f"  and {others} more tables"
