"""The spans, metrics and lines of a daemon, as a collector of OpenTelemetry gets them."""

from collections.abc import Callable
from typing import Any

import pytest

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.otlp_receiver import OtlpReceiver, attributes

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is in requirements-dev.lock")

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)


def traced(number: int) -> str:
    """A statement that names the trace with this number."""
    parent = f"00-{number:032x}-{number:016x}-01"
    return f"SELECT pg_logical_emit_message(true, 'cdcd.context', '{{\"traceparent\": \"{parent}\"}}')"


@pytest.mark.long
def test_transactions_of_every_kind_have_their_span_and_a_collector_that_goes_away_stops_nothing(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with OtlpReceiver() as receiver:
        # GIVEN a pipeline with small, streamed and prepared transactions
        process = daemon(
            configuration(
                unique,
                database.dsn(options="-c logical_decoding_work_mem=64kB"),
                broker.bootstrap_servers,
                postgres={"two_phase": True},
                context={"enabled": True},
                otlp={"endpoint": receiver.url, "interval_s": 1},
            )
        )
        process.await_streaming()
        with database.connect(autocommit=False) as connection:
            connection.execute(f"{traced(1)}; INSERT INTO orders VALUES (1)".encode())
            connection.commit()
            connection.execute(f"{traced(2)}; INSERT INTO orders SELECT generate_series(10, 3000)".encode())
            connection.commit()
            connection.execute(f"{traced(3)}; INSERT INTO orders VALUES (3)".encode())
            connection.execute(f"PREPARE TRANSACTION '{unique}'".encode())
            connection.commit()
            connection.execute(f"{traced(4)}; INSERT INTO orders VALUES (4)".encode())
            connection.rollback()
            connection.execute("INSERT INTO orders VALUES (5)")
            connection.commit()
        database.execute(f"COMMIT PREPARED '{unique}'")
        await_flushed(database.dsn(), f"cdcd_{unique}")

        # THEN each committed one with a trace has its span, and a span for Kafka within it
        receiver.await_true(lambda: len(receiver.spans()) >= 6)
        outer = {span.trace_id.hex(): span for span in receiver.spans() if span.name == f"deliver {unique}"}
        assert set(outer) == {f"{number:032x}" for number in (1, 2, 3)}
        for number in (1, 2, 3):
            span = outer[f"{number:032x}"]
            assert span.parent_span_id.hex() == f"{number:016x}"
            (inner,) = [each for each in receiver.spans() if each.parent_span_id == span.span_id]
            assert inner.name == "kafka transaction"
            assert span.start_time_unix_nano <= inner.start_time_unix_nano <= inner.end_time_unix_nano
        # AND the log and the metrics come too
        receiver.await_true(lambda: "cdcd_events_total" in receiver.metrics())
        receiver.await_true(
            lambda: any(line.body.string_value == "stream.started" for line in receiver.lines())
        )
        assert all(
            "logger" not in attributes(line) for line in receiver.lines() if line.severity_text == "error"
        )

    # WHEN the collector is gone, THEN the stream goes on, and the daemon says so and ends in time
    database.execute(f"{traced(6)}; INSERT INTO orders VALUES (6)")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    process.await_event("otlp.failed", signal="metrics")
    assert process.stop() == 0
