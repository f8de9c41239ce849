"""A model that only transformers knows behind HTTP, asked by the official client; and one that is refused."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine_testing.adapters import adapted_by_peft
from fairlead_engine_testing.foreign_checkpoints import write_foreign_checkpoint
from fairlead_engine_testing.quantized_checkpoints import write_gptq

pytestmark = pytest.mark.slow
"""transformers is imported once more, in the engine's process."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: PromptTokenizer) -> Path:
    folder = write_foreign_checkpoint(
        tmp_path_factory.mktemp("models") / "stablelm",
        "stablelm",
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.token_id("<|end|>"),
    )
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}")
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path, serve_folder: Any) -> Any:
    return serve_folder(folder)


def test_the_official_client_gets_the_references_tokens(engine: Any, folder: Path, tokenizer, reference) -> None:
    client = openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0)
    prompts = [tokenizer.encode(text) for text in ("The quick brown fox", "one two three four five")]
    for _ in range(2):  # the second time from the prefix cache
        reply = client.completions.create(
            model="tiny", prompt=prompts, max_tokens=12, temperature=0.0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        for prompt, choice in zip(prompts, reply.choices, strict=True):
            reference.check_greedy(folder, prompt, choice.token_ids)
    messages: Any = [{"role": "user", "content": "ahoy"}]
    stream = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, temperature=0.0, stream=True, extra_body={"ignore_eos": True}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    prompt = tokenizer.encode("<|user|>ahoy<|end|>")
    wanted = reference.model(folder).generate(
        **tokenized(prompt), max_new_tokens=8, min_new_tokens=8, do_sample=False, eos_token_id=None
    )
    assert text == tokenizer.decode(wanted[0, len(prompt) :].tolist())
    assert "StableLmForCausalLM has no implementation of this engine's own" in engine.log.read_text()
    vectors = httpx.post(f"{engine.url}/v1/embeddings", json={"model": "tiny", "input": prompts[0]}, timeout=30)
    assert len(vectors.json()["data"][0]["embedding"]) == 64


def test_a_quantised_checkpoint_with_an_adapter_merged_is_served(
    folder: Path, tmp_path: Path, serve_folder: Any, start_engine: Any, tokenizer: PromptTokenizer
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    write_gptq(folder, tmp_path / "stored", tmp_path / "meant")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "meant", dtype=torch.float32)
    adapted = adapted_by_peft(network, tmp_path / "adapter", [], target_modules="all-linear")
    engine = serve_folder(tmp_path / "stored", "--merged-adapter", str(tmp_path / "adapter"), name="merged")
    prompt = tokenizer.encode("The quick brown fox")
    body = {"model": "merged", "prompt": prompt, "max_tokens": 10, "temperature": 0.0, "ignore_eos": True}
    reply = httpx.post(f"{engine.url}/v1/completions", json={**body, "return_token_ids": True}, timeout=60).json()
    wanted = adapted.generate(
        **tokenized(prompt), max_new_tokens=10, min_new_tokens=10, do_sample=False, eos_token_id=None
    )
    assert reply["choices"][0]["token_ids"] == wanted[0, len(prompt) :].tolist()

    (tmp_path / "adapter/adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "use_dora": true}')
    engine = start_engine("--model", str(tmp_path / "stored"), "--merged-adapter", str(tmp_path / "adapter"))
    assert engine.wait_exit() != 0
    assert "merged-adapter: cannot be merged" in engine.log.read_text()
    assert "use_dora is True" in engine.log.read_text()


def tokenized(prompt: list[int]) -> dict[str, Any]:
    import torch

    return {"input_ids": torch.tensor([prompt]), "attention_mask": torch.ones(1, len(prompt))}


def test_a_model_that_cannot_be_served_ends_in_the_termination_log(folder: Path, tmp_path: Path, start_engine) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}))
    engine = start_engine("--model", str(tmp_path))
    assert engine.wait_exit() == 1
    last_words = json.loads(engine.termination_log.read_text())
    assert last_words["reason"] == "UnsupportedArchitecture"
    assert "ALiBi" in last_words["message"]
