"""`cdcd verify` finds what is planted into the records of real topics, and names it."""

import asyncio
import json
import random
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.shared_snapshot import SharedSnapshot, SharedTable
from cdcd.adapters.postgres.table_chunks import Rate
from cdcd.config.loading import Config, load_config
from cdcd.tools.verify.columns import Columns
from cdcd.tools.verify.comparing import ComparedOutcome, SourceRow, TableComparison
from cdcd.tools.verify.folding import Fault, FoldSettings, TableFold
from cdcd.tools.verify.partition import TopicRecord
from cdcd.tools.verify.row_store import RowStore
from cdcd.tools.verify.snapshot_visibility import Sight
from cdcd.tools.verify.source import ReadersAtSnapshot, SourceRows
from deploy.demo.daemon import parse_metrics
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd, start_cdcd

SEEDS = 100
TOKEN = "a-token-for-reading-7f3a9c"

WRITTEN = """
CREATE TABLE kept (id int PRIMARY KEY, name text, ratio float8, amount numeric, day date, at timestamptz, doc jsonb,
    tags text[], raw bytea, big text);
ALTER TABLE kept ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE loose (number int, note text);
ALTER TABLE loose REPLICA IDENTITY FULL;
"""

ROWS = """
INSERT INTO kept SELECT n, 'name ' || n, n / 3.0, n * 1.10, date '2024-01-01' + n, now(), jsonb_build_object('n', n),
    ARRAY['a', n::text], decode(md5(n::text), 'hex'), repeat(md5(n::text), 200) FROM generate_series(1, 60) n;
UPDATE kept SET ratio = 'NaN', amount = 'NaN', day = 'infinity', at = '-infinity' WHERE id % 7 = 0;
UPDATE kept SET ratio = '-Infinity', amount = '1e-20' WHERE id % 7 = 1;
UPDATE kept SET name = name || '!' WHERE id % 5 = 0;
UPDATE kept SET id = id + 1000 WHERE id % 11 = 0;
DELETE FROM kept WHERE id % 13 = 0;
INSERT INTO loose SELECT n % 4, 'note ' || n % 4 FROM generate_series(1, 40) n;
UPDATE loose SET note = 'other' WHERE number = 1;
DELETE FROM loose WHERE number = 2;
"""


@dataclass
class Source:
    """A table at a snapshot, and the records of its topic."""

    table: SharedTable
    columns: Columns
    rows: list[SourceRow]
    sight: Sight
    records: list[Raw]

    def verify(self, folder: Path, records: list[Raw]) -> tuple[ComparedOutcome, list[Fault]]:
        """What is found in these records."""
        folder.mkdir()
        store = RowStore(folder)
        fold = TableFold(0, store, "topic", FoldSettings(), {})
        fold.look(self.sight)
        for offset, raw in enumerate(records):
            fold.partition(raw.partition).take(TopicRecord(offset, raw.key, raw.value, raw.headers))
        with closing(store), closing(TableComparison(fold, self.columns)) as comparison:
            comparison.add_source(self.rows)
            if comparison.ranges():
                comparison.look_at(self.rows)
            outcome = comparison.end()
        return outcome, fold.faults


async def source_of(config: Config, names: tuple[str, ...]) -> dict[str, Source]:
    dsn = parse_dsn(*config.postgres.access())
    async with AsyncExitStack() as stack:
        shared = await SharedSnapshot.now(
            dsn, publication=config.postgres.publication, slot=config.postgres.slot
        )
        stack.push_async_callback(shared.close)
        readers = ReadersAtSnapshot(config, shared, "test")
        stack.callback(readers.close)
        source = SourceRows(config, shared, readers, Rate(0))
        assert shared.visibility is not None
        found = {}
        for name in names:
            table = shared.tables[name]
            rows = [row async for some in source.rows(table, found=True) for row in some]
            columns = Columns(source.form(table), source.defaults(table), {})
            sight = Sight(shared.visibility, shared.position, shared.old_lsn)
            found[name] = Source(table, columns, rows, sight, [])
        return found


def last_of_each_key(records: list[Raw]) -> list[int]:
    """The records that make the rows that are there."""
    last = {raw.key: at for at, raw in enumerate(records) if raw.value is not None and raw.key is not None}
    return [at for at in last.values() if b'"op":"d"' not in (records[at].value or b"")]


def after_of(raw: Raw) -> tuple[int, int]:
    """Where the values of the row after the change stand."""
    value = raw.value or b""
    return value.index(b'"after":') + len(b'"after":'), value.index(b',"source":{')


def plant(kind: str, dice: random.Random, records: list[Raw]) -> tuple[list[Raw], str]:
    """The records with a fault, and the key that must be named."""
    effective = last_of_each_key(records)
    with_value = [at for at, raw in enumerate(records) if raw.value is not None]
    at = dice.choice(effective)
    raw = records[at]
    value = raw.value or b""
    begin, end = after_of(raw)
    named = (raw.key or b"").decode()
    match kind:
        case "dropped":
            return records[:at] + records[at + 1 :], named
        case "dropped delete":
            gone = [at for at in with_value if b'"op":"d"' in (records[at].value or b"")]
            at = dice.choice(gone)
            # Its tombstone stays.
            return records[:at] + records[at + 1 :], (records[at].key or b"").decode()
        case "doubled":
            at = dice.choice(with_value)
            return [*records[: at + 1], *records[at:]], (records[at].key or b"no key").decode()
        case "altered":
            place = dice.randrange(begin, end)
            altered = value[:place] + bytes([value[place] ^ (1 << dice.randrange(7))]) + value[place + 1 :]
            return put(records, at, altered), named
        case "swapped":
            pairs = [(one, two) for one, two in pairwise(with_value) if two == one + 1]
            one, two = dice.choice(pairs)
            named = (records[one].key or b"").decode()
            return [*records[:one], records[two], records[one], *records[two + 1 :]], named
        case "null for toast":
            altered = re.sub(rb'"big":"[^"]*"', b'"big":null', value[begin:end])
            headers = tuple((name, each) for name, each in raw.headers if name != "cdcd.unchanged")
            records = put(records, at, value[:begin] + altered + value[end:])
            records[at] = replace(records[at], headers=headers)
            return records, named
        case "float" | "numeric" | "infinity":
            column = {"float": b"ratio", "numeric": b"amount", "infinity": b"day"}[kind]
            (found,) = re.findall(rb'"%b":("[^"]*"|[^,]*)' % column, value[begin:end])
            other = {b'"NaN"': b"0.0", b'"NAN"': b'"0"', b"-2147472692": b"2147472691"}.get(found)
            other = other or (
                found[:-1] + b'0"' if kind == "numeric" else found + (b"1" if b"." in found else b"0")
            )
            altered = value[begin:end].replace(b'"%b":%b' % (column, found), b'"%b":%b' % (column, other))
            return put(records, at, value[:begin] + altered + value[end:]), named
    raise AssertionError(kind)


def put(records: list[Raw], at: int, value: bytes) -> list[Raw]:
    return [*records[:at], replace(records[at], value=value), *records[at + 1 :]]


KINDS = (
    "dropped", "dropped delete", "doubled", "altered", "swapped", "null for toast", "float", "numeric", "infinity",
)  # fmt: skip


@pytest.fixture
def delivered(database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str) -> Daemon:
    """A daemon that has delivered everything, and runs."""
    database.execute(WRITTEN)
    process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers))
    process.await_streaming()
    for statement in ROWS.strip().split(";\n"):
        database.execute(statement)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    return process


@pytest.mark.postgres(only=18)
def test_a_hundred_planted_faults_are_found_and_named(
    delivered: Daemon, broker: KafkaBroker, unique: str, tmp_path: Path
):
    config = load_config(delivered.config_path, {})
    sources = asyncio.run(source_of(config, ("public.kept", "public.loose")))
    with Reader(broker.bootstrap_servers, unique) as reader:
        for raw in reader.read_all():
            if raw.topic.removeprefix(f"{unique}.") in sources:
                sources[raw.topic.removeprefix(f"{unique}.")].records.append(raw)

    # GIVEN records with which nothing is wrong
    for name, source in sources.items():
        outcome, faults = source.verify(tmp_path / name, source.records)
        assert (outcome.differing, outcome.not_compared.total(), faults) == (0, 0, [])
        assert outcome.source_rows > 0

    missed = []
    kept = sources["public.kept"]
    for seed in range(SEEDS):
        # WHEN something is planted
        kind = KINDS[seed % len(KINDS)]
        records, named = plant(kind, random.Random(seed), kept.records)
        outcome, faults = kept.verify(tmp_path / str(seed), records)

        # THEN it is found, and named
        keys = {difference.key for difference in outcome.differences} | {fault.key for fault in faults}
        if named not in keys:
            missed.append((seed, kind, named, keys))
    assert missed == []

    # Rows without a key are counted.
    loose = sources["public.loose"]
    for at, raw in enumerate(loose.records):
        if raw.value is not None:
            outcome, _ = loose.verify(tmp_path / f"loose-{at}", loose.records[:at] + loose.records[at + 1 :])
            assert outcome.differing > 0


@pytest.mark.postgres(only=18)
def test_the_command_says_what_differs_and_ends_with_its_code(
    delivered: Daemon, broker: KafkaBroker, unique: str
):
    # GIVEN topics that are equal
    assert (run(delivered, "--format", "json")[0], run(delivered)[0]) == (0, 0)

    # WHEN a record is written behind the daemon's, with another value of one column
    with Reader(broker.bootstrap_servers, unique) as reader:
        raw = next(
            raw
            for raw in reader.read_all()
            if raw.topic == f"{unique}.public.kept" and raw.key == b'{"id":1}'
        )
    assert raw.value is not None
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(raw.topic, raw.value.replace(b'"name 1"', b'"name l"'), raw.key)
    assert producer.flush(30) == 0

    # THEN row, column and both values are named, and the record
    code, out = run(delivered, "--format", "json", "--table", "public.ke*")
    (table,) = json.loads(out)["tables"]
    assert (code, table["verdict"]) == (10, "differs")
    assert [each["key"] for each in table["differences"]] == ['{"id":1}']
    assert {"column": "name", "source": '"name 1"', "target": '"name l"'} in table["differences"][0][
        "columns"
    ]
    assert "again" in table["faults"][0]["kind"]
    code, out = run(delivered, "--no-values")
    assert code == 10
    assert "name l" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.postgres(only=18)
def test_rows_that_differ_are_repaired_by_a_request_for_exactly_them(
    database: Database, broker: KafkaBroker, daemon: Callable[..., Daemon], unique: str
):
    # GIVEN rows from before the pipeline, which it was told not to read
    database.execute("CREATE TABLE kept (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO kept SELECT n, 'old' FROM generate_series(1, 5) n")
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot={"signals": "all"})
    )
    process.await_streaming()
    database.execute("INSERT INTO kept SELECT n, 'new' FROM generate_series(6, 50) n")
    code, out = run(process, "--format", "json")
    assert (code, json.loads(out)["tables"][0]["differing_rows"]) == (10, 5)

    # WHEN they are repaired
    code, out = run(process, "--format", "json", "--repair")

    # THEN all is equal, and no other row was read
    (table,) = json.loads(out)["tables"]
    assert (code, table["verdict"], table["records"]) == (0, "equal", 50)


@pytest.mark.postgres(only=18)
def test_parts_are_compared_as_parts(delivered: Daemon, database: Database, unique: str):
    # GIVEN two rows that the topic lacks the truth of: one that changed lately, and an older one
    (lsn,) = database.execute("SELECT pg_current_wal_insert_lsn()::text")[0]
    database.execute("UPDATE kept SET name = 'late' WHERE id = 2")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # WHEN only what changed lately, or a sample, is compared
    code, out = run(delivered, "--table", "public.kept", "--since", lsn, "--format", "json")
    (since,) = json.loads(out)["tables"]
    code_of_sample, out = run(delivered, "--table", "public.kept", "--sample", "1", "--format", "json")
    (sample,) = json.loads(out)["tables"]

    # THEN it is called what it is
    assert (code, since["verdict"], since["records"]) == (12, "equal so far", 1)
    assert any(f"have not changed since {lsn}" in why for why in since["not_compared"])
    assert (code_of_sample, sample["verdict"]) == (12, "equal so far")
    assert 0 < sample["rows"] <= since["rows"]


@pytest.mark.postgres(only=18)
def test_slices_are_compared_until_it_is_stopped(delivered: Daemon, database: Database, unique: str):
    config = dict(delivered.config)
    config["http"] = {**config.get("http", {}), "read_token": TOKEN}
    file = delivered.config_path.with_name("verify.yaml")
    file.write_text(json.dumps(config))
    process = start_cdcd(
        *("verify", "--config", str(file), "--continuous", "--interval", "1"),
        *("--port", "0", "--format", "json"),
    )
    with process:
        try:
            # GIVEN slices that are equal, by metrics too
            assert process.stdout is not None
            assert process.stderr is not None
            (url,) = re.findall(r"http://\S+/metrics", process.stderr.readline())
            assert json.loads(process.stdout.readline())["verdict"] == "equal"
            wanted = until(lambda: metrics(url).get("cdcd_verified_lsn"), "no table was told of")
            assert wanted[("public.kept",)] > 0
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url, timeout=60)

            # WHEN more is written, THEN the next slices have it
            database.execute("INSERT INTO kept (id) SELECT generate_series(5000, 5099)")
            rows = 0
            while rows < 156:
                found = json.loads(process.stdout.readline())
                assert found["verdict"] == "equal"
                rows = found["tables"][0]["rows"]
            assert set(metrics(url)["cdcd_verify_differences_total"].values()) == {0}
        finally:
            process.terminate()
        assert process.wait(60) == 0


def metrics(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return parse_metrics(answer.read().decode())


def run(process: Daemon, *options: str) -> tuple[int, str]:
    """`cdcd verify`, as a process of its own: its exit code and what it says."""
    done = run_cdcd("verify", "--config", str(process.config_path), *options)
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout
