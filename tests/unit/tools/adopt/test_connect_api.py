"""What Kafka Connect answers, and what becomes of it. tests/integration/test_adopt.py asks a real worker.

Connectors' configurations as files: Java's properties, JSON, and what is neither.
"""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cdcd.core.errors import ConfigError, ConnectError
from cdcd.tools.adopt.connect_api import Connector, ConnectorState, from_json, from_properties, read_file

Answer = tuple[int, object]


class Worker:
    """Answers on a free port of the loopback; `asked` has the requests with their Authorization."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, str | None]] = []
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                worker.asked.append((f"{self.command} {self.path}", self.headers.get("Authorization")))
                answers = worker.answers.get(f"{self.command} {self.path}", [(404, {"message": "not there"})])
                status, body = answers.pop(0) if len(answers) > 1 else answers[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            do_GET = do_PUT = _answer  # noqa: N815  the names that http.server calls

            def log_request(self, code: object = "-", size: object = "-") -> None:
                """A test has the requests in `asked`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


def connector(worker: Worker) -> Connector:
    return Connector(f"http://{worker.address}/connectors/inventory")


def test_a_connector_is_asked_with_the_login_of_its_url(worker: Worker) -> None:
    worker.answers["GET /c/connectors/a%20b/config"] = [(200, {"name": "a b", "tasks.max": "1"})]
    found = Connector(f"http://user:hunter2@{worker.address}/c/connectors/a b/")
    assert found.options() == {"name": "a b", "tasks.max": "1"}
    assert worker.asked == [("GET /c/connectors/a%20b/config", "Basic dXNlcjpodW50ZXIy")]
    assert "hunter2" not in found.url


@pytest.mark.parametrize(
    "url",
    [
        "http://c:8083",
        "http://c:8083/connectors",
        "http://c/connectors/a/b",
        "ftp://c/connectors/a",
        "http:///connectors/a",
    ],
)
def test_what_is_no_url_of_a_connector_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not the URL of a connector"):
        Connector(url)


def test_a_stop_returns_when_the_task_has_ended(worker: Worker) -> None:
    worker.answers = {
        "PUT /connectors/inventory/stop": [(409, {"message": "rebalancing"}), (202, b"")],
        "GET /connectors/inventory/status": [
            (200, {"connector": {"state": "RUNNING"}, "tasks": [{"state": "RUNNING"}]}),
            (200, {"connector": {"state": "STOPPED"}, "tasks": [{"state": "RUNNING"}]}),
            (200, {"connector": {"state": "STOPPED"}, "tasks": []}),
        ],
    }
    connector(worker).stop()
    assert [request for request, _ in worker.asked][-1:] == ["GET /connectors/inventory/status"]
    assert len(worker.asked) == 5
    assert connector(worker).state() == ConnectorState("STOPPED", ())


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ([], {}),
        ([{"partition": {"server": "a"}, "offset": {"lsn": 1}}], {"lsn": 1}),
        ([{"partition": {"server": "a"}, "offset": None}], {}),
    ],
)
def test_an_offset_is_that_of_the_one_source(worker: Worker, offsets: object, found: object) -> None:
    worker.answers["GET /connectors/inventory/offsets"] = [(200, {"offsets": offsets})]
    assert connector(worker).offset() == found


def test_offsets_of_two_sources_are_refused(worker: Worker) -> None:
    worker.answers["GET /connectors/inventory/offsets"] = [
        (200, {"offsets": [{"offset": {}}, {"offset": {}}]})
    ]
    with pytest.raises(ConnectError, match="2 sources"):
        connector(worker).offset()


@pytest.mark.parametrize(
    ("ask", "message", "hint"),
    [
        (Connector.options, "HTTP 404: not there", ""),
        (Connector.stop, "HTTP 404: not there", "Kafka Connect 3.5"),
        (Connector.offset, "HTTP 404: not there", "Kafka Connect 3.5"),
    ],
)
def test_a_refusal_is_told_with_what_it_takes(
    worker: Worker, ask: Callable[[Connector], object], message: str, hint: str
) -> None:
    with pytest.raises(ConnectError, match=message) as caught:
        ask(connector(worker))
    assert hint in caught.value.hint


def test_an_answer_that_is_not_connect_s_is_an_error(worker: Worker) -> None:
    worker.answers["GET /connectors/inventory/status"] = [(200, b"<html>")]
    with pytest.raises(ConnectError, match="does not answer as Kafka Connect does"):
        connector(worker).state()


def test_a_worker_that_is_away_is_an_error(worker: Worker) -> None:
    found = connector(worker)
    worker.close()
    with pytest.raises(ConnectError, match="does not answer at") as caught:
        found.state()
    assert caught.value.exit_code == 11


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# a comment\n! another\n\nname = inventory\ntopic.prefix:shop\ntasks.max 1\n"
        "table.include.list=public\\\\.a,\\\n    public\\\\.b\nempty=\nblank\\ name=x\nunicode=\\u0041\\tB\n"
        "last=end\\\\\n"
    )
    assert from_properties(text) == {
        "name": "inventory",
        "topic.prefix": "shop",
        "tasks.max": "1",
        "table.include.list": r"public\.a,public\.b",
        "empty": "",
        "blank name": "x",
        "unicode": "A\tB",
        "last": "end\\",
    }


@pytest.mark.parametrize(
    "text",
    ['{"name": "a", "config": {"tasks.max": 1, "x": true}}', '{"name": "a", "tasks.max": "1", "x": "true"}'],
)
def test_json_is_read_in_both_forms(text: str, tmp_path: Path) -> None:
    (tmp_path / "connector.json").write_text(text)
    assert read_file(tmp_path / "connector.json") == {"name": "a", "tasks.max": "1", "x": "true"}


@pytest.mark.parametrize("text", ['{"hunter2"', "[1]", '{"config": {"a": {"b": "hunter2"}}}', "null"])
def test_what_is_no_configuration_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(text, "connector.json")
    assert "hunter2" not in str(caught.value)
    assert "connector.json" in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        read_file(tmp_path / "none.json")


def test_a_resource_of_strimzi_is_a_connector(tmp_path: Path) -> None:
    file = tmp_path / "connector.yaml"
    file.write_text(
        "apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaConnector\nmetadata:\n  name: inventory\nspec:\n"
        "  class: io.debezium.connector.postgresql.PostgresConnector\n  tasksMax: 1\n  config:\n"
        "    database.port: 5432\n    tombstones.on.delete: false\n"
    )
    assert read_file(file) == {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "name": "inventory",
        "database.port": "5432",
        "tombstones.on.delete": "false",
    }
    file.write_text("kind: KafkaConnector\nspec: {}\n")
    with pytest.raises(ConfigError, match=r"has no spec\.config"):
        read_file(file)


def test_options_of_debezium_server_are_those_of_a_connector(tmp_path: Path) -> None:
    file = tmp_path / "application.properties"
    file.write_text(
        "debezium.sink.type=kafka\ndebezium.sink.kafka.producer.bootstrap.servers=kafka:9092\n"
        "debezium.source.topic.prefix=shop\ndebezium.format.value=avro\n"
        "debezium.format.value.schema.registry.url=http://registry:8081\n"
        "debezium.transforms=unwrap\ndebezium.transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState\n"
        "quarkus.log.level=INFO\n"
    )
    assert read_file(file) == {
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": "http://registry:8081",
        "debezium.sink.type": "kafka",
        "producer.override.bootstrap.servers": "kafka:9092",
        "topic.prefix": "shop",
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "quarkus.log.level": "INFO",
    }
