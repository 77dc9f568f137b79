"""Pages of a table as a data source of Spark: each task reads a range of them with COPY, at a snapshot that is shared.

The rule: a row comes as the same bytes that the daemon would write for it, the envelope of a change with op `r`. So its
types are the mirror's, by the same expressions (`changes.parse`), and none of them is decided here.

A task has one connection and one chunk of rows in memory; it reads the next one when Spark has taken the former, so a
slow sink slows the reading. A task that is run again reads its pages again, at the same snapshot.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from cdcd import __version__
from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.shared_snapshot import SharedTable
from cdcd.adapters.postgres.snapshot_reader import SnapshotReader
from cdcd.adapters.postgres.table_chunks import Rate, TableChunks
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, SnapshotPosition
from cdcd.core.snapshot.reading import SourcePart, SourceTable
from cdcd.core.snapshot.table_task import Part

NAME: Final = "cdcd_snapshot"
APPLICATION: Final = "cdcd spark snapshot"

CHUNK_BYTES: Final = 2 << 20
"""Of a table, on disk, read at a time; in memory it is a few times as much, as text and as JSON."""

_MARK: Final = "true"


Range = tuple[str, int, int, int, int, int, int]
"""Pages of a part: its name in SQL, oid and filenode, from, to before, and its pages and bytes in all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every task is told. As text it goes through the options of the data source, whose values are strings.

    Attributes:
        dsn: with its password, so the option's name is one that Spark never shows.
        snapshot, position: as `SharedSnapshot` has them.
        database, prefix: of the records.
        table: without its parts, of which each task has a range.
        rate_bytes_s: how much of the table's rows a task may read each second; 0: without limit.
        money_digits: how many digits of money stand behind the point.
        trusted: owners whose tables the role reads, besides superusers and itself; None: all.
        where: SQL condition on rows; "" for all rows.
    """

    dsn: str
    password_command: tuple[str, ...]
    connect_timeout_s: float
    snapshot: str
    position: int
    database: str
    prefix: str
    table: SourceTable
    description: TableDescription
    types: Sequence[TypeDescription]
    rate_bytes_s: float = 0.0
    money_digits: int = DIGITS_OF_C
    trusted: Sequence[str] | None = None
    where: str = ""

    def options(self, ranges: Sequence[Range]) -> dict[str, str]:
        """For `spark.read.format(NAME).options(...)`; each range is a task's."""
        table = self.table
        relation = table.relation
        fields = {
            "dsn": self.dsn,
            "password_command": self.password_command,
            "connect_timeout_s": self.connect_timeout_s,
            "snapshot": self.snapshot,
            "position": self.position,
            "database": self.database,
            "prefix": self.prefix,
            "relation": [relation.oid, relation.namespace, relation.name, relation.replica_identity],
            "columns": [
                [column.flags, column.name, column.type_oid, column.type_modifier]
                for column in relation.columns
            ],
            "table": [table.row_filter, table.sql_name, table.partitioned, table.columns],
            "keys": [list(self.description.primary_key), list(self.description.unique_key)],
            "catalog": [astuple(column) for column in self.description.columns],
            "types": [astuple(each) for each in self.types],
            "rate_bytes_s": self.rate_bytes_s,
            "money_digits": self.money_digits,
            "trusted": self.trusted,
            "where": self.where,
        }
        # Spark leaves out of its plans and pages what is called so (spark.redaction.regex).
        return {"secret": json.dumps(fields), "ranges": json.dumps(list(ranges))}

    @classmethod
    def read(cls, secret: str) -> "Plan":
        """What `options` made a secret of."""
        fields = json.loads(secret)
        oid, namespace, name, identity = fields["relation"]
        primary, unique = fields["keys"]
        row_filter, sql_name, partitioned, fingerprint = fields["table"]
        relation = Relation(
            xid=None,
            oid=oid,
            namespace=namespace,
            name=name,
            replica_identity=identity,
            columns=tuple(Column(*column) for column in fields["columns"]),
        )
        return cls(
            fields["dsn"],
            tuple(fields["password_command"]),
            fields["connect_timeout_s"],
            fields["snapshot"],
            fields["position"],
            fields["database"],
            fields["prefix"],
            SourceTable(relation, row_filter, (), sql_name, partitioned, fingerprint),
            TableDescription(
                tuple(primary), tuple(unique), tuple(CatalogColumn(*column) for column in fields["catalog"])
            ),
            [_type(each) for each in fields["types"]],
            fields["rate_bytes_s"],
            fields["money_digits"],
            None if fields["trusted"] is None else tuple(fields["trusted"]),
            fields["where"],
        )


def _type(written: list[Any]) -> TypeDescription:
    """A type from its text. The encoder remembers a table's rows by its types: all of it must have a hash."""
    *named, parts, sends, labels = written
    # Compiled, the class takes no lists.
    values: list[Any] = [*named, tuple(parts), sends, tuple([(oid, label) for oid, label in labels])]
    return TypeDescription(*values)


def page_ranges(table: SharedTable, partition_bytes: int) -> list[Range]:
    """The table's pages, its leaves' one after the other, in ranges of about so many bytes on disk."""
    ranges = []
    for each in table.source.parts:
        part = each.part
        page_bytes = max(1, part.size // max(1, part.pages))
        step = max(1, partition_bytes // page_bytes)
        ranges += [
            (
                each.sql_name,
                part.oid,
                part.filenode,
                begin,
                min(begin + step, part.pages),
                part.pages,
                part.size,
            )
            for begin in range(0, part.pages, step)
        ]
    return ranges


class SnapshotPages(DataSource):  # type: ignore[misc,unused-ignore]  # pyspark may be missing where types are checked
    """`spark.read.format("cdcd_snapshot")` with `Plan.options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def reader(self, schema: StructType) -> "PagesReader":
        return PagesReader(self.options["secret"], self.options["ranges"])


@dataclass
class PageRange(InputPartition):  # type: ignore[misc,unused-ignore]
    """The pages of one task."""

    pages: Range


class PagesReader(DataSourceReader):  # type: ignore[misc,unused-ignore]
    """Goes to the executors with the plan as text: compiled classes of the pure packages do not pickle."""

    def __init__(self, secret: str, ranges: str) -> None:
        self._secret = secret
        self._ranges = ranges

    def __getstate__(self) -> dict[str, str]:
        """A task is handed its own range; those of all would be as long as the table is large, in each task."""
        return {"_secret": self._secret, "_ranges": "[]"}

    def partitions(self) -> Sequence[PageRange]:
        return [PageRange((str(name), *numbers)) for name, *numbers in json.loads(self._ranges)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Rows of the range, a batch for each chunk.

        Raises:
            SourceError: the table may not be read.
            TransientError: the connection or the snapshot is lost, or the table was altered, truncated or dropped.
        """
        if partition is None:
            # Where there are no partitions, because the table has no pages, Spark reads one that is None.
            return
        assert isinstance(partition, PageRange), "it is one of ours"
        plan = Plan.read(self._secret)
        modes = Modes(money_digits=plan.money_digits)
        encoder = record_stream(EncoderSettings(__version__, plan.prefix, plan.database, modes=modes))
        types = {each.oid: each for each in plan.types}
        relation = plan.table.relation
        encoder.define(relation, plan.description, types)
        place = SnapshotPosition(plan.position, plan.position - 1, _MARK, _MARK, _MARK)
        with asyncio.Runner() as runner:
            reader = runner.run(
                SnapshotReader.open(
                    parse_dsn(plan.dsn, plan.password_command),
                    application_name=APPLICATION,
                    connect_timeout_s=plan.connect_timeout_s,
                    # A task has nothing else to do than to wait for who alters the table.
                    lock_timeout_s=0,
                    trusted=plan.trusted,
                )
            )
            try:
                runner.run(reader.import_snapshot(plan.snapshot))
                rate = Rate(plan.rate_bytes_s)
                for lines in _chunks(plan, partition.pages, reader, runner):
                    records: list[Any] = []
                    now_us = time.time_ns() // 1000
                    encoder.encode_rows(relation.oid, lines, place, now_us, records, set())
                    values = pa.array([record[2] for record in records], pa.binary())
                    yield pa.RecordBatch.from_arrays([values], names=["value"])
                    runner.run(rate.passed(sum(map(len, lines))))
            finally:
                reader.close()


def _chunks(
    plan: Plan, pages: Range, reader: SnapshotReader, runner: asyncio.Runner
) -> Iterator[list[bytes]]:
    """The lines of one chunk after the other."""
    sql_name, oid, filenode, first, last, pages_all, size = pages
    others = tuple((begin, end) for begin, end in ((0, first), (last, pages_all)) if begin < end)
    part = Part(oid, filenode, pages_all, size, others)
    table = replace(plan.table, parts=(SourcePart(part, sql_name),))
    chunks = TableChunks(reader, table, sql_name, part, CHUNK_BYTES, plan.where)
    while (lines := runner.run(chunks.next())) is not None:
        yield lines
