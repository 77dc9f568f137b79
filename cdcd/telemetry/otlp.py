"""OpenTelemetry: spans of transactions, and the metrics and log lines that exist anyway, sent by OTLP over HTTP.

The spans continue the trace that an application names in the context of its transaction (docs/context.md): one from
the commit in PostgreSQL to Kafka's acknowledgement, and within it one for the Kafka transaction.

The rule: threads of the exporters send, and nothing waits for them. While the collector is away, the exporters drop
what does not fit into their bounded queues, and `otlp.failed` and `cdcd_otlp_failures_total` say so. The SDK's own
variables add what it needs besides the endpoint: OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and others.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from cdcd import __version__
from cdcd.adapters.credentials.requests import AbandonedError, Limit
from cdcd.config.sections.process import OtlpConfig
from cdcd.core.engine.context import Traced
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import OtlpFailed
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.visible import visible
from cdcd.extras import library
from cdcd.telemetry.logs import also_log_to
from cdcd.telemetry.metrics import registry_for
from cdcd.telemetry.state import Telemetry

CLOSE_S: Final = 5.0
"""Seconds that a process which ends waits until the last spans, metrics and lines are sent."""

ANSWER_S: Final = 1.0
"""Seconds that a process which ends waits for the answer to a running request after `CLOSE_S`. The threads of a request
without an answer end when it has timed out, or with the process."""

EXPORT_S: Final = 60.0
"""Seconds after which a request, with its repetitions, counts as failed. The SDK's own timeout (by default 10 s) limits
the connection and each read of the answer only."""

REPORT_S: Final = 60.0
"""Seconds between two events about a signal that cannot be sent."""

_OWN_LOGGERS: Final = ("opentelemetry", "urllib3", "requests")
"""Loggers of the exporters, whose lines are not exported: each failure would make another line to export."""

_SEVERITY: Final = {"debug": 5, "info": 9, "warning": 13, "error": 17, "critical": 21}
"""https://opentelemetry.io/docs/specs/otel/logs/data-model/#field-severitynumber"""


def _module(name: str) -> Any:
    """Return a module of the extra. ConfigError: it is not installed."""
    return library(name, "otel", "otlp.endpoint needs OpenTelemetry's SDK")


def require_library() -> None:
    """Raise ConfigError if the extra is not installed."""
    _module("opentelemetry.sdk.resources")
    _module("opentelemetry.exporter.otlp.proto.http")


class _Reported:
    """An exporter of the SDK that also reports each failure to `failed`, and that may be shut down twice."""

    def __init__(self, exporter: Any, failed: Callable[[str], None]) -> None:
        self._exporter = exporter
        self._failed = failed
        self._limit = Limit(EXPORT_S)
        self._is_shut_down = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, *given: Any, **named: Any) -> Any:
        try:
            result = self._limit.run(lambda: self._exporter.export(*given, **named))
        except AbandonedError as error:
            self._failed(str(error))
            raise
        except Exception as error:
            self._failed(type(error).__name__)
            raise
        if result.name != "SUCCESS":
            self._failed("the collector did not take them")
        return result

    def shutdown(self) -> None:
        """Refuse later exports, and end the wait before the next try of a running one."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()


class Otlp:
    """Sends the signals of one process. `close` must be called.

    Args:
        pipeline: name of the pipeline, `service.instance.id` of what is sent.

    Attributes:
        failures: number of failed requests, by signal.
    """

    def __init__(self, config: OtlpConfig, pipeline: str) -> None:
        assert config.endpoint is not None, "it is off"
        self.failures: Counter[str] = Counter()
        self._endpoint = config.endpoint.rstrip("/")
        self._observe: Observer = lambda _fact: None
        self._told_at: dict[str, float] = {}
        self._pipeline = pipeline
        self._interval_s = config.interval_s
        self._ended = threading.Event()
        self._metrics: threading.Thread | None = None
        self._closing: list[Callable[[], object]] = []
        self._exporters: list[_Reported] = []
        resources = _module("opentelemetry.sdk.resources")
        self._resource = resources.Resource.create(
            {
                "service.name": "cdcd",
                "service.version": __version__,
                "service.instance.id": pipeline,
                "cdcd.pipeline": pipeline,
            }
        )
        self._api = _module("opentelemetry.trace")
        propagation = _module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = propagation.TraceContextTextMapPropagator()
        self._tracer = self._tracing() if config.traces else None
        self.handler = self._logging() if config.logs else None
        self._exports_metrics = config.metrics

    def begin(self, telemetry: Telemetry, observe: Observer) -> None:
        """Send spans, lines of the log, and the figures of `telemetry` at each interval. `observe` gets failures."""
        self._observe = observe
        telemetry.otlp_failures = self.failures
        telemetry.delivered_traces = self.delivered if self._tracer is not None else None
        if self.handler is not None:
            also_log_to(self.handler)
        if self._exports_metrics:
            registry = registry_for(telemetry)
            exporter = self._exporter("metrics", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
            bridge = MetricsBridge(registry, self._resource, int(telemetry.started_time * 1e9))
            self._closing.append(exporter.shutdown)
            self._metrics = threading.Thread(
                target=self._send_metrics, args=(exporter, bridge), name="otlp metrics", daemon=True
            )
            self._metrics.start()

    def delivered(self, traces: Sequence[Traced], shipped_ns: int, acknowledged_ns: int) -> None:
        """Make the spans of transactions that Kafka has acknowledged. Times are in nanoseconds since 1970.

        Args:
            shipped_ns: when the batch of the transactions was handed to Kafka.
        """
        assert self._tracer is not None, "there are spans"
        api = self._api
        for each in traces:
            carrier = {"traceparent": each.traceparent, "tracestate": each.tracestate}
            parent = self._propagator.extract(carrier)
            # The clocks of PostgreSQL and of this machine may differ, and no span ends before it begins.
            begun_ns = min(each.commit_us * 1000, shipped_ns)
            span = self._tracer.start_span(
                f"deliver {self._pipeline}",
                context=parent,
                kind=api.SpanKind.PRODUCER,
                start_time=begun_ns,
                attributes={
                    "messaging.system": "kafka",
                    "messaging.operation.type": "send",
                    "cdcd.pipeline": self._pipeline,
                    "cdcd.xid": each.xid,
                    "cdcd.commit_lsn": str(Lsn(each.commit_lsn)),
                },
            )
            inner = self._tracer.start_span(
                "kafka transaction", context=api.set_span_in_context(span), start_time=shipped_ns
            )
            inner.end(acknowledged_ns)
            span.end(acknowledged_ns)

    def close(self) -> None:
        """Send what is left, for at most `CLOSE_S` seconds, drop the rest, and end the threads."""
        self._ended.set()

        def end() -> None:
            if self._metrics is not None:
                self._metrics.join()
            for each in self._closing:
                each()

        ending = threading.Thread(target=end, name="otlp end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        for exporter in self._exporters:
            exporter.shutdown()
        ending.join(ANSWER_S)

    def _exporter(self, signal: str, module: str) -> _Reported:
        name = {"traces": "OTLPSpanExporter", "metrics": "OTLPMetricExporter", "logs": "OTLPLogExporter"}[
            signal
        ]
        exporter = getattr(_module(module), name)(endpoint=f"{self._endpoint}/v1/{signal}")
        self._exporters.append(_Reported(exporter, lambda reason: self._failed(signal, reason)))
        return self._exporters[-1]

    def _tracing(self) -> Any:
        sdk = _module("opentelemetry.sdk.trace")
        export = _module("opentelemetry.sdk.trace.export")
        exporter = self._exporter("traces", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
        provider = sdk.TracerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._closing.append(provider.shutdown)
        return provider.get_tracer("cdcd", __version__)

    def _logging(self) -> "LinesHandler":
        sdk = _module("opentelemetry.sdk._logs")
        export = _module("opentelemetry.sdk._logs.export")
        exporter = self._exporter("logs", "opentelemetry.exporter.otlp.proto.http._log_exporter")
        provider = sdk.LoggerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_log_record_processor(export.BatchLogRecordProcessor(exporter))
        self._closing.append(provider.shutdown)
        return LinesHandler(provider.get_logger("cdcd", __version__))

    def _send_metrics(self, exporter: Any, bridge: "MetricsBridge") -> None:
        while True:
            ended = self._ended.wait(self._interval_s)
            with suppress(Exception):  # The exporter has reported it, and the next interval tries again.
                exporter.export(bridge.read())
            if ended:
                return

    def _failed(self, signal: str, reason: str) -> None:
        self.failures[signal] += 1
        now = time.monotonic()
        if now - self._told_at.get(signal, -REPORT_S) >= REPORT_S:
            self._told_at[signal] = now
            self._observe(
                OtlpFailed(
                    signal=signal,
                    failures=self.failures[signal],
                    reason=reason,
                    hint=f"Check that a collector listens on {self._endpoint} (otlp.endpoint). The pipeline goes on "
                    "without it.",
                )
            )


class LinesHandler(logging.Handler):
    """Sends the lines of the log. Its formatter, which the log sets, writes JSON with masked secrets."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger
        self._record = _module("opentelemetry._logs").LogRecord
        self._severity = _module("opentelemetry._logs").SeverityNumber

    def emit(self, record: logging.LogRecord) -> None:
        """Put one line into the queue of the exporter."""
        if record.name.partition(".")[0] in _OWN_LOGGERS:
            return
        fields = json.loads(self.format(record))
        level, event = fields.pop("level", "info"), fields.pop("event", "")
        fields.pop("timestamp", None)
        self._logger.emit(
            self._record(
                timestamp=int(record.created * 1e9),
                observed_timestamp=time.time_ns(),
                severity_text=level,
                severity_number=self._severity(_SEVERITY.get(level, 9)),
                body=event,
                event_name=event,
                attributes={name: _attribute(value) for name, value in fields.items() if value is not None},
            )
        )


def _attribute(value: Any) -> Any:
    """Return the value of a field; hidden characters and halves of characters, which UTF-8 lacks, are written out."""
    if isinstance(value, bool | int | float):
        return value
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), lines=True)


class MetricsBridge:
    """Turns the metrics of Prometheus' registry into metrics of OpenTelemetry, with the same names and labels."""

    def __init__(self, registry: CollectorRegistry, resource: Any, started_ns: int) -> None:
        self._registry = registry
        self._resource = resource
        self._started_ns = started_ns
        self._sdk = _module("opentelemetry.sdk.metrics.export")
        self._scope = _module("opentelemetry.sdk.util.instrumentation").InstrumentationScope(
            "cdcd", __version__
        )

    def read(self) -> Any:
        """Return all present values."""
        sdk, now_ns = self._sdk, time.time_ns()
        metrics = [metric for family in self._registry.collect() for metric in self._metrics(family, now_ns)]
        scope = sdk.ScopeMetrics(self._scope, metrics, schema_url="")
        return sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], schema_url="")])

    def _metrics(self, family: Metric, now_ns: int) -> Iterable[Any]:
        sdk = self._sdk
        cumulative = sdk.AggregationTemporality.CUMULATIVE
        if family.type == "histogram":
            points = list(self._histograms(family, now_ns))
            data = sdk.Histogram(data_points=points, aggregation_temporality=cumulative)
            yield sdk.Metric(family.name, family.documentation, "s", data)
            return
        is_counter = family.type == "counter"
        name = f"{family.name}_total" if is_counter else family.name
        points = [
            sdk.NumberDataPoint(
                attributes=dict(sample.labels),
                start_time_unix_nano=self._started_ns,
                time_unix_nano=now_ns,
                value=float(sample.value),
            )
            for sample in family.samples
            if sample.name == name
        ]
        if not points:
            return
        data = (
            sdk.Sum(data_points=points, aggregation_temporality=cumulative, is_monotonic=True)
            if is_counter
            else sdk.Gauge(data_points=points)
        )
        yield sdk.Metric(name, family.documentation, "", data)

    def _histograms(self, family: Metric, now_ns: int) -> Iterable[Any]:
        """Yield the data points of a family, each with the counts of its buckets alone, not of those below them."""
        found: dict[tuple[tuple[str, str], ...], tuple[list[float], list[float], list[float]]] = {}
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            bounds, counts, total = found.setdefault(labels, ([], [], []))
            if sample.name.endswith("_bucket"):
                bounds.append(float(sample.labels["le"]))
                counts.append(sample.value)
            elif sample.name.endswith("_sum"):
                total.append(sample.value)
        for labels, (bounds, counts, total) in found.items():
            alone = [int(count - before) for before, count in zip([0.0, *counts], counts, strict=False)]
            yield self._sdk.HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=self._started_ns,
                time_unix_nano=now_ns,
                count=sum(alone),
                sum=sum(total),
                bucket_counts=alone,
                # The last bound is infinite, and OpenTelemetry does not name it.
                explicit_bounds=bounds[:-1],
                min=None,
                max=None,
            )
