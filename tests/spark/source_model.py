"""A source in plain Python: transactions at random over one table, the records they make, and the table as it is then.

What it writes is what the daemon writes: a key change is a delete and a create with one number; a TOAST value that an
update leaves alone is not sent, not even to the new key's record; a truncate is one record in whichever partition.
Each partition is a list, cut into batches at any place and at its own pace.
"""

import datetime as dt
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.state import At, Place

Row = dict[str, Any]

FORM = TableSchema(
    topic="shop.public.docs",
    namespace="public",
    name="docs",
    schema_id="form-1",
    key=("id",),
    columns=(
        ColumnSchema("id", 1, "bigint", 20, -1, LongType()),
        ColumnSchema("n", 2, "integer", 23, -1, IntegerType()),
        ColumnSchema("title", 3, "text", 25, -1, StringType()),
        ColumnSchema("body", 4, "text", 25, -1, StringType()),
    ),
)
TOAST = ("title", "body")
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def changes_type(schema: TableSchema) -> StructType:
    """The columns of a DataFrame of changes."""
    key = schema.key_type
    return StructType(
        [
            StructField("op", StringType()),
            StructField("before", schema.row_type),
            StructField("after", schema.row_type),
            StructField("unchanged", ArrayType(StringType())),
            StructField("key", key),
            StructField("old_key", key),
            StructField("new_key", key),
            StructField("commit_lsn", LongType()),
            StructField("event_no", LongType()),
            StructField("commit_time", TimestampType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("schema_id", StringType()),
        ]
    )


def frame(spark: SparkSession, records: list[Row], schema: TableSchema = FORM) -> DataFrame:
    """Records as `parse` would give them."""
    type_ = changes_type(schema)
    names = type_.fieldNames()
    return spark.createDataFrame([tuple(record.get(name) for name in names) for record in records], type_)


def change(op: str, lsn: int, key: int | None, n: int = 0, **more: Any) -> Row:
    """A change of partition 0, the first of its transaction, with its LSN for an offset, unless told otherwise."""
    row = None if key is None else (key, n, more.pop("title", f"title {n}"), more.pop("body", f"body {n}"))
    return {
        "op": op,
        "after": None if op == "d" else row,
        "before": row if op == "d" else None,
        "key": None if key is None else (key,),
        "commit_lsn": lsn,
        "event_no": 1,
        "partition": 0,
        "offset": lsn,
    } | more


@dataclass
class Source:
    """The table, and what was written about it."""

    seed: int
    partitions: int = 3
    keys: int = 12
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[list[Row]] = field(default_factory=list)
    lsn: int = 1000
    moves: bool = True
    truncates: bool = True
    keyed: bool = True
    wanders: bool = False
    """A key's records go to another partition from some transaction on, as when partitions are added."""
    after: dict[int, dict[int, Row]] = field(default_factory=dict)
    gone: dict[int, Row] = field(default_factory=dict)
    """The last rows of keys that have none any more."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.log = [[] for _ in range(self.partitions)]
        self.shift = 0

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            self.lsn += self.random.randrange(1, 50)
            self.event = 0
            if self.wanders and self.random.random() < 0.2:
                self.shift += 1
            for _ in range(self.random.randrange(1, 6)):
                self.event += 1
                self._change()
            self.after[self.lsn] = {key: dict(row) for key, row in self.rows.items()}

    def _change(self) -> None:
        key = self.random.randrange(self.keys)
        row = self.rows.get(key)
        chance = self.random.random()
        if chance < 0.03 and self.truncates:
            self.gone |= self.rows
            self.rows = {}
            self._write("t", None, self.random.randrange(self.partitions))
        elif row is None:
            self._insert(key)
        elif chance < 0.2:
            self.gone[key] = self.rows.pop(key)
            self._write("d", key, before={"id": key})
        elif chance < 0.4 and self.moves:
            self._move(key, row)
        else:
            unchanged = self._edit(row)
            self._write("u", key, after=row, unchanged=unchanged)

    def _insert(self, key: int) -> None:
        row = {"id": key, "n": self._number(), "title": self._text("title"), "body": self._text("body")}
        self.rows[key] = row
        self.gone.pop(key, None)
        self._write("c", key, after=row)

    def _move(self, key: int, row: Row) -> None:
        free = [other for other in range(self.keys) if other not in self.rows]
        if not free:
            return
        new = self.random.choice(free)
        self.gone[key] = dict(row)
        self.gone.pop(new, None)
        unchanged = self._edit(row)
        del self.rows[key]
        row["id"] = new
        self.rows[new] = row
        self._write("d", key, before={"id": key}, new_key=new)
        self._write("c", new, after=row, unchanged=unchanged, old_key=key)

    def _edit(self, row: Row) -> list[str]:
        """Change the row; the TOAST columns that stay as they are."""
        row["n"] = self._number()
        unchanged = []
        for name in TOAST:
            if self.random.random() < 0.4:
                row[name] = self._text(name)
            elif row[name] is not None:
                unchanged.append(name)
        return unchanged

    def _number(self) -> int | None:
        return self.random.choice([None, self.random.randrange(1000)])

    def _text(self, name: str) -> str | None:
        return self.random.choice([None, f"{name} {self.random.randrange(10**6)}", "it's \\ ${x}"])

    def _write(
        self,
        op: str,
        key: int | None,
        partition: int | None = None,
        *,
        before: Row | None = None,
        after: Row | None = None,
        unchanged: list[str] | None = None,
        old_key: int | None = None,
        new_key: int | None = None,
    ) -> None:
        if partition is None:
            assert key is not None
            partition = (key + self.shift) % self.partitions
        number = partition
        names = FORM.row_type.fieldNames()
        sent = None
        if after is not None:
            sent = tuple(None if unchanged and name in unchanged else after[name] for name in names)
        self.log[number].append(
            {
                "op": op,
                "before": None if before is None else tuple(before.get(name) for name in names),
                "after": sent,
                "unchanged": unchanged or None,
                "key": None if key is None or not self.keyed else (key,),
                "old_key": None if old_key is None else (old_key,),
                "new_key": None if new_key is None else (new_key,),
                "commit_lsn": self.lsn,
                "event_no": self.event,
                "commit_time": EPOCH + dt.timedelta(seconds=self.lsn),
                "topic": FORM.topic,
                "partition": number,
                # Markers of Kafka's transactions are gaps.
                "offset": 2 * len(self.log[number]),
                "schema_id": "form-1",
            }
        )

    def ends(self, batches: int) -> Iterator[list[int]]:
        """How far each of `batches` batches goes in each partition; the last one goes to the end."""
        at = [0] * self.partitions
        for number in range(batches):
            for partition, records in enumerate(self.log):
                left = len(records) - at[partition]
                most = left if self.random.random() < 0.5 else left // 3
                at[partition] += left if number == batches - 1 else self.random.randrange(most + 1)
            yield list(at)

    def read(self, places: Mapping[int, Place], ends: list[int]) -> list[Row]:
        """What lies after `places` and before `ends`, in any order."""
        records = [
            record
            for partition, end in enumerate(ends)
            for record in self.log[partition][:end]
            if partition not in places or record["offset"] > places[partition].offset
        ]
        self.random.shuffle(records)
        return records

    def reach(self, ends: list[int]) -> At | None:
        """The place up to which a batch has all changes that goes so far in each partition. None: it has all."""
        nexts = [records[end] for records, end in zip(self.log, ends, strict=True) if end < len(records)]
        return min([_before(record) for record in nexts], default=None)

    def marked(self) -> set[tuple[Any, ...]]:
        """All rows, and whether they are deleted."""
        names = FORM.row_type.fieldNames()
        live = {(*row, False) for row in self.expected()}
        return live | {(*[row[name] for name in names], True) for row in self.gone.values()}

    def expected(self) -> set[tuple[Any, ...]]:
        return {tuple(row[name] for name in FORM.row_type.fieldNames()) for row in self.rows.values()}


def _before(record: Row) -> At:
    """Where a batch may end whose next record this is: both halves of a change of a key have one number."""
    half = record["old_key"] is not None or record["new_key"] is not None
    return (record["commit_lsn"], record["event_no"] - half)
