"""A schema registry with Confluent's API in this process: what cdcd asks of one, answered as Confluent's does.

Ids are given to texts of schemas, and are the same for the same text under every subject. A schema that a subject has
is not registered twice. Errors have Confluent's codes: 40401 (no subject), 40403 (no schema), 409 (not compatible),
42205 (read-only).
Compatibility itself is not judged: a test says which subjects refuse.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

from deploy.local.process import free_port


class SchemaRegistry:
    """Runs while it is entered. `url` stays the same if it is stopped and started again.

    Attributes:
        refusing: subjects whose schemas are refused as incompatible.
        failing: subjects for which requests are answered with HTTP 500.
        is_down: all requests are answered with HTTP 500.
        login: the Authorization header that requests need; None: none.
        is_apicurio: a subject without a schema has no compatibility that could be set.
        kinds: the kinds of schemas that are taken.
        asked: every request so far, as method and path.
        arrived: released by each request.
    """

    def __init__(self) -> None:
        self.subjects: dict[str, list[int]] = {}
        self.schemas: dict[int, str] = {}
        self.compatibility: dict[str, str] = {}
        self.refusing: set[str] = set()
        self.failing: set[str] = set()
        self.is_down = False
        self.arrived = threading.Semaphore(0)
        self.login: str | None = None
        self.mode = "READWRITE"
        self.kinds = ["JSON", "PROTOBUF", "AVRO"]
        self.is_apicurio = False
        self.asked: list[str] = []
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        # One that no client's connection is given while the registry is stopped.
        self._port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.serve(self)

            do_POST = do_PUT = do_GET  # noqa: N815  as http.server has it

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as http.server has it
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        self.asked.append(f"{request.command} {request.path}")
        self.arrived.release()
        size = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(size) or b"null")
        if self.login is not None and request.headers.get("Authorization") != self.login:
            status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, answer = self._answer(request.command, request.path.strip("/").split("/"), body)
        data = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, method: str, path: list[str], body: Any) -> tuple[int, Any]:
        match method, path:
            case _ if self.is_down:
                return 500, {"error_code": 50001, "message": "Error in the backend data store"}
            case _, ["subjects" | "config", subject, *_] if unquote(subject) in self.failing:
                return 500, {"error_code": 50001, "message": "Error in the backend data store"}
            case "GET", ["subjects"]:
                return 200, sorted(self.subjects)
            case "GET", ["schemas", "types"]:
                return 200, self.kinds
            case "GET", ["mode"]:
                return 200, {"mode": self.mode}
            case "GET", ["schemas", "ids", number]:
                if int(number) in self.schemas:
                    return 200, {"schema": self.schemas[int(number)]}
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "PUT", ["config", subject] if self.is_apicurio and unquote(subject) not in self.subjects:
                return 404, {"error_code": 40401, "message": "No artifact with this ID was found."}
            case "PUT", ["config", subject]:
                self.compatibility[unquote(subject)] = body["compatibility"]
                return 200, body
            case "POST", ["subjects", subject, "versions"]:
                if body.get("schemaType", "AVRO") not in self.kinds:
                    return 422, {
                        "error_code": 42201,
                        "message": f"Invalid schema type {body['schemaType']}",
                    }
                return self._register(unquote(subject), body["schema"])
            case "POST", ["subjects", subject]:
                return self._look_up(unquote(subject), body["schema"])
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, text: str) -> tuple[int, Any]:
        status, answer = self._look_up(subject, text)
        if status == 200:
            return 200, {"id": answer["id"]}
        if self.mode == "READONLY":
            return 422, {"error_code": 42205, "message": f"Subject {subject} is in read-only mode"}
        if subject in self.refusing:
            return 409, {
                "error_code": 409,
                "message": "Schema being registered is incompatible with an earlier schema",
            }
        known = [number for number, schema in self.schemas.items() if schema == text]
        schema_id = known[0] if known else len(self.schemas) + 1
        self.schemas[schema_id] = text
        self.subjects.setdefault(subject, []).append(schema_id)
        return 200, {"id": schema_id}

    def _look_up(self, subject: str, text: str) -> tuple[int, Any]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        for version, schema_id in enumerate(self.subjects[subject], 1):
            if self.schemas[schema_id] == text:
                return 200, {"subject": subject, "id": schema_id, "version": version, "schema": text}
        return 404, {"error_code": 40403, "message": "Schema not found"}
