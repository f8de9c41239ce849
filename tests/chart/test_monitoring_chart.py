"""What the chart makes of dashboards, alerts and scrapes, and when."""

import json
import re
from typing import Any

import pytest
import yaml
from monitoring.dashboards import ALERTS, CHART, DASHBOARDS
from monitoring.scraping import COMPONENTS, scrape_configs, targets

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.children import children, pod_monitor
from fairlead.operator_settings import OperatorSettings
from fairlead_local.system import Ports, system_deployments
from fairlead_testing.fleet_objects import stored

SERVED = ["monitoring.coreos.com/v1"]
Manifest = dict[str, Any]

LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
TEXT = {"type": "string", "minLength": 1}


def record(required: str = "", **properties: Any) -> Manifest:
    return {
        "type": "object", "additionalProperties": False, "required": required.split(), "properties": properties,
    }  # fmt: skip


def list_of(items: Manifest) -> Manifest:
    return {"type": "array", "minItems": 1, "items": items}


RELABELING = record("targetLabel replacement", targetLabel=TEXT, replacement=TEXT)
ENDPOINT = record(
    "port", port=TEXT, path=TEXT, interval=TEXT, scrapeTimeout=TEXT, relabelings=list_of(RELABELING)
)  # fmt: skip
RULE = record("expr", alert=TEXT, record=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS, **{"for": TEXT})
SPECS = {
    "PodMonitor": record(
        "selector podMetricsEndpoints",
        selector=record("matchLabels", matchLabels=LABELS),
        podMetricsEndpoints=list_of(ENDPOINT),
        podTargetLabels=list_of(TEXT),
    ),
    "PrometheusRule": record("groups", groups=list_of(record("name rules", name=TEXT, rules=list_of(RULE)))),
}
"""The fields of the Prometheus operator's types that we use, as those have them; any other is refused."""


def validate(manifest: Manifest) -> None:
    """Raises ValidationError."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install -r requirements/kubernetes.txt")
    assert manifest["apiVersion"] == "monitoring.coreos.com/v1"
    jsonschema.validate(manifest["spec"], SPECS[manifest["kind"]])


def rendered(values: Manifest | None = None, served: list[str] = SERVED) -> list[Manifest]:
    """Everything that templates/monitoring makes."""
    found = helm.render({"monitoring": values or {}}, api_versions=served)
    return helm.objects({name: text for name, text in found.items() if "/monitoring/" in name})


def kinds(manifests: list[Manifest]) -> list[str]:
    return sorted(manifest["kind"] for manifest in manifests)


def of_kind(kind: str, manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def settings(values: Manifest) -> Manifest:
    """The operator's settings file."""
    found = helm.manifests({"monitoring": values})
    files = [
        file for one in of_kind("ConfigMap", found) for name, file in one["data"].items() if name == "operator.yaml"
    ]
    return yaml.safe_load(files[0])


@pytest.mark.parametrize(
    ("wanted", "served", "expected"),
    [
        ("auto", SERVED, ["PodMonitor", "PodMonitor", "PrometheusRule"]),
        ("auto", [], []),
        ("always", [], ["PodMonitor", "PodMonitor", "PrometheusRule"]),
        ("never", SERVED, []),
    ],
)
def test_objects_for_the_prometheus_operator_are_made_where_it_is(
    wanted: str, served: list[str], expected: list[str]
) -> None:
    made = rendered({"prometheusOperator": wanted}, served)
    assert kinds([each for each in made if each["kind"] != "ConfigMap"]) == expected
    assert len(of_kind("ConfigMap", made)) == len(DASHBOARDS), "Grafana needs no Prometheus operator"


@pytest.mark.parametrize("part", ["podMonitors", "rules", "dashboards"])
def test_each_part_can_be_left_out(part: str) -> None:
    left_out = {"podMonitors": "PodMonitor", "rules": "PrometheusRule", "dashboards": "ConfigMap"}[part]
    assert left_out not in kinds(rendered({part: {"enabled": False}}))


def test_pod_monitors_select_the_pods_and_the_port_that_has_metrics() -> None:
    found = helm.manifests(api_versions=SERVED)
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind("Deployment", found)}
    monitors = {one["metadata"]["name"]: one["spec"] for one in of_kind("PodMonitor", found)}
    assert set(monitors) == set(pods) == {"fairlead-gateway", "fairlead-operator"}
    for name, spec in monitors.items():
        assert spec["selector"]["matchLabels"].items() <= pods[name]["metadata"]["labels"].items()
        (endpoint,) = spec["podMetricsEndpoints"]
        ports = [port["name"] for port in pods[name]["spec"]["containers"][0]["ports"]]
        assert endpoint["port"] in ports
        assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": name}], "the alerts know this name"


def running(template: Manifest, name: str) -> Manifest:
    """A pod of this template, as the API has it."""
    metadata = {"name": name, "namespace": "any", "labels": template["metadata"]["labels"]}
    return {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Running", "podIP": "10.0.0.1"}}


def scraped(job: Manifest, pods: list[Manifest]) -> list[str]:
    """The pods that a job of plain Prometheus keeps, a name per port."""
    kept = [step for step in job["relabel_configs"] if step["action"] == "keep"]
    return [
        target["labels"]["__meta_kubernetes_pod_name"]
        for target in targets(pods)
        if all(target["labels"].get(*step["source_labels"]) == step["regex"] for step in kept)
    ]


def test_plain_prometheus_finds_every_pod_of_ours_and_nobody_elses() -> None:
    made = children(LLMDeployment.from_body(stored()), OperatorSettings())
    local = system_deployments(Ports(gateway=1, operator=2), CHART, num_gateways=1)
    for system in (of_kind("Deployment", helm.manifests()), local):
        deployments = [*system, *of_kind("Deployment", list(made))]
        pods = [running(one["spec"]["template"], one["metadata"]["name"]) for one in deployments]
        theirs = json.loads(json.dumps(pods))
        for pod in theirs:
            pod["metadata"]["name"] = "theirs"
            pod["metadata"]["labels"]["app.kubernetes.io/part-of"] = "mesh"
        found = [scraped(job, [*theirs, *pods]) for job in scrape_configs()]
        assert found == [["fairlead-gateway"], ["fairlead-operator"], ["dinghy-engine"]]
        assert len(found) == len(COMPONENTS)


def test_the_job_has_the_same_name_in_every_release() -> None:
    found = helm.manifests({"nameOverride": "other"}, name="llm", api_versions=SERVED)
    jobs = [one["spec"]["podMetricsEndpoints"][0]["relabelings"][0] for one in of_kind("PodMonitor", found)]
    assert sorted(job["replacement"] for job in jobs) == ["fairlead-gateway", "fairlead-operator"]


def test_the_rules_are_the_files_about_the_namespaces_of_the_release() -> None:
    (rule,) = of_kind("PrometheusRule", rendered())
    for each in (each for group in rule["spec"]["groups"] for each in group["rules"]):
        each["expr"] = re.sub(r'namespace=~?"fairlead-system",?', "", each["expr"]).replace("{}", "")
    assert rule["spec"]["groups"] == [
        group for path in ALERTS for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]


def test_alerts_can_be_left_out_and_get_labels() -> None:
    values = {"disabled": ["FairleadDrainLong"], "alertLabels": {"team": "inference", "severity": "page"}}
    (rule,) = of_kind("PrometheusRule", rendered({"rules": values}))
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    alerts = {each["alert"]: each["labels"] for each in rules if "alert" in each}
    assert "FairleadDrainLong" not in alerts
    assert alerts["FairleadDegraded"] == {"team": "inference", "severity": "page"}
    assert all("labels" not in each for each in rules if "record" in each)


def test_an_alert_that_does_not_exist_cannot_be_left_out() -> None:
    with pytest.raises(helm.HelmError, match='there is no alert "FairleadDrainLnog"'):
        rendered({"rules": {"disabled": ["FairleadDrainLnog"]}})


def test_dashboards_arrive_as_they_are() -> None:
    made = of_kind("ConfigMap", rendered({"dashboards": {"namespace": "grafana"}}))
    arrived = {name: text for one in made for name, text in one["data"].items()}
    assert {name: json.loads(text) for name, text in arrived.items()} == {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS
    }
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in made)
    assert {one["metadata"]["namespace"] for one in made} == {"grafana"}
    assert all(len(text.encode()) < 2**20 for text in arrived.values()), "a ConfigMap holds a mebibyte"


def test_whose_objects_they_are_is_told_by_labels() -> None:
    values = {"podMonitors": {"labels": {"release": "p"}}, "rules": {"labels": {"release": "p"}}}
    for manifest in rendered(values):
        assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "fairlead"
        assert ("release" in manifest["metadata"]["labels"]) == (manifest["kind"] != "ConfigMap")


def test_the_chart_makes_what_the_prometheus_operator_understands() -> None:
    made = [manifest for manifest in rendered() if manifest["kind"] != "ConfigMap"]
    assert len(made) == 3
    for manifest in made:
        validate(manifest)


def test_the_operator_makes_what_the_prometheus_operator_understands() -> None:
    chosen = OperatorSettings(
        pod_monitor_labels={"release": "p", "app.kubernetes.io/component": "mine"},
        pod_monitor_interval="1m",
        pod_monitor_scrape_timeout="20s",
    )
    monitor = pod_monitor(LLMDeployment.from_body(stored()), chosen)
    validate(monitor)
    labels = monitor["metadata"]["labels"]
    assert (labels["release"], labels["app.kubernetes.io/component"]) == ("p", "engine")
    assert monitor["spec"]["podTargetLabels"] == ["fairlead.dev/llmdeployment"], "FairleadTargetDown looks at it"


@pytest.mark.parametrize(
    ("values", "engines"),
    [
        ({}, True),
        ({"podMonitors": {"engines": False}}, False),
        ({"podMonitors": {"enabled": False}}, False),
        ({"prometheusOperator": "never"}, False),
    ],
)
def test_the_operator_is_told_whether_engines_get_pod_monitors(values: Manifest, engines: bool) -> None:
    assert settings(values)["podMonitors"] is engines


def test_the_operator_is_told_the_labels_of_its_pod_monitors() -> None:
    assert settings({"podMonitors": {"labels": {"release": "p"}}})["podMonitorLabels"] == {"release": "p"}
    assert settings({})["podMonitorLabels"] == {}


def test_engines_are_read_as_often_as_gateways(values: Manifest) -> None:
    def times(**scrape: str) -> Manifest:
        told = OperatorSettings.from_mapping(settings({"podMonitors": scrape}))
        return {"interval": told.pod_monitor_interval, "scrapeTimeout": told.pod_monitor_scrape_timeout}

    defaults = values["monitoring"]["podMonitors"]
    assert times() == {name: defaults[name] for name in ("interval", "scrapeTimeout")}
    chosen = {"interval": "2m", "scrapeTimeout": "30s"}
    assert times(**chosen) == chosen
    for monitor in of_kind("PodMonitor", rendered({"podMonitors": chosen})):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert chosen.items() <= endpoint.items()


def test_files_are_what_plain_tools_read() -> None:
    assert [path.relative_to(CHART).as_posix() for path in (*ALERTS, *DASHBOARDS)] == [
        "files/alerts/fairlead.yaml", "files/dashboards/fairlead-engines.json", "files/dashboards/fairlead-fleet.json",
    ]  # fmt: skip
