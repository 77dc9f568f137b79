"""What the mirror asks of a table format.

A target keeps one table for each source table, in one of two kinds: a MIRROR equals the source table; a CHANGELOG has
one row for each change, and is what a table without a key gets, and what `history` adds beside a mirror.

The caller owes: one thread at a time for each table; changes of one topic, in one form of the table
(`evolution.upgrade` brings older ones to it); `prepare` before the first `apply` and at each new form; `forget` after
any error of a table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from cdcd.core.facts import Observer
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.pinned import Pinned, Tag
from cdcd.mirror.targets.state import Origin, Reach, State
from cdcd.mirror.watching.progress import TableLaidOut


class UnfitError(Exception):
    """A batch cannot be applied in one pass: it has changes that are `reduction.UNFIT`, or the table does not exist yet
    and a row needs a value that stands at its former key. `apply` has changed nothing."""


class Kind(StrEnum):
    """What the rows of a target table are."""

    MIRROR = "mirror"
    CHANGELOG = "changelog"


def kind_of(schema: TableSchema) -> Kind:
    """A mirror needs a key."""
    return Kind.MIRROR if schema.key else Kind.CHANGELOG


class New(NamedTuple):
    """What a table is to be that may not be there yet.

    Attributes:
        schema: its form.
        kind: what its rows are.
        layout: how a mirror keeps its rows. A table that is there keeps its own layout.
    """

    schema: TableSchema
    kind: Kind
    layout: Layout = PLAIN


@dataclass(frozen=True, slots=True)
class Applied:
    """What one `apply` did.

    Attributes:
        changes: that were new to the table; 0 for a batch that was in already, and nothing was committed then.
        rows: that were merged or appended.
        state: of the table now.
        held: by partition, the first offset that was left alone, because it lies after the bound of the reach. From
            there it must come again, with more of the other partitions.
        waiting: how many changes that are.
        commit_time: the latest of the batch's.
    """

    changes: int
    rows: int
    state: State
    held: Mapping[int, int] = field(default_factory=dict)
    waiting: int = 0
    commit_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What `maintain` keeps and how much it tidies up.

    Attributes:
        keep_s: how long former versions can be read, in seconds.
        keep_versions: how many are kept whatever their age.
        versions_max: number of versions above which the oldest go whatever their age, except those that a consistent
            point needs. None: no limit. Iceberg writes all of them into the table's metadata at each commit; Delta
            does not, and ignores this.
        small_files_min: so many small files are written together; fewer are left alone.
        target_file_bytes: how large files should be.
        log_keep_days: number of days after which a log's records are deleted. The current day is kept in addition.
        log_held_days: number of days after which a log's records are deleted although a table needs them.
        orphans_s: after so long a file goes that belongs to no version: a commit that was killed leaves such, and one
            that is under way has some too. As long as Iceberg waits by itself; Delta goes by a rule of its own.
    """

    keep_s: int = 24 * 3600
    keep_versions: int = 10
    versions_max: int | None = 500
    small_files_min: int = 8
    target_file_bytes: int = 128 * 1024 * 1024
    log_keep_days: int = 7
    log_held_days: int = 30
    orphans_s: int = 3 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Maintained:
    """What `maintain` did: data files written together, files written for them, former versions that are gone."""

    compacted_files: int
    written_files: int
    expired_versions: int


@dataclass(frozen=True, slots=True)
class LaidOut:
    """What `relayout` did: the layout before and after. If both are the same, it wrote nothing."""

    before: Layout
    after: Layout

    def told(self, table: str, seconds: float) -> TableLaidOut:
        """The fact that says so of a table (`schema.table`)."""
        before, after = self.before, self.after
        return TableLaidOut(
            table,
            before.buckets,
            after.buckets,
            before.deletes,
            after.deletes,
            seconds,
            tuple(map(str, before.fields)),
            tuple(map(str, after.fields)),
        )


@dataclass(frozen=True, slots=True)
class Files:
    """What the newest version of a table consists of, as far as the format says without a scan.

    Attributes:
        data: number of data files.
        deletes: number of files with deleted rows beside them; None: the format has none.
        size: bytes of all of them.
    """

    data: int
    deletes: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What each commit of a table writes again: `versions` is the number of versions in it, `size` its bytes."""

    versions: int
    size: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a table says of itself, without a look at its rows.

    Attributes:
        state: of its newest commit that carries one; None: no commit has brought changes yet.
        written_at: when the commit was made that brought the newest changes.
        layout: as in `New`.
        metadata: None: the format has no metadata that each commit writes again.
    """

    name: str
    schema: TableSchema
    kind: Kind
    state: State | None
    written_at: datetime | None
    files: Files
    layout: Layout = PLAIN
    metadata: Metadata | None = None


class Newest(NamedTuple):
    """The newest version of a table, whoever made it.

    Attributes:
        schema: the form of the table now. A version from before a change of the form may lack columns.
        state: of the newest commit that carries one.
        rows: of the version, however often they are read.
    """

    schema: TableSchema
    kind: Kind
    state: State
    rows: DataFrame


class Target(Protocol):
    """Tables of one format in one place."""

    format: str

    def tell(self, observe: Observer) -> None:
        """From now on, `observe` gets the facts of the tables, from several threads."""

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        """The table's name in SQL."""

    def prepare(
        self,
        spark: SparkSession,
        name: str,
        schema: TableSchema,
        kind: Kind,
        at: tuple[int, int],
        layout: Layout = PLAIN,
    ) -> TableSchema:
        """Create the table, or bring it to the form `schema`; the form that it has now.

        Safe to be interrupted anywhere and called again. A table that is in a later form already (a batch comes
        again, or a partition lags behind) keeps it, and the caller is handed that one: changes must be upgraded to it.

        Args:
            at: (commit LSN, number of the event) of the latest change that is in the form `schema`.
            layout: as in `New`.

        Raises:
            IncompatibleSchemaError: it cannot be had. Nothing was changed.
        """

    def apply(
        self,
        name: str,
        changes: DataFrame,
        *,
        batch_id: int = 0,
        consistent_lsn: int | None = None,
        new: New | None = None,
        origin: Origin | None = None,
        reach: Reach | None = None,
    ) -> Applied:
        """Bring changes into the table in one commit that also records the position.

        What the table has already is left out, so a batch may come any number of times, whole or in part.

        Args:
            changes: as `read_changes` gives them, of one table, in the form that `prepare` returned. Read once, unless
                a change of a key needs a closer look.
            batch_id: to be shown.
            consistent_lsn: the changes are all that committed up to it; recorded for `consistency`.
            new: what the table is to be if it may not be there yet, in the form that `changes` have. It is created
                when the batch has been looked at; `prepare` need not come first then.
            origin: the topic that the changes' offsets are of; None: the one that the table knows.
            reach: which part of the topic they are; what lies after its bound is left alone. None: nothing before any
                of them, in whichever partition, is still to come. They are read once more then.

        Raises:
            UnfitError: `changes` has a column `reduction.UNFIT`, and that is true somewhere; or see there.
            IncompatibleSchemaError: `new` cannot be had.
        """

    def load(
        self,
        name: str,
        rows: DataFrame,
        commit_lsn: int,
        offsets: Mapping[int, int],
        origin: Origin | None = None,
    ) -> State:
        """Put the rows of a snapshot in the place of all that a mirror has (a changelog gets them besides), in one
        commit. From then on only changes after `commit_lsn` are new to the table.

        In a mirror that marks deletes, the rows that the snapshot lacks stay, and are marked.

        Args:
            rows: changes with op `r`, in the form that `prepare` returned, each key once.
            commit_lsn: the snapshot sees what committed at or before it, and nothing else.
            offsets: by partition, before which the topic has nothing that the snapshot does not see.
            origin: the topic that `offsets` are of; None: the one that the table knows.

        Raises:
            PositionError: the table has a later change already.
        """

    def swap(
        self,
        name: str,
        new: New,
        rows: DataFrame,
        commit_lsn: int,
        offsets: Mapping[int, int],
        origin: Origin | None = None,
    ) -> State:
        """Put the table `new`, with the rows of a snapshot, in the place of one that cannot be brought to its form and
        kind, in one commit. The rest as in `load`. Rows that the snapshot lacks stay only if both tables are mirrors of
        one relation with one key (`loading.in_form`).

        Raises:
            PositionError: the table has a later change already.
            IncompatibleSchemaError: no table can have that form.
        """

    def relayout(self, spark: SparkSession, name: str, layout: Callable[[int], Layout]) -> LaidOut:
        """Write all rows of a mirror again in another layout, in one commit. Its position stays.

        A table that has that layout already, and a changelog, are left alone.

        Args:
            layout: gives the layout for a table of so many bytes.
        """

    def layout(self, spark: SparkSession, name: str) -> Layout | None:
        """The layout of the table; None: it is not there."""

    def schema(self, spark: SparkSession, name: str) -> TableSchema | None:
        """The form of the table; None: it is not there."""

    def reached(self, spark: SparkSession, name: str) -> State:
        """What the table has, from its newest commit."""

    def read(self, spark: SparkSession, name: str, consistent_lsn: int | None = None) -> DataFrame:
        """The table, now or as it was at `consistent_lsn` (of the job's consistent batches).

        Raises:
            PositionError: the version is gone, or the table is not as of that LSN.
        """

    def newest(self, spark: SparkSession, name: str) -> Newest | None:
        """The newest version of a table; another process may write to it. None: it is not there.

        Raises:
            PositionError: it is not of this program, or no version says how far it has come.
        """

    def check_newest(self, spark: SparkSession, name: str) -> None:
        """Check that the newest commit of the table is the mirror's own last one. A table that is not there passes.

        Raises:
            FencedError: another process writes to the table.
            RolledBackError: the table was rolled back or restored since the mirror looked at it.
        """

    def pin(self, spark: SparkSession, name: str, tag: Tag | None = None) -> int | None:
        """The newest version of the table, for a point that it has just been brought to. None: there is no version yet.

        Args:
            tag: the version gets this tag, and tags of points that are not listed any more go.

        Raises:
            FencedError: another process writes to the table.
            RolledBackError: the table was rolled back or restored since.
        """

    def bare_name(self, name: str) -> str:
        """The name of a table without catalog, folder and quotes: `public.orders`."""

    def maintain(
        self, spark: SparkSession, name: str, policy: Maintenance, pinned: Pinned | None = None
    ) -> Maintained:
        """Write small files together and let go of former versions. Not while the table gets changes.

        Args:
            pinned: what points of a consistent mirror need of the table: it stays. None: there are no points.
        """

    def prune(self, spark: SparkSession, name: str, order: str, policy: Maintenance) -> int:
        """Let go of rows of a table of our own as of former versions: those with an `at` before what `policy` keeps,
        but not the last `keep_versions` of them by the column `order`, which may be 0 here; how many.
        """

    def own_name(self, name: str) -> str:
        """The name in SQL of a table that no source table has (quarantine, control)."""

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        """The names in SQL of all tables in the place, also of those that are no target's."""

    def inspect(self, spark: SparkSession, name: str) -> Inspected | None:
        """What a table says of itself. Several threads may ask, and another process may write to it.

        None: it is not of this program.

        Raises:
            PositionError: it has versions, and none says how far it has come.
        """

    def has(self, spark: SparkSession, name: str) -> bool:
        """Whether there is such a table."""

    def maintain_own(self, spark: SparkSession, policy: Maintenance) -> Iterator[tuple[str, Maintained]]:
        """As `maintain`, for each of those to which this process has appended. Appending waits meanwhile."""

    def append(self, name: str, rows: DataFrame, unique: Sequence[str]) -> int:
        """Append to such a table, created as needed, the rows whose columns `unique` are not in it; how many."""

    def put(self, name: str, rows: DataFrame, unique: str, gone: str) -> None:
        """Put rows into such a table, created as needed, in the place of those with the same value of the column
        `unique`, in one commit. Rows whose column `gone` is true leave the table; it does not have that column.
        """

    def forget(self, name: str) -> None:
        """Look at the table again when it is next used."""
