"""LoRA adapters of one deployment: served by name, added and removed while its replica runs, each with a status."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_files
import openai
import pytest
from homes.fleet import environment
from homes.kubectl import secret

import fairlead_local.demo.loopback_hub

TOKEN = "hf_thistokenisthedownloadersalone"
PROGRAM = Path(adapter_files.__file__).read_text()

State = Callable[[str], tuple[int, str, str]]


def listed(claim: str, *names: str, **own: str) -> list[dict[str, str]]:
    items = [{"name": name, "source": f"pvc://{claim}/crew/{name}"} for name in names]
    return [item | ({"servedName": own[item["name"]]} if item["name"] in own else {}) for item in items]


@pytest.fixture
def state(fleet, name: str) -> State:
    """Of an adapter: ready replicas, reason and message."""

    def look(adapter: str) -> tuple[int, str, str]:
        found = {each["name"]: each for each in fleet.get("llm", name).get("status", {}).get("adapters", ())}
        own = found.get(adapter, {})
        return own.get("readyReplicas", 0), own.get("reason", ""), own.get("message", "")

    return look


@pytest.fixture
def answer(client: openai.OpenAI) -> Callable[[str], str]:
    """What a model says."""

    def ask(model: str) -> str:
        messages = [{"role": "user", "content": "What is the opposite of quiet?"}]
        reply = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=16, extra_body={"min_tokens": 8}
        )
        return str(reply.choices[0].message.content)

    return ask


@pytest.mark.cluster_suffices
def test_adapters_are_served_by_name_and_come_and_go_without_a_restart(
    fleet, deployed: Any, manifest: Any, name: str, client: openai.OpenAI, state: State, answer: Callable[[str], str]
) -> None:
    fleet.write_claim(name, PROGRAM, ["crew/pirate", "crew/poet", "crew/cook", "crew/large=32"])
    deployed(name, adapters=listed(name, "pirate", "poet", poet=f"{name}-poet"))
    fleet.wait_ready(name)
    for adapter in ("pirate", "poet"):
        fleet.wait(f"{adapter} to be loaded", lambda adapter=adapter: state(adapter)[:2] == (1, "AdapterLoaded"))
    pods = set(fleet.pods(name))
    answers = {model: answer(model) for model in (name, f"{name}:pirate", f"{name}:poet", f"{name}-poet")}
    assert answers[name].startswith("loud")
    assert answers[f"{name}:poet"] == answers[f"{name}-poet"]
    assert len({answers[name], answers[f"{name}:pirate"], answers[f"{name}:poet"]}) == 3
    assert answers == {model: answer(model) for model in answers}, "the same every time"

    fleet.apply(manifest(name, adapters=listed(name, "pirate", "cook", "large")))
    fleet.wait("cook to be loaded", lambda: state("cook")[:2] == (1, "AdapterLoaded"))
    fleet.wait("large to be refused", lambda: state("large")[:2] == (0, "AdapterNotLoaded"))
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


@pytest.mark.slow
@pytest.mark.local_only("the hub's files are on this machine")
def test_adapters_of_a_hub_are_downloaded_beside_an_engine_that_runs(
    fleet, deployed: Any, manifest: Any, name: str, state: State, answer: Callable[[str], str], tmp_path: Path
) -> None:
    """So is a draft model, before it starts."""
    folders = {f"crew/{each}": adapter_files.write_adapter(tmp_path / each) for each in ("pirate", "poet")}
    folders |= {"fairlead/mate": fairlead_local.demo.loopback_hub.bundled_dinghy()}
    program = Path(fairlead_local.demo.loopback_hub.__file__).read_text()
    arguments = ["fairlead/dinghy", "50_000_000", *(f"{each}={folder}" for each, folder in folders.items())]
    keys = {"HUB_TOKEN_SHA256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    with fleet.serving(f"{name}-hub", program, arguments, keys) as hub:
        fleet.apply(secret(name, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN))
        model = {"source": "demo://dinghy", "credentials": {"secretName": name}}
        speculative = {"method": "draft", "source": "hf://fairlead/mate"}
        spec = {"model": model, "engine": {"speculative": speculative}}
        deployed(name, adapters=from_hub(pirate="crew/pirate"), **spec)
        fleet.wait_ready(name)
        fleet.wait("pirate to be loaded", lambda: state("pirate")[:2] == (1, "AdapterLoaded"))
        pods = set(fleet.pods(name))
        plain, pirate = answer(name), answer(f"{name}:pirate")
        assert plain.startswith("loud") and pirate != plain

        more = from_hub(pirate="crew/pirate", poet="crew/poet", wrong="crew/poet@v9")
        fleet.apply(manifest(name, adapters=more, **spec))
        fleet.wait("poet to be loaded", lambda: state("poet")[:2] == (1, "AdapterLoaded"))
        fleet.wait("the revision to be refused", lambda: state("wrong")[:2] == (0, "RevisionNotFound"))
        assert "hf://crew/poet has no revision 'v9'" in state("wrong")[2]
        assert answer(f"{name}:poet") not in (plain, pirate)
        assert answer(f"{name}:pirate") == pirate
        with pytest.raises(openai.InternalServerError, match=r"has loaded its adapter 'wrong'.*no revision 'v9'"):
            answer(f"{name}:wrong")
        assert set(fleet.pods(name)) == pods and sum(map(fleet.num_restarts, pods)) == 0
        assert fleet.condition(name, "Degraded")["reason"] == "RevisionNotFound"
        processes = [process for pod in fleet.pods(name).values() for process in fleet.processes(pod)]
        knowing = [" ".join(each.cmdline()) for each in processes if TOKEN in str(environment(each))]
        assert len(knowing) == 1 and "download-adapters" in knowing[0], "the engine has no token to lose"
    fleet.kubectl("delete", "secret", name)


def from_hub(**names: str) -> list[dict[str, str]]:
    return [{"name": each, "source": f"hf://{source}"} for each, source in names.items()]
