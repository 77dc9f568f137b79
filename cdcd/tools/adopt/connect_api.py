"""A connector's configuration, from a file or from Kafka Connect's REST API; its state there, its offset, and its stop.

Files are Java's properties or JSON. Options are texts. Stopping a connector, and reading its offset, came with Kafka
Connect 3.5 (KIP-875). A worker that rebalances answers 409 for a while, and is asked again.
"""

import base64
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import yaml

from cdcd.adapters.credentials.command import without_secrets
from cdcd.adapters.credentials.requests import REDIRECTED, REDIRECTS, opener, reason
from cdcd.config.masking import mask_text
from cdcd.core import bounded_json
from cdcd.core.errors import ConfigError, ConnectError

_LINE: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

BYTES_MAX: Final = 4_194_304
"""A configuration is larger only by mistake."""


def read_file(path: Path) -> dict[str, str]:
    """The options in the file: JSON, a KafkaConnector of Strimzi's, or Java's properties of Connect or Debezium Server.

    Raises ConfigError, which repeats nothing of the file: it may hold secrets.
    """
    try:
        with path.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise ConfigError(
                f"{path} is larger than {BYTES_MAX} bytes, so it is not the configuration of a connector."
            )
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}.") from None
    if text.lstrip().startswith("{"):
        return from_json(text, str(path))
    if _RESOURCE.search(text):
        return from_resource(text, str(path))
    return of_server(from_properties(text))


def from_json(text: str, source: str) -> dict[str, str]:
    """The options of `{"name": ..., "config": {...}}`, as Connect takes and gives it, or of the inner object "
    "alone."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{source}{where}: not JSON.") from None
    config = found.get("config", found) if isinstance(found, dict) else None
    if not isinstance(config, dict):
        raise ConfigError(f"{source}: not an object with a connector's options.")
    options = {}
    for name, value in config.items():
        if value is None:
            continue
        if isinstance(value, dict | list):
            raise ConfigError(f"{source}: {name} is not a text, a number or a boolean.")
        options[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(found.get("name"), str):
        options.setdefault("name", found["name"])
    return options


_RESOURCE: Final = re.compile(r"^kind:\s*['\"]?KafkaConnector\b", re.MULTILINE)


def from_resource(text: str, source: str) -> dict[str, str]:
    """The options of a KafkaConnector, which Strimzi's operator gives to Kafka Connect."""
    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{source}: not YAML, or several documents.") from None
    spec = found.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("config"), dict):
        raise ConfigError(f"{source}: the KafkaConnector has no spec.config.")
    name = str((found.get("metadata") or {}).get("name", ""))
    outer = {"connector.class": spec.get("class"), "tasks.max": spec.get("tasksMax"), "name": name or None}
    return from_json(json.dumps({**outer, **spec["config"]}, default=str), source)


_SOURCE: Final = "debezium.source."
_SERVER: Final = {
    "debezium.transforms": "transforms",
    "debezium.predicates": "predicates",
    "debezium.sink.kafka.producer": "producer.override",
    "debezium.format.key": "key.converter",
    "debezium.format.value": "value.converter",
}
"""By the beginning of an option of Debezium Server: the beginning of the same option in Kafka Connect."""

_CONVERTERS: Final = {
    "json": "org.apache.kafka.connect.json.JsonConverter",
    "avro": "io.confluent.connect.avro.AvroConverter",
    "protobuf": "io.confluent.connect.protobuf.ProtobufConverter",
    "cloudevents": "io.debezium.converters.CloudEventsConverter",
}


def of_server(options: dict[str, str]) -> dict[str, str]:
    """Return the options of Debezium Server as options of a connector. Other options are returned unchanged.

    Debezium Server keeps its position in a file or a topic of its own, and writes to Kafka by the producer of its sink.
    """
    if not any(name.startswith(_SOURCE) for name in options):
        return options
    found = {"key.converter": _CONVERTERS["json"], "value.converter": _CONVERTERS["json"]}
    for name, value in options.items():
        begin = next((each for each in _SERVER if name == each or name.startswith(f"{each}.")), None)
        if name.startswith(_SOURCE):
            found[name.removeprefix(_SOURCE)] = value
        elif begin is None:
            found[name] = value
        elif name == begin and "format" in begin:
            found[_SERVER[begin]] = _CONVERTERS.get(value.strip().lower(), value)
        else:
            found[_SERVER[begin] + name.removeprefix(begin)] = value
    return found


def from_properties(text: str) -> dict[str, str]:
    """Java's properties (java.util.Properties): continued lines, escapes, and `=`, `:` or blanks after a name."""
    options = {}
    pending = ""
    for line in text.splitlines():
        part = line.lstrip()
        if not pending and (not part or part[0] in "#!"):
            continue
        pending += part
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        name, value = _pair(pending)
        options[name] = value
        pending = ""
    if pending:
        name, value = _pair(pending)
        options[name] = value
    return options


def _pair(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    assert match is not None, "the pattern matches every line"
    return _plain(match[1]), _plain(match[2])


def _plain(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", replacement, text, flags=re.DOTALL)


ANSWER_S: Final = 30.0
"""Seconds that a worker may take for an answer. One that is not the leader asks the leader first."""

STOPPED_S: Final = 120.0
"""Seconds until the task must have ended: Connect gives it 5 s, and Debezium its executors 4 s."""

_POLL_S: Final = 0.5
_REBALANCING: Final = 409
_SINCE: Final = "That takes Kafka Connect 3.5 or newer."


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """Of a connector: RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED; and of its tasks."""

    connector: str
    tasks: tuple[str, ...]

    @property
    def is_stopped(self) -> bool:
        return self.connector == "STOPPED" and not self.tasks


class Connector:
    """A connector by its URL, such as http://connect:8083/connectors/inventory; user and password may be in it.

    Every method raises ConnectError: the worker does not answer, or refuses.
    """

    def __init__(self, url: str) -> None:
        """Raises ConfigError: the URL is not that of a connector."""
        parts = urlsplit(url)
        before, found, name = parts.path.rstrip("/").rpartition("/connectors/")
        if (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or not found
            or not name
            or "/" in name
        ):
            raise ConfigError(
                f"{mask_text(url)} is not the URL of a connector.",
                hint="Write http://connect:8083/connectors/NAME. `curl http://connect:8083/connectors` lists them.",
            )
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, f"{before}{found}{quote(unquote(name))}", "", ""))
        self.name = unquote(name)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def options(self) -> dict[str, str]:
        """The connector's configuration, with placeholders as they are."""
        return from_json(self._ask("GET", "/config"), self.url)

    def state(self) -> ConnectorState:
        found = self._object("GET", "/status")
        return ConnectorState(
            str(found.get("connector", {}).get("state")),
            tuple(str(task.get("state")) for task in found.get("tasks", [])),
        )

    def offset(self) -> dict[str, Any]:
        """What the connector stored last; {}: nothing yet."""
        found = self._object("GET", "/offsets", _SINCE).get("offsets", [])
        if len(found) > 1:
            raise ConnectError(
                f"{self.url} has offsets of {len(found)} sources.",
                hint=f"A connector has one source. Delete the offsets of its former sources: PATCH {self.url}/offsets",
            )
        return dict(found[0].get("offset") or {}) if found else {}

    def stop(self) -> None:
        """End its task, and keep its configuration and offset. Returns when it has ended."""
        self._ask("PUT", "/stop", _SINCE)
        deadline = time.monotonic() + STOPPED_S
        while not self.state().is_stopped:
            if time.monotonic() > deadline:
                raise ConnectError(
                    f"{self.url} has not stopped within {STOPPED_S:.0f} s.",
                    hint="Read the worker's log, and run this command again.",
                )
            time.sleep(_POLL_S)

    def _object(self, method: str, path: str, since: str = "") -> dict[str, Any]:
        try:
            found = bounded_json.parse(self._ask(method, path, since).encode(), BYTES_MAX)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConnectError(f"{self.url}{path} does not answer as Kafka Connect does.")
        return found

    def _ask(self, method: str, path: str, since: str = "") -> str:
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                return self._answer(method, path)
            except urllib.error.HTTPError as error:
                with error:
                    said = _reason(error)
                if error.code != _REBALANCING or time.monotonic() > deadline:
                    hint = (
                        REDIRECTED if error.code in REDIRECTS else since if error.code in {404, 405} else ""
                    )
                    raise ConnectError(
                        f"{method} {self.url}{path}: HTTP {error.code}{said}", hint=hint
                    ) from None
                time.sleep(_POLL_S)
            except (OSError, http.client.HTTPException) as error:
                raise ConnectError(
                    f"Kafka Connect does not answer at {self.url}: {reason(error)}",
                    hint="Start a worker of the cluster, or name one that runs.",
                ) from None

    def _answer(self, method: str, path: str) -> str:
        request = urllib.request.Request(  # noqa: S310  http or https
            f"{self.url}{path}", headers=self._headers, method=method
        )
        with opener().open(request, timeout=ANSWER_S) as answer:
            return str(answer.read(BYTES_MAX).decode(errors="replace"))


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        message = str(bounded_json.parse(error.read(BYTES_MAX), BYTES_MAX).get("message", ""))
    except (ValueError, AttributeError, OSError):
        return ""
    return f": {without_secrets(message)}" if message else ""
