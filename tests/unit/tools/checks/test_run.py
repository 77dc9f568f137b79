"""How the answers of the sides become a report."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cdcd
from cdcd.config.loading import Config, parse_config
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.errors import EXIT_CODES, CdcdError, ConfigError, SinkError, SourceError, TransientError
from cdcd.daemon.start_requests import CARRIED_OUT
from cdcd.telemetry import check_codes as codes
from cdcd.telemetry.findings import Finding
from cdcd.tools.checks import rehearsal
from cdcd.tools.checks.postgres_side import ask_postgres
from cdcd.tools.checks.run import Ask, Side, asked, kafka_wanted

CONFIG = parse_config("name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n", {})
ROOMS = [Path(cdcd.__file__).parent / room for room in ("tools", "daemon", "cli")]
"""Where checks are."""


def fails(error: CdcdError) -> Ask[Any]:
    async def ask(_config: Config) -> tuple[Sequence[Finding], Any]:
        raise error

    return ask


def side(name: str, error: CdcdError) -> Side[Any]:
    return asyncio.run(asked("It", name, CONFIG, fails(error)))


@pytest.mark.parametrize(
    ("name", "error", "code", "exit_code"),
    [
        ("postgres", SourceError("wrong password", hint="mend it"), "postgres.refused", 3),
        ("postgres", TransientError("away", hint="start it"), "postgres.unreachable", 3),
        ("postgres", ConfigError("sslmode", hint="correct it"), "postgres.setting", 2),
        ("kafka", SinkError("wrong password", hint="mend it"), "kafka.refused", 4),
        ("kafka", TransientError("away", hint="start it"), "kafka.unreachable", 4),
        ("kafka", ConfigError("no such property", hint="correct it"), "kafka.property", 2),
    ],
)
def test_a_side_that_cannot_be_asked_is_a_finding_and_gives_its_own_code(
    name: str, error: CdcdError, code: str, exit_code: int
):
    found = side(name, error)
    assert (found.facts, found.exit_code) == (None, exit_code)
    assert found.findings == [Finding("error", code, "It", error.message, error.hint)]


def test_a_bug_is_not_made_to_look_like_a_finding():
    async def ask(_config: Config) -> tuple[Sequence[Finding], Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(asked("It", "kafka", CONFIG, ask))


def test_the_rehearsal_answers_every_request_of_a_start():
    assert list(rehearsal._ANSWERED) == list(CARRIED_OUT)


def test_every_code_is_used_and_says_which_exit_it_foresees():
    sources = "".join(path.read_text() for room in ROOMS for path in room.rglob("*.py"))
    used = set(re.findall(r'"([a-z_]+\.[a-z_]+)"', sources))
    # Those of a side that cannot be asked are put together.
    used |= {
        f"{name}.{what}" for name in ("postgres", "kafka", "registry") for what in ("refused", "unreachable")
    }
    assert set(codes.CODES) - used == set()
    assert {code for one in codes.CODES.values() for code in one.exits} <= set(EXIT_CODES)
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in codes.CODES)


def test_a_code_that_is_not_in_the_table_cannot_be_found():
    with pytest.raises(AssertionError, match=r"made\.up"):
        Finding("ok", "made.up", "x", "y")


def config(text: str) -> Config:
    return parse_config(f"name: shop\npostgres: {{dsn: host=db, {text}\n", {})


def test_postgres_is_asked_with_the_settings_of_a_run(monkeypatch):
    given = []

    async def read_facts(dsn, wanted):
        given.append((dsn, wanted))
        raise SourceError("enough")

    monkeypatch.setattr("cdcd.tools.checks.postgres_side.read_facts", read_facts)
    text = """password: s3cret, tables: [a.*], protocol: 2, streaming: off, two_phase: true}
kafka: {bootstrap_servers: 'b:1'}"""
    with pytest.raises(SourceError):
        asyncio.run(ask_postgres(config(text)))
    ((dsn, wanted),) = given
    assert "s3cret" not in repr(dsn)
    assert (wanted.slot, wanted.publication, wanted.tables) == ("cdcd_shop", "cdcd_shop", ("a.*",))
    assert (wanted.protocol, wanted.streaming, wanted.two_phase) == (2, "off", True)
    assert wanted.topics == TopicNames(
        "shop",
        message="shop.message",
        schemas="shop.schemas",
        checkpoint="shop.checkpoint",
        claims="cdcd.claims",
    )


def test_kafka_is_asked_with_the_settings_of_a_run():
    text = """}
kafka:
  bootstrap_servers: b:1
  delivery: at_least_once
  oversized: dead_letter
  transaction: {timeout_s: 7}
  properties: {sasl.password: s3cret, message.max.bytes: 5000000}
topics: {create: {partitions: 3, replication_factor: 2, config: {retention.ms: 5}}}"""
    wanted = kafka_wanted(config(text))
    assert wanted.topics == ["shop.checkpoint", "shop.schemas", "shop.message", "shop.dead_letter"]
    assert (wanted.exactly_once, wanted.transaction_timeout_s, wanted.message_max_bytes) == (
        False,
        7,
        5_000_000,
    )
    assert (wanted.spec.partitions, wanted.spec.replication_factor) == (3, 2)
    assert wanted.spec.config == {"retention.ms": "5"}
