"""From a name to an answer, of every kind of source: Ready, with progress seen and nothing fetched for the second."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from homes.fleet import environment
from homes.kubectl import secret
from packed_modules import packed

from fairlead_engine_testing.model_places import PASSWORD

_MODULES = "certificates file_server loopback_buckets loopback_hub loopback_registry loopback_web model_places"
PLACE = packed("fairlead_engine_testing", "model_place_server", tuple(_MODULES.split()))
PAUSE_SECONDS = "0.06"
"""Before each 64 KiB: the dinghy's 7 MB take some seconds, in which the operator looks twice."""
LOCALLY = pytest.mark.local_only(reason="the library and the program are those of s3, which a cluster shows")
ON_A_CLUSTER = pytest.mark.kubernetes_only(reason="local mode shows the others, by the same program")


@pytest.fixture(scope="module", autouse=True)
def nodes_keep_models(fleet) -> Iterator[None]:
    """For all of them: each source is kept apart from the others."""
    with fleet.keeping_models_on_nodes():
        yield


@pytest.mark.cluster_suffices
@pytest.mark.parametrize(
    "scheme",
    [
        "oci",
        pytest.param("https", marks=ON_A_CLUSTER),
        pytest.param("s3", marks=ON_A_CLUSTER),
        pytest.param("gs", marks=LOCALLY),
        pytest.param("az", marks=LOCALLY),
    ],
)
def test_a_model_is_ready_from_any_source_and_downloaded_once(fleet, deployed: Any, name: str, scheme: str) -> None:
    with fleet.serving(f"{name}-place", PLACE, [scheme, PAUSE_SECONDS], {}) as place:
        fleet.wait("the place to be there", lambda: "environment" in place.log())
        told = json.loads(next(line for line in place.log().splitlines() if "environment" in line))
        source, kind = told["source"], "kubernetes.io/dockerconfigjson" if scheme == "oci" else "Opaque"
        fleet.apply(secret(name, **told["environment"]) | {"type": kind})
        deployed(name, source, model={"credentials": {"secretName": name}, "cache": {"node": True}})

        far = rf"downloading {re.escape(source)}: [\d.]+ of 7\.\d MB, [\d.]+ [kM]B/s, \d+ s left"
        fleet.wait("progress to be told", lambda: re.search(far, fleet.download_progress(name)))
        fleet.wait_ready(name)
        assert fleet.adds_up(name)
        asked = place.log().count("model.safetensors")
        assert asked >= 1
        fleet.kubectl("scale", "llm", name, "--replicas=2")
        fleet.wait_ready(name, 2)
        assert place.log().count("model.safetensors") == asked, "the second replica downloads nothing"
        objects = fleet.kubectl("get", "llm,deployments,pods,events", "-o", "json").stdout
        engines = [each for pod in fleet.pods(name).values() for each in fleet.processes(pod)]
        assert PASSWORD not in objects and not any(PASSWORD in str(environment(each)) for each in engines)
        fleet.kubectl("delete", "llm", name)
        fleet.wait("its engines to go", lambda: not fleet.pods(name))
    fleet.kubectl("delete", "secret", name)
