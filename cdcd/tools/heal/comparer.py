"""Compares topics with their tables at the snapshot of a new slot, for the daemon's healing (`engine/healing.py`).

The daemon's event loop must not wait for a topic of hours, so everything here runs in a thread with an event loop of
its own. Memory is bounded as for `cdcd verify`, whose parts fold the topics (`tools/verify/`).

The rule: whatever makes a comparison uncertain is the reason for `NotComparable`, after which the daemon ends the
former rows by a truncate record and reads the table. So nothing is guessed:

- The topic has all its records: each partition begins at its first offset.
- Each record with a key is in the partition that the partitioner chooses. Otherwise partitions were added, and changes
  of one key may be in several partitions, between which there is no order.
- Only cdcd has written to the topic, and every record was written in its order. With `at_least_once`, repeated records
  follow their order too, and if a TRUNCATE is among them, all of them are repeated.
- The records say which row they are about: they have keys, and are in JSON.

The table's filter and routes hold for the comparison too: a row is expected in the topic to which the routes send it
now, and in no topic if it does not match the filter. So each topic of a table is compared with its own rows.
"""

import asyncio
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from cdcd.adapters.credentials.columns import SpoolCipher
from cdcd.adapters.credentials.tokens import access
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.bounded_reading import BoundedReader
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.refusals import TableBusyError
from cdcd.adapters.postgres.shared_snapshot import SharedSnapshot, SharedTable
from cdcd.adapters.postgres.table_chunks import ChangedTableError, Rate
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.routing import table_named
from cdcd.core.catalog.sharing import is_share
from cdcd.core.engine.actions import Compared, Differences, NotComparable
from cdcd.core.errors import FatalError, TransientError
from cdcd.core.records.schemas import TableForm
from cdcd.core.records.shaping.filtering import RowFilter, table_filters
from cdcd.core.records.shaping.filtering import contradiction as no_one_filter
from cdcd.core.records.shaping.routed import RowRoutes, table_routes
from cdcd.core.records.shaping.routed import contradiction as no_one_route
from cdcd.core.snapshot.reading import Visibility
from cdcd.daemon.settings import require_json
from cdcd.tools.heal.differences import (
    KEY_BYTES_MAX,
    UPDATE,
    DifferenceLog,
    HealComparison,
    NotComparableError,
)
from cdcd.tools.operations.sides import bound_columns
from cdcd.tools.verify.columns import Columns, TopicDescriptions
from cdcd.tools.verify.comparing import SourceRow
from cdcd.tools.verify.delivery import ANSWER_S, check_records
from cdcd.tools.verify.folding import LSN_MAX, FoldSettings, TableFold
from cdcd.tools.verify.partition import TopicRecord
from cdcd.tools.verify.row_store import RowStore
from cdcd.tools.verify.snapshot_visibility import Sight
from cdcd.tools.verify.source import Place, ReadersAtSnapshot, SourceRows

OPEN_S: Final = 300.0
"""Seconds to wait for records of a topic, for example because a transaction of a former daemon is still open."""

JOIN_S: Final = 10.0
"""Seconds to wait for the thread at the end. It looks for the end after each record and each chunk of rows."""

T = TypeVar("T")


class StoppedError(TransientError):
    """The comparison was ended, because the session ends."""


class TopicComparer:
    """Compares topics with tables at one snapshot. The caller owes `close`.

    Args:
        snapshot: name of an exported snapshot, which sees everything that the topics have.
    """

    def __init__(self, config: Config, snapshot: str) -> None:
        self._config = config
        self._snapshot = snapshot
        self._loop = asyncio.new_event_loop()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="heal", daemon=True)
        self._thread.start()
        self._work: _Work | None = None

    async def compare(self, table: str) -> Compared | NotComparable:
        """Compare the topic of `schema.table` with the table.

        Raises:
            TransientError: the snapshot is lost, Kafka does not answer, or `close` was called.
        """
        return await self._in_thread(self._compare(table))

    async def next(self, bytes_max: int) -> Differences:
        """Return the next differences of the table that was compared last, of about `bytes_max` bytes."""
        return await self._in_thread(self._next(bytes_max))

    def close(self) -> None:
        """End the comparison that is under way, and remove everything that was stored."""
        self._stopping.set()
        ended = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            ended.result(JOIN_S)
        except TimeoutError:
            return
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _compare(self, table: str) -> Compared | NotComparable:
        try:
            if self._work is None:
                self._work = _Work(self._config, self._snapshot, self._check)
            return await self._work.compare(table)
        except NotComparableError as error:
            return NotComparable(str(error))
        except (ChangedTableError, TableBusyError, FatalError) as error:
            return NotComparable(error.message)

    async def _next(self, bytes_max: int) -> Differences:
        assert self._work is not None, "a table was compared"
        return self._work.next(bytes_max)

    async def _close(self) -> None:
        if self._work is not None:
            await self._work.close()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise StoppedError("The comparison of topics was ended with the session.")


class _Work:
    """The work of a comparer, in its thread. The caller owes `close`.

    Args:
        check: raises StoppedError when the work must end.
    """

    def __init__(self, config: Config, snapshot: str, check: Callable[[], None]) -> None:
        self._config = config
        self._name = snapshot
        self._check = check
        self._stack = AsyncExitStack()
        self._client, self._producer = client.split(*access(config.kafka))
        self._admin = Admin(self._client, ANSWER_S)
        self._folder = Path(config.spool.directory)
        self._cipher = SpoolCipher() if config.columns.patterns else None
        self._shared: SharedSnapshot | None = None
        self._is_whole = False
        """True if the publication publishes all operations."""
        self._readers: ReadersAtSnapshot | None = None
        self._bindings = Bindings()
        self._reader: BoundedReader | None = None
        self._ends: dict[tuple[str, int], int] = {}
        """The ends up to which partitions are read."""
        self._descriptions: TopicDescriptions | None = None
        self._differences: DifferenceLog | None = None

    async def close(self) -> None:
        self._forget()
        if self._descriptions is not None:
            self._descriptions.close()
        await self._stack.aclose()

    def next(self, bytes_max: int) -> Differences:
        assert self._differences is not None, "the table was compared"
        return opened(self._differences.next(bytes_max), self._cipher)

    def _forget(self) -> None:
        if self._differences is not None:
            self._differences.close()
            self._differences = None

    async def compare(self, name: str) -> Compared:
        """Find the differences of the table.

        Raises:
            NotComparableError: the topic and the table cannot be compared for certain.
            ChangedTableError, TableBusyError, FatalError: a side refuses; the same is true.
            TransientError: a side does not answer.
        """
        self._forget()
        self._refuse_by_settings(name)
        shared = await self._look_at(name)
        table = shared.tables[name]
        rows = self._source(shared)
        form = rows.form(table)
        rules = rows.choose(table)
        if not form.key:
            raise NotComparableError("the table has no key")
        if form.repeats or form.moves:
            raise NotComparableError("records of one key may be of several rows (key.columns)")
        if form.computed:
            raise NotComparableError("expressions make values of its records (fields.tables, computed)")
        if form.bare_key or form.key_constants:
            raise NotComparableError("keys have a form of their own (key.forms)")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = DifferenceLog(self._folder)
        self._differences = log
        with closing(RowStore(self._folder)) as store:
            folds = {
                topic: self._fold(number, store, topic, form) for number, topic in enumerate(rules.topics)
            }
            return await self._differ(table, rows, folds, form, log)

    def _refuse_by_settings(self, name: str) -> None:
        config = self._config
        check_records(config)
        require_json(config, "Healing", "")
        if config.format.key != "json":
            raise NotComparableError(
                f"keys are in the format {config.format.key} (format.key), not in plain JSON"
            )
        if name in map(table_named, config.outbox.tables):
            raise NotComparableError("its rows are events (outbox.tables), of which no topic has all")
        if name in config.snapshot.query_texts:
            raise NotComparableError("it is read by a query (snapshot.queries)")
        if is_share(config.topic_names().share_named(name)):
            raise NotComparableError("several tables share its topic (topics.shared)")
        if config.kafka.dead_letters:
            raise NotComparableError(
                "the topic lacks records that went to the dead letters (kafka.dead_letters)"
            )
        if config.partitioner.columns:
            raise NotComparableError("columns choose the partitions (partitioner.columns)")

    async def _look_at(self, name: str) -> SharedSnapshot:
        postgres = self._config.postgres
        if self._shared is None:
            shared = await SharedSnapshot.imported(
                parse_dsn(*postgres.access()),
                self._name,
                connect_timeout_s=postgres.connect_timeout_s,
                money_digits=self._config.money.digits,
            )
            self._stack.push_async_callback(shared.close)
            self._shared = shared
            self._is_whole = await shared.publishes_all(postgres.publication)
        if not self._is_whole:
            raise NotComparableError("the publication does not publish all operations (publish)")
        await self._shared.look_at(postgres.publication, name)
        return self._shared

    def _source(self, shared: SharedSnapshot) -> "_Rows":
        if self._readers is None:
            self._readers = ReadersAtSnapshot(self._config, shared, f"{self._config.name} heal")
            self._stack.callback(self._readers.close)
            self._bindings = bound_columns(self._config)
        return _Rows(self._config, shared, self._readers, Rate(0.0), self._bindings)

    def _fold(self, number: int, store: RowStore, topic: str, form: TableForm) -> TableFold:
        """Fold one of the table's topics as a whole. A topic that does not exist has no rows."""
        config = self._config
        group = f"{config.name}-heal"
        if self._descriptions is None:
            self._descriptions = TopicDescriptions(self._client, group, config.topics.schemas, OPEN_S)
        known = self._descriptions
        settings = FoldSettings(
            exactly_once=config.kafka.delivery == "exactly_once",
            tombstones=config.topics.tombstones,
            compacted=self._is_compacted(topic),
            key_bytes_max=KEY_BYTES_MAX,
        )
        fold = TableFold(number, store, topic, settings, known.of(form.topic), describe=known.read)
        # Everything that the topic has was committed before the slot was made.
        fold.look(Sight(Visibility(0, 0), LSN_MAX, LSN_MAX))
        if self._reader is None:
            self._reader = BoundedReader(self._client, group)
            self._stack.callback(self._reader.close)
        reader = self._reader
        begins = reader.add([topic])
        if any(begins.values()):
            raise NotComparableError("the oldest records of the topic were deleted (retention)")
        where = partitioner(str(self._producer.get("partitioner", "")), len(begins))
        # Topics that were read before have got the records of their differences, which are not read.
        now = reader.ends()
        self._ends |= {place: now[place] for place in begins}
        for (name, partition), offset, message in reader.read(self._ends, OPEN_S):
            self._check()
            if name != topic:
                # A comparison of that topic was given up before its end.
                continue
            # The type stubs say str or bytes, but a consumer without deserializer returns bytes.
            key: Any = message.key()
            value: Any = message.value()
            headers: Any = message.headers() or ()
            if key is not None and where(key) != partition:
                raise NotComparableError(
                    "records are not in the partitions of their keys (partitions were added)"
                )
            fold.partition(partition).take(TopicRecord(offset, key, value, headers))
        self._judge(fold)
        return fold

    def _is_compacted(self, topic: str) -> bool:
        found = self._admin.topic_configs([topic]) if topic in self._admin.names() else {}
        return "compact" in found.get(topic, {}).get("cleanup.policy", "")

    def _judge(self, fold: TableFold) -> None:
        if fold.faults_in_all:
            fault = fold.faults[0]
            raise NotComparableError(f"the topic has a flaw: {fault.kind} ({fault.where})")
        if fold.foreign:
            raise NotComparableError("another connector has written to the topic")
        if fold.without_key:
            raise NotComparableError("the topic has records from when the table had no key")
        if fold.restores_rows:
            raise NotComparableError(
                "a session was ended while it repeated records (at_least_once), so rows may stand behind the truncate "
                "record that ended them"
            )
        if fold.is_unsure or fold.again_from():
            raise NotComparableError("records were left out")

    async def _differ(
        self,
        table: SharedTable,
        rows: "_Rows",
        folds: Mapping[str, TableFold],
        form: TableForm,
        log: DifferenceLog,
    ) -> Compared:
        with ExitStack() as stack:
            compared: dict[str, HealComparison] = {}
            for topic, fold in folds.items():
                compared[topic] = HealComparison(fold, Columns(form, rows.defaults(table), fold.former), log)
                stack.enter_context(closing(compared[topic]))
                compared[topic].check_shapes()
            rows.seal = None
            async for some in rows.rows(table):
                self._check()
                for topic, each in by_topic(some, form.topic):
                    compared[topic].add_source(each)
            unequal = {topic: each for topic, each in compared.items() if each.ranges()}
            if unequal:
                rows.seal = self._seal
                async for some in rows.rows(table, found=True):
                    self._check()
                    for topic, each in by_topic(some, form.topic):
                        if topic in unequal:
                            unequal[topic].look_at(each)
                for topic, comparison in unequal.items():
                    if len(compared) > 1:
                        log.begin(topic)
                    comparison.end()
            if not any(each.has_present_columns for each in compared.values()):
                await self._show_columns(table, rows, log)
        return log.end()

    async def _show_columns(self, table: SharedTable, rows: "_Rows", log: DifferenceLog) -> None:
        """Have one row sent, so that readers of the topic learn that the table was altered."""
        if log.has_rows:
            return
        rows.seal = self._seal
        async with aclosing(rows.rows(table, found=True)) as found:
            async for some in found:
                if some:
                    log.add(UPDATE, some[0].sql.encode("latin-1"))
                    return

    def _seal(self, line: bytes) -> bytes:
        return line if self._cipher is None else self._cipher.seal(line)


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules of one table that decide in which of the table's topics a row is.

    Attributes:
        topics: all topics of the table; the first one is its own.
    """

    topics: tuple[str, ...]
    filter: RowFilter | None = None
    routes: RowRoutes | None = None


class _Rows(SourceRows):
    """Rows of the source that the topics have; if `seal` is set, `sql` is the sealed line of COPY, decoded as Latin-1.

    The caller calls `choose` before it reads the rows of a table.
    """

    seal: Callable[[bytes], bytes] | None = None
    _rules = _Rules(())

    def choose(self, table: SharedTable) -> _Rules:
        """Use the table's filter and routes from now on, and return them.

        Raises:
            NotComparableError: a rule does not fit the table.
        """
        relation, shared = table.source.relation, self._shared
        described = replace(table.description, numbers=table.source.numbers)
        config, protections = self._config, self._forms.protections
        filters = table_filters(config.filters.settings).of_table(relation)
        rules = table_routes(config.routes.settings).of_table(relation)
        own = self.form(table).topic
        found = _Rules((own,))
        if filters:
            problem = no_one_filter(filters)
            chosen = RowFilter(relation, filters[0], shared.types, protections, problem, table=described)
            if chosen.problem:
                raise NotComparableError(f"its filter does not fit it (filters.tables): {chosen.problem}")
            found = replace(found, filter=chosen)
        if rules:
            topics = (own, *config.topic_names().routed(relation.schema, relation.name))
            problem = no_one_route(rules)
            routes = RowRoutes(
                relation, rules[0], topics, shared.types, protections, problem=problem, table=described
            )
            if routes.problem:
                raise NotComparableError(f"its routes do not fit it (routes.tables): {routes.problem}")
            found = replace(found, topics=routes.topics, routes=routes)
        self._rules = found
        return found

    def _encoded(self, oid: int, lines: list[bytes], places: list[Place], form: Any) -> list[SourceRow]:
        keeps, routes = self._rules.filter, self._rules.routes
        if keeps is not None:
            lines = [line for line in lines if keeps.keeps_line(line)]
        found = SourceRows._encoded(self, oid, lines, [], form)
        if routes is not None:
            found = [
                row._replace(topic=routes.goes_line(line)) for row, line in zip(found, lines, strict=True)
            ]
        if self.seal is None:
            return found
        return [
            row._replace(sql=self.seal(line).decode("latin-1"))
            for row, line in zip(found, lines, strict=True)
        ]


def by_topic(rows: list[SourceRow], own: str) -> Iterable[tuple[str, list[SourceRow]]]:
    """Return the rows of each topic; `own` is the topic of rows that name none."""
    found: dict[str, list[SourceRow]] = {}
    for row in rows:
        found.setdefault(row.topic or own, []).append(row)
    return found.items()


def partitioner(name: str, partitions: int) -> Callable[[bytes], int]:
    """Return a function that computes the partition of a key, as librdkafka's partitioner of this name does.

    Raises:
        NotComparableError: the partitioner is another one.
    """
    if name in ("murmur2", "murmur2_random"):
        return lambda key: (murmur2(key) & 0x7FFF_FFFF) % partitions
    if name in ("consistent", "consistent_random"):
        return lambda key: zlib.crc32(key) % partitions
    raise NotComparableError(f"the partitioner is {name}")


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's Java client and librdkafka choose the partition of a key."""
    factor, mask = 0x5BD1_E995, 0xFFFF_FFFF
    size = len(data)
    found = 0x9747_B28C ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        k = (int.from_bytes(data[at : at + 4], "little") * factor) & mask
        k ^= k >> 24
        found = ((found * factor) & mask) ^ ((k * factor) & mask)
    if size > whole:
        found ^= int.from_bytes(data[whole:], "little")
        found = (found * factor) & mask
    found ^= found >> 13
    found = (found * factor) & mask
    return found ^ (found >> 15)


def opened(found: Differences, cipher: SpoolCipher | None) -> Differences:
    """Return the differences with the lines as PostgreSQL sent them."""
    if cipher is None:
        return found
    return replace(
        found,
        updates=tuple([cipher.open(line) for line in found.updates]),
        inserts=tuple([cipher.open(line) for line in found.inserts]),
    )
