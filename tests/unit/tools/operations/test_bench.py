from pathlib import Path

import pytest

from cdcd.config.loading import load_config
from cdcd.core.errors import ConfigError
from cdcd.tools.operations.bench import (
    DELAY,
    Load,
    Measured,
    Names,
    _quantiles,
    configuration,
    lines,
    new_name,
    plan,
)
from deploy.local.cache import REPOSITORY

NAME = "cdcd_bench_0123abcd"
LOAD = Load(200_000, 1000, 200)

FULL = """
name: shop
postgres: {dsn: host=db, slot: mine, publication: ours, tables: ["sales.*"]}
kafka: {bootstrap_servers: 'b:1', transactional_id: one, oversized: dead_letter, dead_letter_topic: dead}
topics: {prefix: eu, checkpoint: eu.position, message: eu.said, schemas: eu.forms, names: {sales.a: eu.public.a}}
tables: {include: ["sales.*"]}
filters: {tables: {"*.*": {keep: "row.id > 7"}}}
heartbeat: {interval_s: 1, action_query: "UPDATE sales.beat SET at = now()"}
http: {host: 0.0.0.0, port: 9464, token: a-token-that-is-long}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cdcd.yaml"
    path.write_text(FULL)
    return path


def test_a_run_never_writes_to_topics_of_other_names():
    file = REPOSITORY / "config" / "own-topics.yaml"
    assert load_config(file, {}).topic_names().has_claims
    assert not configuration(file, Names(NAME), {}).topic_names().has_claims


def test_everything_that_a_run_writes_has_a_name_of_its_own(file: Path):
    config = configuration(file, Names(NAME), {})
    assert (config.postgres.slot, config.postgres.publication, config.kafka.transactional_id) == (NAME,) * 3
    topics = [
        config.topics.checkpoint,
        config.topics.message,
        config.topics.schemas,
        config.kafka.dead_letter_topic,
    ]
    assert all(str(topic).startswith(f"{NAME}.") for topic in topics)
    # Settings for other tables are removed: their filter, their heartbeat, their selection.
    assert config.filters.tables == {}
    assert config.heartbeat.action_query is None
    assert config.tables.selection.test()(f"{NAME}.rows")
    assert (config.http.host, config.http.port) == ("127.0.0.1", 0)
    assert not config.topic_names().has_claims
    # The other settings stay.
    given = load_config(file, {})
    assert config.kafka.oversized == given.kafka.oversized
    assert config.http.token == given.http.token


@pytest.mark.parametrize(
    "example", sorted((REPOSITORY / "config").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_example_can_be_measured(example: Path, tmp_path: Path):
    for secret in ("postgres-password", "kafka-password"):
        (tmp_path / secret).write_text("secret\n")
    assert configuration(example, Names(NAME), {"SECRETS": str(tmp_path)}).name == NAME


@pytest.mark.parametrize("name", ["shop", "cdcd_bench_", "cdcd_bench_0123abcde", "cdcd_bench_0123ABCD"])
def test_only_a_run_can_be_removed(file: Path, name: str):
    with pytest.raises(ConfigError, match="not the name of a run"):
        configuration(file, Names(name), {})


def test_names_are_new_and_a_run_says_what_it_writes(file: Path):
    assert new_name() != new_name()
    shown = "\n".join(plan(configuration(file, Names(NAME), {}), LOAD))
    for said in ("200,000 rows", f"schema {NAME}", f"topics {NAME}.*"):
        assert said in shown


def test_the_result_has_what_a_sizing_needs():
    found = Measured(
        200_000, 4.0, 2.0, 150 << 20, 80_000_000, 120_000_000, (0.01, float("inf")), compiled=False
    )
    rows, cpu, memory, wal, kafka, latency, more = lines(found, LOAD)
    assert rows.endswith(
        "50,000 a second: 200,000 in 4.0 s, 1,000 rows a transaction, 200 B of text in a row"
    )
    assert "10.0 µs a row; a core is enough for 100,000 rows a second (not compiled" in cpu
    assert (memory.split(maxsplit=1)[1], wal.split()[1], kafka.split()[1]) == ("150 MB", "400", "600")
    assert "at most 10 ms (median), more than 2 h (99 %)" in latency
    assert "docs/sizing.md" in more


def test_the_latency_is_measured_between_two_readings():
    def counts(*values: float) -> dict[str, float]:
        return {
            f'{DELAY}_bucket{{le="{end}"}}': value
            for end, value in zip(("0.005", "0.01", "0.1", "+Inf"), values, strict=True)
        }

    assert _quantiles(counts(9, 9, 9, 9), counts(9, 69, 109, 109)) == (0.01, 0.1)
    assert _quantiles(counts(0, 0, 0, 0), counts(0, 0, 1, 100)) == (float("inf"), float("inf"))
