"""What a mirror tells while it runs: frozen facts, and lines of them for a person."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cdcd.protocol.lsn import Lsn
from cdcd.spark.table import Progress

SHOWN_MAX: Final = 12
"""Tables of a batch that are shown by name, those with most changes first."""


@dataclass(frozen=True, slots=True)
class MirrorStarted:
    """The stream begins, or goes on."""

    name: str
    topics: int
    once: bool


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch is in every table that had changes and is not stopped.

    `cut`: with consistent batches, the common LSN; None also where it has not risen, and nothing was done.
    """

    batch_id: int
    tables: tuple[Progress, ...]
    seconds: float
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class TableFailed:
    """A table could not follow; `stopped`: it is left alone until the next start, else it is tried again."""

    table: str
    message: str
    hint: str
    stopped: bool


@dataclass(frozen=True, slots=True)
class TableReloading:
    """A table that could not follow is read again from its database; `waiting`: for what, if for something."""

    table: str
    message: str
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class TableReloaded:
    """The table was read again, and goes on from `lsn`."""

    table: str
    rows: int
    quarantined: int
    lsn: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """Quarantine was replayed for a table.

    Attributes:
        replayed: number of records that are in the table now.
        left: number of records that are still no changes.
        gone: number of records that the topic has no more.
    """

    table: str
    replayed: int
    left: int
    gone: int


@dataclass(frozen=True, slots=True)
class SetChanged:
    """With consistent batches: from the common LSN `cut` on, the tables `without` are not part of the common points."""

    cut: int
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableMaintained:
    """Small files were written together, former versions let go."""

    table: str
    compacted_files: int
    written_files: int
    expired_versions: int


@dataclass(frozen=True, slots=True)
class Unmirrored:
    """A topic of the pipeline that no description fits."""

    topic: str
    message: str


@dataclass(frozen=True, slots=True)
class TopicUnfit:
    """A topic whose settings let records go that the mirror needs."""

    topic: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Retrying:
    """Something is away; the stream starts again after so many seconds."""

    message: str
    hint: str
    wait_s: float


Fact = (
    MirrorStarted
    | BatchDone
    | TableFailed
    | TableReloading
    | TableReloaded
    | SetChanged
    | Replayed
    | TableMaintained
    | Unmirrored
    | TopicUnfit
    | Retrying
)
Observer = Callable[[Fact], None]


def lines(fact: Fact, now: datetime | None = None) -> Iterator[str]:
    """A fact for a person. `now`: with a time zone; lag is counted to it."""
    match fact:
        case MirrorStarted():
            mode = "what is there now" if fact.once else "what comes"
            yield f"{fact.name}: {fact.topics} tables, {mode}"
        case BatchDone():
            yield from _batch(fact, now or datetime.now(UTC))
        case TableFailed():
            yield f"{fact.table} {'STOPPED' if fact.stopped else 'failed, trying again'}: {fact.message}"
            if fact.hint:
                yield f"  {fact.hint}"
        case TableReloading():
            waits = f" Waiting for {fact.waiting}." if fact.waiting else ""
            yield f"{fact.table} is read again from the database: {fact.message}{waits}"
        case TableReloaded():
            bad = f", {fact.quarantined} to quarantine" if fact.quarantined else ""
            yield f"{fact.table} was read again: {fact.rows} rows in {fact.seconds:.1f} s, as of {Lsn(fact.lsn)}{bad}"
        case Replayed():
            gone = f", {fact.gone} gone from the topic" if fact.gone else ""
            yield f"{fact.table}: {fact.replayed} records from quarantine, {fact.left} stay{gone}"
        case SetChanged():
            whole = "all tables are in the common points"
            left = f"not in the common points: {', '.join(fact.without)}"
            yield f"from LSN {Lsn(fact.cut)} on, {left if fact.without else whole}"
        case TableMaintained():
            yield (
                f"{fact.table}: {fact.compacted_files} files into {fact.written_files}, "
                f"{fact.expired_versions} former versions gone"
            )
        case Unmirrored():
            yield f"{fact.topic} is not mirrored: {fact.message}"
        case TopicUnfit():
            yield f"{fact.topic} {fact.message}."
            yield f"  {fact.hint}"
        case Retrying():
            yield f"{fact.message} Trying again in {fact.wait_s:.1f} s. {fact.hint}"


def _batch(fact: BatchDone, now: datetime) -> Iterator[str]:
    changes = sum(table.changes for table in fact.tables)
    quarantined = sum(table.quarantined for table in fact.tables)
    rate = changes / fact.seconds if fact.seconds else 0.0
    lsn = max([table.commit_lsn for table in fact.tables], default=0) if fact.cut is None else fact.cut
    consistent = "" if fact.cut is None else ", all tables consistent"
    where = f", LSN {Lsn(lsn)}{consistent}" if lsn else ""
    bad = f", {quarantined} records to quarantine" if quarantined else ""
    yield f"batch {fact.batch_id}: {changes} changes in {fact.seconds:.1f} s, {rate:.0f}/s{where}{bad}"
    shown = sorted(fact.tables, key=lambda table: -table.changes)
    for table in shown[:SHOWN_MAX]:
        if not table.records:
            continue
        lag = "" if table.commit_time is None else f", {lag_s(table.commit_time, now):.1f} s behind"
        held = f", {table.held} waiting for the others" if table.held else ""
        bad = f", {table.quarantined} to quarantine" if table.quarantined else ""
        yield f"  {table.table}: {table.changes} changes in {table.seconds:.1f} s{lag}{held}{bad}"
    if len(shown) > SHOWN_MAX:
        yield f"  and {len(shown) - SHOWN_MAX} more tables"


def first_lines(error: Exception) -> str:
    """What an error of Spark's says first; a stack trace in Java follows."""
    return " ".join(str(error).split("\n\n")[0].split())[:600]


def lag_s(commit_time: datetime, now: datetime) -> float:
    """How long ago a commit was, as a batch gives its time. `now`: with a time zone."""
    # Spark hands out instants in local time without a zone.
    return max(0.0, (now - commit_time.astimezone(UTC)).total_seconds())
