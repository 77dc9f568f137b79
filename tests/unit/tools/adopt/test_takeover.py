"""What a takeover refuses before it touches anything. tests/integration/test_adopt.py does whole ones."""

from dataclasses import replace

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import PositionError, TransientError
from cdcd.tools.adopt.connect_api import Connector
from cdcd.tools.adopt.takeover import Plan, take_over

# A port of the loopback at which nobody listens.
CONFIG = parse_config(
    "name: shop\npostgres: {dsn: 'postgresql://cdcd@127.0.0.1:1/shop'}\nkafka: {bootstrap_servers: '127.0.0.1:1'}\n",
    {},
)
PLAN = Plan(
    CONFIG,
    Connector("http://127.0.0.1:1/connectors/shop"),
    None,
    drops_slot=False,
    driver_confirms=False,
    accept_gap=False,
)


def test_a_connector_that_drops_its_slot_is_not_stopped() -> None:
    said: list[str] = []
    with pytest.raises(PositionError, match=r"slot\.drop\.on\.stop"):
        take_over(replace(PLAN, drops_slot=True), said.append)
    assert said == []


def test_the_connector_is_not_stopped_while_postgresql_cannot_be_asked() -> None:
    said: list[str] = []
    with pytest.raises(TransientError):
        take_over(PLAN, said.append)
    assert said == []
