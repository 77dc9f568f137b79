"""What a life has to read, by what the configuration wants and what the checkpoint remembers.

The rule: what is begun is finished, unless `never` says otherwise; and a new initial snapshot begins only where nothing
was delivered before, or where `when_needed` says that what is missing is to be read again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.catalog.oids import Oids, name_sum
from cdcd.core.catalog.patterns import matcher
from cdcd.core.errors import ConfigError
from cdcd.core.snapshot.progress import EXPORTED, INCREMENTAL, Progress
from cdcd.core.snapshot.signals import ADDED, OWN_REQUESTS
from cdcd.core.snapshot.table_task import TableTask

NEVER: Final = "never"
INITIAL: Final = "initial"
ONLY: Final = "only"
WHEN_NEEDED: Final = "when_needed"

CONDITION_DROPPED: Final = "the condition did not survive a restart: ask again (topics.checkpoint_key)"

_NO_TABLES: Final[Mapping[int, str]] = {}


@dataclass(frozen=True, slots=True)
class Beginning:
    """`progress` of the life that begins; `initial`: all published tables are to be added to it.

    `interrupted` is the method of a snapshot that an earlier life left unfinished, "" if there is none.
    """

    progress: Progress
    initial: bool = False
    interrupted: str = ""


def begin(mode: str, found: Progress | None, *, has_checkpoint: bool, has_gap: bool) -> Beginning:
    """Decide.

    Args:
        found: the checkpoint's progress, None where it has none.
        has_gap: slot and checkpoint do not meet, and that is accepted.
    """
    progress = replace(found or Progress(), method=INCREMENTAL)
    if mode == NEVER:
        left = progress.tables_left
        for task in progress.tasks:
            if task.request in OWN_REQUESTS:
                progress = progress.end(task, "snapshot.mode: never")
        progress = replace(progress, begun=len(progress.waiting))
        return Beginning(progress, interrupted=INCREMENTAL if left else "")
    if not has_checkpoint or (has_gap and mode == WHEN_NEEDED):
        return Beginning(Progress(event_no=progress.event_no), initial=True)
    was = found.method if found is not None and not found.is_done else ""
    return Beginning(progress, interrupted=was)


def without_conditions(found: Progress, authentic: bool) -> tuple[Progress, tuple[TableTask, ...]]:
    """The progress without the tasks whose condition may be a stranger's, and these tasks.

    A condition is run as SQL. So it must come from a request that this pipeline has accepted: from the stream, or from
    a checkpoint that is authentic. Whoever waits for such a task hears that it failed.
    """
    if authentic:
        return found, ()
    dropped = tuple([task for task in found.tasks if task.where])
    progress = found
    for task in dropped:
        progress = progress.end(task, CONDITION_DROPPED, code=ConfigError.exit_code)
    return progress, dropped


def wanted(published: Mapping[int, str], excluded: Iterable[str]) -> dict[int, str]:
    """Those of the published tables that no pattern (`patterns.py`) excludes."""
    is_excluded = matcher(excluded, "snapshot.exclude")
    return {oid: name for oid, name in published.items() if not is_excluded(name)}


def leave_out(progress: Progress, published: Mapping[int, str], excluded: Iterable[str]) -> Progress:
    """The progress of an interrupted initial snapshot without the tables that are excluded by now."""
    is_excluded = matcher(excluded, "snapshot.exclude")
    for task in progress.tasks:
        if not task.request and is_excluded(published.get(task.oid, task.name)):
            progress = progress.end(task, "snapshot.exclude")
    left = progress.waiting.oids[progress.begun :]
    kept = [oid for oid in left if not is_excluded(published.get(oid, ""))]
    if len(kept) == len(left):
        return progress
    gone = set(left).difference(kept)
    return replace(progress, waiting=Oids(kept), begun=0).end_former_rows(gone)


def first_tables(
    before: Mapping[int, str], after: Mapping[int, str], exported: Mapping[int, str] | None
) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Which tables an initial snapshot begins with, and which it reads later, beside the stream; by oid.

    The creation of a slot waits for open transactions, for hours if need be. A table that was added to the publication
    meanwhile belongs to the initial snapshot. If ALTER PUBLICATION came after the slot's snapshot, that snapshot lacks
    changes of the table that pgoutput does not send either, so the table is read later. A list cannot tell when a
    table was added, because PostgreSQL looks publications up as of now, whatever the snapshot of the transaction is
    (pg_publication.c, GetPublicationRelations).

    Args:
        before: the published tables before the slot was made.
        after: those when it was there.
        exported: the names of tables at the slot's snapshot; None: there is none to read at.
    """
    if exported is None:
        return after, {}
    first = {oid: exported.get(oid, name) for oid, name in before.items()}
    return first, {oid: name for oid, name in after.items() if oid not in before}


def initial(
    progress: Progress,
    published: Mapping[int, str],
    excluded: Iterable[str],
    *,
    exported: bool,
    later: Mapping[int, str] = _NO_TABLES,
) -> Progress:
    """The progress with all of these tables to be read but the excluded ones; `published` and `later` are by oid.

    All of them are known from here on: what is published afterwards was added. `later` are read beside the stream.
    """
    known = {**published, **later}
    excluded = tuple(excluded)
    made = replace(
        progress,
        waiting=Oids(wanted(published, excluded)),
        begun=0,
        known=Oids(known, known),
        method=EXPORTED if exported else INCREMENTAL,
    )
    return made.add(TableTask(name, oid, request=ADDED) for oid, name in wanted(later, excluded).items())


def end_former_rows(
    progress: Progress, found: Progress, published: Mapping[int, str], excluded: Iterable[str]
) -> Progress:
    """The progress of an initial snapshot after a gap: the rows from before the gap end in the topics of its tables.

    Tables may have been renamed, dropped and created in the gap. So the owners of names before the gap stay known,
    unless the name now belongs to a table whose former rows end: the next table with such a name ends the rows of the
    table that had it.

    Args:
        found: the progress before the gap.
        published: the names of the tables after the gap, by oid.
    """
    read = wanted(published, excluded)
    sums = {oid: name_sum(name) for oid, name in read.items()}
    taken = set(sums.values())
    before = found.known
    if before is None or not before.sums:
        return replace(progress, outdated=Oids(read))
    left = dict(zip(before.oids, before.sums, strict=True))
    others = {oid: each for oid, each in left.items() if oid not in sums and each not in taken}
    vacated = {*found.vacated, *[each for oid, each in left.items() if oid in sums]} - taken
    return replace(
        progress,
        outdated=Oids(read),
        known=Oids.with_sums({**others, **sums}),
        vacated=tuple(sorted(vacated)),
        unlisted=Oids(oid for oid in found.unlisted.oids if oid in others),
    )
