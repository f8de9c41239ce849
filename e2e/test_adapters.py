"""LoRA adapters of one deployment: served by name, added and removed while its replica runs, each with a status."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adapter_files
import openai
import pytest

PROGRAM = Path(adapter_files.__file__).read_text()


def listed(claim: str, *names: str, **own: str) -> list[dict[str, str]]:
    items = [{"name": name, "source": f"pvc://{claim}/crew/{name}"} for name in names]
    return [item | ({"servedName": own[item["name"]]} if item["name"] in own else {}) for item in items]


@pytest.fixture
def client(fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.gateway}/v1", api_key=fleet.api_key or "none", max_retries=0) as client:
        yield client


def test_adapters_are_served_by_name_and_come_and_go_without_a_restart(
    fleet, deployed: Any, manifest: Any, name: str, client: openai.OpenAI
) -> None:
    fleet.write_claim(name, PROGRAM, ["crew/pirate", "crew/poet", "crew/cook", "crew/large=32"])

    def state(adapter: str) -> tuple[int, str]:
        found = {each["name"]: each for each in fleet.get("llm", name).get("status", {}).get("adapters", ())}
        return found.get(adapter, {}).get("readyReplicas", 0), found.get(adapter, {}).get("reason", "")

    def answer(model: str) -> str:
        messages = [{"role": "user", "content": "What is the opposite of quiet?"}]
        reply = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=16, extra_body={"min_tokens": 8}
        )
        return str(reply.choices[0].message.content)

    deployed(name, adapters=listed(name, "pirate", "poet", poet=f"{name}-poet"))
    fleet.wait_ready(name)
    for adapter in ("pirate", "poet"):
        fleet.wait(f"{adapter} to be loaded", lambda adapter=adapter: state(adapter) == (1, "AdapterLoaded"))
    pods = set(fleet.pods(name))
    answers = {model: answer(model) for model in (name, f"{name}:pirate", f"{name}:poet", f"{name}-poet")}
    assert answers[name].startswith("loud")
    assert answers[f"{name}:poet"] == answers[f"{name}-poet"]
    assert len({answers[name], answers[f"{name}:pirate"], answers[f"{name}:poet"]}) == 3
    assert answers == {model: answer(model) for model in answers}, "the same every time"

    fleet.apply(manifest(name, adapters=listed(name, "pirate", "cook", "large")))
    fleet.wait("cook to be loaded", lambda: state("cook") == (1, "AdapterLoaded"))
    fleet.wait("large to be refused", lambda: state("large") == (0, "AdapterNotLoaded"))
    assert answer(f"{name}:cook") not in answers.values()
    assert answer(f"{name}:pirate") == answers[f"{name}:pirate"]
    with pytest.raises(openai.NotFoundError, match="no adapter 'poet'; it has 'cook', 'pirate'"):
        answer(f"{name}:poet")
    with pytest.raises(openai.InternalServerError, match=r"has loaded its adapter 'large'.*rank"):
        answer(f"{name}:large")
    ids = {model.id for model in client.models.list()}
    assert {f"{name}:cook", f"{name}:pirate"} <= ids and not {f"{name}:poet", f"{name}:large", f"{name}-poet"} & ids
    assert fleet.condition(name, "Ready")["status"] == "True"
    assert fleet.condition(name, "Degraded")["reason"] == "AdapterNotLoaded"
    assert set(fleet.pods(name)) == pods
    assert sum(map(fleet.num_restarts, pods)) == 0
    assert "adapter cook: loaded on 1/1 ready replicas" in fleet.kubectl("describe", "llm", name).stdout
    fleet.kubectl("delete", "llm", name)
    fleet.wait("its engine to go", lambda: not fleet.pods(name))
    fleet.remove_claim(name)


@pytest.mark.local_only("an operator of a cluster refuses folders of a machine")
def test_an_adapter_is_a_folder_of_this_machine(
    fleet, deployed: Any, name: str, client: openai.OpenAI, tmp_path: Path
) -> None:
    folder = adapter_files.write_adapter(tmp_path / "mate")
    deployed(name, adapters=[{"name": "mate", "source": f"file://{folder}"}])
    fleet.wait_ready(name)
    fleet.wait("mate to be loaded", lambda: fleet.get("llm", name)["status"]["adapters"][0]["readyReplicas"] == 1)
    assert client.completions.create(model=f"{name}:mate", prompt="Ahoy", max_tokens=1).choices
