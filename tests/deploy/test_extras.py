"""The extras `cdcd[msk]` and `cdcd[azure]`, installed from their lock files: their libraries give tokens here.

No cloud is reached. AWS's signer signs by itself, with the keys of the environment. Azure's library asks a service on
the loopback that speaks the protocol of managed identity (App Service, 2019-08-01).
"""

import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from deploy.local.cache import REPOSITORY, run

pytestmark = pytest.mark.deploy

PROGRAM = """\
import json, sys
from cdcd.config.loading import parse_config
from cdcd.adapters.credentials.tokens import access
text = '''
name: shop
postgres: {dsn: "host=db"}
kafka:
  bootstrap_servers: "broker:9098"
  properties: {security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER}
  oauth: '''
_, tokens = access(parse_config(text + sys.argv[1], {}).kafka)
tokens.prepare()
print(json.dumps(tokens("")))
"""

HEADER = "identity-5ecret"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The interpreter of an environment with an extra."""

    def make(extra: str) -> Path:
        folder = tmp_path_factory.mktemp(extra)
        run([sys.executable, "-m", "venv", "--without-pip", folder])
        interpreter = folder / "bin" / "python"
        lock = REPOSITORY / f"requirements-{extra}.lock"
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet"]
        run([*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", lock])
        return interpreter

    return make


def token(interpreter: Path, oauth: str, **variables: str) -> tuple[str, float]:
    environment = [f"{name}={value}" for name, value in variables.items()]
    said = run(["env", "-i", f"PYTHONPATH={REPOSITORY}", *environment, interpreter, "-c", PROGRAM, oauth])
    value, expires_at = json.loads(said)
    return value, expires_at


def test_the_signer_of_msk_signs_a_request_for_the_region(python: Callable[[str], Path]):
    value, expires_at = token(
        python("msk"),
        "{provider: msk, region: eu-central-1}",
        AWS_ACCESS_KEY_ID="AKIDEXAMPLE",
        AWS_SECRET_ACCESS_KEY="not-a-key",
        AWS_EC2_METADATA_DISABLED="true",
    )
    url = urlsplit(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode())
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert (url.scheme, url.netloc) == ("https", "kafka.eu-central-1.amazonaws.com")
    assert asked["Action"] == "kafka-cluster:Connect"
    key, _, region, service, _ = asked["X-Amz-Credential"].split("/")
    assert (key, region, service) == ("AKIDEXAMPLE", "eu-central-1", "kafka-cluster")
    assert len(bytes.fromhex(asked["X-Amz-Signature"])) == 32
    assert expires_at - time.time() == pytest.approx(int(asked["X-Amz-Expires"]), abs=60)
    assert "not-a-key" not in value


class Identity(BaseHTTPRequestHandler):
    """What a virtual machine or a pod of Azure finds at IDENTITY_ENDPOINT."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers.get("X-IDENTITY-HEADER")))
        body = {"access_token": "t0ken", "expires_on": str(int(time.time()) + 3600), "token_type": "Bearer"}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Identity.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Identity) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def test_the_library_of_azure_asks_the_managed_identity_for_the_namespace(
    python: Callable[[str], Path], endpoint: str, tmp_path: Path
):
    value, expires_at = token(
        python("azure"),
        '{provider: azure, scope: "https://shop.servicebus.windows.net/.default"}',
        IDENTITY_ENDPOINT=endpoint,
        IDENTITY_HEADER=HEADER,
        HOME=str(tmp_path),
    )
    assert value == "t0ken"
    assert expires_at - time.time() == pytest.approx(3600, abs=120)
    ((path, header),) = Identity.asked
    assert header == HEADER
    assert parse_qs(urlsplit(path).query)["resource"] == ["https://shop.servicebus.windows.net"]
