"""A table too large for one reader: read by Spark at a snapshot, into the mirror, which goes on from there.

    with open_snapshot(spark, source, ["public.events"]) as snapshot:
        rows = read_snapshot(spark, snapshot, "public.events")          # a DataFrame, typed as the mirror types it
        load_snapshot(spark, snapshot, "public.events", IcebergTarget("lake"))

The rule: the snapshot sees every transaction that committed before its LSN, and no other, and the commit that loads a
target records that LSN. So of what the topics have, and will have, changes before it change nothing and those from it
on apply: no gap and no overlap, whenever the daemon writes them. What the daemon owes is the slot, which must be there
before the snapshot is taken.

The driver holds the snapshot for as long as the `with` lasts. If it dies, nothing was committed, and the table is read
again, at a later snapshot.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.readers import Readers
from cdcd.adapters.postgres.shared_snapshot import SharedSnapshot
from cdcd.adapters.postgres.slot import SlotWait
from cdcd.adapters.postgres.tables import LockWatch, Tell
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.renaming import Router
from cdcd.core.catalog.routing import DEFAULT, TopicNames, parse_table
from cdcd.core.errors import TransientError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.schemas import table_form
from cdcd.core.snapshot.reading import SourceTable
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.types import rules, table_schema
from cdcd.mirror.session import activate, check_classic, check_time_zone
from cdcd.mirror.snapshot.page_source import NAME, Plan, SnapshotPages, page_ranges

ATTEMPTS: Final = 3
"""How often tables are read at a snapshot that does not last."""

PARTITION_BYTES: Final = 128 << 20
"""Of a table, on disk, in one task."""

NOWHERE: Final = -1
"""The partition of rows that are in no topic."""

_REGISTERING: Final = Lock()
_HEADERS: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """The pipeline whose tables are read, by the names of the daemon's configuration.

    Attributes:
        dsn: of the primary. Executors connect with it too.
        prefix: `topics.prefix`.
        names: `topics.names`.
        template, renames: `topics.name` and the rules of `topics.rename`.
        password_command: `postgres.password_command`. The driver and every task run it, so executors need the program.
        money_digits: `money.digits`.
        kafka: where the topics are. What they have before the snapshot is taken need not be read later; None: it is,
            and changes nothing.
        readers: the roles that read rows (`postgres.readers`); None: the role of `dsn` reads all tables.
    """

    dsn: str = field(repr=False)
    publication: str
    slot: str
    prefix: str
    kafka: KafkaSource | None = None
    connect_timeout_s: float = 10.0
    names: Mapping[str, str] = field(default_factory=dict)
    password_command: tuple[str, ...] = field(default=(), repr=False)
    template: str = DEFAULT
    money_digits: int | None = None
    readers: Readers | None = field(default=None, repr=False)
    renames: tuple[Router, ...] = ()

    def access(self, table: SourceTable) -> tuple[str, tuple[str, ...], tuple[str, ...] | None]:
        """DSN and password command of the role that reads a table, and the owners whom it trusts. A secret."""
        access = None if self.readers is None else self.readers.of(*table.place)
        if access is None or access.place is None:
            return self.dsn, self.password_command, None if access is None else access.trusted
        return *access.text(), access.trusted

    @property
    def topics(self) -> TopicNames:
        """How the topics are called. ValueError: a key of `names` is not the name of a table."""
        names = {parse_table(table): topic for table, topic in self.names.items()}
        return TopicNames(self.prefix, names, template=self.template, renames=self.renames)


class Snapshot:
    """What `open_snapshot` gives: tables at one moment."""

    def __init__(
        self,
        source: SnapshotSource,
        shared: SharedSnapshot,
        offsets: Mapping[str, Offsets],
        topic_ids: Mapping[str, str],
    ) -> None:
        self._source = source
        self._shared = shared
        self._offsets = offsets
        self._topic_ids = topic_ids

    @property
    def lsn(self) -> Lsn:
        """What committed before it is in the rows, and nothing else."""
        return Lsn(self._shared.position)

    @property
    def commit_lsn(self) -> int:
        """Where its rows stand among the changes: after all that it sees, before all that it does not."""
        return self._shared.position - 1

    def topic(self, table: str) -> str:
        """Where the changes of `schema.table` are."""
        return self._source.topics.qualified(table)

    def offsets(self, table: str) -> Offsets:
        """Up to where the topic has nothing that the snapshot does not see."""
        return self._offsets.get(self.topic(table), {})

    def topic_id(self, table: str) -> str | None:
        """Kafka's id of the topic that `offsets` are of. None: the topic is not there, or has no id."""
        return self._topic_ids.get(self.topic(table))

    def form(self, table: str, *, variant: bool = False, mirrored: bool = False) -> Form:
        """The table's definition, as the daemon would describe it.

        Args:
            variant: json columns are VARIANT.
            mirrored: columns have the names that the mirror gives them.
        """
        found = self._shared.tables[table]
        form = table_form(
            found.source.relation,
            found.description,
            self._shared.types,
            self.topic(table),
            modes=Modes(money_digits=self._shared.money_digits),
        )
        schema = table_schema(form.fingerprint, form, variant=variant, mirrored=mirrored)
        return Form(schema, rules(form, variant=variant, mirrored=mirrored))

    def size(self, table: str) -> int:
        """The bytes of `schema.table` on the database's disk, with its leaves; TOAST is not among them."""
        return sum(each.part.size for each in self._shared.tables[table].source.parts)

    @property
    def shared(self) -> SharedSnapshot:
        """What the catalog says at the snapshot."""
        return self._shared

    def options(
        self, table: str, partition_bytes: int, task_rate_bytes_s: float = 0.0, where: str = ""
    ) -> dict[str, str]:
        """Return the options of the data source by which tasks read the table. `where`: as in `Plan`."""
        source, shared = self._source, self._shared
        found = shared.tables[table]
        dsn, password_command, trusted = source.access(found.source)
        plan = Plan(
            dsn,
            password_command,
            source.connect_timeout_s,
            shared.name,
            shared.position,
            shared.database,
            source.prefix,
            replace(found.source, parts=()),
            found.description,
            [shared.types[oid] for oid in sorted(shared.types)],
            task_rate_bytes_s,
            shared.money_digits,
            trusted,
            where,
        )
        return plan.options(page_ranges(found, partition_bytes))


@contextmanager
def open_snapshot(
    spark: SparkSession,
    source: SnapshotSource,
    tables: Sequence[str],
    on_wait: Callable[[SlotWait], None] = lambda _: None,
) -> Iterator[Snapshot]:
    """Take a snapshot of these tables (`schema.table`), and hold it meanwhile.

    It waits for the transactions that are open at the source; `on_wait` hears of them every few seconds.

    Raises:
        SourceError: there is no such slot, a table is not published, or a privilege is missing.
        TransientError: PostgreSQL does not answer.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
        ConfigError: the session is one of Spark Connect, or the login of Kafka cannot be given to librdkafka.
    """
    check_classic(spark, "A snapshot", "the driver holds it, and its session reads it")
    offsets: Mapping[str, Offsets] = {}
    topic_ids: Mapping[str, str] = {}
    if source.kafka is not None:
        # Before the snapshot: what is in Kafka now has committed, and will be seen.
        starts = TopicStarts(source.kafka.librdkafka())
        topics = [source.topics.qualified(table) for table in tables]
        topic_ids = starts.topic_ids(topics)
        offsets = starts.ends(topics)
    with asyncio.Runner() as runner:
        shared = runner.run(
            SharedSnapshot.open(
                parse_dsn(source.dsn, source.password_command),
                publication=source.publication,
                tables=tables,
                slot=source.slot,
                connect_timeout_s=source.connect_timeout_s,
                on_wait=on_wait,
                money_digits=source.money_digits,
            )
        )
        try:
            yield Snapshot(source, shared, offsets, topic_ids)
        finally:
            runner.run(shared.close())


def load_all(
    spark: SparkSession,
    source: SnapshotSource,
    tables: Sequence[str],
    load: Callable[[Snapshot, str], None],
    *,
    on_wait: Callable[[SlotWait], None],
    on_locked: Tell,
    on_lost: Callable[[TransientError], None] = lambda _: None,
) -> None:
    """Call `load` for each of these tables (`schema.table`), at one snapshot if it lasts.

    If the snapshot is lost, `on_lost` is called with the error, and the remaining tables are loaded at a new snapshot.
    While a table is locked, `on_locked` is called from another thread every few seconds.

    Raises:
        TransientError: no snapshot lasted.
        SourceError, SinkError: as `open_snapshot`.
    """
    left = list(tables)
    dsn = parse_dsn(source.dsn, source.password_command)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with (
                LockWatch(
                    dsn, source.publication, left, on_locked, connect_timeout_s=source.connect_timeout_s
                ),
                open_snapshot(spark, source, left, on_wait) as snapshot,
            ):
                while left:
                    load(snapshot, left[0])
                    left.pop(0)
        except TransientError as error:
            if attempt == ATTEMPTS:
                raise
            on_lost(error)
        else:
            return


def read_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    table: str,
    *,
    variant: bool = False,
    partition_bytes: int = PARTITION_BYTES,
) -> DataFrame:
    """The rows of `schema.table` at the snapshot, as the publication publishes them: its row filter, its columns, a
    partitioned table through its leaves.

    The columns have the types that the mirror gives them (`types.py`). A value that does not fit its type ends the job
    that reads it, naming the column; `load_snapshot` puts such rows into quarantine.

    Args:
        variant: json columns are VARIANT.
        partition_bytes: how much of the table, on disk, is one task's.

    Raises:
        ConfigError: the session's time zone is not UTC.
    """
    check_time_zone(spark)
    changes = read_rows(spark, snapshot, table, variant=variant, partition_bytes=partition_bytes)
    fits = sf.when(sf.col(PROBLEM).isNull(), sf.lit(True)).otherwise(
        sf.raise_error(sf.col(PROBLEM)).cast("boolean")
    )
    return changes.filter(fits).select("after.*")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load_snapshot` did: rows in the mirror, rows in quarantine, and the LSN from which the stream goes on."""

    rows: int
    quarantined: int
    lsn: Lsn


def _register(spark: SparkSession) -> None:
    """Let `spark` read pages. Several threads, which load a table each, may want it at once."""
    # Spark looks data sources up in the session that is active in the thread, which a target may have set to another.
    activate(spark)
    with _REGISTERING:
        try:
            spark.dataSource.register(SnapshotPages)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def read_rows(
    spark: SparkSession,
    snapshot: Snapshot,
    table: str,
    *,
    variant: bool = False,
    partition_bytes: int = PARTITION_BYTES,
    rate_bytes_s: float = 0.0,
    mirrored: bool = False,
    where: str = "",
) -> DataFrame:
    """Each row as a change with op `r` (`changes.parse`), with the raw value, and the problem of what does not fit.

    Args:
        where: SQL condition of PostgreSQL on rows; "" for all rows.
        rate_bytes_s: how much all tasks together may read each second; 0: without limit.
        mirrored: columns have the names that the mirror gives them.
    """
    form = snapshot.form(table, variant=variant, mirrored=mirrored)
    _register(spark)
    tasks = len(page_ranges(snapshot.shared.tables[table], partition_bytes))
    task_rate = rate_bytes_s / max(1, min(tasks, spark.sparkContext.defaultParallelism))
    options = snapshot.options(table, partition_bytes, task_rate, where)
    pages = spark.read.format(NAME).options(**options).load()
    records = pages.select(
        sf.lit(None).cast("binary").alias("key"),
        "value",
        sf.lit(snapshot.topic(table)).alias("topic"),
        sf.lit(NOWHERE).alias("partition"),
        # There is none; in quarantine it tells one row from another.
        sf.xxhash64("value").alias("offset"),
        sf.current_timestamp().alias("timestamp"),
        sf.lit(None).cast(_HEADERS).alias("headers"),
    )
    return parse(records, form.schema, form.rules, keep=True)
