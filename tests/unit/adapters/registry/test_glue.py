"""Glue's registry: moto's server answers as AWS's documentation says, and a server of one answer has the faults."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from uuid import UUID, uuid4

import pytest

from cdcd.adapters.registry.client import registry_of
from cdcd.adapters.registry.glue import GlueRegistry
from cdcd.config.loading import Config
from cdcd.core.errors import RegistryUnavailableError, SinkError
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from tests.s3_store import CREDENTIALS, S3Store

pytest.importorskip("moto", reason="moto and botocore are in requirements-dev.lock")

SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
RECORD = '{"type":"record","name":"t","fields":[]}'


class Glue:
    """An HTTP server that answers every request with one error, or with `answer`, as moto's cannot be told to."""

    def __init__(self) -> None:
        self.status, self.code, self.asked = 400, "", 0
        self.answer: Any = None
        glue = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                glue.asked += 1
                error = {"__type": glue.code, "message": f"no: password={SECRET}"}
                body = json.dumps(error if glue.answer is None else glue.answer).encode()
                self.send_response(glue.status if glue.answer is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Store]:
    with S3Store() as server:
        yield server


@pytest.fixture
def faulty() -> Iterator[Glue]:
    with Glue() as server:
        yield server


def config(url: str, **settings: Any) -> Config:
    registry = {"kind": "glue", "url": url, "glue": {"region": "us-east-1"}, **settings}
    return Config.model_validate(
        {
            "name": "shop",
            "postgres": {"dsn": "host=127.0.0.1"},
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "format": {"key": "avro", "value": "avro"},
            "registry": registry,
        }
    )


def client(url: str, **settings: Any) -> GlueRegistry:
    found = registry_of(config(url, **settings))
    assert isinstance(found, GlueRegistry)
    return found


def use(text: str = RECORD) -> SchemaUse:
    return SchemaUse(f"shop.public.{uuid4().hex}-value", text)


def test_a_schema_is_created_and_its_versions_keep_their_uuids(moto):
    registry = client(moto.url)
    first = use()
    second = SchemaUse(first.subject, RECORD.replace('"t"', '"u"'))
    ids = [registry.register(first), registry.register(second), registry.register(first)]
    assert ids[0] == ids[2] != ids[1]
    assert UUID(int=ids[0]).version == 4
    assert registry.has(ids[0])
    assert not registry.has(uuid4().int)
    assert registry.answers()


def test_a_json_schema_is_of_its_own_format(moto):
    found = SchemaUse(f"shop.public.{uuid4().hex}-value", '{"type":"object"}', "JSON")
    assert client(moto.url).has(client(moto.url).register(found))


def test_without_registration_a_missing_schema_is_refused_with_its_name(moto):
    missing = use()
    with pytest.raises(SinkError) as refused:
        client(moto.url, register_schemas=False).register(missing)
    assert missing.subject in refused.value.message
    assert "register_schemas" in (refused.value.hint or "")


def test_a_registry_that_is_missing_is_refused_with_the_command_that_creates_it(moto):
    with pytest.raises(SinkError) as refused:
        client(moto.url, glue={"name": "ours", "region": "us-east-1"}).register(use())
    assert "aws glue create-registry --registry-name ours" in (refused.value.hint or "")


def test_the_default_registry_need_not_be_there_before_its_first_schema(faulty):
    faulty.code = "EntityNotFoundException"
    client(faulty.url).check()
    with pytest.raises(SinkError, match="ours"):
        client(faulty.url, glue={"name": "ours", "region": "us-east-1"}).check()


def test_a_name_that_glue_does_not_take_is_refused(moto):
    with pytest.raises(SinkError) as refused:
        client(moto.url).register(SchemaUse("shop.public.größe-value", RECORD))
    assert "columns.exclude" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ThrottlingException"),
        (400, "ConcurrentModificationException"),
        (500, "InternalServiceException"),
        (503, "Unheard"),
    ],
)
def test_an_error_that_passes_is_of_a_registry_that_is_away(faulty, status, code):
    faulty.status, faulty.code = status, code
    with pytest.raises(RegistryUnavailableError) as away:
        client(faulty.url).register(use())
    assert SECRET not in f"{away.value.message}{away.value.hint}"
    assert not client(faulty.url).answers()
    # botocore itself repeats nothing: the registrar does, and says so.
    assert faulty.asked == 2


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AccessDeniedException", "glue:GetSchemaByDefinition"),
        ("UnrecognizedClientException", "credentials"),
        ("InvalidInputException", "170,000"),
        ("ResourceNumberLimitExceededException", "170,000"),
    ],
)
def test_a_refusal_says_what_to_do_and_shows_no_secret(faulty, code, hint):
    faulty.code = code
    wanted = use()
    with pytest.raises(SinkError) as refused:
        client(faulty.url).register(wanted)
    assert wanted.subject in refused.value.message
    assert code in refused.value.message
    assert hint in (refused.value.hint or "")
    assert SECRET not in f"{refused.value.message}{refused.value.hint}"
    assert client(faulty.url).answers()


def test_a_version_that_does_not_fit_is_refused_with_the_command_that_allows_it(faulty):
    faulty.answer = {"SchemaVersionId": str(uuid4()), "Status": "FAILURE"}
    with pytest.raises(SinkError) as refused:
        client(faulty.url).register(use())
    assert "--compatibility NONE" in (refused.value.hint or "")


def test_a_version_that_is_still_examined_is_waited_for(faulty):
    faulty.answer = {"SchemaVersionId": str(uuid4()), "Status": "PENDING"}
    with pytest.raises(RegistryUnavailableError, match="PENDING"):
        client(faulty.url).register(use())


@pytest.mark.parametrize("version", ["x", "", None, 7, [], {"a": 1}, "0" * 4000])
def test_an_answer_without_a_uuid_is_refused(faulty, version):
    faulty.answer = {"SchemaVersionId": version, "Status": "AVAILABLE"}
    with pytest.raises((SinkError, RegistryUnavailableError)):
        client(faulty.url).register(use())


def test_a_server_that_is_not_there_is_away():
    with Glue() as gone:
        url = gone.url
    with pytest.raises(RegistryUnavailableError):
        client(url, timeout_s=1).register(use())


def test_missing_credentials_are_waited_for(faulty, monkeypatch, tmp_path):
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(RegistryUnavailableError) as away:
        client(faulty.url).register(use())
    assert "credentials" in away.value.message.lower()
    assert faulty.asked == 0


def test_ids_of_glue_are_read_back_from_the_topic_of_descriptions():
    number, wanted = uuid4().int, use()
    ids = SchemaIds("https://glue.eu-west-1.amazonaws.com/default-registry")
    ids.put(wanted, number)
    _, value = ids.record(wanted)
    assert json.loads(value)["id"] == str(UUID(int=number))
    other = SchemaIds(ids.registry)
    assert other.take(value)
    assert other.get(wanted) == number
    assert not SchemaIds("https://glue.eu-west-1.amazonaws.com/other").take(value)


@pytest.mark.parametrize("said", ['"no-uuid"', "-1", "true", str(2**60), '""'])
def test_an_id_of_another_form_is_not_taken(said):
    ids = SchemaIds("u")
    assert not ids.take(f'{{"subject":"s","schema":"f","id":{said},"registry":"u"}}'.encode())
