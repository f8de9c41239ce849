"""LoRA adapters of one deployment: served by name, added and removed while its replica runs, each with a status."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from safetensors.numpy import save_file

pytestmark = pytest.mark.local_only("adapters are folders of this machine here; on a cluster they are on a claim")

CONFIG = Path(__file__).parent.parent / "engine/src/fairlead_engine/demo/dinghy/config.json"
RANK = 4


def make_adapter(folder: Path, seed: int, rank: int = RANK) -> Path:
    """A random adapter of the dinghy, as PEFT writes one; strong enough to change what it says."""
    model, random = json.loads(CONFIG.read_text()), np.random.default_rng(seed)
    hidden, values = model["hidden_size"], model["num_key_value_heads"] * model["head_dim"]
    tensors = {}
    for layer in range(model["num_hidden_layers"]):
        for name, width in (("q_proj", model["num_attention_heads"] * model["head_dim"]), ("v_proj", values)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = random.normal(0, 0.3, (rank, hidden)).astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = random.normal(0, 0.3, (width, rank)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "dinghy",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def listed(folder: Path, *names: str, **own: str) -> list[dict[str, str]]:
    items = [{"name": name, "source": f"file://{folder / name}"} for name in names]
    return [item | ({"servedName": own[item["name"]]} if item["name"] in own else {}) for item in items]


@pytest.fixture
def client(fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.gateway}/v1", api_key=fleet.api_key or "none", max_retries=0) as client:
        yield client


def test_adapters_are_served_by_name_and_come_and_go_without_a_restart(
    fleet, deployed: Any, manifest: Any, name: str, client: openai.OpenAI, tmp_path: Path
) -> None:
    for seed, adapter in enumerate(("pirate", "poet", "cook")):
        make_adapter(tmp_path / adapter, seed)
    make_adapter(tmp_path / "large", seed=9, rank=32)

    def state(adapter: str) -> tuple[int, str]:
        found = {each["name"]: each for each in fleet.get("llm", name).get("status", {}).get("adapters", ())}
        return found.get(adapter, {}).get("readyReplicas", 0), found.get(adapter, {}).get("reason", "")

    def answer(model: str) -> str:
        messages = [{"role": "user", "content": "What is the opposite of quiet?"}]
        reply = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=16, extra_body={"min_tokens": 8}
        )
        return str(reply.choices[0].message.content)

    deployed(name, adapters=listed(tmp_path, "pirate", "poet", poet=f"{name}-poet"))
    fleet.wait_ready(name)
    for adapter in ("pirate", "poet"):
        fleet.wait(f"{adapter} to be loaded", lambda adapter=adapter: state(adapter) == (1, "AdapterLoaded"))
    pods = set(fleet.pods(name))
    answers = {model: answer(model) for model in (name, f"{name}:pirate", f"{name}:poet", f"{name}-poet")}
    assert answers[name].startswith("loud")
    assert answers[f"{name}:poet"] == answers[f"{name}-poet"]
    assert len({answers[name], answers[f"{name}:pirate"], answers[f"{name}:poet"]}) == 3
    assert answers == {model: answer(model) for model in answers}, "the same every time"

    fleet.apply(manifest(name, adapters=listed(tmp_path, "pirate", "cook", "large")))
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
