"""Maintenance of the log beside the query that appends to it: positions, retention, compaction, former versions.

The rule: a round may be killed anywhere, and no record is lost or comes twice. Each step is one commit of the table
format. The positions of all records are saved in the log before old records are deleted, so that the log knows its
offsets without them.

A batch is only added, and all steps read the files of former batches. So neither format lets a batch fail because of a
step, or a step because of a batch. A step fails if somebody else changes the same files, and the next round repeats it.

Retention deletes whole days, the partitions of the log, and rewrites no file unless a topic is held. A topic is held
while a table of it has not folded records of an old day (`Needs`), for `held_days` at most.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.pasted import begin_again
from cdcd.mirror.jars import DELTA
from cdcd.mirror.log import positions
from cdcd.mirror.log.positions import Positions, Summary, instant
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.platform.sql import parts, quoted, text
from cdcd.mirror.targets.target import Maintenance
from cdcd.mirror.watching.progress import (
    LogExpired,
    LogShortened,
    Observer,
    TableFailed,
    TableMaintained,
    first_lines,
)

Needs = Callable[[Collection[str]], Mapping[str, int]]
"""For these topics, the LSN up to which the tables of each topic have folded the log. No table needs the records of a
topic that is missing in the result."""


def no_needs(_topics: Collection[str]) -> dict[str, int]:
    """`Needs` of a log without tables."""
    return {}


LIST_EVERY: Final = timedelta(days=1)
"""How often the files of the log are listed, to find those that no version has."""

_SMALL: Final = 8
"""A file of the current day below this fraction of the target size is written together with others. A larger fraction
would write the same records again in each round."""

_SPARE: Final = 1.1
"""Factor by which the versions may outgrow their number or age before they expire. One expiry costs as much CPU as some
ten batches, whatever it removes."""

_LAST: Final = 10
"""Fewest snapshots that are kept. After a kill, Iceberg's sink finds the last batch of a query in the newest ones. A
batch whose snapshot has expired would be appended again."""

_UNCOMMITTED_H: Final = 6
"""Hours for which Delta keeps files that belong to no version, because a batch or a compaction may yet commit them."""

_MANIFESTS_MAX: Final = 100
"""Number of Iceberg's lists of files above which they are written together. Each reader reads all of them."""

_OPTIMIZE: Final = "spark.databricks.delta.optimize"

_SORTED: Final = "topic ASC NULLS LAST, part ASC NULLS LAST, off ASC NULLS LAST"


class LogUpkeep:
    """The maintenance of one log. While a query runs, call `look` often; when a run ends, call `finish` or `end`.

    Args:
        interval_s: time from the end of a round to the next one, in seconds; None: there are no rounds.
        needs: asked in a round that finds old records, after the positions are read.
        observe: gets facts, also from the thread of a round.

    Attributes:
        deleted: by topic, the greatest LSN of a record that retention has deleted, as far as this process knows.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: LogPlace,
        policy: Maintenance,
        interval_s: float | None,
        needs: Needs,
        observe: Observer,
    ) -> None:
        self._spark = spark
        self._place = place
        self._policy = policy
        self._interval_s = interval_s
        self._needs = needs
        self._observe = observe
        self.deleted: Mapping[str, int] = {}
        self._files = 0
        self._failed = False
        self._ending = False
        self._has_begun = False
        self._thread: threading.Thread | None = None
        self._due_at: float | None = None

    def look(self) -> None:
        """Begin a round in a thread of its own if one is due and none is under way."""
        self._ending = False
        thread = self._thread
        if self._due_at is None or (thread is not None and not thread.is_alive()):
            self._thread = None
            self._plan()
        elif thread is None and self._is_due:
            # A daemon thread: the end of the program does not wait for it.
            self._thread = threading.Thread(
                target=self.round, args=(datetime.now(UTC),), name="log maintenance", daemon=True
            )
            self._thread.start()

    def finish(self) -> None:
        """Maintain the log at the end of a run, if a round is due or this process has made none."""
        self._ending = False
        is_under_way = self._thread is not None and self._thread.is_alive()
        if self._interval_s is not None and not is_under_way and (not self._has_begun or self._is_due):
            self.round(datetime.now(UTC))
            self._plan()

    def end(self, limit_s: float) -> None:
        """Wait for the round that is under way, for `limit_s` seconds at most. A later failure of it is not told."""
        if self._thread is not None:
            self._thread.join(limit_s)
        self._ending = True

    @property
    def _is_due(self) -> bool:
        return self._interval_s is not None and self._due_at is not None and time.monotonic() >= self._due_at

    def _plan(self) -> None:
        self._due_at = time.monotonic() + (self._interval_s or 0)

    def round(self, now: datetime) -> bool:
        """Maintain the log once. False: a step failed and was told; the next round repeats it.

        `now`: with a time zone.
        """
        self._failed = False
        self._has_begun = True
        place, today = self._place, now.astimezone(UTC).date()
        is_delta = place.table_format == DELTA
        done = TableMaintained(place.name, 0, 0, 0)
        with self._reporting("positions"):
            has = positions.read(self._spark, place.name)
            kept = replace(has.summary, number=has.summary.number + 1)
            with self._reporting("retention"):
                kept = self._shorten(has, kept, today)
            saved = kept
            with self._reporting("compaction"):
                compacted, written = (self._optimize if is_delta else self._rewrite)(kept.sorted_day, today)
                done = replace(done, compacted_files=compacted, written_files=written)
                kept = replace(kept, sorted_day=today - timedelta(days=1))
            listing = kept.listed_at is None or now - kept.listed_at >= LIST_EVERY
            with self._reporting("former versions"):
                expired = self._vacuum(listing) if is_delta else self._expire(now, listing)
                done = replace(done, expired_versions=expired)
                kept = replace(kept, listed_at=now if listing else kept.listed_at)
            if has.has_new or kept != saved:
                positions.save(self._spark, place, has, replace(kept, number=kept.number + 1))
        if done.compacted_files or done.expired_versions:
            self._observe(done)
        return not self._failed

    def _shorten(self, has: Positions, summary: Summary, today: date) -> Summary:
        """Delete the records of old days that no table needs. Returns `summary` with what was deleted, as saved."""
        first_kept = today - timedelta(days=self._policy.log_keep_days)
        first_held = today - timedelta(days=max(self._policy.log_held_days, self._policy.log_keep_days))
        late = (sf.col("day") < sf.lit(first_held)).alias("late")
        old = (
            self._spark.table(self._place.name)
            .filter(sf.col("day") < sf.lit(first_kept))
            .groupBy("topic", late)
            .agg(sf.max("lsn").alias("lsn"), sf.max("tbl").alias("tbl"), sf.count("*").alias("rows"))
            .collect()
        )
        needs = self._needs([row["topic"] for row in old]) if old else {}
        needed = [
            row for row in old if row["lsn"] is not None and row["lsn"] > needs.get(row["topic"], row["lsn"])
        ]
        held = sorted({row["topic"] for row in needed if not row["late"]})
        gone = [row for row in old if row["late"] or row["topic"] not in held]
        if not gone:
            return summary
        deleted = dict(summary.deleted)
        for row in gone:
            deleted[row["topic"]] = max(deleted.get(row["topic"], 0), row["lsn"] or 0)
        summary = replace(summary, deleted=deleted)
        positions.save(self._spark, self._place, has, summary)
        self.deleted = deleted
        if held:
            topics = ", ".join([f"'{text(topic)}'" for topic in held])
            others = f" AND (day < DATE '{first_held}' OR topic NOT IN ({topics}))"
        else:
            others = ""
        self._spark.sql(f"DELETE FROM {self._place.name} WHERE day < DATE '{first_kept}'{others}")  # noqa: S608 - quoted
        self._observe(
            LogShortened(self._place.name, str(first_kept), sum(row["rows"] for row in gone), len(held))
        )
        for row in needed:
            if row["late"]:
                self._observe(_not_held(row["tbl"] or row["topic"], self._policy.log_held_days))
        return summary

    def _rewrite(self, sorted_day: date | None, today: date) -> tuple[int, int]:
        """Iceberg: sort small files of the day, and each day that has ended once. Returns files before and after."""
        target = self._policy.target_file_bytes
        fewest = self._policy.small_files_min
        ended = f"day < DATE '{today}'" + ("" if sorted_day is None else f" AND day > DATE '{sorted_day}'")
        done = [0, 0]
        for where, options in {
            ended: {"rewrite-all": "true"},
            f"day = DATE '{today}'": {
                "min-input-files": str(fewest),
                "min-file-size-bytes": str(target // _SMALL),
            },
        }.items():
            given = {"target-file-size-bytes": str(target), **options}
            pairs = ", ".join([f"'{key}', '{value}'" for key, value in given.items()])
            (row,) = self._call(
                "rewrite_data_files",
                f"strategy => 'sort', sort_order => '{_SORTED}', where => \"{where}\", options => map({pairs})",
            )
            done[0] += row["rewritten_data_files_count"]
            done[1] += row["added_data_files_count"]
        return done[0], done[1]

    def _optimize(self, sorted_day: date | None, today: date) -> tuple[int, int]:
        """Delta: like `_rewrite`. Delta sorts with ZORDER, which reads all files, so only for days that have ended."""
        name, target = self._place.name, self._policy.target_file_bytes
        ended = f"day < DATE '{today}'" + ("" if sorted_day is None else f" AND day > DATE '{sorted_day}'")
        steps = [] if sorted_day == today - timedelta(days=1) else [f"{ended} ZORDER BY (topic)"]
        if self._count_files() - self._files >= self._policy.small_files_min:
            steps.append(f"day = DATE '{today}'")
        self._spark.conf.set(f"{_OPTIMIZE}.maxFileSize", str(target))
        self._spark.conf.set(f"{_OPTIMIZE}.minFileSize", str(target // _SMALL))
        done = [0, 0]
        for where in steps:
            row = self._spark.sql(f"OPTIMIZE {name} WHERE {where}").select("metrics.*").collect()[0]
            done[0] += row["numFilesRemoved"]
            done[1] += row["numFilesAdded"]
        if steps:
            self._files = self._count_files()
        return done[0], done[1]

    def _count_files(self) -> int:
        files: int = self._spark.sql(f"DESCRIBE DETAIL {self._place.name}").collect()[0]["numFiles"]
        return files

    def _expire(self, now: datetime, listing: bool) -> int:
        """Iceberg: expire former versions by number and age. Returns their number."""
        policy, name = self._policy, self._place.name
        rows = self._spark.table(f"{name}.snapshots").selectExpr("unix_micros(committed_at) AS at").collect()
        made = sorted([instant(row["at"]) for row in rows], reverse=True)
        oldest = now - timedelta(seconds=policy.keep_s)
        is_due = bool(made) and made[-1] < now - timedelta(seconds=policy.keep_s * _SPARE)
        most = policy.versions_max
        if most is not None and len(made) > most * _SPARE:
            is_due, oldest = True, max(oldest, made[most - 1])
        if is_due and len(made) > max(policy.keep_versions, _LAST):
            last = max(policy.keep_versions, _LAST)
            self._call("expire_snapshots", f"older_than => {_literal(oldest)}, retain_last => {last}")
        if self._spark.table(f"{name}.manifests").count() > _MANIFESTS_MAX:
            self._call("rewrite_manifests", "use_caching => false")
        if listing:
            before = now - timedelta(seconds=policy.orphans_s)
            self._call(
                "remove_orphan_files", f"older_than => {_literal(before)}, prefix_mismatch_mode => 'IGNORE'"
            )
        return max(0, len(made) - self._spark.table(f"{name}.snapshots").count()) if is_due else 0

    def _vacuum(self, listing: bool) -> int:
        """Delta: remove files that no version has any more. Delta removes former versions by itself."""
        if listing:
            hours = max(-(-self._policy.keep_s // 3600), _UNCOMMITTED_H)
            self._spark.sql(f"VACUUM {self._place.name} RETAIN {hours} HOURS")
        return 0

    def _call(self, procedure: str, arguments: str) -> list[Row]:
        catalog = quoted(parts(self._place.name)[0])
        rows: list[Row] = self._spark.sql(
            f"CALL {catalog}.system.{procedure}(table => '{text(self._place.name)}', {arguments})"
        ).collect()
        return rows

    @contextmanager
    def _reporting(self, step: str) -> Iterator[None]:
        """A step that fails leaves the log as good as before."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the query that appends goes on, whatever a step raises
            self._failed = True
            # A session that has ended fails each step.
            if not self._ending:
                self._observe(
                    TableFailed(
                        self._place.name,
                        f"The maintenance of the log failed ({step}): {first_lines(error)}",
                        "The log goes on. The next round of maintenance repeats the step.",
                    )
                )


def _not_held(table: str, days: int) -> LogExpired:
    return LogExpired(
        table,
        f"The log deleted changes of {table} that the table does not have, because they were older than {days} days.",
        f"{begin_again(table)} To keep the log longer for stopped tables, raise maintenance.log_held_days.",
    )


def _literal(at: datetime) -> str:
    return f"TIMESTAMP '{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"
