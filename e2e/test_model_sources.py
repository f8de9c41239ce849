"""From a name to an answer: a model of a hub, downloaded with a Secret, kept in a cache; and why a download fails.

The hub is a program of this repository that speaks the Hub's API and takes its time, so that progress can be seen.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from homes.fleet import environment
from homes.kubectl import secret
from homes.volumes import MAKE_WRITABLE

import fairlead_local.demo.loopback_hub

HUB = Path(fairlead_local.demo.loopback_hub.__file__).read_text()
TOKEN = "hf_thistokenmustbeseennowhere"
BYTES_PER_SECOND = 1_800_000
"""The dinghy has 7 MB: some four seconds, in which the operator looks twice."""


@pytest.mark.cluster_suffices
def test_a_model_of_a_hub_is_downloaded_once_and_says_how_far_it_is(fleet, deployed: Any, name: str) -> None:
    keys = {"HUB_TOKEN_SHA256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    with fleet.serving(f"{name}-hub", HUB, ["fairlead/dinghy", str(BYTES_PER_SECOND)], keys) as hub:
        fleet.apply(
            secret(name, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN),
            secret(f"{name}-refused", HF_ENDPOINT=hub.url, HF_TOKEN="hf_another"),
        )
        cache: dict[str, Any] = {"node": True, "size": "1Gi"}
        if fleet.home == "kubernetes":
            fleet.write_claim(name, MAKE_WRITABLE, [])
            cache = {"claim": name, "size": "1Gi"}
        model = {"credentials": {"secretName": name}, "cache": cache}
        deployed(name, "hf://fairlead/dinghy@main", model=model)

        far = r"downloading hf://fairlead/dinghy@main: [\d.]+ of 7\.\d MB, [\d.]+ [kM]B/s, \d+ s left"
        fleet.wait("progress to be told", lambda: re.search(far, fleet.download_progress(name)))
        fleet.wait_ready(name)
        assert fleet.adds_up(name)
        assert "download" in fleet.get("llm", name)["status"]["startup"]
        num_fetched = hub.log().count("model.safetensors")
        assert num_fetched >= 1

        fleet.kubectl("scale", "llm", name, "--replicas=2")
        fleet.wait_ready(name, 2)
        assert hub.log().count("model.safetensors") == num_fetched, "the second replica downloads nothing"

        wrong = deployed(f"{name}-v9", "hf://fairlead/dinghy@v9", model=model)
        seen = fleet.wait_condition(wrong, "ModelAvailable", "False", "RevisionNotFound")
        assert "hf://fairlead/dinghy has no revision 'v9'" in seen["message"]
        other = {"credentials": {"secretName": f"{name}-refused"}}
        refused = deployed(f"{name}-no", "hf://fairlead/dinghy@main", model=other)
        seen = fleet.wait_condition(refused, "ModelAvailable", "False", "AccessDenied")
        assert "refuses the token in HF_TOKEN" in seen["message"]
        assert "AccessDenied" in fleet.events(refused)

        for words in (told(fleet, name), told(fleet, refused)):
            assert TOKEN not in words and "hf_another" not in words
        engines = [each for pod in fleet.pods(name).values() for each in fleet.processes(pod)]
        assert not any(TOKEN in str(environment(each)) for each in engines)
    fleet.kubectl("delete", "secret", name, f"{name}-refused")
    if fleet.home == "kubernetes":
        for each in (name, wrong):
            fleet.kubectl("delete", "llm", each, "--ignore-not-found")
            fleet.wait("its engines to go", lambda each=each: not fleet.pods(each))
        fleet.remove_claim(name)


@pytest.mark.core  # a version before 1.35 is the only one where this can be seen
def test_where_models_cannot_be_mounted_as_images_that_is_said_and_no_pod_is_made(
    fleet, deployed: Any, name: str
) -> None:
    if fleet.home == "kubernetes" and fleet.mounts_images():
        pytest.skip("this cluster has image volumes")
    deployed(name, "oci://registry.example.com/models/barge:v1", model={"cache": {"image": True}})
    seen = fleet.wait_condition(name, "ModelAvailable", "False", "SourceNotSupported")
    assert "write model.cache: {node: true}" in seen["message"]
    assert not fleet.pods(name)


def told(fleet: Any, name: str) -> str:
    """Everything that people can read: objects but for Secrets, events, logs, and the machine's processes."""
    objects = fleet.kubectl("get", "llm,deployments,replicasets,pods,configmaps,events", "-o", "json").stdout
    logs = [
        fleet.kubectl("logs", pod, "-c", container, check=False).stdout
        for pod in fleet.pods(name)
        for container in ("download", "engine")
    ]
    operator = fleet.kubectl("logs", "deployment/fairlead-operator", "-n", fleet.system_namespace).stdout
    commands = [command(each) for each in psutil.process_iter()]
    # Of this very test and of what it was started by, only the words of others count.
    return "\n".join([objects, *logs, operator, json.dumps([each for each in commands if "pytest" not in each])])


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
