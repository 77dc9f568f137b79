"""compose.yaml: what the daemon in it is told, and whether Compose accepts it."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cdcd.config.loading import parse_config
from cdcd.config.mirror import load_mirror
from deploy.local import KAFKA_VERSION
from deploy.local.cache import REPOSITORY, run
from tests.deploy.programs import program

COMPOSE: Final = REPOSITORY / "deploy" / "compose.yaml"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_the_daemon_accepts_its_configuration() -> None:
    config = parse_config(compose()["configs"]["pipeline"]["content"], {})
    assert config.http.host == "0.0.0.0"
    assert config.shutdown_timeout_s < float(compose()["services"]["cdcd"]["stop_grace_period"].rstrip("s"))
    assert f"set publication {config.postgres.publication}\n" in compose()["configs"]["init"]["content"]


def test_the_mirror_accepts_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mirror.yaml"
    file.write_text(compose()["configs"]["mirror"]["content"])
    config = load_mirror(file, {})
    assert config.topics.prefix == parse_config(compose()["configs"]["pipeline"]["content"], {}).topics.prefix
    ((volume, folder),) = (mount.split(":") for mount in compose()["services"]["mirror"]["volumes"])
    assert volume in compose()["volumes"]
    assert str(config.target.location).startswith(f"{folder}/")


def test_every_image_is_pinned_and_every_file_is_there() -> None:
    services = compose()["services"]
    assert all(":" in service["image"] or "build" in service for service in services.values())
    assert services["kafka"]["image"].endswith(f":{KAFKA_VERSION}")
    mounts = [mount for service in services.values() for mount in service.get("volumes", [])]
    files = [COMPOSE.parent / mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert files
    assert [file for file in files if not file.exists()] == []


def test_what_is_published_is_published_on_the_loopback_only() -> None:
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_page_of_each_replica_is_published() -> None:
    service = compose()["services"]["cdcd"]
    (ports,) = service["ports"]
    first, last = ports.split(":")[1].split("-")
    assert int(last) - int(first) + 1 == service["deploy"]["replicas"]
    config = parse_config(compose()["configs"]["pipeline"]["content"], {})
    assert ports.endswith(f":{config.http.port}")


@pytest.mark.deploy
@pytest.mark.timeout(1200)
def test_compose_accepts_it() -> None:
    loaded = yaml.safe_load(run([program("compose-spec"), COMPOSE]))
    assert {"postgres", "kafka", "cdcd", "prometheus", "grafana"} <= set(loaded["services"])
    # Nothing in it was taken for one of Compose's own variables.
    assert loaded["configs"]["init"]["content"] == compose()["configs"]["init"]["content"]
