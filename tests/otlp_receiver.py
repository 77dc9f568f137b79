"""A collector of OpenTelemetry: an HTTP server that decodes what exporters send, by OTLP's own protobuf."""

import gzip
import importlib
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_REQUESTS: Final[Mapping[str, tuple[str, str]]] = {
    "/v1/traces": ("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "ExportTraceServiceRequest"),
    "/v1/metrics": (
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        "ExportMetricsServiceRequest",
    ),
    "/v1/logs": ("opentelemetry.proto.collector.logs.v1.logs_service_pb2", "ExportLogsServiceRequest"),
}


class OtlpReceiver:
    """Keeps the requests that came, by path. `status` is what it answers.

    Attributes:
        url: its address, for `otlp.endpoint`.
        headers: those of the last request.
    """

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self._requests: dict[str, list[Any]] = {path: [] for path in _REQUESTS}
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver._take(self.path, body, dict(self.headers))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        module, name = _REQUESTS[path]
        request = getattr(importlib.import_module(module), name)()
        request.ParseFromString(body)
        with self._came:
            self.headers = headers
            if self.status == 200:
                self._requests[path].append(request)
            self._came.notify_all()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[Any]:
        return [
            span
            for request in self._requests["/v1/traces"]
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        """The last value of each metric."""
        return {
            metric.name: metric
            for request in self._requests["/v1/metrics"]
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def lines(self) -> list[Any]:
        return [
            record
            for request in self._requests["/v1/logs"]
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def resources(self) -> list[dict[str, str]]:
        """The attributes of each resource that sent spans."""
        return [
            {each.key: each.value.string_value for each in resource.resource.attributes}
            for request in self._requests["/v1/traces"]
            for resource in request.resource_spans
        ]

    def await_true(self, found: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until the requests that came make this true."""
        with self._came:
            assert self._came.wait_for(found, timeout_s), "it never came"


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or a line."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}
