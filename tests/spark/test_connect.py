"""Jobs over Spark Connect, against a real server: what works there gives the same values, the rest says what to do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from tests.spark.over_connect import shown, streamed
from tests.spark.stage import Source, Stage

pytest.importorskip("grpc", reason="Spark Connect needs grpcio: make spark installs requirements-long.lock")
pytest.importorskip("pandas", reason="Spark Connect needs pandas: make spark installs requirements-long.lock")

LIMIT_S: Final = 900
"""Seconds for a process with a Java of its own, on a machine that has other work."""
PROGRAM: Final = (sys.executable, "-m", "tests.spark.over_connect")
TABLE = (
    (
        "CREATE TABLE every (id int PRIMARY KEY, big int8, small int2, yes bool, price numeric(10, 2), any_ numeric,"
        " f4 float4, f8 float8, at timestamptz, local timestamp, day date, moment time, tags text[], grid int[][],"
        " doc jsonb, raw bytea, flag bit(1), bits bit(9), place point, span int4range, body text)"
    ),
    (
        "INSERT INTO every VALUES (1, 2^62, -3, true, 12.34, 1e-30, 'NaN', '-Infinity',"
        " '2026-01-01 01:02:03.456789+02', 'infinity', '0044-03-15 BC', '23:59:59.999999', '{a,NULL}',"
        " '{{1,2},{3,NULL}}', '{\"a\": [1, null]}', '\\x00ff', '1', '101010101', '(1.5,-2)', '[1,5)', 'ä')"
    ),
)


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(f"sc{abs(hash(request.node.nodeid)) % 10**8}", *TABLE, partitions=2) as made:
        made.deliver()
        yield made


@pytest.fixture
def environment() -> dict[str, str]:
    """Without what tells Spark which session to make."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}


@pytest.fixture
def server(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    with subprocess.Popen(
        [*PROGRAM, "serve", str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("sc://127.0.0.1:"), "the server did not start"
            yield address
        finally:
            # The end of its standard input ends it.
            process.communicate(timeout=LIMIT_S)


def client(environment: dict[str, str], *arguments: str) -> Any:
    done = subprocess.run(
        [*PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_changes_are_the_same_over_spark_connect_and_what_does_not_work_there_says_so(
    source: Source, spark: SparkSession, server: str, environment: dict[str, str]
) -> None:
    # GIVEN changes of every kind in two forms of the table, and a record that is none
    source.execute("UPDATE every SET price = 'NaN', local = '2026-02-03 04:05:06.7' WHERE id = 1")
    source.execute("INSERT INTO every (id, body) SELECT n, repeat('x', n) FROM generate_series(2, 40) n")
    source.execute("ALTER TABLE every ADD points int DEFAULT 7")
    source.execute("UPDATE every SET id = -id WHERE id > 35; DELETE FROM every WHERE id = 3")
    source.deliver()
    source.produce("public.every", b"{")
    # WHEN a client of the server reads them, and a classic session does
    over = client(environment, "read", server, source.servers, source.name, "public.every")
    here = shown(spark, source.servers, source.name, "public.every")
    # THEN both have the same rows in the same types
    assert len(here["changes"]) == 1 + 1 + 39 + 2 * 5 + 1
    assert len(here["rejected"]) == 1
    for what in ("schema", "types", "changes", "rejected"):
        assert over[what] == here[what]
    # AND each says where to go on: after the last record, or behind the markers that follow it
    assert all(offset <= here["end"][partition] for partition, offset in over["end"].items())
    # AND a stream of them brings the same
    arguments = source.servers, source.name, "public.every"
    assert client(environment, "stream", server, *arguments) == streamed(spark, *arguments)
    # AND they can be brought into a table, each once
    applied = client(environment, "apply", server, *arguments)
    assert applied["new"] == [len(here["changes"]), 0]
    with source.connect() as connection:
        want = connection.execute("SELECT id, points FROM every ORDER BY id").fetchall()
    found = [json.loads(row) for row in applied["rows"]]
    assert sorted((row["id"], row["points"]) for row in found) == want
    # AND what a client cannot do says what to do
    said = client(environment, "refused", server, source.servers)
    assert len(said) == 2
    assert all("does not work in a session of Spark Connect" in each for each in said)
    assert all("spark-submit" in each for each in said)


@pytest.mark.timeout(LIMIT_S)
def test_a_log_and_the_tables_folded_from_it_are_kept_over_spark_connect(
    source: Source, server: str, environment: dict[str, str], tmp_path: Path
) -> None:
    arguments = "fold", server, source.servers, source.name, "public.every", str(tmp_path)
    # GIVEN a table that is folded by a client of the server
    first = client(environment, *arguments)
    assert first["stopped"] == {}
    assert len(first["folded"]) == 1
    # WHEN it changes
    source.execute(
        "INSERT INTO every (id, price) VALUES (2, 20.5); UPDATE every SET price = 1.5 WHERE id = 1"
    )
    source.execute("ALTER TABLE every ADD points int DEFAULT 7; INSERT INTO every (id) VALUES (3)")
    source.deliver()
    # THEN the next fold has the changes, and the table as of now is the same
    second = client(environment, *arguments)
    assert second["stopped"] == {}
    assert second["folded"] == second["now"]
    found = {row["id"]: (row["price"], row["points"]) for row in map(json.loads, second["folded"])}
    assert found == {1: (1.5, 7), 2: (20.5, 7), 3: (None, 7)}
