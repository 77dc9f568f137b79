"""The numbers of a mirror, as Prometheus and a probe see them."""

import http.client
import json
import re

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cdcd.config.mirror import MirrorHttpConfig
from cdcd.telemetry import metrics
from cdcd.telemetry.http import HttpServer
from cdcd.telemetry.mirror import DEFINITIONS, MirrorTelemetry, mirror_routes, registry_for


def scrape(numbers: MirrorTelemetry) -> dict[tuple[str, ...], float]:
    text = generate_latest(registry_for(numbers)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("cdcd_")
    }


def test_each_metric_has_a_name_of_its_own_with_its_unit_last_and_a_sentence():
    names = [each.name for each in metrics.DEFINITIONS] + [each.name for each in DEFINITIONS]
    assert len(set(names)) == len(names)
    for definition in DEFINITIONS:
        assert definition.name.startswith("cdcd_mirror_")
        assert definition.help.endswith(".")
        assert (definition.kind == "counter") == definition.name.endswith("_total")
        if re.search("lag|age|seconds|lsn", definition.name):
            assert definition.name.endswith(("_seconds", "_lsn"))


def test_what_is_not_known_has_no_sample():
    found = scrape(MirrorTelemetry())
    assert found == {
        ("cdcd_mirror_batches_total",): 0,
        ("cdcd_mirror_log_batches_total",): 0,
        ("cdcd_mirror_log_records_total",): 0,
        ("cdcd_mirror_log_unreadable_total",): 0,
        ("cdcd_mirror_retries_total",): 0,
        ("cdcd_mirror_up",): 1,
        ("cdcd_mirror_unfit_topics",): 0,
    }


def test_rounds_add_up_by_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 1030.0)
    numbers = MirrorTelemetry()
    numbers.table("public.a", 5, 700)
    numbers.table("public.b", 1, 650)
    numbers.batch(1000.0, 2.5, 640)
    # A lower LSN does not lower the LSN of the table.
    numbers.table("public.a", 2, 690)
    numbers.batch(1010.0, 0.5, None)
    found = scrape(numbers)
    assert found["cdcd_mirror_batches_total",] == 2
    assert found["cdcd_mirror_batch_seconds",] == 0.5
    assert found["cdcd_mirror_batch_age_seconds",] == 20
    assert found["cdcd_mirror_consistent_lsn",] == 640
    assert found["cdcd_mirror_table_changes_total", "public.a"] == 7
    assert found["cdcd_mirror_table_lsn", "public.a"] == 700


def test_the_lag_of_a_table_is_asked_for_at_each_scrape():
    numbers = MirrorTelemetry()
    lags = {"public.a": 3.5}
    numbers.lags = lambda: lags
    assert scrape(numbers)["cdcd_mirror_table_lag_seconds", "public.a"] == 3.5
    lags["public.a"] = 950.0
    assert scrape(numbers)["cdcd_mirror_table_lag_seconds", "public.a"] == 950


def test_batches_of_the_log_add_up():
    numbers = MirrorTelemetry()
    numbers.appended(10, 2, 4.0)
    numbers.appended(5, 0, None)
    found = scrape(numbers)
    assert found["cdcd_mirror_log_batches_total",] == 2
    assert found["cdcd_mirror_log_records_total",] == 15
    assert found["cdcd_mirror_log_unreadable_total",] == 2
    assert ("cdcd_mirror_log_lag_seconds",) not in found


def test_a_stopped_table_or_something_that_is_away_is_not_well_and_is_named():
    numbers = MirrorTelemetry()
    numbers.failed("public.a", "a conflict", stopped=False)
    numbers.reloaded("public.a")
    assert numbers.health().well
    numbers.failed("public.a", "the key changed", stopped=True)
    numbers.retrying("Kafka does not answer.")
    health = numbers.health()
    assert not health.well
    assert health.detail["reasons"] == ["public.a is stopped: the key changed", "Kafka does not answer."]
    found = scrape(numbers)
    assert found["cdcd_mirror_table_stopped", "public.a"] == 1
    assert found["cdcd_mirror_table_failures_total", "public.a"] == 2
    assert found["cdcd_mirror_table_reloads_total", "public.a"] == 1
    assert (found["cdcd_mirror_up",], found["cdcd_mirror_retries_total",]) == (0, 1)
    # A stopped table is still stopped when Kafka is back.
    numbers.goes_on()
    assert numbers.health().detail["reasons"] == ["public.a is stopped: the key changed"]


def test_a_probe_and_a_scrape_are_answered():
    numbers = MirrorTelemetry()
    listen = MirrorHttpConfig.model_validate({"port": 0})
    with HttpServer(listen, mirror_routes(numbers, listen)) as server:

        def get(path: str) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("GET", path)
            response = connection.getresponse()
            try:
                return response.status, response.read()
            finally:
                connection.close()

        assert get("/healthz")[0] == 200
        numbers.failed("public.a", "the key changed", stopped=True)
        status, body = get("/healthz")
        assert (status, json.loads(body)["well"]) == (503, False)
        status, body = get("/metrics")
        assert status == 200
        assert b'cdcd_mirror_table_stopped{table="public.a"} 1.0' in body
        assert get("/readyz")[0] == 404


def test_a_table_that_goes_on_makes_the_mirror_well_again():
    numbers = MirrorTelemetry()
    numbers.failed("public.a", "it has no key", stopped=True)
    assert not numbers.health().well
    numbers.resumed("public.a")
    assert numbers.health().well
    assert scrape(numbers)["cdcd_mirror_table_stopped", "public.a"] == 0
