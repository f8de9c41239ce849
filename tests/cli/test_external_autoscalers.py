"""The examples for HPA and KEDA ask for metrics that gateways have, in words that their readers understand."""

from pathlib import Path
from typing import Any

import external_metrics
import pytest
import yaml
from monitoring.exported import exported, gateway_scrape
from monitoring.prometheus import MISSING, find, promtool

pytest.importorskip("promql_parser", reason="needs promql-parser: pip install -r requirements/dev.txt")

from monitoring.expressions import labels_of, matchers

ROOT = Path(__file__).parents[2]
PROMETHEUS_TRIGGER = {
    "serverAddress", "query", "threshold", "activationThreshold", "namespace", "customHeaders", "ignoreNullValues",
    "queryParameters", "unsafeSsl", "timeout", "authModes",
}  # fmt: skip
"""What https://keda.sh/docs/latest/scalers/prometheus/ knows."""


def example(file: str, kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "examples" / file).read_text(encoding="utf-8"))
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def scaled_object() -> dict[str, Any]:
    return example("06-keda.yaml", "ScaledObject")


def trigger() -> dict[str, str]:
    """The metadata of the one trigger."""
    (found,) = scaled_object()["spec"]["triggers"]
    assert found["type"] == "prometheus"
    metadata: dict[str, str] = found["metadata"]
    return metadata


def test_keda_knows_every_field_of_the_trigger() -> None:
    assert {"serverAddress", "query", "threshold"} <= set(trigger()) <= PROMETHEUS_TRIGGER


def test_the_scaled_object_writes_to_the_objects_scale() -> None:
    target, deployment = scaled_object()["spec"]["scaleTargetRef"], example("06-keda.yaml", "LLMDeployment")
    assert (target["apiVersion"], target["kind"], target["name"]) == (
        deployment["apiVersion"], deployment["kind"], deployment["metadata"]["name"],
    )  # fmt: skip
    assert deployment["spec"]["autoscaling"]["mode"] == "External"


def test_keda_asks_for_metrics_of_the_model_that_gateways_have() -> None:
    query, name = trigger()["query"], scaled_object()["metadata"]["name"]
    assert labels_of(query, exported()) == frozenset(), "KEDA wants one value"
    asked = [(metric, found) for metric, found in matchers(query) if metric]
    assert {metric for metric, _ in asked} == {
        "fairlead_gateway_queue_requests", "fairlead_gateway_in_flight_requests",
    }  # fmt: skip
    for _, found in asked:
        assert dict(found) == {"llmdeployment_namespace": "default", "llmdeployment": name}


def series(metric: str, **labels: str) -> str:
    every = {"model": "default/ketch", "llmdeployment_namespace": "default", "llmdeployment": "ketch", **labels}
    pairs = (f'{name}="{value}"' for name, value in every.items())
    return f"{metric}{{{','.join(pairs)}}}"


QUEUE, IN_FLIGHT = "fairlead_gateway_queue_requests", "fairlead_gateway_in_flight_requests"


@pytest.mark.skipif(find("promtool") is None, reason=MISSING)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({series(QUEUE, pod="g1"): 1, series(QUEUE, pod="g2"): 0}, 1),  # no replica, so nothing in flight: it must wake
        ({series(QUEUE, pod="g1"): 0, series(QUEUE, pod="g2"): 0}, 0),
        (
            {
                series(QUEUE, pod="g1"): 2,
                series(QUEUE, pod="g2"): 3,
                series(IN_FLIGHT, pod="g1", replica="a"): 4,
                series(IN_FLIGHT, pod="g2", replica="b"): 5,
                series(QUEUE, pod="g1", llmdeployment="other"): 100,
                series(QUEUE, pod="g1", llmdeployment_namespace="other"): 100,
            },
            14,
        ),
    ],
)
def test_keda_is_told_what_waits_and_what_runs(values: dict[str, int], expected: int, tmp_path: Path) -> None:
    test = {
        "interval": "1m",
        "input_series": [{"series": each, "values": f"{value}+0x5"} for each, value in values.items()],
        "promql_expr_test": [
            {"expr": trigger()["query"], "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": expected}]}
        ],
    }
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}), encoding="utf-8")
    tested = promtool("test", "rules", "cases.yaml", folder=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_hpa_asks_for_metrics_that_gateways_have_and_an_adapter_serves() -> None:
    metrics = example("04-external-autoscaler.yaml", "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert len(metrics) == 2
    page = gateway_scrape()
    for metric in (each["external"]["metric"] for each in metrics):
        name, labels = metric["name"], metric["selector"]["matchLabels"]
        assert set(labels) <= exported()[name]
        assert labels == {"llmdeployment": "pinnace"}
        ((scraped, _), *_) = external_metrics.series_of(page, name)
        namespace = scraped[external_metrics.NAMESPACE_LABEL]
        selector = f"llmdeployment={scraped['llmdeployment']}"
        assert external_metrics.summed([page], name, namespace, selector), "an adapter has nothing to tell the HPA"
        assert external_metrics.summed([page], name, "elsewhere", selector) == []
