"""Adapters of experts over HTTP: they come and go while the model is served, and broken ones are refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.tiny_families import FAMILIES

pytestmark = pytest.mark.slow
TARGETS = ("w1", "w2", "w3", "gate", "q_proj")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: PromptTokenizer) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mixtral"
    write_random_checkpoint(folder, FAMILIES["mixtral"](vocab_size=tokenizer.vocab_size))
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


@pytest.fixture(scope="module")
def adapters(model: Path) -> Path:
    """A folder of three, the last of which has a rank too large."""
    folder = model.with_name("adapters")
    for seed, name in enumerate(("one", "other")):
        write_random_adapter(folder / name, model, seed=seed, rank=4, targets=TARGETS)
    shutil.copytree(folder / "one", folder / "large")
    fields = json.loads((folder / "large/adapter_config.json").read_text())
    (folder / "large/adapter_config.json").write_text(json.dumps({**fields, "rank_pattern": {"w2": 16}}))
    return folder


def test_they_come_and_go_while_the_model_is_served(model: Path, adapters: Path, serve_folder: Any) -> None:
    engine = serve_folder(model, "--adapter-folder", str(adapters), "--max-loras", "1", "--max-lora-expert-rank", "4")

    def ask(path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{engine.url}/v1/{path}", json=body, timeout=60)

    def answer(name: str) -> Any:
        body = {"prompt": "The quick brown fox", "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
        reply = ask("completions", model=name, **body, return_token_ids=True)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["token_ids"]

    plain = answer("tiny")
    for name in ("one", "other"):
        assert ask("load_lora_adapter", lora_name=name, lora_path=name).json()["status"] == "loaded"
    first, second = answer("tiny:one"), answer("tiny:other")
    assert len({tuple(each) for each in (plain, first, second)}) == 3
    assert [answer("tiny:one"), answer("tiny"), answer("tiny:other")] == [first, plain, second], (
        "in one place, by turns"
    )
    refused = ask("load_lora_adapter", lora_name="large", lora_path="large")
    assert refused.status_code == 400
    assert "experts here have at most 4; see --max-lora-expert-rank" in refused.json()["error"]["message"]
    assert ask("unload_lora_adapter", lora_name="one").json()["status"] == "unloaded"
    assert ask("completions", model="tiny:one", prompt="a").status_code == 404
    assert answer("tiny:other") == second
