"""The status of `cdcd mirror status`: its values, their problems, and their display.

The values come from the lakehouse alone (`cdcd.mirror.watching.log_status` reads them), so they are available while the
mirror is down. Data outside of the lakehouse, such as changes that were not read yet, is unknown here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

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
        lsn: LSN up to which the table has all changes; None: unknown.
        consistent_lsn: last common LSN, if the table has a version at it; None: none.
        written_at: time of the table's newest commit; None: none.
        held: number of changes that wait in the log.
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
        held_since: Kafka's time of the oldest change that waits in the log; None: none waits.
        is_expired: True if the log has deleted changes that the table does not have.
    """

    kind: str
    name: str
    lsn: str | None
    consistent_lsn: str | None
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
                    "written_at": _time(target.written_at),
                    "written_age_s": _age(target.written_at, self.at),
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
                    "held_age_s": _age(target.held_since, self.at),
                    "is_expired": target.is_expired,
                }
                for target in table.targets
            ],
        }


def _age(then: datetime | None, now: datetime) -> float | None:
    return None if then is None else max(0.0, round((now - then).total_seconds(), 3))


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()
