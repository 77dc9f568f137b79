from pathlib import Path
from typing import Any

import yaml

from cdcd.config.mirror import parse_mirror

FILE = Path(__file__).parents[3] / "deploy" / "spark" / "mirror.yaml"


def objects() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(FILE.read_text())}


def test_the_configuration_in_the_example_loads():
    config = parse_mirror(objects()["ConfigMap"]["data"]["mirror.yaml"], {})
    assert config.target.format == "iceberg"
    assert config.target.location is None


def test_the_application_runs_the_command_with_that_configuration():
    spec = objects()["SparkApplication"]["spec"]
    assert spec["mainApplicationFile"].endswith("/cdcd/cli/mirror.py")
    mount = spec["driver"]["volumeMounts"][0]["mountPath"]
    assert spec["arguments"] == ["--config", f"{mount}/mirror.yaml"]
    assert spec["driver"]["serviceAccount"] == objects()["ServiceAccount"]["metadata"]["name"]
