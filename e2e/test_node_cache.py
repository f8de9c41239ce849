"""A node keeps what its pods download: a gated model, once for two pods that start together, whatever ends them."""

import hashlib
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from homes.kubectl import secret

import fairlead_local.demo.loopback_hub

HUB = Path(fairlead_local.demo.loopback_hub.__file__).read_text()
MODEL = "fairlead/skiff"
TOKEN, STRANGER = "hf_theaccountthataccepted", "hf_theaccountthatdidnot"
BYTES_PER_SECOND = 250_000
"""The dinghy has 7 MB: half a minute, in which a download can be killed."""
WHOLE, RANGE = (rf'"GET /{MODEL}/resolve/\w+/model\.safetensors HTTP/1\.1" {status}' for status in (200, 206))
"""Lines of the hub's log: the weights from their first byte, and from a later one."""


@pytest.mark.cluster_suffices
def test_two_pods_of_a_node_download_a_gated_model_once_and_go_on_after_a_kill(fleet, deployed: Any, name: str) -> None:
    keys = {"HUB_TOKEN_SHA256": sha256(TOKEN), "HUB_STRANGER_SHA256": sha256(STRANGER)}
    with (
        fleet.keeping_models_on_nodes(),
        fleet.serving(f"{name}-hub", HUB, [MODEL, str(BYTES_PER_SECOND)], keys) as hub,
    ):
        fleet.apply(
            secret(name, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN),
            secret(f"{name}-stranger", HF_ENDPOINT=hub.url, HF_TOKEN=STRANGER),
        )
        cache, other = {"node": True}, {"secretName": f"{name}-stranger"}
        # Refused before the others begin: the node's copy is for whoever names its source, with any token or none.
        gated = deployed(f"{name}-gated", f"hf://{MODEL}", model={"cache": cache, "credentials": other})
        seen = fleet.wait_condition(gated, "ModelAvailable", "False", "SourceGated")
        assert f"hf://{MODEL} is gated: accept its terms on {hub.url}/{MODEL}" in seen["message"]
        fleet.kubectl("delete", "llm", gated)

        deployed(name, f"hf://{MODEL}", replicas=2, model={"cache": cache, "credentials": {"secretName": name}})
        # A kill may lose a quarter of a MB of each file: some seconds later there is something to go on with.
        fleet.wait("the weights to be on their way", lambda: re.search(WHOLE, hub.log()))
        time.sleep(6.0)
        downloads = [each for pod in fleet.pods(name).values() for each in fleet.processes(pod)]
        if not downloads:
            pytest.skip("the node's processes are not visible from here, so none of them can be killed")
        for each in downloads:
            kill(each)
        fleet.wait_ready(name, 2)

        nodes = {pod["spec"]["nodeName"] for pod in fleet.pods(name).values()}
        assert len(re.findall(WHOLE, hub.log())) <= len(nodes), "two pods of a node download once"
        assert re.search(RANGE, hub.log()), "what was fetched before the kill is not fetched again"
        assert fleet.adds_up(name)
        fleet.kubectl("delete", "llm", name)
        fleet.wait("its engines to go", lambda: not fleet.pods(name) and not fleet.pods(gated))
    fleet.kubectl("delete", "secret", name, f"{name}-stranger")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
