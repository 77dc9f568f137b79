"""How the configuration becomes what the decisions and the clients are given."""

import pytest

from cdcd.checks.settings import start_settings
from tests.unit.daemon.test_wiring import configured


def test_a_start_decides_by_what_is_configured():
    more = "snapshot: {mode: when_needed, method: incremental, exclude: [public.log]}"
    settings = start_settings(configured(more=more))
    assert (settings.slot, settings.publication) == ("cdcd_shop", "cdcd_shop")
    assert (settings.two_phase, settings.failover) == (True, True)
    assert (settings.snapshot_mode, settings.snapshot_method) == ("when_needed", "incremental")
    assert settings.exclude == ("public.log",)
    assert settings.topics.table("public", "t") == "shop.public.t"


@pytest.mark.parametrize(("delivery", "counts"), [("at_least_once", True), ("exactly_once", False)])
def test_writers_are_counted_where_kafka_fences_none(delivery: str, counts: bool):
    assert start_settings(configured(f", delivery: {delivery}")).counts_epochs is counts
