"""Alerts, dashboard and runbook speak of what there is: metrics, labels, each other."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client import generate_latest

from cdcd.telemetry import mirror, verify
from cdcd.telemetry.definitions import Definition
from cdcd.telemetry.metrics import DEFINITIONS, registry_for
from cdcd.telemetry.state import Telemetry
from deploy.grafana import panels
from deploy.local.cache import REPOSITORY, run
from tests.deploy.programs import program

ALERTS: Final = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
RUNBOOK: Final = REPOSITORY / "deploy" / "runbook.md"

DEFINED: Final[list[Definition[Any]]] = [*DEFINITIONS, *mirror.DEFINITIONS, *verify.DEFINITIONS]
TARGET_LABELS: Final = {"namespace", "job", "instance", "le"}
"""Set by whoever scrapes, and a histogram's own."""


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("path", [ALERTS, panels.DASHBOARD], ids=lambda path: path.name)
def test_the_chart_has_the_same_file(path: Path) -> None:
    in_chart = REPOSITORY / "helm" / "cdcd" / "files" / path.name
    assert in_chart.read_text() == path.read_text(), "copy it, or run python -m deploy.grafana.panels"


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    dashboard = json.loads(panels.DASHBOARD.read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


def test_every_metric_in_alerts_and_dashboard_is_one_that_the_daemon_shows() -> None:
    shown = set(re.findall(r"^(\w+)", generate_latest(registry_for(Telemetry())).decode(), re.MULTILINE))
    # Without a sample yet, a metric shows its help only.
    shown |= {definition.name for definition in DEFINED}
    for query in queries():
        named = re.findall(r"\b(?:cdcd|process)_\w+", query)
        assert named, query
        assert set(named) <= shown, query


def test_every_label_in_alerts_and_dashboard_is_one_that_the_metrics_have() -> None:
    known = TARGET_LABELS | {label for definition in DEFINED for label in definition.labels}
    for query in queries():
        grouped = re.findall(r"\b(?:by|on) \(([\w, ]+)\)", query)
        matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query)
        assert {*chain.from_iterable(one.split(", ") for one in grouped), *matched} <= known, query


def test_every_alert_has_a_section_of_the_runbook_and_every_such_section_an_alert() -> None:
    names = [rule["alert"] for rule in rules()]
    assert names == re.findall(r"^## (Cdcd\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"deploy/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert {"summary", "description"} <= set(rule["annotations"])


@pytest.mark.parametrize("page", ["runbook.md", "acl.md"])
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    path = REPOSITORY / "deploy" / page
    text = path.read_text()
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text)):
        where = (path.parent / target).resolve() if target else path
        assert where.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", where.read_text(), re.MULTILINE)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, anchor


def test_the_dashboard_is_as_its_table_says() -> None:
    assert panels.DASHBOARD.read_text() == panels.dashboard() + "\n", (
        "stale: run python -m deploy.grafana.panels to write it again"
    )


@pytest.mark.deploy
@pytest.mark.timeout(1800)
def test_prometheus_accepts_the_rules_and_they_fire_as_they_should() -> None:
    promtool = program("promtool")
    run([promtool, "check", "rules", ALERTS])
    run([promtool, "check", "config", "--syntax-only", ALERTS.with_name("prometheus.yaml")])
    run([promtool, "test", "rules", Path(__file__).with_name("alerts_test.yaml")])
