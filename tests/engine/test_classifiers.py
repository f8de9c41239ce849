"""Decoders with a classifier give transformers' classes, chunked, cached and beside others; and generate nothing."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fairlead_common.models.families.registry import ARCHITECTURES, find_architecture
from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.api.prompt_endpoints import vector_of
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError
from fairlead_engine.llm import LLM
from fairlead_engine.runner.comparison import LogitModel
from fairlead_engine.runner.dummy_steps import StepLimits, every_kind_of_step, largest_step
from fairlead_engine.types import EngineRequest, Kind, Pooling, Reading
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_classifier
from fairlead_engine_testing.encoder_checkpoints import write_word_pieces
from fairlead_engine_testing.greedy_answers import small_engine
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families import FAMILIES

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "num_threads": 1, "kv_cache_memory": 2**21}
QUERY = list(range(20, 45))


def classify(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, torch.Tensor]]:
    """Cached tokens and labels' numbers of each."""
    requests: list[EngineRequest] = [
        make_request(str(index), prompt, pooling=Pooling.LAST, reading=Reading.LABELS, max_tokens=0)
        for index, prompt in enumerate(prompts)
    ]
    outputs = answered(engine, requests)
    found = [outputs[request.request_id] for request in requests]
    return [(output.num_cached_tokens, torch.tensor(vector_of(output.embedding or b""))) for output in found]


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "qwen3_moe"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_classes_are_the_references(tmp_path: Path, family: str, num_labels: int) -> None:
    folder = write_random_classifier(tmp_path, FAMILIES[family](num_labels=num_labels))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    engine = small_engine(folder, max_num_batched_tokens=24, max_num_seqs=4, max_num_queued_tokens=10_000)
    task = engine.info.task
    assert task.kinds == ((Kind.CLASSIFY, Kind.SCORE) if num_labels == 1 else (Kind.CLASSIFY,))
    draw = random.Random(5)
    prompts = [QUERY + [draw.randrange(2, 256) for _ in range(draw.randint(1, 40))] for _ in range(4)]
    first = classify(engine, prompts[:1])
    for (num_cached, found), prompt in zip([*first, *classify(engine, prompts[1:])], prompts, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0]
        wanted = logits.sigmoid() if num_labels == 1 else logits.softmax(-1)
        assert (found - wanted).abs().max() < 1e-4
        assert num_cached == (0 if prompt is prompts[0] else 24), "what prompts begin with is computed once"
    refused = engine.add(make_request("text", [5], max_tokens=2))
    assert refused is not None and "generates no text" in str(refused.message)


def test_every_family_has_its_classifier_and_who_generates_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def found(*architectures: str) -> str:
        path.write_text(transformers.PretrainedConfig(architectures=list(architectures)).to_json_string())
        return find_architecture(JsonFields.read(path))

    for name in ARCHITECTURES:
        classifier = name.replace("ForCausalLM", "ForSequenceClassification")
        assert found(classifier) == classifier
        assert found(classifier, name) == name
    assert found("Gemma3TextForSequenceClassification") == "Gemma3TextForSequenceClassification"


def test_a_rounded_classifier_still_classifies(tmp_path: Path) -> None:
    folder = write_random_classifier(tmp_path, FAMILIES["qwen2"](num_labels=2, id2label={"0": "no", "1": "yes"}))
    write_word_pieces(folder)
    [wanted] = LLM(str(folder), **SETTINGS).classify([QUERY])
    [found] = LLM(str(folder), quantization="int8-weight-only", **SETTINGS).classify([QUERY])
    assert list(found) == ["no", "yes"]
    assert found["no"] == pytest.approx(wanted["no"], abs=0.05)


def test_steps_that_nobody_asked_for_choose_no_tokens(tmp_path: Path) -> None:
    folder = write_random_classifier(tmp_path, FAMILIES["llama"](num_labels=2))
    runner = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1)
    limits, task = StepLimits(4, 64, 128), runner.model_config.task
    runner.allocate_kv_cache(8, 4, 8)
    for batch in (largest_step(limits, 16, task), *every_kind_of_step(limits, 16, task)):
        assert {item.sequence.pooling for item in batch.items} == {Pooling.LAST}
        assert not any(runner.collect(runner.launch(batch)))
        runner.forget([item.sequence.request_id for item in batch.items])


def test_what_needs_logits_of_tokens_is_refused(tmp_path: Path) -> None:
    folder = write_random_classifier(tmp_path, FAMILIES["llama"](num_labels=2))
    with pytest.raises(ConfigError, match="has no output projection"):
        small_engine(folder, head_quantization="int8")
    with pytest.raises(ConfigError, match="LlamaForSequenceClassification, which generates nothing"):
        LogitModel(EngineConfig(model=str(folder), dtype="float32", device="cpu"))
