"""Renderings of charts/fairlead: the default, and one for every value of values.yaml set to something else.

Everything here needs Helm's SDK (requirements/helm.txt); each test file skips, visibly, where it is missing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.admission_policy import EXEMPT, LIMITS
from fairlead_testing.collection import lies_below

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts" / "fairlead"
Manifest = dict[str, Any]
MONITORING_APIS = [
    f"monitoring.coreos.com/v1{kind}" for kind in ("", "/PodMonitor", "/ServiceMonitor", "/PrometheusRule")
]
"""What a cluster with the Prometheus operator serves."""
SETTINGS = (EXEMPT, *LIMITS)
"""Of the chart's admissionPolicy and the operator's."""
ONLY_WITH: dict[str, dict[str, Any]] = {
    **{
        f"gateway.service.{name}": {"gateway": {"service": {"type": "LoadBalancer"}}}
        for name in ("nodePort", "externalTrafficPolicy", "loadBalancerClass", "loadBalancerSourceRanges")
    },
    **{
        f"{each}.serviceAccount.create": {each: {"serviceAccount": {"name": "ours"}}}
        for each in ("operator", "gateway")
    },
    **{
        f"gateway.autoscaling.{name}": {"gateway": {"autoscaling": {"enabled": True}}}
        for name in ("minReplicas", "maxReplicas", "targetCPUUtilization", "metrics", "behavior")
    },
    "gateway.grpc.port": {"gateway": {"grpc": {"enabled": True}}},
    **{
        f"gateway.ingress.{name}": {"gateway": {"ingress": {"enabled": True}}}
        for name in ("className", "annotations", "hosts", "tls")
    },
    **{
        f"admissionPolicy.{name}": {"admissionPolicy": {"enabled": True}}
        for name in ("validatingAdmissionPolicy", *SETTINGS)
    },
    **{
        f"gateway.fileStore.{name}": {"gateway": {"responseStore": {"secret": "responses-database"}}}
        for name in ("claim", "bucket")
    },
    "gateway.httpRoute.enabled": {"gateway": {"httpRoute": {"parentRefs": [{"name": "world"}]}}},
    **{
        f"gateway.httpRoute.{name}": {"gateway": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "world"}]}}}
        for name in ("parentRefs", "hostnames", "requestTimeout", "annotations")
    },
}
"""Values whose alternatives are refused alone, or do nothing → what they need beside them."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The renderings are made once per process: one process for all of it."""
    for item in items:
        if lies_below(item, Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("chart"))


@pytest.fixture(scope="session")
def values() -> dict[str, Any]:
    """The chart's own values."""
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="session")
def value_paths(values: dict[str, Any]) -> set[str]:
    """The paths of all values: `gateway.drain.delay`."""
    return {path for path, _ in leaves(values)}


@pytest.fixture(scope="session")
def alternatives(values: dict[str, Any]) -> dict[str, Any]:
    """Path → another value than the default, for every value there is."""
    written = yaml.safe_load((Path(__file__).parent / "alternatives.yaml").read_text())
    made_up = {path: _other(value) for path, value in leaves(values) if isinstance(value, bool | int | float)}
    return {**made_up, **written}


@pytest.fixture(scope="session")
def default_rendering() -> dict[str, str]:
    """Template → text, as `helm install` on a cluster with the Prometheus operator."""
    import helm

    return helm.render(api_versions=MONITORING_APIS)


@pytest.fixture(scope="session")
def renderings(alternatives: dict[str, Any], default_rendering: dict[str, str]) -> Mapping[str, dict[str, str]]:
    """Path of the value that was changed → the rendering; `default`: none was, `everything`: all that is off is on,
    `for PATH`: only what that value needs beside it."""
    import helm

    cases = {path: merged(ONLY_WITH.get(path, {}), nested(path, value)) for path, value in alternatives.items()}
    everything = {
        "operator": {"replicas": 2},
        "watch": {"namespaces": ["team-a", "team-b", "fairlead-system"]},
        "networkPolicy": {"monitoringNamespace": "monitoring"},
    }
    cases |= {"everything": everything, "no keys": {"auth": {"enabled": False}}}
    cases |= {f"for {path}": more for path, more in ONLY_WITH.items()}
    found = {name: helm.render(case, api_versions=MONITORING_APIS) for name, case in cases.items()}
    return {"default": default_rendering, **found}


@pytest.fixture(scope="session")
def installed(renderings: Mapping[str, dict[str, str]]) -> Mapping[str, list[Manifest]]:
    """Path of the value that was changed → every object of that rendering. They are shared: not to be changed."""
    import helm

    parsed: dict[str, list[Manifest]] = {}

    def parse(name: str, text: str) -> list[Manifest]:
        if text not in parsed:
            parsed[text] = helm.objects({name: text})
        return parsed[text]

    return {
        case: [found for name, text in rendering.items() for found in parse(name, text)]
        for case, rendering in renderings.items()
    }


def leaves(values: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Path and default of every value; a map that people fill as they like is one value."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        here = f"{path}{key}"
        is_one = here == "profiles" or key in ("resources", "labels", "podSecurityContext")
        if isinstance(value, Mapping) and value and not is_one:
            found += leaves(value, f"{here}.")
        else:
            found.append((here, value))
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b` and 1 → {"a": {"b": 1}}."""
    *parents, last = path.split(".")
    result: dict[str, Any] = {last: value}
    for parent in reversed(parents):
        result = {parent: result}
    return result


def merged(first: dict[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both maps and the maps in them; the second one's values win."""
    found = dict(first)
    for key, value in second.items():
        is_both = isinstance(value, Mapping) and isinstance(first.get(key), Mapping)
        found[key] = merged(first[key], value) if is_both else value
    return found


def _other(value: float) -> float:
    return (not value) if isinstance(value, bool) else value + 1
