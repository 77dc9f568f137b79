"""The chart, linted and rendered by Helm, and what it renders against Kubernetes' own schemas and the daemon's."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cdcd.config.loading import parse_config
from cdcd.config.mirror import parse_mirror
from deploy.grafana import panels
from deploy.local.cache import LocalServerError, run
from tests.deploy.chart import CHART, GOLDEN, KUBERNETES, VARIANTS, objects, render, values_of
from tests.deploy.programs import program

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

CUSTOM: Final = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, of which Kubernetes has no schema."""

each_variant = pytest.mark.parametrize("variant", VARIANTS)


def newest_minors() -> list[str]:
    """The three newest that the validator has, oldest first."""
    from kubernetes_validate.utils import all_versions, major_minor

    return list(dict.fromkeys(map(major_minor, all_versions())))[-3:]


def rendered(variant: str, *options: str) -> list[dict[str, Any]]:
    return objects(render("--values", values_of(variant), *options))


def of_kind(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    one = [each for each in found if each["kind"] == kind]
    assert len(one) == 1, f"{len(one)} objects are a {kind}"
    return one[0]


def pods(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod of every Deployment, Job and hook, by its owner's kind."""
    for each in found:
        if each["kind"] == "Pod":
            yield "Pod", each
        elif "template" in each.get("spec", {}):
            yield each["kind"], each["spec"]["template"]


@each_variant
def test_the_chart_passes_lint(variant: str) -> None:
    run(
        [
            program("helm"),
            "lint",
            "--strict",
            "--kube-version",
            KUBERNETES,
            CHART,
            "--values",
            values_of(variant),
        ]
    )


@each_variant
def test_a_rendering_is_as_it_was_reviewed(variant: str) -> None:
    golden = (GOLDEN / f"{variant}.yaml").read_text()
    assert render("--values", values_of(variant)) == golden, "write it again by python -m tests.deploy.chart"


@each_variant
@pytest.mark.parametrize("index", range(3), ids=["newest-2", "newest-1", "newest"])
def test_a_rendering_is_valid_for_the_newest_minors_of_kubernetes(variant: str, index: int) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate",
        reason="the schemas of Kubernetes are not installed (make deploy-test installs requirements-long.lock)",
    ).validate
    version = newest_minors()[index]
    for each in rendered(variant):
        if each["kind"] not in CUSTOM:
            validate(each, version, strict=True)


@each_variant
def test_the_daemon_accepts_the_configuration_that_the_chart_mounts(variant: str, tmp_path: Path) -> None:
    text = of_kind("Deployment", rendered(variant))
    config_map = next(each for each in rendered(variant) if each["kind"] == "ConfigMap")
    mounted = config_map["data"]["cdcd.yaml"].replace("/run/secrets", str(tmp_path))
    for name in re.findall(rf"{tmp_path}/[\w./-]+", mounted):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("postgresql://cdcd@database/shop")
    config = parse_config(mounted, {"KAFKA_USER": "cdcd"})
    assert config.name == "shop"
    for each in rendered(variant):
        if (
            each["kind"] == "ConfigMap"
            and each is not config_map
            and each["metadata"]["name"].endswith("-mirror")
        ):
            assert parse_mirror(each["data"]["cdcd.yaml"], {}).topics.prefix == config.topics.prefix
    container = text["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"][0]["containerPort"] == config.http.port
    grace_s = text["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert config.shutdown_timeout_s < grace_s


def test_large_numbers_reach_the_daemon_as_they_are() -> None:
    found = rendered("minimal", "--set", "config.spool.disk_bytes_max=1125899906842624")
    config_map = of_kind("ConfigMap", found)
    assert yaml.safe_load(config_map["data"]["cdcd.yaml"])["spool"]["disk_bytes_max"] == 1125899906842624
    volumes = of_kind("Deployment", found)["spec"]["template"]["spec"]["volumes"]
    assert volumes[1]["emptyDir"] == {"sizeLimit": str(1125899906842624 + 64 * 1024 * 1024)}


@each_variant
def test_every_pod_keeps_to_the_restricted_profile(variant: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
    seen = list(pods(rendered(variant)))
    assert {"Deployment", "Pod"} <= {kind for kind, _ in seen}
    for _, pod in seen:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"].get("runAsUser") != 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        allowed = {"configMap", "emptyDir", "secret", "ephemeral", "persistentVolumeClaim", "name"}
        assert all(set(volume) <= allowed for volume in spec["volumes"])
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@each_variant
def test_no_pod_gets_a_right_in_the_cluster(variant: str) -> None:
    found = rendered(variant)
    assert not {each["kind"] for each in found} & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    accounts = [each for each in found if each["kind"] == "ServiceAccount"]
    assert all(each["automountServiceAccountToken"] is False for each in accounts)


def test_two_instances_in_two_places_of_which_one_may_be_moved_are_the_default() -> None:
    found = rendered("minimal")
    deployment = of_kind("Deployment", found)
    assert deployment["spec"]["replicas"] == 2
    # One that takes over is there before the former one goes; the lock decides which of them writes.
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert {each["topologyKey"] for each in labels_of_spreads(deployment)} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert of_kind("PodDisruptionBudget", found)["spec"]["maxUnavailable"] == 1


@each_variant
def test_what_selects_pods_selects_the_daemons_and_nothing_else(variant: str) -> None:
    found = rendered(variant)
    labels = {kind: pod["metadata"]["labels"] for kind, pod in pods(found)}
    selectors = [
        of_kind("Deployment", found)["spec"]["selector"]["matchLabels"],
        of_kind("Service", found)["spec"]["selector"],
        *(each["spec"]["selector"]["matchLabels"] for each in found if each["kind"] == "PodDisruptionBudget"),
        *(
            spread["labelSelector"]["matchLabels"]
            for spread in labels_of_spreads(of_kind("Deployment", found))
        ),
    ]
    for selector in selectors:
        assert [kind for kind, own in labels.items() if selector.items() <= own.items()] == ["Deployment"]


def labels_of_spreads(deployment: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    return found


def test_prometheus_finds_the_service_and_its_port() -> None:
    found = rendered("full")
    service, monitor = of_kind("Service", found), of_kind("ServiceMonitor", found)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_the_rules_are_those_of_the_alerts_file_with_the_address_of_the_runbook() -> None:
    ours = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    plain = of_kind("PrometheusRule", rendered("full", "--set", "prometheusRule.runbookUrl="))["spec"]
    assert plain == ours
    for group in ours["groups"]:
        for rule in group["rules"]:
            section = rule["annotations"]["runbook"].partition("#")[2]
            rule["annotations"]["runbook_url"] = f"https://docs.example.com/cdcd/deploy/runbook/#{section}"
    assert of_kind("PrometheusRule", rendered("full"))["spec"] == ours


def test_the_dashboard_is_the_one_of_the_repository_and_grafanas_sidecar_finds_it() -> None:
    # Not in a golden rendering, which is for reading.
    options = ("--set", "dashboard.enabled=true", "--set", "dashboard.annotations.grafana_folder=cdcd")
    (found,) = [one for one in rendered("full", *options) if one["metadata"]["name"].endswith("-dashboard")]
    assert found["kind"] == "ConfigMap"
    assert found["metadata"]["annotations"] == {"grafana_folder": "cdcd"}
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["cdcd.json"]) == json.loads(panels.DASHBOARD.read_text())


def test_what_an_operator_adds_to_the_pods_is_in_the_daemons_and_in_their_test() -> None:
    found = dict(pods(rendered("full")))
    for kind, containers in (("Deployment", ["cdcd", "agent"]), ("Pod", ["check"])):
        spec = found[kind]["spec"]
        # A sidecar of a test would keep it from ending.
        assert [one["name"] for one in spec["containers"]] == containers
        assert [one["name"] for one in spec["initContainers"]] == ["proxy"]
        ours = spec["containers"][0]
        assert ours["envFrom"] == [{"secretRef": {"name": "shop-env", "optional": True}}]
        assert {"company-ca", "claims"} <= {one["name"] for one in spec["volumes"]}
        assert {"/etc/company-ca", "/claims"} <= {one["mountPath"] for one in ours["volumeMounts"]}


def test_a_change_of_the_configuration_starts_the_pods_anew() -> None:
    one, other = (
        of_kind("Deployment", rendered("minimal", "--set", f"config.topics.prefix={prefix}"))
        for prefix in ("a", "b")
    )
    assert one["spec"]["template"] != other["spec"]["template"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("config.postgres.slott=x", "additional properties 'slott' not allowed"),
        ("config.name=Shop", "'/config/name'"),
        ("config.http.enabled=false", "value must be true"),
        ("config.http.host=127.0.0.1", "/config/http/host"),
        ("networkPolicy.egress=all", "/networkPolicy/egress"),
        ("replica=1", "additional properties 'replica' not allowed"),
        ("strategy.type=OnDelete", "/strategy/type"),
        ("extraVolumeMounts[0].name=x", "missing property 'mountPath'"),
        ("envFrom[0].prefix=x", "/envFrom/0"),
        ("prometheusRule.runbookUrl=deploy/runbook.md", "/prometheusRule/runbookUrl"),
        ("mirror.enabled=true", "at '/mirror/config': missing properties"),
        (
            "mirror.enabled=true,mirror.config.name=shop,mirror.config.kafka.brokers=k:9092",
            "'brokers' not allowed",
        ),
    ],
)
def test_wrong_values_are_refused_at_install(setting: str, said: str) -> None:
    with pytest.raises(LocalServerError, match=re.escape(said)):
        render("--values", values_of("minimal"), "--set", setting)


def test_nothing_is_installed_without_a_pipeline() -> None:
    with pytest.raises(LocalServerError, match="missing properties 'name', 'postgres', 'kafka'"):
        render()


def test_the_cleanup_is_off_and_runs_drop_after_the_uninstall_if_it_is_asked_for() -> None:
    assert [each["kind"] for each in rendered("minimal")].count("Job") == 0
    found = rendered("minimal", "--set", "cleanup.enabled=true", "--set", "cleanup.args={--topics}")
    hooks = [each for each in found if each["metadata"]["name"].endswith("-cleanup")]
    assert [each["kind"] for each in hooks] == ["ConfigMap", "Job"]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == {"post-delete"}
    pod = of_kind("Job", found)["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["drop", "--config", "/etc/cdcd/cdcd.yaml", "--yes", "--topics"]
    # The ServiceAccount and the ConfigMap of the release are deleted by then.
    assert pod["serviceAccountName"] == "default"
    assert pod["volumes"][0]["configMap"]["name"] == hooks[0]["metadata"]["name"]
    assert parse_config(hooks[0]["data"]["cdcd.yaml"], {}).name == "shop"


def test_the_limits_that_a_platform_asks_for_can_be_set() -> None:
    found = rendered("minimal", "--set", "revisionHistoryLimit=9", "--set", "livenessFailureThreshold=7")
    deployment = of_kind("Deployment", found)["spec"]
    assert deployment["revisionHistoryLimit"] == 9
    assert deployment["template"]["spec"]["containers"][0]["livenessProbe"]["failureThreshold"] == 7
