"""Decides what a session has to read, from the configuration and the checkpoint.

The rule: a snapshot that was begun is finished, unless the mode is `never`; a new initial snapshot begins only if
nothing was delivered before, or if the mode `when_needed` asks to read again what is missing.
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

_NO_OIDS: Final = Oids(())

_NO_TABLES: Final[Mapping[int, str]] = {}


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a session begins with: its `progress`, and whether all published tables are to be added to it (`initial`).

    `interrupted` is the method of a snapshot that an earlier session left unfinished; "" if there is none.
    """

    progress: Progress
    initial: bool = False
    interrupted: str = ""


def begin(mode: str, found: Progress | None, *, has_checkpoint: bool, has_gap: bool) -> Beginning:
    """Decide what the session has to read.

    Args:
        found: progress in the checkpoint; None if it has none.
        has_gap: whether changes between checkpoint and slot are lost, which the operator has accepted.
    """
    # An attempt to heal that is not begun again leaves its tables to be read.
    progress = replace(found or Progress(), method=INCREMENTAL, healing=_NO_OIDS, gap=0)
    if has_gap:
        # Changes of partitions before the new slot are part of the gap.
        progress = replace(progress, partitions="")
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
    """Return the progress without tasks whose condition may come from somebody else, and these tasks.

    PostgreSQL runs a condition as SQL. So the condition must come from a request that this pipeline has accepted:
    from the stream, or from an authentic checkpoint. The tasks that are left out are reported as failed to those
    who asked for them.
    """
    if authentic:
        return found, ()
    dropped = tuple([task for task in found.tasks if task.where])
    progress = found
    for task in dropped:
        progress = progress.end(task, CONDITION_DROPPED, code=ConfigError.exit_code)
    return progress, dropped


def wanted(published: Mapping[int, str], excluded: Iterable[str]) -> dict[int, str]:
    """Return the published tables that no pattern (`patterns.py`) excludes."""
    is_excluded = matcher(excluded, "snapshot.exclude")
    return {oid: name for oid, name in published.items() if not is_excluded(name)}


def leave_out(progress: Progress, published: Mapping[int, str], excluded: Iterable[str]) -> Progress:
    """Return the progress of an interrupted initial snapshot without tables that are excluded by now."""
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
    """Return the tables that an initial snapshot begins with, and those that it reads later beside the stream; both by
    oid.

    Creating a slot waits for open transactions, possibly for hours. A table that is added to the publication during
    that time belongs to the initial snapshot. If ALTER PUBLICATION committed after the slot's snapshot was taken,
    the snapshot lacks changes that pgoutput does not send either, so the table is read later. A list of tables
    cannot tell when a table was added, because PostgreSQL always looks up publications as of now, whatever snapshot
    the transaction has (pg_publication.c, GetPublicationRelations).

    Args:
        before: the published tables before the slot was created.
        after: the published tables after it was created.
        exported: the names of tables at the slot's snapshot; None if there is no snapshot to read at.
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
    """Return the progress in which all these tables are to be read, except excluded ones; `published` and `later` are
    by oid.

    All of them are known afterwards, so a table that is published later counts as added. The tables in `later` are
    read beside the stream.
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
    """Return the progress of an initial snapshot after a gap, in which the rows from before the gap are ended in the
    topics of its tables.

    Tables may have been renamed, dropped and created during the gap. So the owners of names from before the gap are
    kept, except where the name now belongs to a table whose earlier rows are ended: the next table with such a name
    then ends the rows of the earlier owner.

    Args:
        found: the progress from before the gap.
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


def healable(found: Progress, read: Mapping[int, str]) -> Oids:
    """Return the tables whose topics may be compared with the tables after a gap.

    A topic must have the rows of the same table, under the same name, as before the gap. Topics with rows of other
    tables are ended by truncate records.

    Args:
        found: the progress from before the gap, or of an attempt to heal that did not end.
        read: the names of the tables that are read after the gap, by oid.
    """
    known = found.known
    if known is None or not known.sums:
        return _NO_OIDS
    again, vacated = found.healing, set(found.vacated)
    owned = []
    for oid, name in read.items():
        is_owner = known.sum_of(oid) == name_sum(name) and name_sum(name) not in vacated
        is_clean = oid in again if len(again) else oid not in found.outdated
        if is_owner and is_clean and oid not in found.unlisted:
            owned.append(oid)
    return Oids(owned)
