"""The status of a mirror as lines of a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from cdcd.core.pasted import on_table
from cdcd.telemetry.mirror_status import (
    Level,
    LogStatus,
    MirrorStatus,
    Quarantined,
    TableStatus,
    TargetStatus,
)
from cdcd.telemetry.terminal_text import ago, cut, number, plain, wrapped

_MARKS: Final[Mapping[Level, str]] = {"error": "!", "warning": "?", "ok": " "}

_NAME_MIN: Final = 16
"""Minimum width of the column of names on a narrow terminal."""


def lines(status: MirrorStatus, width: int) -> Iterator[str]:
    """Yield the status for people: problems first, then a line for each table of the lakehouse.

    `width`: columns of the screen.
    """
    yield from _head(status)
    problems = [] if status.log is None else list(_log_problems(status.log, width))
    problems += [line for table in status.ordered for line in _problems(table, status.at, width)]
    for each in status.unreadable:
        problems += [f"CANNOT BE READ {plain(each.name)}", *wrapped(each.message, each.hint, width)]
    if problems:
        yield ""
        yield from problems
    rows = [_row(table, target, status.at) for table in status.ordered for target in table.targets]
    if rows:
        yield ""
        yield from _columns(rows, width, behind=any(row["behind"] for row in rows))


def quarantine_lines(records: Sequence[Quarantined], limit: int) -> Iterator[str]:
    """Yield the quarantine for people: a line for each record, and whether there may be more than `limit`."""
    if not records:
        yield "no record in quarantine"
    for each in records:
        at = "-" if each.at is None else f"{each.at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"{at}  {plain(each.topic)}[{each.partition}]@{each.offset}  {plain(each.reason)}"
    if len(records) == limit:
        yield f"These are the newest {number(limit, 'record')}. --limit shows more."


def _head(status: MirrorStatus) -> Iterator[str]:
    tables = status.tables
    yield f"{status.name}: {number(len(tables), 'table')}, {status.format} in {status.place}"
    stopped = sum(table.level == "error" for table in tables)
    waiting = sum(table.stopped is not None and table.stopped.waits for table in tables)
    quarantined = sum(bool(table.quarantined) for table in tables)
    counts = {
        "stopped": stopped,
        "cannot be read": len(status.unreadable),
        "waiting": waiting,
        "with records in quarantine": quarantined,
        "late": sum(target.is_late(status.at) for table in tables for target in table.targets),
        "stopped in the log": 0 if status.log is None else len(status.log.stopped),
    }
    said = [f"{count} {what}" for what, count in counts.items() if count]
    if status.point is not None:
        without = sum(table.left_out for table in tables)
        said += [f"{without} not as of the common LSN"] if without else []
        yield f"common LSN {status.point.lsn}, recorded {ago(status.point.at, status.at)} ago"
    yield ", ".join(said) if said else "no problem found"
    if status.log is not None:
        yield from _log_lines(status.log, status.at)
    written = [target.written_at for table in tables for target in table.targets if target.written_at]
    if written:
        yield f"the newest change in any table was written {ago(max(written), status.at)} ago"


def _log_lines(log: LogStatus, now: datetime) -> Iterator[str]:
    newest = "no record" if log.newest_at is None else f"newest record {ago(log.newest_at, now)} old"
    since = "" if log.first_day is None else f", records since {log.first_day}"
    behind = "" if log.behind is None else f", {log.behind} behind Kafka"
    yield f"log {plain(log.name)}: {number(log.topics, 'topic')}, LSN {log.lsn or '-'}, {newest}{behind}{since}"
    versions = "" if log.versions is None else f", {number(log.versions, 'version')}"
    metadata = "" if log.metadata_bytes is None else f" in {log.metadata_bytes:,} bytes of metadata"
    upkeep = (
        "not maintained yet" if log.maintained_at is None else f"maintained {ago(log.maintained_at, now)} ago"
    )
    yield f"  {number(log.files, 'file')}, {log.size:,} bytes{versions}{metadata}, {upkeep}"


def _log_problems(log: LogStatus, width: int) -> Iterator[str]:
    for topic, (message, hint) in sorted(log.stopped.items()):
        yield f"STOPPED TOPIC {plain(topic)}"
        yield from wrapped(f"{message}.", hint, width)
    if log.is_worn:
        yield f"MANY VERSIONS {plain(log.name)}: {log.versions:,} in {log.metadata_bytes:,} bytes of metadata"
        message = "Each batch writes the list of all versions again, and each reader reads it."
        hint = (
            "Set maintenance.versions_max to 500 or less, and see that the mirror maintains its log"
            " (maintenance.interval_s, event table.retrying)."
        )
        yield from wrapped(message, hint, width)


def _problems(table: TableStatus, now: datetime, width: int) -> Iterator[str]:
    name, stopped = plain(table.table), table.stopped
    if stopped is not None:
        what = "WAITING" if stopped.waits else "STOPPED"
        yield f"{what} {name}, for {ago(stopped.since, now)}, since {stopped.since:%Y-%m-%d %H:%M:%S} UTC"
        yield from wrapped(stopped.message, stopped.hint, width)
    if table.quarantined:
        yield f"QUARANTINE {name}: {number(sum(table.quarantined.values()), 'record')}"
        for reason, count in sorted(table.quarantined.items(), key=lambda item: -item[1]):
            yield from wrapped(f"{count} × {reason}", "", width)
    if table.left_out:
        yield f"NOT AS OF THE COMMON LSN {name}"
    for target in table.targets:
        if target.is_expired and stopped is None:
            yield f"READ AGAIN {name}: the log has deleted changes that {plain(target.name)} does not have"
        if target.held_since is not None and target.is_late(now):
            oldest = ago(target.held_since, now)
            yield f"LATE {name}: {number(target.held, 'change')} in the log, the oldest {oldest} old"
            message = "The table does not have these changes yet."
            yield from wrapped(
                message, "See that the mirror runs, and why it does not fold the table.", width
            )
        if target.is_outgrown:
            yield f"LARGE {name}: {target.size:,} bytes in {number(target.buckets, 'bucket')}"
            message = f"{target.buckets_apt} buckets are apt, so that a batch looks at less of the table."
            hint = f"Stop the mirror, then: cdcd mirror --config FILE {on_table('--relayout', table.table)}"
            yield from wrapped(message, hint, width)
        if target.is_worn:
            yield f"MANY VERSIONS {name}: {target.versions:,} in {target.metadata_bytes:,} bytes of metadata"
            message = "Each commit writes the list of all versions again, and each reader reads it."
            hint = (
                "Set maintenance.versions_max to 500 or less, and see that the mirror maintains its tables"
                " (maintenance.interval_s, event table.retrying). A longer batches.interval_s makes fewer versions."
                " If points hold the versions (batches.consistent), set maintenance.keep_s lower."
            )
            yield from wrapped(message, hint, width)


_HEADS: Final = {
    "table": "TABLE",
    "lsn": "NEWEST LSN",
    "written": "WRITTEN",
    "held": "HELD",
    "waits": "WAITS",
    "behind": "BEHIND",
    "columns": "COLUMNS",
    "files": "FILES",
}
"""Columns of the list of tables, in their order. The first column gets the remaining width."""


def _row(table: TableStatus, target: TargetStatus, now: datetime) -> dict[str, str]:
    log = "" if target.kind == "mirror" else f" {target.kind}"
    return {
        "table": f"{_MARKS[table.level]} {plain(table.table)}{log}",
        "lsn": target.lsn or "-",
        "written": "-" if target.written_at is None else ago(target.written_at, now),
        "held": str(target.held or "-"),
        "waits": "-" if target.held_since is None else ago(target.held_since, now),
        "behind": "" if target.behind is None else str(target.behind),
        "columns": str(target.columns),
        "files": str(target.files + (target.delete_files or 0)),
    }


def _columns(rows: Sequence[Mapping[str, str]], width: int, *, behind: bool) -> Iterator[str]:
    heads = {key: head for key, head in _HEADS.items() if key != "behind" or behind}
    all_ = [{**heads, "table": f"  {heads['table']}"}, *rows]
    widths = {key: max(len(row[key]) for row in all_) for key in heads}
    others = sum(size + 1 for key, size in widths.items() if key != "table")
    widths["table"] = max(_NAME_MIN, min(widths["table"], width - others))
    for row in all_:
        name = cut(row["table"], widths["table"]).ljust(widths["table"])
        rest = [row[key].rjust(widths[key]) for key in heads if key != "table"]
        yield " ".join([name, *rest]).rstrip()
