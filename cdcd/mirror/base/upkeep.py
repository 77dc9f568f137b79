"""Maintenance of folded tables: small files are written together, former versions expire, stray files go.

The rule: folds and maintenance take turns. A round of maintenance begins with the tables that need it most, some of
them side by side, and begins no further table when its time is up, so folds never wait for long. The next round goes on
with the others. A step that fails leaves the table as good as before, and the next round repeats it.

No commit of maintenance has a position, so the position is that of the commit before it. In Iceberg, it is kept apart
before that commit may expire.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.base.branches import call, drop_tags
from cdcd.mirror.base.formats import BaseFormat
from cdcd.mirror.base.points import Pins, look_up_pins
from cdcd.mirror.base.sessions import Sessions
from cdcd.mirror.jars import DELTA
from cdcd.mirror.platform.sql import text
from cdcd.mirror.platform.tables import exists, having, properties, set_properties
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.pinned import CONTROL
from cdcd.mirror.targets.target import Maintained, Maintenance, Target
from cdcd.mirror.watching.progress import Observer, TableFailed, TableMaintained, first_lines

LIST_EVERY: Final = timedelta(days=1)
"""How often the files of a table are listed, to find those that no version has, and all tables are looked at."""

_LISTED: Final = "cdcd.listed"
"""The property of an Iceberg table that says when its files were listed."""

_SPARE: Final = 1.1
"""Factor by which versions may outgrow their number or age before they expire."""

_MANIFESTS_MAX: Final = 50
"""Number of Iceberg's lists of files above which they are written together. Each reader reads all of them."""

_UNCOMMITTED_H: Final = 6
"""Hours for which Delta keeps files that belong to no version, because a fold may yet commit them."""

_HISTORY: Final = 500
"""Number of versions of a Delta table that are looked at."""


@dataclass(frozen=True, slots=True)
class Wear:
    """What has become of a table since its last maintenance.

    Attributes:
        commits: number of commits since the last compaction.
        versions: times of the versions that expire, the newest first.
        listed_at: when files of no version were looked for. None: never, or not lately.
    """

    commits: int
    versions: tuple[datetime, ...] = ()
    listed_at: datetime | None = None


def need(wear: Wear, policy: Maintenance, now: datetime) -> float:
    """How much a table needs maintenance. Below 1: not yet."""
    needs = [wear.commits / policy.small_files_min]
    if len(wear.versions) > policy.keep_versions:
        most = policy.versions_max
        if most is not None:
            needs.append(len(wear.versions) / (most * _SPARE))
        age = (now - wear.versions[-1]).total_seconds()
        needs.append(age / (max(policy.keep_s, 1) * _SPARE))
    return max(needs)


def expires_before(
    wear: Wear, policy: Maintenance, now: datetime, pinned: datetime | None
) -> datetime | None:
    """The time before which versions expire. None: no version has to.

    Args:
        pinned: the versions of this time stay, because consistent points name them. None: there are no points.
    """
    oldest = now - timedelta(seconds=policy.keep_s)
    most = policy.versions_max
    if most is not None and len(wear.versions) > most:
        oldest = max(oldest, wear.versions[most - 1])
    if pinned is not None:
        oldest = min(oldest, pinned)
    is_due = len(wear.versions) > policy.keep_versions and wear.versions[-1] < oldest
    return oldest if is_due else None


class BaseUpkeep:
    """The maintenance of the tables that are folded from one log.

    Args:
        observe: gets facts, from several threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        format_: BaseFormat,
        target: Target,
        observe: Observer,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._format = format_
        self._target = target
        self._observe = observe
        self._sessions = Sessions(spark)
        self._due_at = 0.0
        self._all_at: datetime | None = None
        self._seen: dict[str, int] = {}
        """By table, the number of commits that were there after the last compaction changed nothing."""

    def is_due(self) -> bool:
        """Whether a round is due."""
        return self._settings.maintenance_interval_s is not None and time.monotonic() >= self._due_at

    def round(self, changed: Collection[str], all_names: Collection[str], limit_s: float | None) -> set[str]:
        """Maintain tables, the neediest first, for about `limit_s` seconds. None: all that need it.

        Args:
            changed: names of tables in SQL that got commits since the last round.
            all_names: names of all tables, which are looked at once a day.

        Returns:
            The tables that still need maintenance.
        """
        began, now = time.monotonic(), datetime.now(UTC)
        looks_at_all = self._all_at is None or now - self._all_at >= LIST_EVERY
        worn: list[tuple[float, str, Wear]] = []
        names = sorted(set(all_names) if looks_at_all else set(changed))
        wears = self._sessions.each(self._settings.threads, self._wear, names)
        for name, found in zip(names, wears, strict=True):
            if found is None:
                continue
            # The number falls when a compaction or an expiry removes commits from the list.
            seen = self._seen[name] = min(self._seen.get(name, 0), found.commits)
            wear = replace(found, commits=found.commits - seen)
            if (needs := need(wear, self._settings.maintenance, now)) >= 1:
                worn.append((needs, name, wear))
        worn.sort(key=lambda each: -each[0])
        try:
            pins = self._pins() if worn else None
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            # No version may expire, because a point may name it.
            self._failed(self._target.own_name(CONTROL), error)
            pins, worn = None, []

        def maintain(spark: SparkSession, each: tuple[float, str, Wear]) -> str | None:
            """Return the name of the table if no time is left for it."""
            _, name, wear = each
            if limit_s is not None and time.monotonic() - began >= limit_s:
                return name
            self._maintain(spark, name, wear, now, pins)
            return None

        done = self._sessions.each(self._settings.threads, maintain, worn)
        left = [name for name in done if name is not None]
        self._all_at = now if looks_at_all else self._all_at
        self._due_at = time.monotonic() + (0 if left else self._settings.maintenance_interval_s or 0)
        return set(left)

    def _wear(self, spark: SparkSession, name: str) -> Wear | None:
        """None: there is no such table, or it cannot be read, which its fold tells."""
        try:
            if not exists(spark, name):
                return None
            is_delta = self._target.format == DELTA
            wear = (_delta_wear if is_delta else _iceberg_wear)(spark, name)
        except Exception:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            return None
        return wear

    def _pins(self) -> Pins | None:
        policy = self._settings.maintenance
        self._target.prune(self._spark, self._target.own_name(CONTROL), "commit_lsn", policy)
        return look_up_pins(self._spark, self._target, consistent=self._settings.consistent)

    def _maintain(self, spark: SparkSession, name: str, wear: Wear, now: datetime, pins: Pins | None) -> None:
        policy = self._settings.maintenance
        pinned = None if pins is None else datetime.fromtimestamp(pins.since_us / 1_000_000, UTC)
        before = expires_before(wear, policy, now, pinned)
        is_listed = wear.listed_at is not None and now - wear.listed_at < LIST_EVERY
        try:
            if self._target.format == DELTA:
                hours = _hours(policy, now, pinned)
                done = _tidy_delta(spark, name, policy, None if is_listed else hours)
            else:
                if pins is not None:
                    drop_tags(spark, name, pins.since_lsn)
                there = self._format.version(spark, name)
                if before is not None and there.position is not None:
                    self._format.keep(spark, name, there.pin, there.position)
                stray = None if is_listed else now - timedelta(seconds=policy.orphans_s)
                done = _tidy_iceberg(spark, name, policy, before, stray)
            rest = self._wear(spark, name)
            self._seen[name] = 0 if rest is None else rest.commits
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            self._failed(name, error)
            return
        if done.compacted_files or done.expired_versions:
            self._observe(
                TableMaintained(name, done.compacted_files, done.written_files, done.expired_versions)
            )

    def _failed(self, name: str, error: Exception) -> None:
        hint = "Folds go on. The next round of maintenance repeats the step."
        self._observe(TableFailed(name, f"maintenance: {first_lines(error)}", hint))


def _hours(policy: Maintenance, now: datetime, pinned: datetime | None) -> int:
    """Hours for which Delta keeps the files of former versions."""
    seconds = policy.keep_s if pinned is None else max(policy.keep_s, (now - pinned).total_seconds())
    return max(int(-(-seconds // 3600)), _UNCOMMITTED_H)


def since_compaction(operations: Collection[str], compaction: str) -> int:
    """Number of commits before the first compaction in a list of operations, the newest first."""
    found = list(operations)
    return found.index(compaction) if compaction in found else len(found)


def _iceberg_wear(spark: SparkSession, name: str) -> Wear:
    rows = (
        spark.table(f"{name}.snapshots")
        .selectExpr("operation", "unix_micros(committed_at) AS at")
        .orderBy(sf.desc("at"))
        .collect()
    )
    listed = properties(spark, name).get(_LISTED)
    return Wear(
        since_compaction([row["operation"] for row in rows], "replace"),
        tuple([datetime.fromtimestamp(row["at"] / 1_000_000, UTC) for row in rows]),
        None if listed is None else datetime.fromisoformat(listed),
    )


def _delta_wear(spark: SparkSession, name: str) -> Wear:
    history = spark.sql(f"DESCRIBE HISTORY {name} LIMIT {_HISTORY}")
    rows = history.selectExpr("version", "operation", "unix_micros(timestamp) AS at").collect()
    rows.sort(key=lambda row: -row["version"])
    listed = [row["at"] for row in rows if row["operation"] == "VACUUM END"]
    # Delta removes former versions from its log by itself.
    return Wear(
        since_compaction([row["operation"] for row in rows], "OPTIMIZE"),
        (),
        datetime.fromtimestamp(max(listed) / 1_000_000, UTC) if listed else None,
    )


def _tidy_iceberg(
    spark: SparkSession, name: str, policy: Maintenance, before: datetime | None, stray: datetime | None
) -> Maintained:
    """Maintain a table.

    Args:
        before: versions from before expire. None: none do.
        stray: files of no version from before go. None: files are not listed.
    """

    def run(procedure: str, arguments: str) -> list[Any]:
        table = f"table => '{text(name)}'"
        return list(spark.sql(call(name, f"{procedure}({table}, {arguments})")).collect())

    options: Mapping[str, object] = {
        "min-input-files": policy.small_files_min,
        "target-file-size-bytes": policy.target_file_bytes,
        "delete-file-threshold": policy.small_files_min,
        "remove-dangling-deletes": "true",
    }
    pairs = ", ".join([f"'{key}', '{value}'" for key, value in options.items()])
    (row,) = run("rewrite_data_files", f"options => map({pairs})")
    compacted, written = row["rewritten_data_files_count"], row["added_data_files_count"]
    if spark.table(f"{name}.manifests").count() > _MANIFESTS_MAX:
        run("rewrite_manifests", "use_caching => false")
    expired = 0
    if before is not None:
        count = spark.table(f"{name}.snapshots").count()
        run("expire_snapshots", f"older_than => {_literal(before)}, retain_last => {policy.keep_versions}")
        expired = max(0, count - spark.table(f"{name}.snapshots").count())
    if stray is not None:
        run("remove_orphan_files", f"older_than => {_literal(stray)}, prefix_mismatch_mode => 'IGNORE'")
        set_properties(spark, name, {_LISTED: datetime.now(UTC).isoformat()})
    return Maintained(compacted, written, expired)


def _tidy_delta(spark: SparkSession, name: str, policy: Maintenance, hours: int | None) -> Maintained:
    """Maintain a table. `hours`: files of versions that ended before go. None: files are not listed."""
    conf = {"spark.databricks.delta.optimize.maxFileSize": str(policy.target_file_bytes)}
    with having(spark, conf):
        row = spark.sql(f"OPTIMIZE {name}").select("metrics.*").collect()[0]
    if hours is not None:
        with having(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
            spark.sql(f"VACUUM {name} RETAIN {hours} HOURS").collect()
    return Maintained(row["numFilesRemoved"], row["numFilesAdded"], 0)


def _literal(at: datetime) -> str:
    return f"TIMESTAMP '{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
