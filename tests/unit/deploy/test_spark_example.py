"""What deploy/spark says is so: its files are there, its configuration loads, its versions are the locked ones."""

import re
from pathlib import Path
from typing import Any

import yaml

from cdcd.config.mirror import parse_mirror

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "spark"
FILE = FOLDER / "mirror.yaml"
PROGRAM = "/opt/cdcd-mirror.py"


def objects() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(FILE.read_text())}


def test_the_configuration_in_the_example_loads():
    config = parse_mirror(objects()["ConfigMap"]["data"]["mirror.yaml"], {})
    assert config.target.format == "iceberg"
    assert config.target.location is None
    assert config.http.host == "0.0.0.0"


def test_the_application_runs_the_command_with_that_configuration():
    spec = objects()["SparkApplication"]["spec"]
    assert spec["mainApplicationFile"] == f"local://{PROGRAM}"
    mount = spec["driver"]["volumeMounts"][0]["mountPath"]
    assert spec["arguments"] == ["--config", f"{mount}/mirror.yaml"]
    assert spec["driver"]["serviceAccount"] == objects()["ServiceAccount"]["metadata"]["name"]


def test_the_application_has_the_spark_of_the_lock_file():
    locked = re.search(r"^pyspark==(\S+)", (ROOT / "requirements-spark.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert objects()["SparkApplication"]["spec"]["sparkVersion"] == locked[1]


def test_the_page_names_files_that_are_there_and_links_the_program_to_where_it_is():
    page = (FOLDER / "README.md").read_text()
    names = [link or template for link, template in re.findall(r"\]\(([^)#]+)\)|podTemplateFile=(\S+)", page)]
    assert names
    for name in names:
        assert (FOLDER / name).exists(), name
    assert set(re.findall(r"/opt/[\w-]+\.py", page)) == {PROGRAM}
    module = re.search(r"from (\S+) import (\S+); print\(\2\.__file__\)", page)
    assert module is not None
    assert (ROOT / module[1].replace(".", "/") / f"{module[2]}.py").exists()


def test_the_pod_of_the_driver_has_the_configuration_where_the_command_looks_for_it():
    pod = yaml.safe_load((FOLDER / "driver.yaml").read_text())
    (mount,) = pod["spec"]["containers"][0]["volumeMounts"]
    assert f"{PROGRAM} --config {mount['mountPath']}/mirror.yaml" in (FOLDER / "README.md").read_text()
    assert pod["spec"]["volumes"][0]["name"] == mount["name"]
