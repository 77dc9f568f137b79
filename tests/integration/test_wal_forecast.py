"""How long a slot is safe, as a real server with max_slot_wal_keep_size says it."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.config.loading import parse_config
from cdcd.core.facts import Fact
from cdcd.core.facts.operation import WalShort
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.telemetry.metrics import DEFINITIONS
from cdcd.telemetry.state import Telemetry
from deploy.local import PostgresServer

MB = 1 << 20


def sample(telemetry: Telemetry, name: str) -> Any:
    (definition,) = [each for each in DEFINITIONS if each.name == name]
    ((_, value),) = definition.read(telemetry, 0.0)
    return value


def write(server: PostgresServer, megabytes: int) -> None:
    """Write WAL that no slot may forget."""
    for _ in range(megabytes):
        server.execute(f"SELECT pg_logical_emit_message(false, 'load', repeat('x', {MB}))")


@pytest.mark.parametrize("limit", [None, 128])
def test_the_slot_is_told_to_be_short_before_the_server_gives_it_up(
    limit: int | None, private_postgres: Callable[..., PostgresServer], monkeypatch: pytest.MonkeyPatch
):
    # GIVEN a slot that nobody reads
    settings = {"wal_level": "logical", "min_wal_size": "512MB", "max_wal_size": "4GB"}
    if limit is not None:
        settings["max_slot_wal_keep_size"] = f"{limit}MB"
    server = private_postgres(settings=settings)
    server.execute("CREATE PUBLICATION p")
    server.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    config = parse_config(
        f"name: shop\npostgres: {{dsn: '{server.dsn()}', slot: s, publication: p}}\n"
        "kafka: {bootstrap_servers: 'none:9092'}\n",
        {},
    )
    telemetry = Telemetry()
    facts: list[Fact] = []
    side = PostgresSide(config, telemetry, facts.append)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("cdcd.daemon.postgres_side.time", SimpleNamespace(monotonic=lambda: clock.now))

    def look(now: float) -> None:
        async def survey() -> None:
            sql = await connect(parse_dsn(server.dsn()), application_name="look")
            try:
                await side.survey(sql)
            finally:
                await sql.close()

        clock.now = now
        asyncio.run(survey())

    # WHEN it holds a little, and later most of what it may hold
    look(0.0)
    write(server, 20)
    look(40.0)
    early = sample(telemetry, "cdcd_wal_seconds_left")
    assert facts == []
    write(server, 80)
    look(200.0)

    # THEN that is told with the time that is left, if there is a limit
    if limit is None:
        assert (early, sample(telemetry, "cdcd_wal_seconds_left")) == (None, None)
        assert sample(telemetry, "cdcd_wal_safe_bytes") is None
        assert facts == []
        return
    safe = sample(telemetry, "cdcd_wal_safe_bytes")
    assert safe < 60 * MB
    assert early == pytest.approx(40 * (limit - 20) / 20, rel=0.2)
    left_s = sample(telemetry, "cdcd_wal_seconds_left")
    assert left_s == pytest.approx(200 * safe / (100 * MB), rel=0.2)
    (told,) = facts
    assert isinstance(told, WalShort)
    assert (told.slot, told.seconds_left, told.safe_bytes) == ("s", round(left_s), safe)
