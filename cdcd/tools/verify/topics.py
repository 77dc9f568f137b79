"""`--target topics`: topics folded up to what a snapshot of the source sees, and compared with the tables.

The order keeps the snapshot only while the source's tables are read:

1. The topics are folded as far as a first snapshot sees. This snapshot is not kept, because every later snapshot
   sees the same.
2. The snapshot is taken. It blocks nothing and waits for nothing.
3. The tables are read at the snapshot. Meanwhile cdcd waits for a checkpoint after everything that the snapshot may
   see.
4. The rest is folded, and the sums are compared. Tables with different sums are read once more.

A table that is altered, rewritten or truncated between 2 and 3 cannot be read at the snapshot. It is compared at
another snapshot. So no step that can wait lies between 2 and 3.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from cdcd.adapters.credentials.tokens import access
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.bounded_reading import BoundedReader, Place
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.shared_snapshot import SharedSnapshot, SharedTable
from cdcd.adapters.postgres.table_chunks import ChangedTableError, Rate
from cdcd.adapters.postgres.tables import locked_by
from cdcd.config.loading import Config
from cdcd.core.catalog.patterns import TablePattern, parse_pattern
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import ConfigError, SinkError, SourceError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.schemas import TableForm
from cdcd.core.snapshot.reading import Visibility
from cdcd.daemon.settings import require_json
from cdcd.telemetry.terminal_text import number
from cdcd.tools.operations.sides import bound_columns
from cdcd.tools.verify.columns import Columns, TopicDescriptions
from cdcd.tools.verify.comparing import ComparedOutcome, SourceRow, TableComparison
from cdcd.tools.verify.delivery import (
    ANSWER_S,
    Notice,
    TopicDelivery,
    check_records,
    chosen,
    stopped,
    tell_left_out,
    unread,
)
from cdcd.tools.verify.folding import FoldSettings, TableFold
from cdcd.tools.verify.partition import TopicRecord
from cdcd.tools.verify.record_parsing import NotARecordError, cut
from cdcd.tools.verify.report import TableReport, VerifyReport
from cdcd.tools.verify.row_store import RowStore
from cdcd.tools.verify.snapshot_visibility import Sight
from cdcd.tools.verify.source import ReadersAtSnapshot, SourceRows, left_out

ATTEMPTS: Final = 5
"""Maximum number of snapshots, if tables are altered or truncated meanwhile."""

LOCKED_S: Final = 5.0
"""Seconds to wait before the next snapshot if a table was locked."""

Choose = Callable[[Mapping[str, int]], Collection[str]]


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Options of a verification.

    Attributes:
        tables: patterns of tables; () for all published tables.
        rate_bytes_s: maximum bytes of the source's rows to read in a second; 0: no limit.
        sample: share of each table's pages to read; 1: all pages.
        since: LSN before which commits are ignored.
        timeout_s: seconds that the pipeline may take to deliver commits from before the snapshot.
    """

    tables: tuple[str, ...] = ()
    rate_bytes_s: float = 0.0
    timeout_s: float = 300.0
    sample: float = 1.0
    since: int = 0


class TopicsTarget:
    """The topics of a pipeline, folded further with each `verify`. The caller owes `close`.

    Args:
        folder: folder for the rows of the topics; the caller removes it.
        notice: called with a sentence about a long step.
    """

    def __init__(self, config: Config, options: ComparisonOptions, folder: Path, notice: Notice) -> None:
        check_records(config)
        self._config = config
        self._options = options
        self._notice = notice
        tell_left_out(config, notice)
        self._patterns: tuple[TablePattern, ...] = tuple(
            parse_pattern(table, "--table") for table in options.tables
        )
        require_json(
            config,
            "cdcd verify",
            "Compare a sample by a consumer of your own, or verify a second pipeline with format.value: json.",
        )
        self._client, _ = client.split(*access(config.kafka))
        self._admin = Admin(self._client, ANSWER_S)
        self._delivery = TopicDelivery(config, self._client, options.timeout_s, notice)
        self._bindings = bound_columns(config)
        group = f"{config.name}-verify"
        self._reader = BoundedReader(self._client, group)
        self._descriptions = TopicDescriptions(self._client, group, config.topics.schemas, options.timeout_s)
        self._store = RowStore(folder)
        self._sight = Sight(Visibility(0, 0), 0, 0)
        self._locked = False
        """True if a table was locked at the last snapshot."""
        self._folds: dict[str, TableFold] = {}
        self._rows_gone: dict[str, str] = {}
        self._values_gone: dict[str, str] = {}

    def close(self) -> None:
        self._descriptions.close()
        self._reader.close()
        self._store.close()

    async def verify(self, choose: Choose | None = None) -> VerifyReport:
        """Compare all tables once, or the tables that `choose` returns.

        Args:
            choose: called with the sizes of all candidates in bytes on disk; returns the tables to compare.

        Raises:
            ConfigError: no table is chosen.
            PositionError: the pipeline reads another server.
            SourceError, SinkError, TransientError: a side refuses or does not answer, or the pipeline does not
                deliver.
        """
        done: dict[str, TableReport] = {}
        await self._delivery.begin()
        self._store.compact({fold.number: fold.filled for fold in self._folds.values()})
        chosen = await self._fold_first(choose)
        for left in reversed(range(ATTEMPTS)):
            changed, gone, lsn = await self._verify(chosen, done)
            if not changed or not left:
                break
            self._notice(f"{'; '.join(changed.values())} Compared at another snapshot: {', '.join(changed)}.")
            if self._locked:
                await asyncio.sleep(LOCKED_S)
        limits = [
            f"{name}, which was dropped, renamed or taken out of the publication meanwhile" for name in gone
        ]
        limits += [
            f"{name}, which was locked, truncated or altered each time: {why}"
            for name, why in changed.items()
        ]
        reports = [done[name] for name in sorted(done)]
        lsn = min((each.lsn for each in reports), default=lsn)
        return VerifyReport(self._config.name, "topics", lsn, reports, limits)

    async def _fold_first(self, choose: Choose | None) -> Collection[str]:
        """Fold what an earlier snapshot sees, so that the final snapshot is kept for a shorter time.

        Returns the chosen tables.
        """
        async with AsyncExitStack() as stack:
            shared = await self._snapshot(stack)
            self._look(shared)
            names = chosen(self._config, [*shared.tables, *shared.locked], self._patterns)
            meant = {name: _size(shared.tables[name]) if name in shared.tables else 0 for name in names}
        self._take(self._ends(list(meant)))
        return meant if choose is None else choose(meant)

    async def _verify(
        self, chosen: Collection[str], done: dict[str, TableReport]
    ) -> tuple[dict[str, str], list[str], int]:
        """Compare the tables that are not `done`, at one snapshot.

        Returns:
            The tables that changed before they were read, each with the change; the tables that no longer exist;
                the LSN.
        """
        changed: dict[str, str] = {}
        self._locked = False
        async with AsyncExitStack() as stack:
            shared = await self._snapshot(stack)
            for name, who in shared.locked.items():
                if name in chosen and name not in done:
                    self._locked = True
                    changed[name] = f"{name} is {who}."
            # Of tables with one topic, the oldest has it, as in the daemon, which sets the others aside.
            oldest = sorted(shared.tables.items(), key=lambda each: each[1].source.oid)
            tables = {name: table for name, table in oldest if name in chosen}
            await self._delivery.nudge()
            delivered = asyncio.create_task(self._delivered(shared.position, list(tables)))
            stack.callback(delivered.cancel)
            # If reading the tables fails too, that error is raised, and asyncio must not print this one.
            delivered.add_done_callback(lambda task: task.cancelled() or task.exception())
            readers = ReadersAtSnapshot(self._config, shared, self._delivery.application)
            stack.callback(readers.close)
            rows = SourceRows(self._config, shared, readers, Rate(self._options.rate_bytes_s), self._bindings)
            begun: dict[str, _Comparing] = {}
            refused: dict[str, str] = {}
            for name, table in tables.items():
                if name in done:
                    continue
                try:
                    comparing = self._begin(table, rows)
                    stack.callback(comparing.comparison.close)
                    async for some in self._first(comparing, rows):
                        comparing.take(some)
                        if delivered.done():
                            delivered.result()
                except ChangedTableError as error:
                    changed[name] = error.message
                except TableBusyError as error:
                    changed[name] = await self._busy(shared, table, error)
                except (ConfigError, SourceError, SinkError) as error:
                    # A rule does not fit the table, its reader may not read it, or another table has its topic.
                    refused[name] = str(error)
                else:
                    begun[name] = comparing
            checkpoint, ends = await delivered
            sight = self._look(shared)
            self._take(ends)
            topics = self._config.topic_names()
            for name, why in refused.items():
                limit = stopped(checkpoint, tables[name].source.oid, name) or f"any row: {why}"
                done[name] = TableReport(
                    name, topics.qualified(name), sight.exact_lsn, 0, ComparedOutcome(), [limit]
                )
            for name, comparing in begun.items():
                # The memory for a table is released before the next table.
                with closing(comparing.comparison):
                    try:
                        done[name] = await self._compare(comparing, rows, checkpoint, sight.exact_lsn)
                    except ChangedTableError as error:
                        changed[name] = error.message
                    except TableBusyError as error:
                        changed[name] = await self._busy(shared, comparing.table, error)
            return changed, sorted(set(chosen) - done.keys() - changed.keys()), sight.exact_lsn

    async def _busy(self, shared: SharedSnapshot, table: SharedTable, error: TableBusyError) -> str:
        """Return a sentence about the sessions that have locked the table."""
        self._locked = True
        source = table.source
        holders = await shared.lock_holders([source.oid, *[each.part.oid for each in source.parts]])
        return f"{source.name} is {locked_by(holders)}." if holders else error.message

    async def _delivered(self, lsn: int, tables: Sequence[str]) -> tuple[Checkpoint, dict[Place, int]]:
        """Wait until everything before the LSN is in Kafka; return the checkpoint, and the ends of the topics then."""
        return await self._delivery.wait(lsn), self._ends(tables)

    async def _snapshot(self, stack: AsyncExitStack) -> SharedSnapshot:
        """Take a snapshot of this moment, which lasts until the stack is closed."""
        postgres = self._config.postgres
        shared = await SharedSnapshot.now(
            self._delivery.dsn(),
            publication=postgres.publication,
            slot=postgres.slot,
            connect_timeout_s=postgres.connect_timeout_s,
            money_digits=self._config.money.digits,
        )
        stack.push_async_callback(shared.close)
        return shared

    def _look(self, shared: SharedSnapshot) -> Sight:
        """From now on, fold what this snapshot sees."""
        assert shared.visibility is not None, "it is one of a moment"
        self._sight = Sight(shared.visibility, shared.position, shared.old_lsn)
        for fold in self._folds.values():
            fold.look(self._sight)
        return self._sight

    def _ends(self, tables: Sequence[str]) -> dict[Place, int]:
        """Return the present ends of the topics of these tables and of all earlier ones."""
        names = self._config.topic_names()
        topics = {names.qualified(table): table for table in tables}
        self._describe(topics)
        for place, begin in self._reader.add(topics).items():
            if begin or self._options.since:
                self._folds[place[0]].cut(place[1])
            if begin:
                self._rows_gone[place[0]] = "retention has deleted its oldest records"
            if self._options.since:
                self._rows_gone[place[0]] = f"they have not changed since {Lsn(self._options.since)}"
                self._reader.rewind(place, self._reader.find(place, self._is_before))
        return self._reader.ends()

    def _take(self, ends: Mapping[Place, int]) -> None:
        """Fold the records before these ends."""
        taking = {
            place: self._folds[place[0]].partition(place[1]).take for place in ends if place[0] in self._folds
        }
        for place, offset, message in self._reader.read(ends, self._options.timeout_s):
            # A consumer without deserializer returns bytes, whatever the stubs say.
            key: Any = message.key()
            value: Any = message.value()
            headers: Any = message.headers() or ()
            taking[place](TopicRecord(offset, key, value, headers))
        for topic, fold in self._folds.items():
            for partition, offset in fold.again_from().items():
                self._reader.rewind((topic, partition), offset)

    def _is_before(self, message: Any) -> bool | None:
        """Return True if a record is from before `since`; None if the record does not tell."""
        try:
            return cut(message.value() or b"", ()).commit_lsn < self._options.since
        except NotARecordError:
            return None

    def _describe(self, topics: dict[str, str]) -> None:
        """Create a fold for each new topic, by the topic's settings."""
        new = [topic for topic in topics if topic not in self._folds]
        if not new:
            return
        there = self._admin.names()
        try:
            configs = self._admin.topic_configs([topic for topic in new if topic in there])
        except SinkError:
            # Without the right to read settings (DescribeConfigs), the worst case is assumed.
            configs = {topic: {"cleanup.policy": "compact"} for topic in new if topic in there}
        for topic in new:
            compacted = "compact" in configs.get(topic, {}).get("cleanup.policy", "")
            if compacted:
                self._values_gone[topic] = "the topic is compacted, or cdcd may not read its settings"
            settings = FoldSettings(
                exactly_once=self._config.kafka.delivery == "exactly_once",
                tombstones=self._config.topics.tombstones,
                compacted=compacted,
            )
            known = self._descriptions
            fold = TableFold(
                len(self._folds), self._store, topic, settings, known.of(topic), describe=known.read
            )
            fold.look(self._sight)
            self._folds[topic] = fold

    def _begin(self, table: SharedTable, rows: SourceRows) -> "_Comparing":
        form = rows.form(table)
        fold = self._folds[form.topic]
        comparison = TableComparison(fold, Columns(form, rows.defaults(table), fold.former))
        limits = []
        if form.repeats:
            limits.append(
                "any row: several rows may have the same key (key.columns), so records cannot be assigned to rows"
            )
        elif form.moves:
            limits.append(
                "any row: columns that are not of the key choose the partitions (partitioner.columns), so records of a "
                "row may lie in several"
            )
        elif form.computed:
            limits.append("any row: expressions make values of its records (fields.tables, computed)")
        elif form.bare_key or form.key_constants:
            limits.append("any row: keys have a form (key.forms) that cdcd verify does not read")
        is_sample = self._options.sample < 1
        if is_sample:
            comparison.sample()
        return _Comparing(table, form, fold, comparison, limits, is_sample=is_sample)

    async def _first(self, comparing: "_Comparing", rows: SourceRows) -> AsyncIterator[list[SourceRow]]:
        """Yield the rows for the first comparison; for a sample these are all rows."""
        if comparing.limits:
            return
        table = comparing.table
        if not comparing.is_sample:
            async for some in rows.rows(table):
                yield some
        elif comparing.form.key:
            dice = Random()  # noqa: S311  another sample each time, of which no secret depends
            share = self._options.sample
            async for some in rows.rows(table, lambda part: left_out(part.pages, share, dice), found=True):
                yield some

    async def _compare(
        self, comparing: "_Comparing", rows: SourceRows, checkpoint: Checkpoint, lsn: int
    ) -> TableReport:
        """Compare the table with the folded topic.

        ChangedTableError: the table had to be read once more, and was altered meanwhile.
        """
        table, form, fold = comparing.table, comparing.form, comparing.fold
        comparison = comparing.comparison
        limits = list(comparing.limits)
        if aside := stopped(checkpoint, table.source.oid, table.source.name):
            limits.append(aside)
        if limits:
            return TableReport(table.source.name, form.topic, lsn, fold.records, ComparedOutcome(), limits)
        comparison.excuse(
            rows_gone=self._rows_gone.get(form.topic, "")
            or unread(checkpoint, table)
            or _unplaced(fold, form),
            values_gone=self._values_gone.get(form.topic, ""),
        )
        if comparing.is_sample:
            limits.append(
                f"a sample of {self._options.sample:.3%} of the table's pages; rows that only the topic has are not "
                f"searched"
            )
            if not form.key:
                comparison.outcome.not_compared["tables without a key, whose rows a sample cannot find"] += 1
        elif comparison.ranges():
            async for some in rows.rows(table, found=True):
                comparison.look_at(some)
        outcome = comparison.end()
        if not form.key and fold.with_key:
            limits.append(f"{number(fold.with_key, 'record')} from when the table had a key")
        return TableReport(
            table.source.name, form.topic, lsn, fold.records, outcome, limits, fold.faults, fold.faults_in_all
        )


@dataclass(frozen=True, slots=True)
class _Comparing:
    """A table whose rows are being read.

    Attributes:
        limits: reasons why the table is not compared.
    """

    table: SharedTable
    form: TableForm
    fold: TableFold
    comparison: TableComparison
    limits: list[str]
    is_sample: bool

    def take(self, rows: Sequence[SourceRow]) -> None:
        """Add rows of the source for the first comparison."""
        if self.is_sample:
            self.comparison.look_at(rows)
        else:
            self.comparison.add_source(rows)


def _size(table: SharedTable) -> int:
    return sum(each.part.size for each in table.source.parts)


def _unplaced(fold: TableFold, form: TableForm) -> str:
    """Return why the position of rows among the changes is unknown; "" if it is known."""
    if fold.is_unsure:
        return "the table was read again while it was verified: verify it once more"
    return (
        ""
        if form.key or not fold.foreign
        else "records of another connector do not show which records are repeated"
    )
