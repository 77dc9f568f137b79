import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from cdcd.daemon.config import Config, parse_config
from cdcd.daemon.preflight import Ask, Finding, Level, Report, gather
from cdcd.errors import CdcdError, ConfigError, SinkUnavailable, SourceError

CONFIG = parse_config("name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n", {})


@dataclass(frozen=True)
class Found:
    level: Level
    subject: str = "wal_level"
    found: str = "replica"
    fix: str = "set it to logical"


def answers(*findings: Found) -> Ask:
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
    first, second, third = Found("ok", "a"), Found("warning", "b"), Found("ok", "c")
    assert gathered(answers(first, second), answers(third)) == Report((first, second, third), 0)


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("error", 10)])
def test_only_an_error_gives_10(level, code):
    assert gathered(answers(Found("ok")), answers(Found(level))).exit_code == code


def test_a_side_that_cannot_be_asked_is_a_finding_and_gives_its_own_code():
    report = gathered(fails(SourceError("wrong password", hint="mend it")), answers(Found("error")))
    assert report.exit_code == SourceError.exit_code
    assert [(one.level, one.subject, one.found, one.fix) for one in report.findings] == [
        ("error", "PostgreSQL", "wrong password", "mend it"),
        ("error", "wal_level", "replica", "set it to logical"),
    ]


def test_when_neither_can_be_asked_postgresqls_code_is_given():
    report = gathered(fails(ConfigError("a")), fails(SinkUnavailable("b")))
    assert report.exit_code == ConfigError.exit_code
    assert [one.subject for one in report.findings] == ["PostgreSQL", "Kafka"]


def test_a_bug_is_not_made_to_look_like_a_finding():
    async def ask(_config: Config) -> Sequence[Finding]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gathered(ask, answers())
