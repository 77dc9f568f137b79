"""What a collector of OpenTelemetry gets by the SDK's own exporters, and that one which is away delays nothing."""

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.config.sections.process import LogConfig, OtlpConfig
from cdcd.core.engine.context import Traced
from cdcd.core.errors import ConfigError
from cdcd.core.facts import Fact
from cdcd.core.facts.operation import OtlpFailed
from cdcd.core.facts.snapshot import SnapshotSignalled, SnapshotSignalRefused
from cdcd.telemetry import otlp as module
from cdcd.telemetry.logs import configure_logging
from cdcd.telemetry.otlp import Otlp, require_library
from cdcd.telemetry.state import Telemetry
from tests.dripping import dripping
from tests.otlp_receiver import OtlpReceiver, attributes

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is in requirements-dev.lock")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def of_trace(flags: str = "01", commit_us: int = 1_000_000) -> Traced:
    return Traced(f"00-{TRACE}-{PARENT}-{flags}", "vendor=1", 77, 0x1_0000_0010, commit_us)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as found:
        yield found


def begun(endpoint: str, telemetry: Telemetry, facts: list[Fact], **config: Any) -> Otlp:
    found = Otlp(OtlpConfig.model_validate({"endpoint": endpoint, "interval_s": 1.0, **config}), "shop")
    found.begin(telemetry, facts.append)
    return found


def test_a_span_goes_from_commit_to_acknowledgement_within_the_trace_of_the_application(
    receiver: OtlpReceiver,
):
    otlp = begun(receiver.url, Telemetry("shop"), [], metrics=False, logs=False)
    otlp.delivered([of_trace()], 2_000_000_000, 3_000_000_000)
    otlp.close()
    inner, outer = sorted(receiver.spans(), key=lambda span: span.name == "deliver shop")
    assert (outer.trace_id.hex(), outer.parent_span_id.hex()) == (TRACE, PARENT)
    assert (outer.start_time_unix_nano, outer.end_time_unix_nano) == (1_000_000_000, 3_000_000_000)
    assert outer.trace_state == "vendor=1"
    assert attributes(outer)["cdcd.commit_lsn"] == "1/10"
    assert (inner.name, inner.trace_id.hex(), inner.parent_span_id) == (
        "kafka transaction",
        TRACE,
        outer.span_id,
    )
    assert (inner.start_time_unix_nano, inner.end_time_unix_nano) == (2_000_000_000, 3_000_000_000)
    (resource,) = receiver.resources()
    assert (resource["service.name"], resource["cdcd.pipeline"]) == ("cdcd", "shop")


def test_a_trace_that_the_application_did_not_sample_has_no_span(receiver: OtlpReceiver):
    otlp = begun(receiver.url, Telemetry("shop"), [], metrics=False, logs=False)
    otlp.delivered([of_trace("00")], 2_000_000_000, 3_000_000_000)
    otlp.close()
    assert receiver.spans() == []


def test_a_clock_of_postgresql_that_is_ahead_makes_no_span_that_ends_before_it_begins(receiver: OtlpReceiver):
    otlp = begun(receiver.url, Telemetry("shop"), [], metrics=False, logs=False)
    otlp.delivered([of_trace(commit_us=9_000_000)], 2_000_000_000, 3_000_000_000)
    otlp.close()
    assert all(span.start_time_unix_nano == 2_000_000_000 for span in receiver.spans())
    assert len(receiver.spans()) == 2


def test_the_metrics_are_those_of_the_page(receiver: OtlpReceiver):
    telemetry = Telemetry("shop")
    telemetry.events = {("public.t", "c"): 5}
    telemetry.queue_bytes = 7
    telemetry.observe_commit(0.003)
    telemetry.observe_commit(100.0)
    otlp = begun(receiver.url, telemetry, [], traces=False, logs=False)
    otlp.close()
    metrics = receiver.metrics()
    events = metrics["cdcd_events_total"].sum
    assert events.is_monotonic
    (point,) = events.data_points
    assert (point.as_double, {each.key: each.value.string_value for each in point.attributes}) == (
        5.0,
        {"table": "public.t", "op": "c"},
    )
    (gauge,) = metrics["cdcd_queue_bytes"].gauge.data_points
    assert gauge.as_double == 7.0
    (commits,) = metrics["cdcd_kafka_commit_seconds"].histogram.data_points
    assert (commits.count, sum(commits.bucket_counts), commits.bucket_counts[-1]) == (2, 2, 1)
    assert len(commits.bucket_counts) == len(commits.explicit_bounds) + 1
    assert commits.sum == pytest.approx(100.003)
    assert "process_resident_memory_bytes" in metrics


def test_the_lines_of_the_log_come_with_their_fields_and_masked(receiver: OtlpReceiver):
    observe = configure_logging(LogConfig.model_validate({"format": "console"}))
    otlp = begun(receiver.url, Telemetry("shop"), [], traces=False, metrics=False)
    assert otlp.handler is not None
    try:
        observe(OtlpFailed(signal="logs", failures=3, reason="x", hint="postgres://u:s3cret@host/db"))
        logging.getLogger("opentelemetry.sdk").warning("its own failure")
        logging.getLogger("confluent").warning("a library")
    finally:
        logging.getLogger().removeHandler(otlp.handler)
        otlp.close()
    ours, theirs = receiver.lines()
    assert (ours.body.string_value, ours.severity_text, ours.severity_number) == (
        "otlp.failed",
        "warning",
        13,
    )
    assert attributes(ours)["failures"] == 3
    assert "s3cret" not in str(ours)
    assert (theirs.body.string_value, attributes(theirs)["message"]) == ("dependency.log", "a library")


def test_half_a_character_of_a_stranger_costs_no_line_of_the_log(receiver: OtlpReceiver):
    """Whoever may connect to the database chooses words that the log repeats. No message in UTF-8 can hold them."""
    observe = configure_logging(LogConfig.model_validate({"format": "json"}))
    otlp = begun(receiver.url, Telemetry("shop"), [], traces=False, metrics=False)
    assert otlp.handler is not None
    try:
        observe(SnapshotSignalRefused(reason="it has unknown keys: \ud800\u202ea", left_out=0))
        observe(SnapshotSignalled(action="start", tables=["\udfff"]))
        observe(OtlpFailed(signal="logs", failures=3, reason="x", hint="y"))
    finally:
        logging.getLogger().removeHandler(otlp.handler)
        otlp.close()
    refused, signalled, last = receiver.lines()
    assert attributes(refused)["reason"] == r"it has unknown keys: \ud800\u202ea"
    assert attributes(signalled)["tables"] == r'["\udfff"]'
    assert last.body.string_value == "otlp.failed"


@pytest.mark.parametrize("away", ["refused", "silent"])
def test_a_collector_that_is_away_delays_nothing_and_is_reported(receiver: OtlpReceiver, away: str):
    facts: list[Fact] = []
    telemetry = Telemetry("shop")
    receiver.status = 400
    endpoint = receiver.url if away == "refused" else "http://127.0.0.1:9"
    otlp = begun(endpoint, telemetry, facts, logs=False)
    began = time.monotonic()
    for _ in range(5000):
        otlp.delivered([of_trace()], 2_000_000_000, 3_000_000_000)
    otlp.close()
    assert time.monotonic() - began < 5000 * 0.005 + module.CLOSE_S + module.ANSWER_S + 10
    # A thread that goes on would retry, and draw its pauses from the random numbers of the process.
    for thread in threading.enumerate():
        if thread.name.startswith(("Otel", "otlp")):
            thread.join(20)
            assert not thread.is_alive(), thread.name
    told = [fact for fact in facts if isinstance(fact, OtlpFailed)]
    assert {fact.signal for fact in told} <= {"traces", "metrics"}
    assert len(told) == len({fact.signal for fact in told})
    if away == "refused":
        assert telemetry.otlp_failures["traces"] >= 1
        assert "otlp.endpoint" in told[0].hint


def test_a_collector_that_never_ends_its_answer_counts_as_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "EXPORT_S", 0.3)
    facts: list[Fact] = []
    telemetry = Telemetry("shop")
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 65000\r\n\r\n") as endpoint:
        otlp = begun(endpoint, telemetry, facts, traces=False, logs=False)
        deadline = time.monotonic() + 30
        while telemetry.otlp_failures.get("metrics", 0) < 2 and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        otlp.close()
        # The thread of metrics went on after the first failure, and tried once more at the end.
        assert telemetry.otlp_failures["metrics"] >= 3
    assert [fact.reason for fact in facts if isinstance(fact, OtlpFailed)] == ["no answer within 0.3 s"]


def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ConfigError) as raised:
        Otlp(OtlpConfig.model_validate({"endpoint": "http://127.0.0.1:1"}), "shop")
    assert "cdcd[otel]" in raised.value.hint
    with pytest.raises(ConfigError):
        require_library()


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://c", "http://u:p@c", "http://c?token=x"])
def test_an_endpoint_is_an_address_without_secrets(endpoint: str):
    with pytest.raises(ValueError, match="endpoint must"):
        OtlpConfig.model_validate({"endpoint": endpoint})
