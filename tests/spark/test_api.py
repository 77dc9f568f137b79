"""What jobs of one's own have of the topics: typed changes, as a batch and as a stream, and a batch into a table."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import SourceError
from cdcd.protocol.lsn import Lsn
from cdcd.spark.api import apply_changes, read_changes, stream_changes
from cdcd.spark.kafka import KafkaSource
from cdcd.spark.targets.lakehouse import Lakehouse
from cdcd.spark.targets.target import Kind
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
def test_a_stream_of_changes_goes_into_a_table_in_a_job_of_ones_own(
    source: Source, spark: SparkSession, target: Lakehouse, tmp_path: Path
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
    other: list[int] = []

    def apply(batch: DataFrame, number: int) -> None:
        batch.persist()
        other.append(batch.filter("problem = 'it is in another form of the table'").count())
        sound = batch.filter("problem IS NULL").drop("problem")
        applied.append(apply_changes(target, sound, schema, batch_id=number).changes)
        batch.unpersist()

    writer = stream.writeStream.foreachBatch(apply).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    # THEN what was in already changes nothing, and the table is as the source is
    assert len(applied) > 1
    assert (sum(applied), sum(other)) == (30, 51)
    with source.connect() as connection:
        want = connection.execute("SELECT id, price, points, body FROM doc ORDER BY id").fetchall()
    found = spark.table(target.name_of(schema, Kind.MIRROR)).select("id", "price", "points", "body")
    assert [tuple(row) for row in found.orderBy("id").collect()] == want
    # AND a batch that comes again changes nothing
    again = read_changes(spark, kafka, source.name, "public.doc")
    assert apply_changes(target, again.changes, again.schema).changes == 0
