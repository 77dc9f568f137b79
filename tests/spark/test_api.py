"""What jobs of one's own have of the topics: typed changes, as a batch and as a stream, and a batch into a table."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdcd.core.errors import SourceError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.api import (
    apply_changes,
    follow_changes,
    has_new_form,
    read_changes,
    stream_changes,
)
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.table_changes import Changes
from cdcd.mirror.targets.target import Kind, Target
from tests.spark.stage import Source, Stage

TABLE = (
    "CREATE TABLE doc (id int PRIMARY KEY, price numeric(10, 2), at timestamptz, day date, tags text[], body text)",
    "ALTER TABLE doc ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO doc VALUES (0, 0.5, '2026-01-01 00:00:00+00', '0044-03-15', '{a,NULL}', 'small')",
)
BODY = "x" * 10_000


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(f"api{abs(hash(request.node.nodeid)) % 10**8}", *TABLE, partitions=1) as source:
        source.deliver()
        yield source


def now(source: Source) -> tuple[Lsn, dt.datetime]:
    """Where the log is, and what the time is there."""
    with source.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()").fetchone()
    assert row is not None
    return Lsn.parse(row[0]), row[1]


def ordered(changes: DataFrame) -> list[Any]:
    found: list[Any] = changes.orderBy("commit_lsn", "event_no", "offset").collect()
    return found


def ids(row: Any) -> Any:
    return None if row is None else row["id"]


def test_changes_are_rows_with_types_places_and_what_was_not_sent(
    source: Source, spark: SparkSession
) -> None:
    kafka = KafkaSource(source.servers)
    # GIVEN every kind of change, two of them in one transaction, and a record that is none
    begun = now(source)
    source.execute(
        f"INSERT INTO doc VALUES (1, 12.34, '2026-02-03 04:05:06.789+00', '2026-02-03', '{{b}}', '{BODY}');"
        " UPDATE doc SET price = 'NaN' WHERE id = 0"
    )
    between = now(source)
    source.execute("UPDATE doc SET price = 99 WHERE id = 1")
    source.execute("UPDATE doc SET id = 2 WHERE id = 1")
    source.execute("DELETE FROM doc WHERE id = 0")
    source.execute("TRUNCATE doc")
    ended = now(source)
    source.deliver()
    source.produce("public.doc", b"{")

    # WHEN they are read
    got = read_changes(spark, kafka, source.name, "public.doc")

    # THEN each is one row, in the source's types
    assert (got.schema.table, got.schema.key) == ("public.doc", ("id",))
    types = dict(got.changes.select("after.*", "key.*", "commit_time", "event_no", "unchanged").dtypes)
    assert types == {
        "id": "int",
        "price": "decimal(10,2)",
        "at": "timestamp",
        "day": "date",
        "tags": "array<string>",
        "body": "string",
        "commit_time": "timestamp",
        "event_no": "bigint",
        "unchanged": "array<string>",
    }
    rows = ordered(got.changes)
    assert [(row["op"], ids(row["key"]), ids(row["before"]), ids(row["after"])) for row in rows] == [
        ("r", 0, None, 0),
        ("c", 1, None, 1),
        ("u", 0, None, 0),
        ("u", 1, None, 1),
        ("d", 1, 1, None),
        ("c", 2, None, 2),
        ("d", 0, 0, None),
        ("t", None, None, None),
    ]
    read, made, not_a_number, changed, left, came, *_ = rows
    assert (read["after"]["price"], read["after"]["tags"]) == (Decimal("0.50"), ["a", None])
    assert (made["after"]["price"], made["after"]["day"]) == (Decimal("12.34"), dt.date(2026, 2, 3))
    assert made["after"]["at"].astimezone(dt.UTC) == dt.datetime(2026, 2, 3, 4, 5, 6, 789_000, dt.UTC)
    assert made["after"]["body"] == BODY
    assert not_a_number["after"]["price"] is None
    # AND it says where and when it was committed, and how it stands to the others of its transaction
    assert made["commit_lsn"] == not_a_number["commit_lsn"]
    assert (made["event_no"], not_a_number["event_no"]) == (1, 2)
    assert begun[0] <= made["commit_lsn"] < between[0] <= changed["commit_lsn"] < ended[0]
    assert begun[1] <= made["commit_time"].astimezone(dt.UTC) <= between[1]
    assert [row["commit_lsn"] for row in rows] == sorted(row["commit_lsn"] for row in rows)
    # AND which values the source did not send
    assert (changed["unchanged"], changed["after"]["price"]) == (["body"], Decimal("99.00"))
    assert (came["unchanged"], ids(came["old_key"]), ids(left["new_key"])) == (["body"], 1, 2)
    assert left["event_no"] == came["event_no"]
    # AND what is no change is beside them
    (rejected,) = got.rejected.collect()
    assert (bytes(rejected["value_bytes"]), rejected["problem"]) == (b"{", "its JSON is not that of a change")

    # WHEN the table gets a column, and it is read on from there
    source.execute("ALTER TABLE doc ADD points int DEFAULT 7")
    source.execute("INSERT INTO doc (id) VALUES (5)")
    source.deliver()
    later = read_changes(spark, kafka, source.name, "public.doc", start=got.end)
    # THEN only what is new is there; and read from the beginning, older changes have the new form
    (row,) = later.changes.collect()
    assert (row["op"], row["after"]["id"], row["after"]["points"]) == ("c", 5, 7)
    assert later.rejected.isEmpty()
    whole = read_changes(spark, kafka, source.name, "public.doc").changes
    assert [row["after"]["points"] for row in ordered(whole) if row["op"] == "c"] == [7, 7, 7]
    with pytest.raises(SourceError, match=r"No description of public\.nothing"):
        read_changes(spark, kafka, source.name, "public.nothing")


def test_a_stream_of_changes_goes_into_a_table_in_a_job_of_ones_own(
    source: Source, spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    kafka = KafkaSource(source.servers)
    # GIVEN changes in two forms of the table
    source.execute(
        "INSERT INTO doc SELECT n, n, now(), '2026-01-01', NULL, 'a' FROM generate_series(1, 50) n"
    )
    source.execute("ALTER TABLE doc ADD points int DEFAULT 7")
    source.execute("UPDATE doc SET price = price + 1, points = id WHERE id BETWEEN 1 AND 20")
    source.execute("DELETE FROM doc WHERE id > 40")
    source.execute("UPDATE doc SET id = -id WHERE id BETWEEN 11 AND 15")
    source.deliver()
    # WHEN those in the older form are read as a batch, and a stream takes the others from where it ended
    first = read_changes(spark, kafka, source.name, "public.doc")
    assert apply_changes(target, first.changes, first.schema).changes == first.changes.count()
    source.execute("UPDATE doc SET body = 'b' WHERE id < 30")
    source.deliver()
    schema, stream = stream_changes(
        spark, kafka, source.name, "public.doc", options={"maxOffsetsPerTrigger": "40"}
    )
    assert schema == first.schema
    applied: list[int] = []

    def apply(batch: DataFrame, number: int) -> None:
        batch.persist()
        sound = batch.filter("problem IS NULL").drop("problem")
        applied.append(apply_changes(target, sound, schema, batch_id=number).changes)
        batch.unpersist()

    writer = stream.writeStream.foreachBatch(apply).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    # THEN the older form comes as the newer, what was in already changes nothing, and the table is as the source is
    assert len(applied) > 1
    assert sum(applied) == 30
    with source.connect() as connection:
        want = connection.execute("SELECT id, price, points, body FROM doc ORDER BY id").fetchall()
    found = spark.table(target.name_of(schema, Kind.MIRROR)).select("id", "price", "points", "body")
    assert [tuple(row) for row in found.orderBy("id").collect()] == want
    # AND a batch that comes again changes nothing
    again = read_changes(spark, kafka, source.name, "public.doc")
    assert apply_changes(target, again.changes, again.schema).changes == 0


ALTERS = (
    "ALTER TABLE doc ADD points int DEFAULT 7",
    "ALTER TABLE doc RENAME price TO cost; ALTER TABLE doc DROP tags",
    "ALTER TABLE doc ALTER points TYPE bigint, ALTER cost TYPE numeric(12, 2)",
)
FORMS = (
    {"id", "price", "at", "day", "tags", "body"},
    {"id", "price", "at", "day", "tags", "body", "points"},
    {"id", "cost", "at", "day", "body", "points"},
    {"id", "cost", "at", "day", "body", "points"},
)


def alter_and_change(source: Source, number: int) -> None:
    """The table gets its next form, a row, and another value in an old one."""
    source.execute(ALTERS[number])
    source.execute(f"INSERT INTO doc (id) VALUES ({10 + number})")
    source.execute("UPDATE doc SET day = day + 1 WHERE id = 0")
    source.deliver()


def test_a_stream_that_is_followed_goes_on_while_its_table_is_altered(
    source: Source, spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    # GIVEN a job of one's own that applies each batch, and has it handed over
    batches: list[tuple[int, set[str], list[int]]] = []
    batch_schema: list[TableSchema] = []

    def apply(batch: Changes, number: int) -> None:
        if batch.schema.column("id").type == "integer":
            apply_changes(target, batch.changes, batch.schema, batch_id=number)
            batch_schema.append(batch.schema)
        rows = batch.changes.select("offset").collect()
        batches.append(
            (number, {column.name for column in batch.schema.columns}, [row["offset"] for row in rows])
        )
        assert batch.rejected.isEmpty()

    writer = follow_changes(spark, KafkaSource(source.servers), source.name, "public.doc", apply)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        # WHEN columns come, go, get other names and wider types while it runs
        for number in range(len(ALTERS)):
            alter_and_change(source, number)
            query.processAllAvailable()
            # THEN its batch has the form of now, and the table is as the source is
            assert batches[-1][1] == FORMS[number + 1]
            with source.connect() as connection:
                columns = ", ".join(sorted(FORMS[number + 1] - {"tags", "at"}))
                want = connection.execute(f"SELECT {columns} FROM doc ORDER BY id".encode()).fetchall()
            found = spark.sql(
                f"SELECT {columns} FROM {target.name_of(batch_schema[-1], Kind.MIRROR)} ORDER BY id"
            )
            assert [tuple(row) for row in found.collect()] == want
        # WHEN a column gets a type that does not hold its values, and one batch has both
        source.execute("INSERT INTO doc (id) VALUES (20)")
        source.execute("ALTER TABLE doc ALTER id TYPE text")
        source.execute("INSERT INTO doc (id) VALUES ('x')")
        source.deliver()
        query.processAllAvailable()
        # THEN it still goes on, and has handed over each change once
        assert query.isActive
    finally:
        query.stop()
    offsets = [offset for *_, of_batch in batches for offset in of_batch]
    assert sorted(offsets) == sorted(set(offsets))
    assert len(offsets) == len(source.records("public.doc"))


def test_a_streaming_dataframe_ends_at_a_new_form_and_goes_on_from_its_checkpoint_without_loss(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    # GIVEN a query of one's own over one form of the table
    written: dict[int, list[tuple[int, str | None, set[str]]]] = {}

    def write(batch: DataFrame, number: int) -> None:
        fields = set(batch.select("after.*").columns)
        rows = batch.select("offset", "problem").collect()
        written[number] = [(row["offset"], row["problem"], fields) for row in rows]

    def start() -> StreamingQuery:
        _, changes = stream_changes(spark, KafkaSource(source.servers), source.name, "public.doc")
        writer = changes.writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    query.processAllAvailable()
    for number in range(len(ALTERS)):
        # WHEN a batch has changes of this form, and of the next one
        source.execute("UPDATE doc SET day = day + 1 WHERE id = 0")
        alter_and_change(source, number)
        # THEN the query ends, by an error of that name, before the batch
        with pytest.raises(StreamingQueryException) as ended:
            query.processAllAvailable()
        assert has_new_form(ended.value)
        # AND started again it has that batch in the new form
        query = start()
        query.processAllAvailable()
        assert written[max(written)][0][2] == FORMS[number + 1]
    query.stop()
    # AND of all batches each change is there once
    found = [row for rows in written.values() for row in rows]
    assert {problem for _, problem, _ in found} == {None}
    assert sorted(offset for offset, *_ in found) == sorted({offset for offset, *_ in found})
    assert len(found) == len(source.records("public.doc"))
