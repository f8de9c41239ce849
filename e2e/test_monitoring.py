"""A real Prometheus scrapes a fleet. Under load every panel has something to show and no alert cries wolf; what goes
wrong is seen by the panels and alerts that are meant for it."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from homes import Fleet
from homes.local import free_port
from monitoring.dashboards import ALERTS, DASHBOARDS, Query, queries
from monitoring.prometheus import MISSING, Prometheus, find, running
from monitoring.scraping import COMPONENTS, config, targets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local_only(reason="Prometheus runs on this machine and scrapes pods at their own addresses"),
    pytest.mark.skipif(find("prometheus") is None, reason=MISSING),
]

LOAD_SECONDS = 30.0
STEP_SECONDS = 2.0
QUERIES = [query for path in DASHBOARDS for query in queries(path)]
RIGHTLY_EMPTY = {
    "Conditions that need somebody": "nothing is wrong",
    "Refused requests by reason": "nothing is refused",
    "Failed requests": "nothing fails",
    "Failed attempts": "engines have room, and none fails",
    "Scaled": "the annotation of all graphs: the load stays as it is",
}
"""Panel → why a healthy fleet under steady load has nothing to show there."""


class Watch:
    """A Prometheus, and the pods it scrapes."""

    def __init__(self, prometheus: Prometheus, file: Path) -> None:
        self.prometheus = prometheus
        self.file = file

    def follow(self, fleet: Fleet, *names: str) -> None:
        """Finds the fleet's own pods and these LLMDeployments' engines; returns when all of them answer."""
        system = [fleet.system_pods(component) for component in ("gateway", "operator")]
        pods = [pod for found in (*system, *map(fleet.pods, names)) for pod in found.values()]
        self.file.write_text(json.dumps(targets(pods)), encoding="utf-8")
        fleet.wait("Prometheus to scrape everything", lambda: self._health() == {each: {"up"} for each in COMPONENTS})

    def _health(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for target in self.prometheus.get("/api/v1/targets", state="active")["activeTargets"]:
            found.setdefault(target["labels"]["job"].removeprefix("fairlead-"), set()).add(target["health"])
        return found

    def empty(self, model: str, pods: list[str], since: float) -> dict[str, Query]:
        """Panels with an expression that has had no value since then, as Grafana would ask for this model."""
        values = {
            "model": model, "namespace": model.partition("/")[0], "replica": "|".join(pods), "__rate_interval": "8s",
        }  # fmt: skip
        return {
            query.panel: query
            for query in QUERIES
            if not self.prometheus.has_had(query.filled_in(values), since=since, step=STEP_SECONDS)
        }

    def alerts(self, name: str = "") -> set[str]:
        """Alerts that fire, or will if it lasts; of one LLMDeployment only, if it is named."""
        found = self.prometheus.get("/api/v1/alerts")["alerts"]
        about = [alert["labels"] for alert in found]
        return {
            labels["alertname"]
            for labels in about
            if not name or name in (labels.get("model", ""), labels.get("llmdeployment", ""))
        }


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    folder = tmp_path_factory.mktemp("prometheus")
    file = folder / "targets.json"
    file.write_text("[]")
    with running(folder, config(file, ALERTS), free_port()) as prometheus:
        yield Watch(prometheus, file)


def autoscaling() -> dict[str, Any]:
    """Targets that the load of this test keeps, so that nothing has to be done about it."""
    targets = {"queueDepth": 100, "timeToFirstToken": "2m", "timePerOutputToken": "1m"}
    return {"minReplicas": 1, "maxReplicas": 2, "targets": targets}


def test_every_panel_has_something_to_show_under_load(
    fleet: Fleet, deployed: Callable[..., str], name: str, watch: Watch
) -> None:
    deployed(name, autoscaling=autoscaling())
    fleet.wait_ready(name)
    watch.follow(fleet, name)
    since = time.time()
    with fleet.steady_load(name, 3) as load:
        time.sleep(LOAD_SECONDS)
    assert load.verdict == (0, 0, 0), load.problems
    empty = watch.empty(f"{fleet.namespace}/{name}", list(fleet.pods(name)), since)
    assert set(empty) == set(RIGHTLY_EMPTY), "\n".join(map(str, empty.values()))
    assert watch.alerts() == set()


def test_what_goes_wrong_is_seen(fleet: Fleet, deployed: Callable[..., str], name: str, watch: Watch) -> None:
    broken, asleep = f"{name}-broken", f"{name}-asleep"
    deployed(name)
    deployed(broken, engine={"image": "registry.invalid/engine:0"})
    deployed(asleep, replicas=0)
    fleet.wait_ready(name)
    fleet.wait_condition(broken, "Degraded", "True")
    fleet.wait_condition(asleep, "Ready", "False", "ScaledToZero")
    watch.follow(fleet, name)
    since = time.time()
    body = {"model": asleep, "prompt": "A boat", "max_tokens": 1}
    for _ in range(5):
        status, _, _ = fleet.refusal("/v1/completions", body)
        assert status == 503
        time.sleep(2 * STEP_SECONDS)

    empty = watch.empty(f"{fleet.namespace}/{asleep}", [], since)
    assert not {"Refused requests by reason", "Conditions that need somebody", "Refused or failed"} & set(empty)
    seen = watch.alerts(f"{fleet.namespace}/{broken}")
    assert seen >= {"FairleadReplicasFailing", "FairleadDegraded", "FairleadNoReplicaReady"}
    assert watch.alerts(f"{fleet.namespace}/{asleep}") <= {"FairleadRequestsRefused"}
    assert watch.alerts(f"{fleet.namespace}/{name}") == set()
