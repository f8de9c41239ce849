"""Definitions older and newer than what is stored, and kubectl's own ways to look before it writes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from children import OWNED, events, everything, listed, stands_still, versions
from homes.kubectl import CRD, OURS, Json
from hopeless import TOO_LARGE

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(300)]

RESYNC = 4.0
"""Seconds in which the operator looks at everything at least once."""


# -- what kubectl says before anything is stored --


def test_kubectl_diff_shows_what_was_changed_and_nothing_that_the_operator_wrote(
    plane: Any, manifest: Callable[..., Json], pending: str
) -> None:
    wanted = plane.get("llm", pending)
    written = manifest(pending, **{key: value for key, value in wanted["spec"].items() if key != "model"})

    def diff(**spec: Any) -> tuple[int, set[str]]:
        changed = {**written, "spec": {**written["spec"], **spec}}
        found = plane.kubectl("diff", "-f", "-", stdin=yaml.safe_dump(changed), check=False)
        lines = (line for line in found.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---"))
        return found.returncode, {" ".join(line.split()) for line in lines}

    assert diff() == (0, set())
    assert diff(replicas=2) == (1, {"- replicas: 1", "+ replicas: 2", "- generation: 1", "+ generation: 2"})
    assert plane.get("llm", pending)["spec"]["replicas"] == 1


# -- definitions --


@contextmanager
def definition(plane: Any, change: Callable[[Json], None]) -> Iterator[None]:
    """Within the block the server has our definition with a change of its one version; afterwards ours again."""
    put(plane, change)
    try:
        yield
    finally:
        put(plane)


def put(plane: Any, change: Callable[[Json], None] | None = None) -> None:
    """Replaces the definition, and waits until the server goes by it."""
    crd = yaml.safe_load(CRD.read_text())
    crd["metadata"]["labels"] = {**crd["metadata"].get("labels", {}), **OURS}
    (version,) = crd["spec"]["versions"]
    if change:
        change(version)
    # A mark that only this state of the definition has, to see which the server publishes.
    mark = f"e2e {json.dumps(version, sort_keys=True).__hash__()}"
    schema = version["schema"]["openAPIV3Schema"]
    schema["description"] = f"{schema.get('description', '')} {mark}"
    plane.kubectl("replace", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(crd))
    plane.wait("the definition to be the server's", lambda: mark in plane.kubectl("explain", "llm").stdout)


def without_rule(schema: Json, sentence: str) -> None:
    rules = schema["x-kubernetes-validations"]
    (rule,) = (each for each in rules if each["message"].startswith(sentence))
    rules.remove(rule)


# -- objects that an older definition took, and ours refuses --


def looser(version: Json) -> None:
    """As a version might have had it that did not yet refuse some things."""
    whole = version["schema"]["openAPIV3Schema"]
    spec = whole["properties"]["spec"]
    del spec["properties"]["engine"]["properties"]["maxNumSeqs"]["maximum"]
    del spec["properties"]["drain"]["properties"]["timeout"]["pattern"]
    without_rule(spec["properties"]["autoscaling"], "autoscaling.minReplicas must not be above")
    without_rule(spec, "resources.gpus must not be above")
    without_rule(whole, "metadata.name must not be longer")


@dataclass(frozen=True)
class Old:
    """A value that is refused today, another such, and one that is taken."""

    stored: Json
    worse: Json
    good: Json
    words: str
    """Of the server and of the conditions."""


OLD = {
    "limit": Old(
        {"engine": {"maxNumSeqs": 99999}},
        {"engine": {"maxNumSeqs": 99998}},
        {"engine": {"maxNumSeqs": 4}},
        "spec.engine.maxNumSeqs in body should be less than or equal to 65536",
    ),
    "pattern": Old(
        {"drain": {"timeout": "soon"}},
        {"drain": {"timeout": "later"}},
        {"drain": {"timeout": "9s"}},
        "spec.drain.timeout in body should match",
    ),
    "rule": Old(
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        {"autoscaling": {"minReplicas": 4}},
        {"autoscaling": None},
        "autoscaling.minReplicas must not be above autoscaling.maxReplicas",
    ),
}
"""What is wrong with one field, and stays apart from all others."""
OF_THE_SPEC = Old(
    {"resources": {"gpus": 2}},
    {"resources": {"gpus": 3}},
    {"resources": {"gpus": 1}},
    "resources.gpus must not be above engine.tensorParallelSize",
)
TOO_LONG = "of-the-name-" + "x" * 30


@pytest.fixture(scope="module")
def stored(plane: Any, manifest: Callable[..., Json]) -> Iterator[None]:
    """Objects that the present definition would refuse, and an operator that sees them for the first time. Each is
    called as its case."""
    cases = {**{each: old.stored for each, old in OLD.items()}, "of-the-spec": OF_THE_SPEC.stored, TOO_LONG: {}}
    plane.stop_operators()
    with definition(plane, looser):
        plane.apply(*(manifest(each, **{"resources": TOO_LARGE, **spec}) for each, spec in cases.items()))
    plane.start_operator()
    yield
    plane.kubectl("delete", "llm", *cases, "--timeout=60s")


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("case", OLD)
def test_what_an_older_definition_took_stays_usable_and_is_told(plane: Any, case: str) -> None:
    old = OLD[case]
    assert old.words in plane.wait_condition(case, "Ready", "False", "InvalidSpec")["message"]
    assert plane.condition(case, "Degraded")["reason"] == "InvalidSpec"
    plane.kubectl("label", "llm", case, "team=harbour")
    plane.merge(case, {"routing": {"coldStartTimeout": "3m"}})
    plane.kubectl("scale", "llm", case, "--replicas=2")

    def is_told() -> bool:
        found = plane.get("llm", case)
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    plane.wait("the status to follow", is_told)
    worse = plane.merge(case, old.worse, check=False)
    assert (worse.returncode, old.words in worse.stderr) == (1, True), worse.stderr
    assert not listed(plane, OWNED, case)
    plane.merge(case, old.good)
    plane.wait_condition(case, "Ready", "False", "Unschedulable")
    assert "Traceback" not in plane.operator.log


@pytest.mark.usefixtures("stored")
def test_nobody_scales_what_breaks_a_rule(plane: Any) -> None:
    """Its bounds may be what is wrong."""
    name = "rule"
    plane.merge(name, OLD[name].good, check=False)
    assert plane.get("llm", name)["spec"]["replicas"] in (1, 2), "as it was written, whatever minReplicas says"
    assert "ScaledUp" not in {each["reason"] for each in events(plane, name)}


@pytest.mark.usefixtures("stored")
def test_a_broken_rule_of_the_spec_keeps_neither_status_nor_labels_from_being_written(plane: Any) -> None:
    """Only a change of the spec has to mend it."""
    name, old = "of-the-spec", OF_THE_SPEC
    assert old.words in plane.wait_condition(name, "Ready", "False", "InvalidSpec")["message"]
    plane.kubectl("label", "llm", name, "team=harbour")
    for change in ({"routing": {"coldStartTimeout": "3m"}}, old.worse):
        refused = plane.merge(name, change, check=False)
        assert (refused.returncode, old.words in refused.stderr) == (1, True), refused.stderr
    plane.merge(name, old.good)
    plane.wait_condition(name, "Ready", "False", "Unschedulable")


@pytest.mark.usefixtures("stored")
def test_an_object_that_can_never_be_written_is_told_of_once_in_events_and_log(plane: Any) -> None:
    """A name is no field that anybody can change, and the rule is checked on every write, of the status too."""
    words = "metadata.name must not be longer than 40"

    def looks() -> int:
        return sum(f"/{TOO_LONG} outcome=blocked" in line for line in plane.operator.log.splitlines())

    plane.wait("three looks", lambda: looks() >= 3)
    found = {each["reason"]: each for each in events(plane, TOO_LONG)}
    assert found.keys() == {"InvalidSpec", "StatusRefused"}
    assert all(
        (words in each["message"], each["type"], each["count"]) == (True, "Warning", 1) for each in found.values()
    )
    refused = [line for line in plane.operator.log.splitlines() if f"/{TOO_LONG}: the status cannot be written" in line]
    assert len(refused) == 1
    assert "Traceback" not in plane.operator.log
    assert not listed(plane, OWNED, TOO_LONG)


# -- definitions that are older than the operator --


COLUMNS = {"QUEUE", "TTFT-P90"}
STATUS = ("desiredReplicas", "url")


def older(version: Json) -> None:
    """As an earlier version might have had it: without adapters, two columns and some of what the status says."""
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    spec, status = properties["spec"], properties["status"]["properties"]
    del spec["properties"]["adapters"]
    spec["x-kubernetes-validations"] = [r for r in spec["x-kubernetes-validations"] if "adapters" not in r["rule"]]
    rules = version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    rules[:] = [rule for rule in rules if "adapters" not in rule["rule"]]
    for each in STATUS:
        del status[each]
    del status["conditions"]["items"]["properties"]["observedGeneration"]
    columns = version["additionalPrinterColumns"]
    columns[:] = [each for each in columns if each["name"].upper() not in COLUMNS]


def test_objects_live_through_an_upgrade_of_the_definition_and_an_operator_ahead_of_it_says_so(
    plane: Any, manifest: Callable[..., Json], name: str
) -> None:
    def header() -> set[str]:
        return set(plane.kubectl("get", "llm", name).stdout.splitlines()[0].split())

    with definition(plane, older):
        plane.apply(manifest(name, replicas=0))
        plane.wait(
            "the status to say it",
            lambda: "The CRD is older than this operator" in plane.condition(name, "Degraded").get("message", ""),
        )
        seen = plane.condition(name, "Degraded")
        for field in ("status.conditions.observedGeneration", *(f"status.{each}" for each in STATUS)):
            assert field in seen["message"]
        assert (seen["status"], plane.condition(name, "Ready")["reason"]) == ("False", "ScaledToZero")
        assert not COLUMNS & header()
        stands_still(plane, lambda: everything(plane, name), RESYNC)
        assert not set(STATUS) & plane.get("llm", name)["status"].keys()
        before, children = plane.get("llm", name), versions(listed(plane, OWNED, name))
    after = plane.get("llm", name)
    assert (after["spec"], after["metadata"]["uid"]) == (before["spec"], before["metadata"]["uid"])
    plane.wait("the rest of the status", lambda: set(STATUS) <= plane.get("llm", name)["status"].keys())
    plane.wait("no more to say", lambda: "CRD" not in plane.condition(name, "Degraded")["message"])
    assert header() >= COLUMNS
    assert versions(listed(plane, OWNED, name)) == children, "engines go on as they are"
    adapters = [{"name": "pirate", "source": "pvc://adapters/pirate"}]
    plane.merge(name, {"adapters": adapters})
    assert plane.get("llm", name)["spec"]["adapters"] == adapters
    plane.wait("the adapter to be looked for", lambda: plane.get("llm", name)["status"].get("adapters"))
    assert "Traceback" not in plane.operator.log
    plane.delete("llm", name)
