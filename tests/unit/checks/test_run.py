import asyncio
from collections.abc import Sequence

import pytest

from cdcd.checks.finding import Finding, Level
from cdcd.checks.run import Ask, Report, ask_kafka, ask_postgres, gather
from cdcd.config.loading import Config, parse_config
from cdcd.errors import CdcdError, ConfigError, SinkUnavailableError, SourceError, TransientError
from cdcd.records.routing import TopicNames

CONFIG = parse_config("name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n", {})


def found(level: Level, subject: str = "wal_level") -> Finding:
    return Finding(level, subject, "replica", "set it to logical")


def answers(*findings: Finding) -> Ask:
    async def ask(_config: Config) -> Sequence[Finding]:
        return findings

    return ask


def fails(error: CdcdError) -> Ask:
    async def ask(_config: Config) -> Sequence[Finding]:
        raise error

    return ask


def gathered(postgres: Ask, kafka: Ask) -> Report:
    return asyncio.run(gather(CONFIG, {"PostgreSQL": postgres, "Kafka": kafka}))


def test_findings_of_both_sides_are_in_one_report_postgresqls_first():
    first, second, third = found("ok", "a"), found("warning", "b"), found("ok", "c")
    assert gathered(answers(first, second), answers(third)) == Report((first, second, third), 0)


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("error", 10)])
def test_only_an_error_gives_10(level, code):
    assert gathered(answers(found("ok")), answers(found(level))).exit_code == code


def test_a_side_that_cannot_be_asked_is_a_finding_and_gives_its_own_code():
    report = gathered(fails(SourceError("wrong password", hint="mend it")), answers(found("error")))
    assert report.exit_code == SourceError.exit_code
    assert [(one.level, one.subject, one.found, one.fix) for one in report.findings] == [
        ("error", "PostgreSQL", "wrong password", "mend it"),
        ("error", "wal_level", "replica", "set it to logical"),
    ]


def test_when_neither_can_be_asked_postgresqls_code_is_given():
    report = gathered(fails(ConfigError("a")), fails(SinkUnavailableError("b")))
    assert report.exit_code == ConfigError.exit_code
    assert [one.subject for one in report.findings] == ["PostgreSQL", "Kafka"]


def test_a_bug_is_not_made_to_look_like_a_finding():
    async def ask(_config: Config) -> Sequence[Finding]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gathered(ask, answers())


def config(text: str) -> Config:
    return parse_config(f"name: shop\npostgres: {{dsn: host=db, {text}\n", {})


def test_postgres_is_asked_with_the_settings_of_a_run(monkeypatch):
    asked = []

    async def examine(dsn, wanted):
        asked.append((dsn, wanted))
        return [found("ok")]

    monkeypatch.setattr("cdcd.checks.postgres.examine", examine)
    text = """password: s3cret, tables: [a.*], protocol: 2, streaming: off, two_phase: true}
kafka: {bootstrap_servers: 'b:1'}"""
    assert asyncio.run(ask_postgres(config(text))) == [found("ok")]
    ((dsn, wanted),) = asked
    assert "s3cret" not in repr(dsn)
    assert (wanted.slot, wanted.publication, wanted.tables) == ("cdcd_shop", "cdcd_shop", ("a.*",))
    assert (wanted.protocol, wanted.streaming, wanted.two_phase) == (2, "off", True)
    assert wanted.topics == TopicNames(
        "shop", message="shop.message", schemas="shop.schemas", checkpoint="shop.checkpoint"
    )


def test_kafka_is_asked_with_the_settings_of_a_run(monkeypatch):
    asked = []

    def examine(properties, wanted):
        asked.append((properties, wanted))
        return [found("ok")]

    monkeypatch.setattr("cdcd.checks.kafka.examine", examine)
    text = """}
kafka:
  bootstrap_servers: b:1
  delivery: at_least_once
  oversized: dead_letter
  transaction: {timeout_s: 7}
  properties: {sasl.password: s3cret, message.max.bytes: 5000000}
topics: {create: {partitions: 3, replication_factor: 2, config: {retention.ms: 5}}}"""
    assert asyncio.run(ask_kafka(config(text))) == [found("ok")]
    ((properties, wanted),) = asked
    assert properties["bootstrap.servers"] == "b:1"
    assert properties["sasl.password"] == "s3cret"
    assert "message.max.bytes" not in properties
    assert wanted.topics == ["shop.checkpoint", "shop.schemas", "shop.message", "shop.dead_letter"]
    assert (wanted.exactly_once, wanted.transaction_timeout_s, wanted.message_max_bytes) == (
        False,
        7,
        5_000_000,
    )
    assert (wanted.spec.partitions, wanted.spec.replication_factor) == (3, 2)
    assert wanted.spec.config == {"retention.ms": "5"}


def test_a_broker_that_does_not_answer_gives_kafkas_code_and_not_postgresqls(monkeypatch):
    def examine(properties, wanted):
        raise TransientError("no answer", hint="is it up?")

    monkeypatch.setattr("cdcd.checks.kafka.examine", examine)
    report = gathered(answers(), ask_kafka)
    assert report == Report(
        (Finding("error", "Kafka", "no answer", "is it up?"),), SinkUnavailableError.exit_code
    )
