"""`cdcd verify --target mirror`: the tables of a mirror held against the source's, while both go on.

In this order, for all tables at one snapshot of the source, whose LSN is exact:

1. The daemon's checkpoint is waited for that says that everything before the LSN is in Kafka.
2. For each table, a version of the mirror is waited for that has all of that, and is kept to.
3. That version may have more. A row that a later change made says so (`_cdcd_commit_lsn`), and a row that a later
   change deleted has a delete in the log with a later LSN. These keys are left out on both sides. All other rows of
   the version are as they were at the LSN, and so must equal the snapshot's.
4. The keys that were left out are looked at again, at another snapshot, up to LOOKS times in all.

So no difference is ever told because somebody wrote meanwhile. A table that cannot be compared is named and told why,
and the other tables are compared. The source's rows come as the mirror reads them itself
(`--snapshot`): through the daemon's encoder and the mirror's own types, so both sides follow one mapping of values.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.adapters.postgres.shared_snapshot import SharedSnapshot, SharedTable
from cdcd.adapters.postgres.slot import SlotWait
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.snapshot.failures import raised_by_task
from cdcd.mirror.snapshot.reading import Snapshot, SnapshotSource, open_snapshot, read_rows
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import LSN
from cdcd.mirror.targets.target import Kind, kind_of
from cdcd.mirror.verifying.forms import Compared, compared, keyed
from cdcd.mirror.verifying.rows import (
    Excuses,
    deleted_keys,
    differing,
    flagged,
    in_ranges,
    mirror_side,
    source_side,
    sums,
    tell,
)
from cdcd.mirror.verifying.waiting import Mirrored, Seen, StoppedTableError, Waiting
from cdcd.mirror.watching.progress import first_lines
from cdcd.telemetry.terminal_text import number
from cdcd.tools.verify.comparing import ComparedOutcome
from cdcd.tools.verify.delivery import NotDeliveredError, Notice, TopicDelivery, unread
from cdcd.tools.verify.report import TableReport, VerifyReport

LOOKS: Final = 3

Describe = Callable[[SharedSnapshot, SharedTable], TableForm]
"""How the daemon describes a table."""


class LaterError(Exception):
    """The table cannot be compared with this version and snapshot, and may be with others."""


@dataclass(slots=True)
class _Table:
    """How far the comparison of a table is.

    Attributes:
        lsn: of the first snapshot.
        left: keys (`k`) that are still to be compared; None: all.
        later: why nothing could be compared at the last look; "" if it could.
        left_rows: how many keys are in `left`, if it is set.
        unfit: number of rows of the source that fit no type of the mirror, at the first look.
    """

    topic: str
    lsn: int
    outcome: ComparedOutcome = field(default_factory=ComparedOutcome)
    limits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: DataFrame | None = None
    left_rows: int = 0
    later: str = ""
    done: bool = False
    unfit: int = 0


@dataclass(frozen=True, slots=True)
class _At:
    """A table at one snapshot.

    Attributes:
        schema: the form of its rows, with the key of records.
        daemon: the same as the daemon describes it.
        rows_gone: why its topic may lack rows; "" if it has all.
    """

    snapshot: Snapshot
    name: str
    schema: TableSchema
    daemon: TableForm
    rows_gone: str

    @property
    def lsn(self) -> int:
        """The snapshot sees what committed before it."""
        return int(self.snapshot.lsn)


class MirrorTarget:
    """Compares the tables of a mirror.

    Args:
        source: where the database is; `kafka` of it is where the topics are.
        tables: the mirror's tables.
        timeout_s: how long the mirror may take to bring the tables up to a snapshot.
        rate_bytes_s: of rows of the source; 0: without limit.
        notice: told, in a sentence, what takes long.
    """

    def __init__(  # noqa: PLR0917  both sides, and how they are looked at
        self,
        spark: SparkSession,
        source: SnapshotSource,
        tables: Mirrored,
        settings: MirrorSettings,
        delivery: TopicDelivery,
        describe: Describe,
        timeout_s: float,
        rate_bytes_s: float,
        notice: Notice,
    ) -> None:
        self._spark = spark
        self._source = source
        self._tables = tables
        self._settings = settings
        self._delivery = delivery
        self._describe = describe
        self._timeout_s = timeout_s
        self._rate_bytes_s = rate_bytes_s
        self._notice = notice

    def verify(self, pipeline: str, tables: Sequence[str]) -> VerifyReport:
        """Compare these tables (`schema.table`), one at least.

        Raises:
            ConfigError: the login of Kafka cannot be given to librdkafka.
            PositionError: the pipeline reads another server.
            SourceError, SinkError, TransientError: PostgreSQL or Kafka refuses or does not answer, or the pipeline does
                not deliver in time.
        """
        done: dict[str, _Table] = {}
        left = list(tables)
        starts = TopicStarts(self._settings.kafka.librdkafka())
        asyncio.run(self._delivery.begin())
        for look in range(1, LOOKS + 1):
            with open_snapshot(self._spark, self._source, left, self._say_wait) as snapshot:
                asyncio.run(self._delivery.nudge())
                checkpoint = asyncio.run(self._delivery.wait(int(snapshot.lsn)))
                waiting = Waiting(self._tables, starts, self._timeout_s)
                for name in left:
                    table = done.setdefault(name, _Table(snapshot.topic(name), int(snapshot.lsn)))
                    rows_gone = unread(checkpoint, snapshot.shared.tables[name])
                    with self._fate(name, table):
                        form = snapshot.form(name, variant=self._settings.variant)
                        daemon = self._describe(snapshot.shared, snapshot.shared.tables[name])
                        schema = keyed(form.schema, daemon)
                        self._look(_At(snapshot, name, schema, daemon, rows_gone), table, waiting)
            left = [name for name in left if not done[name].done]
            if not left or look == LOOKS:
                break
            self._notice(f"Looks again at rows of {', '.join(left)} that changed meanwhile.")
        reports = [self._report(name, done[name]) for name in sorted(done)]
        return VerifyReport(pipeline, "mirror", min(each.lsn for each in reports), reports)

    def _say_wait(self, held: SlotWait) -> None:
        who = held.gid if held.pid is None else f"the session with PID {held.pid}"
        self._notice(f"The snapshot waits until {who or 'open transactions'} end.")

    def _report(self, name: str, table: _Table) -> TableReport:
        if table.later:
            table.limits.append(f"all rows at the last of {LOOKS} snapshots: {table.later}")
        if table.left is not None:
            if not table.later and table.left_rows:
                why = f"rows that changed again while each of {LOOKS} snapshots was compared"
                table.outcome.not_compared[why] += table.left_rows
            table.left.unpersist()
        count = self._tables.quarantined(table.topic)
        if count:
            table.notes.append(f"{number(count, 'record')} of it are in the mirror's quarantine")
        return TableReport(name, table.topic, table.lsn, 0, table.outcome, table.limits, notes=table.notes)

    def _look(self, at: _At, table: _Table, waiting: Waiting) -> None:
        """Compare what is left of a table at the snapshot."""
        table.later = ""
        if kind_of(at.schema) is Kind.CHANGELOG:
            table.limits.append("any row: the table has no key, and its changelog is not compared")
            table.done = True
            return
        seen = waiting.reached(self._tables.name_of(at.schema), at.name, table.topic, at.lsn)
        self._compare(at, table, seen or self._empty(at.schema))

    @contextmanager
    def _fate(self, name: str, table: _Table) -> Iterator[None]:
        """Note what ends the comparison of one table, so that the others are compared."""
        why = ""
        try:
            yield
        except LaterError as error:
            table.later = str(error)
        except StoppedTableError as error:
            why = f"the mirror has stopped the table: {error}"
        except NotDeliveredError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
            known = raised_by_task(name, error)
            if isinstance(known, TransientError):
                table.later = known.message
            else:
                why = str(known) if isinstance(known, CdcdError) else f"Spark failed: {first_lines(known)}"
        if why:
            table.limits.append(f"any row: {why}")
            table.done = True

    def _empty(self, schema: TableSchema) -> Seen:
        """What stands for a table that the mirror has not made, because no record asked for it."""
        own = [StructField(LSN, LongType()), StructField(UNKNOWN, ArrayType(StringType()))]
        rows = self._spark.createDataFrame([], StructType([*schema.row_type.fields, *own]))
        return Seen(schema, rows)

    def _compare(self, at: _At, table: _Table, newest: Seen) -> None:
        if newest.truncated >= at.lsn:
            raise LaterError("it was truncated, or read again by the mirror, meanwhile")
        what = compared(at.schema, at.daemon, newest.schema, frozenset(newest.rows.columns))
        table.limits.extend(limit for limit in what.limits if limit not in table.limits)
        if not what.key:
            table.done = True
            return
        theirs = mirror_side(newest.rows, what)
        since = self._changed(at, what, newest.schema, theirs).persist()
        changed = since if table.left is None else since.join(table.left, "k", "left_semi").persist()
        try:
            if not since.filter(sf.col("k").isNull()).isEmpty():
                raise LaterError(
                    "a truncate, or a record in a form that the table did not have, came meanwhile"
                )
            count = changed.count()
            self._hold(at, table, what, theirs, changed)
        except BaseException:
            changed.unpersist()
            raise
        finally:
            if changed is not since:
                since.unpersist()
        if table.left is None:
            if count:
                table.notes.append(
                    f"{number(count, 'row')} changed meanwhile, and were looked at again later"
                )
        else:
            table.left.unpersist()
        table.left, table.left_rows, table.done = changed, count, not count

    def _changed(self, at: _At, what: Compared, mirror: TableSchema, theirs: DataFrame) -> DataFrame:
        """The keys (`k`, each once) that changed after the snapshot, as far as the version has that. One is null
        if there was a truncate, or if the record of a delete does not tell the key, because the table was altered.

        Args:
            mirror: the form of the version.
            theirs: its rows.
        """
        later = theirs.filter(sf.col("lsn") >= at.lsn).select("k")
        # All that the version has of the log is in the log as it is now.
        deletes = self._tables.deletes(at.snapshot.topic(at.name), at.lsn)
        if deletes is not None:
            later = later.unionByName(deleted_keys(deletes, mirror, what))
        return later.distinct()

    def _hold(self, at: _At, table: _Table, what: Compared, theirs: DataFrame, changed: DataFrame) -> None:
        """Compare the rows of both sides whose keys have not changed."""
        changes = read_rows(
            self._spark,
            at.snapshot,
            at.name,
            variant=self._settings.variant,
            rate_bytes_s=self._rate_bytes_s,
        )
        ours, theirs = source_side(changes, what), theirs.filter(~sf.col("gone"))
        if table.left is not None:
            ours, theirs = (side.join(table.left, "k", "left_semi") for side in (ours, theirs))
        ours, theirs = flagged(ours, changed), flagged(theirs, changed)
        columns = len(what.columns)
        source, mirror = sums(ours, columns), sums(theirs, columns)
        outcome = table.outcome
        if table.left is None:
            outcome.source_rows, outcome.topic_rows, table.unfit = source.rows, mirror.rows, source.unfit
            if source.unfit:
                outcome.not_compared["rows that do not fit a type of the mirror (quarantine)"] = source.unfit
        ranges = source.differing(mirror)
        outcome.ranges += len(ranges)
        if not ranges:
            return
        excuse = (
            f"{number(table.unfit, 'row')} of the source do not fit a type of the mirror"
            if table.unfit
            else ""
        )
        found = differing(in_ranges(ours, ranges), in_ranges(theirs, ranges), columns).persist()
        try:
            tell(found, what, outcome, Excuses(at.rows_gone, excuse))
        finally:
            found.unpersist()
