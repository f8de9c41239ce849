"""`fairlead gateway --namespace`: one namespace, several, or every one; and one that is not there."""

import argparse
import asyncio
from pathlib import Path

import aiohttp

from fairlead.fleet.engine_stream import EngineListener
from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.gateway.access import OpenAccess
from fairlead.gateway.gateway_command import add_arguments
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.prompts.reader import Tokenizers
from fairlead.gateway.server import Gateway
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, LLMDEPLOYMENTS
from fairlead_local.system import crd
from fairlead_testing.api_servers import Refusals, refusing_api_server


def namespaces(*arguments: str) -> list[str] | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed: list[str] | None = parser.parse_args(arguments).namespace
    return parsed


def test_the_flag_may_be_repeated_and_without_it_every_namespace_is_followed() -> None:
    assert namespaces() is None
    assert namespaces("--namespace", "a") == ["a"]
    assert namespaces("--namespace", "a", "--namespace", "b") == ["a", "b"]


async def create(client: KubeClient, namespace: str, name: str) -> None:
    body = {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": LLMDEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": "demo://dinghy"}, "routing": {"coldStartTimeout": "1s"}},
    }
    await client.create(LLMDEPLOYMENTS, body)


async def ask(url: str, model: str) -> tuple[int, str]:
    """(status, code) of the refusal: there are no engines."""
    chat = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=chat) as answer:
        return answer.status, (await answer.json())["error"]["code"]


async def until_ready(url: str) -> None:
    async with asyncio.timeout(30), aiohttp.ClientSession() as http:
        while (await http.get(f"{url}/ready")).status != 200:
            await asyncio.sleep(0.01)


async def test_a_gateway_that_starts_knows_no_model_of_a_lost_namespace_and_those_of_others(tmp_path: Path) -> None:
    refusals = Refusals()
    async with (
        refusing_api_server(tmp_path, refusals, "other") as kubeconfig,
        await KubeClient.from_environment(kubeconfig) as client,
    ):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd())
        await create(client, "default", "dinghy")
        await create(client, "other", "skiff")
        refusals.lose("other")

        def make_fleet(listener: EngineListener, tokenizers: Tokenizers) -> KubernetesFleet:
            return KubernetesFleet(client, namespaces=("default", "other"), lost_seconds=1.0)

        settings = GatewaySettings(host="127.0.0.1", port=0, control_port=0, drain_delay=0.0, drain_timeout=5.0)
        gateway = Gateway(settings, make_fleet, OpenAccess())
        url, running = f"http://127.0.0.1:{gateway.port}", asyncio.create_task(gateway.run())
        try:
            assert await ask(url, "other/skiff") == (503, "starting"), "it may still be granted"
            await until_ready(url)
            assert await ask(url, "other/skiff") == (404, "model_not_found")
            assert await ask(url, "dinghy") == (503, "cold_start_timeout"), "it is known, and has no engines"
        finally:
            gateway.stop()
            await running
