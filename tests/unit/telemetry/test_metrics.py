import re
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cdcd import __version__
from cdcd.telemetry import metrics
from cdcd.telemetry.metrics import DEFINITIONS, registry_for
from cdcd.telemetry.state import AsideStatus, Telemetry


def scrape(telemetry: Telemetry) -> dict[tuple[str, ...], float]:
    text = generate_latest(registry_for(telemetry)).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_of_metrics_is_what_the_table_says():
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text().startswith(metrics.markdown()), "stale: run python -m tests.documents"


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_a_metric_is_ours_with_its_unit_last_and_a_sentence(definition):
    assert definition.name.startswith("cdcd_")
    assert definition.help.endswith(".")
    assert (definition.kind == "counter") == definition.name.endswith("_total")
    unit = re.search(r"lag|age|retained|spool|queue|_end|received|sent|acked|flushed", definition.name)
    if unit:
        assert definition.name.endswith(("_bytes", "_seconds", "_lsn"))


def test_each_metric_has_a_name_of_its_own():
    assert len({definition.name for definition in DEFINITIONS}) == len(DEFINITIONS)


def test_every_definition_is_in_a_scrape_even_when_nothing_is_known():
    text = generate_latest(registry_for(Telemetry())).decode()
    for definition in DEFINITIONS:
        assert f"# HELP {definition.name} " in text


def test_what_is_not_known_has_no_sample():
    found = scrape(Telemetry())
    for name in ("cdcd_lag_bytes", "cdcd_lag_seconds", "cdcd_retained_wal_bytes", "cdcd_server_wal_end_lsn"):
        assert (name,) not in found
    assert found["cdcd_transactions_total", "streamed"] == 0
    assert found["cdcd_reconnects_total", "kafka"] == 0


def test_the_telemetry_is_read_at_the_scrape(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1000.0)
    telemetry = Telemetry()
    registry_for(telemetry)
    telemetry.role = "active"
    telemetry.streaming = True
    telemetry.received_lsn, telemetry.sent_lsn = 400, 300
    telemetry.acked_lsn, telemetry.flushed_lsn = 250, 200
    telemetry.server_wal_end = 450
    telemetry.last_commit_time = 990.0
    telemetry.prepared_oldest_time = 900.0
    telemetry.retained_wal_bytes = 5000
    telemetry.events = {("public.orders", "c"): 3, ('q"uo\\te\n', "u"): 1}
    telemetry.transactions["plain"] = 7
    telemetry.reconnects["postgres"] = 2
    telemetry.queue_bytes, telemetry.queue_bytes_max = 10, 20
    found = scrape(telemetry)
    assert found["cdcd_received_lsn",] == 400
    assert found["cdcd_sent_lsn",] == 300
    assert found["cdcd_acked_lsn",] == 250
    assert found["cdcd_flushed_lsn",] == 200
    assert found["cdcd_server_wal_end_lsn",] == 450
    assert found["cdcd_lag_bytes",] == 250
    assert found["cdcd_lag_seconds",] == 10
    assert found["cdcd_prepared_oldest_age_seconds",] == 100
    assert found["cdcd_retained_wal_bytes",] == 5000
    assert found["cdcd_events_total", "c", "public.orders"] == 3
    assert found["cdcd_events_total", "u", 'q"uo\\te\n'] == 1
    assert found["cdcd_transactions_total", "plain"] == 7
    assert found["cdcd_reconnects_total", "postgres"] == 2
    assert found["cdcd_queue_bytes",] == 10
    assert found["cdcd_queue_limit_bytes",] == 20
    assert found["cdcd_streaming",] == 1
    assert found["cdcd_role", "active"] == 1
    assert found["cdcd_role", "standby"] == 0


def test_tables_that_are_set_aside_are_counted_by_the_kind_of_their_fault():
    telemetry = Telemetry("shop", "cdcd_shop")
    telemetry.aside = (
        AsideStatus("public.a", "topic", 1),
        AsideStatus("public.b", "size", 1),
        AsideStatus("public.c", "topic", 2),
    )
    samples = scrape(telemetry)
    assert samples["cdcd_tables_set_aside", "topic"] == 2
    assert samples["cdcd_tables_set_aside", "size"] == 1


def test_the_latency_of_commits_is_a_cumulative_histogram():
    telemetry = Telemetry()
    for seconds in (0.0005, 0.003, 0.004, 100):
        telemetry.observe_commit(seconds)
    found = scrape(telemetry)
    assert found["cdcd_kafka_commit_seconds_bucket", "0.001"] == 1
    assert found["cdcd_kafka_commit_seconds_bucket", "0.0025"] == 1
    assert found["cdcd_kafka_commit_seconds_bucket", "0.005"] == 3
    assert found["cdcd_kafka_commit_seconds_bucket", "30.0"] == 3
    assert found["cdcd_kafka_commit_seconds_bucket", "+Inf"] == 4
    assert found["cdcd_kafka_commit_seconds_count",] == 4
    assert found["cdcd_kafka_commit_seconds_sum",] == pytest.approx(100.0075)
    assert found["cdcd_kafka_transactions_total",] == 4


def test_the_build_and_the_process_are_shown():
    found = scrape(Telemetry())
    assert any(key[0] == "cdcd_build_info" and __version__ in key for key in found)
    assert found["process_resident_memory_bytes",] > 0


def test_the_pipeline_and_its_slot_are_named_so_that_other_metrics_can_be_joined_with_them():
    found = generate_latest(registry_for(Telemetry("shop", "cdcd_shop"))).decode()
    assert 'cdcd_pipeline_info{pipeline="shop",slot="cdcd_shop"} 1.0' in found
