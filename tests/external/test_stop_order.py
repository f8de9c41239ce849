"""A server that cuts whatever runs when it is told to end, and its front, in a pod as the operator makes it: who goes
first when the pod goes. The processes are real, on a node of local mode."""

import asyncio
import json
import os
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.children import children
from fairlead.operator_settings import OperatorSettings
from fairlead_local.apiserver.metadata import DeleteOptions
from fairlead_local.apiserver.operations import WriteOptions
from fairlead_local.apiserver.resources import CONFIG_MAPS, EVENTS, PODS
from fairlead_local.kubelet.environment import OWN_IMAGES, Program
from fairlead_testing.local_api import LocalApi, eventually, local_api_server

IMAGES = {**OWN_IMAGES, "vllm": Program((sys.executable, "-m", "fairlead_testing.fake_vllm"), is_stand_in=True)}
POD = f"p-{os.getpid()}"
"""Its server's events have an address of this name, which is the machine's, whatever else runs there."""
NUM_TOKENS = 600
"""Some three seconds of the fake's steps."""
OPTIONS = WriteOptions(manager="test")

pytestmark = pytest.mark.slow


def manifests(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the ConfigMap that the front reads, a pod of the engine's Deployment)"""
    body = {
        "metadata": {
            "name": "boat", "namespace": "default", "uid": "u", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"source": f"file://{folder}"}, "engine": {"type": "vLLM", "image": "vllm:1"}},
    }  # fmt: skip
    settings = OperatorSettings(allow_file_sources=True)
    config, deployment, _ = children(LLMDeployment.from_body(body), settings)
    template = deployment["spec"]["template"]
    metadata = {"name": POD, "namespace": "default", "annotations": template["metadata"]["annotations"]}
    config["metadata"].pop("ownerReferences")
    return config, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def side_by_side(pod: dict[str, Any]) -> dict[str, Any]:
    """The same with two plain containers."""
    changed = deepcopy(pod)
    (server,) = changed["spec"].pop("initContainers")
    del server["restartPolicy"]
    changed["spec"]["containers"].insert(0, server)
    return changed


def is_ready(api: LocalApi) -> bool:
    found = (api.operations.find(PODS, "default", POD) or {}).get("status") or {}
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found.get("conditions") or ())


async def answer_across_the_end(api: LocalApi, pod: dict[str, Any], config: dict[str, Any]) -> tuple[int, bool]:
    """(tokens, whether the answer is whole) of a request that runs while the pod is deleted."""
    api.operations.create(CONFIG_MAPS, "default", config, OPTIONS)
    api.operations.create(PODS, "default", pod, OPTIONS)
    await eventually(lambda: is_ready(api), 60.0)
    address = api.operations.get(PODS, "default", POD)["status"]["podIP"]
    body = {"model": "boat", "prompt": "ahoy", "max_tokens": NUM_TOKENS, "stream": True, "ignore_eos": True}
    lines: list[bytes] = []
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"http://{address}:8000/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        async for line in response.content:
            lines.append(line)
            if len(lines) == 1:
                api.operations.delete(PODS, "default", POD, DeleteOptions())
    texts = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")]
    num_tokens = sum(bool(choice["text"]) for each in texts for choice in json.loads(each).get("choices") or ())
    await eventually(lambda: api.operations.find(PODS, "default", POD) is None, 30.0)
    return num_tokens, b"data: [DONE]\n" in lines


async def test_a_server_outlives_the_drain_of_its_front(folder: Path, tmp_path: Path) -> None:
    async with local_api_server(tmp_path, images=IMAGES) as api:
        config, pod = manifests(folder)
        assert await answer_across_the_end(api, pod, config) == (NUM_TOKENS, True)
        started = [each["message"] for each in api.operations.list(EVENTS) if each["reason"] == "Started"]
        assert sorted(started) == ["Started container engine", "Started container front"], "each once"


async def test_side_by_side_the_server_would_cut_what_runs(folder: Path, tmp_path: Path) -> None:
    """What the order is for."""
    async with local_api_server(tmp_path, images=IMAGES) as api:
        config, pod = manifests(folder)
        num_tokens, is_whole = await answer_across_the_end(api, side_by_side(pod), config)
        assert num_tokens < NUM_TOKENS and not is_whole


async def test_a_server_that_dies_is_started_again_and_the_front_waits_for_it(folder: Path, tmp_path: Path) -> None:
    async with local_api_server(tmp_path, images=IMAGES) as api:
        config, pod = manifests(folder)
        api.operations.create(CONFIG_MAPS, "default", config, OPTIONS)
        api.operations.create(PODS, "default", pod, OPTIONS)
        await eventually(lambda: is_ready(api), 60.0)
        (server,) = api.operations.get(PODS, "default", POD)["status"]["initContainerStatuses"]
        process = await asyncio.create_subprocess_exec("kill", "-9", server["containerID"].removeprefix("process://"))
        await process.wait()
        await eventually(lambda: not is_ready(api))
        await eventually(lambda: is_ready(api), 60.0)
        status = api.operations.get(PODS, "default", POD)["status"]
        assert [each["restartCount"] for each in status["initContainerStatuses"]] == [1]
        assert [each["restartCount"] for each in status["containerStatuses"]] == [0]
