"""The chart's dashboards: whole, readable, and about metrics, labels and label values that the code really has.

The same holds for the alerts' expressions. What can be checked without promtool is checked without it.
"""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.dashboards import ALERTS, DASHBOARDS, Query, load, panels, queries
from monitoring.exported import exported
from monitoring.prometheus import MISSING, find, promtool

pytest.importorskip("promql_parser", reason="needs promql-parser: pip install -r requirements/dev.txt")

from monitoring.expressions import Labels, Wrong, labels_of, selectors

from fairlead.api.conditions import ConditionStatus, ConditionType, Reason
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.reconcile import ReconcileOutcome
from fairlead.gateway.openai.errors import QueueOutcome, RequestOutcome
from fairlead.routing.books import Failure

VARIABLES = {"model": ".+", "namespace": "[^/]+", "replica": ".+", "__rate_interval": "1m", "datasource": "prometheus"}
QUERIES = [query for path in DASHBOARDS for query in queries(path)]
RULES = [
    rule
    for path in ALERTS
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]


def texts(*kinds: type[Enum]) -> set[str]:
    return {getattr(member, "label", str(member.value)) for kind in kinds for member in kind}


VALUES = {
    ("fairlead_gateway_requests_total", "outcome"): texts(QueueOutcome, RequestOutcome),
    ("fairlead_gateway_failed_attempts_total", "failure"): texts(Failure) | {"engine_full"},
    ("fairlead_gateway_tokens_total", "kind"): {"prompt", "cached", "predicted_cached", "completion"},
    ("fairlead_operator_pods", "stage"): texts(Stage),
    ("fairlead_operator_condition", "type"): texts(ConditionType),
    ("fairlead_operator_condition", "status"): texts(ConditionStatus),
    ("fairlead_operator_condition", "reason"): texts(Reason),
    ("fairlead_operator_scaling_decisions_total", "direction"): {"up", "down"},
    ("fairlead_operator_reconciliations_total", "outcome"): texts(ReconcileOutcome),
    ("fairlead_engine_step_cost_seconds", "term"): {"residual"},
}
"""Metric and label → the values that it can have (of step_cost_seconds: that are asked for)."""
FREE = {"model", "namespace", "replica", "pod", "llmdeployment", "job", "fairlead_dev_llmdeployment", "status"}
"""Labels whose values are not the code's to choose (`status` of requests: any HTTP status)."""


@pytest.fixture(scope="module")
def known() -> Mapping[str, Labels]:
    """What the programs export, and what the recording rules make of it."""
    found = dict(exported())
    for rule in RULES:
        if "record" in rule:
            found[rule["record"]] = labels_of(rule["expr"], found)
    return found


def check_values(expression: str) -> None:
    """Raises Wrong where a matcher asks for a value that does not occur."""
    for metric, label, value, is_pattern in selectors(expression):
        if (metric, label) not in VALUES:
            if label not in FREE:
                raise Wrong(f"nobody has said which values {label} of {metric} has")
            continue
        asked = set(value.split("|")) if is_pattern else {value}
        if unknown := asked - VALUES[metric, label]:
            raise Wrong(f"{label} of {metric} is never {', '.join(sorted(unknown))}")


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_panel_asks_for_what_exists(query: Query, known: Mapping[str, Labels]) -> None:
    expression = query.filled_in(VARIABLES)
    labels = labels_of(expression, known)
    check_values(expression)
    assert query.legend_labels <= labels, "the legend shows labels that the result does not have"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_what_exists(rule: dict[str, Any], known: Mapping[str, Labels]) -> None:
    labels = labels_of(rule["expr"], known)
    check_values(rule["expr"])
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule.get("annotations", {}))))
    assert shown <= labels, "the annotations show labels that the result does not have"


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(fairlead_gateway_boats)", "nobody exports fairlead_gateway_boats"),
        ('fairlead_gateway_ready{model="x"}', "has no label model"),
        ("sum by (pod) (sum by (model) (fairlead_gateway_queue_requests))", "has no label pod"),
        ("fairlead_gateway_queue_bytes / fairlead_operator_leader", r"\['model'\] are on one side"),
        ("fairlead_gateway_queue_requests and on (model) fairlead_operator_leader", "has no label model"),
        ("histogram_quantile(0.9, sum by (model) (fairlead_gateway_queue_wait_seconds_bucket))", "has no label le"),
        ('label_replace(fairlead_operator_leader, "a", "$1", "model", "(.+)")', "has no label model"),
    ],
)  # fmt: skip
def test_what_would_silently_be_empty_is_found(expression: str, wrong: str, known: Mapping[str, Labels]) -> None:
    with pytest.raises(Wrong, match=wrong):
        labels_of(expression, known)


def test_values_that_never_occur_are_found() -> None:
    with pytest.raises(Wrong, match="outcome of fairlead_gateway_requests_total is never sunk"):
        check_values('fairlead_gateway_requests_total{outcome=~"completed|sunk"}')
    with pytest.raises(Wrong, match="nobody has said which values source"):
        check_values('fairlead_gateway_tokenized_tokens_total{source="x"}')


@pytest.mark.skipif(find("promtool") is None, reason=MISSING)
def test_promtool_takes_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query.filled_in(VARIABLES)} for number, query in enumerate(QUERIES)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    checked = promtool("check", "rules", file, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(QUERIES)} rules found" in checked.stdout


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_whole(path: Path) -> None:
    board = load(path)
    assert board["uid"] == path.stem
    assert board["id"] is None, "Grafana gives the id"
    assert board["title"].startswith("Fairlead / ")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles)), "people name panels by their titles"
    assert {link["url"].removeprefix("/d/") for link in board["links"]} <= {other.stem for other in DASHBOARDS}


def test_dashboards_have_different_uids() -> None:
    assert len({load(path)["uid"] for path in DASHBOARDS}) == len(DASHBOARDS) == 2


@pytest.mark.parametrize(
    "panel",
    [panel for path in DASHBOARDS for panel in panels(load(path))],
    ids=lambda panel: f"{panel['id']}-{panel['title']}",
)
def test_a_panel_can_be_read(panel: dict[str, Any]) -> None:
    assert panel["description"].rstrip().endswith((".", "?")), "a panel says what it shows"
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references)) > 0
    if panel["type"] == "timeseries":
        assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(path: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in load(path)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_variables_are_declared_used_and_about_what_exists(path: Path, known: Mapping[str, Labels]) -> None:
    declared = {variable["name"]: variable for variable in load(path)["templating"]["list"]}
    assert {"datasource", "namespace", "model"} <= set(declared)
    used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", path.read_text(encoding="utf-8")))
    assert used - {"__rate_interval", "__all"} == set(declared)
    for variable in declared.values():
        if variable["type"] == "datasource":
            continue
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked, variable["name"]
        filled = Query(path.stem, variable["name"], asked[1]).filled_in(VARIABLES)
        assert asked[2] in labels_of(filled, known)


def test_the_namespace_is_read_off_a_model() -> None:
    for path in DASHBOARDS:
        variable = next(each for each in load(path)["templating"]["list"] if each["name"] == "namespace")
        pattern = variable["regex"][1:-1].replace("\\/", "/")
        found = re.match(pattern, "team-a/dinghy")
        assert found is not None
        assert found[1] == "team-a"
