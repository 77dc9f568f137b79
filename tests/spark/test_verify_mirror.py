"""`cdcd verify --target mirror`: each planted fault is named, and writers make no difference."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import psycopg
import pytest
import yaml
from pyspark.sql import SparkSession

from cdcd.adapters.credentials.tokens import access
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.cli.mirror_parts import settings_of, source_of
from cdcd.config.loading import parse_config
from cdcd.config.mirror import parse_mirror
from cdcd.mirror.base.formats import base_of
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind, Target
from cdcd.mirror.verifying.folds import FoldedTables
from cdcd.mirror.verifying.mirror import MirrorTarget
from cdcd.tools.verify.comparing import DIFFERS, ONLY_SOURCE
from cdcd.tools.verify.delivery import TopicDelivery
from cdcd.tools.verify.report import EQUAL, PARTIAL, TableReport, VerifyReport
from cdcd.tools.verify.source import Forms
from deploy.demo.mirrored import MirrorProcess, environment
from deploy.local.cache import REPOSITORY
from tests.schema_registry import SchemaRegistry
from tests.spark.stage import Source, Stage, target_for
from tests.spark.writing import Writing

SEED: Final = 20_261_124

KINDS: Final = (
    """CREATE TABLE kinds (id int PRIMARY KEY, small smallint, big bigint, r real, d double precision, b boolean,
         n numeric(12, 2), free numeric, wide numeric(50, 4), cash money, day date, stamp timestamp, at timestamptz,
         took time, zone timetz, span interval, raw bytea, one bit(1), bits bit varying(20), j json, jb jsonb,
         p point, ints int[], texts text[], nested int[][], nums numeric(8, 3)[], u uuid, r4 int4range, net inet,
         t text, toasted text)""",
    "ALTER TABLE kinds ALTER toasted SET STORAGE EXTERNAL",
    """INSERT INTO kinds SELECT g, g, g * 1000000007::bigint, g / 7.0, g / 3.0, g % 2 = 0, g / 8.0, g / 9.0, g * 1.5, g,
         date '2000-01-01' + g, timestamp '2000-01-01' + g * interval '1 s 1 us',
         timestamptz '2000-01-01 UTC' + g * interval '1 ms',
         time '00:00' + g * interval '1 s', '10:00+02', g * interval '1 h', decode(lpad(to_hex(g), 8, '0'), 'hex'),
         B'1', B'101', json_build_object('n', g), jsonb_build_object('n', g), point(g, -g), ARRAY[g, NULL],
         ARRAY['NULL', NULL, ''], '{{1,2},{3,4}}', ARRAY[1.5, NULL], md5(g::text)::uuid, int4range(g, g + 5),
         '10.0.0.1', 'text ' || g, repeat('t', 3000 + g) FROM generate_series(1, 200) g""",
    """INSERT INTO kinds (id, r, d, n, free, day, stamp, at, t) VALUES
         (-1, 'NaN', 'NaN', 'NaN', 'NaN', 'infinity', 'infinity', 'infinity', 'NULL'),
         (-2, 'infinity', 'infinity', 0, 'infinity', '-infinity', '-infinity', '-infinity', ''),
         (-3, '-0', '-0', -0.01, '-infinity', '4713-01-01 BC', '4713-01-01 BC', '4713-01-01 BC', E'tab\\t"é"'),
         (-4, NULL, NULL, NULL, NULL, '9999-12-31', '12000-01-01', '12000-01-01', NULL)""",
    "CREATE TABLE keyless (what text)",
    "INSERT INTO keyless VALUES ('x')",
    "CREATE TABLE empty (id int PRIMARY KEY)",
    "CREATE TABLE hot (id int PRIMARY KEY, n int, big text)",
    "ALTER TABLE hot ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO hot SELECT g, 0, repeat('b', 3000) FROM generate_series(1, 400) g",
)

FAULTS: Final = {
    "UPDATE {t} SET t = 'text 1O' WHERE id = 10": (10, DIFFERS, "t"),
    "UPDATE {t} SET toasted = NULL WHERE id = 11": (11, DIFFERS, "toasted"),
    "UPDATE {t} SET d = d + 1e-13 WHERE id = 12": (12, DIFFERS, "d"),
    "UPDATE {t} SET n = n + 0.01 WHERE id = 13": (13, DIFFERS, "n"),
    "UPDATE {t} SET day = date '9999-12-31' WHERE id = -1": (-1, DIFFERS, "day"),
    "UPDATE {t} SET r = -r WHERE id = -2": (-2, DIFFERS, "r"),
    "UPDATE {t} SET ints = array(NULL, 14) WHERE id = 14": (14, DIFFERS, "ints"),
    "UPDATE {t} SET stamp = stamp + interval '0.000001' second WHERE id = 15": (15, DIFFERS, "stamp"),
    "UPDATE {t} SET raw = NULL WHERE id = 16": (16, DIFFERS, "raw"),
    "UPDATE {t} SET small = 18, big = 17 WHERE id = 17": (17, DIFFERS, "small"),
    "DELETE FROM {t} WHERE id = 20": (20, ONLY_SOURCE, "t"),
    "INSERT INTO {t} SELECT * FROM {t} WHERE id = 21": (21, DIFFERS, "(how often)"),
    "UPDATE {t} SET id = 3000 WHERE id = 22": (3000, "only in the mirror", "t"),
}


KEYED: Final = (
    "CREATE TABLE hot (id int PRIMARY KEY, n int, big text)",
    "ALTER TABLE hot ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO hot SELECT g, 0, repeat('b', 3000) FROM generate_series(1, 400) g",
    "CREATE TABLE coded (id int PRIMARY KEY, code int NOT NULL UNIQUE, n int)",
    "ALTER TABLE coded REPLICA IDENTITY FULL",
    "INSERT INTO coded SELECT g, g, 0 FROM generate_series(1, 400) g",
)
"""One of the tables has renamed fields, the other one a key that the configuration chooses."""
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fields": {"tables": {"public.hot": {"rename": {"id": "number", "n": "times"}}}},
    "key": {"columns": {"public.coded": ["code"]}},
}
FORMATS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "flat": {"format": {"change_header": True}, "event_flattening": {"enabled": True}},
    "avro": {"format": {"change_header": True, "value": "avro", "key": "avro"}},
}


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(f"v{abs(hash(request.node.nodeid)) % 10**8}", *KINDS) as source:
        yield source


FOLDED_S = 600.0
"""Time for a round of folds on a busy machine."""


def verify(
    spark: SparkSession,
    source: Source,
    mirror: Mapping[str, Any],
    target: Target,
    *tables: str,
    timeout_s: float = 120,
    looks_again: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Compare tables.

    Args:
        mirror: the mirror's configuration.
        timeout_s: how long to wait for the mirror.
        looks_again: called before rows that changed meanwhile are compared at another snapshot.
    """
    config = parse_config(yaml.safe_dump(source.daemon.config), {})
    settings = settings_of(parse_mirror(yaml.safe_dump(dict(mirror)), {}))
    connection, _ = client.split(*access(config.kafka))
    forms = Descriptions(
        spark, settings.kafka, TopicStarts(connection), settings.schemas, mirrored=True, by_header=True
    )
    log = target.own_name("log")
    mirrored = FoldedTables(spark, target, base_of(target.format), log, settings.kafka, forms)

    def say(notice: str) -> None:
        if notice.startswith("Looks again"):
            looks_again()

    return MirrorTarget(
        spark,
        source_of(config, settings),
        mirrored,
        settings,
        TopicDelivery(config, connection, 120, say),
        lambda shared, table: Forms(config, shared).form(table),
        timeout_s=timeout_s,
        rate_bytes_s=50e6,
        notice=say,
    ).verify(config.name, tables)


def run_command(
    source: Source, mirror: MirrorProcess, pattern: str = "*.hot"
) -> subprocess.CompletedProcess[str]:
    """`cdcd verify` as the process that it is, of the tables that are written to."""
    files = []
    for name, config in (("cdcd.yaml", source.daemon.config), ("lake.yaml", mirror.config)):
        file = source.folder / name
        file.write_text(yaml.safe_dump(config))
        files.append(str(file))
    target = ["--target", "mirror", "--mirror", files[1], "--table", pattern, "--format", "json"]
    return subprocess.run(
        [sys.executable, "-m", "cdcd.cli", "verify", "--config", files[0], *target],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(),
        timeout=600,
        check=False,
    )


def of(report: VerifyReport, name: str) -> TableReport:
    return next(table for table in report.tables if table.name == name)


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_every_type_is_equal_and_every_planted_fault_is_named(
    source: Source, spark: SparkSession, table_format: str
) -> None:
    # GIVEN a mirror of tables with every type
    mirror = source.mirror(table_format, tables={"exclude": ["public.keyless"]})
    source.deliver()
    assert mirror.once() == 0, mirror.errors()[-3000:]
    target = target_for(spark, mirror, f"v_{source.name}")
    # WHEN they are compared, THEN all is equal but what cannot be compared, which is told
    report = verify(spark, source, mirror.config, target, "public.keyless", "public.kinds", "public.empty")
    kinds = of(report, "public.kinds")
    assert (kinds.verdict, kinds.outcome.source_rows, kinds.outcome.topic_rows) == (EQUAL, 204, 204), kinds
    assert of(report, "public.empty").verdict == EQUAL
    assert of(report, "public.keyless").verdict == PARTIAL
    assert (report.target, report.exit_code) == ("mirror", 12)
    # WHEN somebody writes into the lake behind the mirror's back
    name = next(each for each in target.list_tables(spark) if "kinds" in each)
    for statement in FAULTS:
        spark.sql(statement.format(t=name))
    # THEN each fault is found and named, and nothing else is
    report = verify(spark, source, mirror.config, target, "public.kinds")
    found = {
        int(json.loads(each.key)["id"]): (each.kind, [column.column for column in each.columns])
        for each in of(report, "public.kinds").outcome.differences
    }
    for id_, kind, column in FAULTS.values():
        assert found[id_][0] == kind, (id_, found)
        assert column in found[id_][1], (id_, found)
    assert found.pop(22)[0] == ONLY_SOURCE
    assert found.keys() == {id_ for id_, _, _ in FAULTS.values()}
    assert report.exit_code == 10
    values = {
        each.key: {column.column: (column.source, column.topics) for column in each.columns}
        for each in of(report, "public.kinds").outcome.differences
    }
    assert values['{"id":"10"}'] == {"t": ("text 10", "text 1O")}
    assert values['{"id":"21"}'] == {"(how often)": ("1", "2")}


def write(connection: "psycopg.Connection[tuple[Any, ...]]", dice: random.Random) -> None:
    """A row of `hot` is changed, deleted, inserted or gets another key."""
    statement = dice.choice(
        (
            "UPDATE hot SET n = n + 1 WHERE id = %(id)s",
            "DELETE FROM hot WHERE id = %(id)s",
            "INSERT INTO hot VALUES (%(id)s, 1, repeat('n', 3000)) ON CONFLICT (id) DO UPDATE SET n = 7",
            "UPDATE hot SET id = id + 1000 WHERE id = %(id)s AND NOT EXISTS (SELECT FROM hot WHERE id = %(id)s + 1000)",
        )
    )
    connection.execute(statement.encode(), {"id": dice.randrange(1, 400)})


@pytest.mark.timeout(1800)
def test_writers_that_go_on_make_no_difference(source: Source, spark: SparkSession) -> None:
    # GIVEN a mirror that runs, and somebody who changes all rows of a table all the time
    mirror = source.mirror("iceberg")
    mirror.start()
    target = target_for(spark, mirror, f"w_{source.name}")
    with Writing(source, SEED, write) as writing:
        # WHEN the table is compared meanwhile
        reports = [
            verify(spark, source, mirror.config, target, "public.hot", timeout_s=FOLDED_S) for _ in range(2)
        ]
        assert writing.rounds > 10
    # THEN no difference is told; rows that changed each time are counted as that
    for report in reports:
        hot = of(report, "public.hot")
        assert hot.outcome.differing == 0, hot
        assert hot.verdict in {EQUAL, PARTIAL}
        assert hot.limits == []
        assert hot.notes
    # AND when nobody writes any more, every row is compared
    done = run_command(source, mirror)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    (hot,) = said["tables"]
    assert (said["target"], hot["table"], hot["verdict"]) == ("mirror", "public.hot", EQUAL)
    assert hot["rows"] == hot["target_rows"] > 0
    assert mirror.stop() == 0


def write_some(connection: "psycopg.Connection[tuple[Any, ...]]", dice: random.Random) -> None:
    """One of a hundred rows of `hot` or of `coded` is changed, deleted, inserted or gets another key."""
    statement = dice.choice(
        (
            "UPDATE hot SET n = n + 1 WHERE id = %(id)s",
            "DELETE FROM hot WHERE id = %(id)s",
            "INSERT INTO hot VALUES (%(id)s, 1, repeat('n', 3000)) ON CONFLICT (id) DO UPDATE SET n = 7",
            "UPDATE hot SET id = -id WHERE id = %(id)s",
            "UPDATE coded SET n = n + 1 WHERE code = %(id)s",
            "DELETE FROM coded WHERE code = %(id)s",
            "INSERT INTO coded VALUES (%(id)s, %(id)s, 1) ON CONFLICT DO NOTHING",
            "UPDATE coded SET code = 1000 + id WHERE code = %(id)s",
        )
    )
    try:
        connection.execute(statement.encode(), {"id": dice.randrange(1, 101)})
    except psycopg.errors.UniqueViolation:
        """A row has the key already."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "table_format"), [("flat", "iceberg"), ("avro", "delta")])
def test_mirrors_of_other_formats_are_compared_while_rows_change(
    stage: Stage, spark: SparkSession, name: str, table_format: str
) -> None:
    with SchemaRegistry() as registry, ExitStack() as stack:
        sections: dict[str, Any] = {"registry": {"url": registry.url}, **RULES, **FORMATS[name]}
        source = stack.enter_context(stage.source(f"vf_{name}", *KEYED, **sections))
        # GIVEN a mirror of flattened rows or of Avro, that runs while rows change
        mirror = source.mirror(table_format, change_log="fold")
        mirror.start()
        target = target_for(spark, mirror, f"w_{source.name}")
        with Writing(source, SEED, write_some) as writing:
            report = verify(
                spark,
                source,
                mirror.config,
                target,
                "public.coded",
                "public.hot",
                timeout_s=FOLDED_S,
                looks_again=writing.stop,
            )
        # THEN all rows are equal, also those that changed while the others were compared
        assert writing.rounds > 10
        for table in report.tables:
            assert (table.verdict, table.limits) == (EQUAL, []), (table, mirror.errors()[-3000:])
            assert table.outcome.source_rows >= 300
            assert "changed meanwhile" in table.notes[0]
        assert report.exit_code == 0
        assert mirror.stop() == 0
        # WHEN somebody writes into the lake behind the mirror's back
        other = spark.newSession()
        target = target_for(other, mirror, f"p_{source.name}")
        names = {
            each: target.name_of(TableSchema("", "public", each, "", ("id",), ()), Kind.MIRROR)
            for each in ("coded", "hot")
        }
        number, code = [
            other.table(names[table]).agg({column: "min"}).collect()[0][0]
            for table, column in (("hot", "number"), ("coded", "code"))
        ]
        other.sql(f"UPDATE {names['hot']} SET times = -1 WHERE number = {number}")
        other.sql(f"DELETE FROM {names['coded']} WHERE code = {code}")
        # THEN each difference is named by the key and the column at the source
        done = run_command(source, mirror, "public.*")
        assert done.returncode == 10, done.stderr[-3000:] + done.stdout
        coded, hot = [each["differences"] for each in json.loads(done.stdout)["tables"]]
        assert [(each["key"], each["kind"]) for each in coded] == [(f'{{"code":"{code}"}}', ONLY_SOURCE)]
        assert [(each["key"], each["kind"]) for each in hot] == [(f'{{"id":"{number}"}}', DIFFERS)]
        assert [(each["column"], each["target"]) for each in hot[0]["columns"]] == [("n", "-1")]
