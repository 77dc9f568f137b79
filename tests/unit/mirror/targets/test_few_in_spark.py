"""Few changes reduced in the driver beside the same changes reduced by Spark."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.changes import parse
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.few import Raw, frame, reduce_few
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.reduction import HELD, fresh, prepared, summary
from cdcd.mirror.targets.reduction import reduced as by_spark
from cdcd.mirror.targets.small_files import FEW
from cdcd.mirror.targets.state import WHOLE, At, Origin, Place, Reach, State
from cdcd.mirror.targets.target import Applied, Kind, New
from tests.unit.mirror.targets.test_few import FORMS, PLAIN, form_of, raw

FORM = form_of(
    *FORMS, ("local", "timestamp"), ("time", "time_ms"), ("amount", "decimal"), ("small", "float32"), ("raw", "bytes"),
    ("bits", "bits"), ("tags", "text[]"), ("grid", "int32[][]"), ("days", "date[]"), ("prices", "decimal(6,2)[]"),
    ("ratios", "float64[]"), ("seen", "timestamptz[]"), ("files", "bytes[]"),
)  # fmt: skip
NULLS = dict.fromkeys([name for name, _ in FORMS])
STATE = State(commit_lsn=2, partitions={0: Place(2, 1, 1, 2)})


def records_of(spark: SparkSession, records: list[Raw]) -> DataFrame:
    """As Spark's source gives them."""
    rows = [(each.partition, each.offset, each.value) for each in records]
    given = spark.createDataFrame(rows, "partition int, offset bigint, value binary")
    headers = sf.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers")
    return given.select("*", sf.lit(None).cast("binary").alias("key"), sf.lit("t").alias("topic"), headers)


def texts(rows: DataFrame, form: Form) -> list[tuple[Any, ...]]:
    """The rows with their values as text, for Python has no year 294247."""
    names = ["_cdcd_op", "_cdcd_commit_lsn", "_cdcd_event_no", "_cdcd_keep", "_cdcd_lost"]
    names += [f"`{column.name}`" for column in form.schema.columns]
    assert [field.dataType for field in rows.select(names[5:]).schema] == [
        column.spark for column in form.schema.columns
    ]
    return sorted(map(tuple, rows.select([sf.col(name).cast("string") for name in names]).collect()))


def test_the_rows_are_those_that_spark_makes_of_the_records(spark: SparkSession):
    notes = ["it's", 'say "no"', "back\\slash", "${x}", "two\nlines", "", "Grüße 🐘", "\\u0041", "$", "%s"]
    rows = [PLAIN | {"id": number, "note": note} for number, note in enumerate(notes)]
    rows += [
        NULLS | {"id": 100},
        PLAIN | {"id": -(2**63), "n": -32768, "ratio": -0.001, "price": "-1234.50", "amount": "NAN"},
        PLAIN | {"id": 101, "day": -2147472692, "at": "0001-01-01T00:00:00Z", "ratio": 3, "amount": "1e5"},
        PLAIN
        | {"id": 102, "day": -800_000, "at": "9999-12-31T23:59:59.999999Z", "flag": False, "price": "0"},
        PLAIN | {"id": 103, "local": -9_000_000_000_000_001, "time": 86_399_999, "price": "007.5"},
    ]
    records = [raw("c", number, row) for number, row in enumerate(rows, 1)]
    records += [
        raw("u", 50, PLAIN | {"n": 8}, before=PLAIN),
        raw("d", 60, NULLS | {"id": 2}),
        Raw(0, 61, None),
    ]
    assert both_ways(spark, records, STATE, None) == [2]


def both_ways(spark: SparkSession, records: list[Raw], state: State, bound: At | None) -> list[int] | None:
    """Check that the driver finds what Spark finds, and return the keys of which the last change is a delete. None: the
    driver leaves the records to Spark.
    """
    few = reduce_few(records, FORM, state, bound)
    if few is None:
        return None
    changes = fresh(prepared(parse(records_of(spark, records), FORM.schema, FORM.rules), bound), state)
    assert changes.filter("problem IS NOT NULL").isEmpty()
    reduced = by_spark(changes, FORM.schema, ()).cache()
    live = sf.col("_cdcd_op") != "d"
    now = reduced.filter(sf.col(HELD).isNull())
    mine = frame(spark, few, FORM) if few.changes else now.limit(0)
    assert texts(mine.filter(live), FORM) == texts(now.filter(live), FORM)
    # Of what is deleted only the key and the place matter.
    gone = [
        sorted(map(tuple, each.filter(~live).select("id", "_cdcd_commit_lsn", "_cdcd_event_no").collect()))
        for each in (mine, now)
    ]
    assert gone[0] == gone[1]
    want = summary(reduced, FORM.schema)
    got = few.found
    assert (got.changes, got.keys, got.last, got.held, got.waiting, got.key_range, got.unfit) == (
        want.changes, want.keys, want.last, want.held, want.waiting, want.key_range, want.unfit,
    )  # fmt: skip
    assert (want.partial, want.moves, want.truncated) == (frozenset(), False, None)
    assert (got.commit_time is None) == (want.commit_time is None)
    if got.commit_time is not None and want.commit_time is not None:
        assert got.commit_time.timestamp() == want.commit_time.timestamp()
    reduced.unpersist()
    return [key for key, _, _ in gone[0]]


MIDDLE: Final = 1.000000059604644775390625
"""A DOUBLE in the middle between two FLOATs. In JSON it has 17 digits, so that it is not quite in the middle there."""

PLAIN_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "n": (None, 0, -32768, 32767),
    "ratio": (None, 0, -0.0, 3, 1.5, -0.001, 123456789.125),
    "price": (None, "0", "-0.5", "9999.99", "007.5", "-0"),
    "at": (None, "2026-01-02T03:04:05Z", "0001-01-01T00:00:00.1Z", "9999-12-31T23:59:59.999999Z"),
    "flag": (None, True, False),
    "day": (None, -2147472692, -2147472691, -800_000, 20_000),
    "note": (None, "", "it's", "\\u0041", "${x}", "a\nb", "Grüße 🐘", " x "),
    "local": (None, -9_000_000_000_000_001, 0),
    "time": (None, 0, 86_399_999),
    "amount": (None, "NAN", "1e5", "-0.10"),
    "small": (None, 0, 1.5, -0.1, 16777217, 0.1234567890123456),
    "raw": (None, "", "YQ==", "YWI=", "AP8Q", "+/+/"),
    "bits": (None, "AQ=="),
    "tags": (
        None,
        [],
        ["a", None, ""],
        ["it's", 'say "no"', "back\\slash", "${x}", "Grüße 🐘", "a\nb", "null"],
    ),
    "grid": (None, [], [[]], [[1, None], None, [-(2**31)]]),
    "days": (None, [], [20_000, None, -2147472692]),
    "prices": (None, ["1.50", None, "-0", "9999.99"]),
    "ratios": (None, [0, -0.0, 1.5, None, -7]),
    "seen": (None, ["2026-01-02T03:04:05Z", None]),
    "files": (None, ["YQ==", None, ""]),
}
"""Values that the driver takes, by column."""

ODD_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "n": (32768, "7", 1.0, True),
    "ratio": ("NaN", 1e300, 1e-7, float(2**70), 2**70),
    "price": ("NAN", "1.234", "12345.00", "٣", 12),
    "at": ("infinity", "2026-02-31T00:00:00Z", "٢٠٢٦-01-02T03:04:05Z", "2026-01-02T24:00:00Z"),
    "flag": (1, "true"),
    "day": (2**31, 2147483647),
    "note": (5, {"a": 1}, "\0"),
    "local": (2**62,),
    "small": ("NaN", 1e300, 1e-7, "1.5"),
    "raw": ("YQ", "YR==", "YQ==\n", "é", 5, ["YQ=="]),
    "tags": ("a", [1], [["a"]], {"a": 1}, ["\0"]),
    "grid": ([1], [[1.5]], [["1"]], [[[1]]], [[2**31]]),
    "days": ([2**31], ["2026-01-01"]),
    "prices": (["12345.00"], ["NAN"], [1]),
    "ratios": (["NaN"], [1e300], ["1.5"]),
    "seen": (["infinity"], [5]),
    "files": (["YQ"], [5]),
}


class Transactions:
    """A table with one row at most for each key, and the records of what is done to it."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._ends = [0, 0]
        self.rows: dict[int, dict[str, Any]] = {}
        self.records: list[Raw] = []

    def run(self, lsn: int) -> None:
        for event in range(1, self._dice.randrange(2, 8)):
            free = [key for key in range(1, 9) if key not in self.rows]
            key = self._dice.randrange(1, 9)
            if key not in self.rows:
                self._put(lsn, event, "c", key, self._values())
            elif free and self._dice.random() < 0.5:
                # The key changes: to one that was never used, or that a row of the transaction has just left.
                to, row = self._dice.choice(free), self.rows.pop(key)
                self._add(lsn, event, "d", key, row | {"id": key})
                self._put(lsn, event, "c", to, row)
            elif self._dice.random() < 0.5:
                self._add(lsn, event, "d", key, self.rows.pop(key) | {"id": key})
            else:
                self._put(lsn, event, "u", key, self.rows[key] | self._values())

    def _values(self) -> dict[str, Any]:
        return {name: self._dice.choice(values) for name, values in PLAIN_VALUES.items()}

    def _put(self, lsn: int, event: int, op: str, key: int, row: dict[str, Any]) -> None:
        self.rows[key] = row
        self._add(lsn, event, op, key, row | {"id": key})

    def _add(self, lsn: int, event: int, op: str, key: int, row: dict[str, Any]) -> None:
        partition = key % 2
        made = raw(op, lsn, row, partition=partition, source={"event_serial_no": event})
        self.records.append(made._replace(offset=self._ends[partition]))
        self._ends[partition] += 1


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_written_both_ways_find_the_same_rows(spark: SparkSession, seed: int):
    # GIVEN transactions in which keys are given up and taken, also by one another
    dice = random.Random(seed)
    source = Transactions(dice)
    for lsn in range(10, 22):
        source.run(lsn)
    # THEN of an empty table, both ways find the rows that the source has
    deleted = both_ways(spark, source.records, State(), None)
    few = reduce_few(source.records, FORM, State(), None)
    assert deleted is not None
    assert few is not None
    rows = {int(change.row["id"] or 0): change.row for change in few.changes if change.op != "d"}
    assert rows.keys() == source.rows.keys()
    assert {key: row["note"] for key, row in rows.items()} == {
        key: row["note"] for key, row in source.rows.items()
    }
    # AND of one that has some of them, up to a bound, with some that come again and in any order
    again = [*source.records, *dice.sample(source.records, 5)]
    dice.shuffle(again)
    half = dice.randrange(2)
    state = State(14, partitions={0: Place(14, 2, half, 9), 1: Place(12, 3, 1, 4)}, truncated=(11, 2))
    assert both_ways(spark, again, state, (18, WHOLE)) is not None
    # AND with a value that the driver may not take, it leaves all of them to Spark, or finds what Spark finds
    name = dice.choice(list(ODD_VALUES))
    odd = PLAIN | {"id": 99, name: dice.choice(ODD_VALUES[name])}
    both_ways(spark, [*source.records, raw("c", 30, odd)], State(), None)


def test_each_value_that_the_driver_takes_is_the_one_that_spark_reads(spark: SparkSession):
    values = [(name, value) for name, several in PLAIN_VALUES.items() for value in several]
    values.append(("small", MIDDLE))
    records = [raw("c", lsn, PLAIN | {"id": lsn, name: value}) for lsn, (name, value) in enumerate(values, 1)]
    assert both_ways(spark, records, State(), None) == []


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, several in ODD_VALUES.items() for value in several]
)
def test_each_odd_value_is_left_to_spark(name: str, value: Any):
    taken = (name, value) == ("day", 2147483647)
    assert (reduce_few([raw("c", 1, PLAIN | {name: value})], FORM, State(), None) is not None) == taken


def test_numbers_that_are_not_whole_are_the_same_both_ways(spark: SparkSession):
    records = []
    for lsn, number in enumerate(("-0.0", "0.0", "-0.00", "0.1", "-7", "12345678901234567.5"), 1):
        record = raw("c", lsn, PLAIN | {"id": lsn, "ratio": 424242})
        assert record.value is not None
        records.append(record._replace(value=record.value.replace(b"424242", number.encode())))
    assert both_ways(spark, records, State(), None) == []


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_few_changes_go_into_a_new_table_and_are_merged_into_it_with_their_position(
    spark: SparkSession, warehouse: Path, table_format: str
):
    def target() -> Lakehouse:
        place = warehouse / "few"
        return IcebergTarget("lake", "few") if table_format == ICEBERG else DeltaTarget(str(place))

    first, new = target(), New(FORM.schema, Kind.MIRROR)
    name = first.name_of(FORM.schema, Kind.MIRROR)
    assert first.takes_few(spark, name, new)
    assert not first.takes_few(spark, name, New(FORM.schema, Kind.MIRROR, Layout(4)))

    def apply(to: Lakehouse, until: int, *records: Raw) -> Applied:
        few = reduce_few(records, FORM, to.reached(spark, name), None)
        assert few is not None
        origin, reach = Origin("first", {0: 0}), Reach({0: until})
        return to.apply_few(spark, name, few, FORM, batch_id=3, new=new, origin=origin, reach=reach)

    made = [raw("c", lsn, PLAIN | {"id": lsn}) for lsn in (1, 2, 3)]
    assert apply(first, 5, *made).changes == 3
    # WHEN changes come, those before them once more
    again = target()
    changed = [raw("u", 11, PLAIN | {"id": 1, "note": "new"}), raw("d", 12, PLAIN | {"id": 2})]
    changed += [
        raw("c", 13, NULLS | {"id": 4}),
        raw("c", 14, PLAIN | {"id": 5}),
        raw("d", 15, PLAIN | {"id": 5}),
    ]
    done = apply(again, 20, *made, *changed)
    # THEN they are in the table, and the commit says so
    assert (done.changes, done.rows, done.state.commit_lsn) == (5, 4, 15)
    last = target()
    assert last.reached(spark, name) == done.state
    assert done.state.partitions == {0: Place(15, 1, 1, 19)}
    assert done.state.batch_id == 3
    rows = {row["id"]: row["note"] for row in spark.table(name).select("id", "note").collect()}
    assert rows == {1: "new", 3: "it's", 4: None}
    # AND nothing is committed where nothing is new
    assert (apply(last, 25, *made, *changed).changes, target().reached(spark, name)) == (0, done.state)


UNUSUAL: Final = {
    "at": ("infinity", "-infinity", "1500-01-01T00:00:00Z"),
    "local": (9_223_372_036_825_200, -9_223_372_036_832_400, -20_000_000_000_000),
    "ratio": ("NaN", "-Infinity", 1e300),
    "small": ("NaN", 1e-7),
    "price": ("NAN",),
    "day": (2147483647, -200_000),
    "seen": (["infinity", None], ["-infinity"]),
    "tags": (["a\0b"],),
}
"""Values that only Spark takes, and some from before the Gregorian calendar. In a table that the driver writes, they
are in rows that no change is about.
"""


def job_of(spark: SparkSession) -> int:
    """The number of the next job of Spark."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


class Beside:
    """A table of its own in a target, into which batches come in order."""

    def __init__(self, spark: SparkSession, target: Lakehouse, table: str) -> None:
        self.spark = spark
        self.target = target
        self.form = Form(replace(FORM.schema, name=table), FORM.rules)
        self.new = New(self.form.schema, Kind.MIRROR)
        self.name = target.name_of(self.form.schema, Kind.MIRROR)
        self.until = 0

    def by_spark(self, records: list[Raw]) -> None:
        self.until += 100
        changes = parse(records_of(self.spark, records), self.form.schema, self.form.rules)
        self.target.apply(self.name, changes, new=self.new, reach=Reach({0: self.until, 1: self.until}))

    def few(self, records: list[Raw]) -> int:
        """Returns the number of jobs of Spark."""
        self.until += 100
        few = reduce_few(records, self.form, self.target.reached(self.spark, self.name), None)
        assert few is not None
        began, reach = job_of(self.spark), Reach({0: self.until, 1: self.until})
        self.target.apply_few(self.spark, self.name, few, self.form, new=self.new, reach=reach)
        return job_of(self.spark) - began

    def has(self) -> list[tuple[Any, ...]]:
        rows = self.spark.table(self.name)
        return sorted(
            map(tuple, rows.select([sf.col(f"`{name}`").cast("string") for name in rows.columns]).collect())
        )


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_what_the_driver_writes_is_what_a_merge_writes(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
):
    written, merged = [
        Beside(
            spark,
            IcebergTarget("lake", "beside") if table_format == ICEBERG else DeltaTarget(str(warehouse / "b")),
            table,
        )
        for table in ("written", "merged")
    ]
    monkeypatch.setattr(merged.target._format, "small", lambda *_: None)
    source = Transactions(random.Random(table_format))
    # GIVEN rows that Spark wrote
    unusual = [(name, value) for name, values in UNUSUAL.items() for value in values]
    rows = [PLAIN | {"id": 100 + number, name: value} for number, (name, value) in enumerate(unusual)]
    for each in (written, merged):
        each.by_spark([raw("c", 1 + number, row) for number, row in enumerate(rows)])
    assert written.has() == merged.has()
    assert len(written.has()) == len(unusual)
    # THEN the driver reads them, and writes what a MERGE writes
    for lsn in range(100, 104):
        done = len(source.records)
        source.run(lsn)
        batch = source.records[done:]
        assert written.few(batch) == 0
        assert merged.few(batch) > 0
        assert written.has() == merged.has()
    # AND each goes on with what the other has written, and with a value that the driver leaves to Spark
    last = [raw("u", 200, PLAIN | {"id": 300}), raw("u", 201, PLAIN | {"id": 4, "note": "last"})]
    for each in (written, merged):
        each.by_spark(last)
    last = [raw("d", 210, NULLS | {"id": 300}), raw("u", 211, PLAIN | {"id": 1, "small": MIDDLE})]
    assert written.few(last) > 0
    merged.few(last)
    last = [raw("u", 220, PLAIN | {"id": 1, "n": 5}), raw("d", 221, NULLS | {"id": 2})]
    written.few(last)
    merged.few(last)
    assert written.has() == merged.has()
    # AND a table may lose all of its rows, and get rows again
    keys = [int(row[0]) for row in written.has()]
    for each in (written, merged):
        each.few([raw("d", 500, NULLS | {"id": key}) for key in keys])
        assert each.has() == []
        each.few([raw("c", 501, PLAIN)])
    assert written.has() == merged.has() != []


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_the_driver_does_not_write_over_a_commit_that_it_has_not_read(
    spark: SparkSession, warehouse: Path, table_format: str
):
    place = str(warehouse / "over")
    one, other = [
        Beside(
            spark, IcebergTarget("lake", "over") if table_format == ICEBERG else DeltaTarget(place), "item"
        )
        for _ in range(2)
    ]
    one.few([raw("c", 1, PLAIN)])
    for statement in (f"INSERT INTO {one.name} SELECT * FROM kept", f"DELETE FROM {one.name} WHERE id = 1"):
        spark.table(one.name).createOrReplaceTempView("kept")
        small = one.target._format.small(spark, one.name, FEW)
        assert small is not None
        rows = small.rows()
        assert rows is not None
        state = one.target.reached(spark, one.name)
        # WHEN another program changes the table between the look and the commit
        spark.sql(statement)
        had = other.has()
        # THEN the commit fails, and the table is what the other program made of it
        with pytest.raises((Py4JJavaError, PySparkException)), one.target._format.carrying(spark, state):
            small.put(rows, state)
        assert other.has() == had
