"""Every file in examples/ that needs no devices is applied as it is, and its models answer.

One document after another, so that they fit onto a machine of two cores. Kinds that an API server does not serve
(KEDA's where it is not installed, a HorizontalPodAutoscaler in local mode) are left out, and told.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adapter_files
import pytest
import yaml
from homes.volumes import MAKE_WRITABLE

import fairlead_local.demo.loopback_hub

NEED_DEVICES = ("09-devices.yaml",)
"""These need GPUs of a driver for dynamic resource allocation: `test_devices.py` shows the same with devices of its
own."""
EXAMPLES = sorted(
    file for file in (Path(__file__).parent.parent / "examples").glob("*.yaml") if file.name not in NEED_DEVICES
)
QUESTION = {"messages": [{"role": "user", "content": "What is the opposite of quiet?"}], "temperature": 0}
ANSWER = "loud"
HUB = Path(fairlead_local.demo.loopback_hub.__file__).read_text()
ADAPTERS = Path(adapter_files.__file__).read_text()

Json = dict[str, Any]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7


@pytest.mark.cluster_suffices
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_applied_and_its_models_answer(fleet, file: Path, say: Callable[[str], None]) -> None:
    documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    claims = {each["metadata"]["name"]: each for each in documents if each["kind"] == "PersistentVolumeClaim"}
    deployments = [each for each in documents if each["kind"] == "LLMDeployment"]
    assert deployments
    others = [each for each in documents if each not in deployments and each["metadata"]["name"] not in claims]
    for document in others:
        apply_or_tell(fleet, document, say)
    for deployment in deployments:
        with downloadable(fleet, deployment):
            assert_served(fleet, deployment, claims)
    for document in documents:
        if document not in deployments:
            fleet.kubectl("delete", document["kind"], document["metadata"]["name"], "--ignore-not-found", check=False)


def apply_or_tell(fleet, document: Json, say: Callable[[str], None]) -> None:
    """Applies somebody else's object, or tells that this API server does not serve its kind."""
    kind = document["kind"]
    if fleet.kubectl("get", kind, check=False).returncode != 0:
        say(f"without {kind}: this API server does not serve it")
        return
    fleet.kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(document))


def assert_served(fleet, deployment: Json, claims: dict[str, Json]) -> None:
    """Applies it, asks it, deletes it."""
    name, source = deployment["metadata"]["name"], deployment["spec"]["model"]["source"]
    claim, _, folder = source.removeprefix("pvc://").partition("/")
    if source.startswith("pvc://"):
        fleet.fill_claim(claim, folder, claims.get(claim))
    cache = (deployment["spec"]["model"].get("cache") or {}).get("claim")
    if cache is not None:
        fleet.write_claim(cache, MAKE_WRITABLE, [], claims.get(cache))
    adapters = deployment["spec"].get("adapters") or []
    for claim_of_adapters, folders in on_claims(adapters).items():
        fleet.write_claim(claim_of_adapters, ADAPTERS, folders, claims.get(claim_of_adapters))
    fleet.apply(deployment)
    try:
        wait_ready(fleet, name)
        reply = fleet.post("/v1/chat/completions", {"model": name, "max_tokens": 16, **QUESTION})
        assert reply["choices"][0]["message"]["content"] == ANSWER
        for adapter in adapters:
            assert_adapter_served(fleet, name, adapter)
    finally:
        fleet.kubectl("delete", "llm", name)
        fleet.wait("its engines to go", lambda: not fleet.pods(name))
        for used in filter(None, (claim if source.startswith("pvc://") else "", cache, *on_claims(adapters))):
            fleet.remove_claim(used)


@contextmanager
def downloadable(fleet, deployment: Json) -> Iterator[None]:
    """A hub that has the dinghy under the name that the example downloads, told of by the Secret that it asks for."""
    model = deployment["spec"]["model"]
    if not model["source"].startswith("hf://"):
        yield
        return
    name = model["source"].removeprefix("hf://").partition("@")[0]
    with fleet.serving(f"{deployment['metadata']['name']}-hub", HUB, [name, "20_000_000"], {}) as hub:
        secret = model["credentials"]["secretName"]
        fleet.kubectl("create", "secret", "generic", secret, f"--from-literal=HF_ENDPOINT={hub.url}")
        yield
        fleet.kubectl("delete", "secret", secret)


def on_claims(adapters: list[Json]) -> dict[str, list[str]]:
    """By claim, the folders of the adapters on it."""
    found: dict[str, list[str]] = {}
    for adapter in adapters:
        claim, _, folder = adapter["source"].removeprefix("pvc://").partition("/")
        found.setdefault(claim, []).append(folder)
    return found


def assert_adapter_served(fleet, name: str, adapter: Json) -> None:
    """Under each of its names."""

    def is_loaded() -> bool:
        said = {each["name"]: each for each in fleet.get("llm", name).get("status", {}).get("adapters", ())}
        return bool(said.get(adapter["name"], {}).get("reason") == "AdapterLoaded")

    fleet.wait(f"{adapter['name']} to be loaded", is_loaded)
    for model in filter(None, (f"{name}:{adapter['name']}", adapter.get("servedName"))):
        reply = fleet.post("/v1/chat/completions", {"model": model, "max_tokens": 4, **QUESTION})
        assert reply["usage"]["completion_tokens"] > 0


def wait_ready(fleet, name: str) -> None:
    """As many replicas as are wanted, which may be none where a request starts the first."""
    fleet.wait(f"{name} to be Ready", lambda: fleet.condition(name, "Ready").get("status") == "True")
