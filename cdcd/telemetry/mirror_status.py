"""The status of `cdcd mirror status`: its values, their problems, and their display.

The values come from the lakehouse alone (`cdcd.mirror.watching.status` reads them), so they are available while the
mirror is down. Data outside of the lakehouse, such as changes that were not read yet, is unknown here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

from cdcd.core.pasted import on_table
from cdcd.telemetry.terminal_text import ago, cut, number, plain, seconds, wrapped

Level = Literal["ok", "warning", "error"]

FOUND: Final = 10
"""Exit code if a table is stopped or cannot be read (`errors.EXIT_CODES`)."""

OUTGROWN: Final = 8
"""Factor by which a table's number of buckets must be below the apt number to be reported."""

METADATA_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of a table's metadata above which the table is named. Each commit writes and each reader reads all of it: with
21 MB, a commit took 10 to 20 seconds."""

LATE: Final = timedelta(hours=1)
"""A table is reported as late if it has not folded a change that has been in the log for this time. Folds are at most
minutes apart."""

_ORDER: Final[Mapping[Level, int]] = {"error": 0, "warning": 1, "ok": 2}
_MARKS: Final[Mapping[Level, str]] = {"error": "!", "warning": "?", "ok": " "}
_NAME_MIN: Final = 16
"""Minimum width of the column of names on a narrow terminal."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a table is stopped.

    Attributes:
        since: time at which a mirror first recorded this.
        waits: True if a running mirror retries the table with each batch; False: at its next start.
    """

    since: datetime
    waits: bool
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One table of the lakehouse, by its newest commits.

    Attributes:
        kind: mirror or changelog.
        name: name in SQL.
        lsn: commit LSN of the newest change in the table; None: no change yet.
        consistent_lsn: last common LSN at which a commit was made in the table; None: none.
        commit_time: commit time of the newest change, by the source's clock; None: unknown.
        written_at: time of the commit with the newest changes; None: none.
        held: number of changes that had been read by then, and waited for other partitions or a common LSN.
        behind: number of the topic's offsets after the table's, including Kafka's own markers; None: Kafka was not
            asked.
        schema_id: fingerprint of the table's form.
        columns: number of the source's columns.
        files: number of data files.
        delete_files: number of files with deleted rows; None: the format has no such files.
        size: bytes of all files.
        buckets: number of buckets of a mirror; 1: no buckets.
        buckets_apt: number of buckets that the configuration sets, or that suits the size.
        versions: number of former versions and the newest one in the metadata that each commit writes again; None: the
            format has no such metadata.
        metadata_bytes: size of that metadata.
        held_since: with a log, Kafka's time of the oldest change that waits in the log; None: none waits.
        is_expired: True if the log has deleted changes that the table does not have.
    """

    kind: str
    name: str
    lsn: str | None
    consistent_lsn: str | None
    commit_time: datetime | None
    written_at: datetime | None
    held: int
    behind: int | None
    schema_id: str
    columns: int
    files: int
    delete_files: int | None
    size: int
    buckets: int = 1
    buckets_apt: int = 1
    versions: int | None = None
    metadata_bytes: int | None = None
    held_since: datetime | None = None
    is_expired: bool = False

    @property
    def is_worn(self) -> bool:
        """True if the table's metadata is so large that each commit, which writes all of it, takes long."""
        return self.metadata_bytes is not None and self.metadata_bytes > METADATA_BYTES_MAX

    def is_late(self, now: datetime) -> bool:
        """True if a change has waited in the log for long."""
        return self.held_since is not None and now - self.held_since > LATE

    @property
    def is_outgrown(self) -> bool:
        """True if a merge reads much more of the table than with the apt number of buckets."""
        return self.buckets_apt >= OUTGROWN * self.buckets

    @property
    def delay_s(self) -> float | None:
        """Seconds from the newest change's commit at the source to its commit in the table, by the clocks of both."""
        if self.commit_time is None or self.written_at is None:
            return None
        return max(0.0, (self.written_at - self.commit_time).total_seconds())


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table of the source.

    Attributes:
        table: `schema.table`.
        quarantined: number of the table's records in quarantine, by reason.
        left_out: True if the table is not at the last common LSN.
    """

    table: str
    topic: str
    targets: tuple[TargetStatus, ...] = ()
    stopped: Stopped | None = None
    quarantined: Mapping[str, int] = field(default_factory=dict)
    left_out: bool = False

    @property
    def level(self) -> Level:
        """error: an operator must act. warning: rows are missing or late, and the table continues."""
        if self.stopped is not None and not self.stopped.waits:
            return "error"
        if any(target.is_expired for target in self.targets):
            return "error"
        return "warning" if self.stopped is not None or self.quarantined or self.left_out else "ok"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A table whose status could not be read."""

    name: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A record in quarantine. `at`: Kafka's time of the record; None: unknown."""

    topic: str
    partition: int
    offset: int
    at: datetime | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the record for programs."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "at": _time(self.at),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Point:
    """The last common LSN of a consistent mirror, and the time of its record."""

    lsn: str
    at: datetime


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The log of a mirror with `change_log`.

    Attributes:
        name: name in SQL.
        topics: number of topics that the query reads.
        lsn: greatest commit LSN of the newest day's records; None: no record.
        newest_at: Kafka's time of the newest record; None: no record.
        appended_at: time of the newest batch with records; None: no batch.
        first_day: oldest day whose records are kept; None: no record.
        maintained_at: time of the last maintenance; None: none yet.
        offsets: by topic and partition, the offset after the last record that the log has.
        behind: number of offsets in Kafka after the log's, including Kafka's own markers; None: Kafka was not asked.
        stopped: topics that are left out, with the reason and a hint.
        files: number of data files.
        size: bytes of all files.
        versions, metadata_bytes: as in `TargetStatus`.
    """

    name: str
    topics: int
    lsn: str | None
    newest_at: datetime | None
    appended_at: datetime | None
    first_day: date | None
    maintained_at: datetime | None
    offsets: Mapping[str, Mapping[int, int]]
    behind: int | None
    stopped: Mapping[str, tuple[str, str]]
    files: int
    size: int
    versions: int | None
    metadata_bytes: int | None

    @property
    def is_worn(self) -> bool:
        """True if the table's metadata is so large that each commit, which writes all of it, takes long."""
        return self.metadata_bytes is not None and self.metadata_bytes > METADATA_BYTES_MAX

    def to_json(self, now: datetime) -> dict[str, Any]:
        """Return the log's part of `MirrorStatus.to_json`."""
        return {
            "name": self.name,
            "topics": self.topics,
            "lsn": self.lsn,
            "newest_at": _time(self.newest_at),
            "newest_age_s": _age(self.newest_at, now),
            "appended_at": _time(self.appended_at),
            "first_day": None if self.first_day is None else self.first_day.isoformat(),
            "maintained_at": _time(self.maintained_at),
            "offsets": {
                topic: {str(part): end for part, end in sorted(parts.items())}
                for topic, parts in sorted(self.offsets.items())
            },
            "behind": self.behind,
            "stopped": {
                topic: {"message": message, "hint": hint}
                for topic, (message, hint) in sorted(self.stopped.items())
            },
            "files": self.files,
            "bytes": self.size,
            "versions": self.versions,
            "metadata_bytes": self.metadata_bytes,
        }


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """Status of a mirror at one moment, `at`.

    Attributes:
        place: location of the tables, as text.
        log: None: the mirror has no log.
    """

    name: str
    format: str
    place: str
    at: datetime
    tables: Sequence[TableStatus]
    unreadable: Sequence[Unreadable] = ()
    point: Point | None = None
    log: LogStatus | None = None

    @property
    def exit_code(self) -> int:
        """Exit code: 0, or FOUND if a table or a topic of the log is stopped, or a table cannot be read."""
        has_stopped = self.log is not None and bool(self.log.stopped)
        is_bad = has_stopped or self.unreadable or any(table.level == "error" for table in self.tables)
        return FOUND if is_bad else 0

    @property
    def ordered(self) -> list[TableStatus]:
        """Return the tables with problems first, then by name."""
        return sorted(self.tables, key=lambda table: (_ORDER[table.level], table.table))

    def to_json(self) -> dict[str, Any]:
        """Return the status for programs. All keys are always present; unknown values are null.

        Times are ISO 8601, in UTC.
        """
        return {
            "name": self.name,
            "format": self.format,
            "at": _time(self.at),
            "exit_code": self.exit_code,
            "consistent": None if self.point is None else {"lsn": self.point.lsn, "at": _time(self.point.at)},
            "unreadable": [
                {"name": each.name, "message": each.message, "hint": each.hint} for each in self.unreadable
            ],
            "log": None if self.log is None else self.log.to_json(self.at),
            "tables": [self._table(table) for table in self.ordered],
        }

    def _table(self, table: TableStatus) -> dict[str, Any]:
        stopped = table.stopped
        return {
            "table": table.table,
            "topic": table.topic,
            "level": table.level,
            "stopped": None
            if stopped is None
            else {
                "since": _time(stopped.since),
                "waits": stopped.waits,
                "message": stopped.message,
                "hint": stopped.hint,
            },
            "quarantined": dict(table.quarantined),
            "left_out": table.left_out,
            "targets": [
                {
                    "kind": target.kind,
                    "name": target.name,
                    "lsn": target.lsn,
                    "consistent_lsn": target.consistent_lsn,
                    "commit_time": _time(target.commit_time),
                    "written_at": _time(target.written_at),
                    "written_age_s": _age(target.written_at, self.at),
                    "delay_s": None if target.delay_s is None else round(target.delay_s, 3),
                    "held": target.held,
                    "behind": target.behind,
                    "schema_id": target.schema_id,
                    "columns": target.columns,
                    "files": target.files,
                    "delete_files": target.delete_files,
                    "bytes": target.size,
                    "buckets": target.buckets,
                    "buckets_apt": target.buckets_apt,
                    "versions": target.versions,
                    "metadata_bytes": target.metadata_bytes,
                    "held_since": _time(target.held_since),
                    "is_expired": target.is_expired,
                }
                for target in table.targets
            ],
        }


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
    "delay": "DELAY",
    "held": "HELD",
    "behind": "BEHIND",
    "columns": "COLUMNS",
    "files": "FILES",
}
"""Columns of the list of tables, in their order. The first column gets the remaining width."""


def _row(table: TableStatus, target: TargetStatus, now: datetime) -> dict[str, str]:
    delay = target.delay_s
    log = "" if target.kind == "mirror" else f" {target.kind}"
    return {
        "table": f"{_MARKS[table.level]} {plain(table.table)}{log}",
        "lsn": target.lsn or "-",
        "written": "-" if target.written_at is None else ago(target.written_at, now),
        "delay": "-" if delay is None else seconds(delay),
        "held": str(target.held or "-"),
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


def _age(then: datetime | None, now: datetime) -> float | None:
    return None if then is None else max(0.0, round((now - then).total_seconds(), 3))


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()
