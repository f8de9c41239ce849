"""EAGLE-3: the head guesses what its authors' arithmetic says, whatever is cached, chunked or beside.

The reference is the model as transformers has it, and the head in plain torch: no cache, the whole text each time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.runner import load_runner
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.eagle_head import load_eagle_head
from fairlead_engine.types import EngineLoad, EngineRequest
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.eagle_heads import (
    HEAD_DIM,
    NUM_HEADS,
    NUM_KV_HEADS,
    eagle_fields,
    eagle_tensors,
    write_eagle_head,
)
from fairlead_engine_testing.greedy_answers import small_config
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families.dense import gemma3_fields, llama_fields
from fairlead_engine_testing.watched_guesses import (
    GuessReference,
    biased_requests,
    captured_decodes,
    prefix_sharers,
    watched_guesses,
)

pytestmark = pytest.mark.matrix

WORDS, OWN_WORDS, HIDDEN, LAYERS = 61, 40, 64, 7
EPS, THETA = 1e-5, 10_000.0
FIELDS = eagle_fields(HIDDEN, WORDS, OWN_WORDS)
Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def write_head(folder: Path, change: Change = lambda fields, tensors: None, form: str = "safetensors") -> Path:
    fields, tensors = dict(FIELDS), eagle_tensors(FIELDS)
    change(fields, tensors)
    return write_eagle_head(folder, fields, tensors, form=form)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = llama_fields(vocab_size=WORDS, hidden_size=HIDDEN, num_hidden_layers=LAYERS)
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), fields)


class Reference(GuessReference):
    """The model and the head, over whole texts."""

    def __init__(self, folder: Path, tensors: dict[str, Tensor], layers: tuple[int, ...]) -> None:
        import transformers

        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tensors = tensors
        self.layers = layers
        self.embedding = tensors.get("embed_tokens.weight", self.model.get_input_embeddings().weight.detach())

    def seen(self, tokens: list[int]) -> Tensor:
        states = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return linear(torch.cat([states[layer][0] for layer in self.layers], dim=-1), self.tensors["fc.weight"])

    def scores(self, last: Tensor) -> Tensor:
        logits = torch.full((WORDS,), float("-inf"))
        logits[torch.arange(OWN_WORDS) + self.tensors["d2t"]] = linear(
            self.norm("norm", last), self.tensors["lm_head.weight"]
        )
        return logits

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.tensors[f"{name}.weight"]

    def guess(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        def weight(name: str) -> Tensor:
            return self.tensors[f"midlayer.{name}.weight"]

        embedded = self.norm("midlayer.input_layernorm", self.embedding[tokens])
        both = torch.cat((embedded, self.norm("midlayer.hidden_norm", hidden)), dim=-1)
        query, key, value = (
            linear(both, weight(f"self_attn.{name}_proj")).view(len(tokens), -1, HEAD_DIM).transpose(0, 1)
            for name in "qkv"
        )
        key, value = (each.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=0) for each in (turned(key), value))
        scores = turned(query) @ key.transpose(1, 2) / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
        attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        hidden = hidden + linear(attended, weight("self_attn.o_proj"))
        x = self.norm("midlayer.post_attention_layernorm", hidden)
        inner = silu(linear(x, weight("mlp.gate_proj"))) * linear(x, weight("mlp.up_proj"))
        return hidden + linear(inner, weight("mlp.down_proj"))


def turned(heads: Tensor) -> Tensor:
    """heads [heads, tokens, head_dim], by their positions."""
    frequencies = THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(heads.shape[1]).float(), frequencies).repeat(1, 2)
    first, second = heads.chunk(2, dim=-1)
    return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


def config_of(folder: Path, head: Path | None, **settings: Any) -> EngineConfig:
    common: dict[str, Any] = {"block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 12}
    if head is not None:
        common |= {"speculative_method": "eagle3", "speculative_model": str(head), "num_speculative_tokens": 3}
    return small_config(folder, **{**common, **settings})


def held_to_the_reference(
    folder: Path,
    head: Path,
    asked: list[EngineRequest],
    *,
    layers: tuple[int, ...] = (2, LAYERS // 2, LAYERS - 3),
    tensors: dict[str, Tensor] | None = None,
    behind: dict[str, dict[int, int]] | None = None,
    **settings: Any,
) -> EngineLoad:
    reference = Reference(folder, tensors or eagle_tensors(FIELDS), layers)
    return reference.check(config_of(folder, head, **settings), asked, behind or {})


@pytest.mark.parametrize("host", [None, 2**20])
def test_guesses_are_the_references(host: int | None, folder: Path, tmp_path: Path) -> None:
    """In chunks, mixed steps and after preemption, and wherever some guesses stand and some do not."""
    load = held_to_the_reference(folder, write_head(tmp_path), biased_requests(), host_kv_cache_memory=host)
    assert load.num_preemptions
    assert bool(load.num_blocks_loaded) == (host is not None)
    assert 0 < sum(load.num_accepted_per_position) < load.num_draft_tokens
    assert load.num_accepted_per_position[-1], "more than one stands at a time"


def test_guesses_are_the_references_where_steps_are_captured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes without drafts are one graph, which hands out what the head sees; so are those between attentions."""
    decoded = captured_decodes(monkeypatch)
    held_to_the_reference(folder, write_head(tmp_path), biased_requests()[:4], attention_backend="block_tables")
    assert decoded


@pytest.mark.parametrize(
    ("where", "said", "layers"),
    [("top", [0, 3, 6], (0, 3, 6)), ("eagle_config", [0, 2, 5], (1, 3, 6))],
)
def test_a_head_says_which_layers_it_sees(
    where: str, said: list[int], layers: tuple[int, ...], folder: Path, tmp_path: Path
) -> None:
    """vLLM's list counts what goes into layers; the one that trainers write what comes out of them."""
    found = {"eagle_aux_hidden_state_layer_ids": said}
    head = write_head(tmp_path, lambda fields, _: fields.update(found if where == "top" else {where: found}))
    held_to_the_reference(folder, head, biased_requests()[:3], layers=layers)


def test_who_shares_a_prefix_guesses_on_with_what_stood_behind_it(folder: Path, tmp_path: Path) -> None:
    """The keys and values of a block's last position are those of who computed it, whatever came there."""
    load = held_to_the_reference(folder, write_head(tmp_path), prefix_sharers(), behind={"b": {15: 20}})
    assert load.prefix_hit_tokens == 16


def other_names(fields: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("midlayer.")]:
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)


def test_a_head_may_bring_its_embeddings_and_call_its_layer_otherwise(folder: Path, tmp_path: Path) -> None:
    own = {"embed_tokens.weight": torch.randn(WORDS, HIDDEN)}
    head = write_head(tmp_path, lambda *given: (other_names(*given), given[1].update(own)), form="bin")
    held_to_the_reference(folder, head, biased_requests()[:3], tensors=eagle_tensors(FIELDS) | own)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda fields, _: fields.update(architectures=["LlamaForCausalLM"]), "eagle3 are a LlamaForCausalLMEagle3"),
        (lambda fields, _: fields.update(num_hidden_layers=2), "a head of one layer"),
        (lambda fields, _: fields.update(norm_before_residual=True), "norm_before_residual"),
        (lambda fields, _: fields.update(target_hidden_size=32), "must be the model's hidden_size"),
        (lambda fields, _: fields.update(eagle_aux_hidden_state_layer_ids=[1, 2, 7]), "the model has 7 layers"),
        (lambda fields, _: fields.update(eagle_aux_hidden_state_layer_ids=[1, 2]), "it needs three"),
        (lambda _, tensors: tensors.pop("fc.weight"), "fc.weight is missing"),
        (lambda _, tensors: tensors.update({"fc.weight": torch.zeros(HIDDEN, 3)}), r"fc.weight has shape \[64, 3\]"),
        (lambda _, tensors: tensors.update({"x.weight": torch.zeros(3)}), "does not account for x.weight"),
        (lambda _, tensors: tensors.pop("d2t"), "d2t is missing"),
        (lambda _, tensors: tensors["d2t"].add_(22), "d2t names a word twice, or one that is none"),
        (lambda fields, _: fields.update(draft_vocab_size=39), "lm_head.weight has shape"),
    ],
)
def test_what_is_no_head_for_the_model_is_refused(change: Change, says: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=says):
        load_runner(config_of(folder, write_head(tmp_path, change)))


def test_a_folder_without_a_head_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        load_runner(config_of(folder, tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    with pytest.raises(ModelLoadError, match=r"has no EAGLE-3 head: there is none of model\.safetensors"):
        load_runner(config_of(folder, tmp_path))
    with pytest.raises(ConfigError) as error:
        config_of(folder, tmp_path, tensor_parallel_size=2)
    assert error.value.field == "speculative_method"


def test_embeddings_that_are_the_models_are_scaled_as_the_model_scales_them(tmp_path: Path) -> None:
    """Gemma's are stored small. A head's own are as they were trained."""
    folder = write_random_checkpoint(tmp_path / "model", gemma3_fields(vocab_size=WORDS))
    model = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1)._part.model
    fields = eagle_fields(HIDDEN, WORDS, WORDS, eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    ids = torch.arange(WORDS)
    given = model.config, model.embedding.weight, torch.float32, torch.device("cpu"), model.embedding.scale
    shared = load_eagle_head(write_eagle_head(tmp_path / "shared", fields), *given)
    assert model.embedding.scale != 1.0
    torch.testing.assert_close(shared.embed(ids), model.embedding(ids))
    own = torch.randn(WORDS, HIDDEN)
    tensors = {**eagle_tensors(fields), "embed_tokens.weight": own}
    head = load_eagle_head(write_eagle_head(tmp_path / "own", fields, tensors), *given)
    torch.testing.assert_close(head.embed(ids), own)
    load, _ = watched_guesses(
        config_of(folder, tmp_path / "shared"), [make_request("a", [3, 9, 7], max_tokens=12, ignore_eos=True)]
    )
    assert load.num_draft_tokens
