"""The chart's files, as far as they can be judged without Helm."""

import json
import re

import yaml

from cdcd import __version__
from deploy.release.charts import semantic
from tests.deploy.chart import CHART, SCHEMA, values_schema


def test_the_schema_of_the_values_has_the_configurations_own_schema() -> None:
    assert SCHEMA.read_text() == values_schema(), "stale: run python -m tests.deploy.chart to write it again"


def test_the_schema_has_no_regular_expression_that_helm_cannot_read() -> None:
    patterns = re.findall(r'"pattern": (".*")', SCHEMA.read_text())
    assert patterns
    assert [one for one in map(json.loads, patterns) if "(?" in one] == []


def test_the_chart_has_the_version_of_the_daemon() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    # Helm wants SemVer, in which a candidate is written with a hyphen.
    assert chart["version"] == semantic(__version__)


def test_every_value_with_a_default_is_in_the_schema_and_the_other_way_round() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {*values, "global"} == set(json.loads(SCHEMA.read_text())["properties"])
