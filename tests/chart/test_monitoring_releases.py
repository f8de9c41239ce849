"""Two releases on one cluster, each with its own rules: an alert is about one of them, and fires once for one fault."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.prometheus import MISSING, find, promtool

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")
pytest.importorskip("promql_parser", reason="needs promql-parser: pip install -r requirements/dev.txt")

import helm
from monitoring.expressions import matchers

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "alert_cases.yaml").read_text(encoding="utf-8"))
WATCHED = {"one": ["ships-one", "boats-one"], "two": ["ships-two"]}
"""Namespace of a release → those that it watches."""
WELL = {
    'fairlead_gateway_ready{pod="g",namespace="NAMESPACE"}': "1x200",
    'fairlead_operator_leader{pod="o",namespace="NAMESPACE"}': "1x200",
}
"""What a release without a fault exports, in promtool's notation."""


def rules(namespace: str, **watch: Any) -> list[dict[str, Any]]:
    """The groups of a release's PrometheusRule, whose alerts name the release."""
    values = {
        "watch": watch or {"namespaces": WATCHED[namespace]},
        "monitoring": {"rules": {"alertLabels": {"release": namespace}}},
    }
    rendered = helm.render(values, namespace=namespace, api_versions=["monitoring.coreos.com/v1"])
    (found,) = (each for each in helm.objects(rendered) if each["kind"] == "PrometheusRule")
    groups: list[dict[str, Any]] = found["spec"]["groups"]
    return groups


def expressions(groups: list[dict[str, Any]]) -> list[str]:
    return [rule["expr"] for group in groups for rule in group["rules"]]


def namespaces_asked_for(groups: list[dict[str, Any]]) -> Iterator[tuple[bool, set[str]]]:
    """Of every series in every expression: whether it is an engine's, and its matchers of the label `namespace`."""
    for expression in expressions(groups):
        for series, found in matchers(expression):
            of_engine = series.startswith("fairlead_engine_") or any(name == ENGINE_LABEL for name, _ in found)
            yield of_engine, {value for name, value in found if name == "namespace"}


ENGINE_LABEL = "fairlead_dev_llmdeployment"


def test_every_series_is_asked_for_in_the_namespaces_of_the_release_only() -> None:
    asked = list(namespaces_asked_for(rules("one")))
    assert {of_engine for of_engine, _ in asked} == {True, False}
    for of_engine, found in asked:
        assert found == ({"boats-one|ships-one"} if of_engine else {"one"})


def test_engines_are_anywhere_where_every_namespace_is_watched() -> None:
    for of_engine, found in namespaces_asked_for(rules("one", allNamespaces=True)):
        assert found == (set() if of_engine else {"one"})


def in_release(namespace: str, series: str) -> str:
    """A series of a case, as Prometheus has it of that release: `namespace` is where the program runs."""
    bare = re.sub(r',?namespace="[^"]*"', "", series)
    of_engine = bare.startswith("fairlead_engine_") or ENGINE_LABEL in bare
    where = WATCHED[namespace][0] if of_engine else namespace
    return f'{bare.removesuffix("}")},namespace="{where}"}}'


def fault(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """The case in release `one` while `two` is well: `one` says so, once, and `two` says nothing."""
    broken = {in_release("one", series): values for series, values in case["series"].items()}
    well = {series.replace("NAMESPACE", "two"): values for series, values in WELL.items()}
    fired = f'count by (release) (ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in (broken | well).items()],
        "promql_expr_test": [
            {"expr": fired, "eval_time": case["at"], "exp_samples": [{"labels": '{release="one"}', "value": 1}]}
        ],
    }


@pytest.mark.skipif(find("promtool") is None, reason=MISSING)
def test_a_fault_of_one_release_is_told_once_and_by_that_release(tmp_path: Path) -> None:
    groups, specs = [(namespace, rules(namespace)) for namespace in WATCHED], []
    for name, cases in ((each["alert"], each["fires"]) for each in CASES):
        for namespace, all_rules in groups:  # promtool evaluates all it is given
            kept = [{**g, "rules": [rule for rule in g["rules"] if rule.get("alert", name) == name]} for g in all_rules]
            (tmp_path / f"{name}-{namespace}.yaml").write_text(yaml.safe_dump({"groups": kept}), encoding="utf-8")
        tests = [fault(name, case) for case in cases if not is_of_two(case)]
        assert tests
        spec = {"rule_files": [f"{name}-{namespace}.yaml" for namespace in WATCHED], "tests": tests}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        specs.append(f"{name}.yaml")
    tested = promtool("test", "rules", *specs, folder=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def is_of_two(case: dict[str, Any]) -> bool:
    """Whether the case plays two releases itself."""
    return len({found for series in case["series"] for found in re.findall(r'namespace="([^"]*)"', series)}) > 1
